//! [`Job`]: the host's part of one staged copy. [`Workers`]: the threads that help with it.
//!
//! ```text
//!   caller    publish(piece 0) publish(piece 1) …          publish(piece 15) …
//!   next           0   1   2   3   4  …                    the granule that is taken next
//!   threads        └───┴───┴───┘ each takes a granule, copies it, sets its bit in `done`
//!   caller    sends the bytes that are copied without a gap from a piece's start on
//! ```
//! A piece is published when it has a slot. Free threads, including the caller, take its granules in order; granules
//! are equal parts of at least 16 KiB. Threads only copy bytes; they never call a driver.
//!
//! Invariant: host memory and slots are touched only for granules that were taken and are not yet counted in
//! `finished`. Before a call releases host memory or slots, it closes its job, after which no granule is taken, and
//! waits until all granules that were taken are finished.
//!
//! A thread without work polls for half a millisecond, which is longer than the time between two pieces of a copy or
//! between two copies in a loop. Then it sleeps on a condition variable; waking it costs as much as copying 0.5 MB.

use std::{
    hint, io,
    os::unix::fs::FileExt,
    slice,
    sync::{
        Arc,
        atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    non_temporal::{self, Stores},
    plan::{Piece, Plan, Start},
};
use crate::sync::{Condvar, Mutex, lock};

pub(super) struct Job {
    direction: Direction,
    stores: Stores,
    plan: Plan,
    states: Box<[PieceState]>,         // of the plan's pieces
    next: PaddedCounter,               // the granule that is taken next
    ready: PaddedCounter,              // number of granules whose pieces have slots; Release after the slot is set
    finished: PaddedCounter,           // number of finished granules; Release after the copy
    failure: Mutex<Option<io::Error>>, // guards the first error, until the call takes it
}

struct PieceState {
    slot: AtomicPtr<u8>, // Relaxed: `ready` publishes it
    done: AtomicU64,     // one bit for each granule; Release after the copy
}

/// A counter on cache lines of its own, to avoid false sharing with others (processors fetch two lines at once).
#[repr(align(128))]
#[derive(Default)]
struct PaddedCounter(AtomicUsize);

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::copy) enum Direction {
    ToSlots,
    FromSlots,
}

const CLOSED: usize = usize::MAX / 2;

impl Job {
    pub(super) fn new(plan: Plan, direction: Direction, stores: Stores) -> Self {
        let state = |_: &Piece| PieceState { slot: AtomicPtr::default(), done: AtomicU64::new(0) };
        let states = plan.pieces.iter().map(state).collect();
        let [next, ready, finished] = [(); 3].map(|()| PaddedCounter::default());
        Self { direction, stores, plan, states, next, ready, finished, failure: Mutex::default() }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.plan.pieces
    }

    fn publish(&self, piece: usize, slot: *mut u8) {
        self.states[piece].slot.store(slot, Ordering::Relaxed);
        let granules = self.pieces()[piece].len_bytes.div_ceil(self.plan.granule_bytes);
        self.ready.0.store(self.pieces()[piece].first_granule + granules, Ordering::Release);
    }

    /// How many bytes from the piece's start on are copied without a gap.
    pub(super) fn copied_bytes(&self, piece: usize) -> usize {
        let granules = self.states[piece].done.load(Ordering::Acquire).trailing_ones() as usize;
        (granules * self.plan.granule_bytes).min(self.pieces()[piece].len_bytes)
    }

    pub(super) fn is_copied(&self, piece: usize) -> bool {
        self.copied_bytes(piece) == self.pieces()[piece].len_bytes
    }

    /// How many bytes from the start of the first piece on are copied or being copied.
    pub(super) fn taken_bytes(&self) -> usize {
        self.next.0.load(Ordering::Relaxed).saturating_mul(self.plan.granule_bytes)
    }

    /// Copies one granule; false if there is none to take.
    pub(super) fn work(&self) -> bool {
        let Some(granule) = self.take() else { return false };
        let at = self.pieces().partition_point(|piece| piece.first_granule <= granule) - 1;
        let local = granule - self.pieces()[at].first_granule;
        let copied = self.copy(at, local);
        non_temporal::finish(self.stores);
        match copied {
            Ok(()) => drop(self.states[at].done.fetch_or(1 << local, Ordering::Release)),
            Err(error) => drop(lock(&self.failure).get_or_insert(error)),
        }
        self.finished.0.fetch_add(1, Ordering::Release);
        true
    }

    /// The error of a file that could not be read, if any. The granule of that read never counts as done.
    pub(super) fn failure(&self) -> Option<io::Error> {
        if self.plan.files.is_empty() { None } else { lock(&self.failure).take() }
    }

    /// Stops threads from taking granules, and returns when all granules that were taken are finished.
    pub(super) fn close(&self) {
        let taken = self.next.0.swap(CLOSED, Ordering::AcqRel);
        let mut spins = 0;
        while taken < CLOSED && self.finished.0.load(Ordering::Acquire) < taken {
            pause(&mut spins);
        }
    }

