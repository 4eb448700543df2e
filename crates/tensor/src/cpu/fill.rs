//! Fills memory with a constant, or with a function of the index.

use super::math::half::{Half, f64_to_f32_odd};
use super::{PIECE, Value, in_chunks, simd};
use crate::inlined::{Slice, zip};
use crate::parallel::for_each_chunk_mut;

/// The number of bytes that one task fills with a constant: enough to be worth a task.
const FILLED_BYTES: usize = 128 << 10;

/// `out[i] = value`.
pub(crate) fn fill<T: Value>(out: &mut [T], value: T) {
    for_each_chunk_mut(out, FILLED_BYTES / size_of::<T>().max(1), |_, chunk| {
        simd::vectorized_widely(inlined!(|| chunk.set_to(value)));
    });
}

/// `out[i] = f(i)`.
pub(crate) fn fill_by_number<T: Value>(out: &mut [T], f: impl Fn(usize) -> T + Sync + Copy) {
    in_chunks(out, |start, chunk| {
        simd::vectorized_widely(inlined!(|| {
            let number = f; // a copy, so that the compiler knows that no write to `chunk` changes it
            for (i, out) in zip(start.., chunk) {
                *out = number(i);
            }
        }));
    });
}

/// `out[i] = f(i)`, rounded once to a half type. `out` has the bits of the halves.
pub(crate) fn fill_halves_by_number(out: &mut [u16], half: Half, f: impl Fn(usize) -> f64 + Sync + Copy) {
    in_chunks(out, |start, chunk| {
        let mut buffer = [0.0; PIECE];
        for (piece, out) in chunk.chunks_mut(PIECE).enumerate() {
            let (first, buffer) = (start + piece * PIECE, &mut buffer[..out.len()]);
            simd::vectorized_widely(inlined!(|| {
                let number = f; // a copy, as above
                for (i, out) in zip(first.., &mut *buffer) {
                    *out = f64_to_f32_odd(number(i));
                }
            }));
            half.narrow(buffer, out);
        }
    });
}
