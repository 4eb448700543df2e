//! The crate's errors: what is wrong, with which numbers, and what to do.

use pagelock_tensor::text::{shortened, whole_text};
use pagelock_tensor::{DType, Shape};
use std::collections::HashSet;
use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;

/// The result of fallible functions of this crate, except those of layers, which return the tensor crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] pagelock_tensor::Error),

    /// A state dict does not fit the model.
    #[error("the state dict does not fit the model, and nothing was loaded: {0}")]
    StateDict(Box<Misfit>),

    /// An argument is invalid: a setting outside its range, no parameters to train, no data to train on, or two
    /// tensors with the same name. The text says which.
    #[error("{0}")]
    Argument(String),

    /// A checkpoint is damaged.
    #[error("{problem}; {}", instead(path, *previous))]
    DamagedCheckpoint {
        /// Its file.
        path: PathBuf,
        /// What is wrong, and where in the file.
        problem: String,
        /// The step of the newest earlier checkpoint that is whole, if there is one.
        previous: Option<u64>,
    },

    /// A folder of checkpoints could not be created, read or changed.
    #[error("cannot {action} {}: {source}", path.display())]
    Checkpoints {
        /// The action that failed.
        action: &'static str,
        /// The folder, or the file in it.
        path: PathBuf,
        /// The error of the operating system.
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
        /// The error of the loader.
        r#source: Box<dyn StdError + Send + Sync>,
    },
}

pagelock_tensor::debug_is_the_message!(Error);

/// What to do about a damaged checkpoint.
fn instead(path: &std::path::Path, previous: Option<u64>) -> String {
    let path = path.display();
    match previous {
        Some(step) => format!("the checkpoint of step {step} is intact: delete {path} to resume from it"),
        None => format!("no earlier checkpoint is intact: delete {path} to start again"),
    }
}

/// How a state dict differs from a model's.
#[derive(Debug, Default, PartialEq)]
pub struct Misfit {
    /// Names of the model that the state dict lacks.
    pub missing: Vec<String>,
    /// Names of the state dict that the model lacks.
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
        let (missing, unexpected) = (&self.missing, &self.unexpected);
        if let Some(prefix) = prefix_of(unexpected, missing) {
            let fix = format!("dict.renamed(|name| name.strip_prefix(\"{prefix}\").map(str::to_owned))");
            parts.push(format!("to load what begins with `{prefix}`, use `{fix}`"));
        } else if let Some(prefix) = prefix_of(missing, unexpected) {
            let fix = format!("dict.renamed(|name| Some(format!(\"{prefix}{{name}}\")))");
            parts.push(format!("to load it into `{prefix}`, use `{fix}`"));
        }
        f.write_str(&parts.join("; "))
    }
}

/// The prefix with which all `names` are in `longer`, such as `module.`.
fn prefix_of(longer: &[String], names: &[String]) -> Option<String> {
    const MOST: usize = 16; // prefixes that are tried
    let known: HashSet<&str> = longer.iter().map(String::as_str).collect();
    let prefixes = longer.iter().filter_map(|name| name.strip_suffix(names.first()?)).filter(|p| p.ends_with('.'));
    let is_before = |prefix: &str, name: &String| known.contains(format!("{prefix}{name}").as_str());
    prefixes.take(MOST).find(|prefix| names.iter().all(|name| is_before(prefix, name))).map(shortened)
}

/// The first ten items as text, and the number of the others.
fn first_of<E>(all: &[E], between: &str, words: impl Fn(&E) -> String) -> String {
    const SHOWN: usize = 10;
    let mut parts: Vec<String> = all.iter().take(SHOWN).map(words).collect();
    if all.len() > SHOWN {
        parts.push(format!("and {} more", all.len() - SHOWN));
    }
    parts.join(between)
}
