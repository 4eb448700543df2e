//! Stores that bypass the caches, for results that are larger than these.
//!
//! An ordinary store first loads the cache line that it overwrites, and this line displaces other data. Both are
//! useless for a result so large that its beginning has left the caches before it is read.
//!
//! Invariant: what a [`NonTemporal`] wrote is in memory, for all threads, once it is dropped.
//! Unsafe code: the stores that x86 processors have for this. Other processors copy as usual.

use bytemuck::NoUninit;

#[cfg(target_arch = "x86_64")]
use crate::inlined::Flat;
use crate::inlined::Slice;

/// Results of at least this many bytes bypass the caches: about the size of the cache that all cores of a processor
/// share.
const LARGE_BYTES: usize = 32 << 20;

/// Whether a result is so large that it should be written past the caches.
pub(crate) fn is_large<T>(out: &[T]) -> bool {
    size_of_val(out) >= LARGE_BYTES
}

/// Writes past the caches while it exists.
pub(crate) struct NonTemporal {
    level: Level,
}

/// The instructions that the processor has for it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Level {
    Nothing,
    #[cfg(target_arch = "x86_64")]
    Avx,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl NonTemporal {
    pub(crate) fn new() -> NonTemporal {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return NonTemporal { level: Level::Avx512 };
            }
            if is_x86_feature_detected!("avx") {
                return NonTemporal { level: Level::Avx };
            }
        }
        NonTemporal { level: Level::Nothing }
    }

    /// Copies `from`, which is as long as `to`.
    pub(crate) fn copy<T: NoUninit>(&self, to: &mut [T], from: &[T]) {
        assert_eq!(to.len(), from.len(), "source and target have the same length");
        match self.level {
            #[cfg(target_arch = "x86_64")]
            level @ (Level::Avx | Level::Avx512) if x86::fill_lines::<T>() => x86::copy(level, to, from),
            _ => to.copy_from(from),
        }
    }
}

impl Drop for NonTemporal {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if self.level != Level::Nothing {
            // SAFETY: every x86-64 processor has this instruction.
            unsafe { std::arch::x86_64::_mm_sfence() };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    use super::{Flat, Level, NoUninit, Slice};

    /// A line of the caches.
    type Line = [u8; 64];

    /// Whether lines consist of whole elements.
    pub(super) fn fill_lines<T>() -> bool {
        size_of::<T>() > 0 && size_of::<Line>().is_multiple_of(size_of::<T>())
    }

    /// Copies whole lines past the caches, and the elements before and behind them as usual. Lines must consist of
    /// whole elements.
    pub(super) fn copy<T: NoUninit>(level: Level, to: &mut [T], from: &[T]) {
        let before = to.as_ptr().align_offset(size_of::<Line>()).min(to.len());
        let per_line = size_of::<Line>() / size_of::<T>();
        let in_lines = (to.len() - before) / per_line * per_line;
        let (first, rest) = from.split_at(before);
        let (lines, last) = rest.split_at(in_lines);
        let (to_first, rest) = to.split_at_mut(before);
        let (to_lines, to_last) = rest.split_at_mut(in_lines);
        to_first.copy_from(first);
        to_last.copy_from(last);
        let lines = bytemuck::cast_slice(lines).as_chunks().0;
        match level {
            // SAFETY: the processor has AVX-512 (`NonTemporal::new` checked), and `to_lines` has as many bytes as
            // `lines`, is aligned to lines and borrowed mutably.
            Level::Avx512 => unsafe { lines_512(to_lines.as_mut_ptr().cast(), lines) },
            // SAFETY: the same with AVX.
            _ => unsafe { lines_256(to_lines.as_mut_ptr().cast(), lines) },
        }
    }

    /// # Safety
    /// `to` is aligned to lines, nobody else uses it, and as many lines can be written there as `from` has.
    #[target_feature(enable = "avx512f")]
    unsafe fn lines_512(to: *mut Line, from: &[Line]) {
        for (i, line) in from.iter().enumerate() {
            // SAFETY: a line is 64 bytes.
            let line = unsafe { _mm512_loadu_si512(line.as_ptr().cast::<__m512i>()) };
            // SAFETY: line `i` is one of those that can be written (the caller's promise).
            let to = unsafe { to.add(i) };
            // SAFETY: as above, and it is aligned (the caller's promise).
            unsafe { _mm512_stream_si512(to.cast(), line) };
        }
    }

    /// # Safety
    /// As [`lines_512`].
    #[target_feature(enable = "avx")]
    unsafe fn lines_256(to: *mut Line, from: &[Line]) {
        for (i, half) in from.flattened().as_chunks::<32>().0.iter().enumerate() {
            // SAFETY: half a line is 32 bytes.
            let half = unsafe { _mm256_loadu_si256(half.as_ptr().cast::<__m256i>()) };
            // SAFETY: half `i` is in one of the lines that can be written (the caller's promise).
            let to = unsafe { to.cast::<__m256i>().add(i) };
            // SAFETY: as above, and halves of aligned lines are aligned.
            unsafe { _mm256_stream_si256(to, half) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels() -> Vec<NonTemporal> {
        let mut levels = vec![NonTemporal { level: Level::Nothing }];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx") {
            levels.push(NonTemporal { level: Level::Avx });
        }
        levels.push(NonTemporal::new());
        levels
    }

    fn check<T: NoUninit + PartialEq + std::fmt::Debug>(number: impl Fn(usize) -> T) {
        let from: Vec<T> = (0..500).map(&number).collect();
        for stream in levels() {
            for (start, len) in [(0, 0), (0, 400), (1, 1), (3, 17), (5, 64), (7, 390), (16, 128)] {
                let mut to = [number(0); 500];

                stream.copy(&mut to[start..][..len], &from[2..][..len]);

                let expected =
                    |i: usize| if (start..start + len).contains(&i) { from[2 + i - start] } else { number(0) };
                assert!(
                    to.iter().enumerate().all(|(i, &to)| to == expected(i)),
                    "{start}, {len} on {:?}",
                    stream.level
                );
            }
        }
    }

    #[test]
    fn what_is_copied_arrives_and_nothing_else_changes() {
        check(|i| i as u8);
        check(|i| i % 3 == 0);
        check(|i| i as f32);
        check(|i| i as i64);
        check(|i| [i as u8; 3]);
        check(|_| ());
    }
}
