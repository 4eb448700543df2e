//! Weights in safetensors files, which PyTorch reads and writes (`safetensors.torch.save_file`, `load_file`).
//!
//! Writing goes to a temporary file beside the target, which then takes the target's name: a crash leaves the old file
//! or the new one, never half of one. Reading checks everything the header claims before anything is allocated for it.

use crate::{Error, Result, StateDict};
use half::{bf16, f16};
use pagelock_tensor::{DType, Element, Float, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use std::any::Any;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes the tensors of a state dict to `path`, in place of what was there.
///
/// # Errors
/// [`Error::File`] if the file cannot be written; what was there before is still there then.
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, Module, load_safetensors, save_safetensors};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("linear.safetensors");
/// let (trained, fresh) = (Linear::new(3, 2)?, Linear::new(3, 2)?);
/// save_safetensors(&trained.state_dict(), &path)?;
/// fresh.load_state_dict(&load_safetensors(&path)?)?;
/// assert_eq!(fresh.weight.to_vec()?, trained.weight.to_vec()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_safetensors<T: Float>(dict: &StateDict<T>, path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let encoded: Vec<_> =
        dict.iter().map(|(name, tensor)| Ok((name, tensor.dims(), encode(tensor.to_vec()?)))).collect::<Result<_>>()?;
    let bytes = serialize::<T>(&encoded).map_err(|source| file_error("write", path, io::Error::other(source)))?;
    replace(path, &bytes).map_err(|source| file_error("write", path, source))
}

/// Reads a file that [`save_safetensors`] or PyTorch wrote. The tensors come sorted by name.
///
/// # Errors
/// [`Error::File`] if the file cannot be read, [`Error::Format`] if it is not a whole safetensors file, [`Error::DType`]
/// if a tensor in it does not have the element type `T`, but for counts of batches, which PyTorch writes as integers.
pub fn load_safetensors<T: Float>(path: impl AsRef<Path>) -> Result<StateDict<T>> {
    let path = path.as_ref();
    let bytes = fs::read(path).map_err(|source| file_error("read", path, source))?;
    let parsed = SafeTensors::deserialize(&bytes).map_err(|reason| Error::Format {
        path: path.to_owned(),
        len_bytes: bytes.len(),
        reason: reason.to_string(),
    })?;
    let mut views = parsed.tensors();
    views.sort_by(|(left, _), (right, _)| left.cmp(right));
    views.into_iter().map(|(name, view)| Ok((name.clone(), tensor(path, &name, &view)?))).collect()
}

/// What PyTorch's batch normalization calls the number of batches that it has seen.
const COUNT: &str = "num_batches_tracked";

fn file_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::File { action, path: path.to_owned(), source }
}

/// Names, shapes and bytes as one file.
fn serialize<T: Float>(entries: &[(&str, &[usize], Vec<u8>)]) -> Result<Vec<u8>, SafeTensorError> {
    let mut views = Vec::with_capacity(entries.len());
    for (name, dims, bytes) in entries {
        views.push((*name, TensorView::new(dtype::<T>(), dims.to_vec(), bytes)?));
    }
    safetensors::serialize(views, None)
}

fn tensor<T: Float>(path: &Path, name: &str, view: &TensorView<'_>) -> Result<Tensor<T>> {
    if view.dtype() == Dtype::I64 && name.rsplit('.').next() == Some(COUNT) {
        let counts = chunks(view.data()).map(|count| i64::from_le_bytes(count).cast()).collect();
        return Ok(Tensor::from_vec(counts, view.shape())?);
    }
    if view.dtype() != dtype::<T>() {
        let found = format!("{:?}", view.dtype());
        return Err(Error::DType { path: path.to_owned(), name: name.to_owned(), found, expected: T::DTYPE });
    }
    Ok(Tensor::from_vec(decode(view.data()), view.shape())?)
}

/// Safetensors' name for an element type.
fn dtype<T: Float>() -> Dtype {
    match T::DTYPE {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        other => unreachable!("{other} is not one of the four floating-point types"),
    }
}

/// The little-endian bytes of the numbers.
fn encode<T: Float>(values: Vec<T>) -> Vec<u8> {
    let any: &dyn Any = &values;
    if let Some(values) = any.downcast_ref::<Vec<f32>>() {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    } else if let Some(values) = any.downcast_ref::<Vec<f64>>() {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    } else if let Some(values) = any.downcast_ref::<Vec<f16>>() {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    } else if let Some(values) = any.downcast_ref::<Vec<bf16>>() {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    } else {
        unreachable!("{} is not one of the four floating-point types", T::DTYPE)
    }
}

/// The numbers of little-endian bytes.
fn decode<T: Float>(bytes: &[u8]) -> Vec<T> {
    let values: Box<dyn Any> = match T::DTYPE {
        DType::F64 => Box::new(chunks(bytes).map(f64::from_le_bytes).collect::<Vec<_>>()),
        DType::F32 => Box::new(chunks(bytes).map(f32::from_le_bytes).collect::<Vec<_>>()),
        DType::F16 => Box::new(chunks(bytes).map(f16::from_le_bytes).collect::<Vec<_>>()),
        _ => Box::new(chunks(bytes).map(bf16::from_le_bytes).collect::<Vec<_>>()),
    };
    match values.downcast() {
        Ok(values) => *values,
        Err(_) => unreachable!("{} is not one of the four floating-point types", T::DTYPE),
    }
}

fn chunks<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks().0.iter().copied()
}

/// Writes a temporary file beside `path` and gives it that name.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = Temporary::beside(path)?;
    let mut file = File::create_new(&temporary.path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary.path, path)
}

/// The name of a file that is gone when this is dropped.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn beside(path: &Path) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0); // Relaxed: only its own uniqueness matters
        let name =
            path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.{}.tmp", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        Ok(Self { path: path.with_file_name(hidden) })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // already renamed, unless something failed
    }
}
