//! [`Crew`]: threads that make the batches of an epoch ahead of the program, which gets them in order.
//!
//! What a worker does next is decided under one lock. Batches are taken up in order, so the one that the program waits
//! for is always the oldest that is being made; and only while the window has room, in batches and in bytes. They are
//! made, and dropped, without the lock.
//!
//! Page-locked memory can run out while batches are made, in the middle of one. Then workers wait for the program to give
//! some back; and when the program waits itself, the batch that it waits for comes first: finished ones that it does not
//! want yet are dropped, the last first, to be made again later, and workers at others give up what they have.
//!
//! Invariants: `places[i]` is batch `given + i`, and `taken == given + places.len()`. One that is `Making` has exactly one
//! worker. A batch that is finished after its round has ended, or after the program has given it up, is dropped.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagelock_memory::{Budget, Reservation, taken_by_thread};

use super::lock;
use super::report::LoaderReport;
use super::slots::{PATIENCE, Patience, PinnedSlots, SlotMemory, WhenFull};
use super::source::{At, Maker, Parcel, Recipe, Skipped, Times, Watch};
use crate::{Error, Result};

/// How a loader's workers are to be.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) n_workers: usize,
    pub(super) prefetch_factor: usize,
    pub(super) budget: Option<Budget>,
    pub(super) timeout: Option<Duration>,
    pub(super) persistent: bool,
    pub(super) init: Option<Arc<Init>>,
    pub(super) pin_budget: Option<Budget>,
    pub(super) when_full: WhenFull,
    pub(super) skips: bool,
}

/// What a batch that is given was like.
#[derive(Default)]
pub(super) struct Account {
    pub(super) report: LoaderReport,
    pub(super) skipped: Vec<Skipped>,
}

impl Account {
    pub(super) fn add(&mut self, times: Times, n_samples: usize, skipped: Vec<Skipped>, is_error: bool) {
        self.report.add(times, n_samples - skipped.len().min(n_samples), skipped.len(), is_error);
        self.skipped = skipped;
    }
}

/// What each worker does first; it is given its number.
pub(super) type Init = dyn Fn(usize) -> Result<()> + Send + Sync;

/// Does it.
pub(super) fn begin_work(init: Option<&Init>, worker: usize) -> Result<()> {
    let Some(init) = init else { return Ok(()) };
    let done = catch_unwind(AssertUnwindSafe(|| init(worker)));
    let result = done.unwrap_or_else(|panic| Err(Error::panicked(Some(worker), None, None, panic)));
    result.map_err(|source| Error::WorkerInit { worker, source: source.into() })
}

/// Memory for a batch, or that there is none though nothing else is ahead; none if it is to be waited for.
pub(super) fn ask(
    budget: &Budget,
    batch_bytes: u64,
    more_is_ahead: bool,
) -> Option<Result<Reservation, pagelock_memory::Error>> {
    let reserved = budget.reserve(batch_bytes);
    (reserved.is_ok() || !more_is_ahead).then_some(reserved)
}

/// How long the end of an epoch waits for workers in the middle of a sample before it leaves them to end alone.
pub(super) const GRACE: Duration = Duration::from_secs(5);

impl Default for Plan {
    fn default() -> Self {
        Self {
            n_workers: 0,
            prefetch_factor: 2,
            budget: None,
            timeout: None,
            persistent: false,
            init: None,
            pin_budget: None,
            when_full: WhenFull::default(),
            skips: false,
        }
    }
}

impl Plan {
    /// How many batches may be ahead of the program.
    fn window(&self) -> usize {
        self.n_workers.saturating_mul(self.prefetch_factor).max(1)
    }
}

/// See the head of the file.
pub(super) struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>, // one for each desk
}

struct Shared {
    recipe: Recipe,
    plan: Plan,
    memory: Option<SlotMemory>, // for batches that are to be page-locked
    queue: Mutex<Queue>,
    ready: Condvar, // the batch that the program waits for is there, or a worker has ended
    room: Condvar,  // there is something to do for a worker
}

