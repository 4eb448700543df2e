//! [`Batches`]: one epoch of a loader, made by the program itself or by a [`WorkerPool`].

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::{Core, Started};
use super::maker::Maker;
use super::opaque::Opaque;
use super::order::{Position, Positions};
use super::pool::{Given, WorkerPool};
use super::recipe::Run;

use super::pinned::{PATIENCE, PinnedAllocator};
use super::source::AnyBatch;
use crate::{Error, Result};

/// One epoch of a [`DataLoader`](super::DataLoader) or [`StreamLoader`](super::StreamLoader). After an error the next batch
/// follows, so a bad sample costs its own batch only.
///
/// # Examples
/// ```
/// # use pagelock_data::{DataLoader, TensorDataset};
/// # use pagelock_tensor::Tensor;
/// # let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([10])?)?).batch_size(4);
/// let mut batches = loader.iter();
/// assert_eq!(batches.size_hint(), (3, Some(3)));
/// batches.next();
/// assert_eq!(batches.size_hint(), (2, Some(2)));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub struct Batches<'a, B: Send + 'static> {
    pub(super) epoch: Opaque<'a, Epoch<'a>>,
    batches: PhantomData<fn() -> B>,
}

/// [`Batches`] of a [`StreamLoader`](super::StreamLoader).
///
/// # Examples
/// See [`StreamLoader`](super::StreamLoader).
pub type StreamBatches<'a, B> = Batches<'a, B>;

impl<'a, B: Send + 'static> Batches<'a, B> {
    pub(super) fn new(epoch: Opaque<'a, Epoch<'a>>) -> Self {
        Self { epoch, batches: PhantomData }
    }
}

impl<B: Send + 'static> Iterator for Batches<'_, B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        match self.epoch.next()? {
            Ok(()) => Some(Ok(self.epoch.batch().take())),
            Err(error) => Some(Err(error)),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epoch.size_hint()
    }
}

/// [`Batches`] of whatever type.
pub(super) struct Epoch<'a> {
    core: &'a Core,
    start: Position,
    n_turns: usize,
    threads: Threads,
    /// How many batches are left, if that is known.
    n_left: Option<usize>,
    /// The number of the batch that comes next.
    pub(super) number: usize,
    /// Why there is no batch at all; given once.
    refusal: Option<Error>,
    is_empty: bool,          // nothing was given yet
    batch: Option<AnyBatch>, // that was made last
    given: Option<Instant>,  // when the program got its last batch
}

/// Who makes the batches.
#[expect(clippy::large_enum_variant, reason = "there is one of an epoch")]
enum Threads {
    Program { positions: Positions, run: Run, maker: Maker },
    Workers(WorkerPool),
    Nobody,
}

impl<'a> Epoch<'a> {
    /// The next epoch of a loader.
    pub(super) fn start(core: &'a Core) -> Opaque<'a, Self> {
        let mut progress = core.progress();
        let start = progress.start;
        (progress.start, progress.next) = (start.start_of_next_epoch(), start);
        drop(progress);
        let number = if core.recipe.order.sharded().is_some() { 0 } else { start.round as usize };
        let (threads, n_left) = (Threads::Nobody, Some(0));
        let (batch, given) = (None, None);
        let mut epoch =
            Self { core, start, n_turns: 1, threads, n_left, number, refusal: None, is_empty: true, batch, given };
        match core.start(start) {
            Ok(started) => epoch.begin(started),
            Err(error) => epoch.refusal = Some(error),
        }
        Opaque::new(epoch)
    }

    fn begin(&mut self, Started { positions, run, pool }: Started) {
        (self.n_turns, self.n_left) = (positions.n_turns(), positions.n_left());
        self.threads = match pool {
            Some(pool) => {
                pool.begin(positions, run);
                Threads::Workers(pool)
            }
            None => {
                let (plan, patience) = (&self.core.plan, self.core.plan.timeout.unwrap_or(PATIENCE));
                let allocator = |memory| PinnedAllocator::new(memory, plan.when_full, move |waited| waited < patience);
                let pinned = self.core.pinned_pool().map(allocator);
                Threads::Program { positions, run, maker: Maker::new(Arc::default(), pinned, None, plan.skips) }
            }
        };
    }

    /// The next batch, made here or by a worker.
    fn load(&mut self) -> Option<Given> {
        let recipe = &self.core.recipe;
        let (positions, run, maker) = match &mut self.threads {
            Threads::Workers(pool) => return pool.next(self.number, &mut self.batch),
            Threads::Program { positions, run, maker } => (positions, run, maker),
            Threads::Nobody => return None,
        };
        loop {
            let position = positions.next()?;
            let batch = self.batch.get_or_insert_with(|| recipe.source.room());
            let result = recipe.make(run, position, None, maker, batch);
            if !matches!(result, Ok(false)) {
                return Some(Given::new(maker.made(result), Some(position)));
            }
            positions.end_shard(position.turn);
        }
    }

    /// Where the batch is that was made.
    fn batch(&mut self) -> &mut AnyBatch {
        self.batch.as_mut().unwrap_or_else(|| unreachable!("a batch was made"))
    }

    fn next(&mut self) -> Option<Result<()>> {
        if let Some(error) = self.refusal.take() {
            return Some(Err(error));
        }
        if self.n_left == Some(0) {
            return None;
        }
        let start = Instant::now();
        let Some(Given { mut made, position, wait_for_program, wait_for_budget }) = self.load() else {
            self.core.progress().next = self.start.start_of_next_epoch();
            return std::mem::take(&mut self.is_empty).then(|| self.nothing_came()).flatten().map(Err);
        };
        let end = Instant::now();
        let worked = self.given.map_or(Duration::ZERO, |given| start - given);
        (self.given, self.is_empty) = (Some(end), false);
        self.number += 1;
        if let (Some(_), Some(n_left)) = (position, &mut self.n_left) {
            *n_left -= 1;
        }
        if matches!(made.result, Err(Error::WorkerInit { .. })) {
            (self.n_left, self.threads) = (Some(0), Threads::Nobody); // no workers for another epoch
        }
        let mut progress = self.core.progress();
        match (self.n_left, position) {
            (Some(0), _) => progress.next = self.start.start_of_next_epoch(),
            (_, Some(position)) => progress.next = position.after(self.n_turns),
            _ => {}
        }
        progress.record.add(&mut made);
        let report = &mut progress.record.report;
        report.program_waited += end - start;
        report.program_worked += worked;
        report.wait_for_program += wait_for_program;
        report.wait_for_budget += wait_for_budget;
        Some(made.result.map(|_| ()))
    }

    /// What it means that no batch came: from the start on, that the dataset is empty; from somewhere else, that the batch
    /// before was the last, or that there was none.
    fn nothing_came(&self) -> Option<Error> {
        match self.start.before(self.n_turns) {
            None => Some(Error::EmptyDataset),
            Some(_) => self.core.check_is_reached(self.start, self.n_turns).err(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self.n_left {
            Some(n_left) => {
                let n_left = n_left + usize::from(self.refusal.is_some());
                (n_left, Some(n_left))
            }
            None => (0, None),
        }
    }
}

impl Drop for Epoch<'_> {
    fn drop(&mut self) {
        if let Threads::Workers(pool) = std::mem::replace(&mut self.threads, Threads::Nobody) {
            self.core.put_away(pool);
        }
    }
}
