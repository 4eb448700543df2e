//! [`StreamState`]: where a loader of streams is, small enough to go into every checkpoint.

use std::fmt;
use std::str::FromStr;

use crate::loader::state::{batches, checked, differences, not_a_state, parse_batches, unchecked};
use crate::{Error, Result};

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

/// Whose turn it is in which epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPlace {
    pub(super) epoch: u64,
    pub(super) round: u64,
    pub(super) turn: usize,
}

impl StreamPlace {
    /// The start of an epoch.
    pub(super) fn start_of(epoch: u64) -> Self {
        Self { epoch, round: 0, turn: 0 }
    }

    /// The turn before this one; none at the start.
    pub(super) fn before(self, n_shards: usize) -> Option<Self> {
        match self.turn.checked_sub(1) {
            Some(turn) => Some(Self { turn, ..self }),
            None => Some(Self { round: self.round.checked_sub(1)?, turn: n_shards.checked_sub(1)?, ..self }),
        }
    }
}

impl StreamState {
    pub(super) fn place(&self) -> StreamPlace {
        StreamPlace { epoch: self.epoch, round: self.round, turn: self.turn }
    }

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
struct Numbers {
    place: StreamPlace,
    n_shards: usize,
    batch_size: usize,
    drop_last: bool,
}

impl Numbers {
    fn parse(text: &str) -> Option<Self> {
        let (epoch, rest) = text.strip_prefix("epoch ")?.split_once(", round ")?;
        let (round, rest) = rest.split_once(", turn ")?;
        let (turn, rest) = rest.split_once(" of ")?;
        let (n_shards, rest) = rest.split_once(" shards in ")?;
        let (drop_last, batch_size) = parse_batches(rest)?;
        let place = StreamPlace { epoch: epoch.parse().ok()?, round: round.parse().ok()?, turn: turn.parse().ok()? };
        Some(Self { place, n_shards: n_shards.parse().ok()?, batch_size, drop_last })
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
            let Numbers { place: StreamPlace { epoch, round, turn }, n_shards, batch_size, drop_last } =
                Numbers::parse(numbers)?;
            let (share, dataset) = (share.to_owned(), dataset.to_owned());
            Some(Self { epoch, round, turn, n_shards, batch_size, drop_last, share, dataset })
        };
        let example = "epoch 3, round 17, turn 2 of 8 shards in batches of 64; shards: …; data: …; check …";
        parse()
            .ok_or_else(|| not_a_state(text, example, |text| Numbers::parse(text).map(|numbers| numbers.place.epoch)))
    }
}
