//! [`Core`]: a loader without the type of its batches, so that its functions are compiled once, here.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use pagelock_memory::Holder;

use super::maker::Recipe;
use super::order::{Order, OrderKind, Position, Positions};
use super::pinned::{PinnedPool, pinned_pool};
use super::pool::WorkerPool;
use super::report::{LoaderReport, Outcome, Skipped};
use super::settings::Settings;
use super::source::{BatchSource, Step};
use crate::identity::{Names, one_line};
use crate::opaque::Opaque;
use crate::panics::lock;
use crate::state::LoaderState;
use crate::{Error, Result};

pub(super) struct Core {
    pub(super) recipe: Recipe,
    identity: Names,                 // of the order and the dataset, in states
    pinned: OnceLock<PinnedPool>,    // memory for page-locked batches
    progress: Mutex<Progress>,       // guards the position and the report
    idle: Mutex<Option<WorkerPool>>, // guards workers between two epochs
}

/// The position of a loader, and what it has done so far.
#[derive(Default)]
pub(super) struct Progress {
    /// The position at which the next loop starts.
    pub(super) start: Position,
    /// The position of the loop that was started last.
    pub(super) next: Position,
    pub(super) report: LoaderReport,
    pub(super) skipped: VecDeque<Skipped>,
}

const KEPT_SKIPPED: usize = 1_000;

impl Progress {
    pub(super) fn add(&mut self, outcome: &mut Outcome) {
        self.report.add(outcome);
        self.skipped.extend(outcome.skipped.drain(..));
        let surplus = self.skipped.len().saturating_sub(KEPT_SKIPPED);
        self.skipped.drain(..surplus);
    }
}