struct Queue {
    round: u64, // counts the epochs that this crew made
    epoch: u64,
    end: usize,   // the number of batches
    given: usize, // to the program, or given up
    taken: usize, // by workers
    places: VecDeque<Place>,
    program_waits: Option<Instant>, // since when
    idle_workers: usize,
    /// A worker waits for the budget; nobody takes a later batch before it.
    short: bool,
    /// The batch that the program waits for has no memory: whoever waits for some gives up what he has.
    starving: bool,
    /// The most that a batch has taken so far.
    batch_bytes: u64,
    /// Why a worker could not start.
    failed: Option<Error>,
    /// Workers that ended though nobody told them to.
    died: Vec<usize>,
    over: bool,
    running: usize,  // workers at their desks
    starting: usize, // of these, not ready yet: nobody begins before all are
    desks: Vec<Arc<Desk>>,
    /// Room for batches, given back by the program.
    idle: Vec<Parcel>,
    wait_for_program: Duration,
    wait_for_budget: Duration,
}

/// A batch that was taken up, and not given yet.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation per batch")]
enum Place {
    Making,
    Ready(Made),
    /// Made, or begun, and dropped again for want of memory.
    Again,
}

/// What one worker is at.
#[derive(Default)]
struct Desk {
    at: At,
    job: Mutex<Option<Job>>, // guards what it makes
    gave_up: AtomicBool,     // Relaxed: it is set and asked by the worker alone
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Job {
    round: u64,
    epoch: u64,
    batch: usize,
}

struct Made {
    /// Where the batch is, if there is one.
    parcel: Parcel,
    batch: Result<()>,
    n_samples: usize,
    times: Times,
    skipped: Vec<Skipped>,
    reserved: Option<Reservation>, // until the program takes the batch
}

impl Crew {
    /// Starts the workers; they wait.
    pub(super) fn new(recipe: Recipe, plan: Plan, memory: Option<SlotMemory>) -> Result<Self> {
        let window = plan.window();
        let queue = Queue {
            round: 0,
            epoch: 0,
            end: 0,
            given: 0,
            taken: 0,
            places: VecDeque::with_capacity(window.min(1 << 16)),
            program_waits: None,
            idle_workers: 0,
            short: false,
            starving: false,
            batch_bytes: 0,
            failed: None,
            died: Vec::new(),
            over: false,
            running: 0,
            starting: 0,
            desks: Vec::new(),
            idle: Vec::new(),
            wait_for_program: Duration::ZERO,
            wait_for_budget: Duration::ZERO,
        };
        let n_workers = plan.n_workers;
        let (queue, ready, room) = (Mutex::new(queue), Condvar::new(), Condvar::new());
        let shared = Shared { recipe, plan, memory, queue, ready, room };
        let mut crew = Self { shared: Arc::new(shared), threads: Vec::with_capacity(n_workers) };
        for worker in 0..n_workers {
            let thread = crew.start(worker)?; // dropping the crew ends those that were started
            crew.threads.push(thread);
        }
        Ok(crew)
    }

    /// Starts a worker at a new desk.
    fn start(&self, worker: usize) -> Result<JoinHandle<()>> {
        let (shared, desk) = (self.shared.clone(), Arc::<Desk>::default());
        let mut queue = lock(&self.shared.queue); // until there is a thread: it begins by looking at its desk
        let started = thread::Builder::new().name(format!("loader {worker}")).spawn({
            let desk = desk.clone();
            move || {
                let _ends = Ends { shared: &shared, worker, desk: &desk };
                shared.work(worker, &desk);
            }
        });
        let thread = started.map_err(|source| Error::NoWorker { worker, source })?;
        (queue.running, queue.starting) = (queue.running + 1, queue.starting + 1);
        match queue.desks.get_mut(worker) {
            Some(place) => {
                *place = desk;
                queue.running -= 1; // nobody waits any more for who was there
            }
            None => queue.desks.push(desk),
        }
        Ok(thread)
    }

    /// Starts on batches `start..end` of an epoch.
    pub(super) fn begin(&self, epoch: u64, start: usize, end: usize) {
        let mut queue = lock(&self.shared.queue);
        debug_assert!(queue.places.is_empty(), "a round begins after the one before has ended");
        queue.round += 1;
        (queue.epoch, queue.given, queue.taken, queue.end) = (epoch, start, start, end);
        self.shared.room.notify_all();
    }

