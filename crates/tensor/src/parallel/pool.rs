//! The helpers: threads that wait for a job, first spinning, then asleep.
//!
//! They are started when first needed and live as long as the process. One job runs at a time; a caller that finds
//! the helpers taken does its work alone.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::gate::Gate;
use crate::inlined::Array;

/// More threads than this are never started.
pub(super) const MAX_THREADS: usize = 256;

/// How long a helper without work looks for some before it sleeps; most gaps between two operations are shorter.
const SPIN: Duration = Duration::from_micros(100);

/// How long a thread spins before it yields its core to others between two looks.
const PATIENCE: Duration = Duration::from_micros(20);

static POOL: Pool = Pool {
    busy: AtomicBool::new(false),
    gate: Gate::new(),
    job: AtomicPtr::new(ptr::null_mut()),
    asleep: AtomicUsize::new(0),
    threads: Mutex::new(Vec::new()),
};

struct Pool {
    busy: AtomicBool,             // held by the thread whose job runs
    gate: Gate,                   // who may dereference `job`
    job: AtomicPtr<Job<'static>>, // valid while the gate is open or somebody is inside
    asleep: AtomicUsize,
    threads: Mutex<Vec<Thread>>, // the helpers, by number
}

thread_local! {
    /// Whether this thread is inside a job: as a helper, or as the caller.
    static WORKING: Cell<bool> = const { Cell::new(false) };
}

/// Runs the tasks with this number of helpers. Returns `false`, without running any, if the helpers are busy.
pub(super) fn run(n_tasks: usize, helpers: usize, task: &(dyn Fn(usize) + Sync)) -> bool {
    if WORKING.get() || POOL.busy.swap(true, Ordering::Acquire) {
        return false;
    }
    let job = Job::new(task, n_tasks, helpers);
    POOL.offer(&job);
    WORKING.set(true);
    job.work(0);
    WORKING.set(false);
    POOL.withdraw();
    POOL.busy.store(false, Ordering::Release);
    if let Some(payload) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(payload);
    }
    true
}

/// Work that helpers may join, on the stack of the thread that wants it done.
///
/// Tasks are in ranges of neighbors, one for each thread. A thread begins with its own range and then helps with the
/// others, so it mostly works on memory in one piece, and on the same piece in the next job of the same size.
struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    n_tasks: usize,
    helpers: usize,
    n_ranges: usize,
    /// The number of tasks taken from each range; it may exceed the length of the range.
    taken: [Counter; MAX_RANGES],
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// More threads than this share ranges.
const MAX_RANGES: usize = 16;

/// A counter in a cache line of its own.
#[repr(align(64))]
struct Counter(AtomicUsize);

impl<'a> Job<'a> {
    fn new(task: &'a (dyn Fn(usize) + Sync), n_tasks: usize, helpers: usize) -> Job<'a> {
        let n_ranges = (helpers + 1).min(MAX_RANGES);
        let taken = [const { Counter(AtomicUsize::new(0)) }; MAX_RANGES];
        Job { task, n_tasks, helpers, n_ranges, taken, panic: Mutex::new(None) }
    }

    /// Takes tasks until none is left, as thread number `thread`. Never panics.
    fn work(&self, thread: usize) {
        for i in 0..self.n_ranges {
            self.work_on((thread + i) % self.n_ranges);
        }
    }

    fn work_on(&self, range: usize) {
        let [start, end] = [range, range + 1].mapped(|range| range * self.n_tasks / self.n_ranges);
        loop {
            // Relaxed: who gets which task guards no memory; results are published by leaving the gate.
            let i = start + self.taken[range].0.fetch_add(1, Ordering::Relaxed);
            if i >= end {
                return;
            }
            // The caller gets the panic, and with it the responsibility for what is left half done.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.task)(i))) {
                self.taken.iter().for_each(|counter| counter.0.store(self.n_tasks, Ordering::Relaxed));
                let mut panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                match *panic {
                    None => *panic = Some(payload),
                    Some(_) => std::mem::forget(payload), // dropping it may panic
                }
            }
        }
    }
}

impl Pool {
    /// Lets helpers into the job and wakes those that sleep.
    fn offer(&'static self, job: &Job<'_>) {
        // Relaxed: `open` publishes it.
        self.job.store(ptr::from_ref(job).cast_mut().cast(), Ordering::Relaxed);
        self.gate.open();
        let helpers = job.helpers;
        // SeqCst: see `Gate::open`. Also true while the first helpers are yet to be started.
        if self.asleep.load(Ordering::SeqCst) > 0 || STARTED.load(Ordering::Relaxed) < helpers {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            self.start(&mut threads, helpers);
            threads.iter().take(helpers).for_each(Thread::unpark);
        }
    }

    /// Starts helpers until there are that many, or until the system refuses: then there are fewer.
    fn start(&'static self, threads: &mut Vec<Thread>, helpers: usize) {
        while threads.len() < helpers {
            let number = threads.len();
            let builder = std::thread::Builder::new().name(format!("pagelock-{}", number + 1));
            match builder.spawn(move || self.help(number)) {
                Ok(handle) => threads.push(handle.thread().clone()),
                Err(_) => break,
            }
        }
        STARTED.store(helpers.max(threads.len()), Ordering::Relaxed);
    }

    /// Waits until no helper is in the job, and none can get in.
    fn withdraw(&self) {
        self.gate.close();
        let since = Instant::now();
        while !self.gate.is_empty() {
            relax(since);
        }
    }

    /// The loop of a helper, which never ends.
    fn help(&self, number: usize) {
        WORKING.set(true);
        let mut last = None;
        loop {
            let job = self.wait_for_job(last);
            last = Some(job);
            if self.gate.enter(job) {
                let job = self.job.load(Ordering::Relaxed);
                // SAFETY: this thread is inside the gate, so the job's caller is still in `withdraw` or before it, and
                // the job, which `offer` published before opening the gate, is alive and only read from.
                let job = unsafe { &*job };
                if number < job.helpers {
                    job.work(number + 1);
                }
                self.gate.leave();
            }
        }
    }

    /// The next job after `last`: spins for a while, then sleeps. A helper that wakes too late for a job spins for
    /// the next one.
    fn wait_for_job(&self, last: Option<u32>) -> u32 {
        loop {
            if let Some(job) = self.spin_for_job(last) {
                return job;
            }
            // SeqCst, with the look at the gate after it: either the caller sees somebody asleep and wakes them, or
            // this thread sees the gate open.
            self.asleep.fetch_add(1, Ordering::SeqCst);
            let job = self.gate.job_after(last);
            if job.is_none() {
                std::thread::park(); // returns at once if this thread was woken since it last slept
            }
            self.asleep.fetch_sub(1, Ordering::SeqCst);
            if let Some(job) = job {
                return job;
            }
        }
    }

    fn spin_for_job(&self, last: Option<u32>) -> Option<u32> {
        let since = Instant::now();
        while since.elapsed() < SPIN {
            for _ in 0..32 {
                if let Some(job) = self.gate.job_after(last) {
                    return Some(job);
                }
                std::hint::spin_loop();
            }
            relax(since);
        }
        None
    }
}

/// The most helpers that were requested so far, whether they started or not.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// One step of waiting for another thread.
fn relax(since: Instant) {
    if since.elapsed() < PATIENCE {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
