//! [`StreamState`]: where a loader of streams is, small enough to go into every checkpoint.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// Where a [`StreamLoader`](crate::StreamLoader) is: whose turn comes next. Each shard has given as many batches as there
/// were rounds, and one more, if its turn in this round is over, or all it had; that is enough to go on from.
///
/// It prints as one line that parses again.
///
/// # Examples
/// See [`StreamLoader::resume`](crate::StreamLoader::resume).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamState {
    /// Which epoch, counted from 0.
    pub epoch: u64,
    /// How often every shard had its turn.
    pub round: u64,
    /// Which shard's turn is next, in the order of those that this loader reads.
    pub turn: usize,
    /// How many shards it reads: others are refused.
    pub n_shards: usize,
    /// How many samples make a batch, likewise.
    pub batch_size: usize,
}

impl fmt::Display for StreamState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, round, turn, n_shards, batch_size } = self;
        write!(f, "epoch {epoch}, round {round}, turn {turn} of {n_shards} shards in batches of {batch_size}")
    }
}

impl FromStr for StreamState {
    type Err = Error;

    /// # Errors
    /// [`Error::NoStreamState`] for anything that [`StreamState`] does not print.
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (epoch, rest) = text.trim().strip_prefix("epoch ")?.split_once(", round ")?;
            let (round, rest) = rest.split_once(", turn ")?;
            let (turn, rest) = rest.split_once(" of ")?;
            let (n_shards, batch_size) = rest.split_once(" shards in batches of ")?;
            Some(Self {
                epoch: epoch.parse().ok()?,
                round: round.parse().ok()?,
                turn: turn.parse().ok()?,
                n_shards: n_shards.parse().ok()?,
                batch_size: batch_size.parse().ok()?,
            })
        };
        parse().ok_or_else(|| Error::NoStreamState { text: text.chars().take(80).collect() })
    }
}
