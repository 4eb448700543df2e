//! [`WorkerPool`]: threads that make the batches of an epoch ahead of the program, which gets them in order.
//!
//! ```text
//! positions ──> reorder buffer: at most `window` entries, in the order of positions ──> program
//!
//!     Pending ──take──> Making by a worker ──finish──> Ready ──next──> the program
//!        ^                      │                        │
//!        └──────── waits_on: the first entry has no page-locked memory
//! ```
//!
//! One lock guards the buffer; batches are made and dropped without it. The program waits on the condition variable `ready`
//! until the first entry is ready. Workers wait on `work` until an entry is pending, or the buffer has space for one
//! more. Any worker can make any batch of a dataset with indices. A shard belongs to worker `turn % n_workers`, which
//! makes its batches one after another.
//!
//! With a `prefetch_budget`, workers reserve memory in the order of positions, one at a time. So the batch that the program
//! waits for has memory, or is the next to get some. There is one exception: if that batch was dropped to be made again,
//! later batches may have memory. Then they are dropped too. So waiting always ends.
//!
//! Page-locked memory can run out in the middle of a batch. Then its worker waits until the program drops a batch. If the
//! program itself waits for the first entry, that entry gets memory from the others: finished batches are dropped, the last
//! first, and made again later; workers in the middle of later batches give up. Batches of shards cannot be made again.
//! So a worker of a shard gives up after the time-out, and its batch is an error.
//!
//! Invariant: an entry that is `Making` has exactly one worker, and a worker has at most one entry. A worker that finishes a
//! batch drops it if it has no entry any more: the entry was removed, or became pending again.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagelock_memory::{Budget, Reservation, net_allocated_by_thread};
use pagelock_tensor::profiler::{self, Category};

use super::maker::{Maker, Readers, Recipe, SampleProgress};
use super::order::{Position, Positions};
use super::pinned::{PATIENCE, PinnedAllocator, PinnedPool, SLICE, could_fit};
use super::report::Outcome;
use super::source::AnyBatch;
use crate::panics::{drop_quietly, lock};
use crate::{Error, Result};

/// How long dropping the pool waits for workers. A worker that is still in the middle of a sample then ends on its own.
const GRACE: Duration = Duration::from_secs(5);

pub(super) struct WorkerPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>, // by worker
}

struct Shared {
    recipe: Recipe,
    n_workers: usize,
    memory: Option<PinnedPool>, // for batches that are to be page-locked
    state: Mutex<State>,
    ready: Condvar, // the program waits here until the first entry is ready, or a worker has ended
    work: Condvar,  // workers wait here until there is something to do
}

#[derive(Default)]
struct State {
    readers: Arc<Readers>,
    positions: Positions, // of batches that have no entry yet
    entries: VecDeque<Entry>,
    n_pending: usize,               // entries that are `Pending`
    program_waits: Option<Instant>, // since when the program has been waiting on `ready`
    n_idle: usize,                  // workers that wait on `work`
    /// A worker waits for the budget; no worker starts a later batch until it has memory.
    is_reserving: bool,
    /// The first entry has no page-locked memory: workers that wait for some give up their batches.
    is_starving: bool,
    /// The most that a batch has taken so far.
    batch_bytes: u64,
    /// Why a worker could not start.
    failure: Option<Error>,
    is_over: bool,
    n_running: usize,
    n_started: usize, // threads that have run `worker_init`; no batch is made before `n_workers` have
    n_jobs: usize,    // threads that hold memory of a batch, replaced ones included
    workers: Vec<AtWork>, // by worker
    spare: Vec<AnyBatch>, // empty, to be reused
    wait_for_program: Duration,
    wait_for_budget: Duration,
}

/// The thread that currently runs as a worker; threads that it replaced are not listed.
struct AtWork {
    progress: Arc<SampleProgress>,
    has_job: bool, // also if the job has no entry any more
}

struct Entry {
    position: Position,
    state: EntryState,
}

#[expect(clippy::large_enum_variant, reason = "a box would be an allocation per batch")]
enum EntryState {
    Pending,
    Making { worker: usize },
    Ready(Finished),
}

struct Finished {
    batch: AnyBatch,
    outcome: Outcome,
    reserved: Option<Reservation>, // held until the program takes the batch
}

struct Job {
    position: Position,
    readers: Arc<Readers>,
    batch: AnyBatch,
    reserved: Option<Result<Reservation>>, // with a `prefetch_budget`
}

