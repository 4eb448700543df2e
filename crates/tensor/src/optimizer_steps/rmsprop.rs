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

steps! { RmsPropRule, "Keeps the running square `v`, the running mean `a` if centered, and the direction `b` if `momentum` is above 0." }

impl Formula for RmsPropRule {
    rule! { "rmsprop", self => is_decoupled: false, keeps: [true, self.centered, self.momentum > 0.0],
    numbers: [self.alpha, self.eps, self.momentum, f64::from(u8::from(self.centered))] }
    const CLOCK: usize = 0;

    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()> {
        match (self.centered, self.momentum > 0.0) {
            (false, false) => self.step_keeping::<R, 1>(now),
            (true, true) => self.step_keeping::<R, 3>(now),
            _ => self.step_keeping::<R, 2>(now),
        }
    }
}

impl RmsPropRule {
    /// The step with `N` kept tensors: the square, then the mean and the direction, if they are kept.
    fn step_keeping<R: Real, const N: usize>(&self, now: Now<'_>) -> Result<()> {
        let [keep, new, eps, momentum, rate] =
            [self.alpha, 1.0 - self.alpha, self.eps, self.momentum, -now.lr].mapped(R::from_f64);
        let (centered, has_momentum) = (self.centered, self.momentum > 0.0);
        now.change(inlined!(|x: R, mut kept: [R; N], g| {
            kept[0] = kept[0] * keep + new * g * g;
            let mut square = kept[0];
            if centered {
                kept[1] = kept[1] * keep + new * g;
                square = square - kept[1] * kept[1];
            }
            let mut direction = g / (square.sqrt() + eps);
            if has_momentum {
                kept[N - 1] = kept[N - 1] * momentum + direction;
                direction = kept[N - 1];
            }
            (x + rate * direction, kept)
        }))
    }
}
