//! A pool hit in the default stack makes no heap allocation, counted by the program's own allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use pagelock_memory::{HostBuffer, default_host, holder};

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

/// What a training step does: a few buffers of different sizes, alive together, then dropped.
fn step() {
    let _scope = holder("step");
    let mut buffers =
        [10, 1_000, 50_000, 20 << 20].map(|len_bytes| HostBuffer::allocate(default_host(), len_bytes).unwrap());
    buffers[1].bytes_mut().unwrap()[0] = buffers[0].bytes()[0];
}

#[test]
fn after_the_first_step_no_step_allocates() {
    step();
    let before = ALLOCATIONS.load(Relaxed);
    for _ in 0..100 {
        step();
    }
    assert_eq!(ALLOCATIONS.load(Relaxed) - before, 0);
}
