//! Elementwise loops with a second formula: for rare numbers, or for the bits of halves. See `map.rs`.

use super::kernel::{Halves, Kernel, loop_over};
use super::map::written;
use super::{CpuView, StoredMut, simd};
use crate::element::Computing;
use crate::inlined::{zip, zip_all};

/// `with_second_formula! { except, by_bits: operand: its type, that of its bits; … . }`: both loops for formulas of these
/// operands.
macro_rules! with_second_formula {
    ($($(#[$of_except:meta])* $except:ident, $(#[$of_bits:meta])* $by_bits:ident: $($x:ident: $T:ident, $bits:ident);+ .)+) => {$(
        $(#[$of_except])*
        pub(crate) fn $except<T: Computing>(
            $($x: CpuView<'_, T>,)+
            out: StoredMut<'_, T>,
            f: impl Fn($($T),+) -> T + Sync + Copy,
            (is_rare, rare): (impl Fn($($T),+) -> bool + Sync + Copy, impl Fn($($T),+) -> T + Sync + Copy),
        ) {
            let kernel = Kernel {
                numbers: &|dst, x| {
                    let any_is_rare = simd::vectorized_widely(
                        inlined!(|| {
                            let mut any = false;
                            for (dst, [$($x),+]) in zip(&mut dst[..], zip_all(x)) {
                                any |= is_rare($($x),+);
                                *dst = f($($x),+);
                            }
                            any
                        }),
                    );
                    if any_is_rare {
                        for (dst, [$($x),+]) in zip(&mut dst[..], zip_all(x)) {
                            if is_rare($($x),+) {
                                *dst = rare($($x),+);
                            }
                        }
                    }
                },
                halves: Halves::Numbers,
                changes: false,
            };
            written(out, [$($x),+], kernel);
        }

        $(#[$of_bits])*
        pub(crate) fn $by_bits<T: Computing>(
            $($x: CpuView<'_, T>,)+
            out: StoredMut<'_, T>,
            f: impl Fn($($T),+) -> T + Sync + Copy,
            of_bits: impl Fn($($bits),+) -> u16 + Sync + Copy,
        ) {
            let kernel = Kernel {
                numbers: &|dst, x| simd::vectorized(loop_over(dst, x, #[inline(always)] |out, [$($x),+]| *out = f($($x),+))),
                halves: Halves::Bits(&|dst, x| {
                    simd::vectorized(
                        inlined!(|| {
                            for (dst, [$($x),+]) in zip(&mut dst[..], zip_all(&x)) {
                                *dst = of_bits($($x),+);
                            }
                        }),
                    );
                }),
                changes: false,
            };
            written(out, [$($x),+], kernel);
        }
    )+};
}

with_second_formula! {
    /// [`map1_longest`](super::map1_longest), except that `rare` computes the numbers for which `is_rare` holds, one by
    /// one.
    map1_except,
    /// [`map1`](super::map1) for a formula that `of_bits` computes on the bits of halves.
    map1_by_bits: x: T, u16.
    /// [`map2_longest`](super::map2_longest), except that `rare` computes the pairs for which `is_rare` holds, one by
    /// one.
    map2_except,
    /// [`map2`](super::map2) for a formula that `of_bits` computes on the bits of halves.
    map2_by_bits: a: T, u16; b: T, u16.
}
