//! Rates that fall: [`StepLr`], [`MultiStepLr`], [`ExponentialLr`], [`PolynomialLr`].

use super::{Schedule, check_steps};
use crate::Result;
use crate::setters::setters;

/// Multiplies the rate by `gamma` every `step_size` steps, as PyTorch's `StepLR`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepLr {
    step_size: u64,
    gamma: f64,
}

impl StepLr {
    /// With a `gamma` of 0.1.
    pub fn new(step_size: u64) -> Self {
        Self { step_size, gamma: 0.1 }
    }
}

setters! { StepLr,
    /// The factor; 0.1 by default.
    gamma: f64;
}

impl Schedule for StepLr {
    fn next(&self, step: u64, _base: f64, lr: f64) -> f64 {
        if step.is_multiple_of(self.step_size) { lr * self.gamma } else { lr }
    }

    fn check(&self) -> Result<()> {
        check_steps("StepLr", "step_size", self.step_size)
    }
}

/// Multiplies the rate by `gamma` at each milestone, a step, as PyTorch's `MultiStepLR`.
#[derive(Debug, Clone, PartialEq)]
pub struct MultiStepLr {
    milestones: Vec<u64>,
    gamma: f64,
}

impl MultiStepLr {
    /// With a `gamma` of 0.1. A milestone that is given twice counts twice.
    pub fn new(milestones: impl Into<Vec<u64>>) -> Self {
        Self { milestones: milestones.into(), gamma: 0.1 }
    }
}

setters! { MultiStepLr,
    /// The factor; 0.1 by default.
    gamma: f64;
}

impl Schedule for MultiStepLr {
    fn next(&self, step: u64, _base: f64, lr: f64) -> f64 {
        match self.milestones.iter().filter(|&&milestone| milestone == step).count() {
            0 => lr,
            times => lr * self.gamma.powf(times as f64),
        }
    }

    fn first(&self, base: f64, lr: f64) -> f64 {
        self.next(0, base, lr)
    }
}

/// Multiplies the rate by `gamma` in each step, as PyTorch's `ExponentialLR`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExponentialLr {
    gamma: f64,
}

impl ExponentialLr {
    /// Multiplies by `gamma`.
    pub fn new(gamma: f64) -> Self {
        Self { gamma }
    }
}

impl Schedule for ExponentialLr {
    fn next(&self, _step: u64, _base: f64, lr: f64) -> f64 {
        lr * self.gamma
    }
}

/// Lets the rate fall to 0 within `total_iters` steps, as `(1 − step / total_iters)` to a power: PyTorch's `PolynomialLR`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolynomialLr {
    total_iters: u64,
    power: f64,
}

impl PolynomialLr {
    /// In a straight line: a power of 1.
    pub fn new(total_iters: u64) -> Self {
        Self { total_iters, power: 1.0 }
    }
}

setters! { PolynomialLr,
    /// The power; 1 by default.
    power: f64;
}

impl Schedule for PolynomialLr {
    fn next(&self, step: u64, _base: f64, lr: f64) -> f64 {
        if step > self.total_iters {
            return lr;
        }
        let left = |step: u64| 1.0 - step as f64 / self.total_iters as f64;
        match left(step.saturating_sub(1)) {
            0.0 => lr, // from about 10^16 steps on, the step before the last rounds to 0
            before => lr * (left(step) / before).powf(self.power),
        }
    }

    fn check(&self) -> Result<()> {
        check_steps("PolynomialLr", "total_iters", self.total_iters)
    }
}
