//! Stochastic gradient descent, with momentum.

use super::Rate;
use super::cuda::{self, Batch};
use crate::device::Device;
use crate::error::Result;
use crate::tensor::Tensor;

/// How a step goes down; the formulas are PyTorch's.
///
/// With gradient `g`, `g ← g + weight_decay · p`; with momentum, `b ← momentum · b + (1 − dampening) · g` (`b = g` in the
/// first step) and then `g ← b`, or with nesterov `g ← g + momentum · b`; at last `p ← p − lr · g`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdRule {
    /// How much of the last step's direction is kept.
    pub momentum: f64,
    /// By how much new gradients count less than the kept direction.
    pub dampening: f64,
    /// Whether to look ahead by one step.
    pub nesterov: bool,
    /// How much of each parameter is added to its gradient.
    pub weight_decay: f64,
}

/// A parameter and what its step needs, all of one shape and on one device.
#[derive(Debug, Clone)]
pub struct SgdTensors {
    /// What is changed: `p`.
    pub parameter: Tensor,
    /// Its gradient: `g`.
    pub grad: Tensor,
    /// The kept direction `b`, which is changed too; none without momentum.
    pub kept: Option<Tensor>,
    /// Whether nothing was kept yet, and `b` is zero.
    pub is_first: bool,
}

/// One step of descent for all of the tensors.
///
/// # Errors
/// [`Error::InPlaceTracked`](crate::Error::InPlaceTracked) outside `no_grad`,
/// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch), [`Error::WrongShape`](crate::Error::WrongShape).
///
/// # Examples
/// ```
/// use pagelock_tensor::descent::{Rate, SgdRule, SgdTensors, sgd_step};
/// use pagelock_tensor::Tensor;
///
/// let (parameter, grad) = (Tensor::new([3.0, 4.0])?, Tensor::new([1.0, -1.0])?);
/// let rule = SgdRule { momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
/// let tensors = SgdTensors { parameter: parameter.clone(), grad, kept: None, is_first: true };
/// sgd_step([tensors], rule, &Rate::new(0.5))?;
/// assert_eq!(parameter.to_vec::<f32>()?, [2.5, 4.5]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn sgd_step(tensors: impl IntoIterator<Item = SgdTensors>, rule: SgdRule, lr: &Rate) -> Result<()> {
    let mut batch = Batch::new();
    for tensors in tensors {
        match tensors.parameter.device() {
            Device::Cuda(_) => batch.add(tensors, |tensors| cuda::sgd(tensors, rule, lr))?,
            _ => rule.step(&tensors, lr.get())?,
        }
    }
    batch.finish(|tensors| cuda::sgd(tensors, rule, lr))
}

impl SgdRule {
    /// The documented formula, with `g` never stored: its two terms are added where it is used.
    fn step(&self, tensors: &SgdTensors, lr: f64) -> Result<()> {
        let SgdTensors { parameter: p, grad, kept, is_first } = tensors;
        let Some(b) = kept else { return self.descend(p, grad, None, lr) };
        let share = self.share(*is_first);
        if !is_first {
            b.mul_scalar_(self.momentum)?;
        }
        b.add_scaled_(grad, share)?;
        if self.weight_decay != 0.0 {
            b.add_scaled_(p, share * self.weight_decay)?;
        }
        if self.nesterov { self.descend(p, grad, Some(b), lr) } else { p.add_scaled_(b, -lr) }
    }

    /// `p ← p − lr · (grad + weight_decay · p + momentum · b)`
    fn descend(&self, p: &Tensor, grad: &Tensor, b: Option<&Tensor>, lr: f64) -> Result<()> {
        if self.weight_decay != 0.0 {
            p.mul_scalar_(1.0 - lr * self.weight_decay)?;
        }
        p.add_scaled_(grad, -lr)?;
        b.map_or(Ok(()), |b| p.add_scaled_(b, -lr * self.momentum))
    }

    /// By how much a gradient counts.
    pub(super) fn share(&self, is_first: bool) -> f64 {
        if is_first { 1.0 } else { 1.0 - self.dampening }
    }
}