    fn take(&self) -> Option<usize> {
        let ready = self.ready.0.load(Ordering::Acquire);
        let next = |next| if next < ready { Some(next + 1) } else { None };
        self.next.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()
    }

    fn copy(&self, piece: usize, granule: usize) -> io::Result<()> {
        let slot = self.states[piece].slot.load(Ordering::Relaxed); // `take` acquired `ready`
        let (plan, piece) = (&self.plan, &self.pieces()[piece]);
        let start = granule * plan.granule_bytes;
        let range = start..(start + plan.granule_bytes).min(piece.len_bytes);
        let runs = &plan.host_runs[piece.host_runs.clone()];
        let first = runs.partition_point(|run| run.range().end <= range.start);
        for run in runs[first..].iter().take_while(|run| run.range().start < range.end) {
            let part = run.within(&range);
            let (staged, len_bytes) = (slot.wrapping_add(part.start), part.len());
            match run.start.offset(part.start - run.range().start) {
                Start::Memory(host) => {
                    let (source, target) =
                        if self.direction == Direction::ToSlots { (host, staged) } else { (staged, host) };
                    // SAFETY: the ranges are inside the run and the slot, which the call keeps until all taken
                    // granules are finished (the invariant); only this thread has this granule; a slot and a caller's
                    // slice do not overlap.
                    unsafe { non_temporal::copy(self.stores, source.cast_const(), target, len_bytes) };
                }
                Start::File(file, at) => {
                    // SAFETY: the range is inside the slot, whose bytes are initialized, and which the call keeps
                    // until all taken granules are finished (the invariant); only this thread has this granule.
                    let target = unsafe { slice::from_raw_parts_mut(staged, len_bytes) };
                    plan.files[file as usize].read_exact_at(target, at)?;
                }
            }
        }
        Ok(())
    }
}

// SAFETY: the pointers of its runs are used only under the invariant, for memory that the call has borrowed, and each
// granule is used by one thread only.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

/// Waits a moment for another thread: spins at first, and yields the processor after many calls in a row.
pub(super) fn pause(spins: &mut u32) {
    *spins = spins.saturating_add(1);
    if *spins < 200 {
        hint::spin_loop();
    } else {
        thread::yield_now();
    }
}

/// See the head of the file. Dropping it ends the threads.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: usize,
}

struct Shared {
    state: Mutex<State>,  // guards the list of jobs
    changed: Condvar,     // with `state`: `version` has changed
    version: AtomicUsize, // changed while `state` is locked, but polled without the lock
    polls: bool,          // whether threads poll before they sleep: there are enough processors for all
}

#[derive(Default)]
struct State {
    jobs: Vec<Arc<Job>>,
    is_over: bool,
}

const SPIN: Duration = Duration::from_micros(100);
const POLL: Duration = Duration::from_micros(500); // polling in all; after `SPIN` the thread yields between polls
const FEW_BYTES: usize = 256 << 10; // up to this length waking threads takes longer than they save
const GRANULES_PER_TURN: usize = 4; // granules in a row before a thread goes to the next job, if there are several

impl Workers {
    /// Starts threads, or fewer if the system cannot create all of them.
    pub(super) fn start(name: &'static str, threads: usize) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let (state, changed, version) = (Mutex::default(), Condvar::new(), AtomicUsize::default());
        let shared = Arc::new(Shared { state, changed, version, polls: processors > threads });
        let start = |index: usize| {
            let shared = shared.clone();
            thread::Builder::new().name(format!("{name} {index}")).spawn(move || shared.run())
        };
        let threads = (0..threads).map(start).filter(Result::is_ok).count();
        Self { shared, threads }
    }

    /// Lets the workers help with a job, if it is long enough to wake them, until the returned guard is dropped.
    pub(super) fn run(&self, job: Job) -> RunningJob<'_> {
        let is_worth_it = job.plan.granules() * job.plan.granule_bytes > FEW_BYTES && self.threads > 0;
        let (job, workers) = (Arc::new(job), is_worth_it.then_some(self));
        if let Some(workers) = workers {
            lock(&workers.shared.state).jobs.push(job.clone());
        }
        RunningJob { workers, job }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared.state).is_over = true;
        self.shared.announce(); // the threads are not waited for: they hold nothing but `Shared`
    }
}

/// A job that workers help with. Dropping it closes the job.
pub(super) struct RunningJob<'a> {
    workers: Option<&'a Workers>,
    job: Arc<Job>,
}

impl RunningJob<'_> {
    pub(super) fn job(&self) -> &Job {
        &self.job
    }

    pub(super) fn publish(&self, piece: usize, slot: *mut u8) {
        self.job.publish(piece, slot);
        if let Some(workers) = self.workers {
            workers.shared.announce();
        }
    }
}

impl Drop for RunningJob<'_> {
    fn drop(&mut self) {
        if let Some(workers) = self.workers {
            lock(&workers.shared.state).jobs.retain(|job| !Arc::ptr_eq(job, &self.job));
        }
        self.job.close();
    }
}

