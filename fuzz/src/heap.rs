//! The program's global allocator, which counts allocated bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

/// The number of bytes that are allocated now.
pub(crate) fn live() -> usize {
    LIVE.load(Relaxed)
}

/// The peak number of allocated bytes since the last call.
pub(crate) fn take_peak() -> usize {
    PEAK.swap(live(), Relaxed)
}

fn add(n_bytes: usize) {
    let live = LIVE.fetch_add(n_bytes, Relaxed) + n_bytes;
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: every call is forwarded to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(new_size);
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of this method, which is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}
