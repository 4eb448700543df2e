//! The crate's errors: what is wrong, with which numbers, and what to do.

use pagelock_tensor::text::{shortened, whole_text};
use pagelock_tensor::{DType, Shape};
use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;

/// What everything fallible here returns, except layers, which return the tensor crate's.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something in this crate did not work.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor operation refused.
    #[error(transparent)]
    Tensor(#[from] pagelock_tensor::Error),

    /// A state dict is not that of the model.
    #[error("the state dict does not fit the model, and nothing was loaded: {0}")]
    StateDict(Box<Misfit>),

    /// Something that was asked for cannot be: a setting outside its range, nothing to train or to train on, or two tensors with
    /// one name. The text says which.
    #[error("{0}")]
    Argument(String),

    /// A checkpoint is damaged.
    #[error("{problem}; {}", instead(path, *previous))]
    DamagedCheckpoint {
        /// Its file.
        path: PathBuf,
        /// What is wrong, and where in the file.
        problem: String,
        /// The step of the newest one before it that is whole.
        previous: Option<u64>,
    },

    /// A folder of checkpoints could not be made, read or changed.
    #[error("cannot {action} {}: {source}", path.display())]
    Checkpoints {
        /// What was tried.
        action: &'static str,
        /// The folder, or the file in it.
        path: PathBuf,
        /// What the system said.
        r#source: std::io::Error,
    },

    /// A loader could not deliver a batch.
    #[error("{which} batch {index} of epoch {epoch}: {}", whole_text(&**source))]
    Batch {
        /// "training" or "validation".
        which: &'static str,
        /// The batch, counted from 0.
        index: usize,
        /// The epoch, counted from 0.
        epoch: usize,
        /// What the loader said.
        r#source: Box<dyn StdError + Send + Sync>,
    },
}

pagelock_tensor::debug_is_the_message!(Error);

/// What to do without a damaged checkpoint.
fn instead(path: &std::path::Path, previous: Option<u64>) -> String {
    let path = path.display();
    match previous {
        Some(step) => format!("the checkpoint of step {step} is whole: delete {path} to go on from there"),
        None => format!("there is no earlier one that is whole: delete {path} to begin anew"),
    }
}

/// How a state dict differs from a model's.
#[derive(Debug, Default, PartialEq)]
pub struct Misfit {
    /// Names that the model has and the state dict has not.
    pub missing: Vec<String>,
    /// Names that the state dict has and the model has not.
    pub unexpected: Vec<String>,
    /// Names whose shapes differ: name, shape in the state dict, shape in the model.
    pub misshapen: Vec<(String, Shape, Shape)>,
    /// Names whose kinds differ: name, element type in the state dict, element type in the model.
    pub mistyped: Vec<(String, DType, DType)>,
}

impl Misfit {
    /// Whether there is no difference.
    pub fn is_empty(&self) -> bool {
        let Misfit { missing, unexpected, misshapen, mistyped } = self;
        missing.is_empty() && unexpected.is_empty() && misshapen.is_empty() && mistyped.is_empty()
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |names: &[String]| first_of(names, ", ", |name| format!("`{}`", shortened(name)));
        let mut parts = Vec::new();
        if !self.missing.is_empty() {
            parts.push(format!("it lacks {}", quoted(&self.missing)));
        }
        if !self.unexpected.is_empty() {
            parts.push(format!("the model has no {}", quoted(&self.unexpected)));
        }
        if !self.misshapen.is_empty() {
            parts.push(first_of(&self.misshapen, "; ", |(name, given, wanted)| {
                format!("`{}` is {given}, and {wanted} in the model", shortened(name))
            }));
        }
        if !self.mistyped.is_empty() {
            parts.push(first_of(&self.mistyped, "; ", |(name, given, wanted)| {
                format!("`{}` is {given}, and {wanted} in the model", shortened(name))
            }));
        }
        f.write_str(&parts.join("; "))
    }
}

/// The first ten in words, and how many more there are.
fn first_of<E>(all: &[E], between: &str, words: impl Fn(&E) -> String) -> String {
    const SHOWN: usize = 10;
    let mut parts: Vec<String> = all.iter().take(SHOWN).map(words).collect();
    if all.len() > SHOWN {
        parts.push(format!("and {} more", all.len() - SHOWN));
    }
    parts.join(between)
}
