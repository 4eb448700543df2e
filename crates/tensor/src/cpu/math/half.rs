//! Vectorized conversions between the half types and `f32`: widening is exact, narrowing rounds to nearest, ties to
//! even.
//!
//! The `half` crate's conversions of single values query the processor's features each time.

use ::half::{bf16, f16};
use pulp::Simd;

pub(crate) use crate::autocast::Half;
use crate::cpu::vectorized;
use crate::element::DType;
use crate::inlined::zip;
#[cfg(target_arch = "x86_64")]
use crate::lanes::F16c;
use crate::processor;

impl Half {
    /// The half type that `dtype` is, if it is one.
    pub(crate) fn of(dtype: DType) -> Option<Half> {
        match dtype {
            DType::F16 => Some(Half::F16),
            DType::BF16 => Some(Half::BF16),
            _ => None,
        }
    }

    /// The bits of numbers rounded to halves.
    pub(crate) fn bits_of<const N: usize>(self, numbers: [f32; N]) -> [u16; N] {
        let mut bits = [0; N];
        self.narrow(&numbers, &mut bits);
        bits
    }

    /// Widens halves, given as their bits.
    pub(crate) fn widen(self, bits: &[u16], to: &mut [f32]) {
        let Some(wide) = Wide::new(self) else { return self.widen_each(bits, to) };
        by_half!(wide, registers => in_blocks(
            registers, (bits, to), #[inline(always)] |bits| registers.widen(bits), |bits, to| self.widen_each(bits, to)
        ));
    }

    /// Rounds numbers to the nearest, ties to even.
    pub(crate) fn narrow(self, from: &[f32], bits: &mut [u16]) {
        let Some(wide) = Wide::new(self) else { return self.narrow_each(from, bits) };
        by_half!(wide, registers => in_blocks(
            registers, (from, bits), #[inline(always)] |x| registers.narrow(x), |from, bits| self.narrow_each(from, bits)
        ));
    }

    fn widen_each(self, bits: &[u16], to: &mut [f32]) {
        let pairs = zip(&mut to[..], bits);
        match self {
            Half::F16 => vectorized(inlined!(|| pairs.for_each(|(to, &bits)| *to = f16_to_f32(f16::from_bits(bits))))),
            Half::BF16 => {
                vectorized(inlined!(|| pairs.for_each(|(to, &bits)| *to = bf16_to_f32(bf16::from_bits(bits)))))
            }
        }
    }

    fn narrow_each(self, from: &[f32], bits: &mut [u16]) {
        let pairs = zip(&mut bits[..], from);
        match self {
            Half::F16 => vectorized(inlined!(|| pairs.for_each(|(bits, &x)| *bits = f32_to_f16(x).to_bits()))),
            Half::BF16 => vectorized(inlined!(|| pairs.for_each(|(bits, &x)| *bits = f32_to_bf16(x).to_bits()))),
        }
    }
}

/// Converts whole blocks in registers, and the elements behind them by `each`.
fn in_blocks<A, B>(
    registers: impl Registers,
    (from, to): (&[A], &mut [B]),
    block: impl Fn(&[A; BLOCK]) -> [B; BLOCK],
    each: impl FnOnce(&[A], &mut [B]),
) {
    let len = from.len().min(to.len());
    let ((from, last_from), (to, last)) = (from[..len].as_chunks(), to[..len].as_chunks_mut());
    registers.vectorized_where_faster(inlined!(|| {
        for (to, from) in zip(&mut to[..], from) {
            *to = block(from);
        }
    }));
    each(last_from, last);
}

/// The number of halves that are converted at once. With fewer, the compiler does not vectorize the formula between
/// the conversions.
pub(crate) const BLOCK: usize = 32;

/// The bits of a block of halves.
pub(crate) type Block = [u16; BLOCK];

