//! [`Master`]: the `f32` weights of a parameter of half precision.
//!
//! A step changes the weights and rounds them into the parameter, in one pass over memory:
//! ```text
//! parameter ── elements that changed ──▶ weights ── weights − lr · gradient ──▶ weights ── rounded ──▶ parameter
//! ```
//!
//! Invariant: between steps the parameter equals the rounded weights, except for elements that other code changed, for
//! example by loading a state dict. The step finds them by comparing, also in a captured step. An infinite element
//! stays infinite, as in PyTorch, until other code changes it.

use super::groups::in_layout_of;
use crate::Parameter;
use pagelock_tensor::{self as tensor, DType, Tensor, no_grad};

/// The weights that are trained in place of a half-precision parameter.
pub(super) struct Master {
    pub(super) weights: Tensor,
}

impl Master {
    /// The master of a parameter that was moved or converted, from the `weights` trained before. `None` unless the
    /// parameter has half precision and `weights` do not.
    pub(super) fn moved_to(parameter: &Parameter, weights: &Tensor) -> tensor::Result<Option<Self>> {
        if !is_half(parameter) || is_half(weights) {
            return Ok(None);
        }
        no_grad(|| {
            let moved = in_layout_of(parameter, &weights.detach())?;
            // `moved` may be the previous parameter itself. It must not change, since other handles may share it.
            let copy = moved.zeros_like()?;
            copy.copy_(&moved)?;
            Ok(Some(Self { weights: copy }))
        })
    }

    /// Makes the master of a half-precision parameter that has a gradient, before its first step.
    pub(super) fn prepare(master: &mut Option<Self>, parameter: &Parameter) -> tensor::Result<()> {
        if master.is_none() && is_half(parameter) && parameter.grad().is_some() {
            *master = Some(Self { weights: no_grad(|| in_layout_of(parameter, &parameter.detach()))? });
        }
        Ok(())
    }
}

pub(super) fn is_half(tensor: &Tensor) -> bool {
    matches!(tensor.dtype(), DType::F16 | DType::BF16)
}
