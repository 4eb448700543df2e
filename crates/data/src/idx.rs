//! IDX, the file format of MNIST and its relatives: a header with sizes, then that many bytes.
//!
//! ```text
//! 00 00        magic
//! 08           type of the elements: unsigned bytes
//! 03           rank: how many sizes follow
//! 00 00 EA 60  each size: 4 bytes, the highest first (60,000 images)
//! ...          the data, the last dimension varying fastest
//! ```
//! A header's claims are checked against the actual bytes. The allocation starts from the length of the file and
//! grows with the bytes that are read; it never depends on the header alone. At most one byte more than the header
//! claims is read.
//!
//! Plain files are read, not mapped: all bytes are needed at once, a copy in RAM counts in the budget, and access to
//! a mapped file that was truncated ends the process.

use std::cmp::Ordering;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use pagelock_memory::{HostBuffer, default_host, open_regular};

use crate::error::Problem;
use crate::{Error, Result};

/// The first bytes of a gzip stream.
const GZIP_MAGIC: [u8; 2] = [0x1F, 0x8B];
/// The content is rarely more than this many times longer than the packed file; the first allocation assumes this
/// ratio.
const USUAL_RATIO: usize = 8;
/// The code for unsigned bytes, the only element type that image sets use.
const UNSIGNED_BYTE: u8 = 0x08;
/// The most dimensions of a tensor.
const MAX_RANK: usize = 8;

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
            Problem::Content(problem) => {
                Error::Content { path: path.into(), problem: format!("is not a usable IDX file: {problem}") }
            }
            Problem::Other(error) => error,
        })
    }

    /// Reads and checks the bytes of an unpacked file.
    ///
    /// # Errors
    /// [`Error::Other`] if they are not what their header says; [`Error::Memory`] if the budget of host memory refuses.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::idx::IdxFile;
    ///
    /// let matrix = IdxFile::parse(&[0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 11, 12, 20, 21, 22])?;
    /// assert_eq!((matrix.sizes(), matrix.bytes()), (&[2, 3][..], &[10, 11, 12, 20, 21, 22][..]));
    /// assert_eq!(
    ///     IdxFile::parse(&[0, 0, 8, 1, 0, 0, 0, 5, 1, 2]).err().unwrap().to_string(),
    ///     "its header claims sizes [5], which is 5 bytes of data, but only 2 bytes follow; \
    ///      the file is cut off: get it again",
    /// );
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        Self::read(bytes, bytes.len()).map_err(|problem| match problem {
            Problem::Content(problem) => Error::other(problem),
            Problem::Other(error) => error,
        })
    }

    /// Reads `stream` to its end. `expected_bytes` is the most that is allocated before any data are read.
    fn read(mut stream: impl Read, expected_bytes: usize) -> Result<Self, Problem> {
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

fn damaged<T>(problem: String) -> Result<T, Problem> {
    Err(Problem::Content(problem))
}

/// The sizes that a header claims, and the number of data bytes that follow from them.
struct Header {
    sizes: Vec<usize>,
    data_len: usize,
}

impl Header {
    /// How many bytes a header that starts with `start` takes.
    fn len_bytes(start: [u8; 4]) -> Result<usize, Problem> {
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

    /// Reads the header from `stream`, up to the start of the data.
    fn read(stream: &mut impl Read) -> Result<Self, Problem> {
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

    fn from_sizes(big_endian: &[u8]) -> Result<Self, Problem> {
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

    fn check_data(&self, found_bytes: usize) -> Result<(), Problem> {
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

fn allocate(len_bytes: usize) -> Result<HostBuffer, Problem> {
    Ok(HostBuffer::allocate(default_host(), len_bytes)?)
}

/// Reads until `buffer` is full or the stream ends; returns how many bytes were read. `found_bytes` were read before.
fn read_until_full(stream: &mut impl Read, buffer: &mut [u8], found_bytes: usize) -> Result<usize, Problem> {
    let mut len = 0;
    while len < buffer.len() {
        match stream.read(&mut buffer[len..]) {
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

    /// What is in a packed file, or what is wrong with it.
    fn unpack(packed: &[u8]) -> Result<(Vec<usize>, Vec<u8>), String> {
        let content = IdxFile::read(MultiGzDecoder::new(packed), 8 * packed.len());
        shown(content.map_err(|problem| problem.at(Path::new("packed"))))
    }

    fn shown(file: Result<IdxFile>) -> Result<(Vec<usize>, Vec<u8>), String> {
        let text = |error: Error| error.to_string().replace("`packed` cannot be used: ", "");
        file.map(|file| (file.sizes().to_vec(), file.bytes().to_vec())).map_err(text)
    }

    #[test]
    fn what_is_no_whole_idx_file_is_refused_with_what_is_wrong_packed_or_not() {
        let matrix = "its header claims sizes [2, 3], which is 6 bytes of data, but";
        let cut = "the file is cut off: get it again";
        for (file, expected) in [
            (vec![], format!("it has 0 bytes and its header alone takes 4; {cut}")),
            (MATRIX[..3].into(), format!("it has 3 bytes and its header alone takes 4; {cut}")),
            (MATRIX[..11].into(), format!("it has 11 bytes and its header alone takes 12; {cut}")),
            (
                b"<html>not found</html>".into(),
                "it starts with 3c 68, and an IDX file starts with 00 00; check that this is the right file".into(),
            ),
            (
                vec![0, 0, 0x0D, 1, 0, 0, 0, 1, 0, 0, 0, 0],
                "its elements have type code 0x0d, and only 0x08 (unsigned bytes) is supported; convert the file".into(),
            ),
            (
                vec![0, 0, 8, 0],
                "its header claims 0 dimensions, and 1 to 8 are supported; check that this is the right file".into(),
            ),
            (
                vec![0, 0, 8, 200],
                "its header claims 200 dimensions, and 1 to 8 are supported; check that this is the right file".into(),
            ),
            (
                header(&[0, 28, 28]),
                "its header claims sizes [0, 28, 28], and dimension 0 is zero; an empty file cannot be used: get it again"
                    .into(),
            ),
            (
                header(&[u32::MAX; 3]),
                "its header claims sizes [4294967295, 4294967295, 4294967295], more bytes than this machine can address; \
                 the file is damaged: get it again"
                    .into(),
            ),
            (MATRIX[..15].into(), format!("{matrix} only 3 bytes follow; {cut}")),
            (
                [&MATRIX[..], &[0]].concat(),
                format!("{matrix} more bytes follow; the header or the file is damaged: get it again"),
            ),
            // An allocation of that size would abort or be refused with another text.
            (
                header(&[1 << 20, 1 << 20]),
                format!(
                    "its header claims sizes [1048576, 1048576], which is 1099511627776 bytes of data, but only 0 bytes \
                     follow; {cut}"
                ),
            ),
        ] {
            assert_eq!(shown(IdxFile::parse(&file)).unwrap_err(), expected);
            assert_eq!(unpack(&gzip(&file)).unwrap_err(), expected);
        }
    }

    #[test]
    fn data_that_packs_unusually_well_are_read_whole() {
        // 100,000 equal bytes pack a hundredfold: the memory must grow several times.
        let content = [header(&[100, 1000]), vec![9; 100_000]].concat();
        assert_eq!(unpack(&gzip(&content)).unwrap(), (vec![100, 1000], content[12..].to_vec()));
    }

    #[test]
    fn unpacking_stops_one_byte_past_the_announced_end() {
        // The second half of the stream is damaged: reading it would report that instead of the surplus.
        let mut packed = gzip(&[header(&[2]), vec![7; 1 << 20]].concat());
        let middle = packed.len() / 2;
        packed[middle..].fill(0xFF);
        let error = unpack(&packed).unwrap_err();
        assert!(error.contains("which is 2 bytes of data, but more bytes follow"), "{error}");
    }

    #[test]
    fn a_gzip_stream_that_is_cut_or_has_a_wrong_checksum_is_refused() {
        let packed = gzip(&MATRIX);
        let mut damaged = packed.clone();
        damaged[packed.len() - 8] ^= 1; // where the checksum is
        for packed in [&packed[..packed.len() - 12], &damaged[..]] {
            let text = unpack(packed).unwrap_err();
            assert!(text.starts_with("reading it fails after "), "{text}");
            assert!(text.ends_with("; the file is cut off or damaged: get it again"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_alike_packed_and_plain(
            rank in 0u8..4, sizes in prop::collection::vec(0u32..5, 0..4), data in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut file = header(&sizes);
            file[3] = rank;
            file.extend(data);
            prop_assert_eq!(shown(IdxFile::parse(&file)), unpack(&gzip(&file)));
        }
    }
}