/// The conversions of one half type in registers. A loop is compiled for each implementation.
pub(crate) trait Registers: Copy {
    const HALF: Half;
    /// Runs `work` compiled for these registers.
    fn vectorized(self, work: impl FnOnce());
    /// Runs `work` compiled for AVX-512, too, as [`vectorized_widely`](crate::cpu::vectorized_widely) does.
    #[inline(always)]
    fn vectorized_widely(self, work: impl FnOnce()) {
        match processor::wide_vectors() {
            Some(simd) => Simd::vectorize(simd, work),
            None => self.vectorized(work),
        }
    }
    /// Runs `work` compiled for AVX-512, too, if this makes short formulas and conversions faster. Conversions of
    /// `f16` take eight numbers at once in any case, and take a tenth longer among longer vectors.
    #[inline(always)]
    fn vectorized_where_faster(self, work: impl FnOnce()) {
        self.vectorized(work);
    }
    /// Widens a block.
    fn widen(self, bits: &Block) -> [f32; BLOCK];
    /// Rounds a block to nearest, ties to even.
    fn narrow(self, numbers: &[f32; BLOCK]) -> Block;
    /// Rounds one number, and widens it again.
    fn rounded(self, x: f32) -> f32;
    /// Rounds doubles once, if the processor has instructions for it. Returns whether it has.
    fn narrow_doubles(self, _doubles: &[f64], _bits: &mut [u16]) -> bool {
        false
    }
    /// Widens a block, in whatever order is fastest.
    #[inline(always)]
    fn widen_in_any_order(self, bits: &Block) -> [f32; BLOCK] {
        self.widen(bits)
    }
    /// [`narrow`](Registers::narrow) of numbers in the order of [`widen_in_any_order`](Registers::widen_in_any_order).
    #[inline(always)]
    fn narrow_in_that_order(self, numbers: &[f32; BLOCK]) -> Block {
        self.narrow(numbers)
    }
}

/// The same conversions for code in which the order within a block does not matter: they use the fastest order.
#[derive(Clone, Copy)]
pub(crate) struct InAnyOrder<R>(pub(crate) R);

impl<R: Registers> Registers for InAnyOrder<R> {
    const HALF: Half = R::HALF;
    #[inline(always)]
    fn vectorized(self, work: impl FnOnce()) {
        self.0.vectorized(work);
    }
    #[inline(always)]
    fn widen(self, bits: &Block) -> [f32; BLOCK] {
        self.0.widen_in_any_order(bits)
    }
    #[inline(always)]
    fn narrow(self, numbers: &[f32; BLOCK]) -> Block {
        self.0.narrow_in_that_order(numbers)
    }
    #[inline(always)]
    fn rounded(self, x: f32) -> f32 {
        self.0.rounded(x)
    }
}

/// The conversions that this processor does in registers.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "other processors have no such instructions"))]
pub(crate) enum Wide {
    F16(wide::F16),
    BF16(wide::BF16),
}

impl Wide {
    /// `None` if this processor has no instructions for it.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn new(half: Half) -> Option<Wide> {
        match half {
            Half::F16 => F16c::new().map(|instructions| Wide::F16(wide::F16(instructions))),
            Half::BF16 => Some(Wide::BF16(wide::BF16(processor::vectors()))),
        }
    }

    /// `None`: this processor has no instructions for it.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    pub(crate) fn new(_: Half) -> Option<Wide> {
        None
    }
}

