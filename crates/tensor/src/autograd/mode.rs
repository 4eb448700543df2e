//! Whether operations are recorded, per thread.

use std::cell::Cell;

use crate::thread_value::with_value;

thread_local! {
    static RECORDING: Cell<bool> = const { Cell::new(true) };
}

/// Whether operations on this thread are recorded for `backward`.
pub fn is_grad_enabled() -> bool {
    RECORDING.get()
}

/// Runs `f` without recording: results do not require a gradient, and tensors that require one may be changed in place.
///
/// ```
/// # use pagelock_tensor::{Result, Tensor, no_grad};
/// let w = Tensor::ones([2])?.set_requires_grad(true);
/// let y = no_grad(|| &w * 2.0)?;
/// assert!(!y.requires_grad());
/// no_grad(|| -> Result<()> {
///     w.mul_(&y)?;
///     w.clamp_(-1.5, 1.5)
/// })?;
/// assert_eq!(w.to_vec::<f32>()?, [1.5, 1.5]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    with_grad_enabled(false, f)
}

/// Runs `f` with recording switched on, for a training step inside `no_grad`.
pub fn enable_grad<R>(f: impl FnOnce() -> R) -> R {
    with_grad_enabled(true, f)
}

pub(crate) fn with_grad_enabled<R>(enabled: bool, f: impl FnOnce() -> R) -> R {
    with_value(&RECORDING, enabled, f)
}