    /// Puts the next batch of the round, in order, into `parcel`; what was in there is room for another.
    pub(super) fn next(&mut self, account: &mut Account, parcel: &mut Option<Parcel>) -> Result<()> {
        let start = Instant::now();
        let mut queue = lock(&self.shared.queue);
        queue.idle.extend(parcel.take());
        let made = loop {
            if let Some(error) = queue.failed.take() {
                queue.given = queue.end;
                return Err(error);
            }
            if let Some(made) = queue.give() {
                break made;
            }
            if let Some(worker) = queue.died.pop() {
                drop(queue);
                self.threads[worker] = self.start(worker)?;
                queue = lock(&self.shared.queue);
                continue;
            }
            let waited = start.elapsed();
            let left = self.shared.plan.timeout.map(|timeout| timeout.saturating_sub(waited));
            if left == Some(Duration::ZERO) {
                let late = queue.give_up(waited);
                drop(queue);
                return Err(self.replace(late));
            }
            queue.program_waits = Some(start);
            queue = match left {
                Some(left) => self.shared.ready.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.shared.ready.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
            queue.program_waits = None;
        };
        let Made { parcel: made, batch, n_samples, times, skipped, reserved } = made;
        *parcel = Some(made);
        drop(reserved);
        if queue.short {
            self.shared.room.notify_all(); // one of them needs what was just given back
        } else if queue.idle_workers > 0 && queue.is_half_empty(self.shared.plan.window()) {
            self.shared.room.notify_one();
        }
        account.report.wait_for_program += std::mem::take(&mut queue.wait_for_program);
        account.report.wait_for_budget += std::mem::take(&mut queue.wait_for_budget);
        drop(queue);
        account.add(times, n_samples, skipped, batch.is_err());
        batch
    }

    /// Puts another worker in the place of one that is stuck, and says where that is.
    fn replace(&mut self, late: Late) -> Error {
        let Late { worker, batch, waited, sample, first } = late;
        if let Some(worker) = worker {
            match self.start(worker) {
                Ok(thread) => self.threads[worker] = thread, // the other ends when it can
                Err(error) => return error,
            }
        }
        Error::Timeout { worker, batch, sample, first, shard: None, waited }
    }

    /// Ends a round before its time; what is being made is dropped when it is finished.
    pub(super) fn stop(&self) {
        let mut queue = lock(&self.shared.queue);
        queue.round += 1;
        (queue.given, queue.taken, queue.end) = (0, 0, 0);
        queue.starving = false;
        let places: Vec<_> = queue.places.drain(..).collect();
        self.shared.room.notify_all(); // who waits for memory needs none any more
        drop(queue);
        drop(places); // without the lock
    }
}

/// A batch that took too long.
struct Late {
    worker: Option<usize>,
    batch: usize,
    sample: Option<usize>,
    first: Option<usize>,
    waited: Duration,
}

impl Queue {
    /// Gives up the batch that the program waits for.
    fn give_up(&mut self, waited: Duration) -> Late {
        let batch = self.given;
        let is_at = |desk: &Arc<Desk>| lock(&desk.job).is_some_and(|job| job.round == self.round && job.batch == batch);
        let worker = self.desks.iter().position(is_at);
        let at = worker.map(|worker| &self.desks[worker].at);
        let (sample, first) = (at.and_then(At::sample), at.and_then(At::first));
        if self.places.pop_front().is_none() {
            self.taken += 1; // nobody had taken it
        }
        (self.given, self.starving) = (self.given + 1, false);
        Late { worker, batch, waited, sample, first }
    }

    fn has_room(&self, window: usize) -> bool {
        !self.short && !self.starving && self.starting == 0 && self.has_batch(window)
    }

    fn has_batch(&self, window: usize) -> bool {
        (self.taken < self.end && self.places.len() < window) || self.again().is_some()
    }

    /// Whether to wake a worker that waits for room. Not for each batch: that takes as long as making a small one.
    fn is_half_empty(&self, window: usize) -> bool {
        self.places.len() <= window / 2 || self.again().is_some()
    }

    /// The first of the batches that are to be made again, counted from `given`.
    fn again(&self) -> Option<usize> {
        self.places.iter().position(|place| matches!(place, Place::Again))
    }

