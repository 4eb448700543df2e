//! ASGD: averaged stochastic gradient descent.

use super::Rate;
use super::step::{Formula, Now, StepTensors, rule, steps};
use crate::element::Real;
use crate::error::Result;
use crate::inlined::Array;
use crate::tensor::Tensor;

/// The settings of a step of ASGD; the formulas are PyTorch's.
///
/// With gradient `g` (`−g` to maximize; plus `weight_decay · p`): `p ← p · (1 − lambd · η) − η · g`,
/// `a ← a + μ · (p − a)`. After step `t`, `η = lr / (1 + lambd · lr · t)^alpha` and `μ = 1 / max(1, t − t0)`; in the
/// first step, `η` is the learning rate and `μ` is 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AsgdRule {
    /// How much parameters shrink, relative to `η`.
    pub lambd: f64,
    /// How fast the learning rate falls.
    pub alpha: f64,
    /// The step from which on parameters are averaged.
    pub t0: f64,
    /// How much of each parameter is added to its gradient.
    pub weight_decay: f64,
    /// Whether to maximize.
    pub maximize: bool,
}

steps! { AsgdRule, "The state tensor is the average `a`; the clock has the number of steps, `η` and `μ`." }

impl Formula for AsgdRule {
    rule! { "asgd", self => is_decoupled: false, has_state: [true, false, false], numbers: [self.lambd] }
    const CLOCK: usize = 3;

    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()> {
        let [_, eta, mu] = now.clock;
        let [shrink, rate, share] = [1.0 - self.lambd * eta, -eta, mu].mapped(R::from_f64);
        let is_copied = mu == 1.0;
        now.change(inlined!(|x: R, [average]: [R; 1], g| {
            let x = x * shrink + g * rate;
            (x, [if is_copied { x } else { average + (x - average) * share }])
        }))
    }
}

impl AsgdRule {
    /// Sets `η` and `μ` of the clock for the step after the one that the clock counts.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    pub fn anneal(&self, clock: &Tensor, lr: &Rate) -> Result<()> {
        let (steps, eta, mu) = (clock.select(0, 0)?, clock.select(0, 1)?, clock.select(0, 2)?);
        let lr = lr.all_on(&clock.device())?.select(0, lr.index() as isize)?;
        let falls = steps.mul(&lr)?.mul_scalar(self.lambd)?.add_scalar(1.0)?;
        eta.copy_(&lr.div(&falls.pow(self.alpha)?)?)?;
        let one = steps.full_like(1.0)?;
        mu.copy_(&one.div(&steps.add_scalar(-self.t0)?.maximum(&one)?)?)
    }
}
