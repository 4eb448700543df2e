//! Weights in safetensors files, which PyTorch reads and writes (`safetensors.torch.save_file`, `load_file`).
//!
//! [`TensorFile`] reads and writes them: it replaces a file as a whole, checks the claims of a header before it
//! allocates anything, and charges everything that it reads to the budget.

use std::path::Path;

use pagelock_tensor::{self as tensor, Device, TensorFile};

use crate::{Result, StateDict};

/// Writes the tensors of a state dict to `path`, each in its own precision, and replaces an existing file.
///
/// # Errors
/// As [`TensorFile::save`]; [`Error::Argument`](crate::Error::Argument) if two tensors of the model have the same
/// name. An existing file is kept then.
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
    save(dict, path.as_ref())
}

fn save(dict: &StateDict, path: &Path) -> Result<()> {
    dict.check_names()?;
    Ok(TensorFile::save(path, dict.iter())?)
}

/// Reads a file that [`save_safetensors`] or PyTorch wrote: each tensor in the precision that it has in the file,
/// sorted by name. [`Module::load_state_dict`](crate::Module::load_state_dict) converts them to the model's
/// precisions.
///
/// # Errors
/// As [`TensorFile::open`] and [`TensorFile::get_any`].
pub fn load_safetensors(path: impl AsRef<Path>) -> Result<StateDict> {
    load(path.as_ref())
}

fn load(path: &Path) -> Result<StateDict> {
    let file = TensorFile::open(path)?;
    let tensors = file.names().map(|name| Ok((name.to_owned(), file.get_any(name, &Device::Cpu)?)));
    Ok(tensors.collect::<tensor::Result<StateDict>>()?)
}
