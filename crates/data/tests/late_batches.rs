//! A batch that is ready while its time-out is handled. The program's allocator lets the worker finish its batch at the
//! first allocation of the program's thread after the time-out: that of the worker that replaces it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use pagelock_data::{DataLoader, Dataset, Error, Result};

struct Releasing;

/// Whether the worker may finish its batch.
static IS_RELEASED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether the next allocation of this thread releases the worker, and gives it time.
    static RELEASES: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: every call goes to the system allocator.
unsafe impl GlobalAlloc for Releasing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if RELEASES.try_with(|releases| releases.replace(false)).unwrap_or(false) {
            IS_RELEASED.store(true, SeqCst);
            spin_until(|| false, Duration::from_millis(100));
        }
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static RELEASING: Releasing = Releasing;

fn spin_until(is_over: impl Fn() -> bool, longest: Duration) {
    let start = Instant::now();
    while !is_over() && start.elapsed() < longest {
        std::hint::spin_loop();
    }
}

/// Sample 1 takes until the worker is released.
struct Late;

impl Dataset for Late {
    type Sample = i64;

    fn len(&self) -> usize {
        6
    }

    fn get(&self, index: usize) -> Result<i64> {
        if index == 1 {
            spin_until(|| IS_RELEASED.load(SeqCst), Duration::from_secs(10));
        }
        Ok(index as i64)
    }
}

#[test]
fn a_batch_that_is_ready_while_its_timeout_is_handled_costs_no_other_batch() {
    let loader = DataLoader::with_collate(Late, Ok).num_workers(1).prefetch_factor(4);
    let loader = loader.timeout(Duration::from_millis(500));
    let mut batches = loader.iter();
    assert_eq!(batches.next().unwrap().unwrap(), [0]);
    RELEASES.set(true);
    let late = batches.next().unwrap();
    assert!(IS_RELEASED.load(SeqCst) && matches!(late, Err(Error::Timeout { batch: 1, .. })), "{late:?}");
    let rest: Vec<_> = batches.map(Result::unwrap).collect();
    assert_eq!(rest, [[2], [3], [4], [5]]);
}
