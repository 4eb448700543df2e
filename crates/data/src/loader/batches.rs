//! [`Batches`]: one epoch of a loader, made by the program itself or by a [`WorkerPool`].

use std::marker::PhantomData;
use std::mem;
use std::time::{Duration, Instant};

use pagelock_tensor::default_generator;
use pagelock_tensor::profiler::{self, Category};

use super::core::Core;
use super::device::Uploads;
use super::maker::{Maker, Readers};
use super::order::{Position, Positions};
use super::pinned::{PATIENCE, PinnedAllocator};
use super::pool::{PositionedOutcome, WorkerPool};
use super::source::AnyBatch;
use crate::opaque::Opaque;
use crate::{Error, Result};

/// One epoch of a [`DataLoader`](super::DataLoader) or [`StreamLoader`](super::StreamLoader). After an error the next batch
/// follows, so a bad sample costs its own batch only.
///
/// The number of batches that are left is known, except for a stream.
pub struct Batches<'a, B: Send + 'static> {
    pub(super) epoch: Opaque<'a, AnyBatches<'a>>,
    pub(super) batches: PhantomData<fn() -> B>,
}

impl<B: Send + 'static> Iterator for Batches<'_, B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        match self.epoch.next()? {
            Ok(()) => Some(Ok(self.epoch.batch.take())),
            Err(error) => Some(Err(error)),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epoch.size_hint()
    }
}

/// [`Batches`] without the type of the batches.
pub(super) struct AnyBatches<'a> {
    core: &'a Core,
    start: Position,
    next: Position, // of the batch that is to be made next; with `uploads`, the program is behind it
    n_turns: usize,
    threads: Threads,
    /// How many batches are left, if that is known.
    n_left: Option<usize>,
    /// The number of the batch that comes next.
    number: usize,
    /// Why the epoch cannot begin; given once, instead of batches.
    refusal: Option<Error>,
    is_empty: bool,  // no batch was given yet
    batch: AnyBatch, // the batch that was made last
    uploads: Option<Uploads>,
    returned_at: Option<Instant>, // when the program got its last batch
}

/// Who makes the batches.
#[expect(clippy::large_enum_variant, reason = "there is one per epoch")]
enum Threads {
    Program { positions: Positions, readers: Readers, maker: Maker },
    Workers(WorkerPool),
    Stopped,
}

