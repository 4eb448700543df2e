//! Vectors that are multiplied and added up: of `f32`, of `f64`, or of `bf16` with sums in `f32`.
//!
//! Kernels are generic over a [`Multiplier`]. The ones for `bf16` need an instruction of x86 (AVX512-BF16, from
//! 2020), and are twice as fast as products in `f32`. The instruction adds two products to a sum, and treats
//! subnormal numbers as zero, as PyTorch's products of `bf16` do.
//!
//! Unsafe code: that instruction, the one that rounds its sums, and the call of a function that is compiled for them.

use std::marker::PhantomData;

use bytemuck::Pod;
#[cfg(target_arch = "x86_64")]
use pulp::core_arch::x86::Avx512bf16;
use pulp::{Simd, WithSimd};
#[cfg(target_arch = "x86_64")]
use pulp::{u16x32, u32x16, x86::V4};

use super::Lanes;
use crate::element::Real;
#[cfg(target_arch = "x86_64")]
use crate::inlined::Slice;
#[cfg(target_arch = "x86_64")]
use crate::processor;

/// How vectors of factors are multiplied, and their products added up.
pub(crate) trait Multiplier: Copy + Send + Sync {
    /// The instruction set.
    type Simd: Simd;
    /// A number to be multiplied.
    type Factor: Pod + Send + Sync;
    /// A vector of factors.
    type Factors: Pod;
    /// The type of sums of products.
    type Sum: Real;

    fn simd(self) -> Self::Simd;
    /// Runs `work`, compiled for the instruction set, with what is inlined into it.
    fn vectorize<W: WithSimd>(self, work: W) -> W::Output;
    /// The same factor everywhere.
    fn splat(self, factor: Self::Factor) -> Self::Factors;
    /// The first factors of the slice, as many as fit; zeros where it is too short.
    fn load(self, from: &[Self::Factor]) -> Self::Factors;
    /// The whole vectors of a slice.
    fn vectors(from: &[Self::Factor]) -> &[Self::Factors];
    /// `sums + a · b`; where there are more factors than sums, neighbors are added up.
    fn add_products(self, a: Self::Factors, b: Self::Factors, sums: SumsOf<Self>) -> SumsOf<Self>;

    /// Factors per vector.
    fn lanes() -> usize {
        size_of::<Self::Factors>() / size_of::<Self::Factor>()
    }
    /// The same sum everywhere.
    #[inline(always)]
    fn sums(self, start: Self::Sum) -> SumsOf<Self> {
        Self::Sum::splat(self.simd(), start)
    }
}

/// The vector of a multiplier's sums.
pub(crate) type SumsOf<M> = <<M as Multiplier>::Sum as Lanes>::Vector<<M as Multiplier>::Simd>;

/// `f32` and `f64`.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<S, R>(S, PhantomData<R>);

impl<S, R> Numbers<S, R> {
    pub(crate) fn new(simd: S) -> Self {
        Numbers(simd, PhantomData)
    }
}

impl<S: Simd, R: Real> Multiplier for Numbers<S, R> {
    type Simd = S;
    type Factor = R;
    type Factors = R::Vector<S>;
    type Sum = R;

    #[inline(always)]
    fn simd(self) -> S {
        self.0
    }
    #[inline(always)]
    fn vectorize<W: WithSimd>(self, work: W) -> W::Output {
        self.0.vectorize(work)
    }
    #[inline(always)]
    fn splat(self, factor: R) -> R::Vector<S> {
        R::splat(self.0, factor)
    }
    #[inline(always)]
    fn load(self, from: &[R]) -> R::Vector<S> {
        R::load(self.0, from)
    }
    #[inline(always)]
    fn vectors(from: &[R]) -> &[R::Vector<S>] {
        R::vectors::<S>(from)
    }
    #[inline(always)]
    fn add_products(self, a: R::Vector<S>, b: R::Vector<S>, sums: R::Vector<S>) -> R::Vector<S> {
        R::mul_add(self.0, a, b, sums)
    }
}

/// `bf16` numbers, given as their bits; a sum adds up the products of two neighbors.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Bf16 {
    pub(crate) simd: V4,
    _instruction: Avx512bf16,
}

/// Pairs of `bf16` numbers, the first in the lower half; a sum adds up the two products of a pair.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct PairsOfBf16(pub(crate) Bf16);

