//! Adam and AdamW: steps scaled by running moments of the gradient.

use super::Rate;
use super::step::{Formula, Now, StepTensors, rule, step_groups};
use crate::element::Real;
use crate::error::Result;
use crate::inlined::Array;

/// The settings of a step of Adam; the formulas are PyTorch's.
///
/// In step `t` with gradient `g` (`−g` to maximize; plus `weight_decay · p`, unless that is decoupled):
/// `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`, `p ← p − lr · m̂ / (√v̂ + eps)` with `m̂ = m / (1 − β₁ᵗ)` and
/// `v̂ = v / (1 − β₂ᵗ)`. With amsgrad, `v̂` is computed from the largest `v` so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamRule {
    /// How much of the running mean and of the running square is kept: `β₁` and `β₂`.
    pub betas: [f64; 2],
    /// Keeps the step finite where gradients vanish.
    pub eps: f64,
    /// How much of each parameter is added to its gradient, or how much each parameter shrinks relative to the
    /// learning rate.
    pub weight_decay: f64,
    /// Whether parameters shrink, as in AdamW: `p ← p · (1 − lr · weight_decay)` first.
    pub is_decoupled: bool,
    /// Whether to divide by the root of the largest running square so far.
    pub amsgrad: bool,
    /// Whether to maximize.
    pub maximize: bool,
}

impl AdamRule {
    /// Takes one step for all of the tensors. The state tensors are the running mean `m`, the running square `v`,
    /// and with amsgrad the largest `v`; the clock counts steps.
    ///
    /// # Errors
    /// As [`SgdRule::step`](super::SgdRule::step).
    ///
    /// # Examples
    /// ```
    /// use pagelock_tensor::optimizer_steps::{AdamRule, Rate, StepTensors};
    /// use pagelock_tensor::{DType, Tensor};
    ///
    /// let (parameter, grad) = (Tensor::new([3.0])?, Tensor::new([0.2])?);
    /// let (weight_decay, is_decoupled, amsgrad, maximize) = (0.0, false, false, false);
    /// let rule = AdamRule { betas: [0.9, 0.999], eps: 1e-8, weight_decay, is_decoupled, amsgrad, maximize };
    /// let tensors = StepTensors {
    ///     parameter: parameter.clone(),
    ///     grad,
    ///     half_copy: None,
    ///     state: [Some(Tensor::zeros([1])?), Some(Tensor::zeros([1])?), None],
    ///     clock: Some(Tensor::of(DType::F64).ones([1])?),
    ///     is_first: true,
    /// };
    /// rule.step([tensors], &Rate::new(0.5))?;
    /// assert!((parameter.item::<f32>()? - 2.5).abs() < 1e-6);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn step(&self, tensors: impl IntoIterator<Item = StepTensors>, lr: &Rate) -> Result<()> {
        Self::run(&mut tensors.into_iter().map(|tensors| (self, tensors, lr)))
    }
}

step_groups! { AdamRule }

impl Formula for AdamRule {
    rule! { "adam", self => is_decoupled: self.is_decoupled, has_state: [true, true, self.amsgrad],
    numbers: [self.betas[0], self.betas[1], self.eps] }

    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()> {
        let moments = Moments::<R>::new(self, now);
        match self.amsgrad {
            false => now.change(inlined!(|x, [m, v], g| {
                let (m, v) = moments.next(m, v, g);
                (moments.moved(x, m, v), [m, v])
            })),
            true => now.change(inlined!(|x, [m, v, largest], g| {
                let (m, v) = moments.next(m, v, g);
                let largest = largest.extreme::<true>(v);
                (moments.moved(x, m, largest), [m, v, largest])
            })),
        }
    }
}

/// The constants of a step, which are the same for all elements.
#[derive(Clone, Copy)]
struct Moments<R> {
    keep: [R; 2],
    new: [R; 2],
    unbias: R,
    rate: R,
    eps: R,
}

impl<R: Real> Moments<R> {
    fn new(rule: &AdamRule, Now { lr, clock, .. }: Now<'_>) -> Self {
        let [mean_share, square_share] = rule.betas.mapped(|beta| 1.0 - beta.powi(clock[0] as i32));
        Self {
            keep: rule.betas.mapped(R::from_f64),
            new: rule.betas.mapped(|beta| R::from_f64(1.0 - beta)),
            unbias: R::from_f64(1.0 / square_share.sqrt()),
            rate: R::from_f64(-lr / mean_share),
            eps: R::from_f64(rule.eps),
        }
    }

    #[inline(always)]
    fn next(&self, m: R, v: R, g: R) -> (R, R) {
        (m * self.keep[0] + g * self.new[0], v * self.keep[1] + self.new[1] * g * g)
    }

    #[inline(always)]
    fn moved(&self, x: R, m: R, v: R) -> R {
        x + self.rate * m / (v.sqrt() * self.unbias + self.eps)
    }
}
