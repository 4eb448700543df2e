//! RMSprop: steps divided by the root of a running mean of squares.

use super::step::{Formula, Now, StepTensors, rule, steps};
use crate::element::Real;
use crate::error::Result;
use crate::inlined::Array;

/// The settings of a step of RMSprop; the formulas are PyTorch's.
///
/// With gradient `g` (`−g` to maximize; plus `weight_decay · p`): `v ← α v + (1 − α) g²`; `d = √v + eps`, or if centered
/// `d = √(v − a²) + eps` with `a ← α a + (1 − α) g`. Then `p ← p − lr · g / d`, or with momentum `b ← momentum · b + g / d` and
/// `p ← p − lr · b`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsPropRule {
    /// How much of the running square is kept: `α`.
    pub alpha: f64,
    /// Keeps the step finite where gradients vanish.
    pub eps: f64,
    /// How much of each parameter is added to its gradient.
    pub weight_decay: f64,
    /// How much of the last step's direction is kept.
    pub momentum: f64,
    /// Whether to divide by the deviation of gradients from their running mean.
    pub centered: bool,
    /// Whether to maximize.
    pub maximize: bool,
}

steps! { RmsPropRule, "The state tensors are the running square `v`, the running mean `a` if centered, and the direction `b` if `momentum` is above 0." }

impl Formula for RmsPropRule {
    rule! { "rmsprop", self => is_decoupled: false, has_state: [true, self.centered, self.momentum > 0.0],
    numbers: [self.alpha, self.eps, self.momentum, f64::from(u8::from(self.centered))] }
    const CLOCK: usize = 0;

    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()> {
        match (self.centered, self.momentum > 0.0) {
            (false, false) => self.step_with::<R, 1>(now),
            (true, true) => self.step_with::<R, 3>(now),
            _ => self.step_with::<R, 2>(now),
        }
    }
}

impl RmsPropRule {
    /// The step with `N` state tensors: the square, then the mean and the direction, if there are.
    fn step_with<R: Real, const N: usize>(&self, now: Now<'_>) -> Result<()> {
        let [keep, new, eps, momentum, rate] =
            [self.alpha, 1.0 - self.alpha, self.eps, self.momentum, -now.lr].mapped(R::from_f64);
        let (centered, has_momentum) = (self.centered, self.momentum > 0.0);
        now.change(inlined!(|x: R, mut state: [R; N], g| {
            state[0] = state[0] * keep + new * g * g;
            let mut square = state[0];
            if centered {
                state[1] = state[1] * keep + new * g;
                square = square - state[1] * state[1];
            }
            let mut direction = g / (square.sqrt() + eps);
            if has_momentum {
                state[N - 1] = state[N - 1] * momentum + direction;
                direction = state[N - 1];
            }
            (x + rate * direction, state)
        }))
    }
}
