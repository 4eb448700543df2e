//! [`Core`]: a loader, whatever the type of its batches. So its functions are compiled once, here.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use pagelock_memory::Holder;

use super::maker::{Readers, Recipe};
use super::opaque::Opaque;
use super::order::{Order, OrderKind, Position, Positions};
use super::pinned::{PinnedPool, pinned_pool};
use super::pool::WorkerPool;
use super::report::{LoaderReport, Record};
use super::settings::Settings;
use super::source::{Data, Source};
use crate::identity::in_a_line;
use crate::panics::lock;
use crate::state::LoaderState;
use crate::{Error, Result};

/// See the head of the file.
pub(super) struct Core {
    pub(super) recipe: Recipe,
    pub(super) settings: Settings,
    identity: OnceLock<(String, String)>, // the order and the dataset, as states name them
    pinned: OnceLock<PinnedPool>,         // where batches are made that are to be page-locked
    progress: Mutex<Progress>,            // guards where the loader is
    idle: Mutex<Option<WorkerPool>>,      // guards workers that wait for the next epoch
}

/// Where a loader is.
#[derive(Default)]
pub(super) struct Progress {
    /// Where the next loop starts.
    pub(super) start: Position,
    /// Where the loop that was started last is.
    pub(super) next: Position,
    pub(super) record: Record,
}

impl Core {
    pub(super) fn new(data: Arc<dyn Data>, source: Arc<dyn Source>, order: OrderKind) -> Opaque<'static, Self> {
        let recipe = Recipe { data, source, order: Order::new(order), holder: Holder::named("loader") };
        let (identity, pinned) = (OnceLock::new(), OnceLock::new());
        let (progress, idle) = (Mutex::default(), Mutex::new(None));
        Opaque::new(Self { recipe, settings: Settings::default(), identity, pinned, progress, idle })
    }

    /// To change settings. Drops the workers and the memory that earlier settings made.
    pub(super) fn settings_mut(&mut self) -> &mut Settings {
        (self.idle, self.pinned) = (Mutex::new(None), OnceLock::new());
        &mut self.settings
    }

    /// See [`settings_mut`](Self::settings_mut).
    pub(super) fn recipe_mut(&mut self) -> &mut Recipe {
        (self.idle, self.identity) = (Mutex::new(None), OnceLock::new());
        &mut self.recipe
    }

    pub(super) fn set_order(&mut self, kind: OrderKind) {
        self.recipe_mut().order.kind = kind;
        self.reset_position();
    }

    /// With other batches of shards, the position in the epoch means something else: the epoch starts anew.
    pub(super) fn reset_position(&mut self) {
        if self.recipe.order.share().is_some() {
            let epoch = self.progress().start.epoch;
            self.go_to(Position::start_of(epoch));
        }
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }

    /// The next loop starts there.
    pub(super) fn go_to(&self, position: Position) {
        let mut progress = self.progress();
        (progress.start, progress.next) = (position, position);
    }

    pub(super) fn report(&self) -> LoaderReport {
        LoaderReport { workers: self.n_workers(), ..self.progress().record.report }
    }

    /// How many threads make batches: one at most for each shard.
    fn n_workers(&self) -> usize {
        let n_workers = self.settings.n_workers;
        self.recipe.order.share().map_or(n_workers, |share| n_workers.min(share.n_read(self.recipe.data.len())))
    }

    /// The batches of an epoch from `start` on.
    ///
    /// # Errors
    /// What keeps the loop from beginning.
    pub(super) fn positions(&self, start: Position) -> Result<Positions> {
        self.settings.check()?;
        self.recipe.order.positions(start, self.recipe.data.len())
    }

    /// How many batches an epoch of a dataset with indices has.
    pub(super) fn n_batches(&self) -> Result<usize> {
        let positions = self.positions(Position::default())?;
        Ok(positions.n_left().unwrap_or_else(|| unreachable!("a dataset with indices has a length")))
    }

    pub(super) fn state(&self) -> LoaderState {
        let (Order { batch_size, drop_last, kind }, n) = (&self.recipe.order, self.recipe.data.len());
        let Position { epoch, round: batch, turn } = self.progress().next;
        let names = || {
            let order = match kind {
                OrderKind::Sampler(sampler) => self.recipe.order.batches(sampler).order(n),
                OrderKind::Shards(share) if share.world_size == 1 => "all".to_owned(),
                OrderKind::Shards(share) => format!("those of rank {} of {}", share.rank, share.world_size),
            };
            (in_a_line(&order), in_a_line(&self.recipe.data.identity()))
        };
        let (order, dataset) = self.identity.get_or_init(names).clone();
        let (turn, len) = self.recipe.order.share().map_or((None, n), |share| (Some(turn), share.n_read(n)));
        LoaderState { epoch, batch, turn, len, batch_size: *batch_size, drop_last: *drop_last, order, dataset }
    }

    pub(super) fn resume(&self, state: LoaderState) -> Result<()> {
        state.check_is_of(&self.state())?;
        let position = Position { epoch: state.epoch, round: state.batch, turn: state.turn.unwrap_or(0) };
        if self.recipe.order.share().is_none() {
            let n_batches = self.n_batches()?;
            if state.batch >= n_batches as u64 {
                return Err(Error::State(format!(
                    "cannot go on from {}: an epoch has {n_batches} batches, counted from 0; begin an epoch with set_epoch",
                    state.position()
                )));
            }
        }
        self.go_to(position);
        Ok(())
    }

    /// Refuses a position of shards before which no batch came, unless it is the start: it is of other shards.
    pub(super) fn check_is_reached(&self, position: Position, n_turns: usize) -> Result<()> {
        let (Some(share), Some(before)) = (self.recipe.order.share(), position.before(n_turns)) else {
            return Ok(());
        };
        let (shard, sample) = (share.shard_at(before.turn), self.recipe.order.first_sample(before));
        let Some(n_samples) = self.recipe.data.len_without(shard, position.epoch, sample) else { return Ok(()) };
        let Position { epoch, round, turn } = position;
        Err(Error::State(format!(
            "cannot go on from epoch {epoch}, round {round}, turn {turn}: that is behind the end of shard {shard}, which has \
             {n_samples} samples and none at {sample}; resume with the dataset that the state is of, or begin an epoch with \
             set_epoch"
        )))
    }

    /// Starts an epoch: its batches, the readers of its shards, and the workers; none if the program makes its batches itself.
    pub(super) fn start(&self, start: Position) -> Result<(Positions, Readers, Option<WorkerPool>)> {
        let positions = self.positions(start)?;
        if positions.n_turns() > 1 {
            self.check_is_reached(start, positions.n_turns())?; // of one shard, the first batch says so too
        }
        let readers = self.recipe.readers(start, positions.n_turns());
        let n_workers = self.n_workers();
        let idle = lock(&self.idle).take();
        let pool = match idle {
            None if n_workers > 0 => {
                Some(WorkerPool::new(self.recipe.clone(), self.settings.clone(), n_workers, self.pinned_pool())?)
            }
            idle => idle,
        };
        Ok((positions, readers, pool))
    }

    /// An epoch is over.
    pub(super) fn put_away(&self, pool: WorkerPool) {
        if self.settings.persistent {
            pool.stop();
            *lock(&self.idle) = Some(pool);
        }
    }

    /// Where batches are made that are to be page-locked.
    pub(super) fn pinned_pool(&self) -> Option<PinnedPool> {
        let pool = || pinned_pool(self.settings.pin_budget.as_ref());
        self.settings.pins.then(|| self.pinned.get_or_init(pool).clone())
    }
}
