//! Conversions between `f16` and `f32` by F16C, which processors with AVX2 have. Intel 64 and IA-32 Architectures Software
//! Developer's Manual, volume 2, `VCVTPH2PS` and `VCVTPS2PH`.
//!
//! Unsafe code: calls of functions that are compiled for these instructions, and three of them in assembly.

use std::arch::asm;
use std::arch::x86_64::{__m128i, __m256, _MM_FROUND_TO_NEAREST_INT, _mm256_cvtps_ph};

/// A processor with the instructions, AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct F16c(());

impl F16c {
    /// Numbers that are converted together.
    pub(crate) const LANES: usize = 8;

    #[inline]
    pub(crate) fn new() -> Option<F16c> {
        let has_all =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        has_all.then_some(F16c(()))
    }

    /// Runs `work`, and everything that is inlined into it, compiled for the instructions.
    #[inline(always)]
    pub(crate) fn vectorized(self, work: impl FnOnce()) {
        // SAFETY: `new` saw that the processor has the instructions.
        unsafe { with_instructions(work) }
    }

    /// Widens the numbers exactly; NaN stays NaN. Call it inside of [`vectorized`](F16c::vectorized), where it is one
    /// instruction.
    #[inline(always)]
    pub(crate) fn widen(self, bits: &[u16; F16c::LANES]) -> [f32; F16c::LANES] {
        // SAFETY: `new` saw that the processor has the instruction.
        bytemuck::cast(unsafe { wide(bytemuck::cast(*bits)) })
    }

    /// Rounds to the nearest, ties to even; NaN stays NaN. Call it inside of [`vectorized`](F16c::vectorized).
    #[inline(always)]
    pub(crate) fn narrow(self, numbers: &[f32; F16c::LANES]) -> [u16; F16c::LANES] {
        // SAFETY: as for `widen`.
        bytemuck::cast(unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bytemuck::cast(*numbers)) })
    }

    /// One number, rounded as by [`narrow`](F16c::narrow) and widened again. May be called anywhere.
    #[inline(always)]
    pub(crate) fn rounded(self, x: f32) -> f32 {
        let rounded;
        // SAFETY: `new` saw that the processor has the instructions, which touch nothing but the two registers.
        unsafe {
            asm!(
                "vcvtps2ph {0}, {1}, 0",
                "vcvtph2ps {0}, {0}",
                out(xmm_reg) rounded, in(xmm_reg) x, options(pure, nomem, nostack, preserves_flags)
            );
        }
        rounded
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn with_instructions(work: impl FnOnce()) {
    work();
}

/// Not by `_mm256_cvtph_ps`, whose meaning the compiler knows: it then converts halves to whole numbers one by one.
#[target_feature(enable = "avx,f16c")]
#[inline]
fn wide(bits: __m128i) -> __m256 {
    let numbers;
    // SAFETY: the function is called on processors with the instruction, which touches nothing but the two registers.
    unsafe {
        asm!("vcvtph2ps {}, {}", out(ymm_reg) numbers, in(xmm_reg) bits, options(pure, nomem, nostack, preserves_flags));
    }
    numbers
}
