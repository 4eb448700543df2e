//! What a processor must have: on x86-64 AVX2 and FMA, as Intel's since Haswell and AMD's since Zen have, except some
//! cheap ones.
//!
//! A kernel is compiled once for each instruction set that it may use. Each instruction set takes a seventh of the time
//! that this crate takes to compile.

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
        // `black_box` hides the condition from the compiler: if it can drop the loops for AVX-512, it makes slower
        // loops for AVX2.
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

/// On other processors, the compiler vectorizes for the baseline of the target.
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
