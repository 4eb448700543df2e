//! Copying to slots: with ordinary stores, or past the processor's caches.
//!
//! What a core has just written lies in its own cache, from which a device reads at about half of the wire's speed. A
//! long copy does not notice: by the time the device comes to a slot, the cache has let go of it. A short one does, and
//! is faster if what it writes goes to memory at once.

use std::ptr;

/// How a copy writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    /// To the cache.
    Ordinary,
    /// To memory, where the processor can.
    PastCaches,
}

/// Copies bytes; what was written is seen by every device and thread that is told of it after [`finish`].
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`].
pub(super) unsafe fn copy(stores: Stores, source: *const u8, target: *mut u8, len_bytes: usize) {
    match stores {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's ranges.
        Stores::PastCaches => unsafe { past_caches(source, target, len_bytes) },
        // SAFETY: the caller's ranges.
        _ => unsafe { ptr::copy_nonoverlapping(source, target, len_bytes) },
    }
}

/// Called after a thread's copies, before it tells anybody of them.
pub(super) fn finish(stores: Stores) {
    #[cfg(target_arch = "x86_64")]
    if stores == Stores::PastCaches {
        // Such stores are ordered by nothing else.
        // SAFETY: every processor of this architecture has it.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
}

/// # Safety
/// As [`ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
unsafe fn past_caches(source: *const u8, target: *mut u8, len_bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const STEP: usize = size_of::<__m128i>();

    let head = target.align_offset(STEP).min(len_bytes);
    let tail = head + (len_bytes - head) / STEP * STEP;
    // SAFETY: the start of the caller's ranges.
    unsafe { ptr::copy_nonoverlapping(source, target, head) };
    for at in (head..tail).step_by(STEP) {
        let (from, to) = (source.wrapping_add(at), target.wrapping_add(at));
        // SAFETY: 16 bytes inside the caller's source; any alignment will do.
        let value = unsafe { _mm_loadu_si128(from.cast()) };
        // SAFETY: 16 bytes inside the caller's target, at a multiple of 16; the fence of `finish` follows.
        unsafe { _mm_stream_si128(to.cast(), value) };
    }
    let (rest, end) = (source.wrapping_add(tail), target.wrapping_add(tail));
    // SAFETY: the rest of the caller's ranges.
    unsafe { ptr::copy_nonoverlapping(rest, end, len_bytes - tail) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_whole_and_nothing_else_is_written() {
        let source: Vec<u8> = (0..=255).cycle().take(400).collect();
        for (from, to, len) in (0..20).flat_map(|from| (0..20).map(move |to| (from, to, 17 * to + from))) {
            for stores in [Stores::Ordinary, Stores::PastCaches] {
                let mut target = vec![9; 450];
                // SAFETY: both are long enough.
                unsafe { copy(stores, source[from..].as_ptr(), target[to..].as_mut_ptr(), len) };
                finish(stores);
                assert_eq!(target[to..to + len], source[from..from + len]);
                assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 9));
            }
        }
    }
}