    /// How many batches are made or being made.
    fn in_memory(&self) -> usize {
        self.places.iter().filter(|place| !matches!(place, Place::Again)).count()
    }

    /// The next batch, if it is there.
    fn give(&mut self) -> Option<Made> {
        match self.places.pop_front()? {
            Place::Ready(made) => {
                self.given += 1;
                Some(made)
            }
            other => {
                self.places.push_front(other);
                None
            }
        }
    }

    /// The last finished batch behind the first, which is to be made again.
    fn take_back(&mut self) -> Option<Place> {
        let finished = |place: &&mut Place| matches!(place, Place::Ready(_));
        let last = self.places.iter_mut().skip(1).rev().find(finished)?;
        Some(std::mem::replace(last, Place::Again))
    }

    /// The place of a batch that somebody makes and somebody wants.
    fn place_of(&mut self, job: Job) -> Option<&mut Place> {
        let at = job.batch.checked_sub(self.given).filter(|_| job.round == self.round)?;
        self.places.get_mut(at).filter(|place| matches!(place, Place::Making))
    }

    /// Gives a finished batch its place, or back if nobody wants it any more.
    fn put(&mut self, job: Job, made: Made) -> Option<Made> {
        match self.place_of(job) {
            Some(place) => {
                *place = Place::Ready(made);
                None
            }
            None => Some(made),
        }
    }
}

impl Shared {
    /// What a worker does, from its first day to its last.
    fn work(self: &Arc<Self>, worker: usize, desk: &Arc<Desk>) {
        if let Err(error) = begin_work(self.plan.init.as_deref(), worker) {
            let mut queue = lock(&self.queue);
            queue.failed.get_or_insert(error);
            return self.ready.notify_one();
        }
        lock(&self.queue).starting -= 1;
        self.room.notify_all();
        let turn = || Turn { shared: self.clone(), worker, desk: desk.clone() };
        let slots = self.memory.clone().map(|memory| PinnedSlots::new(memory, self.plan.when_full, turn()));
        let mut indices = Vec::new();
        let maker = Maker { worker: Some(worker), skips: self.plan.skips };
        while let Some((job, reserved)) = self.take(worker, desk) {
            let before = taken_by_thread();
            let mut watch = Watch::new(&desk.at, slots.as_ref(), maker);
            let (reserved, refusal) = match reserved {
                Ok(reserved) => (reserved, None),
                Err(refused) => (None, Some(Error::Memory(refused))),
            };
            let mut parcel = lock(&self.queue).idle.pop().unwrap_or_else(|| self.recipe.source.parcel());
            let batch = self.recipe.make((job.epoch, job.batch), &mut indices, &mut watch, refusal, &mut parcel);
            let batch_bytes = (taken_by_thread() - before).max(1) as u64;
            let Watch { times, skipped, .. } = watch;
            let made = Made { parcel, batch, n_samples: indices.len(), times, skipped, reserved };
            drop(self.finish(desk, job, made, batch_bytes)); // without the lock
        }
    }

    /// Puts away what was made; returns what nobody wants.
    fn finish(&self, desk: &Desk, job: Job, made: Made, batch_bytes: u64) -> Option<Made> {
        desk.at.begin(None);
        let mut queue = lock(&self.queue);
        *lock(&desk.job) = None;
        if desk.gave_up.swap(false, Relaxed) {
            queue.place_of(job).into_iter().for_each(|place| *place = Place::Again);
            self.room.notify_all();
            return Some(made);
        }
        if queue.batch_bytes == 0 {
            self.room.notify_all(); // the others waited for that
        }
        queue.batch_bytes = queue.batch_bytes.max(batch_bytes);
        let unwanted = queue.put(job, made);
        if matches!(queue.places.front(), Some(Place::Ready(_))) {
            if std::mem::take(&mut queue.starving) {
                self.room.notify_all();
            }
            if queue.program_waits.is_some() {
                self.ready.notify_one();
            }
        }
        unwanted
    }

