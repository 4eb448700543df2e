//! RAdam: Adam whose first steps are those of momentum, until running squares are reliable.

use super::step::{Formula, Now, StepTensors, rule, steps};
use crate::element::Real;
use crate::error::Result;
use crate::inlined::Array;

/// The settings of a step of RAdam; the formulas are PyTorch's.
///
/// In step `t` with gradient `g` (`−g` to maximize; plus `weight_decay · p`, unless that is decoupled):
/// `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`, `m̂ = m / (1 − β₁ᵗ)`, `ρ∞ = 2 / (1 − β₂) − 1`,
/// `ρₜ = ρ∞ − 2 t β₂ᵗ / (1 − β₂ᵗ)`. For `ρₜ > 5`, `p ← p − lr · m̂ · r · √(1 − β₂ᵗ) / (√v + eps)` with
/// `r = √((ρₜ − 4)(ρₜ − 2) ρ∞ / ((ρ∞ − 4)(ρ∞ − 2) ρₜ))`, else `p ← p − lr · m̂`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RAdamRule {
    /// How much of the running mean and of the running square is kept: `β₁` and `β₂`.
    pub betas: [f64; 2],
    /// Keeps the step finite where gradients vanish.
    pub eps: f64,
    /// How much of each parameter is added to its gradient, or how much each parameter shrinks relative to the
    /// learning rate.
    pub weight_decay: f64,
    /// Whether parameters shrink: `p ← p · (1 − lr · weight_decay)` first.
    pub is_decoupled: bool,
    /// Whether to maximize.
    pub maximize: bool,
}

steps! { RAdamRule, "The state tensors are the running mean `m` and the running square `v`; the clock counts steps." }

impl Formula for RAdamRule {
    rule! { "radam", self => is_decoupled: self.is_decoupled, has_state: [true, true, false],
    numbers: [self.betas[0], self.betas[1], self.eps] }

    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()> {
        let rate = -now.lr / (1.0 - self.betas[0].powi(now.clock[0] as i32));
        let rectified = self.rectified(now.clock[0]);
        let is_known = rectified.is_some();
        let [rate, eps] = [rate * rectified.unwrap_or(1.0), self.eps].mapped(R::from_f64);
        let [new_mean, new_square] = self.betas.mapped(|beta| R::from_f64(1.0 - beta));
        let keep_square = R::from_f64(self.betas[1]);
        now.change(inlined!(|x: R, [m, v]: [R; 2], g| {
            let (m, v) = (m * (R::ONE - new_mean) + new_mean * g, v * keep_square + new_square * g * g);
            let step = rate * m;
            (x + if is_known { step / (v.sqrt() + eps) } else { step }, [m, v])
        }))
    }
}

impl RAdamRule {
    /// `r · √(1 − β₂ᵗ)`, if `ρₜ > 5`.
    fn rectified(&self, steps: f64) -> Option<f64> {
        let power = self.betas[1].powi(steps as i32);
        let rho_max = 2.0 / (1.0 - self.betas[1]) - 1.0;
        let rho = rho_max - 2.0 * steps * power / (1.0 - power);
        let square = (rho - 4.0) * (rho - 2.0) * rho_max / ((rho_max - 4.0) * (rho_max - 2.0) * rho);
        (rho > 5.0).then(|| square.sqrt() * (1.0 - power).sqrt())
    }
}