impl<'a> AnyBatches<'a> {
    pub(super) fn start(core: &'a Core) -> Opaque<'a, Self> {
        let mut progress = core.progress();
        let seed = progress.start.seed.or_else(|| Some(default_generator().seed()));
        let start = Position { seed, ..progress.start };
        (progress.start, progress.next) = (start.start_of_next_epoch(), start);
        drop(progress);
        let number = if core.recipe.order.share().is_some() { 0 } else { start.round as usize };
        let mut epoch = Self {
            core,
            start,
            next: start,
            n_turns: 1,
            threads: Threads::Stopped,
            n_left: Some(0),
            number,
            refusal: None,
            is_empty: true,
            batch: AnyBatch::default(),
            uploads: None,
            returned_at: None,
        };
        epoch.refusal = epoch.begin().err();
        Opaque::new(epoch)
    }

    fn begin(&mut self) -> Result<()> {
        let (recipe, settings) = (&self.core.recipe, &self.core.recipe.settings);
        let positions = self.core.positions(self.start)?;
        let (n_turns, n_left) = (positions.n_turns(), positions.n_left());
        if n_turns > 1 {
            self.core.check_is_reached(self.start, n_turns)?; // with one shard, `empty_epoch_error` checks this
        }
        let readers = recipe.readers(self.start, n_turns);
        self.uploads = settings.device.as_ref().map(Uploads::begin).transpose()?;
        self.threads = match self.core.workers()? {
            Some(pool) => {
                pool.begin(positions, readers);
                Threads::Workers(pool)
            }
            None => {
                let (when_full, patience) = (settings.when_full, settings.timeout.unwrap_or(PATIENCE));
                let allocator = |memory| PinnedAllocator::new(memory, when_full, move |waited| waited < patience);
                let pinned = self.core.pinned_pool().map(allocator);
                Threads::Program { positions, readers, maker: Maker::new(None, pinned, settings.skips) }
            }
        };
        (self.n_turns, self.n_left) = (n_turns, n_left);
        Ok(())
    }

    fn load(&mut self) -> Option<PositionedOutcome> {
        let recipe = &self.core.recipe;
        let (positions, readers, maker) = match &mut self.threads {
            Threads::Workers(pool) => return pool.next(self.number, &mut self.batch),
            Threads::Program { positions, readers, maker } => (positions, readers, maker),
            Threads::Stopped => return None,
        };
        loop {
            let position = positions.next()?;
            let result = recipe.make(readers, position, None, maker, &mut self.batch);
            if !matches!(result, Ok(false)) {
                return Some((maker.outcome(result), Some(position)));
            }
            positions.end_shard(position.turn);
        }
    }

    /// Makes `self.batch` the next batch: on the device, if there is one.
    fn next(&mut self) -> Option<Result<()>> {
        let Some(mut uploads) = self.uploads.take() else { return self.next_on_host() };
        uploads.release(uploads.len().max(1)); // frees the source of the program's batch: the next may need its memory
        while !uploads.is_full() {
            let number = self.number;
            let Some(loaded) = self.next_on_host() else { break };
            let start = Instant::now();
            let sent = loaded.and_then(|()| uploads.send(number, mem::take(&mut self.batch)));
            let mut progress = self.core.progress();
            progress.report.transfer += start.elapsed();
            uploads.push(sent, progress.next);
        }
        let uploaded = uploads.pop();
        self.uploads = Some(uploads);
        let (batch, next) = uploaded?;
        self.core.progress().next = next;
        Some(batch.map(|batch| self.batch = batch))
    }

    fn next_on_host(&mut self) -> Option<Result<()>> {
        if let Some(error) = self.refusal.take() {
            return Some(Err(error));
        }
        if self.n_left == Some(0) {
            return None;
        }
        let start = Instant::now();
        let loaded = {
            let _waiting = profiler::span("DataLoader.next", Category::Loading);
            self.load()
        };
        let Some((mut outcome, position)) = loaded else {
            self.core.progress().next = self.start.start_of_next_epoch();
            return mem::take(&mut self.is_empty).then(|| self.empty_epoch_error()).flatten().map(Err);
        };
        let end = Instant::now();
        outcome.report.program_waited = end - start;
        outcome.report.program_worked = self.returned_at.map_or(Duration::ZERO, |returned_at| start - returned_at);
        (self.returned_at, self.is_empty) = (Some(end), false);
        self.number += 1;
        if let (Some(_), Some(n_left)) = (position, &mut self.n_left) {
            *n_left -= 1;
        }
        let has_failed = matches!(outcome.result, Err(Error::Worker { .. }));
        if has_failed {
            (self.n_left, self.threads) = (Some(0), Threads::Stopped); // a failed pool is not kept for the next epoch
        }
        self.next = match (self.n_left, position) {
            _ if has_failed => self.next, // a program that resumes gets the batch that it did not get
            (Some(0), _) => self.start.start_of_next_epoch(),
            (_, Some(position)) => position.after(self.n_turns),
            (_, None) => self.next,
        };
        let mut progress = self.core.progress();
        progress.next = self.next;
        progress.add(&mut outcome);
        Some(outcome.result.map(|_| ()))
    }

    /// The error of an epoch without a batch: the dataset is empty, or the loader was resumed past the end. `None` if
    /// it was resumed exactly at the end.
    fn empty_epoch_error(&self) -> Option<Error> {
        match self.start.before(self.n_turns) {
            None => Some(Error::empty_dataset()),
            Some(_) => self.core.check_is_reached(self.start, self.n_turns).err(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let n_uploaded = self.uploads.as_ref().map_or(0, Uploads::len) + usize::from(self.refusal.is_some());
        (n_uploaded + self.n_left.unwrap_or(0), self.n_left.map(|n_left| n_uploaded + n_left))
    }
}

impl Drop for AnyBatches<'_> {
    fn drop(&mut self) {
        if let Threads::Workers(pool) = mem::replace(&mut self.threads, Threads::Stopped) {
            self.core.keep_workers(pool);
        }
    }
}
