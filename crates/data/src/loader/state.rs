//! [`LoaderState`]: where a loader is, small enough to go into every checkpoint.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// Where a [`DataLoader`](crate::DataLoader) is: how many batches of which epoch it has given. Batches are a function of
/// (epoch, number), so this is all there is to remember, and going on from here takes no time.
///
/// It prints as one line that parses again.
///
/// # Examples
/// Training that stops in the middle of an epoch and goes on in another process:
/// ```
/// use pagelock_data::{DataLoader, LoaderState, TensorDataset};
/// use pagelock_tensor::Tensor;
///
/// let dataset = TensorDataset::new(Tensor::arange(0.0, 10.0, 1.0)?)?;
/// let loader = DataLoader::new(dataset.clone()).batch_size(2).shuffle(7);
/// let all: Vec<_> = loader.iter().map(|batch| Ok(batch?.to_vec()?)).collect::<pagelock_data::Result<_>>()?;
///
/// loader.set_epoch(0);
/// loader.iter().take(3).for_each(drop);
/// let saved = loader.state().to_string();
/// assert_eq!(saved, "epoch 0, batch 3, 10 samples in batches of 2");
///
/// let resumed = DataLoader::new(dataset).batch_size(2).shuffle(7);
/// resumed.resume(saved.parse()?)?;
/// let rest: Vec<_> = resumed.iter().map(|batch| Ok(batch?.to_vec()?)).collect::<pagelock_data::Result<_>>()?;
/// assert_eq!(rest, all[3..]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderState {
    /// Which epoch, counted from 0.
    pub epoch: u64,
    /// How many of its batches were given: the number of the next.
    pub batch: usize,
    /// How many samples the dataset has: another dataset is refused.
    pub n_samples: usize,
    /// How many samples make a batch, likewise.
    pub batch_size: usize,
}

impl fmt::Display for LoaderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, batch, n_samples, batch_size } = self;
        write!(f, "epoch {epoch}, batch {batch}, {n_samples} samples in batches of {batch_size}")
    }
}

impl FromStr for LoaderState {
    type Err = Error;

    /// # Errors
    /// [`Error::NoState`] for anything that [`LoaderState`] does not print.
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (epoch, rest) = text.trim().strip_prefix("epoch ")?.split_once(", batch ")?;
            let (batch, rest) = rest.split_once(", ")?;
            let (n_samples, batch_size) = rest.split_once(" samples in batches of ")?;
            Some(Self {
                epoch: epoch.parse().ok()?,
                batch: batch.parse().ok()?,
                n_samples: n_samples.parse().ok()?,
                batch_size: batch_size.parse().ok()?,
            })
        };
        parse().ok_or_else(|| Error::NoState { text: text.chars().take(80).collect() })
    }
}
