//! Once it is running, a loader with workers makes no heap allocation: counted on all threads, by the program's own
//! allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pagelock_data::{DataLoader, TensorDataset};
use pagelock_tensor::Tensor;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const BATCHES: usize = 2_000;

/// One test, since all threads of the process are counted. It is enough that one of up to 19 rounds allocates nothing:
/// the test harness may still start in the first, and workers allocate again when they first need more than before.
#[test]
fn a_running_loader_allocates_nothing() {
    for (n_workers, pins) in [(0, false), (1, false), (2, false), (0, true), (1, true), (2, true)] {
        let samples = (Tensor::zeros([64 * BATCHES, 4]).unwrap(), Tensor::full([64 * BATCHES], 0).unwrap());
        let loader = DataLoader::new(TensorDataset::new(samples).unwrap()).batch_size(64).shuffle(0);
        let loader = loader.num_workers(n_workers).persistent_workers(true).pin_memory(pins);
        let mut batches = loader.iter();
        let mut counts = Vec::with_capacity(20);
        while counts.len() < 19 && counts.last() != Some(&0) {
            let before = ALLOCATIONS.load(Relaxed);
            for _ in 0..100 {
                batches.next().unwrap().unwrap();
            }
            counts.push(ALLOCATIONS.load(Relaxed) - before);
        }
        assert_eq!(
            counts.last(),
            Some(&0),
            "{n_workers} workers, page-locked: {pins}, allocations in a hundred batches: {counts:?}"
        );
    }
}