impl Core {
    pub(super) fn new(source: Arc<dyn BatchSource>, kind: OrderKind) -> Opaque<'static, Self> {
        let order = Order { batch_size: 1, drop_last: false, kind };
        let (settings, holder) = (Settings::default(), Holder::named("loader"));
        let recipe = Recipe { source, steps: Vec::new(), n_pinned_steps: 0, order, settings, holder };
        let (identity, pinned) = (Names::default(), OnceLock::new());
        let (progress, idle) = (Mutex::default(), Mutex::new(None));
        Opaque::new(Self { recipe, identity, pinned, progress, idle })
    }

    pub(super) fn add_step(&mut self, step: Arc<Step>) {
        self.recipe_mut().steps.push(step);
    }

    /// The recipe, to be changed. Drops the workers, the page-locked memory and the identity that were made from it
    /// before.
    pub(super) fn recipe_mut(&mut self) -> &mut Recipe {
        (self.idle, self.identity, self.pinned) = (Mutex::new(None), Names::default(), OnceLock::new());
        &mut self.recipe
    }

    pub(super) fn set_order(&mut self, kind: OrderKind) {
        self.recipe_mut().order.kind = kind;
        self.reset_position();
    }

    /// Restarts the epoch of a stream: with other batches, a position within the epoch no longer means the same
    /// samples.
    pub(super) fn reset_position(&mut self) {
        if self.recipe.order.share().is_some() {
            let epoch = self.progress().start.epoch;
            self.go_to(Position::start_of(epoch));
        }
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }

    pub(super) fn go_to(&self, position: Position) {
        let mut progress = self.progress();
        (progress.start, progress.next) = (position, position);
    }

    pub(super) fn report(&self) -> LoaderReport {
        LoaderReport { workers: self.n_workers(), ..self.progress().report }
    }

    /// How many workers make batches: at most one for each shard.
    fn n_workers(&self) -> usize {
        let Recipe { settings: Settings { n_workers, .. }, source, order, .. } = &self.recipe;
        order.share().map_or(*n_workers, |share| share.n_read(source.len()).min(*n_workers))
    }

    /// The batches of an epoch from `start` on.
    ///
    /// # Errors
    /// The reason why the loop cannot begin.
    pub(super) fn positions(&self, start: Position) -> Result<Positions> {
        self.recipe.settings.check()?;
        self.recipe.order.positions(start, self.recipe.source.len())
    }

    /// How many batches an epoch of a dataset with indices has.
    pub(super) fn n_batches(&self) -> Result<usize> {
        let positions = self.positions(Position::default())?;
        Ok(positions.n_left().unwrap_or_else(|| unreachable!("a dataset with indices has a length")))
    }

    pub(super) fn state(&self) -> LoaderState {
        let (Order { batch_size, drop_last, kind }, n) = (&self.recipe.order, self.recipe.source.len());
        let Position { epoch, round: batch, turn, seed } = self.progress().next;
        let names = || {
            let order = match kind {
                OrderKind::Sampler(sampler) => self.recipe.order.batches(sampler).order(n),
                OrderKind::Shards(share) if share.world_size == 1 => "all".to_owned(),
                OrderKind::Shards(share) => format!("those of rank {} of {}", share.rank, share.world_size),
            };
            (one_line(&order), one_line(&self.recipe.source.identity()))
        };
        let (order, dataset) = self.identity.get_or(names);
        let (turn, len) = self.recipe.order.share().map_or((None, n), |share| (Some(turn), share.n_read(n)));
        LoaderState { epoch, batch, turn, seed, len, batch_size: *batch_size, drop_last: *drop_last, order, dataset }
    }

    pub(super) fn resume(&self, state: LoaderState) -> Result<()> {
        state.check_is_of(&self.state())?;
        let turn = state.turn.unwrap_or(0);
        let position = Position { epoch: state.epoch, round: state.batch, turn, seed: state.seed };
        if self.recipe.order.share().is_none() {
            let n_batches = self.n_batches()?;
            if state.batch >= n_batches as u64 {
                return Err(Error::State(format!(
                    "cannot resume from {}: an epoch has {n_batches} batches, counted from 0; \
                     begin an epoch with set_epoch",
                    state.position()
                )));
            }
        }
        self.go_to(position);
        Ok(())
    }

    /// Refuses a position of a stream, other than the start, if no batch comes before it: it belongs to other shards.
    pub(super) fn check_is_reached(&self, position: Position, n_turns: usize) -> Result<()> {
        let (Some(share), Some(before)) = (self.recipe.order.share(), position.before(n_turns)) else {
            return Ok(());
        };
        let (shard, sample) = (share.shard_at(before.turn), self.recipe.order.first_sample(before));
        let Some(n_samples) = self.recipe.source.len_without(shard, position.epoch, sample) else { return Ok(()) };
        let Position { epoch, round, turn, .. } = position;
        Err(Error::State(format!(
            "cannot resume from epoch {epoch}, round {round}, turn {turn}: that is past the end of shard {shard}, \
             which has {n_samples} samples and none at {sample}; resume with the dataset that the state was saved \
             with, or begin an epoch with set_epoch"
        )))
    }

    /// The workers of an epoch; `None` if the program makes its batches itself.
    pub(super) fn workers(&self) -> Result<Option<WorkerPool>> {
        let (n_workers, idle) = (self.n_workers(), lock(&self.idle).take());
        match idle {
            None if n_workers > 0 => WorkerPool::new(self.recipe.clone(), n_workers, self.pinned_pool()).map(Some),
            idle => Ok(idle),
        }
    }

    /// Keeps the workers of a finished epoch for the next one, if they are persistent.
    pub(super) fn keep_workers(&self, pool: WorkerPool) {
        if self.recipe.settings.persistent {
            pool.stop();
            let _earlier = lock(&self.idle).replace(pool); // dropped without the lock
        }
    }

    pub(super) fn makes_pinned(&self) -> bool {
        self.recipe.n_pinned_steps > 0
    }

    /// The memory for page-locked batches; `None` if no batches are page-locked.
    pub(super) fn pinned_pool(&self) -> Option<PinnedPool> {
        let pool = || pinned_pool(self.recipe.settings.pin_budget.as_ref());
        self.makes_pinned().then(|| self.pinned.get_or_init(pool).clone())
    }
}
