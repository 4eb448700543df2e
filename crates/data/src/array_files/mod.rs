//! [`StoredRows`]: the rows of an array in a file, read on demand in a fixed amount of memory.
//!
//! Rows are read, not mapped. If the file is truncated while it is open, reading a row fails with an error that names
//! the row, whereas access to a mapped file would end the process. The system's page cache holds recently read parts.
//!
//! `npy.rs`, `npz.rs` and `safetensors.rs` locate the array in a file of their format, and `write.rs` writes `.npy`
//! and `.npz` files. `../file_bytes.rs` reads a range of a file. The claims of a header are checked against the
//! length of the file before anything is allocated.

mod npy;
mod npz;
mod safetensors;
mod write;

pub use self::write::{save_npy, save_npz};

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pagelock_memory::{HostBuffer, default_host};
use pagelock_tensor::{AnyTensor, DType, Device, Element, FileElements, Float, Kind, Shape, Tensor};

use crate::collate::Stack;
use crate::dataset::{Dataset, check_index};
use crate::elements::{kind_of, try_build, with_element};
use crate::file_bytes::FileBytes;
use crate::identity::{Checksum, hash_of_blocks, hash_or_error};
use crate::{Error, Result};

/// A dataset whose samples are the rows of an array in a file. The elements are floats unless the type names another
/// kind, and they keep the file's precision.
///
/// The file may be larger than RAM. Cloning is cheap: the open file is shared. A batch is read row by row, or several
/// small rows at once, into its tensor, which is page-locked if the loader pins its batches. Each row is copied once on
/// the way.
///
/// Its identity in a loader's state consists of the element type, the shape and a hash. The hash covers all elements
/// if they take at most 64 KiB, else 16 blocks of 4 KiB spread from the first to the last. For an array of a `.npz`
/// file, the archive's checksum of the array replaces the hash; it covers all elements.
///
/// # Examples
/// ```
/// use pagelock_data::{DataLoader, Dataset, StoredRows};
/// use pagelock_tensor::DType;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("points.bin");
/// let numbers: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// std::fs::write(&path, numbers)?;
///
/// let points: StoredRows = StoredRows::raw(&path, DType::F32, &[2])?; // [3, 2]
/// assert_eq!((points.len(), points.get(1)?.to_vec::<f32>()?), (3, vec![2.0, 3.0]));
/// assert_eq!((points.row_shape(), points.dtype(), points.read()?.dims()), (&[2][..], DType::F32, &[3, 2][..]));
/// for batch in &DataLoader::new(points).batch_size(2).shuffle(0).pin_memory(true) {
///     assert!(batch?.is_pinned());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StoredRows<K = Float> {
    array: Array,
    kind: PhantomData<fn() -> K>,
}

/// An array in a file, with elements of any kind.
#[derive(Clone, Debug)]
struct Array {
    bytes: FileBytes,
    path: PathBuf,
    start: u64, // offset of the first row in bytes
    dtype: DType,
    row_shape: Vec<usize>,
    row_bytes: usize,
    n_rows: usize,
    checksum: Option<Checksum>, // of all of `bytes`, if the format has one
}

/// The type, shape and offset of an array in a file, as a header claims them.
struct Claim {
    dtype: DType,
    shape: Vec<usize>,
    start: u64,
}

impl<K> Clone for StoredRows<K> {
    fn clone(&self) -> Self {
        Self { array: self.array.clone(), kind: PhantomData }
    }
}

impl<K> fmt::Debug for StoredRows<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoredRows").field(&self.array).finish()
    }
}

impl<K: Kind> StoredRows<K> {
    /// The rows of a file without a header: numbers in this machine's byte order, one row after another.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if the file is not a whole number of rows, or `dtype` is not of kind `K`.
    pub fn raw(path: impl AsRef<Path>, dtype: DType, row_shape: &[usize]) -> Result<Self> {
        check_kind::<K>(path.as_ref(), dtype)?;
        Self::of(Array::raw(path.as_ref(), dtype, row_shape)?)
    }

    /// Refuses an array whose elements are not of kind `K`.
    fn of(array: Array) -> Result<Self> {
        check_kind::<K>(&array.path, array.dtype)?;
        Ok(Self { array, kind: PhantomData })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.array.dtype
    }

    /// The shape of a row.
    pub fn row_shape(&self) -> &[usize] {
        &self.array.row_shape
    }

    /// All rows in memory.
    ///
    /// # Errors
    /// As [`Dataset::get`]; [`Error::Tensor`] if memory is refused.
    pub fn read(&self) -> Result<Tensor<K>> {
        Ok(self.array.all_rows()?.kind()?)
    }

