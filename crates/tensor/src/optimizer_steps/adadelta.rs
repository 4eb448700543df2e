//! Adadelta: steps in the units of the parameter.

use super::step::{Formula, Now, StepTensors, rule, steps};
use crate::element::Real;
use crate::error::Result;
use crate::inlined::Array;

/// The settings of a step of Adadelta; the formulas are PyTorch's.
///
/// With gradient `g` (`−g` to maximize; plus `weight_decay · p`): `v ← ρ v + (1 − ρ) g²`, `d = √(u + eps) / √(v + eps) · g`,
/// `u ← ρ u + (1 − ρ) d²`, `p ← p − lr · d`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdadeltaRule {
    /// How much of the running squares is kept: `ρ`.
    pub rho: f64,
    /// Keeps steps finite, and determines the size of the first ones.
    pub eps: f64,
    /// How much of each parameter is added to its gradient.
    pub weight_decay: f64,
    /// Whether to maximize.
    pub maximize: bool,
}

steps! { AdadeltaRule, "The state tensors are the running squares of gradients `v` and of steps `u`." }

impl Formula for AdadeltaRule {
    rule! { "adadelta", self => is_decoupled: false, has_state: [true, true, false], numbers: [self.rho, self.eps] }
    const CLOCK: usize = 0;

    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()> {
        let [keep, new, eps, rate] = [self.rho, 1.0 - self.rho, self.eps, -now.lr].mapped(R::from_f64);
        now.change(inlined!(|x: R, [square, moved]: [R; 2], g| {
            let square = square * keep + new * g * g;
            let delta = (moved + eps).sqrt() / (square + eps).sqrt() * g;
            (x + delta * rate, [square, moved * keep + new * delta * delta])
        }))
    }
}
