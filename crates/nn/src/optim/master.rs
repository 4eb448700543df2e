//! [`Master`]: the `f32` weights of a parameter of half precision.
//!
//! A step changes the weights and rounds them into the parameter, in one pass over memory:
//! ```text
//! parameter ── where something else changed it ──▶ weights ── weights − lr · gradient ──▶ weights ── rounded ──▶ parameter
//! ```
//!
//! Invariant: between steps the parameter equals the rounded weights, except where something else changed elements,
//! such as loading a state dict. The step finds these elements by comparing, which works in captured steps too. An
//! infinite element stays infinite, as in PyTorch, until something else changes it.

use super::groups::in_layout_of;
use crate::Parameter;
use pagelock_tensor::{self as tensor, DType, Tensor, no_grad};

/// The weights that are trained in place of a half-precision parameter.
pub(super) struct Master {
    pub(super) weights: Tensor,
}

impl Master {
    /// A master for a parameter that replaced one trained as `weights`. `None` if the parameter is not of half
    /// precision, or `weights` are.
    pub(super) fn moved_to(parameter: &Parameter, weights: &Tensor) -> tensor::Result<Option<Self>> {
        if !is_half(parameter) || is_half(weights) {
            return Ok(None);
        }
        no_grad(|| {
            let moved = in_layout_of(parameter, &weights.detach())?;
            // `moved` may be the replaced parameter itself, whose elements must not change: others may have handles of
            // it.
            let copy = moved.zeros_like()?;
            copy.copy_(&moved)?;
            Ok(Some(Self { weights: copy }))
        })
    }

    /// Makes the master before the first step of a half-precision parameter, if it has a gradient.
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
