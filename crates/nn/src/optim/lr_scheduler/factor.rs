//! Factors of the rate: [`ConstantLr`], [`LinearLr`], [`LambdaLr`], [`MultiplicativeLr`].

use super::{Schedule, check, check_steps};
use crate::Result;
use crate::setters::setters;

/// Multiplies the rate by a factor for the first steps only, as PyTorch's `ConstantLR`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConstantLr {
    factor: f64,
    total_iters: u64,
}

impl ConstantLr {
    /// A factor above 0, at most 1, until `total_iters` steps are done. PyTorch's default is a third, for 5 steps.
    pub fn new(factor: f64, total_iters: u64) -> Self {
        Self { factor, total_iters }
    }
}

impl Schedule for ConstantLr {
    fn next(&self, step: u64, _base: f64, lr: f64) -> f64 {
        if step == self.total_iters { lr * (1.0 / self.factor) } else { lr }
    }

    fn first(&self, _base: f64, lr: f64) -> f64 {
        lr * self.factor
    }

    fn restart(&self, base: f64, _lr: f64) -> f64 {
        base * if self.total_iters == 0 { self.factor + (1.0 - self.factor) } else { self.factor }
    }

    fn check(&self) -> Result<()> {
        check(self.factor > 0.0 && self.factor <= 1.0, "ConstantLr", "factor", self.factor, "above 0, and at most 1")
    }
}

/// Changes a factor of the rate linearly, mostly for a warm-up, as PyTorch's `LinearLR`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearLr {
    start_factor: f64,
    end_factor: f64,
    total_iters: u64,
}

impl LinearLr {
    /// From a third of the rate to all of it, within `total_iters` steps. PyTorch's default is 5.
    pub fn new(total_iters: u64) -> Self {
        Self { start_factor: 1.0 / 3.0, end_factor: 1.0, total_iters }
    }
}

setters! { LinearLr,
    /// The initial factor, above 0 and at most 1.
    start_factor: f64;
    /// The final factor, from 0 to 1.
    end_factor: f64;
}

impl Schedule for LinearLr {
    fn next(&self, step: u64, _base: f64, lr: f64) -> f64 {
        if step > self.total_iters {
            return lr;
        }
        let Self { start_factor: start, end_factor: end, total_iters } = *self;
        lr * (1.0 + (end - start) / (total_iters as f64 * start + step.saturating_sub(1) as f64 * (end - start)))
    }

    fn first(&self, _base: f64, lr: f64) -> f64 {
        lr * self.start_factor
    }

    fn check(&self) -> Result<()> {
        let Self { start_factor: start, end_factor: end, total_iters } = *self;
        check(start > 0.0 && start <= 1.0, "LinearLr", "start_factor", start, "above 0, and at most 1")?;
        check((0.0..=1.0).contains(&end), "LinearLr", "end_factor", end, "from 0 to 1")?;
        check_steps("LinearLr", "total_iters", total_iters)
    }
}

/// The rate that the optimizer was made with, times a function of the step, as PyTorch's `LambdaLR`.
#[derive(Debug, Clone, Copy)]
pub struct LambdaLr<F> {
    factor: F,
}

impl<F: Fn(u64) -> f64> LambdaLr<F> {
    /// `factor` takes the step, from 0 on.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::optim::lr_scheduler::{LambdaLr, Schedule};
    ///
    /// let halved = LambdaLr::new(|step| 0.5_f64.powi(step as i32));
    /// assert_eq!(halved.next(2, 0.8, 0.4), 0.2);
    /// ```
    pub fn new(factor: F) -> Self {
        Self { factor }
    }
}

impl<F: Fn(u64) -> f64> Schedule for LambdaLr<F> {
    fn next(&self, step: u64, base: f64, _lr: f64) -> f64 {
        base * (self.factor)(step)
    }

    fn first(&self, base: f64, _lr: f64) -> f64 {
        base * (self.factor)(0)
    }
}

/// Multiplies the rate in each step by a function of the step, as PyTorch's `MultiplicativeLR`.
#[derive(Debug, Clone, Copy)]
pub struct MultiplicativeLr<F> {
    factor: F,
}

impl<F: Fn(u64) -> f64> MultiplicativeLr<F> {
    /// `factor` takes the step, from 1 on; from 0 on in a [`SequentialLr`](super::SequentialLr) after the first.
    pub fn new(factor: F) -> Self {
        Self { factor }
    }
}

impl<F: Fn(u64) -> f64> Schedule for MultiplicativeLr<F> {
    fn next(&self, step: u64, _base: f64, lr: f64) -> f64 {
        lr * (self.factor)(step)
    }

    fn restart(&self, _base: f64, lr: f64) -> f64 {
        lr * (self.factor)(0)
    }
}