/// A worker thread. A thread that takes too long is replaced by another with the same number.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) number: usize,
    pub(super) progress: Arc<SampleProgress>,
}

/// What the program gets: the outcome of a batch and the batch's position, or no position if the batch comes later.
pub(super) type PositionedOutcome = (Outcome, Option<Position>);

impl WorkerPool {
    pub(super) fn new(recipe: Recipe, n_workers: usize, memory: Option<PinnedPool>) -> Result<Self> {
        let (state, ready, work) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { recipe, n_workers, memory, state, ready, work });
        let mut pool = Self { shared, threads: Vec::with_capacity(n_workers) };
        for number in 0..n_workers {
            let thread = pool.shared.start(&mut lock(&pool.shared.state), number);
            pool.threads.push(thread?); // dropping the pool ends those that were started
        }
        Ok(pool)
    }

    pub(super) fn begin(&self, positions: Positions, readers: Readers) {
        let mut state = lock(&self.shared.state);
        debug_assert!(state.entries.is_empty(), "an epoch begins after the one before has ended");
        (state.positions, state.readers) = (positions, Arc::new(readers));
        self.shared.work.notify_all();
    }

    /// Puts batch `number`, the next of the epoch, into `batch`, whose memory is reused; `None` at the end.
    pub(super) fn next(&mut self, number: usize, batch: &mut AnyBatch) -> Option<PositionedOutcome> {
        let start = Instant::now();
        let shared = self.shared.clone();
        let mut state = lock(&shared.state);
        let (position, mut outcome) = loop {
            if let Some(error) = state.failure.take() {
                return Some((Outcome::failed(error), None));
            }
            let first = state.entries.pop_front_if(|first| matches!(first.state, EntryState::Ready(_)));
            if let Some(Entry { position, state: EntryState::Ready(finished) }) = first {
                shared.wake_after_pop(&state, finished.reserved);
                if matches!(finished.outcome.result, Ok(false)) {
                    state.spare.push(finished.batch);
                    continue;
                }
                state.spare.push(mem::replace(batch, finished.batch));
                break (position, finished.outcome);
            }
            if state.entries.is_empty() && state.positions.peek().is_none() {
                return None;
            }
            let left = shared.recipe.settings.timeout.unwrap_or(Duration::MAX).saturating_sub(start.elapsed());
            if left.is_zero() {
                return Some(self.give_up(state, number, start.elapsed()));
            }
            state.program_waits = Some(start);
            state = shared.ready.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.program_waits = None;
        };
        outcome.report.wait_for_program += mem::take(&mut state.wait_for_program);
        outcome.report.wait_for_budget += mem::take(&mut state.wait_for_budget);
        Some((outcome, Some(position)))
    }

    /// The error of a batch that took too long. In a dataset with indices, the epoch goes on without the batch, and
    /// a new worker replaces the worker that is stuck. A shard's batch comes later. Workers that have been stuck since
    /// an earlier epoch are replaced too.
    fn give_up(&mut self, mut state: MutexGuard<'_, State>, batch: usize, waited: Duration) -> PositionedOutcome {
        let share = self.shared.recipe.order.share();
        let Some(position) = state.entries.front().map(|entry| entry.position).or_else(|| state.positions.peek())
        else {
            unreachable!("the program waits for a batch")
        };
        let worker = match (share, state.entries.front()) {
            (Some(_), _) => Some(position.turn % self.shared.n_workers),
            (None, Some(Entry { state: EntryState::Making { worker }, .. })) => Some(*worker),
            _ => None,
        };
        let progress = worker.map(|worker| &state.workers[worker].progress);
        let (sample, first) = (progress.and_then(|at| at.sample()), progress.and_then(|at| at.first()));
        let shard = share.map(|share| share.shard_at(position.turn));
        let error = Error::Timeout { worker, batch, sample, first, shard, waited };
        let is_sharded = share.is_some();
        if !is_sharded {
            match state.entries.pop_front() {
                Some(entry) => state.n_pending -= usize::from(matches!(entry.state, EntryState::Pending)),
                None => drop(state.positions.next()), // no worker had started it
            }
            state.is_starving = false;
            self.shared.work.notify_all();
        }
        // Under the same lock as the removal, so that no worker can take another entry in between.
        let replaced = self.replace_stuck(&mut state);
        (Outcome::failed(replaced.err().unwrap_or(error)), (!is_sharded).then_some(position))
    }

    /// Replaces the workers whose jobs have no entry any more. The replaced threads end after their batches.
    fn replace_stuck(&mut self, state: &mut State) -> Result<()> {
        for number in 0..state.workers.len() {
            if state.workers[number].has_job && !state.entries.iter().any(|entry| entry.is_made_by(number)) {
                self.threads[number] = self.shared.start(state, number)?;
            }
        }
        Ok(())
    }

    /// Ends an epoch early. Batches that workers are making are dropped when they are finished.
    pub(super) fn stop(&self) {
        let mut state = lock(&self.shared.state);
        let (positions, readers) = (mem::take(&mut state.positions), mem::take(&mut state.readers));
        (state.n_pending, state.is_starving) = (0, false);
        let entries: Vec<_> = state.entries.drain(..).collect();
        self.shared.work.notify_all(); // workers that wait for memory no longer need it
        drop(state);
        drop((entries, positions, readers)); // without the lock
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        lock(&self.shared.state).is_over = true;
        self.stop();
        let state = lock(&self.shared.state);
        let waited = self.shared.ready.wait_timeout_while(state, GRACE, |state| state.n_running > 0);
        let all_ended = !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        for thread in self.threads.drain(..).filter(|thread| all_ended || thread.is_finished()) {
            let _ = thread.join(); // a worker's panics are caught where they happen
        }
    }
}

