//! Copying to slots with ordinary stores, or with non-temporal stores, which bypass the processor's caches.
//!
//! Bytes that a core has just written are in its cache. A device reads them from there at about half of the bus
//! bandwidth, and slows the core down. In a long copy the device stays some slots behind the threads (`upload.rs`),
//! so that a slot is evicted from the cache before the device reads it. A copy of one piece has no such lead, and is
//! faster if its stores go to memory directly.

use std::ptr;

/// The kind of stores that a copy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    /// To the cache.
    Ordinary,
    /// To memory, if the processor has stores of whole cache lines (AVX-512); else to the cache.
    NonTemporal,
}

/// Copies bytes. Devices and other threads see them after this thread has called [`finish`] and synchronized.
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`].
pub(super) unsafe fn copy(stores: Stores, source: *const u8, target: *mut u8, len_bytes: usize) {
    match stores {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's ranges; the processor has the instructions (checked).
        Stores::NonTemporal if is_x86_feature_detected!("avx512f") => unsafe {
            copy_non_temporal(source, target, len_bytes)
        },
        // SAFETY: the caller's ranges.
        _ => unsafe { ptr::copy_nonoverlapping(source, target, len_bytes) },
    }
}

/// Must be called after a thread's copies, before the thread publishes them.
pub(super) fn finish(stores: Stores) {
    #[cfg(target_arch = "x86_64")]
    if stores == Stores::NonTemporal {
        // Nothing else orders non-temporal stores.
        // SAFETY: every processor of this architecture has the instruction.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
}

/// The size of a cache line, the unit in which memory is written.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Copies the bytes before the target's first whole line, the lines, and the rest. The writes alternate between two
/// pages, so that memory serves more of them in parallel.
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn copy_non_temporal(source: *const u8, target: *mut u8, len_bytes: usize) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    const PAGE: usize = 4096;

    let start = target.align_offset(LINE).min(len_bytes);
    let end = start + (len_bytes - start) / LINE * LINE;
    // SAFETY: the start of the caller's ranges.
    unsafe { ptr::copy_nonoverlapping(source, target, start) };
    let line = |at: usize| {
        let (from, to) = (source.wrapping_add(at), target.wrapping_add(at));
        // SAFETY: a line inside the caller's source; the load needs no alignment.
        let value = unsafe { _mm512_loadu_si512(from.cast()) };
        // SAFETY: a line inside the caller's target, aligned since `start` is; the fence of `finish` follows.
        unsafe { _mm512_stream_si512(to.cast(), value) };
    };
    let pairs = start + (end - start) / (2 * PAGE) * (2 * PAGE);
    for pair in (start..pairs).step_by(2 * PAGE) {
        for at in (pair..pair + PAGE).step_by(LINE) {
            line(at);
            line(at + PAGE);
        }
    }
    (pairs..end).step_by(LINE).for_each(line);
    let (rest, to) = (source.wrapping_add(end), target.wrapping_add(end));
    // SAFETY: the end of the caller's ranges.
    unsafe { ptr::copy_nonoverlapping(rest, to, len_bytes - end) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies `len` bytes between these offsets, and checks that they and no other bytes were written.
    fn copies_exactly(copy: impl Fn(*const u8, *mut u8, usize), from: usize, to: usize, len: usize) {
        let source: Vec<u8> = (0..=255).cycle().take(from + len).collect();
        let mut target = vec![9; to + len + 100];
        copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), len);
        assert_eq!(target[to..to + len], source[from..from + len], "{len} bytes from {from} to {to}");
        assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 9));
    }

    #[test]
    fn every_length_and_alignment_is_copied_whole_and_nothing_else_is_written() {
        for (from, to, len) in (0..20).flat_map(|from| (0..20).map(move |to| (from, to, 17 * to + from))) {
            for stores in [Stores::Ordinary, Stores::NonTemporal] {
                let copy = |source, target, len| {
                    // SAFETY: both are long enough.
                    unsafe { copy(stores, source, target, len) };
                    finish(stores);
                };
                copies_exactly(copy, from, to, len);
                copies_exactly(copy, from, to, len + 20_000);
            }
        }
    }
}
