//! Stochastic gradient descent, with momentum.

use super::cpu::{self, by_rounding};
use super::groups::{Batch, Group, MOST, PLACES, Places};
use super::{Rate, cuda};
use crate::device::Device;
use crate::element::{DType, Real};
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
    /// The parameter in half precision, of which `parameter` is the `f32` master: the step takes over the elements in which it
    /// differs from the master, rounded, and rounds the master into it at last. Its precision is the gradient's.
    pub half: Option<Tensor>,
    /// The kept direction `b`, which is changed too; none without momentum.
    pub kept: Option<Tensor>,
    /// Whether nothing was kept yet, and `b` is zero.
    pub is_first: bool,
}

/// One step of the optimizer for all of the tensors.
///
/// # Errors
/// [`Error::InPlaceTracked`](crate::Error::InPlaceTracked) outside `no_grad`,
/// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch); [`Error::Argument`](crate::Error::Argument) for shapes that differ.
///
/// # Examples
/// ```
/// use pagelock_tensor::optimizer_steps::{Rate, SgdRule, SgdTensors, sgd_step};
/// use pagelock_tensor::Tensor;
///
/// let (parameter, grad) = (Tensor::new([3.0, 4.0])?, Tensor::new([1.0, -1.0])?);
/// let rule = SgdRule { momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
/// let tensors = SgdTensors { parameter: parameter.clone(), grad, half: None, kept: None, is_first: true };
/// sgd_step([tensors], rule, &Rate::new(0.5))?;
/// assert_eq!(parameter.to_vec::<f32>()?, [2.5, 4.5]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn sgd_step(tensors: impl IntoIterator<Item = SgdTensors>, rule: SgdRule, lr: &Rate) -> Result<()> {
    let launch = |groups: &[Option<SgdTensors>]| match groups {
        [Some(group)] if group.parameter.device() == Device::Cpu => rule.step(group, lr.get()),
        groups => cuda::sgd(groups, rule, lr),
    };
    let mut batch = Batch::new();
    tensors.into_iter().try_for_each(|group| batch.add(group, launch))?;
    batch.finish(launch)
}

impl Group for SgdTensors {
    fn most(&self) -> usize {
        if self.half.is_some() { MOST - 1 } else { MOST } // as many as a kernel has arguments for
    }

    fn tensors(&self) -> Places<'_> {
        [Some(&self.parameter), self.kept.as_ref(), None, self.half.as_ref(), Some(&self.grad)]
    }

    fn with(&self, [parameter, kept, _, half, grad]: [Option<Tensor>; PLACES]) -> Self {
        let parameter = parameter.unwrap_or_else(|| self.parameter.clone());
        Self { parameter, grad: grad.unwrap_or_else(|| self.grad.clone()), half, kept, is_first: self.is_first }
    }

    fn fits(&self, other: &Self) -> bool {
        self.is_first == other.is_first
    }
}

impl SgdRule {
    /// On the CPU.
    fn step(&self, group: &SgdTensors, lr: f64) -> Result<()> {
        by_rounding!(group.parameter.dtype(), rounded => match group.kept {
            Some(_) => self.with_momentum(group, lr, rounded),
            None => self.without_momentum(group, lr, rounded),
        })
    }

    /// The documented formula, with `g` never stored: its two terms are added where it is used.
    fn with_momentum<R: Real>(
        &self,
        group: &SgdTensors,
        lr: f64,
        rounded: impl Fn(R) -> R + Sync + Copy,
    ) -> Result<()> {
        let (share, is_first, nesterov) = (self.share(group.is_first), group.is_first, self.nesterov);
        let real = R::from_f64;
        let [momentum, own, decay] = [self.momentum, share, share * self.weight_decay].map(real);
        let [rate, shrink, ahead] = [-lr, 1.0 - lr * self.weight_decay, -lr * self.momentum].map(real);
        let decays = self.weight_decay != 0.0;
        cpu::change::<_, R, 1>(
            group,
            #[inline(always)]
            |mut x, [b], g| {
                let mut b = if is_first { R::ZERO } else { rounded(b * momentum) };
                b = rounded(b + g * own);
                if decays {
                    b = rounded(b + x * decay);
                }
                if !nesterov {
                    return (x + b * rate, [b]);
                }
                if decays {
                    x = rounded(x * shrink);
                }
                (rounded(x + g * rate) + b * ahead, [b])
            },
        )
    }

    fn without_momentum<R: Real>(
        &self,
        group: &SgdTensors,
        lr: f64,
        rounded: impl Fn(R) -> R + Sync + Copy,
    ) -> Result<()> {
        let [rate, shrink] = [-lr, 1.0 - lr * self.weight_decay].map(R::from_f64);
        let decays = self.weight_decay != 0.0;
        cpu::change::<_, R, 0>(
            group,
            #[inline(always)]
            |x, [], g| {
                let x = if decays { rounded(x * shrink) } else { x };
                (x + g * rate, [])
            },
        )
    }

    /// By how much a gradient counts.
    pub(super) fn share(&self, is_first: bool) -> f64 {
        if is_first { 1.0 } else { 1.0 - self.dampening }
    }
}
