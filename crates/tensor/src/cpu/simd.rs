//! Run-time choice of the instruction set.

/// Runs `work` compiled for the widest vectors this machine has (AVX-512, AVX2, NEON or the baseline).
///
/// Only what is inlined into `work` gets them: mark helpers `#[inline(always)]`, and closures that are longer than a
/// few operations too. Loops must give the same bits for every instruction set, so no fused multiply-add.
#[inline(always)]
pub(crate) fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    // One relaxed load: pulp remembers what it detected.
    pulp::Arch::new().dispatch(work)
}
