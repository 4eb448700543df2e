//! Weights in safetensors files, which PyTorch reads and writes (`safetensors.torch.save_file`, `load_file`).
//!
//! A file is replaced as a whole (`pagelock-files`): a crash leaves the old one or the new one, never half of one. Reading
//! checks everything the header claims before anything is allocated for it.

use crate::error::shortened;
use crate::{Error, Result, StateDict};
use half::{bf16, f16};
use pagelock_tensor::{self as tensor, AnyTensor, DType, Element, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use std::path::Path;
use std::{fs, io};

/// Writes the tensors of a state dict to `path`, each in its own precision, in place of what was there.
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
/// assert_eq!(fresh.weight.to_vec::<f32>()?, trained.weight.to_vec::<f32>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_safetensors(dict: &StateDict, path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    check_names(dict, path)?;
    let entries: Vec<_> = dict.iter().map(|(name, tensor)| Ok((name, Encoded::new(tensor)?))).collect::<Result<_>>()?;
    let bytes = serialize(&entries).map_err(|error| unwritable(path, &entries, error))?;
    pagelock_files::replace(path, bytes).map_err(|source| file_error("write", path, source))
}

/// Reads a file that [`save_safetensors`] or PyTorch wrote: each tensor in the precision that the file has it in, sorted by
/// name. [`Module::load_state_dict`](crate::Module::load_state_dict) converts them to the model's.
///
/// # Errors
/// [`Error::File`] if the file cannot be read, [`Error::Format`] if it is not a whole safetensors file, [`Error::DType`]
/// if the elements of a tensor in it are of a type that tensors do not have.
pub fn load_safetensors(path: impl AsRef<Path>) -> Result<StateDict> {
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
        let other_type = || {
            let found = format!("{:?}", view.dtype());
            Error::DType { path: path.to_owned(), name: shortened(&name), found }
        };
        let tensor = decode(&view)?.ok_or_else(other_type)?;
        dict.insert(name, tensor);
    }
    Ok(dict)
}

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
fn check_names(dict: &StateDict, path: &Path) -> Result<()> {
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
    fn new(tensor: &'a AnyTensor) -> tensor::Result<Self> {
        let (dtype, bytes) = match tensor.dtype() {
            DType::F64 => (Dtype::F64, encode(tensor, f64::to_le_bytes)?),
            DType::F32 => (Dtype::F32, encode(tensor, f32::to_le_bytes)?),
            DType::F16 => (Dtype::F16, encode(tensor, f16::to_le_bytes)?),
            DType::BF16 => (Dtype::BF16, encode(tensor, bf16::to_le_bytes)?),
            DType::I64 => (Dtype::I64, encode(tensor, i64::to_le_bytes)?),
            DType::I32 => (Dtype::I32, encode(tensor, i32::to_le_bytes)?),
            DType::U8 => (Dtype::U8, encode(tensor, u8::to_le_bytes)?),
            DType::Bool => (Dtype::BOOL, encode(tensor, |value: bool| [value.into()])?),
            other => unreachable!("no tensor holds {other}"),
        };
        Ok(Self { dtype, dims: tensor.dims(), bytes })
    }
}

/// The bytes of a tensor of `E`.
fn encode<E: Element, const N: usize>(tensor: &AnyTensor, bytes: impl Fn(E) -> [u8; N]) -> tensor::Result<Vec<u8>> {
    Ok(tensor.kind::<E::Kind>()?.to_vec::<E>()?.into_iter().flat_map(bytes).collect())
}

/// The tensor that a file has; none if its elements are of a type that tensors do not have.
fn decode(view: &TensorView<'_>) -> tensor::Result<Option<AnyTensor>> {
    fn made<E: Element, const N: usize>(
        view: &TensorView<'_>,
        number: impl Fn([u8; N]) -> E,
    ) -> tensor::Result<AnyTensor> {
        let numbers: Vec<E> = view.data().as_chunks().0.iter().copied().map(number).collect();
        Ok(Tensor::from_vec(numbers, view.shape())?.into())
    }
    match view.dtype() {
        Dtype::F64 => made(view, f64::from_le_bytes),
        Dtype::F32 => made(view, f32::from_le_bytes),
        Dtype::F16 => made(view, f16::from_le_bytes),
        Dtype::BF16 => made(view, bf16::from_le_bytes),
        Dtype::I64 => made(view, i64::from_le_bytes),
        Dtype::I32 => made(view, i32::from_le_bytes),
        Dtype::U8 => made(view, u8::from_le_bytes),
        Dtype::BOOL => made(view, |[byte]| byte != 0),
        _ => return Ok(None),
    }
    .map(Some)
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
