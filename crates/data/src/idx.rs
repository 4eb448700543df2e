//! IDX, the file format of MNIST and its relatives: a header with sizes, then that many bytes.
//!
//! ```text
//! 00 00        magic
//! 08           type of the elements: unsigned bytes
//! 03           rank: how many sizes follow
//! 00 00 EA 60  each size: 4 bytes, the highest first (60,000 images)
//! ...          the data, the last dimension varying fastest
//! ```
//! A header's claims are checked against the bytes that are there. How much is allocated depends on the length of the file and
//! grows with the bytes that are read, never on the header alone; at most one byte more than the header claims is read.
//!
//! Plain files are read, not mapped: all of their bytes are wanted at once, a copy in RAM counts in the budget, and access to
//! a mapped file that was cut short ends the process.

use std::cmp::Ordering;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use pagelock_memory::{HostBuffer, default_host, open_regular};

use crate::{Error, Result};

/// The first bytes of a gzip stream.
const GZIP_MAGIC: [u8; 2] = [0x1F, 0x8B];
/// Packed files are rarely more than this many times smaller than their content; memory starts at that size.
const USUAL_RATIO: usize = 8;
/// The code for unsigned bytes, the only element type that image sets use.
const UNSIGNED_BYTE: u8 = 0x08;
/// As many dimensions as a tensor can have.
const MAX_RANK: usize = 8;

/// The content of an IDX file of unsigned bytes, checked: `bytes` is as long as `sizes` say.
///
/// # Examples
/// ```
/// use pagelock_data::idx::Idx;
///
/// let file = [0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 11, 12, 20, 21, 22];
/// let matrix = Idx::parse(&file)?;
/// assert_eq!(matrix.sizes(), [2, 3]);
/// assert_eq!(matrix.bytes(), [10, 11, 12, 20, 21, 22]);
/// # Ok::<(), pagelock_data::idx::IdxError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idx<'a> {
    sizes: Vec<usize>,
    bytes: &'a [u8],
}

impl<'a> Idx<'a> {
    /// Reads the header of `file` and checks that exactly the announced bytes follow.
    ///
    /// # Errors
    /// [`IdxError`] if this is not an IDX file of unsigned bytes, or if it is longer or shorter than its header
    /// says.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::idx::Idx;
    ///
    /// let cut_off = [0, 0, 8, 1, 0, 0, 0, 5, 1, 2];
    /// assert_eq!(
    ///     Idx::parse(&cut_off).unwrap_err().to_string(),
    ///     "its header claims sizes [5], which is 5 bytes of data, but only 2 bytes follow; \
    ///      the file is cut off: get it again",
    /// );
    /// ```
    pub fn parse(file: &'a [u8]) -> Result<Self, IdxError> {
        let (header, bytes) = Header::split(file)?;
        header.check_data(bytes.len())?;
        Ok(Self { sizes: header.sizes, bytes })
    }

    /// The size of each dimension, the slowest-varying first; never empty, never zero.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::idx::Idx;
    /// assert_eq!(Idx::parse(&[0, 0, 8, 1, 0, 0, 0, 2, 7, 9])?.sizes(), [2]);
    /// # Ok::<(), pagelock_data::idx::IdxError>(())
    /// ```
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The data, row-major.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::idx::Idx;
    /// assert_eq!(Idx::parse(&[0, 0, 8, 1, 0, 0, 0, 2, 7, 9])?.bytes(), [7, 9]);
    /// # Ok::<(), pagelock_data::idx::IdxError>(())
    /// ```
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// An IDX file in memory, read from a plain file or from one packed with gzip (told apart by content, not by name).
///
/// Its bytes are charged to the budget of host memory.
///
/// # Examples
/// ```
/// use pagelock_data::idx::IdxFile;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("labels-idx1-ubyte");
/// std::fs::write(&path, [0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 4])?;
///
/// let labels = IdxFile::open(&path)?;
/// assert_eq!(labels.sizes(), [3]);
/// assert_eq!(labels.bytes(), [5, 0, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct IdxFile {
    sizes: Vec<usize>,
    data: HostBuffer,
}

