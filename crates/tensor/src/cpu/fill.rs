//! Values that depend on the place alone: constants and ranges.

use super::{Value, in_chunks, simd};

/// `out[i] = value`.
pub(crate) fn fill<T: Value>(out: &mut [T], value: T) {
    in_chunks(out, |_, chunk| {
        simd::vectorized_widely(
            #[inline(always)]
            || chunk.fill(value),
        );
    });
}

/// `out[i] = f(i)`.
pub(crate) fn fill_by_number<T: Value>(out: &mut [T], f: impl Fn(usize) -> T + Sync + Copy) {
    in_chunks(out, |start, chunk| {
        simd::vectorized_widely(
            #[inline(always)]
            || (start..).zip(chunk).for_each(|(i, out)| *out = f(i)),
        );
    });
}