/// `by_half! { wide, registers => work }`: the work, compiled for the registers of both half types. In
/// `by_half! { if T::HAS_HALVES, wide, registers => work }` it is compiled only for types `T` that have halves.
macro_rules! by_half {
    (if $has_halves:expr, $($work:tt)*) => {
        if const { $has_halves } {
            $crate::cpu::math::half::by_half!($($work)*)
        } else {
            unreachable!("halves compute in f32")
        }
    };
    ($wide:expr, $registers:ident => $work:expr) => {
        match $wide {
            $crate::cpu::math::half::Wide::F16($registers) => $work,
            $crate::cpu::math::half::Wide::BF16($registers) => $work,
        }
    };
}
pub(crate) use by_half;

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{_MM_FROUND_NO_EXC, _MM_FROUND_TO_ZERO};

    use pulp::Simd;
    use pulp::x86::V3;

    use super::{
        BLOCK, Block, F16c, Half, Registers, bf16, bf16_to_f32, each, f32_to_f16, f64_to_f32_odd, processor,
        rounded_above, zip,
    };

    /// Uses the processor's instructions: they are faster than the arithmetic below, and differ only in the bits of
    /// NaN.
    #[derive(Clone, Copy)]
    pub(crate) struct F16(pub(super) F16c);

    impl Registers for F16 {
        const HALF: Half = Half::F16;

        #[inline(always)]
        fn vectorized(self, work: impl FnOnce()) {
            self.0.vectorized(work);
        }

        #[inline(always)]
        fn widen(self, bits: &Block) -> [f32; BLOCK] {
            let (mut numbers, mut i) = ([0.0; BLOCK], 0);
            while i < BLOCK / F16c::LANES {
                numbers.as_chunks_mut().0[i] = self.0.widen(&bits.as_chunks().0[i]);
                i += 1;
            }
            numbers
        }

        #[inline(always)]
        fn narrow(self, numbers: &[f32; BLOCK]) -> Block {
            let (mut bits, mut i) = ([0; BLOCK], 0);
            while i < BLOCK / F16c::LANES {
                bits.as_chunks_mut().0[i] = self.0.narrow(&numbers.as_chunks().0[i]);
                i += 1;
            }
            bits
        }

        #[inline(always)]
        fn rounded(self, x: f32) -> f32 {
            self.0.rounded(x)
        }

        /// Uses AVX-512, as [`f64_to_f32_odd`] would but with all bits of `f32`. Numbers that are too small or too
        /// large for `f32` are 0 or infinite in `f16`.
        fn narrow_doubles(self, doubles: &[f64], bits: &mut [u16]) -> bool {
            const TO_ZERO: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
            const BEHIND: i64 = (1 << 29) - 1;
            let Some(simd) = processor::wide_vectors() else { return false };
            let ((doubles, last), (bits, last_bits)) = (doubles.as_chunks(), bits.as_chunks_mut());
            Simd::vectorize(
                simd,
                inlined!(|| {
                    let (behind, one) = (simd.avx512f._mm512_set1_epi64(BEHIND), simd.avx._mm256_set1_epi32(1));
                    let bits = &mut bits[..doubles.len()];
                    for (i, doubles) in doubles.iter().enumerate() {
                        let doubles: [f64; F16c::LANES] = *doubles;
                        let towards_zero = simd.avx512f._mm512_cvt_roundpd_ps::<TO_ZERO>(bytemuck::cast(doubles));
                        let are_more = simd.avx512f._mm512_test_epi64_mask(bytemuck::cast(doubles), behind);
                        let towards_zero = bytemuck::cast(towards_zero);
                        let odd = simd.avx512vl._mm256_mask_or_epi32(towards_zero, are_more, towards_zero, one);
                        bits[i] = self.0.narrow(&bytemuck::cast(odd));
                    }
                }),
            );
            zip(last_bits, last).for_each(|(bits, &x)| *bits = f32_to_f16(f64_to_f32_odd(x)).to_bits());
            true
        }
    }

    #[derive(Clone, Copy)]
    pub(crate) struct BF16(pub(super) V3);

    impl BF16 {
        /// The lower halves of numbers whose upper halves are 0. A compiled loop takes a tenth longer, and after
        /// conversions from `f64` a third.
        #[inline(always)]
        fn packed(self, [a, b]: [[u32; 8]; 2]) -> [u16; 16] {
            let lanes = self.0.avx2._mm256_packus_epi32(bytemuck::cast(a), bytemuck::cast(b));
            bytemuck::cast(self.0.avx2._mm256_permute4x64_epi64::<0b11_01_10_00>(lanes))
        }
    }

    impl Registers for BF16 {
        const HALF: Half = Half::BF16;

        #[inline(always)]
        fn vectorized(self, work: impl FnOnce()) {
            Simd::vectorize(self.0, work);
        }

        #[inline(always)]
        fn vectorized_where_faster(self, work: impl FnOnce()) {
            self.vectorized_widely(work);
        }

        #[inline(always)]
        fn widen(self, bits: &Block) -> [f32; BLOCK] {
            each(bits, inlined!(|bits| bf16_to_f32(bf16::from_bits(bits))))
        }

        #[inline(always)]
        fn narrow(self, numbers: &[f32; BLOCK]) -> Block {
            let rounded: [[[u32; 8]; 2]; BLOCK / 16] =
                bytemuck::cast(each(numbers, inlined!(|x| rounded_above(x) >> 16)));
            let (mut bits, mut i) = ([[0; 16]; BLOCK / 16], 0);
            while i < BLOCK / 16 {
                bits[i] = self.packed(rounded[i]);
                i += 1;
            }
            bytemuck::cast(bits)
        }

        #[inline(always)]
        fn rounded(self, x: f32) -> f32 {
            f32::from_bits(rounded_above(x) & 0xffff_0000)
        }

        /// First the second elements of pairs, which are where `f32` has its upper bits, then the first elements:
        /// nothing moves to another register.
        #[inline(always)]
        fn widen_in_any_order(self, bits: &Block) -> [f32; BLOCK] {
            let pairs: [u32; BLOCK / 2] = bytemuck::cast(*bits);
            let mut numbers = [[0.0; BLOCK / 2]; 2];
            for (i, pair) in pairs.into_iter().enumerate() {
                (numbers[0][i], numbers[1][i]) = (f32::from_bits(pair & 0xffff_0000), f32::from_bits(pair << 16));
            }
            bytemuck::cast(numbers)
        }

        #[inline(always)]
        fn narrow_in_that_order(self, numbers: &[f32; BLOCK]) -> Block {
            let [second, first]: [[f32; BLOCK / 2]; 2] = bytemuck::cast(*numbers);
            let mut pairs = [0; BLOCK / 2];
            for (i, pair) in pairs.iter_mut().enumerate() {
                *pair = rounded_above(second[i]) & 0xffff_0000 | rounded_above(first[i]) >> 16;
            }
            bytemuck::cast(pairs)
        }
    }
}