impl IdxFile {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened; [`Error::Content`] if its content is not what its header says;
    /// [`Error::Memory`] if the budget of host memory refuses.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::idx::IdxFile;
    ///
    /// let error = IdxFile::open("/nowhere/train-images-idx3-ubyte").err().unwrap();
    /// assert!(error.to_string().starts_with("cannot open `/nowhere/train-images-idx3-ubyte`: "));
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let cannot = |action| move |source| Error::io(action, path, source);
        let (file, len_bytes) = open_regular(path).map_err(cannot("open"))?;
        let len_bytes = len_bytes as usize;
        let mut file = BufReader::new(file);
        let packed = file.fill_buf().map_err(cannot("read"))?.starts_with(&GZIP_MAGIC);
        let content = match packed {
            true => Self::read(MultiGzDecoder::new(file), len_bytes.saturating_mul(USUAL_RATIO)),
            false => Self::read(file, len_bytes),
        };
        content.map_err(|problem| match problem {
            IdxError::Memory(refusal) => Error::Memory(refusal),
            IdxError::Damaged(problem) => {
                Error::Content { path: path.into(), problem: format!("is not a usable IDX file: {problem}") }
            }
        })
    }

    /// Reads `stream` to its end. `expected_bytes` is how much memory may be taken before a byte has come.
    fn read(mut stream: impl Read, expected_bytes: usize) -> Result<Self, IdxError> {
        let header = Header::read(&mut stream)?;
        let mut data = allocate(header.data_len.min(expected_bytes.max(4096)))?;
        let mut found_bytes = 0;
        loop {
            found_bytes += read_until_full(&mut stream, &mut data.bytes_mut()?[found_bytes..], found_bytes)?;
            if found_bytes < data.len_bytes() || found_bytes == header.data_len {
                break;
            }
            let mut larger = allocate(header.data_len.min(data.len_bytes().saturating_mul(2)))?;
            larger.bytes_mut()?[..found_bytes].copy_from_slice(data.bytes());
            data = larger;
        }
        // One byte more than announced is enough to know that there is too much.
        let surplus = read_until_full(&mut stream, &mut [0], found_bytes)?;
        header.check_data(found_bytes + surplus)?;
        Ok(Self { sizes: header.sizes, data })
    }

    /// The size of each dimension, the slowest-varying first; never empty, never zero.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The data, row-major.
    pub fn bytes(&self) -> &[u8] {
        self.data.bytes()
    }

    /// The data as a buffer.
    pub(crate) fn into_buffer(self) -> HostBuffer {
        self.data
    }
}

/// Why some bytes are not an IDX file of unsigned bytes.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum IdxError {
    /// The bytes are damaged, incomplete or something else. The text says what is wrong, and what to do.
    #[error("{0}")]
    Damaged(String),
    /// Host memory was refused.
    #[error(transparent)]
    Memory(#[from] pagelock_memory::Error),
}

pagelock_memory::debug_is_the_message!(IdxError);

fn damaged<T>(problem: String) -> Result<T, IdxError> {
    Err(IdxError::Damaged(problem))
}

/// The sizes that a header claims, and the number of data bytes that follow from them.
struct Header {
    sizes: Vec<usize>,
    data_len: usize,
}

impl Header {
    /// How many bytes a header that starts with `start` takes.
    fn len_bytes(start: [u8; 4]) -> Result<usize, IdxError> {
        let [a, b, code, rank] = start;
        if [a, b] != [0, 0] {
            return damaged(format!(
                "it starts with {a:02x} {b:02x}, and an IDX file starts with 00 00; check that this is the right file"
            ));
        }
        if code != UNSIGNED_BYTE {
            return damaged(format!(
                "its elements have type code 0x{code:02x}, and only 0x08 (unsigned bytes) is supported; convert the file"
            ));
        }
        let rank = rank as usize;
        if !(1..=MAX_RANK).contains(&rank) {
            return damaged(format!(
                "its header claims {rank} dimensions, and 1 to {MAX_RANK} are supported; check that this is the right file"
            ));
        }
        Ok(4 + 4 * rank)
    }

    /// The header at the front of `file`, and what follows it.
    fn split(mut file: &[u8]) -> Result<(Self, &[u8]), IdxError> {
        Ok((Self::read(&mut file)?, file))
    }