impl Shared {
    fn announce(&self) {
        let state = lock(&self.state);
        self.version.fetch_add(1, Ordering::Release);
        drop(state);
        self.changed.notify_all();
    }

    fn run(&self) {
        for turn in 0_usize.. {
            let seen = self.version.load(Ordering::Acquire); // before looking, so that nothing is missed
            let jobs = lock(&self.state).jobs.clone();
            if !work_at(&jobs, turn) {
                drop(jobs);
                if self.is_over_after(seen) {
                    return;
                }
            }
        }
    }

    /// Waits until the version differs from `seen`. Returns whether the threads must end.
    fn is_over_after(&self, seen: usize) -> bool {
        let start = Instant::now();
        let has_changed = || self.version.load(Ordering::Acquire) != seen;
        while self.polls && start.elapsed() < POLL && !has_changed() {
            if start.elapsed() < SPIN { hint::spin_loop() } else { thread::yield_now() }
        }
        let mut state = lock(&self.state);
        while !has_changed() && !state.is_over {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        state.is_over
    }
}

/// Works on each job in turn, beginning with job `turn`; false if there was nothing to do.
fn work_at(jobs: &[Arc<Job>], turn: usize) -> bool {
    let max_granules = if jobs.len() == 1 { usize::MAX } else { GRANULES_PER_TURN };
    let mut worked = false;
    for at in 0..jobs.len() {
        let job = &jobs[turn.wrapping_add(at) % jobs.len()];
        worked |= (0..max_granules).take_while(|_| job.work()).count() > 0;
    }
    worked
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::driver::Address;

    fn memory(source: &[u8]) -> Start {
        Start::Memory(source.as_ptr().cast_mut())
    }

    fn job(plan: Plan, stores: Stores) -> Job {
        Job::new(plan, Direction::ToSlots, stores)
    }

    #[test]
    fn granules_cover_every_byte_of_every_run_once() {
        for stores in [Stores::Ordinary, Stores::NonTemporal] {
            let source: Vec<u8> = (0..=255).cycle().take(1_000).collect();
            let mut plan = Plan::new(640, 10);
            plan.add(0, memory(&source), Address(0), 700, false);
            plan.add(1, memory(&source[700..]), Address(10_000), 3, false);
            plan.add(2, memory(&source[703..]), Address(10_005), 97, true);
            plan.add(3, memory(&source[800..]), Address(10_110), 200, true);
            let job = job(plan, stores);
            let lens: Vec<_> = job.pieces().iter().map(|piece| (piece.len_bytes, piece.buffers.clone())).collect();
            assert_eq!(lens, [(640, 0..1), (566, 0..4)]);
            let on_device: Vec<_> = job.plan().on_device(&job.pieces()[1], 10..566).collect();
            assert_eq!(on_device, [(Address(650), 10..60), (Address(10_000), 256..566)]);
            let mut slots = [[7_u8; 640]; 2];
            slots.iter_mut().enumerate().for_each(|(piece, slot)| job.publish(piece, slot.as_mut_ptr()));

            while job.work() {}
            job.close();

            assert_eq!(slots[0], source[..640]);
            assert_eq!(slots[1][..60], source[640..700]);
            assert_eq!(slots[1][256..259], source[700..703]);
            assert_eq!(slots[1][259..261], [7, 7], "what is between runs is left alone");
            assert_eq!(slots[1][261..358], source[703..800]);
            assert_eq!(slots[1][366..566], source[800..1_000]);
            assert!(job.is_copied(1));
        }
    }

    #[test]
    fn nothing_is_taken_before_it_is_published_or_after_the_job_is_closed() {
        let (source, mut slot) = ([1_u8; 100], [0_u8; 100]);
        let mut plan = Plan::new(100, 10);
        plan.add(0, memory(&source), Address(0), 100, false);
        let job = job(plan, Stores::Ordinary);

        assert!(!job.work());
        job.publish(0, slot.as_mut_ptr());
        assert!(job.work());
        job.close();
        assert!(!job.work());
        assert_eq!(job.copied_bytes(0), 10);
    }

    #[test]
    fn sleeping_workers_wake_for_every_piece() {
        let workers = Workers::start("test", 3);
        for round in 0..300_usize {
            let source = vec![round as u8; 300_000];
            let mut slots = vec![[0_u8; 30_000]; 10];
            let mut plan = Plan::new(30_000, 3_000);
            plan.add(0, memory(&source), Address(0), 300_000, false);
            let running = workers.run(Job::new(plan, Direction::ToSlots, Stores::Ordinary));
            for (piece, slot) in slots.iter_mut().enumerate() {
                running.publish(piece, slot.as_mut_ptr());
            }
            let mut spins = 0;
            while !running.job().is_copied(9) {
                pause(&mut spins); // only the workers copy
            }
            drop(running);
            assert!(slots.iter().flatten().all(|&byte| byte == round as u8));
        }
    }
}
