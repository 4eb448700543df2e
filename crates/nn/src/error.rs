//! The crate's errors: what is wrong, with which numbers, and what to do.

use pagelock_tensor::text::{number, whole_text};
use pagelock_tensor::{DType, Shape};
use std::error::Error as StdError;
use std::fmt;

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

    /// Two tensors of a model, or of a state dict, have one name.
    #[error(
        "two tensors have the name `{name}`, of which a state dict has one; give each field and child its own name"
    )]
    NameTwice {
        /// The name, or its beginning.
        name: String,
    },

    /// An optimizer's setting is outside its range.
    #[error("{optimizer}: {setting} is {}; it must be {allowed}", number(*value))]
    Setting {
        /// The optimizer.
        optimizer: &'static str,
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: f64,
        /// The range.
        allowed: &'static str,
    },

    /// Gradients were divided by their scale a second time.
    #[error(
        "GradScaler: the gradients were unscaled since the last update; call `unscale` once, then `step` and `update`"
    )]
    UnscaledTwice,

    /// An optimizer got nothing to train.
    #[error("{optimizer}: there are no parameters to train; pass `model.parameters()` of a model that has some")]
    NoParameters {
        /// The optimizer.
        optimizer: &'static str,
    },

    /// The batches ended before the first one.
    #[error("the {which} batches are empty; check the dataset's length, and `drop_last` against the batch size")]
    NoBatches {
        /// "training" or "validation".
        which: &'static str,
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

/// The beginning of a text that comes from a file or a caller and may be of any length.
pub(crate) fn shortened(text: &str) -> String {
    const MOST_CHARS: usize = 200;
    match text.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
