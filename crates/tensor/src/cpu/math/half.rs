//! Conversions between the half types and `f32` that vectorise: exact upwards, to the nearest even downwards.
//!
//! The `half` crate's own conversions of single values ask the processor for its features each time.

use ::half::{bf16, f16};

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

#[cfg(test)]
mod tests {
    use super::*;

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
