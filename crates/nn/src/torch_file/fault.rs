//! [`Fault`]: why a file was refused, before it is known which.

use std::io;
use std::path::Path;

use pagelock_memory::HeapReservation;
use pagelock_memory::text::shortened;
use pagelock_tensor::{self as tensor, CountedHeap};

use crate::Error;

pub(super) enum Fault {
    /// It is no whole file of PyTorch's; what was found.
    Damaged(String),
    /// It is whole, and holds what cannot be read; what, and what to do.
    Unreadable(String),
    /// A pickle names something that is not on the list.
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
    /// The error of a file.
    pub(super) fn of(self, path: &Path) -> Error {
        let path = path.to_owned();
        let problem = match self {
            Self::Damaged(problem) => format!("it is no whole PyTorch file: {problem}; get it again"),
            Self::Unreadable(problem) => problem,
            Self::Forbidden(name) => format!(
                "its pickle names `{}`, which is none of the functions that a file of weights needs, and nothing was called; save \
                 a state dict: torch.save(model.state_dict(), path)",
                shortened(&name)
            ),
            Self::Io(source) => return tensor::Error::Io { action: "read", path, source }.into(),
            Self::Tensor(source) => return source.into(),
        };
        tensor::Error::Content { path, problem }.into()
    }
}

const PURPOSE: &str = "what a PyTorch file holds beside tensors";

/// Bytes of the heap that are kept while the file is read.
pub(super) fn granted(len_bytes: usize) -> Result<CountedHeap, Fault> {
    Ok(CountedHeap::granted("load", PURPOSE, len_bytes)?)
}

/// Bytes of the heap that are taken for a moment.
pub(super) fn reserve(len_bytes: usize) -> Result<HeapReservation, Fault> {
    HeapReservation::new(len_bytes as u64).map_err(refused)
}

/// The budget refused memory.
pub(super) fn refused(source: pagelock_memory::Error) -> Fault {
    tensor::Error::WorkingMemory { op: "load", purpose: PURPOSE, source }.into()
}
