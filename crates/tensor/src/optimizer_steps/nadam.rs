//! NAdam: Adam with Nesterov's momentum.

use super::step::{Formula, Now, StepTensors, rule, steps};
use crate::cpu::math::Functions;
use crate::element::Real;
use crate::error::Result;
use crate::inlined::Array;
use crate::tensor::Tensor;

/// The settings of a step of NAdam; the formulas are PyTorch's.
///
/// In step `t` with gradient `g` (`−g` to maximize; plus `weight_decay · p`, unless that is decoupled) and momenta
/// `μₜ = β₁ (1 − ½ · 0.96^(t · momentum_decay))`: `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`,
/// `d = √(v / (1 − β₂ᵗ)) + eps`, `p ← p − lr · ((1 − μₜ) / (1 − Πₜ) · g + μₜ₊₁ / (1 − Πₜ₊₁) · m) / d`, where `Πₜ = μ₁ · … · μₜ`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NAdamRule {
    /// How much of the running mean and of the running square is kept: `β₁` and `β₂`.
    pub betas: [f64; 2],
    /// Keeps the step finite where gradients vanish.
    pub eps: f64,
    /// How much of each parameter is added to its gradient, or how much each parameter shrinks relative to the
    /// learning rate.
    pub weight_decay: f64,
    /// Whether parameters shrink: `p ← p · (1 − lr · weight_decay)` first.
    pub is_decoupled: bool,
    /// How fast the momentum rises from step to step.
    pub momentum_decay: f64,
    /// Whether to maximize.
    pub maximize: bool,
}

steps! { NAdamRule, "The state tensors are the running mean `m` and the running square `v`; the clock has the number of steps, and `Πₜ`." }

impl Formula for NAdamRule {
    rule! { "nadam", self => is_decoupled: self.is_decoupled, has_state: [true, true, false],
    numbers: [self.betas[0], self.betas[1], self.eps, self.momentum_decay] }
    const CLOCK: usize = 2;

    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()> {
        let [steps, product, _] = now.clock;
        let (mu, next) = (self.momentum(steps), self.momentum(steps + 1.0));
        let of_grad = R::from_f64(-now.lr * (1.0 - mu) / (1.0 - product));
        let of_mean = R::from_f64(-now.lr * next / (1.0 - product * next));
        let share = R::from_f64(1.0 - self.betas[1].powi(steps as i32));
        let [keep_square, eps] = [self.betas[1], self.eps].mapped(R::from_f64);
        let [new_mean, new_square] = self.betas.mapped(|beta| R::from_f64(1.0 - beta));
        now.change(inlined!(|x: R, [m, v]: [R; 2], g| {
            let (m, v) = (m * (R::ONE - new_mean) + new_mean * g, v * keep_square + new_square * g * g);
            let root = (v / share).sqrt() + eps;
            (x + of_grad * g / root + of_mean * m / root, [m, v])
        }))
    }
}

/// 0.96^x is computed as e^(x · ln 0.96) by our own `exp`, since the system's power differs from processor to
/// processor.
const LN_OF_0_96: f64 = -0.040_821_994_520_255_166;

impl NAdamRule {
    /// `μₜ`.
    pub fn momentum(&self, step: f64) -> f64 {
        self.betas[0] * (1.0 - 0.5 * Functions::exp(step * self.momentum_decay * LN_OF_0_96))
    }

    /// Advances the clock to the next step.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    pub fn advance(&self, clock: &Tensor) -> Result<()> {
        let (steps, product) = (clock.select(0, 0)?, clock.select(0, 1)?);
        steps.add_scalar_(1)?;
        let power = steps.mul_scalar(self.momentum_decay * LN_OF_0_96)?.exp()?;
        product.mul_(&power.mul_scalar(-0.5 * self.betas[0])?.add_scalar(self.betas[0])?)
    }
}