/// There are no such registers.
#[cfg(not(target_arch = "x86_64"))]
mod wide {
    use std::convert::Infallible;

    use super::{BLOCK, Block, Half, Registers};

    pub(crate) type F16 = Infallible;
    pub(crate) type BF16 = Infallible;

    impl Registers for Infallible {
        const HALF: Half = Half::F16;

        fn vectorized(self, _: impl FnOnce()) {
            match self {}
        }

        fn widen(self, _: &Block) -> [f32; BLOCK] {
            match self {}
        }

        fn narrow(self, _: &[f32; BLOCK]) -> Block {
            match self {}
        }

        fn rounded(self, _: f32) -> f32 {
            match self {}
        }
    }
}

/// `from.map(f)`, which the compiler does not inline where instructions are chosen at run time.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn each<A: Copy, B: Copy + Default>(from: &[A; BLOCK], f: impl Fn(A) -> B) -> [B; BLOCK] {
    let mut to = [B::default(); BLOCK];
    for (to, &from) in zip(&mut to[..], from) {
        *to = f(from);
    }
    to
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

/// Rounds to nearest, ties to even. Numbers that are too large become infinite, and NaN stays NaN.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> f16 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // The rounding carries into the exponent where it has to, up to infinity.
    let normal = magnitude.wrapping_add(0xfff + (magnitude >> 13 & 1)).wrapping_sub(112 << 23) >> 13;
    // The last bit of 0.5 is worth as much as the last bit of a subnormal half, so adding 0.5 rounds.
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

/// Rounds to nearest, ties to even. NaN stays NaN.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> bf16 {
    bf16::from_bits((rounded_above(x) >> 16) as u16)
}

/// Bits whose upper half is the number as a `bf16`.
#[inline(always)]
fn rounded_above(x: f32) -> u32 {
    let bits = x.to_bits();
    // A tie is rounded such that the last bit is even.
    let rounded = bits.wrapping_add(if bits & 1 << 16 == 0 { 0x7fff } else { 0x8000 });
    if x.is_nan() { bits | 0x40_0000 } else { rounded }
}

/// Converts such that rounding the result to a half type gives what rounding `x` once would give. It keeps 14 bits of
/// the fraction, rounded toward zero, and sets the last one if that is not exact (S. Boldo, G. Melquiond, 2005,
/// <https://hal.science/inria-00070603>). Even among the smallest halves of either type, `f32` has more bits than
/// they have. The `half` crate's own conversion drops the lower half of `x`, so that it takes a number just above a
/// tie for a tie.
#[inline(always)]
pub(crate) fn f64_to_f32_odd(x: f64) -> f32 {
    const BEHIND: u64 = (1 << 38) - 1;
    let bits = x.to_bits();
    // Any bit behind the last one that is kept carries into it.
    let odd = (bits | ((bits & BEHIND) + BEHIND)) & !BEHIND;
    f64::from_bits(odd) as f32
}

