//! [`LoaderState`] and [`StreamState`]: where a loader is, small enough to go into every checkpoint.

use std::fmt;

use crate::identity::Hash;

/// Where a [`DataLoader`](crate::DataLoader) is: how many batches of which epoch it has given. Batches are a function of
/// (epoch, number), so this is all there is to remember, and going on from here takes no time. The rest says which loader it
/// is of: one with another dataset, order or batch size refuses it.
///
/// It prints as one line that parses again, with a checksum: a line that was damaged does not parse.
///
/// # Examples
/// Training that stops in the middle of an epoch and goes on in another process:
/// ```
/// use pagelock_data::{DataLoader, LoaderState, TensorDataset};
/// use pagelock_tensor::Tensor;
///
/// let dataset = TensorDataset::new(Tensor::arange(0.0, 10.0, 1.0)?)?;
/// let loader = DataLoader::new(dataset.clone()).batch_size(2).shuffle(7);
/// let all: Vec<_> = loader.iter().map(|batch| Ok(batch?.to_vec::<f32>()?)).collect::<pagelock_data::Result<_>>()?;
///
/// loader.set_epoch(0);
/// loader.iter().take(3).for_each(drop);
/// let saved = loader.state().to_string();
/// assert!(saved.starts_with("epoch 0, batch 3, 10 samples in batches of 2; order: random, seed 7, "));
///
/// let resumed = DataLoader::new(dataset.clone()).batch_size(2).shuffle(7);
/// resumed.resume(saved.parse()?)?;
/// let rest: Vec<_> = resumed.iter().map(|batch| Ok(batch?.to_vec::<f32>()?)).collect::<pagelock_data::Result<_>>()?;
/// assert_eq!(rest, all[3..]);
///
/// let other = DataLoader::new(dataset).batch_size(2).shuffle(8);
/// assert!(other.resume(saved.parse()?).unwrap_err().to_string().contains("random, seed 8"));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderState {
    /// Which epoch, counted from 0.
    pub epoch: u64,
    /// How many of its batches were given: the number of the next.
    pub batch: usize,
    /// How many samples the dataset has.
    pub n_samples: usize,
    /// How many samples make a batch.
    pub batch_size: usize,
    /// Whether a smaller last batch is left out.
    pub drop_last: bool,
    /// What decides the order: [`Sampler::identity`](crate::Sampler::identity), and a hash of some of its places.
    pub order: String,
    /// What the dataset is: [`Dataset::identity`](crate::Dataset::identity).
    pub dataset: String,
}

impl LoaderState {
    /// What differs between this and the state of the loader at hand.
    pub(crate) fn differences(&self, here: &Self) -> String {
        let sizes =
            |state: &Self| format!("{} samples in {}", state.n_samples, batches(state.drop_last, state.batch_size));
        differences([
            ("it is of", sizes(self), sizes(here)),
            ("its order is", self.order.clone(), here.order.clone()),
            ("its dataset is", self.dataset.clone(), here.dataset.clone()),
        ])
    }
}

impl fmt::Display for LoaderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, batch, n_samples, batch_size, drop_last, order, dataset } = self;
        let sizes = format!("{n_samples} samples in {}", batches(*drop_last, *batch_size));
        write_checked(f, &format!("epoch {epoch}, batch {batch}, {sizes}; order: {order}; data: {dataset}"))
    }
}

/// Where a [`StreamLoader`](crate::StreamLoader) is: whose turn comes next. Each shard has given as many batches as there
/// were rounds, and one more, if its turn in this round is over, or all it had; that is enough to go on from. The rest says
/// which loader it is of: one with other shards, another dataset or batch size refuses it.
///
/// It prints as one line that parses again, with a checksum: a line that was damaged does not parse.
///
/// # Examples
/// See [`StreamLoader::resume`](crate::StreamLoader::resume).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamState {
    /// Which epoch, counted from 0.
    pub epoch: u64,
    /// How often every shard had its turn.
    pub round: u64,
    /// Which shard's turn is next, in the order of those that this loader reads.
    pub turn: usize,
    /// How many shards it reads.
    pub n_shards: usize,
    /// How many samples make a batch.
    pub batch_size: usize,
    /// Whether batches that are smaller, at the end of a shard, are left out.
    pub drop_last: bool,
    /// Which of the dataset's shards it reads: all, or those of a process.
    pub share: String,
    /// What the dataset is: [`IterableDataset::identity`](crate::IterableDataset::identity).
    pub dataset: String,
}

impl StreamState {
    /// What differs between this and the state of the loader at hand, or what this has that no loader has.
    pub(crate) fn differences(&self, here: &Self) -> String {
        let sizes =
            |state: &Self| format!("{} shards in {}", state.n_shards, batches(state.drop_last, state.batch_size));
        let differences = differences([
            ("it is of", sizes(self), sizes(here)),
            ("its shards are", self.share.clone(), here.share.clone()),
            ("its dataset is", self.dataset.clone(), here.dataset.clone()),
        ]);
        match differences.is_empty() {
            true => format!("there is no turn {} among {} shards, counted from 0", self.turn, here.n_shards),
            false => differences,
        }
    }
}

impl fmt::Display for StreamState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, round, turn, n_shards, batch_size, drop_last, share, dataset } = self;
        let sizes = format!("{n_shards} shards in {}", batches(*drop_last, *batch_size));
        write_checked(
            f,
            &format!("epoch {epoch}, round {round}, turn {turn} of {sizes}; shards: {share}; data: {dataset}"),
        )
    }
}

/// "batches of 64", or "full batches of 64".
fn batches(drop_last: bool, batch_size: usize) -> String {
    format!("{}batches of {batch_size}", if drop_last { "full " } else { "" })
}

/// "its order is `a`, and here it is `b`; …" for what is not the same.
fn differences<const N: usize>(parts: [(&str, String, String); N]) -> String {
    let differing = parts.into_iter().filter(|(_, there, here)| there != here);
    differing.map(|(what, there, here)| format!("{what} `{there}`, and here `{here}`")).collect::<Vec<_>>().join("; ")
}

/// A line with its checksum.
fn write_checked(f: &mut fmt::Formatter<'_>, line: &str) -> fmt::Result {
    write!(f, "{line}; check {}", Hash::of(line.as_bytes()))
}

/// The line without its checksum, if that is right.
pub(crate) fn unchecked(text: &str) -> Option<&str> {
    let (line, check) = text.trim().rsplit_once("; check ")?;
    (Hash::of(line.as_bytes()).to_string() == check).then_some(line)
}
