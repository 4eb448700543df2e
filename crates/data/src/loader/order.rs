//! [`Order`]: which samples make which batch; [`Positions`]: the batches of one epoch, in the order in which the program gets
//! them.
//!
//! A dataset with indices is one shard whose batches can be made in any order, since the sampler says which samples each has.
//! The batches of a stream's shard can only be made one after another. Shards take turns, a batch each:
//!
//! ```text
//! round 0: shard 0, shard 1, shard 2      a batch is at (round, turn); a shard that is over is left out
//! round 1: shard 0, shard 2
//! ```

use std::sync::Arc;

use super::plan::{MOST_SHARDS, check_most};
use crate::sampler::{BatchSampler, Sampler};
use crate::{Error, Result};

/// Which samples make which batch.
#[derive(Clone)]
pub(super) enum Order {
    /// Of a dataset with indices.
    Indexed(BatchSampler<Arc<dyn Sampler>>),
    /// Of a dataset of shards that are read from their start.
    Sharded(ShardOrder),
}

/// Which shards are read, and how they are cut into batches.
#[derive(Clone, Copy)]
pub(super) struct ShardOrder {
    pub(super) batch_size: usize,
    pub(super) drop_last: bool,
    pub(super) rank: usize,
    pub(super) world_size: usize,
}

impl ShardOrder {
    /// The shard whose turn is the `turn`th.
    pub(super) fn shard_at(&self, turn: usize) -> usize {
        self.rank + turn * self.world_size
    }

    /// How many of `n_shards` are read.
    pub(super) fn n_read(&self, n_shards: usize) -> usize {
        n_shards.saturating_sub(self.rank).div_ceil(self.world_size)
    }

    /// The first sample of the batch at `position` in its shard.
    pub(super) fn first_sample(&self, position: Position) -> u64 {
        position.round.saturating_mul(self.batch_size as u64)
    }

    fn check(&self, n_shards: usize) -> Result<()> {
        match (self.batch_size, self.n_read(n_shards)) {
            (0, _) => Err(Error::ZeroStreamBatch),
            (_, 0) => Err(Error::EmptyDataset),
            (_, n) => check_most("n_shards", n, MOST_SHARDS, "put more samples into each, or give shares to processes"),
        }
    }
}

impl Order {
    pub(super) fn batch_size(&self) -> usize {
        match self {
            Self::Indexed(batches) => batches.batch_size(),
            Self::Sharded(sharded) => sharded.batch_size,
        }
    }

    pub(super) fn drops_last(&self) -> bool {
        match self {
            Self::Indexed(batches) => batches.drops_last(),
            Self::Sharded(sharded) => sharded.drop_last,
        }
    }

    pub(super) fn set_batch_size(&mut self, batch_size: usize) {
        match self {
            Self::Indexed(batches) => *batches = batches.clone().with_batch_size(batch_size),
            Self::Sharded(sharded) => sharded.batch_size = batch_size,
        }
    }

    pub(super) fn set_drop_last(&mut self, drop_last: bool) {
        match self {
            Self::Indexed(batches) => *batches = batches.clone().drop_last(drop_last),
            Self::Sharded(sharded) => sharded.drop_last = drop_last,
        }
    }

    /// Which shards are read; none of a dataset with indices.
    pub(super) fn sharded(&self) -> Option<&ShardOrder> {
        match self {
            Self::Indexed(_) => None,
            Self::Sharded(sharded) => Some(sharded),
        }
    }

    /// The batches of an epoch from `start` on, of a dataset of `len` samples or shards.
    pub(super) fn positions(&self, start: Position, len: usize) -> Result<Positions> {
        let (n_turns, n_rounds) = match self {
            Self::Indexed(batches) => (1, Some(batches.n_batches(len)? as u64)),
            Self::Sharded(sharded) => {
                sharded.check(len)?;
                (sharded.n_read(len), None)
            }
        };
        Ok(Positions { next: start, n_rounds, is_live: vec![true; n_turns], n_live: n_turns })
    }
}

/// Where in an epoch a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) epoch: u64,
    /// How often every shard had its turn; the number of the batch for a dataset with indices.
    pub(super) round: u64,
    /// Which shard's turn it is; 0 for a dataset with indices.
    pub(super) turn: usize,
}

impl Position {
    pub(super) fn start_of(epoch: u64) -> Self {
        Self { epoch, round: 0, turn: 0 }
    }

    pub(super) fn start_of_next_epoch(self) -> Self {
        Self::start_of(self.epoch.saturating_add(1))
    }

    pub(super) fn after(self, n_turns: usize) -> Self {
        match self.turn + 1 {
            turn if turn < n_turns => Self { turn, ..self },
            _ => Self { round: self.round.saturating_add(1), turn: 0, ..self },
        }
    }

    /// The position before this one; none at the start of an epoch.
    pub(super) fn before(self, n_turns: usize) -> Option<Self> {
        match self.turn.checked_sub(1) {
            Some(turn) => Some(Self { turn, ..self }),
            None => Some(Self { round: self.round.checked_sub(1)?, turn: n_turns.checked_sub(1)?, ..self }),
        }
    }
}

/// See the head of the file. By default none.
#[derive(Default)]
pub(super) struct Positions {
    next: Position,
    n_rounds: Option<u64>, // of a dataset with indices; shards end when they say so
    is_live: Vec<bool>,    // by turn: whether the shard may have more
    n_live: usize,
}

impl Positions {
    pub(super) fn n_turns(&self) -> usize {
        self.is_live.len()
    }

    /// How many batches are left, if that is known.
    pub(super) fn n_left(&self) -> Option<usize> {
        self.n_rounds.map(|n_rounds| n_rounds.saturating_sub(self.next.round) as usize)
    }

    pub(super) fn peek(&mut self) -> Option<Position> {
        if self.n_live == 0 || self.n_left() == Some(0) {
            return None;
        }
        while !self.is_live[self.next.turn] {
            self.next = self.next.after(self.n_turns());
        }
        Some(self.next)
    }

    pub(super) fn next(&mut self) -> Option<Position> {
        let position = self.peek()?;
        self.next = position.after(self.n_turns());
        Some(position)
    }

    /// The shard at `turn` has no more batches.
    pub(super) fn end_shard(&mut self, turn: usize) {
        if self.is_live.get(turn) == Some(&true) {
            self.is_live[turn] = false;
            self.n_live -= 1;
        }
    }
}
