//! [`Fault`]: why a file cannot be read, without the path of the file.

use std::io;
use std::path::Path;

use pagelock_memory::HeapReservation;
use pagelock_memory::text::shortened;
use pagelock_tensor::{self as tensor, CountedHeap};

use crate::Error;

pub(super) enum Fault {
    /// The file is not a complete PyTorch file; says what was found.
    Damaged(String),
    /// The file is complete, but contains something that cannot be read; says what it is and what to do.
    Unreadable(String),
    /// A pickle names something that is not on the list in `globals.rs`.
    Forbidden(String),
    Io(io::Error),
    Tensor(tensor::Error),
}

pub(super) fn damaged(problem: impl Into<String>) -> Fault {
    Fault::Damaged(problem.into())
}

impl From<io::Error> for Fault {
    fn from(source: io::Error) -> Self {
        Self::Io(source)
    }
}

impl From<tensor::Error> for Fault {
    fn from(source: tensor::Error) -> Self {
        Self::Tensor(source)
    }
}

impl Fault {
    /// The error for the file at `path`.
    pub(super) fn of(self, path: &Path) -> Error {
        let path = path.to_owned();
        let problem = match self {
            Self::Damaged(problem) => {
                format!("it is not a complete PyTorch file: {problem}; download or copy it again")
            }
            Self::Unreadable(problem) => problem,
            Self::Forbidden(name) => format!(
                "its pickle names `{}`, which is not among the functions that a file of weights needs, so nothing \
                 was called; save a state dict: torch.save(model.state_dict(), path)",
                shortened(&name)
            ),
            Self::Io(source) => return tensor::Error::Io { action: "read", path, source }.into(),
            Self::Tensor(source) => return source.into(),
        };
        tensor::Error::Content { path, problem }.into()
    }
}

pub(super) const PURPOSE: &str = "the contents of a PyTorch file other than tensors";

/// Reserves bytes of the heap that stay in use while the file is read.
pub(super) fn charge(len_bytes: usize) -> Result<CountedHeap, Fault> {
    Ok(CountedHeap::granted("load", PURPOSE, len_bytes)?)
}

/// Reserves bytes of the heap for a short time.
pub(super) fn reserve(len_bytes: usize) -> Result<HeapReservation, Fault> {
    HeapReservation::new(len_bytes as u64).map_err(refused)
}

/// The error for memory that the budget refused.
pub(super) fn refused(source: pagelock_memory::Error) -> Fault {
    tensor::Error::WorkingMemory { op: "load", purpose: PURPOSE, source }.into()
}