impl State {
    /// The index of the first pending entry that `may_make` allows, else of a new one; with `in_order`, none is skipped.
    fn pick(&mut self, window: usize, in_order: bool, may_make: impl Fn(Position) -> bool) -> Option<usize> {
        let mut index = if self.n_pending > 0 { 0 } else { self.entries.len() };
        loop {
            if index == self.entries.len() {
                let position = if index < window { self.positions.next()? } else { return None };
                self.entries.push_back(Entry { position, state: EntryState::Pending });
                self.n_pending += 1;
            }
            let Entry { position, state } = &self.entries[index];
            if matches!(state, EntryState::Pending) {
                if may_make(*position) {
                    return Some(index);
                }
                if in_order {
                    return None;
                }
            }
            index += 1;
        }
    }

    fn first_is_pending(&self) -> bool {
        matches!(self.entries.front(), Some(Entry { state: EntryState::Pending, .. }))
    }

    fn in_memory(&self) -> usize {
        self.entries.len() - self.n_pending
    }

    /// The index of the entry that a worker makes; `None` if its batch is no longer needed.
    fn index_of(&self, worker: &Worker) -> Option<usize> {
        let index = self.entries.iter().rposition(|entry| entry.is_made_by(worker.number)); // most are near the end
        index.filter(|_| self.is_at_work(worker))
    }

    /// Takes the last finished batch and makes its entry pending again. The first entry is never taken.
    fn unready_last(&mut self) -> Option<EntryState> {
        let is_ready = |entry: &&mut Entry| matches!(entry.state, EntryState::Ready(_));
        let last = self.entries.iter_mut().skip(1).rev().find(is_ready)?;
        self.n_pending += 1;
        Some(mem::replace(&mut last.state, EntryState::Pending))
    }

    /// Notes that a thread holds no memory of its job any more.
    fn end_job(&mut self, worker: &Worker) {
        self.n_jobs -= 1;
        if self.is_at_work(worker) {
            self.workers[worker.number].has_job = false;
        }
    }

    fn is_at_work(&self, worker: &Worker) -> bool {
        Arc::ptr_eq(&self.workers[worker.number].progress, &worker.progress)
    }
}

impl Entry {
    fn is_made_by(&self, worker: usize) -> bool {
        matches!(self.state, EntryState::Making { worker: number } if number == worker)
    }
}

impl Shared {
    /// Starts a worker, which replaces a worker with the same number. The caller holds the lock until the worker is
    /// listed, since its thread first checks that it is.
    fn start(self: &Arc<Self>, state: &mut State, number: usize) -> Result<JoinHandle<()>> {
        let (shared, worker) = (self.clone(), Worker { number, progress: Arc::default() });
        let at_work = AtWork { progress: worker.progress.clone(), has_job: false };
        let thread = thread::Builder::new().name(format!("loader {number}")).spawn(move || {
            let ended = Error::catch(Some(number), None, None, || shared.work(&worker));
            shared.end(&worker, ended);
        });
        let thread = thread.map_err(|source| {
            let problem = format!("{source}; use fewer workers, or raise the system's limit on threads");
            Error::Worker { worker: number, source: Error::other(problem).into() }
        })?;
        match state.workers.get_mut(number) {
            Some(replaced) => *replaced = at_work, // the pool does not wait for the replaced thread
            None => {
                state.workers.push(at_work);
                state.n_running += 1;
            }
        }
        Ok(thread)
    }

