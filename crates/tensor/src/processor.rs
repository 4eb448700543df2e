//! What a processor must have: on x86-64 AVX2 and FMA, as Haswell, Zen and all later ones have.
//!
//! Kernels are compiled for each instruction set that they choose from, and each instruction set takes a
//! seventh of the compiler's time for this crate.

use pulp::Arch;

use crate::error::{Error, Result};

/// Returns an error on a processor for which no kernels are compiled.
#[inline]
pub(crate) fn check() -> Result<()> {
    // One relaxed load: pulp remembers what it detected.
    let lacks_vectors = cfg!(target_arch = "x86_64") && matches!(Arch::new(), Arch::Scalar);
    if lacks_vectors { Err(Error::Processor) } else { Ok(()) }
}

/// The instruction set that all kernels are compiled for.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn vectors() -> pulp::x86::V3 {
    match Arch::new() {
        Arch::V4(simd) => *simd,
        Arch::V3(simd) => simd,
        _ => unreachable!("`check` refuses such processors"),
    }
}

/// AVX-512, for which some kernels are compiled as well, if the processor has it. `--cfg avx2_alone` makes a build
/// that does not use it, to test and to measure what other processors run.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn wide_vectors() -> Option<pulp::x86::V4> {
    match Arch::new() {
        // `black_box` hides the condition from the compiler, which makes slower loops for AVX2 if it can drop the
        // other ones.
        Arch::V4(_) if cfg!(avx2_alone) && std::hint::black_box(true) => None,
        Arch::V4(simd) => Some(simd),
        _ => None,
    }
}

/// The instruction set that all kernels are compiled for: 64-bit ARM always has it.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(crate) fn vectors() -> pulp::aarch64::Neon {
    match Arch::new() {
        Arch::Neon(simd) => simd,
        _ => unreachable!("64-bit ARM has NEON"),
    }
}

/// On other processors, the compiler makes vectors of the baseline.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
pub(crate) fn vectors() -> pulp::Scalar128b {
    pulp::Scalar128b
}

/// Other processors have no wide vectors.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(crate) fn wide_vectors() -> Option<pulp::Scalar128b> {
    None
}
