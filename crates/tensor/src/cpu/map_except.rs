//! Elementwise loops with a second formula: for rare numbers, or for the bits of halves. See `map.rs`.

use super::kernel::{Halves, Kernel, loop_over};
use super::map::written;
use super::{CpuView, StoredMut, simd};
use crate::element::Computing;
use crate::inlined::zip;

/// [`map1_longest`](super::map1_longest), except that `rare` computes the numbers for which `is_rare` holds, one by
/// one.
pub(crate) fn map1_except<T: Computing>(
    x: CpuView<'_, T>,
    out: StoredMut<'_, T>,
    f: impl Fn(T) -> T + Sync + Copy,
    (is_rare, rare): (impl Fn(T) -> bool + Sync + Copy, impl Fn(T) -> T + Sync + Copy),
) {
    let kernel = Kernel {
        numbers: &|dst, x| {
            let any_is_rare = simd::vectorized_widely(
                #[inline(always)]
                || {
                    let mut any = false;
                    for (dst, &x) in zip(&mut dst[..], x[0]) {
                        any |= is_rare(x);
                        *dst = f(x);
                    }
                    any
                },
            );
            if any_is_rare {
                zip(&mut dst[..], x[0]).filter(|(_, x)| is_rare(**x)).for_each(|(dst, &x)| *dst = rare(x));
            }
        },
        halves: Halves::Numbers,
        changes: false,
    };
    written(out, [x], kernel);
}

/// [`map1`](super::map1) for a formula that `of_bits` computes on the bits of halves.
pub(crate) fn map1_by_bits<T: Computing>(
    x: CpuView<'_, T>,
    out: StoredMut<'_, T>,
    f: impl Fn(T) -> T + Sync + Copy,
    of_bits: impl Fn(u16) -> u16 + Sync + Copy,
) {
    let kernel = Kernel {
        numbers: &|dst, x| simd::vectorized(loop_over(dst, x, |out, [x]| *out = f(x))),
        halves: Halves::Bits(&|dst, [x]| {
            simd::vectorized(
                #[inline(always)]
                || {
                    for (dst, &x) in zip(&mut dst[..], x) {
                        *dst = of_bits(x);
                    }
                },
            );
        }),
        changes: false,
    };
    written(out, [x], kernel);
}

/// [`map2_longest`](super::map2_longest), except that `rare` computes the pairs for which `is_rare` holds, one by
/// one.
pub(crate) fn map2_except<T: Computing>(
    a: CpuView<'_, T>,
    b: CpuView<'_, T>,
    out: StoredMut<'_, T>,
    f: impl Fn(T, T) -> T + Sync + Copy,
    (is_rare, rare): (impl Fn(T, T) -> bool + Sync + Copy, impl Fn(T, T) -> T + Sync + Copy),
) {
    let kernel = Kernel {
        numbers: &|dst, [a, b]| {
            let any_is_rare = simd::vectorized_widely(
                #[inline(always)]
                || {
                    let mut any = false;
                    for ((dst, &a), &b) in zip(zip(&mut dst[..], *a), *b) {
                        any |= is_rare(a, b);
                        *dst = f(a, b);
                    }
                    any
                },
            );
            if any_is_rare {
                let rare_ones = zip(&mut dst[..], zip(*a, *b)).filter(|(_, (a, b))| is_rare(**a, **b));
                rare_ones.for_each(|(dst, (&a, &b))| *dst = rare(a, b));
            }
        },
        halves: Halves::Numbers,
        changes: false,
    };
    written(out, [a, b], kernel);
}

/// [`map2`](super::map2) for a formula that `of_bits` computes on the bits of halves.
pub(crate) fn map2_by_bits<T: Computing>(
    a: CpuView<'_, T>,
    b: CpuView<'_, T>,
    out: StoredMut<'_, T>,
    f: impl Fn(T, T) -> T + Sync + Copy,
    of_bits: impl Fn(u16, u16) -> u16 + Sync + Copy,
) {
    let kernel = Kernel {
        numbers: &|dst, x| {
            simd::vectorized(loop_over(
                dst,
                x,
                #[inline(always)]
                |out, [a, b]| *out = f(a, b),
            ))
        },
        halves: Halves::Bits(&|dst, [a, b]| {
            simd::vectorized(
                #[inline(always)]
                || {
                    for (dst, (&a, &b)) in zip(&mut dst[..], zip(a, b)) {
                        *dst = of_bits(a, b);
                    }
                },
            );
        }),
        changes: false,
    };
    written(out, [a, b], kernel);
}
