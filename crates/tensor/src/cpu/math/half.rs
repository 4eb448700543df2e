//! Conversions between the half types and `f32` that vectorise: exact upwards, to the nearest even downwards.
//!
//! The `half` crate's own conversions of single values ask the processor for its features each time.

use ::half::{bf16, f16};

use pulp::Arch;

use crate::cpu::vectorized;
use crate::element::DType;

/// A half type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    F16,
    BF16,
}

impl Half {
    /// The half type that elements of `dtype` are.
    pub(crate) fn of(dtype: DType) -> Option<Half> {
        match dtype {
            DType::F16 => Some(Half::F16),
            DType::BF16 => Some(Half::BF16),
            _ => None,
        }
    }

    /// Numbers, rounded, as their bits.
    pub(crate) fn bits_of<const N: usize>(self, numbers: [f32; N]) -> [u16; N] {
        let mut bits = [0; N];
        self.narrow(&numbers, &mut bits);
        bits
    }

    /// Widens numbers, given as their bits.
    pub(crate) fn widen(self, bits: &[u16], to: &mut [f32]) {
        let pairs = to.iter_mut().zip(bits);
        match (self, Arch::new()) {
            #[cfg(target_arch = "x86_64")]
            (Half::F16, Arch::V4(simd)) => avx512::widen(simd, bits, to),
            (Half::F16, _) => vectorized(
                #[inline(always)]
                || pairs.for_each(|(to, &bits)| *to = f16_to_f32(f16::from_bits(bits))),
            ),
            (Half::BF16, _) => vectorized(
                #[inline(always)]
                || pairs.for_each(|(to, &bits)| *to = bf16_to_f32(bf16::from_bits(bits))),
            ),
        }
    }

    /// Rounds numbers to the nearest, ties to even.
    pub(crate) fn narrow(self, from: &[f32], bits: &mut [u16]) {
        let pairs = bits.iter_mut().zip(from);
        match (self, Arch::new()) {
            #[cfg(target_arch = "x86_64")]
            (Half::F16, Arch::V4(simd)) => avx512::narrow(simd, from, bits),
            (Half::F16, _) => vectorized(
                #[inline(always)]
                || pairs.for_each(|(bits, &x)| *bits = f32_to_f16(x).to_bits()),
            ),
            (Half::BF16, _) => vectorized(
                #[inline(always)]
                || pairs.for_each(|(bits, &x)| *bits = f32_to_bf16(x).to_bits()),
            ),
        }
    }
}

/// The instructions that AVX-512 has for `f16`: three times as fast as the arithmetic below. They give the same but for the
/// bits of NaN.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use pulp::Simd;
    use pulp::x86::V4;

    use super::{f16, f16_to_f32, f32_to_f16};

    pub(super) fn widen(simd: V4, bits: &[u16], to: &mut [f32]) {
        let len = bits.len().min(to.len());
        let ((bits, last_bits), (to, last)) = (bits[..len].as_chunks::<16>(), to[..len].as_chunks_mut::<16>());
        Simd::vectorize(
            simd,
            #[inline(always)]
            || {
                for (to, &bits) in to.iter_mut().zip(bits) {
                    *to = bytemuck::cast(simd.avx512f._mm512_cvtph_ps(bytemuck::cast(bits)));
                }
            },
        );
        last.iter_mut().zip(last_bits).for_each(|(to, &bits)| *to = f16_to_f32(f16::from_bits(bits)));
    }

    pub(super) fn narrow(simd: V4, from: &[f32], bits: &mut [u16]) {
        const NEAREST: i32 = 0;
        let len = bits.len().min(from.len());
        let ((from, last), (bits, last_bits)) = (from[..len].as_chunks::<16>(), bits[..len].as_chunks_mut::<16>());
        Simd::vectorize(
            simd,
            #[inline(always)]
            || {
                for (bits, &x) in bits.iter_mut().zip(from) {
                    *bits = bytemuck::cast(simd.avx512f._mm512_cvtps_ph::<NEAREST>(bytemuck::cast(x)));
                }
            },
        );
        last_bits.iter_mut().zip(last).for_each(|(bits, &x)| *bits = f32_to_f16(x).to_bits());
    }
}

