//! NumPy's `.npy`: a magic number, a version, the length of a header, the header (a Python dictionary), the elements.
//!
//! ```text
//! 93 "NUMPY" 01 00 76 00  {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }
//! ```

use std::path::Path;

use pagelock_tensor::{DType, Kind};

use super::{Array, Claim, FileBytes, StoredRows};
use crate::{Error, Result};

pub(super) const MAGIC: [u8; 6] = *b"\x93NUMPY";
/// What headers call the element types of tensors, in this machine's byte order.
pub(super) const DESCR: [(&str, DType); 7] = [
    ("<f4", DType::F32),
    ("<f8", DType::F64),
    ("<f2", DType::F16),
    ("<i8", DType::I64),
    ("<i4", DType::I32),
    ("|u1", DType::U8),
    ("|b1", DType::Bool),
];
/// The longest header that is read. Usual headers have a few hundred bytes; this is NumPy's own default limit.
const LONGEST_HEADER: u64 = 10_000;

impl<K: Kind> StoredRows<K> {
    /// The rows of a `.npy` file, as `numpy.save` writes it, in the precision of the file.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if it is not a `.npy` file, has elements of another kind, is in Fortran
    /// order, or is shorter than its header says.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{Dataset, StoredRows};
    /// use pagelock_tensor::Int;
    ///
    /// let file = tempfile::NamedTempFile::new()?;
    /// let header = format!("{:<117}\n", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }");
    /// std::fs::write(&file, [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &[1, 2, 3, 4, 5, 6]].concat())?;
    ///
    /// let rows = StoredRows::<Int>::npy(file.path())?;
    /// assert_eq!((rows.len(), rows.get(1)?.to_vec::<u8>()?), (2, vec![4, 5, 6]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn npy(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::of(Array::npy_in(path, FileBytes::open(path)?)?)
    }
}

impl Array {
    /// The array in `bytes`, which hold a whole `.npy` file; `path` is for errors.
    pub(super) fn npy_in(path: &Path, bytes: FileBytes) -> Result<Self> {
        let (start, header) = read_header(path, &bytes)?;
        let (dtype, shape) = parse(&header).map_err(|problem| Error::content(path, problem))?;
        Self::claimed(path, bytes, Claim { dtype, shape, start })
    }
}

/// The offset of the elements, and the dictionary in the header.
fn read_header(path: &Path, bytes: &FileBytes) -> Result<(u64, String)> {
    let not_npy = || Error::content(path, "it does not start like a .npy file; write it with numpy.save");
    let mut start = [0; 12];
    let n_start = bytes.len().min(12) as usize;
    bytes.read_exact_at(&mut start[..n_start], 0).map_err(|source| Error::io("read", path, source))?;
    if n_start < 10 || start[..6] != MAGIC {
        return Err(not_npy());
    }
    let (at, header_bytes) = match start[6] {
        1 => (10, u64::from(u16::from_le_bytes([start[8], start[9]]))),
        2 | 3 => (12, u64::from(u32::from_le_bytes([start[8], start[9], start[10], start[11]]))),
        version => {
            return Err(Error::content(path, format!("it is a .npy file of version {version}, not 1 to 3")));
        }
    };
    if header_bytes > LONGEST_HEADER || at + header_bytes > bytes.len() {
        let len_bytes = bytes.len();
        let problem = format!(
            "its header claims to be {header_bytes} bytes long, but at most {LONGEST_HEADER} are read, and the file has \
             {len_bytes}; it is damaged: get it again"
        );
        return Err(Error::content(path, problem));
    }
    let mut header = vec![0; header_bytes as usize];
    bytes.read_exact_at(&mut header, at).map_err(|source| Error::io("read", path, source))?;
    Ok((at + header_bytes, String::from_utf8(header).map_err(|_| not_npy())?))
}

fn parse(header: &str) -> Result<(DType, Vec<usize>), String> {
    let value = |key: &str| header.split_once(&format!("'{key}':")).map(|(_, rest)| rest.trim_start());
    let (Some(descr), Some(order), Some(shape)) = (value("descr"), value("fortran_order"), value("shape")) else {
        return Err("its header lacks descr, fortran_order or shape; write it with numpy.save".into());
    };
    let descr = descr.trim_start_matches('\'').split('\'').next().unwrap_or_default();
    let Some((_, dtype)) = DESCR.iter().find(|(known, _)| *known == descr) else {
        return Err(format!("its elements are `{descr}`, which no tensor can hold; convert them with astype"));
    };
    if !order.starts_with("False") {
        return Err("it is in Fortran order; convert it with numpy.ascontiguousarray and save it again".into());
    }
    let sizes = shape.strip_prefix('(').and_then(|rest| rest.split_once(')')).map(|(sizes, _)| sizes);
    let parse = |size: &str| size.trim().parse::<usize>();
    let sizes = sizes.map(|sizes| sizes.split(',').filter(|size| !size.trim().is_empty()).map(parse).collect());
    match sizes {
        Some(Ok(sizes)) => Ok((*dtype, sizes)),
        _ => Err("its header has a shape that is not a list of sizes; write it with numpy.save".into()),
    }
}
