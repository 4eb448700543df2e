//! Adam and AdamW: steps scaled by running moments of the gradient.

use super::cpu::{self, by_rounding};
use super::groups::{Batch, Group, MOST, PLACES, Places};
use super::{Rate, cuda};
use crate::device::Device;
use crate::element::{DType, Real};
use crate::error::Result;
use crate::tensor::Tensor;

/// How a step goes down; the formulas are PyTorch's.
///
/// In step `t` with gradient `g` (plus `weight_decay · p`, unless that is decoupled): `m ← β₁ m + (1 − β₁) g`,
/// `v ← β₂ v + (1 − β₂) g²`, `p ← p − lr · m̂ / (√v̂ + eps)` with `m̂ = m / (1 − β₁ᵗ)` and `v̂ = v / (1 − β₂ᵗ)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamRule {
    /// How much of the running mean and of the running square is kept: `β₁` and `β₂`.
    pub betas: [f64; 2],
    /// What keeps the step finite where gradients vanish.
    pub eps: f64,
    /// How much of each parameter is added to its gradient, or by how much it shrinks relative to the learning rate.
    pub weight_decay: f64,
    /// Whether it shrinks, as in AdamW: `p ← p · (1 − lr · weight_decay)` first.
    pub is_decoupled: bool,
}

/// A parameter and what its step needs, all of one shape but `steps`, and on one device.
#[derive(Debug, Clone)]
pub struct AdamTensors {
    /// What is changed: `p`.
    pub parameter: Tensor,
    /// Its gradient: `g`.
    pub grad: Tensor,
    /// The parameter in half precision, of which `parameter` is the `f32` master: the step takes over the elements in which it
    /// differs from the master, rounded, and rounds the master into it at last. Its precision is the gradient's.
    pub half: Option<Tensor>,
    /// The running mean `m`, which is changed too.
    pub mean: Tensor,
    /// The running square `v`, which is changed too.
    pub square: Tensor,
    /// How many steps there were, this one among them: one element.
    pub steps: Tensor,
}

/// One step of the optimizer for all of the tensors.
///
/// # Errors
/// As [`sgd_step`](super::sgd_step).
///
/// # Examples
/// ```
/// use pagelock_tensor::optimizer_steps::{AdamRule, AdamTensors, Rate, adam_step};
/// use pagelock_tensor::{DType, Tensor};
///
/// let (parameter, grad) = (Tensor::new([3.0])?, Tensor::new([0.2])?);
/// let rule = AdamRule { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0, is_decoupled: false };
/// let tensors = AdamTensors {
///     parameter: parameter.clone(),
///     grad,
///     half: None,
///     mean: Tensor::zeros([1])?,
///     square: Tensor::zeros([1])?,
///     steps: Tensor::of(DType::F64).ones(())?,
/// };
/// adam_step([tensors], rule, &Rate::new(0.5))?;
/// assert!((parameter.item::<f32>()? - 2.5).abs() < 1e-6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn adam_step(tensors: impl IntoIterator<Item = AdamTensors>, rule: AdamRule, lr: &Rate) -> Result<()> {
    let launch = |groups: &[Option<AdamTensors>]| match groups {
        [Some(group)] if group.parameter.device() == Device::Cpu => rule.step(group, lr.get()),
        groups => cuda::adam(groups, rule, lr),
    };
    let mut batch = Batch::new();
    tensors.into_iter().try_for_each(|group| batch.add(group, launch))?;
    batch.finish(launch)
}

impl Group for AdamTensors {
    fn most(&self) -> usize {
        if self.half.is_some() { MOST - 2 } else { MOST - 1 } // as many as a kernel has arguments for
    }

    fn tensors(&self) -> Places<'_> {
        [Some(&self.parameter), Some(&self.mean), Some(&self.square), self.half.as_ref(), Some(&self.grad)]
    }

    fn with(&self, [parameter, mean, square, half, grad]: [Option<Tensor>; PLACES]) -> Self {
        Self {
            parameter: parameter.unwrap_or_else(|| self.parameter.clone()),
            grad: grad.unwrap_or_else(|| self.grad.clone()),
            half,
            mean: mean.unwrap_or_else(|| self.mean.clone()),
            square: square.unwrap_or_else(|| self.square.clone()),
            steps: self.steps.clone(),
        }
    }

    fn fits(&self, other: &Self) -> bool {
        self.steps.shares_storage(&other.steps)
    }
}

impl AdamRule {
    /// On the CPU.
    fn step(&self, group: &AdamTensors, lr: f64) -> Result<()> {
        by_rounding!(group.parameter.dtype(), rounded => self.step_as(group, lr, rounded))
    }

    fn step_as<R: Real>(&self, group: &AdamTensors, lr: f64, rounded: impl Fn(R) -> R + Sync + Copy) -> Result<()> {
        let steps: f64 = group.steps.item()?;
        let [mean_share, square_share] = self.betas.map(|beta| 1.0 - beta.powi(steps as i32));
        let [keep_mean, keep_square] = self.betas.map(R::from_f64);
        let [new_mean, new_square] = self.betas.map(|beta| R::from_f64(1.0 - beta));
        let (shrink, decay) = (R::from_f64(1.0 - lr * self.weight_decay), R::from_f64(self.weight_decay));
        let unbias = R::from_f64(1.0 / square_share.sqrt());
        let (rate, eps) = (R::from_f64(-lr / mean_share), R::from_f64(self.eps));
        let shrinks = self.weight_decay != 0.0 && self.is_decoupled;
        let decays = self.weight_decay != 0.0 && !self.is_decoupled;
        cpu::change::<_, R, 2>(
            group,
            #[inline(always)]
            |p, [m, v], g| {
                let p = if shrinks { rounded(p * shrink) } else { p };
                let g = if decays { rounded(g + p * decay) } else { g };
                let m = rounded(rounded(m * keep_mean) + g * new_mean);
                let v = rounded(rounded(v * keep_square) + new_square * g * g);
                let root = rounded(rounded(rounded(v.sqrt()) * unbias) + eps);
                (p + rate * m / root, [m, v])
            },
        )
    }
}
