//! Adagrad: steps divided by the root of the sum of all squares.

use super::step::{Formula, Now, StepTensors, rule, steps};
use crate::element::Real;
use crate::error::Result;
use crate::inlined::Array;

/// The settings of a step of Adagrad; the formulas are PyTorch's.
///
/// In step `t` with gradient `g` (`−g` to maximize; plus `weight_decay · p`): `s ← s + g²`,
/// `p ← p − lr / (1 + (t − 1) · lr_decay) · g / (√s + eps)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdagradRule {
    /// By how much the learning rate falls from step to step.
    pub lr_decay: f64,
    /// Keeps the step finite where gradients vanish.
    pub eps: f64,
    /// How much of each parameter is added to its gradient.
    pub weight_decay: f64,
    /// Whether to maximize.
    pub maximize: bool,
}

steps! { AdagradRule, "The state tensor is the sum `s`; the clock counts steps." }

impl Formula for AdagradRule {
    rule! { "adagrad", self => is_decoupled: false, has_state: [true, false, false],
    numbers: [self.lr_decay, self.eps] }

    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()> {
        let rate = -now.lr / (1.0 + (now.clock[0] - 1.0) * self.lr_decay);
        let [rate, eps] = [rate, self.eps].mapped(R::from_f64);
        now.change(inlined!(|x: R, [sum]: [R; 1], g| {
            let sum = sum + g * g;
            (x + rate * g / (sum.sqrt() + eps), [sum])
        }))
    }
}
