//! The crate's errors. Each says what is wrong, with numbers, and what to do.

use std::io;
use std::path::{Path, PathBuf};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid, such as an empty tag or a shape that no picture has. The text names the argument.
    /// Nothing was written.
    #[error("{0}")]
    Argument(String),

    /// A file or folder of the log, or the worker thread, could not be created.
    #[error("cannot create `{}`: {error}", path.display())]
    Create {
        /// The file or folder, or `thread` and the thread's name.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },

    /// The worker thread could not write to an event file, during this call or earlier. The file is readable up to its
    /// last whole event. Events of earlier calls stay queued, and writing them is tried again; this call has queued nothing.
    #[error("cannot write `{}`: {error}; queued events stay queued, and the next call tries again", path.display())]
    Write {
        /// The event file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },

    /// There is no memory for a copy of the values, for a picture or for an event. Nothing was written.
    #[error("no memory for {what} of {len_bytes} bytes; write fewer values at a time")]
    Memory {
        /// What it is for.
        what: &'static str,
        /// The size.
        len_bytes: usize,
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

/// Makes room for `more` values.
pub(crate) fn reserve<T>(what: &'static str, list: &mut Vec<T>, more: usize) -> Result<()> {
    let refused = |_| Error::Memory { what, len_bytes: more.saturating_mul(size_of::<T>()) };
    list.try_reserve(more).map_err(refused)
}

/// Collects `len` values.
pub(crate) fn collect<T>(what: &'static str, len: usize, values: impl Iterator<Item = T>) -> Result<Vec<T>> {
    let mut list = Vec::new();
    reserve(what, &mut list, len)?;
    list.extend(values.take(len));
    Ok(list)
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
