//! Whether every operation gives the same bits each time: it does, unless a program asks for speed instead.

use std::cell::Cell;

use crate::thread_value::with_value;

thread_local! {
    static IS_ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Runs `f` with deterministic algorithms switched on or off in this thread. While they are on, which is the default,
/// operations give the same bits each time. This is PyTorch's `torch.use_deterministic_algorithms`.
///
/// Only one computation is faster without them: the gradients of [`fused_attention`](crate::Tensor::fused_attention)
/// on a GPU. The setting that counts is the one during the forward pass. Without them, an operation for which NVIDIA's
/// libraries get no scratch memory is computed by slower kernels of this crate; with them, it is an error.
///
/// ```
/// use pagelock_tensor::{are_deterministic_algorithms_enabled, with_deterministic_algorithms};
///
/// assert!(are_deterministic_algorithms_enabled());
/// assert!(!with_deterministic_algorithms(false, are_deterministic_algorithms_enabled));
/// ```
pub fn with_deterministic_algorithms<R>(enabled: bool, f: impl FnOnce() -> R) -> R {
    with_value(&IS_ENABLED, enabled, f)
}

/// Whether operations of this thread give the same bits each time: see [`with_deterministic_algorithms`].
pub fn are_deterministic_algorithms_enabled() -> bool {
    IS_ENABLED.get()
}
