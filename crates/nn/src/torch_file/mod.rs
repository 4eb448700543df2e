//! Files of PyTorch: read as `torch.load(weights_only=True)` reads them, written as `torch.save` writes them.
//!
//! ```text
//! container.rs   which format it is, the offsets of storages           a file     → pickles, offsets
//! pickle.rs      the instructions of opcode.rs, names of globals.rs   pickles    → a graph (graph.rs)
//! read.rs        each storage once, views of it                       the graph  → TorchValue
//! value.rs       state dicts and optimizers                           TorchValue ⇄ StateDict, OptimizerState
//! write.rs                                                            TorchValue → a file
//! ```
//!
//! Promises: nothing in a file is executed. Its claims are checked against its length before memory is allocated.
//! Elements take at most the length of the file, everything else a multiple of it, and both are charged to the
//! budget.

mod container;
mod fault;
mod globals;
mod graph;
mod opcode;
mod pickle;
mod read;
mod value;
mod write;

use std::path::Path;

pub use self::value::TorchValue;
use crate::{Error, Result, StateDict};

/// The deepest nesting of values, in reading and in writing.
const MAX_DEPTH: usize = 100;
/// The names under which programs store a model's state dict in a checkpoint.
const USUAL_NAMES: [&str; 4] = ["state_dict", "model_state_dict", "model", "module"];

/// Reads a state dict from a file that `torch.save` wrote, by the rules of [`TorchValue::load`]. If the file is a
/// checkpoint, it takes the first state dict among the entries `state_dict`, `model_state_dict`, `model` and
/// `module`.
///
/// # Errors
/// As [`TorchValue::load`]; [`Error::Argument`] names the contents of the file if there is no state dict.
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, Module, load_torch, save_torch};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("linear.pt");
/// let (trained, fresh) = (Linear::new(3, 2)?, Linear::new(3, 2)?);
/// save_torch(&trained.state_dict(), &path)?; // which torch.load(path) reads
/// fresh.load_state_dict(&load_torch(&path)?)?;
/// assert_eq!(fresh.weight.to_vec::<f32>()?, trained.weight.to_vec::<f32>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load_torch(path: impl AsRef<Path>) -> Result<StateDict> {
    load(path.as_ref())
}

fn load(path: &Path) -> Result<StateDict> {
    let value = TorchValue::load(path)?;
    if value.is_state_dict() {
        return value.to_state_dict();
    }
    match USUAL_NAMES.iter().find_map(|name| value.get(name).filter(|found| found.is_state_dict())) {
        Some(found) => found.to_state_dict(),
        None => Err(Error::Argument(format!(
            "{} has no state dict under a usual name; it has {}: take it from `TorchValue::load`",
            path.display(),
            value.names()
        ))),
    }
}

/// Writes a state dict for `torch.load`, each tensor in its own precision, and replaces an existing file. Tied
/// tensors stay tied.
///
/// # Errors
/// As [`TorchValue::save`]; [`Error::Argument`] if two tensors of the model have the same name.
///
/// # Examples
/// See [`load_torch`].
pub fn save_torch(dict: &StateDict, path: impl AsRef<Path>) -> Result<()> {
    dict.to_torch()?.save(path.as_ref())
}
