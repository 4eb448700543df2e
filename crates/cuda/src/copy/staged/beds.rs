//! [`Beds`]: where threads of a [crew](super::crew) sleep until there are news.
//!
//! News are only counted. Who has some wakes two sleepers, and each of them wakes two more, which is faster than if one woke
//! them all.
//!
//! Invariant: a thread that waits while its bed is empty knows less than there is. So whoever empties a bed makes sure that its
//! sleeper missed something: it then gets up, instead of going on in a bed that nobody looks into.

use std::sync::OnceLock;

use crate::sync::{AtomicUsize, Ordering, Thread, current, fence, park};

/// See the head of the file.
pub(super) struct Beds {
    news: AtomicUsize,
    beds: Box<[Bed]>,   // one for each thread
    taken: AtomicUsize, // beds
}

struct Bed {
    seen: AtomicUsize, // the news that the sleeper knows, or `EMPTY`
    thread: OnceLock<Thread>,
}

const EMPTY: usize = usize::MAX;
const WAKES: usize = if cfg!(loom) { 1 } else { 2 }; // so many each; loom has few threads

impl Beds {
    pub(super) fn new(threads: usize) -> Self {
        let bed = |_| Bed { seen: AtomicUsize::new(EMPTY), thread: OnceLock::new() };
        Self { news: AtomicUsize::new(0), beds: (0..threads).map(bed).collect(), taken: AtomicUsize::new(0) }
    }

    /// How many news there were.
    pub(super) fn news(&self) -> usize {
        self.news.load(Ordering::SeqCst)
    }

    /// There are news: in the end all who sleep wake up.
    pub(super) fn announce(&self) {
        self.news.fetch_add(1, Ordering::SeqCst);
        self.wake_some();
    }

    /// Returns when there are more news than were seen. Each thread has a bed of its own.
    pub(super) fn sleep(&self, at: usize, seen: usize) {
        let bed = &self.beds[at];
        bed.thread.get_or_init(current);
        self.taken.fetch_add(1, Ordering::SeqCst);
        bed.seen.store(seen, Ordering::SeqCst);
        fence(Ordering::SeqCst); // who has news finds the bed taken, or they are seen here
        while self.news() == seen {
            park();
        }
        self.is_emptied(bed, seen);
        self.wake_some(); // what is news to this thread is to others
    }

    fn wake_some(&self) {
        fence(Ordering::SeqCst); // as in `sleep`
        if self.taken.load(Ordering::SeqCst) == 0 {
            return;
        }
        let news = self.news();
        let woken = self.beds.iter().filter(|bed| self.has_left_behind(bed, news)).take(WAKES);
        woken.filter_map(|bed| bed.thread.get()).for_each(Thread::unpark);
    }

    /// Whether the bed had a sleeper until now who knew less than that.
    fn has_left_behind(&self, bed: &Bed, news: usize) -> bool {
        let seen = bed.seen.load(Ordering::SeqCst);
        seen < news && self.is_emptied(bed, seen)
    }

    /// Whether the bed had this sleeper until now.
    fn is_emptied(&self, bed: &Bed, seen: usize) -> bool {
        let emptied = bed.seen.compare_exchange(seen, EMPTY, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        self.taken.fetch_sub(usize::from(emptied), Ordering::SeqCst);
        emptied
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        hint,
        sync::{Arc, atomic::AtomicBool},
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    const THREADS: usize = 7;
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn every_sleeper_learns_of_all_news_however_they_come() {
        let (beds, over) = (Arc::new(Beds::new(THREADS)), Arc::new(AtomicBool::new(false)));
        let known: Arc<Vec<_>> = Arc::new((0..THREADS).map(|_| AtomicUsize::new(0)).collect());
        let sleeper = |at: usize| {
            let (beds, over, known) = (beds.clone(), over.clone(), known.clone());
            thread::spawn(move || {
                loop {
                    let seen = beds.news(); // before looking whether it is over
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    known[at].store(seen, Ordering::SeqCst);
                    beds.sleep(at, seen);
                }
            })
        };
        let sleepers: Vec<_> = (0..THREADS).map(sleeper).collect();

        for round in 0..2_000_usize {
            for _ in 0..=round % 5 {
                beds.announce();
                (0..round * 37 % 500).for_each(|_| hint::spin_loop());
            }
            let (news, start) = (beds.news(), Instant::now());
            while known.iter().any(|known| known.load(Ordering::SeqCst) != news) {
                assert!(start.elapsed() < LONG, "somebody sleeps through piece of news {news}: {known:?}");
                thread::yield_now();
            }
        }
        over.store(true, Ordering::SeqCst);
        beds.announce();
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::{model::Builder, sync::Arc, thread};

    use super::*;

    /// Loom fails where a thread waits that nobody will wake.
    #[test]
    fn nobody_sleeps_for_ever() {
        let mut model = Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let beds = Arc::new(Beds::new(2));
            let sleepers = [0, 1].map(|at| {
                let beds = beds.clone();
                thread::spawn(move || {
                    let mut seen = 0;
                    while seen < 2 {
                        beds.sleep(at, seen);
                        seen = beds.news();
                    }
                })
            });
            beds.announce();
            beds.announce();
            sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        });
    }
}
