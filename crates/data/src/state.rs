//! [`LoaderState`]: the position of a loader, small enough to go into every checkpoint.
//!
//! ```text
//! epoch 3 of seed 5, batch 17, 50000 samples in batches of 64; order: …; data: …; check …                 DataLoader
//! epoch 3 of seed 5, round 17, turn 2 of 8 shards in full batches of 64; shards: …; data: …; check …      StreamLoader
//! ```

use std::fmt;
use std::str::FromStr;

use crate::identity::Hash;
use crate::{Error, Result};

/// The position of a loader in its epoch. Batches are a function of epoch, seed and position, so nothing else has to be
/// saved. The other fields identify the loader: one with another dataset, order or batch size refuses the state.
///
/// A [`DataLoader`](crate::DataLoader) counts batches, and resumes at once. A [`StreamLoader`](crate::StreamLoader)
/// counts the turns of its shards. It does not save which shards ended early, since they panicked or could not be opened.
///
/// It prints as one line that parses again, with a checksum: a line that was damaged does not parse.
///
/// # Examples
/// Training that stops in the middle of an epoch and resumes in another process:
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
/// assert!(saved.starts_with("epoch 0 of seed 0, batch 3, 10 samples in batches of 2; order: random, seed 7, "));
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
    /// How many of its batches were given, which is the number of the next. In a stream, how many turns every shard
    /// has had.
    pub batch: u64,
    /// In a stream, the shard whose turn is next, counted among those that the loader reads.
    pub turn: Option<usize>,
    /// The seed of what the dataset draws from the
    /// [`default_generator`](pagelock_tensor::default_generator): the generator's own when the epoch began. `None`
    /// before it began, and in states of older versions; then the epoch takes the generator's seed when it goes on.
    pub seed: Option<u64>,
    /// How many samples the dataset has. In a stream, how many shards the loader reads.
    pub len: usize,
    /// How many samples make a batch.
    pub batch_size: usize,
    /// Whether a smaller last batch is left out. In a stream, the last batch of each shard.
    pub drop_last: bool,
    /// The order: [`Sampler::identity`](crate::Sampler::identity), and a hash of some of its indices. In a stream,
    /// the shards that the loader reads: all, or those of one process.
    pub order: String,
    /// The dataset's [`identity`](crate::Dataset::identity).
    pub dataset: String,
}

impl LoaderState {
    /// "epoch 3, batch 17", or "epoch 3, round 17, turn 2".
    pub(crate) fn position(&self) -> String {
        let Self { epoch, batch, .. } = self;
        match self.turn {
            None => format!("epoch {epoch}, batch {batch}"),
            Some(turn) => format!("epoch {epoch}, round {batch}, turn {turn}"),
        }
    }

    /// "50000 samples in batches of 64".
    fn sizes(&self) -> String {
        let what = if self.turn.is_some() { "shards" } else { "samples" };
        let full = if self.drop_last { "full " } else { "" };
        format!("{} {what} in {full}batches of {}", self.len, self.batch_size)
    }

    /// The label of the order in the line.
    fn order_name(&self) -> &'static str {
        if self.turn.is_some() { "shards" } else { "order" }
    }

    /// Refuses this state, unless it belongs to the loader whose state is `here`.
    pub(crate) fn check_is_of(&self, here: &Self) -> Result<()> {
        let order_name = self.order_name();
        let order = if self.turn.is_some() { "its shards are" } else { "its order is" };
        let parts = [
            ("it has", self.sizes(), here.sizes()),
            (order, self.order.clone(), here.order.clone()),
            ("its dataset is", self.dataset.clone(), here.dataset.clone()),
        ];
        let differing = parts.into_iter().filter(|(_, there, here)| there != here);
        let mut differences: Vec<_> =
            differing.map(|(what, there, here)| format!("{what} `{there}`, but this loader has `{here}`")).collect();
        if let Some(turn) = self.turn.filter(|&turn| differences.is_empty() && turn >= here.len.max(1)) {
            differences.push(format!("there is no turn {turn} among {} shards, counted from 0", here.len));
        }
        if differences.is_empty() {
            return Ok(());
        }
        Err(Error::State(format!(
            "cannot resume from {}: {}; resume with the dataset, {order_name} and batch size that it was saved with, \
             or begin an epoch with set_epoch",
            self.position(),
            differences.join("; ")
        )))
    }
}