    /// All rows as a tensor on `device`. For a GPU, several threads read them straight into the slots of the
    /// page-locked ring buffer that all copies share, so no other host memory is used, however large the file. An
    /// array that had to be unpacked is in memory already.
    ///
    /// # Errors
    /// [`Error::Tensor`] if memory is refused, by the host or by the device, or if the file cannot be read any more.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::StoredRows;
    /// use pagelock_tensor::{DType, Device, Int};
    /// # let file = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(&file, [7; 6])?;
    /// let there = StoredRows::<Int>::raw(file.path(), DType::U8, &[3])?.to(&Device::best())?;
    /// assert_eq!((there.dims(), there.device()), (&[2, 3][..], Device::best()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to(&self, device: &Device) -> Result<Tensor<K>> {
        match self.array.in_file() {
            Some(elements) => Ok(self.array.send(elements, device)?.kind()?),
            None => Ok(self.read()?.to(device)?),
        }
    }
}

impl Array {
    fn raw(path: &Path, dtype: DType, row_shape: &[usize]) -> Result<Self> {
        let bytes = FileBytes::open(path)?;
        let len_bytes = bytes.len();
        let row_bytes = bytes_of(dtype, row_shape).filter(|&bytes| bytes > 0);
        let row_bytes = row_bytes.ok_or_else(|| {
            let problem = format!("a row shape of {row_shape:?} has no elements or too many; give another");
            Error::content(path, problem)
        })?;
        if !len_bytes.is_multiple_of(row_bytes) {
            let problem = format!(
                "it has {len_bytes} bytes, and a row of {row_shape:?} {dtype} takes {row_bytes}; give the right shape or get \
                 the whole file"
            );
            return Err(Error::content(path, problem));
        }
        let mut shape = vec![(len_bytes / row_bytes) as usize];
        shape.extend(row_shape);
        Self::claimed(path, bytes, Claim { dtype, shape, start: 0 })
    }

    /// The rows that a header claims, if the file is long enough for them.
    fn claimed(path: &Path, bytes: FileBytes, claim: Claim) -> Result<Self> {
        let Claim { dtype, shape, start } = claim;
        let Some((&n_rows, row_shape)) = shape.split_first() else {
            return Err(Error::content(path, "it holds one number, which has no rows; give it a first dimension"));
        };
        let whole = bytes_of(dtype, &shape).and_then(|bytes| bytes.checked_add(start));
        let row_bytes = bytes_of(dtype, row_shape).and_then(|bytes| usize::try_from(bytes).ok());
        match (whole, row_bytes) {
            (Some(end), Some(row_bytes)) if end <= bytes.len() => {
                Shape::new(&shape).map_err(|error| {
                    Error::content(path, format!("its header claims a shape that no tensor can have: {error}"))
                })?;
                if n_rows > 0 && row_bytes == 0 {
                    let problem = "rows without elements, which hold no data; write another array";
                    return Err(Error::content(path, format!("its header claims {shape:?}, {problem}")));
                }
                let (path, row_shape) = (path.to_owned(), row_shape.to_vec());
                Ok(Self { bytes, path, start, dtype, row_shape, row_bytes, n_rows, checksum: None })
            }
            _ => {
                let problem = format!(
                    "its header claims {shape:?} of {dtype} from byte {start}, but the file has {} bytes; it is cut \
                     off or its header is wrong: get it again",
                    bytes.len()
                );
                Err(Error::content(path, problem))
            }
        }
    }

