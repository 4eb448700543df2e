//! The crate's errors: what is wrong, with which numbers, and what to do.

use std::io;
use std::path::{Path, PathBuf};

/// What everything fallible here returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something in this crate did not work.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something that was asked for cannot be: an empty tag or histogram, a shape that is no picture. The text says
    /// which. Nothing was written.
    #[error("{0}")]
    Argument(String),

    /// A file or folder of the log, or the worker thread, could not be made.
    #[error("cannot make `{}`: {error}", path.display())]
    Create {
        /// What could not be made.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },

    /// The worker thread could not write to an event file, during this call or before it. The file ends with a whole
    /// event. What earlier calls queued stays queued, and the next call tries again; this call has queued nothing.
    #[error("cannot write `{}`: {error}; what was queued stays queued, and the next call tries again", path.display())]
    Write {
        /// The event file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },

    /// A tensor could not be read.
    #[cfg(feature = "tensors")]
    #[error(transparent)]
    Tensor(#[from] pagelock_tensor::Error),
}

/// What `main` prints: the message.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// What could not be made at `path`.
pub(crate) fn create(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::Create { path: path.to_owned(), error }
}

/// `return Err(Error::Argument(format!(…)))`.
macro_rules! refuse {
    ($($text:tt)+) => {
        return Err($crate::Error::Argument(format!($($text)+)))
    };
}
pub(crate) use refuse;

/// [`refuse`], unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            $crate::error::refuse!($($text)+);
        }
    };
}
pub(crate) use ensure;
