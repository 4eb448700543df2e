//! Whether every operation gives the same bits each time: it does, unless a program asks for speed instead.

use std::cell::Cell;

use crate::thread_value::with_value;

thread_local! {
    static IS_ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Runs `f`; in this thread, until it returns, operations give the same bits each time, or need not: PyTorch's
/// `torch.use_deterministic_algorithms`, which is on here unless it is turned off.
///
/// One operation has something faster to offer: the gradients of
/// [`fused_attention`](crate::Tensor::fused_attention) on a GPU. What counts is where the forward pass is computed.
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
