//! [`Crew`]: the threads that help staged copies. They only copy bytes, and never call a driver.
//!
//! A thread without work spins for a moment, since the next piece of a copy comes soon, then gives way to others for a
//! while, since the next copy of a loop does, and then sleeps (`beds.rs`). Waking one takes longer than copying what it would
//! copy, so not one wakes all.

use std::{
    hint,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{beds::Beds, job::Job};
use crate::sync::{Mutex, lock};

/// See the head of the file. Dropping it ends the threads.
pub(super) struct Crew {
    shared: Arc<Shared>,
    threads: usize,
}

struct Shared {
    jobs: Mutex<Vec<Arc<Job>>>, // guards which jobs there are
    beds: Beds,                 // news: what threads without work should look at
    over: AtomicBool,
    spin: Duration,
}

/// A job at which the crew works; dropping this ends it.
pub(super) struct AtWork<'a> {
    crew: Option<&'a Crew>,
    job: Arc<Job>,
    with_slots: usize, // granules
    given: usize,      // runs, where that was left open
    published: usize,  // granules
}

const SPIN: Duration = Duration::from_micros(100); // above the time between two pieces
const LINGER: Duration = Duration::from_micros(400); // above the time between two copies in a loop
const TURN: usize = 4; // granules in a row before a thread looks at the next job

impl Crew {
    /// Starts threads; fewer if the system refuses.
    pub(super) fn start(name: &'static str, threads: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            jobs: Mutex::new(Vec::new()),
            beds: Beds::new(threads),
            over: AtomicBool::new(false),
            spin: if cores > threads { SPIN } else { Duration::ZERO },
        });
        let start = |index: usize| {
            let shared = shared.clone();
            thread::Builder::new().name(format!("{name} {index}")).spawn(move || shared.run(index))
        };
        let threads = (0..threads).map(start).filter(Result::is_ok).count();
        Self { shared, threads }
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Wakes the threads: there will be work at once.
    pub(super) fn expect_work(&self) {
        self.shared.beds.announce();
    }

    /// Lets the crew work at a job; with none, the caller works alone.
    pub(super) fn put_to_work(crew: Option<&Self>, job: Arc<Job>) -> AtWork<'_> {
        if let Some(crew) = crew {
            lock(&crew.shared.jobs).push(job.clone());
        }
        AtWork { crew, job, with_slots: 0, given: 0, published: 0 }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.beds.announce(); // nobody waits for them: they hold nothing but `Shared`
    }
}

impl AtWork<'_> {
    pub(super) fn job(&self) -> &Job {
        &self.job
    }

    /// Lets the crew work on one more piece.
    pub(super) fn publish(&mut self, piece: usize, slot: *mut u8) {
        self.with_slots = self.job.set_slot(piece, slot);
        self.publish_what_is_given();
    }

    /// Says where the next bytes begin for which that was left open.
    #[inline]
    pub(super) fn give(&mut self, start: *mut u8, len_bytes: usize) {
        self.given = self.job.give(self.given, start, len_bytes);
    }

    /// Lets the crew work on what has a slot and was given.
    pub(super) fn publish_what_is_given(&mut self) {
        let granules = self.with_slots.min(self.job.given_granules(self.given));
        if granules == self.published {
            return;
        }
        self.published = granules;
        self.job.publish(granules);
        if let Some(crew) = self.crew {
            crew.shared.beds.announce();
        }
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if let Some(crew) = self.crew {
            lock(&crew.shared.jobs).retain(|job| !Arc::ptr_eq(job, &self.job));
        }
        self.job.close();
    }
}

impl Shared {
    fn run(&self, helper: usize) {
        let mut turn = 0_usize;
        loop {
            let news = self.beds.news(); // before looking, so that nothing is missed
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            turn = turn.wrapping_add(1);
            if !self.work(helper, turn) {
                self.rest(helper, news);
            }
        }
    }

    /// Works at the jobs in turn; false if there was nothing to do.
    fn work(&self, helper: usize, turn: usize) -> bool {
        let mut worked = false;
        for index in 0.. {
            let (job, count) = {
                let jobs = lock(&self.jobs);
                match jobs.len() {
                    count if index < count => (jobs[turn.wrapping_add(index) % count].clone(), count),
                    _ => return worked,
                }
            };
            let mut granules = 0;
            while job.is_for(helper) && (count == 1 || granules < TURN) && job.work() {
                granules += 1;
            }
            worked |= granules > 0;
        }
        worked
    }

    /// Returns when there are news.
    fn rest(&self, helper: usize, seen: usize) {
        let start = Instant::now();
        let has_news = || self.beds.news() != seen;
        while start.elapsed() < self.spin {
            if has_news() {
                return;
            }
            hint::spin_loop();
        }
        while self.spin > Duration::ZERO && start.elapsed() < LINGER {
            if has_news() {
                return;
            }
            thread::yield_now();
        }
        self.beds.sleep(helper, seen);
    }
}
