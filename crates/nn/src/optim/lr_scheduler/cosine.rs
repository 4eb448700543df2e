//! Rates along a cosine: [`CosineAnnealingLr`], [`CosineAnnealingWarmRestarts`].
//!
//! I. Loshchilov, F. Hutter, "SGDR: stochastic gradient descent with warm restarts", 2016, <https://arxiv.org/abs/1608.03983>.

use std::f64::consts::PI;

use super::{Schedule, check_steps};
use crate::Result;
use crate::setters::setters;

/// Lets the rate fall to `eta_min` along half a cosine, within `t_max` steps, and rise again after that, as PyTorch's
/// `CosineAnnealingLR`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CosineAnnealingLr {
    t_max: u64,
    eta_min: f64,
}

impl CosineAnnealingLr {
    /// Falls to 0 within `t_max` steps.
    pub fn new(t_max: u64) -> Self {
        Self { t_max, eta_min: 0.0 }
    }

    /// 1 + cos(π · step / t_max), which falls from 2 to 0.
    fn height(&self, step: u64) -> f64 {
        1.0 + (PI * step as f64 / self.t_max as f64).cos()
    }
}

setters! { CosineAnnealingLr,
    /// The lowest rate; 0 by default.
    eta_min: f64;
}

impl Schedule for CosineAnnealingLr {
    fn next(&self, step: u64, base: f64, lr: f64) -> f64 {
        let Self { t_max, eta_min } = *self;
        // The first step up from the lowest rate, where the quotient below would divide by 0.
        if step > t_max && (step - 1 - t_max).is_multiple_of(t_max.saturating_mul(2)) {
            return lr + (base - eta_min) * (1.0 - (PI / t_max as f64).cos()) / 2.0;
        }
        match self.height(step.saturating_sub(1)) {
            0.0 => lr, // from about 10^8 steps on, the step before the last rounds to 0
            before => self.height(step) / before * (lr - eta_min) + eta_min,
        }
    }

    fn restart(&self, base: f64, _lr: f64) -> f64 {
        self.eta_min + (base - self.eta_min) * self.height(0) / 2.0
    }

    fn check(&self) -> Result<()> {
        check_steps("CosineAnnealingLr", "t_max", self.t_max)
    }
}

/// Lets the rate fall to `eta_min` along half a cosine, again and again, as PyTorch's `CosineAnnealingWarmRestarts`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CosineAnnealingWarmRestarts {
    t_0: u64,
    t_mult: u64,
    eta_min: f64,
}

impl CosineAnnealingWarmRestarts {
    /// Falls to 0 within `t_0` steps, then restarts.
    pub fn new(t_0: u64) -> Self {
        Self { t_0, t_mult: 1, eta_min: 0.0 }
    }

    fn at(&self, step: u64, base: f64) -> f64 {
        let (mut in_period, mut period) = (step, self.t_0.max(1));
        if self.t_mult <= 1 {
            in_period %= period;
        }
        while in_period >= period {
            in_period -= period;
            period = period.saturating_mul(self.t_mult);
        }
        let height = 1.0 + (PI * in_period as f64 / period as f64).cos();
        self.eta_min + (base - self.eta_min) * height / 2.0
    }
}

setters! { CosineAnnealingWarmRestarts,
    /// The factor by which each period is longer than the one before; 1 by default.
    t_mult: u64;
    /// The lowest rate; 0 by default.
    eta_min: f64;
}

impl Schedule for CosineAnnealingWarmRestarts {
    fn next(&self, step: u64, base: f64, _lr: f64) -> f64 {
        self.at(step, base)
    }

    fn first(&self, base: f64, _lr: f64) -> f64 {
        self.at(0, base)
    }

    fn check(&self) -> Result<()> {
        check_steps("CosineAnnealingWarmRestarts", "t_0", self.t_0)?;
        check_steps("CosineAnnealingWarmRestarts", "t_mult", self.t_mult)
    }
}
