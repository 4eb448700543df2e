//! Weights in safetensors files, which PyTorch reads and writes (`safetensors.torch.save_file`, `load_file`).
//!
//! A file is replaced as a whole (`pagelock-files`): a crash leaves the old one or the new one, never half of one. Reading
//! checks everything the header claims before anything is allocated for it.

use crate::error::shortened;
use crate::state_dict::Value;
use crate::{Error, Result, StateDict};
use half::{bf16, f16};
use pagelock_tensor::{DType, Float, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use std::any::Any;
use std::path::Path;
use std::{fs, io};

/// Writes the tensors and counts of a state dict to `path`, in place of what was there.
///
/// # Errors
/// [`Error::Unwritable`] if a name is `__metadata__`, which the format keeps for itself, or the names are longer than it
/// allows; [`Error::NameTwice`] if two tensors of the model have one name; [`Error::File`] if the file cannot be written. What
/// was there before is still there then.
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
    check_names(dict, path)?;
    let entries: Vec<_> = dict.values().map(|(name, value)| Ok((name, Encoded::new(value)?))).collect::<Result<_>>()?;
    let bytes = serialize(&entries).map_err(|error| unwritable(path, &entries, error))?;
    pagelock_files::replace(path, bytes).map_err(|source| file_error("write", path, source))
}

/// Reads a file that [`save_safetensors`] or PyTorch wrote. The tensors come sorted by name.
///
/// # Errors
/// [`Error::File`] if the file cannot be read, [`Error::Format`] if it is not a whole safetensors file, [`Error::DType`]
/// if a tensor in it does not have the element type `T`, but for counts of batches, which are integers.
pub fn load_safetensors<T: Float>(path: impl AsRef<Path>) -> Result<StateDict<T>> {
    let path = path.as_ref();
    let bytes = read(path).map_err(|source| file_error("read", path, source))?;
    let parsed = SafeTensors::deserialize(&bytes).map_err(|reason| Error::Format {
        path: path.to_owned(),
        len_bytes: bytes.len(),
        reason: shortened(&reason.to_string()),
    })?;
    let mut views = parsed.tensors();
    views.sort_by(|(left, _), (right, _)| left.cmp(right));
    let mut dict = StateDict::new();
    for (name, view) in views {
        if view.dtype() == Dtype::I64 && name.rsplit('.').next() == Some(COUNT) {
            let counts = chunks(view.data()).map(i64::from_le_bytes).collect();
            dict.insert_count(name, Tensor::from_vec(counts, view.shape())?);
        } else {
            let tensor = tensor(path, &name, &view)?;
            dict.insert(name, tensor);
        }
    }
    Ok(dict)
}

/// What PyTorch's batch normalization calls the number of batches that it has seen.
const COUNT: &str = "num_batches_tracked";

/// A name that no tensor in a file can have.
const KEPT: &str = "__metadata__";

fn file_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::File { action, path: path.to_owned(), source }
}

/// The bytes of a file; a pipe or a device is refused, since it may have no end.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a folder, a pipe or a device; name a file"));
    }
    fs::read(path)
}

/// That the file could be read again.
fn check_names<T: Float>(dict: &StateDict<T>, path: &Path) -> Result<()> {
    dict.check_names()?;
    match dict.names().find(|name| *name == KEPT) {
        None => Ok(()),
        Some(name) => {
            let problem = format!("safetensors files keep the name `{name}` for notes; give that tensor another one");
            Err(Error::Unwritable { path: path.to_owned(), problem })
        }
    }
}

/// A tensor as it is in a file.
struct Encoded<'a> {
    dtype: Dtype,
    dims: &'a [usize],
    bytes: Vec<u8>,
}

impl<'a> Encoded<'a> {
    fn new<T: Float>(value: &'a Value<T>) -> Result<Self> {
        let (dtype, bytes) = match value {
            Value::Tensor(tensor) => (dtype::<T>(), encode(tensor.to_vec()?)),
            Value::Count(count) => (Dtype::I64, count.to_vec()?.into_iter().flat_map(i64::to_le_bytes).collect()),
        };
        Ok(Self { dtype, dims: value.shape(), bytes })
    }
}

/// Names, shapes and bytes as one file.
fn serialize(entries: &[(&str, Encoded<'_>)]) -> Result<Vec<u8>, SafeTensorError> {
    let mut views = Vec::with_capacity(entries.len());
    for (name, Encoded { dtype, dims, bytes }) in entries {
        views.push((*name, TensorView::new(*dtype, dims.to_vec(), bytes)?));
    }
    safetensors::serialize(views, None)
}

fn unwritable(path: &Path, entries: &[(&str, Encoded<'_>)], error: SafeTensorError) -> Error {
    let problem = match error {
        SafeTensorError::HeaderTooLarge => {
            let len_bytes: usize = entries.iter().map(|(name, _)| name.len()).sum();
            format!(
                "the {} names in it are {len_bytes} bytes long, and a safetensors file has room for 100000000, with shapes; \
                 shorten them, or save several files",
                entries.len()
            )
        }
        error => shortened(&error.to_string()),
    };
    Error::Unwritable { path: path.to_owned(), problem }
}

fn tensor<T: Float>(path: &Path, name: &str, view: &TensorView<'_>) -> Result<Tensor<T>> {
    if view.dtype() != dtype::<T>() {
        let found = format!("{:?}", view.dtype());
        return Err(Error::DType { path: path.to_owned(), name: shortened(name), found, expected: T::DTYPE });
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
