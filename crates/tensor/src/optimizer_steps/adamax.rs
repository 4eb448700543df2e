//! Adamax: Adam with the largest gradient in place of the root of squares.

use super::step::{Formula, Now, StepTensors, rule, steps};
use crate::element::Real;
use crate::error::Result;
use crate::inlined::Array;

/// The settings of a step of Adamax; the formulas are PyTorch's.
///
/// In step `t` with gradient `g` (`−g` to maximize; plus `weight_decay · p`): `m ← β₁ m + (1 − β₁) g`,
/// `u ← max(β₂ u, |g| + eps)`, `p ← p − lr / (1 − β₁ᵗ) · m / u`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamaxRule {
    /// How much of the running mean and of the largest gradient is kept: `β₁` and `β₂`.
    pub betas: [f64; 2],
    /// Keeps the step finite where gradients vanish.
    pub eps: f64,
    /// How much of each parameter is added to its gradient.
    pub weight_decay: f64,
    /// Whether to maximize.
    pub maximize: bool,
}

steps! { AdamaxRule, "The state tensors are the running mean `m` and the largest gradient `u`; the clock counts steps." }

impl Formula for AdamaxRule {
    rule! { "adamax", self => is_decoupled: false, has_state: [true, true, false],
    numbers: [self.betas[0], self.betas[1], self.eps] }

    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()> {
        let rate = -now.lr / (1.0 - self.betas[0].powi(now.clock[0] as i32));
        let [new_mean, keep, eps, rate] = [1.0 - self.betas[0], self.betas[1], self.eps, rate].mapped(R::from_f64);
        now.change(inlined!(|x: R, [m, u]: [R; 2], g| {
            let (m, u) = (m * (R::ONE - new_mean) + new_mean * g, (u * keep).extreme::<true>(g.magnitude() + eps));
            (x + rate * m / u, [m, u])
        }))
    }
}