    fn work(self: &Arc<Self>, worker: &Worker) -> Result<()> {
        let (init, number) = (&self.recipe.settings.init, worker.number);
        let done = Error::catch(Some(number), None, None, || init.as_ref().map_or(Ok(()), |init| init(number)));
        done.map_err(|source| Error::Worker { worker: number, source: source.into() })?;
        lock(&self.state).n_started += 1;
        self.work.notify_all();
        let pinned = self.memory.clone().map(|memory| {
            let (shared, worker) = (self.clone(), worker.clone());
            PinnedAllocator::new(memory, self.recipe.settings.when_full, move |waited| shared.waits_on(&worker, waited))
        });
        let mut maker = Maker::new(Some(worker), pinned, self.recipe.settings.skips);
        while let Some(Job { position, readers, mut batch, reserved }) = self.take(worker) {
            let before = net_allocated_by_thread();
            let (reserved, refusal) = match reserved.transpose() {
                Ok(reserved) => (reserved, None),
                Err(refusal) => (None, Some(refusal)),
            };
            let making = profiler::span("DataLoader worker", Category::Loading);
            let result = self.recipe.make(&readers, position, refusal, &mut maker, &mut batch);
            drop(making);
            let batch_bytes = (net_allocated_by_thread() - before).max(1) as u64;
            let finished = Finished { batch, outcome: maker.outcome(result), reserved };
            drop_quietly(readers);
            if let Some(unwanted) = self.finish(worker, position, finished, batch_bytes) {
                drop_quietly(unwanted); // without the lock
                lock(&self.state).end_job(worker);
            }
        }
        Ok(())
    }

    fn end(&self, worker: &Worker, ended: Result<()>) {
        let mut state = lock(&self.state);
        if let Err(error) = ended {
            state.failure.get_or_insert(error);
        }
        state.n_running -= usize::from(state.is_at_work(worker));
        self.ready.notify_all();
    }

    /// Waits for the next batch to make, and for the memory for it; `None` if the worker is to end.
    fn take(&self, worker: &Worker) -> Option<Job> {
        let (mut state, mut reserved, mut n_yields) = (lock(&self.state), None, 0);
        loop {
            if state.is_over || !state.is_at_work(worker) {
                return None;
            }
            let Some(index) = self.pick(&mut state, worker.number) else {
                reserved = None;
                if state.is_reserving && n_yields < 8 {
                    drop(state);
                    thread::yield_now(); // most reservations take less time than falling asleep
                    (state, n_yields) = (lock(&self.state), n_yields + 1);
                    continue;
                }
                let (start, is_full) = (Instant::now(), state.positions.peek().is_some());
                state.n_idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.n_idle -= 1;
                if is_full {
                    state.wait_for_program += start.elapsed();
                }
                continue;
            };
            if let (Some(budget), None) = (&self.recipe.settings.budget, &reserved) {
                (state, reserved) = self.reserve(budget, state, worker);
                continue; // meanwhile the epoch may have ended, or the program may have given up on the batch
            }
            let position = state.entries[index].position;
            state.entries[index].state = EntryState::Making { worker: worker.number };
            state.n_pending -= 1;
            (state.n_jobs, state.workers[worker.number].has_job) = (state.n_jobs + 1, true);
            let (readers, batch) = (state.readers.clone(), state.spare.pop().unwrap_or_default());
            return Some(Job { position, readers, batch, reserved });
        }
    }

    fn pick(&self, state: &mut State, worker: usize) -> Option<usize> {
        if state.is_reserving || state.is_starving || state.n_started < self.n_workers {
            return None;
        }
        // With a budget, the first batch is made alone: it shows how much memory a batch takes.
        let has_budget = self.recipe.settings.budget.is_some();
        if has_budget && state.batch_bytes == 0 && state.in_memory() > 0 {
            return None;
        }
        let is_sharded = self.recipe.order.share().is_some();
        let may_make = |position: Position| !is_sharded || position.turn % self.n_workers == worker;
        state.pick(self.window(), has_budget, may_make)
    }

    fn window(&self) -> usize {
        self.n_workers.saturating_mul(self.recipe.settings.prefetch_factor()).max(1)
    }