    /// The next batch to make, after waiting for one, and the memory for it; none if the worker is to end.
    fn take(&self, worker: usize, desk: &Arc<Desk>) -> Option<(Job, Reserved)> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.over || !Arc::ptr_eq(&queue.desks[worker], desk) {
                return None;
            }
            if queue.has_room(self.plan.window()) && self.knows_size(&queue) {
                break;
            }
            let start = Instant::now();
            let is_full = queue.taken < queue.end;
            queue.idle_workers += 1;
            queue = self.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle_workers -= 1;
            if is_full {
                queue.wait_for_program += start.elapsed();
            }
        }
        let batch = match queue.again() {
            Some(at) => {
                queue.places[at] = Place::Making;
                queue.given + at
            }
            None => {
                queue.places.push_back(Place::Making);
                queue.taken += 1;
                queue.taken - 1
            }
        };
        let job = Job { round: queue.round, epoch: queue.epoch, batch };
        *lock(&desk.job) = Some(job);
        let reserved = self.reserve(queue);
        Some((job, reserved))
    }

    /// With a budget, the first batch is made alone: it shows how much one takes.
    fn knows_size(&self, queue: &Queue) -> bool {
        self.plan.budget.is_none() || queue.batch_bytes > 0 || queue.places.is_empty()
    }

    /// Memory for a batch like those before. While this waits for it, nobody takes up a later batch.
    fn reserve(&self, mut queue: MutexGuard<'_, Queue>) -> Reserved {
        let Some(budget) = &self.plan.budget else { return Ok(None) };
        let (round, batch_bytes) = (queue.round, queue.batch_bytes);
        let start = Instant::now();
        queue.short = true;
        let reserved = loop {
            // Batches of this loader that the program will take give their memory back.
            match ask(budget, batch_bytes, queue.in_memory() > 1) {
                Some(Ok(reserved)) => break Ok(Some(reserved)),
                _ if queue.over || queue.round != round => break Ok(None), // nobody wants it
                Some(Err(refused)) => break Err(refused),
                None => {
                    queue.idle_workers += 1;
                    queue = self.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    queue.idle_workers -= 1;
                }
            }
        };
        queue.short = false;
        queue.wait_for_budget += start.elapsed();
        if queue.idle_workers > 0 {
            self.room.notify_one();
        }
        reserved
    }
}

/// A worker that waits for page-locked memory.
struct Turn {
    shared: Arc<Shared>,
    worker: usize,
    desk: Arc<Desk>,
}

impl Patience for Turn {
    fn goes_on(&self, _waited: Duration) -> bool {
        let mut queue = lock(&self.shared.queue);
        let Some(job) = *lock(&self.desk.job) else { return false };
        if !Arc::ptr_eq(&queue.desks[self.worker], &self.desk) || queue.place_of(job).is_none() {
            return false; // nobody wants it
        }
        let Some(since) = queue.program_waits else { return true }; // the program is going to give some back
        if job.batch > queue.given {
            self.desk.gave_up.store(queue.starving, Relaxed);
            return !queue.starving;
        }
        if let Some(later) = queue.take_back() {
            drop(queue);
            drop(later); // without the lock
            return true;
        }
        queue.starving = true;
        let alone = !queue.places.iter().skip(1).any(|place| matches!(place, Place::Making));
        !alone || self.shared.plan.timeout.is_some() || since.elapsed() < PATIENCE
    }
}

type Reserved = Result<Option<Reservation>, pagelock_memory::Error>;

impl Drop for Crew {
    fn drop(&mut self) {
        lock(&self.shared.queue).over = true;
        self.stop();
        let queue = lock(&self.shared.queue);
        let late = |queue: &mut Queue| queue.running > 0;
        let waited = self.shared.ready.wait_timeout_while(queue, GRACE, late).unwrap_or_else(PoisonError::into_inner);
        let all_ended = !waited.1.timed_out();
        drop(waited);
        for thread in self.threads.drain(..).filter(|thread| all_ended || thread.is_finished()) {
            let _ = thread.join(); // a worker's panics are caught where they happen
        }
    }
}

/// Says that a worker has ended, however it did.
struct Ends<'a> {
    shared: &'a Shared,
    worker: usize,
    desk: &'a Arc<Desk>,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        if Arc::ptr_eq(&queue.desks[self.worker], self.desk) {
            queue.running -= 1;
            if thread::panicking() && !queue.over {
                queue.died.push(self.worker); // what it was at was put away before: only dropping can panic
            }
        }
        self.shared.ready.notify_all();
    }
}
