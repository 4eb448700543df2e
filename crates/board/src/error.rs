//! The crate's errors. Each says what is wrong, with numbers, and what to do.

use std::io;
use std::path::{Path, PathBuf};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid, such as an empty tag or a shape that no picture has. The text says which. Nothing was
    /// written.
    #[error("{0}")]
    Argument(String),

    /// A file or folder of the log, or the worker thread, could not be made.
    #[error("cannot make `{}`: {error}", path.display())]
    Create {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },

    /// The worker thread could not write to an event file, during this call or earlier. The file is readable up to its
    /// last whole event. Events of earlier calls stay queued and are tried again; this call has queued nothing.
    #[error("cannot write `{}`: {error}; queued events stay queued, and the next call tries again", path.display())]
    Write {
        /// The event file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },

    /// A tensor could not be read.
    #[cfg(feature = "tensors")]
    #[error(transparent)]
    Tensor(#[from] pagelock_tensor::Error),
}

/// The message, since `main` prints errors with `Debug`.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// An [`Error::Create`] for `path`.
pub(crate) fn create_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
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