    /// Reserves the memory of the largest batch so far. Meanwhile, no worker starts a batch. A refused request is repeated
    /// after each batch that the program takes, and every 10 ms. It trims pools at first, and while the program waits.
    fn reserve<'a>(
        &'a self,
        budget: &Budget,
        mut state: MutexGuard<'a, State>,
        worker: &Worker,
    ) -> (MutexGuard<'a, State>, Option<Result<Reservation>>) {
        let (start, mut trims) = (Instant::now(), true);
        state.is_reserving = true;
        let reserved = loop {
            let (is_held, len_bytes) = (state.in_memory() > 0 || state.n_jobs > 0, state.batch_bytes);
            drop(state); // the budget's pools run the program's code
            let reserved = Error::catch(Some(worker.number), None, None, || {
                Ok(if trims || !is_held { budget.reserve(len_bytes) } else { budget.try_reserve(len_bytes) }?)
            });
            state = lock(&self.state);
            trims = state.program_waits.is_some();
            let waits = matches!(&reserved, Err(Error::Memory(refusal)) if is_held && could_fit(refusal));
            if !waits || state.is_over || !state.is_at_work(worker) {
                break reserved;
            }
            if let Some(later) = state.first_is_pending().then(|| state.unready_last()).flatten() {
                drop(state);
                drop_quietly(later); // without the lock
                state = lock(&self.state);
                continue;
            }
            state.n_idle += 1;
            state = self.work.wait_timeout(state, SLICE).unwrap_or_else(PoisonError::into_inner).0;
            state.n_idle -= 1;
        };
        state.is_reserving = false;
        state.wait_for_budget += start.elapsed();
        if state.n_idle > 0 {
            self.work.notify_all();
        }
        (state, Some(reserved))
    }

    /// Puts a finished batch into its entry; returns the batch if it is no longer needed.
    fn finish(&self, worker: &Worker, position: Position, finished: Finished, batch_bytes: u64) -> Option<Finished> {
        worker.progress.begin(None);
        let mut state = lock(&self.state);
        if state.batch_bytes == 0 {
            self.work.notify_all(); // workers waited for the size of the first batch
        }
        state.batch_bytes = state.batch_bytes.max(batch_bytes);
        let Some(index) = state.index_of(worker) else { return Some(finished) };
        if matches!(finished.outcome.result, Ok(false)) {
            state.positions.end_shard(position.turn);
        }
        state.entries[index].state = EntryState::Ready(finished);
        state.end_job(worker);
        if index == 0 && mem::take(&mut state.is_starving) {
            self.work.notify_all(); // workers waited for this entry
        }
        if index == 0 && state.program_waits.is_some() {
            self.ready.notify_one();
        }
        None
    }

    /// Wakes workers after an entry was removed, usually not before the buffer is half empty: waking a worker takes as
    /// long as making a small batch.
    fn wake_after_pop(&self, state: &State, reserved: Option<Reservation>) {
        drop(reserved); // a worker may wait for this memory
        let is_half_empty = state.entries.len() <= self.window() / 2 || state.n_pending > 0;
        match state.n_idle {
            0 => {}
            _ if state.is_reserving || self.recipe.order.share().is_some() => self.work.notify_all(),
            _ if is_half_empty => self.work.notify_one(),
            _ => {}
        }
    }

    /// Whether a worker that was refused page-locked memory keeps waiting for it.
    fn waits_on(&self, worker: &Worker, waited: Duration) -> bool {
        let mut state = lock(&self.state);
        let Some(index) = state.index_of(worker) else { return false };
        if self.recipe.order.share().is_some() {
            return waited < self.recipe.settings.timeout.unwrap_or(PATIENCE);
        }
        let Some(since) = state.program_waits else { return true }; // the program will drop a batch
        if index > 0 {
            let gives_up = state.is_starving || state.is_reserving && state.first_is_pending();
            if gives_up {
                state.entries[index].state = EntryState::Pending;
                state.n_pending += 1;
            }
            return !gives_up;
        }
        state.is_starving = true; // otherwise other workers would take the memory that is freed
        if let Some(later) = state.unready_last() {
            drop(state);
            drop_quietly(later); // without the lock
            return true;
        }
        let is_alone = !state.entries.iter().skip(1).any(|entry| matches!(entry.state, EntryState::Making { .. }));
        !is_alone || self.recipe.settings.timeout.is_some() || since.elapsed() < PATIENCE
    }
}