    /// The header at the front of `stream`, which is left where the data begin.
    fn read(stream: &mut impl Read) -> Result<Self, IdxError> {
        let mut bytes = [0; 4 + 4 * MAX_RANK];
        let len_bytes = read_until_full(stream, &mut bytes[..4], 0)?;
        let cut_off = |len_bytes, need_bytes| {
            damaged(format!(
                "it has {len_bytes} bytes and its header alone takes {need_bytes}; the file is cut off: get it again"
            ))
        };
        if len_bytes < 4 {
            return cut_off(len_bytes, 4);
        }
        let need_bytes = Self::len_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])?;
        let len_bytes = 4 + read_until_full(stream, &mut bytes[4..need_bytes], 0)?;
        if len_bytes < need_bytes {
            return cut_off(len_bytes, need_bytes);
        }
        Self::from_sizes(&bytes[4..need_bytes])
    }

    fn from_sizes(big_endian: &[u8]) -> Result<Self, IdxError> {
        let (words, _) = big_endian.as_chunks::<4>();
        let sizes: Vec<usize> = words.iter().map(|word| u32::from_be_bytes(*word) as usize).collect();
        if let Some(dim) = sizes.iter().position(|&size| size == 0) {
            return damaged(format!(
                "its header claims sizes {sizes:?}, and dimension {dim} is zero; an empty file cannot be used: get it again"
            ));
        }
        let product = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        match product.filter(|&len| len <= isize::MAX as usize) {
            Some(data_len) => Ok(Self { sizes, data_len }),
            None => damaged(format!(
                "its header claims sizes {sizes:?}, more bytes than this machine can address; the file is damaged: get it again"
            )),
        }
    }

    fn check_data(&self, found_bytes: usize) -> Result<(), IdxError> {
        let Self { sizes, data_len: need_bytes } = self;
        let claim = format!("its header claims sizes {sizes:?}, which is {need_bytes} bytes of data, but");
        match found_bytes.cmp(need_bytes) {
            Ordering::Equal => Ok(()),
            Ordering::Less => {
                damaged(format!("{claim} only {found_bytes} bytes follow; the file is cut off: get it again"))
            }
            Ordering::Greater => {
                damaged(format!("{claim} more bytes follow; the header or the file is damaged: get it again"))
            }
        }
    }
}

fn allocate(len_bytes: usize) -> Result<HostBuffer, IdxError> {
    Ok(HostBuffer::allocate(default_host(), len_bytes)?)
}