    /// The location of the rows in the file; `None` if they were unpacked into memory.
    fn in_file(&self) -> Option<FileElements<'_>> {
        let (file, start) = self.bytes.in_file()?;
        Some(FileElements { file, path: &self.path, start: start + self.start })
    }

    fn send(&self, elements: FileElements<'_>, device: &Device) -> Result<AnyTensor> {
        let shape = self.shape(self.n_rows);
        with_element!(self.dtype, E => Ok(elements.to::<E>(&shape[..], device)?.into()))
    }

    fn shape(&self, n_rows: usize) -> Vec<usize> {
        [&[n_rows], &self.row_shape[..]].concat()
    }

    /// All rows. Their indices are not checked, which would take long for billions of rows that no memory can hold.
    fn all_rows(&self) -> Result<AnyTensor> {
        with_element!(self.dtype, E => self.rows_of::<E>(0..self.n_rows))
    }

    fn rows(&self, indices: impl ExactSizeIterator<Item = usize> + Clone) -> Result<AnyTensor> {
        indices.clone().try_for_each(|index| check_index(index, self.n_rows))?;
        with_element!(self.dtype, E => self.rows_of::<E>(indices))
    }

    /// The rows at `indices`, with elements of type `E`. Small rows that follow each other are read together.
    fn rows_of<E: Element>(&self, indices: impl ExactSizeIterator<Item = usize>) -> Result<AnyTensor> {
        const READ_BYTES: usize = 64 << 10;
        let most = indices.len().min(READ_BYTES / self.row_bytes.max(1)).max(1);
        // Without rows no buffer is needed, and a file without rows may claim any row length.
        let n_bytes = if indices.len() == 0 { 0 } else { most * self.row_bytes };
        let mut buffer = HostBuffer::allocate(default_host(), n_bytes)?;
        try_build(&self.shape(indices.len())[..], |mut out: &mut [E]| {
            let mut indices = indices.peekable();
            while let Some(first) = indices.next() {
                let n_more = (1..most).take_while(|n| indices.next_if_eq(&(first + n)).is_some()).count();
                let bytes = &mut buffer.bytes_mut()?[..(n_more + 1) * self.row_bytes];
                self.read_rows(first..first + n_more + 1, bytes)?;
                let rows = E::slice(bytes);
                out.split_off_mut(..rows.len()).into_iter().for_each(|out| out.copy_from_slice(rows));
            }
            Ok(())
        })
        .map(AnyTensor::from)
    }

    /// Reads rows that follow each other.
    fn read_rows(&self, rows: Range<usize>, bytes: &mut [u8]) -> Result<()> {
        let at = self.start + rows.start as u64 * self.row_bytes as u64;
        if let Err(source) = self.bytes.read_exact_at(bytes, at) {
            if rows.len() == 1 {
                return Err(self.unreadable(rows.start, source));
            }
            let mut each = rows.zip(bytes.chunks_exact_mut(self.row_bytes)); // finds the row that cannot be read
            return each.try_for_each(|(row, bytes)| self.read_rows(row..row + 1, bytes));
        }
        let wrong = if self.dtype == DType::Bool { bytes.iter().position(|&byte| byte > 1) } else { None };
        wrong.map_or(Ok(()), |at| {
            let row = rows.start + at / self.row_bytes;
            Err(Error::content(&self.path, format!("row {row} has a byte other than 0 and 1; get the file again")))
        })
    }

    fn identity(&self) -> String {
        let content = match self.checksum {
            Some(checksum) => checksum.to_string(),
            None => {
                let len_bytes = self.n_rows as u64 * self.row_bytes as u64;
                hash_or_error(hash_of_blocks(len_bytes, |out, at| self.bytes.read_exact_at(out, self.start + at)))
            }
        };
        format!("StoredRows of {} {:?}, {content}", self.dtype, self.shape(self.n_rows))
    }

    fn unreadable(&self, index: usize, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => Error::content(
                &self.path,
                format!("row {index} no longer exists: the file was cut short; get it again"),
            ),
            _ => Error::io("read", &self.path, source),
        }
    }
}

// `Tensor<K>` always stacks to `Tensor<K>`, but the compiler cannot derive that from the bound of `gather`.
impl<K: Kind> Dataset for StoredRows<K>
where
    Tensor<K>: Stack<Batch = Tensor<K>>,
{
    type Sample = Tensor<K>;

    fn len(&self) -> usize {
        self.array.n_rows
    }

    fn get(&self, index: usize) -> Result<Tensor<K>> {
        Ok(self.array.rows([index].into_iter())?.select(0, 0)?.kind()?)
    }

    fn gather(&self, indices: &[usize]) -> Result<Option<Tensor<K>>> {
        Ok(Some(self.array.rows(indices.iter().copied())?.kind()?))
    }

    fn identity(&self) -> String {
        self.array.identity()
    }
}

fn check_kind<K: Kind>(path: &Path, dtype: DType) -> Result<()> {
    if K::holds(dtype) {
        return Ok(());
    }
    let (kind, its_kind) = (K::NAME, kind_of(dtype));
    Err(Error::content(
        path,
        format!("its elements are {dtype}, which are not of kind {kind}; open it as StoredRows::<{its_kind}>"),
    ))
}

/// How many bytes an array takes; `None` if the number does not fit into 64 bits.
fn bytes_of(dtype: DType, shape: &[usize]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0); // whatever the other sizes are
    }
    shape.iter().try_fold(dtype.size() as u64, |bytes, &size| bytes.checked_mul(size as u64))
}
