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

use std::sync::{Arc, Mutex};

use pagelock_tensor::CountedHeap;

use super::maker::ShardReader;
use crate::error::check_most;
use crate::sampler::{BatchSampler, MAX_SAMPLES, Sampler};
use crate::{Error, Result};

/// The most shards that are read, since the loader keeps a position in each.
const MAX_SHARDS: usize = 1 << 20;

/// Which samples make which batch.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) batch_size: usize,
    pub(super) drop_last: bool,
    pub(super) kind: OrderKind,
}

#[derive(Clone)]
pub(super) enum OrderKind {
    /// For a dataset with indices.
    Sampler(Arc<dyn Sampler>),
    /// For a dataset of shards that are read from their start.
    Shards(Share),
}

/// The shards that one of several processes reads.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) rank: usize,
    pub(super) world_size: usize,
}

impl Share {
    pub(super) fn shard_at(&self, turn: usize) -> usize {
        self.rank + turn * self.world_size
    }

    pub(super) fn n_read(&self, n_shards: usize) -> usize {
        n_shards.saturating_sub(self.rank).div_ceil(self.world_size)
    }
}

impl Order {
    /// Which shards are read; `None` for a dataset with indices.
    pub(super) fn share(&self) -> Option<&Share> {
        if let OrderKind::Shards(share) = &self.kind { Some(share) } else { None }
    }

    pub(super) fn batches(&self, sampler: &Arc<dyn Sampler>) -> BatchSampler<Arc<dyn Sampler>> {
        BatchSampler::new(sampler.clone(), self.batch_size).drop_last(self.drop_last)
    }

    /// The first sample of the batch at `position` in its shard.
    pub(super) fn first_sample(&self, position: Position) -> u64 {
        position.round.saturating_mul(self.batch_size as u64)
    }

    /// The batches of an epoch from `start` on, of a dataset of `len` samples or shards.
    pub(super) fn positions(&self, start: Position, len: usize) -> Result<Positions> {
        let (n_turns, n_rounds) = match &self.kind {
            OrderKind::Sampler(sampler) => (1, Some(self.batches(sampler).n_batches(len)? as u64)),
            OrderKind::Shards(share) => (self.check_shards(share.n_read(len))?, None),
        };
        let len_bytes = n_turns * (size_of::<Mutex<ShardReader>>() + 1);
        let counted = Some(CountedHeap::granted("loader", "the readers of the shards", len_bytes)?);
        Ok(Positions { next: start, n_rounds, is_live: vec![true; n_turns], n_live: n_turns, _counted: counted })
    }

    fn check_shards(&self, n_shards: usize) -> Result<usize> {
        if self.batch_size == 0 {
            return Err(Error::Argument("the batch size is 0; set StreamLoader::batch_size to at least 1".into()));
        }
        if n_shards == 0 {
            return Err(Error::empty_dataset());
        }
        check_most("the batch size", self.batch_size, MAX_SAMPLES, "64 is usual")?;
        check_most("n_shards", n_shards, MAX_SHARDS, "put more samples into each, or divide them among processes")?;
        Ok(n_shards)
    }
}

/// Where in an epoch a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) epoch: u64,
    /// How many turns every shard has had; for a dataset with indices, the number of the batch.
    pub(super) round: u64,
    /// Which shard's turn it is; 0 for a dataset with indices.
    pub(super) turn: usize,
    /// What the default generator's seed was when the epoch began; `None` before.
    pub(super) seed: Option<u64>,
}

impl Position {
    pub(super) fn start_of(epoch: u64) -> Self {
        Self { epoch, ..Self::default() }
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

/// See the head of the file. There are none by default.
#[derive(Default)]
pub(super) struct Positions {
    next: Position,
    n_rounds: Option<u64>, // for a dataset with indices; the ends of shards are found by reading
    is_live: Vec<bool>,    // by turn: whether the shard may have more
    n_live: usize,
    _counted: Option<CountedHeap>, // for `is_live` and the shards' readers
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

    pub(super) fn end_shard(&mut self, turn: usize) {
        if self.is_live.get(turn) == Some(&true) {
            self.is_live[turn] = false;
            self.n_live -= 1;
        }
    }
}
