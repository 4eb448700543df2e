//! [`LoaderState`] and [`StreamState`]: where a loader is, small enough to go into every checkpoint.

use std::fmt;
use std::str::FromStr;

use crate::identity::Hash;
use crate::{Error, Result};

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

/// "batches of 64", or "full batches of 64".
fn batches(drop_last: bool, batch_size: usize) -> String {
    format!("{}batches of {batch_size}", if drop_last { "full " } else { "" })
}

/// The batch size, and whether smaller batches are left out; see [`batches`].
fn parse_batches(text: &str) -> Option<(bool, usize)> {
    let (drop_last, text) = text.strip_prefix("full ").map_or((false, text), |rest| (true, rest));
    Some((drop_last, text.strip_prefix("batches of ")?.parse().ok()?))
}

/// "its order is `a`, and here it is `b`; …" for what is not the same.
fn differences<const N: usize>(parts: [(&str, String, String); N]) -> String {
    let differing = parts.into_iter().filter(|(_, there, here)| there != here);
    differing.map(|(what, there, here)| format!("{what} `{there}`, and here `{here}`")).collect::<Vec<_>>().join("; ")
}

/// A line with its checksum.
fn checked(line: &str) -> String {
    format!("{line}; check {}", Hash::of(line.as_bytes()))
}

/// The line without its checksum, if that is right.
fn unchecked(text: &str) -> Option<&str> {
    let (line, check) = text.trim().rsplit_once("; check ")?;
    (Hash::of(line.as_bytes()).to_string() == check).then_some(line)
}

/// That a text is no state; one of an older version, which ended after the sizes, is told apart.
fn not_a_state(text: &str, example: &'static str, without_rest: impl Fn(&str) -> Option<u64>) -> Error {
    let text = text.trim();
    match without_rest(text) {
        Some(epoch) => Error::OldState { text: text.to_owned(), epoch },
        None => Error::NoState { text: text.chars().take(80).collect(), example },
    }
}

/// The numbers of the first part.
struct Numbers {
    epoch: u64,
    batch: usize,
    n_samples: usize,
    batch_size: usize,
    drop_last: bool,
}

impl Numbers {
    fn parse(text: &str) -> Option<Self> {
        let (epoch, rest) = text.strip_prefix("epoch ")?.split_once(", batch ")?;
        let (batch, rest) = rest.split_once(", ")?;
        let (n_samples, rest) = rest.split_once(" samples in ")?;
        let (drop_last, batch_size) = parse_batches(rest)?;
        let (epoch, batch) = (epoch.parse().ok()?, batch.parse().ok()?);
        Some(Self { epoch, batch, n_samples: n_samples.parse().ok()?, batch_size, drop_last })
    }
}

impl fmt::Display for LoaderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, batch, n_samples, batch_size, drop_last, order, dataset } = self;
        let batches = batches(*drop_last, *batch_size);
        let line =
            format!("epoch {epoch}, batch {batch}, {n_samples} samples in {batches}; order: {order}; data: {dataset}");
        f.write_str(&checked(&line))
    }
}

impl FromStr for LoaderState {
    type Err = Error;

    /// # Errors
    /// [`Error::NoState`] for anything that [`LoaderState`] does not print, damaged lines too; [`Error::OldState`] for what
    /// it once printed, without order and dataset.
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (numbers, rest) = unchecked(text)?.split_once("; order: ")?;
            let (order, dataset) = rest.split_once("; data: ")?;
            let Numbers { epoch, batch, n_samples, batch_size, drop_last } = Numbers::parse(numbers)?;
            let (order, dataset) = (order.to_owned(), dataset.to_owned());
            Some(Self { epoch, batch, n_samples, batch_size, drop_last, order, dataset })
        };
        let example = "epoch 3, batch 17, 50000 samples in batches of 64; order: …; data: …; check …";
        parse().ok_or_else(|| not_a_state(text, example, |text| Numbers::parse(text).map(|numbers| numbers.epoch)))
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

/// The numbers of the first part.
struct StreamNumbers {
    epoch: u64,
    round: u64,
    turn: usize,
    n_shards: usize,
    batch_size: usize,
    drop_last: bool,
}

impl StreamNumbers {
    fn parse(text: &str) -> Option<Self> {
        let (epoch, rest) = text.strip_prefix("epoch ")?.split_once(", round ")?;
        let (round, rest) = rest.split_once(", turn ")?;
        let (turn, rest) = rest.split_once(" of ")?;
        let (n_shards, rest) = rest.split_once(" shards in ")?;
        let (drop_last, batch_size) = parse_batches(rest)?;
        let (epoch, round, turn) = (epoch.parse().ok()?, round.parse().ok()?, turn.parse().ok()?);
        Some(Self { epoch, round, turn, n_shards: n_shards.parse().ok()?, batch_size, drop_last })
    }
}

impl fmt::Display for StreamState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, round, turn, n_shards, batch_size, drop_last, share, dataset } = self;
        let batches = batches(*drop_last, *batch_size);
        let numbers = format!("epoch {epoch}, round {round}, turn {turn} of {n_shards} shards in {batches}");
        f.write_str(&checked(&format!("{numbers}; shards: {share}; data: {dataset}")))
    }
}

impl FromStr for StreamState {
    type Err = Error;

    /// # Errors
    /// [`Error::NoState`] for anything that [`StreamState`] does not print, damaged lines too; [`Error::OldState`] for what
    /// it once printed, without shards and dataset.
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (numbers, rest) = unchecked(text)?.split_once("; shards: ")?;
            let (share, dataset) = rest.split_once("; data: ")?;
            let StreamNumbers { epoch, round, turn, n_shards, batch_size, drop_last } = StreamNumbers::parse(numbers)?;
            let (share, dataset) = (share.to_owned(), dataset.to_owned());
            Some(Self { epoch, round, turn, n_shards, batch_size, drop_last, share, dataset })
        };
        let example = "epoch 3, round 17, turn 2 of 8 shards in batches of 64; shards: …; data: …; check …";
        parse()
            .ok_or_else(|| not_a_state(text, example, |text| StreamNumbers::parse(text).map(|numbers| numbers.epoch)))
    }
}
