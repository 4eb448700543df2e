//! Writing `.npy` and `.npz` files, which `numpy.load` reads.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use pagelock_files::NewFile;
use pagelock_tensor::{AnyTensor, DType, Shape};
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::npy::{DESCR, MAGIC};
use crate::{Error, Result};

/// Writes a tensor as `numpy.save` does, in its own precision. An existing file is replaced. Tensors on a device are
/// copied to the host first.
///
/// # Errors
/// [`Error::Argument`] for `bfloat16`, which NumPy does not have; [`Error::Io`]; [`Error::Tensor`] if a tensor on a
/// device cannot be read. After an error, an existing file is unchanged.
///
/// # Examples
/// ```
/// use pagelock_data::{StoredRows, save_npy};
/// use pagelock_tensor::Tensor;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("points.npy");
/// save_npy(&Tensor::new([[1.0, 2.0], [3.0, 4.0]])?, &path)?; // numpy.load("points.npy")
/// assert_eq!(StoredRows::npy(&path)?.read()?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_npy(tensor: impl Into<AnyTensor>, path: impl AsRef<Path>) -> Result<()> {
    save_one(&tensor.into(), path.as_ref())
}

/// Writes named tensors as `numpy.savez` does, uncompressed. An existing file is replaced. `numpy.savez` calls arrays
/// without a name `arr_0`, `arr_1` and so on.
///
/// # Errors
/// As [`save_npy`]; [`Error::Argument`] for an empty or repeated name.
///
/// # Examples
/// ```
/// use pagelock_data::{StoredRows, save_npz};
/// use pagelock_tensor::{AnyTensor, Int, Tensor};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("train.npz");
/// let (images, labels) = (AnyTensor::from(Tensor::zeros([3, 28, 28])?), AnyTensor::from(Tensor::new([7, 2, 1])?));
/// save_npz([("images", &images), ("labels", &labels)], &path)?; // numpy.load("train.npz")["labels"]
/// assert_eq!(StoredRows::<Int>::npz(&path, "labels")?.read()?.to_vec::<i64>()?, [7, 2, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_npz<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a AnyTensor)>, path: impl AsRef<Path>) -> Result<()> {
    save_all(&tensors.into_iter().collect::<Vec<_>>(), path.as_ref())
}

fn save_one(tensor: &AnyTensor, path: &Path) -> Result<()> {
    let failed = |source| Error::io("write", path, source);
    let header = header(path, "the tensor", tensor)?;
    let mut file = BufWriter::new(NewFile::create(path).map_err(failed)?);
    file.write_all(&header).map_err(failed)?;
    tensor.write_elements(&mut file)?.map_err(failed)?;
    file.into_inner().map_err(|error| failed(error.into_error()))?.commit().map_err(failed)
}

fn save_all(tensors: &[(&str, &AnyTensor)], path: &Path) -> Result<()> {
    let mut names = HashSet::new();
    let mut headers = Vec::new();
    for &(name, tensor) in tensors {
        if name.is_empty() || !names.insert(name) {
            let (path, fix) = (path.display(), "give each array a name of its own");
            let problem = format!("the name `{name}` is empty or used twice; {fix}");
            return Err(Error::Argument(format!("cannot write `{path}`: {problem}")));
        }
        headers.push(header(path, &format!("`{name}`"), tensor)?);
    }
    let failed = |source| Error::io("write", path, source);
    let not_zipped = |error| match error {
        ZipError::Io(source) => failed(source),
        error => failed(io::Error::other(error.to_string())),
    };
    let mut archive = ZipWriter::new(BufWriter::new(NewFile::create(path).map_err(failed)?));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for ((name, tensor), header) in tensors.iter().zip(&headers) {
        let len_bytes = (header.len() + tensor.len_bytes()) as u64;
        let options = options.large_file(len_bytes >= u64::from(u32::MAX));
        archive.start_file(format!("{name}.npy"), options).map_err(not_zipped)?;
        archive.write_all(header).map_err(failed)?;
        tensor.write_elements(&mut archive)?.map_err(failed)?;
    }
    let file = archive.finish().map_err(not_zipped)?;
    file.into_inner().map_err(|error| failed(error.into_error()))?.commit().map_err(failed)
}

/// The bytes before the elements, padded so that the elements begin at a multiple of 64 bytes.
fn header(path: &Path, what: &str, tensor: &AnyTensor) -> Result<Vec<u8>> {
    const BEFORE: usize = 10; // magic number, version, length
    let dtype = tensor.dtype();
    let Some((descr, _)) = DESCR.iter().find(|(_, known)| *known == dtype) else {
        let (path, fix) = (path.display(), format!("convert it with `to_dtype(DType::{:?})`", DType::F32));
        let problem = format!("{what} is {dtype}, which NumPy does not have; {fix}");
        return Err(Error::Argument(format!("cannot write `{path}`: {problem}")));
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {}, }}", tuple(tensor.shape()));
    let padding = (BEFORE + text.len() + 1).next_multiple_of(64) - (BEFORE + text.len() + 1);
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    let len = u16::try_from(text.len()).unwrap_or_else(|_| unreachable!("a shape has few dimensions"));
    Ok([&MAGIC[..], &[1, 0], &len.to_le_bytes(), text.as_bytes()].concat())
}

/// A shape as Python prints it: `()`, `(3,)`, `(2, 3)`.
fn tuple(shape: &Shape) -> String {
    let mut text = String::from("(");
    for (i, size) in shape.iter().enumerate() {
        let _ = write!(text, "{}{size}", if i > 0 { ", " } else { "" });
    }
    text.push_str(if shape.rank() == 1 { ",)" } else { ")" });
    text
}
