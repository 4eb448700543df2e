//! What the allocator keeps of freed memory, and when the system gets it back.
//!
//! The allocator of glibc keeps freed memory for later, far more than a budget knows of: blocks of up to 32 MiB may stay
//! resident after they are freed, and free memory between objects that live stays for ever. So whoever frees what a budget
//! counted says so here.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How much may be freed before the system gets it back: looking for it takes a millisecond.
const MOST_KEPT: usize = 16 << 20;

// Relaxed: it guards no other memory.
static FREED: AtomicUsize = AtomicUsize::new(0); // bytes, since the system last got memory back

/// Notes that the program gave so many bytes back to the allocator that counted in a budget. Every 16 MiB the system gets what
/// the allocator keeps, where that is glibc's.
///
/// # Examples
/// ```
/// let numbers = vec![1_u64; 1 << 20];
/// drop(numbers);
/// pagelock_memory::note_freed(8 << 20);
/// ```
pub fn note_freed(len_bytes: usize) {
    let freed = FREED.fetch_add(len_bytes, Relaxed).saturating_add(len_bytes);
    if freed >= MOST_KEPT && FREED.swap(0, Relaxed) >= MOST_KEPT {
        give_back();
    }
}

#[cold]
fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    {
        // SAFETY: the function may be called at any time, from any thread; it changes no byte that is in use.
        let _ = unsafe { libc::malloc_trim(0) };
    }
}
