//! Lion: steps of one size, in the direction of a running mean.

use super::step::{Formula, Now, StepTensors, rule, steps};
use crate::element::Real;
use crate::error::Result;
use crate::inlined::Array;

/// The settings of a step of Lion.
///
/// With gradient `g` (`−g` to maximize), first `p ← p · (1 − lr · weight_decay)`; then `p ← p − lr · sign(β₁ m + (1 − β₁) g)`,
/// `m ← β₂ m + (1 − β₂) g`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LionRule {
    /// How much of the running mean counts in the step, and how much of it is kept: `β₁` and `β₂`.
    pub betas: [f64; 2],
    /// By how much parameters shrink, relative to the learning rate.
    pub weight_decay: f64,
    /// Whether to maximize.
    pub maximize: bool,
}

steps! { LionRule, "The state tensor is the running mean `m`; there is no clock." }

impl Formula for LionRule {
    rule! { "lion", self => is_decoupled: true, has_state: [true, false, false], numbers: self.betas }
    const CLOCK: usize = 0;

    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()> {
        let [keep, keep_mean] = self.betas.mapped(R::from_f64);
        let [new, new_mean] = self.betas.mapped(|beta| R::from_f64(1.0 - beta));
        let (rate, zero) = (R::from_f64(-now.lr), R::ZERO);
        now.change(inlined!(|x: R, [m]: [R; 1], g| {
            let direction = m * keep + g * new;
            let step = if direction > zero { rate } else { -rate };
            let step = if direction == zero { zero } else { step };
            (x + if direction.is_nan() { direction } else { step }, [m * keep_mean + g * new_mean])
        }))
    }
}
