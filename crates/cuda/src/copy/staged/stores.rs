//! Copying to slots: with ordinary stores, or past the processor's caches.
//!
//! What a core has just written lies in its own cache, from which a device reads at about half of the wire's speed. A
//! long copy does not notice: by the time the device comes to a slot, the cache has let go of it. A short one does, and
//! is faster if what it writes goes to memory at once. So are many short ones that cannot get ahead of the device otherwise.

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
    let whole = |from: usize, unit: usize| from + (len_bytes - from) / unit * unit;
    let places = |at: usize| (source.wrapping_add(at), target.wrapping_add(at));

    let head = target.align_offset(LINE).min(len_bytes);
    // SAFETY: the start of the caller's ranges.
    unsafe { ptr::copy_nonoverlapping(source, target, head) };
    let lines = if is_x86_feature_detected!("avx512f") { whole(head, LINE) } else { head };
    if lines > head {
        let (from, to) = places(head);
        // SAFETY: whole lines of the caller's ranges, from the start of one of the target's on; the processor has it.
        unsafe { stream_lines(from, to, lines - head) };
    }
    let words = whole(lines, WORD);
    let (from, to) = places(lines);
    // SAFETY: whole words of the caller's ranges, from the start of one of the target's on.
    unsafe { stream_words(from, to, words - lines) };
    let (rest, end) = places(words);
    // SAFETY: the rest of the caller's ranges.
    unsafe { ptr::copy_nonoverlapping(rest, end, len_bytes - words) };
}

/// Of a cache, which is what memory is written by.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;
#[cfg(target_arch = "x86_64")]
const WORD: usize = 16;

/// Each line with one store, and two pages of them in turns: memory then serves more of them at once. A quarter faster than
/// [`stream_words`].
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`], of whole lines; the target starts with one.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_lines(source: *const u8, target: *mut u8, len_bytes: usize) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    const PAGE: usize = 4096;

    let line = |at: usize| {
        let (from, to) = (source.wrapping_add(at), target.wrapping_add(at));
        // SAFETY: a line inside the caller's source; any alignment will do.
        let value = unsafe { _mm512_loadu_si512(from.cast()) };
        // SAFETY: a line inside the caller's target, from its start; the fence of `finish` follows.
        unsafe { _mm512_stream_si512(to.cast(), value) };
    };
    let pairs = len_bytes / (2 * PAGE) * (2 * PAGE);
    for pair in (0..pairs).step_by(2 * PAGE) {
        for at in (pair..pair + PAGE).step_by(LINE) {
            line(at);
            line(at + PAGE);
        }
    }
    (pairs..len_bytes).step_by(LINE).for_each(line);
}

/// # Safety
/// As [`ptr::copy_nonoverlapping`], of whole words; the target starts with one.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_words(source: *const u8, target: *mut u8, len_bytes: usize) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};

    for at in (0..len_bytes).step_by(WORD) {
        let (from, to) = (source.wrapping_add(at), target.wrapping_add(at));
        // SAFETY: a word inside the caller's source; any alignment will do.
        let value = unsafe { _mm_loadu_si128(from.cast()) };
        // SAFETY: a word inside the caller's target, from its start; the fence of `finish` follows.
        unsafe { _mm_stream_si128(to.cast(), value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies so many bytes between those places, and looks at what was written, and what was not.
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
            for stores in [Stores::Ordinary, Stores::PastCaches] {
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

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn lines_are_copied_whole_by_processors_of_either_kind() {
        #[repr(align(64))]
        #[derive(Clone, Copy, PartialEq, Debug)]
        struct Line([u8; LINE]);

        let source: Vec<u8> = (0..=255).cycle().take(301 * LINE).collect();
        for n in [0, 1, 2, 63, 64, 127, 128, 129, 300] {
            for is_wide in [false, is_x86_feature_detected!("avx512f")] {
                let mut target = vec![Line([9; LINE]); n + 1];
                let (from, to) = (source[1..].as_ptr(), target.as_mut_ptr().cast::<u8>());
                if is_wide {
                    // SAFETY: both are long enough, and the target starts with a line; the processor has it.
                    unsafe { stream_lines(from, to, n * LINE) };
                } else {
                    // SAFETY: both are long enough, and the target starts with a line.
                    unsafe { stream_words(from, to, n * LINE) };
                }
                finish(Stores::PastCaches);
                let copied: Vec<u8> = target[..n].iter().flat_map(|line| line.0).collect();
                assert_eq!(copied, source[1..][..n * LINE], "{n} lines, {is_wide}");
                assert_eq!(target[n], Line([9; LINE]));
            }
        }
    }
}
