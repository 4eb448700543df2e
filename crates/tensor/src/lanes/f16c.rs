//! Conversions between `f16` and `f32` by F16C, which processors with AVX2 have. Intel 64 and IA-32 Architectures Software
//! Developer's Manual, volume 2, `VCVTPH2PS` and `VCVTPS2PH`.
//!
//! Unsafe: calls of functions that are compiled for it.

use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph};

use crate::inlined::{Slice, zip};

/// Numbers that are converted together.
const LANES: usize = 8;

/// A processor with the instructions.
#[derive(Clone, Copy)]
pub(crate) struct F16c(());

impl F16c {
    #[inline]
    pub(crate) fn new() -> Option<F16c> {
        (is_x86_feature_detected!("avx") && is_x86_feature_detected!("f16c")).then_some(F16c(()))
    }

    /// Widens as many numbers as there is room for; NaN stays NaN.
    pub(crate) fn widen(self, bits: &[u16], to: &mut [f32]) {
        let len = bits.len().min(to.len());
        let ((bits, last_bits), (to, last)) = (bits[..len].as_chunks(), to[..len].as_chunks_mut());
        // SAFETY: `new` saw that the processor has the instructions.
        unsafe { widen(bits, to) };
        if !last.is_empty() {
            let (mut filled, mut widened) = ([0; LANES], [[0.0; LANES]]);
            filled[..last.len()].copy_from(last_bits);
            // SAFETY: as above.
            unsafe { widen(&[filled], &mut widened) };
            last.copy_from(&widened[0][..last.len()]);
        }
    }

    /// Rounds as many numbers as there is room for to the nearest, ties to even; NaN stays NaN.
    pub(crate) fn narrow(self, from: &[f32], bits: &mut [u16]) {
        let len = from.len().min(bits.len());
        let ((from, last), (bits, last_bits)) = (from[..len].as_chunks(), bits[..len].as_chunks_mut());
        // SAFETY: `new` saw that the processor has the instructions.
        unsafe { narrow(from, bits) };
        if !last.is_empty() {
            let (mut filled, mut narrowed) = ([0.0; LANES], [[0; LANES]]);
            filled[..last.len()].copy_from(last);
            // SAFETY: as above.
            unsafe { narrow(&[filled], &mut narrowed) };
            last_bits.copy_from(&narrowed[0][..last.len()]);
        }
    }
}

#[target_feature(enable = "avx,f16c")]
fn widen(bits: &[[u16; LANES]], to: &mut [[f32; LANES]]) {
    for (to, bits) in zip(to, bits) {
        *to = bytemuck::cast(_mm256_cvtph_ps(bytemuck::cast(*bits)));
    }
}

#[target_feature(enable = "avx,f16c")]
fn narrow(from: &[[f32; LANES]], bits: &mut [[u16; LANES]]) {
    for (bits, from) in zip(bits, from) {
        *bits = bytemuck::cast(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bytemuck::cast(*from)));
    }
}