impl fmt::Display for LoaderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joint = if self.turn.is_some() { " of " } else { ", " };
        let (order_name, order, dataset) = (self.order_name(), &self.order, &self.dataset);
        let seed = self.seed.map_or_else(String::new, |seed| format!(" of seed {seed}"));
        let position = self.position().replacen(',', &format!("{seed},"), 1);
        let line = format!("{position}{joint}{}; {order_name}: {order}; data: {dataset}", self.sizes());
        write!(f, "{line}; check {}", Hash::of(line.as_bytes()))
    }
}

impl FromStr for LoaderState {
    type Err = Error;

    /// # Errors
    /// [`Error::State`] for anything that [`LoaderState`] does not print: damaged lines, and lines of older versions,
    /// which have neither order nor dataset.
    fn from_str(text: &str) -> Result<Self> {
        parse(text.trim()).ok_or_else(|| not_a_state(text.trim()))
    }
}

fn parse(text: &str) -> Option<LoaderState> {
    let (line, check) = text.rsplit_once("; check ")?;
    if Hash::of(line.as_bytes()).to_string() != check {
        return None;
    }
    let (sizes, rest) = line.split_once("; ")?;
    let state = parse_sizes(sizes)?;
    let (order, dataset) = rest.strip_prefix(state.order_name())?.strip_prefix(": ")?.split_once("; data: ")?;
    Some(LoaderState { order: order.to_owned(), dataset: dataset.to_owned(), ..state })
}

/// The first part of a line, without order and dataset.
fn parse_sizes(text: &str) -> Option<LoaderState> {
    let (epoch, rest) = text.strip_prefix("epoch ")?.split_once(", ")?;
    let (epoch, seed) = epoch.split_once(" of seed ").map_or((epoch, None), |(epoch, seed)| (epoch, Some(seed)));
    let seed = seed.map(str::parse).transpose().ok()?;
    let (batch, turn, rest) = match rest.strip_prefix("batch ") {
        Some(rest) => {
            let (batch, rest) = rest.split_once(", ")?;
            (batch, None, rest)
        }
        None => {
            let (round, rest) = rest.strip_prefix("round ")?.split_once(", turn ")?;
            let (turn, rest) = rest.split_once(" of ")?;
            (round, Some(turn.parse().ok()?), rest)
        }
    };
    let (len, batches) = rest.split_once(if turn.is_some() { " shards in " } else { " samples in " })?;
    let full = batches.strip_prefix("full ");
    let batch_size = full.unwrap_or(batches).strip_prefix("batches of ")?.parse().ok()?;
    let (epoch, batch, len) = (epoch.parse().ok()?, batch.parse().ok()?, len.parse().ok()?);
    let (order, dataset) = (String::new(), String::new());
    Some(LoaderState { epoch, batch, turn, seed, len, batch_size, drop_last: full.is_some(), order, dataset })
}

/// The error for a text that is not a state. A line of an older version ended after the sizes.
fn not_a_state(text: &str) -> Error {
    if let Some(LoaderState { epoch, .. }) = parse_sizes(text) {
        return Error::State(format!(
            "`{text}` is a state of an older version, which names neither order nor dataset; begin its epoch again \
             with set_epoch({epoch})"
        ));
    }
    let example = match text.contains("round") {
        false => "epoch 3, batch 17, 50000 samples in batches of 64; order: …; data: …; check …",
        true => "epoch 3, round 17, turn 2 of 8 shards in batches of 64; shards: …; data: …; check …",
    };
    let start: String = text.chars().take(80).collect();
    Error::State(format!("`{start}` is not the state of a loader, or it was damaged; a state looks like `{example}`"))
}