#[cfg(target_arch = "x86_64")]
impl Bf16 {
    /// `None` on processors without the instruction.
    pub(crate) fn new() -> Option<Bf16> {
        #[cfg(test)]
        if super::testing::is_forced() {
            return None;
        }
        Some(Bf16 { simd: processor::wide_vectors()?, _instruction: Avx512bf16::try_new()? })
    }

    #[inline(always)]
    fn run<W: WithSimd>(self, work: W) -> W::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16,avx2,fma,bmi1,bmi2,lzcnt")]
        fn run<W: WithSimd>(simd: V4, work: W) -> W::Output {
            work.with_simd(simd)
        }
        // SAFETY: both fields are made only on processors that have their instructions.
        unsafe { run(self.simd, work) }
    }

    #[inline(always)]
    fn add(self, a: [u32; 16], b: [u32; 16], sums: pulp::f32x16) -> pulp::f32x16 {
        use std::arch::x86_64::_mm512_dpbf16_ps;
        let (a, b, sums) = (bytemuck::cast(a), bytemuck::cast(b), bytemuck::cast(sums));
        // SAFETY: `_instruction` is made only on processors that have it.
        bytemuck::cast(unsafe { _mm512_dpbf16_ps(sums, a, b) })
    }

    /// Rounds sums of this multiplier to the bits of `bf16`, to nearest, ties to even. Like the products, the
    /// rounding treats subnormal numbers as zero, but the sums are never subnormal.
    #[inline(always)]
    pub(crate) fn rounded_sums(self, sums: &[f32; 32]) -> [u16; 32] {
        use std::arch::x86_64::_mm512_cvtne2ps_pbh;
        let [first, last]: [[f32; 16]; 2] = bytemuck::cast(*sums);
        let (first, last) = (bytemuck::cast(first), bytemuck::cast(last));
        // SAFETY: `_instruction` is made only on processors that have it.
        bytemuck::cast(unsafe { _mm512_cvtne2ps_pbh(last, first) })
    }
}

#[cfg(target_arch = "x86_64")]
impl Multiplier for Bf16 {
    type Simd = V4;
    type Factor = u16;
    type Factors = u16x32;
    type Sum = f32;

    #[inline(always)]
    fn simd(self) -> V4 {
        self.simd
    }
    #[inline(always)]
    fn vectorize<W: WithSimd>(self, work: W) -> W::Output {
        self.run(work)
    }
    #[inline(always)]
    fn splat(self, factor: u16) -> u16x32 {
        bytemuck::cast([factor; 32])
    }
    #[inline(always)]
    fn load(self, from: &[u16]) -> u16x32 {
        let mut factors = [0; 32];
        let n = from.len().min(32);
        factors[..n].copy_from(&from[..n]);
        bytemuck::cast(factors)
    }
    #[inline(always)]
    fn vectors(from: &[u16]) -> &[u16x32] {
        V4::as_simd_u16s(from).0
    }
    #[inline(always)]
    fn add_products(self, a: u16x32, b: u16x32, sums: pulp::f32x16) -> pulp::f32x16 {
        self.add(bytemuck::cast(a), bytemuck::cast(b), sums)
    }
}

#[cfg(target_arch = "x86_64")]
impl Multiplier for PairsOfBf16 {
    type Simd = V4;
    type Factor = u32;
    type Factors = u32x16;
    type Sum = f32;

    #[inline(always)]
    fn simd(self) -> V4 {
        self.0.simd
    }
    #[inline(always)]
    fn vectorize<W: WithSimd>(self, work: W) -> W::Output {
        self.0.run(work)
    }
    #[inline(always)]
    fn splat(self, factor: u32) -> u32x16 {
        self.0.simd.splat_u32x16(factor)
    }
    #[inline(always)]
    fn load(self, from: &[u32]) -> u32x16 {
        self.0.simd.partial_load_u32s(from)
    }
    #[inline(always)]
    fn vectors(from: &[u32]) -> &[u32x16] {
        V4::as_simd_u32s(from).0
    }
    #[inline(always)]
    fn add_products(self, a: u32x16, b: u32x16, sums: pulp::f32x16) -> pulp::f32x16 {
        self.0.add(bytemuck::cast(a), bytemuck::cast(b), sums)
    }
}
