//! [`Master`]: the `f32` weights of a parameter of half precision.
//!
//! A step converts the gradient to `f32`, changes the weights here, and rounds them into the parameter:
//! ```text
//! prepare   parameter ── where something else changed it ──▶ weights      gradient ── as f32 ──▶ grad
//! step      weights ← weights − lr · …
//! finish    weights ── rounded ──▶ parameter
//! ```
//!
//! Invariant: between steps the parameter is the weights, rounded, but for elements that something else has changed since (a
//! state dict was loaded, say). [`Master::prepare`] finds these by comparing, which works in captured steps too. What is infinite
//! stays so, as in PyTorch, until something else changes it.

use super::laid_as;
use crate::Parameter;
use pagelock_tensor::{self as tensor, DType, Tensor, no_grad};

/// What is trained instead of a parameter of half precision.
pub(super) struct Master {
    weights: Tensor,
    /// The parameter's gradient, during a step.
    grad: Option<Tensor>,
}

impl Master {
    /// The weights.
    pub(super) fn weights(&self) -> &Tensor {
        &self.weights
    }

    /// The gradient of the step for which this was prepared.
    pub(super) fn grad(&self) -> Option<Tensor> {
        self.grad.clone()
    }

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
            Ok(Some(Self { weights: own, grad: None }))
        })
    }

    /// What a step of `parameter` needs, if it is of half precision and has a gradient. After an error a step may be tried
    /// again.
    pub(super) fn prepare(master: &mut Option<Self>, parameter: &Parameter) -> tensor::Result<()> {
        let Some(grad) = parameter.grad().filter(|_| is_half(parameter)) else { return Ok(()) };
        no_grad(|| {
            let grad = Some(grad.to_dtype(DType::F32)?);
            match master {
                None => *master = Some(Self { weights: laid_as(parameter, &parameter.detach())?, grad }),
                Some(master) => {
                    master.take_over(parameter)?;
                    master.grad = grad;
                }
            }
            Ok(())
        })
    }

    /// Takes the elements of the parameter that something else has changed.
    fn take_over(&self, parameter: &Tensor) -> tensor::Result<()> {
        let rounded = self.weights.to_dtype(parameter.dtype())?;
        self.weights.take_over_(&rounded, &parameter.detach())
    }

    /// Rounds the weights into the parameter.
    pub(super) fn finish(&mut self, parameter: &Tensor) -> tensor::Result<()> {
        let Some(grad) = self.grad.take() else { return Ok(()) };
        // Its memory is more than rounding takes, so nothing is refused once the step was done.
        drop(grad);
        no_grad(|| parameter.copy_(&self.weights))
    }
}

fn is_half(tensor: &Tensor) -> bool {
    matches!(tensor.dtype(), DType::F16 | DType::BF16)
}