/// Reads until `room` is full or the stream ends; returns how many bytes came. `found_bytes` came before.
fn read_until_full(stream: &mut impl Read, room: &mut [u8], found_bytes: usize) -> Result<usize, IdxError> {
    let mut len = 0;
    while len < room.len() {
        match stream.read(&mut room[len..]) {
            Ok(0) => break,
            Ok(n_bytes) => len += n_bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let found_bytes = found_bytes + len;
                return damaged(format!(
                    "reading it fails after {found_bytes} bytes of data ({error}); the file is cut off or damaged: get it again"
                ));
            }
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    /// A well-formed file of rank 2: two rows of three.
    const MATRIX: [u8; 18] = [0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 11, 12, 20, 21, 22];

    fn header(sizes: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, sizes.len() as u8];
        sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
        bytes
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn unpack(packed: &[u8]) -> Result<IdxFile, IdxError> {
        IdxFile::read(MultiGzDecoder::new(packed), 8 * packed.len())
    }

    /// The error text for `bytes`, which must be the same from a slice, a plain file and a packed file.
    fn refusal(bytes: &[u8]) -> String {
        let plain = Idx::parse(bytes).unwrap_err().to_string();
        assert_eq!(plain, IdxFile::read(bytes, bytes.len()).err().unwrap().to_string());
        assert_eq!(plain, unpack(&gzip(bytes)).err().unwrap().to_string());
        plain
    }

    #[test]
    fn packed_and_plain_files_read_the_same() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [("plain", MATRIX.to_vec()), ("packed", gzip(&MATRIX))] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();

            let file = IdxFile::open(&path).unwrap();

            assert_eq!((file.sizes(), file.bytes()), (&[2, 3][..], &MATRIX[12..]));
        }
    }

    #[test]
    fn a_file_without_a_whole_header_is_refused() {
        assert_eq!(
            refusal(&MATRIX[..3]),
            "it has 3 bytes and its header alone takes 4; the file is cut off: get it again"
        );
        assert_eq!(
            refusal(&MATRIX[..11]),
            "it has 11 bytes and its header alone takes 12; the file is cut off: get it again"
        );
    }

    #[test]
    fn an_empty_file_is_refused() {
        assert_eq!(
            Idx::parse(&[]).unwrap_err().to_string(),
            "it has 0 bytes and its header alone takes 4; the file is cut off: get it again"
        );
    }

    #[test]
    fn a_wrong_magic_number_is_refused() {
        assert_eq!(
            refusal(b"<html>not found</html>"),
            "it starts with 3c 68, and an IDX file starts with 00 00; check that this is the right file"
        );
    }

    #[test]
    fn elements_other_than_bytes_are_refused() {
        assert_eq!(
            refusal(&[0, 0, 0x0D, 1, 0, 0, 0, 1, 0, 0, 0, 0]),
            "its elements have type code 0x0d, and only 0x08 (unsigned bytes) is supported; convert the file"
        );
    }

    #[test]
    fn ranks_without_meaning_are_refused() {
        assert_eq!(
            refusal(&[0, 0, 8, 0]),
            "its header claims 0 dimensions, and 1 to 8 are supported; check that this is the right file"
        );
        assert_eq!(
            refusal(&[0, 0, 8, 200]),
            "its header claims 200 dimensions, and 1 to 8 are supported; check that this is the right file"
        );
    }

    #[test]
    fn a_size_of_zero_is_refused() {
        assert_eq!(
            refusal(&header(&[0, 28, 28])),
            "its header claims sizes [0, 28, 28], and dimension 0 is zero; an empty file cannot be used: get it again"
        );
    }

    #[test]
    fn a_truncated_file_is_refused() {
        assert_eq!(
            refusal(&MATRIX[..15]),
            "its header claims sizes [2, 3], which is 6 bytes of data, but only 3 bytes follow; \
             the file is cut off: get it again"
        );
    }

    #[test]
    fn bytes_after_the_end_are_refused() {
        assert_eq!(
            refusal(&[&MATRIX[..], &[0]].concat()),
            "its header claims sizes [2, 3], which is 6 bytes of data, but more bytes follow; \
             the header or the file is damaged: get it again"
        );
    }

    #[test]
    fn a_header_that_claims_terabytes_is_refused_without_allocating_them() {
        // 2^40 bytes: an allocation of that size would abort or be refused with another text.
        assert_eq!(
            refusal(&header(&[1 << 20, 1 << 20])),
            "its header claims sizes [1048576, 1048576], which is 1099511627776 bytes of data, but only 0 bytes \
             follow; the file is cut off: get it again"
        );
    }

    #[test]
    fn data_that_packs_unusually_well_are_read_whole() {
        // 100,000 equal bytes pack a hundredfold: the memory must grow several times.
        let content = [header(&[100, 1000]), vec![9; 100_000]].concat();
        let file = unpack(&gzip(&content)).unwrap();
        assert_eq!((file.sizes(), file.bytes()), (&[100, 1000][..], &content[12..]));
    }

    #[test]
    fn sizes_whose_product_overflows_are_refused() {
        assert_eq!(
            refusal(&header(&[u32::MAX, u32::MAX, u32::MAX])),
            "its header claims sizes [4294967295, 4294967295, 4294967295], more bytes than this machine can address; \
             the file is damaged: get it again"
        );
    }

    #[test]
    fn unpacking_stops_one_byte_past_the_announced_end() {
        // The second half of the stream is damaged: reading it would report that instead of the surplus.
        let mut packed = gzip(&[header(&[2]), vec![7; 1 << 20]].concat());
        let middle = packed.len() / 2;
        packed[middle..].fill(0xFF);

        let error = unpack(&packed).err().unwrap();

        assert!(error.to_string().contains("which is 2 bytes of data, but more bytes follow"), "{error}");
    }

    #[test]
    fn a_cut_gzip_stream_is_refused() {
        let packed = gzip(&MATRIX);
        let error = unpack(&packed[..packed.len() - 12]).err().unwrap();
        let text = error.to_string();
        assert!(text.starts_with("reading it fails after "), "{text}");
        assert!(text.ends_with("; the file is cut off or damaged: get it again"), "{text}");
    }

    #[test]
    fn a_gzip_stream_with_a_wrong_checksum_is_refused() {
        let mut packed = gzip(&MATRIX);
        let crc = packed.len() - 8;
        packed[crc] ^= 1;
        assert!(unpack(&packed).err().unwrap().to_string().starts_with("reading it fails after "));
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("labels");
        std::fs::write(&path, [0, 0]).unwrap();

        let error = IdxFile::open(&path).err().unwrap();

        assert_eq!(
            error.to_string(),
            format!(
                "`{}` is not a usable IDX file: it has 2 bytes and its header alone takes 4; \
                 the file is cut off: get it again",
                path.display()
            )
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_alike_packed_and_plain(
            rank in 0u8..4, sizes in prop::collection::vec(0u32..5, 0..4), data in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut file = header(&sizes);
            file[3] = rank;
            file.extend(data);
            let plain = Idx::parse(&file);
            let packed = unpack(&gzip(&file));
            match (plain, packed) {
                (Ok(plain), Ok(packed)) => prop_assert_eq!((plain.sizes(), plain.bytes()), (packed.sizes(), packed.bytes())),
                (plain, packed) => prop_assert_eq!(plain.unwrap_err().to_string(), packed.err().unwrap().to_string()),
            }
        }
    }
}
