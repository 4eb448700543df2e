//! [`Core`]: a loader of whatever batches. What it does is compiled here, once.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use pagelock_memory::{Budget, Holder};

use super::opaque::Opaque;
use super::order::{Order, Position, Positions};
use super::pinned::{PinnedPool, pinned_pool};
use super::plan::{Init, Plan};
use super::pool::WorkerPool;
use super::recipe::{Recipe, Run};
use super::report::{LoaderReport, Record, Skipped};
use super::source::{Data, Source};
use crate::identity::in_a_line;
use crate::panics::lock;
use crate::sampler::Sampler;
use crate::{Error, Result};

/// See the head of the file.
pub(super) struct Core {
    pub(super) recipe: Recipe,
    pub(super) plan: Plan,
    identity: OnceLock<(String, String)>, // the order and the dataset, as states name them
    pinned: OnceLock<PinnedPool>,         // where batches are made that are to be page-locked
    progress: Mutex<LoaderProgress>,      // guards where the loader is
    idle: Mutex<Option<WorkerPool>>,      // guards workers that wait for the next epoch
}

/// Where a loader is.
#[derive(Default)]
pub(super) struct LoaderProgress {
    /// Where the next loop starts.
    pub(super) start: Position,
    /// Where the loop that was started last is.
    pub(super) next: Position,
    pub(super) record: Record,
}

/// What an epoch is made with.
pub(super) struct Started {
    pub(super) positions: Positions,
    pub(super) run: Run,
    pub(super) pool: Option<WorkerPool>, // none: the program makes its batches itself
}

impl Core {
    pub(super) fn new(data: Arc<dyn Data>, source: Arc<dyn Source>, order: Order) -> Opaque<'static, Self> {
        let recipe = Recipe { data, source, order, holder: Holder::named("loader") };
        let (identity, pinned) = (OnceLock::new(), OnceLock::new());
        let (progress, idle) = (Mutex::default(), Mutex::new(None));
        Opaque::new(Self { recipe, plan: Plan::default(), identity, pinned, progress, idle })
    }

    pub(super) fn source(&self) -> Arc<dyn Source> {
        self.recipe.source.clone()
    }

    /// For changes: workers that were started before are of no use after them.
    pub(super) fn plan_mut(&mut self) -> &mut Plan {
        self.idle = Mutex::new(None);
        &mut self.plan
    }

    /// See [`plan_mut`](Self::plan_mut).
    pub(super) fn recipe_mut(&mut self) -> &mut Recipe {
        self.idle = Mutex::new(None);
        &mut self.recipe
    }

    pub(super) fn set_source(&mut self, source: Arc<dyn Source>) {
        self.recipe_mut().source = source;
    }

    pub(super) fn set_batch_size(&mut self, batch_size: usize) {
        self.recipe_mut().order.set_batch_size(batch_size);
        self.reset_order();
    }

    pub(super) fn set_sampler(&mut self, sampler: Arc<dyn Sampler>) {
        let Order::Indexed(batches) = &mut self.recipe_mut().order else { return };
        *batches = batches.clone().with_sampler(sampler);
        self.reset_order();
    }

    /// The order is another. In other batches of shards, where the loader was means something else.
    pub(super) fn reset_order(&mut self) {
        self.identity = OnceLock::new();
        if self.recipe.order.sharded().is_some() {
            let epoch = self.progress().start.epoch;
            self.set_epoch(epoch);
        }
    }

    pub(super) fn set_budget(&mut self, budget: Budget) {
        self.plan_mut().budget = Some(budget);
    }

    pub(super) fn set_init(&mut self, init: Arc<Init>) {
        self.plan_mut().init = Some(init);
    }

    pub(super) fn set_pin_budget(&mut self, budget: Budget) {
        self.plan_mut().pin_budget = Some(budget);
        self.pinned = OnceLock::new();
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, LoaderProgress> {
        lock(&self.progress)
    }

    pub(super) fn set_epoch(&self, epoch: u64) {
        self.go_to(Position::start_of(epoch));
    }

    /// The next loop starts there.
    pub(super) fn go_to(&self, position: Position) {
        let mut progress = self.progress();
        (progress.start, progress.next) = (position, position);
    }

    /// What the order and the dataset are called.
    pub(super) fn identity(&self, order: impl FnOnce() -> String) -> (String, String) {
        self.identity.get_or_init(|| (in_a_line(&order()), in_a_line(&self.recipe.data.identity()))).clone()
    }

    pub(super) fn report(&self) -> LoaderReport {
        LoaderReport { workers: self.n_workers(), ..self.progress().record.report }
    }

    pub(super) fn skipped(&self) -> Vec<Skipped> {
        self.progress().record.skipped.iter().cloned().collect()
    }

    /// How many threads make batches: one at most for each shard.
    fn n_workers(&self) -> usize {
        let n_workers = self.plan.n_workers;
        self.recipe.order.sharded().map_or(n_workers, |sharded| n_workers.min(sharded.n_read(self.recipe.data.len())))
    }

    /// The batches of an epoch from `start` on.
    ///
    /// # Errors
    /// What keeps the loop from beginning.
    pub(super) fn positions(&self, start: Position) -> Result<Positions> {
        self.plan.check()?;
        self.recipe.order.positions(start, self.recipe.data.len())
    }

    /// Starts an epoch.
    pub(super) fn start(&self, start: Position) -> Result<Started> {
        let positions = self.positions(start)?;
        if positions.n_turns() > 1 {
            self.check_is_reached(start, positions.n_turns())?; // of one shard, the first batch says so too
        }
        let run = self.recipe.run(start, positions.n_turns());
        let n_workers = self.n_workers();
        if n_workers == 0 {
            return Ok(Started { positions, run, pool: None });
        }
        let pool = match lock(&self.idle).take() {
            Some(pool) => pool,
            None => WorkerPool::new(self.recipe.clone(), self.plan.clone(), n_workers, self.pinned_pool())?,
        };
        Ok(Started { positions, run, pool: Some(pool) })
    }

    /// An epoch is over.
    pub(super) fn put_away(&self, pool: WorkerPool) {
        if self.plan.persistent {
            pool.stop();
            *lock(&self.idle) = Some(pool);
        }
    }

    /// That a batch came before a position of shards, unless it is the start: else the state is not of these shards.
    pub(super) fn check_is_reached(&self, position: Position, n_turns: usize) -> Result<()> {
        let (Some(sharded), Some(before)) = (self.recipe.order.sharded(), position.before(n_turns)) else {
            return Ok(());
        };
        let (shard, sample) = (sharded.shard_at(before.turn), sharded.first_sample(before));
        let Position { epoch, round, turn } = position;
        match self.recipe.data.len_without(shard, epoch, sample) {
            Some(n_samples) => Err(Error::BehindStream { epoch, round, turn, shard, sample, n_samples }),
            None => Ok(()),
        }
    }

    /// Where batches are made that are to be page-locked.
    pub(super) fn pinned_pool(&self) -> Option<PinnedPool> {
        self.plan.pins.then(|| self.pinned.get_or_init(|| pinned_pool(self.plan.pin_budget.as_ref())).clone())
    }
}
