//! [`Master`]: the `f32` weights of a parameter of half precision.
//!
//! A step changes the weights and rounds them into the parameter, in the same walk over memory:
//! ```text
//! parameter ── where something else changed it ──▶ weights ── weights − lr · gradient ──▶ weights ── rounded ──▶ parameter
//! ```
//!
//! Invariant: between steps the parameter is the weights, rounded, except where something else changed elements, such as loading
//! a state dict. The step finds these elements by comparing, which works in captured steps too. What is infinite stays
//! so, as in PyTorch, until something else changes it.

use super::groups::laid_as;
use crate::Parameter;
use pagelock_tensor::{self as tensor, DType, Tensor, no_grad};

/// What is trained instead of a parameter of half precision.
pub(super) struct Master {
    pub(super) weights: Tensor,
}

impl Master {
    /// For a parameter that took the place of one that was trained as `weights`; none if it needs none, or if there were none
    /// of more precision.
    pub(super) fn beside(parameter: &Parameter, weights: &Tensor) -> tensor::Result<Option<Self>> {
        if !is_half(parameter) || is_half(weights) {
            return Ok(None);
        }
        no_grad(|| {
            let laid = laid_as(parameter, &weights.detach())?;
            // Others may have handles of the parameter before, whose elements must not change.
            let own = laid.zeros_like()?;
            own.copy_(&laid)?;
            Ok(Some(Self { weights: own }))
        })
    }

    /// What a first step of `parameter` needs, if it is of half precision and has a gradient.
    pub(super) fn prepare(master: &mut Option<Self>, parameter: &Parameter) -> tensor::Result<()> {
        if master.is_none() && is_half(parameter) && parameter.grad().is_some() {
            *master = Some(Self { weights: no_grad(|| laid_as(parameter, &parameter.detach()))? });
        }
        Ok(())
    }
}

pub(super) fn is_half(tensor: &Tensor) -> bool {
    matches!(tensor.dtype(), DType::F16 | DType::BF16)
}
