//! Run-time choice of the instruction set.
//!
//! A loop is compiled once for each set that may be chosen, so only loops that gain from AVX-512 are compiled for it. Measured on a
//! Zen 4: AVX-512 makes `exp` of `f64` 1.6 times as fast as AVX2 and that of `f32` 1.1 times; sums,
//! products, comparisons and reductions of `f32` and `f64` take the same time with both, and sums of `i64` and `i32` are
//! five times slower, because the compiler leaves their sums in memory.

use pulp::Simd;

use crate::processor;

/// Runs `work` compiled for AVX2 or NEON.
///
/// Only code that is inlined into `work` is compiled for them: mark helpers `#[inline(always)]`, and closures that
/// are longer than a few operations too. Loops must give the same bits for every instruction set: `a * b + c` is
/// rounded twice on all of them, `a.mul_add(b, c)` once.
#[inline(always)]
pub(crate) fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    Simd::vectorize(processor::vectors(), work)
}

/// Runs `work` compiled for AVX-512, too: for loops with exponentials or logarithms.
#[inline(always)]
pub(crate) fn vectorized_widely<R>(work: impl FnOnce() -> R) -> R {
    match processor::wide_vectors() {
        Some(simd) => Simd::vectorize(simd, work),
        None => vectorized(work),
    }
}