/// [`f64_to_f32_odd`] for an `i32`: it keeps 23 bits, and sets the last one if that is not exact.
#[inline(always)]
pub(crate) fn i32_to_f32_odd(x: i32) -> f32 {
    let is_exact = x.unsigned_abs() < 1 << 24;
    let odd = (x | ((x & 0xff) + 0xff)) & !0xff;
    (if is_exact { x } else { odd }) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests every value of a half type, the midpoint between it and the next, and the neighbors of the midpoint in
    /// `f64`.
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
    fn doubles_are_rounded_once_by_instructions() {
        let Some(Wide::F16(registers)) = Wide::new(Half::F16) else { return };
        let near = |bits: u16| {
            let [low, high] = [bits, bits + 1].map(|bits| f16::from_bits(bits).to_f64());
            let middle = (low + high) / 2.0;
            [low, low.next_up(), middle.next_down(), middle, middle.next_up(), -middle, low * 1e-300, low * 1e300]
        };
        let mut numbers: Vec<f64> = (0..0x7bff).flat_map(near).collect();
        numbers.extend([f64::INFINITY, f64::MIN_POSITIVE, -f64::MAX, 65519.999, 65520.0]);
        let mut bits = vec![0; numbers.len()];
        if registers.narrow_doubles(&numbers, &mut bits) {
            let expected = numbers.iter().map(|&x| f32_to_f16(f64_to_f32_odd(x)).to_bits());
            assert!(bits.iter().copied().eq(expected));
            let mut bits = [0; 9];
            registers.narrow_doubles(&[f64::NAN; 9], &mut bits);
            assert!(bits.into_iter().all(|bits| f16::from_bits(bits).is_nan()));
        }
    }

    #[test]
    fn whole_numbers_are_rounded_once() {
        let near_ties = (0..=u16::MAX).flat_map(|high| [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| (high, low)));
        for (high, low) in near_ties {
            let x = (i32::from(high) << 16 | low).wrapping_add(0x80);
            for x in [x, x >> 5, x >> 9, x >> 15] {
                let (odd, wide) = (i32_to_f32_odd(x), f64_to_f32_odd(f64::from(x)));
                assert_eq!(f32_to_bf16(odd), f32_to_bf16(wide), "{x}");
                assert_eq!(f32_to_f16(odd), f32_to_f16(wide), "{x}");
            }
        }
    }

    #[test]
    fn every_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (x, y) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(f16_to_f32(x).to_bits() == x.to_f32().to_bits() || x.is_nan() && f16_to_f32(x).is_nan());
            assert!(bf16_to_f32(y).to_bits() == y.to_f32().to_bits() || y.is_nan() && bf16_to_f32(y).is_nan());
        }
    }

    /// Also with lengths that are not whole blocks.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn instructions_convert_as_the_arithmetic_does() {
        if F16c::new().is_none() {
            return println!("skipped: this processor has no F16C");
        }
        let all: Vec<u16> = (0..=u16::MAX).collect();
        for len in [0, 1, 31, 32, 33, all.len() - 3, all.len()] {
            let (mut wide, mut bits) = (vec![0.0; len], vec![0; len]);
            Half::F16.widen(&all[..len], &mut wide);
            // Each half, and numbers below, at and above the midpoint between it and the next.
            for offset in [0, 0xfff, 0x1000, 0x1001] {
                let numbers: Vec<f32> = wide.iter().map(|x| f32::from_bits(x.to_bits() + offset)).collect();
                Half::F16.narrow(&numbers, &mut bits);
                for (&x, &bits) in numbers.iter().zip(&bits) {
                    let (found, expected) = (f16::from_bits(bits), f32_to_f16(x));
                    assert!(bits == expected.to_bits() || x.is_nan() && found.is_nan(), "{x:e} became {found}");
                }
            }
            for (&x, &bits) in wide.iter().zip(&all) {
                let expected = f16_to_f32(f16::from_bits(bits));
                assert!(x.to_bits() == expected.to_bits() || x.is_nan() && expected.is_nan(), "{bits:x} became {x:e}");
            }
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
