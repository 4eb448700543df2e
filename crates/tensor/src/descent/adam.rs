//! Adam and AdamW: steps scaled by running moments of the gradient.

use super::Rate;
use super::cuda::{self, Batch};
use crate::cpu::math::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
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
    /// The running mean `m`, which is changed too.
    pub mean: Tensor,
    /// The running square `v`, which is changed too.
    pub square: Tensor,
    /// How many steps there were, this one among them: one element.
    pub steps: Tensor,
}

/// One step of descent for all of the tensors.
///
/// # Errors
/// As [`sgd_step`](super::sgd_step).
///
/// # Examples
/// ```
/// use pagelock_tensor::descent::{AdamRule, AdamTensors, Rate, adam_step};
/// use pagelock_tensor::{DType, Tensor};
///
/// let (parameter, grad) = (Tensor::new([3.0])?, Tensor::new([0.2])?);
/// let rule = AdamRule { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0, is_decoupled: false };
/// let tensors = AdamTensors {
///     parameter: parameter.clone(),
///     grad,
///     mean: Tensor::zeros([1])?,
///     square: Tensor::zeros([1])?,
///     steps: Tensor::of(DType::F64).ones(())?,
/// };
/// adam_step([tensors], rule, &Rate::new(0.5))?;
/// assert!((parameter.item::<f32>()? - 2.5).abs() < 1e-6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn adam_step(tensors: impl IntoIterator<Item = AdamTensors>, rule: AdamRule, lr: &Rate) -> Result<()> {
    let mut batch = Batch::new();
    for tensors in tensors {
        match tensors.parameter.device() {
            Device::Cuda(_) => batch.add(tensors, |tensors| cuda::adam(tensors, rule, lr))?,
            _ => rule.step(&tensors, lr.get())?,
        }
    }
    batch.finish(|tensors| cuda::adam(tensors, rule, lr))
}

impl AdamRule {
    /// On the CPU: three walks, without memory of its own, so that none of them can be refused after another. Rounded where
    /// `descent.cu` rounds.
    fn step(&self, tensors: &AdamTensors, lr: f64) -> Result<()> {
        match tensors.parameter.dtype() {
            DType::F64 => self.step_as(tensors, lr, |x: f64| x),
            DType::F16 => self.step_as(tensors, lr, |x| f16_to_f32(f32_to_f16(x))),
            DType::BF16 => self.step_as(tensors, lr, |x| bf16_to_f32(f32_to_bf16(x))),
            _ => self.step_as(tensors, lr, |x: f32| x),
        }
    }

    /// `rounded` is to the precision of the tensors.
    fn step_as<R: Real>(&self, tensors: &AdamTensors, lr: f64, rounded: impl Fn(R) -> R + Sync + Copy) -> Result<()> {
        let AdamTensors { parameter, grad, mean, square, steps } = tensors;
        let steps: f64 = steps.item()?;
        let [mean_share, square_share] = self.betas.map(|beta| 1.0 - beta.powi(steps as i32));
        let [keep_mean, keep_square] = self.betas.map(R::from_f64);
        let [new_mean, new_square] = self.betas.map(|beta| R::from_f64(1.0 - beta));
        let (shrink, decay) = (R::from_f64(1.0 - lr * self.weight_decay), R::from_f64(self.weight_decay));
        let unbias = R::from_f64(1.0 / square_share.sqrt());
        let (rate, eps) = (R::from_f64(-lr / mean_share), R::from_f64(self.eps));
        let shrinks = self.weight_decay != 0.0 && self.is_decoupled;
        let decays = self.weight_decay != 0.0 && !self.is_decoupled;

        let decayed = |g: R, p: R| if decays { rounded(g + p * decay) } else { g };
        mean.update_::<R>(OP, [grad, parameter], |[m, g, p]| rounded(m * keep_mean) + decayed(g, p) * new_mean)?;
        square.update_::<R>(OP, [grad, parameter], |[v, g, p]| {
            let g = decayed(g, p);
            rounded(v * keep_square) + new_square * g * g
        })?;
        parameter.update_::<R>(OP, [mean, square], |[p, m, v]| {
            let p = if shrinks { rounded(p * shrink) } else { p };
            let root = rounded(rounded(rounded(v.sqrt()) * unbias) + eps);
            p + rate * m / root
        })
    }
}

const OP: &str = "adam_step";