/// Exact; NaN stays NaN.
#[inline(always)]
pub(crate) fn f16_to_f32(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let magnitude = bits & 0x7fff;
    // Exponent and fraction moved into place, then the exponent's bias corrected by 2¹¹² (which normalises subnormals).
    let finite = (f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)).to_bits();
    let special = 0x7f80_0000 | magnitude << 13;
    let value = if magnitude >= 0x7c00 { special } else { finite };
    f32::from_bits(value | (bits & 0x8000) << 16)
}

/// To the nearest, ties to even; too large becomes infinite; NaN stays NaN.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> f16 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // The rounding carries into the exponent where it has to, up to infinity.
    let normal = magnitude.wrapping_add(0xfff + (magnitude >> 13 & 1)).wrapping_sub(112 << 23) >> 13;
    // One half has its last place where subnormals have theirs, so adding it rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let value = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let value = if magnitude >= 0x4780_0000 { 0x7c00 } else { value };
    let value = if magnitude > 0x7f80_0000 { 0x7e00 } else { value };
    f16::from_bits((value | bits >> 16 & 0x8000) as u16)
}

/// Exact.
#[inline(always)]
pub(crate) fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// To the nearest, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    bf16::from_bits(if x.is_nan() { nan } else { rounded } as u16)
}

/// So that rounding the result to a half type gives what rounding `x` once would: towards zero, and to an odd last bit
/// if that is not exact (S. Boldo, G. Melquiond, 2005, <https://hal.science/inria-00070603>). The `half` crate's own
/// conversion drops the lower half of `x`, and so takes a little more than a tie for a tie.
#[inline(always)]
pub(crate) fn f64_to_f32_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let wide = f64::from(nearest);
    let towards_zero = nearest.to_bits() - u32::from(wide.abs() > x.abs());
    if wide == x || x.is_nan() { nearest } else { f32::from_bits(towards_zero | 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every value of a half type, the middle between it and the next, and what is next to that middle in `f64`.
    #[test]
    fn wide_numbers_are_rounded_once() {
        for bits in 0..0x7bff_u16 {
            let [low, high] = [bits, bits + 1].map(|bits| f16::from_bits(bits).to_f64());
            let middle = (low + high) / 2.0;
            let even = f16::from_bits(if bits % 2 == 0 { bits } else { bits + 1 }).to_f64();
            let narrow = |x: f64| f32_to_f16(f64_to_f32_odd(x)).to_f64();
            assert_eq!([low, middle.next_down(), middle, middle.next_up()].map(narrow), [low, low, even, high]);
            assert_eq!(narrow(-middle.next_up()), -high);
        }
        for bits in 0..0x7f7f_u16 {
            let [low, high] = [bits, bits + 1].map(|bits| bf16::from_bits(bits).to_f64());
            let middle = (low + high) / 2.0;
            let even = bf16::from_bits(if bits % 2 == 0 { bits } else { bits + 1 }).to_f64();
            let narrow = |x: f64| f32_to_bf16(f64_to_f32_odd(x)).to_f64();
            assert_eq!([low, middle.next_down(), middle, middle.next_up()].map(narrow), [low, low, even, high]);
        }
        assert_eq!(f32_to_bf16(f64_to_f32_odd(1e300)), bf16::INFINITY);
        assert_eq!(f32_to_f16(f64_to_f32_odd(f64::NEG_INFINITY)), f16::NEG_INFINITY);
        assert!(f32_to_bf16(f64_to_f32_odd(f64::NAN)).is_nan());
    }

    #[test]
    fn every_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (x, y) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(f16_to_f32(x).to_bits() == x.to_f32().to_bits() || x.is_nan() && f16_to_f32(x).is_nan());
            assert!(bf16_to_f32(y).to_bits() == y.to_f32().to_bits() || y.is_nan() && bf16_to_f32(y).is_nan());
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even_as_the_half_crate_does() {
        let near_halves = (0..=u16::MAX).flat_map(|bits| {
            let exact = f16::from_bits(bits).to_f32().to_bits();
            let tie = exact.wrapping_add(0x1000);
            [exact, tie - 1, tie, tie + 1]
        });
        for x in near_halves.chain((0..=u32::MAX).step_by(4_093)).map(f32::from_bits) {
            let (small, brain) = (f32_to_f16(x), f32_to_bf16(x));
            assert!(small == f16::from_f32(x) || x.is_nan() && small.is_nan(), "{x:e} became {small}");
            assert!(brain == bf16::from_f32(x) || x.is_nan() && brain.is_nan(), "{x:e} became {brain}");
            assert_eq!(small.is_sign_negative(), x.is_sign_negative());
        }
    }
}
