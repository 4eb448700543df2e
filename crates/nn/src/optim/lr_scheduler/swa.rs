//! The rate of stochastic weight averaging: [`SwaLr`].

use std::f64::consts::PI;

use super::{Anneal, Schedule};
use crate::setters::setters;

/// Moves the rate to `swa_lr` and keeps it there, as PyTorch's `torch.optim.swa_utils.SWALR`: for
/// [`AveragedModel`](crate::optim::AveragedModel).
///
/// After step `t` of `anneal_epochs` the rate is `α · swa_lr + (1 − α) · start`, where `start` is the rate at first,
/// and `α = (1 − cos(π t / anneal_epochs)) / 2`, or with [`Anneal::Linear`] `α = t / anneal_epochs`.
///
/// P. Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018,
/// <https://arxiv.org/abs/1803.05407>.
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, Module, optim::{Optimizer, Sgd, lr_scheduler::{Anneal, LrScheduler, SwaLr}}};
///
/// let model = Linear::new(784, 10)?;
/// let mut opt = Sgd::new(model.parameters(), 0.5);
/// let schedule = SwaLr::new(0.25).anneal_epochs(2).anneal_strategy(Anneal::Linear);
/// let mut scheduler = LrScheduler::new(&mut opt, schedule)?;
/// scheduler.step(&mut opt)?;
/// assert_eq!(opt.lr(), 0.375);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwaLr {
    swa_lr: f64,
    anneal_epochs: u64,
    anneal: Anneal,
}

impl SwaLr {
    /// Reaches `swa_lr` in 10 steps, along half a cosine.
    pub fn new(swa_lr: f64) -> Self {
        Self { swa_lr, anneal_epochs: 10, anneal: Anneal::Cos }
    }

    /// The weight `α` of `swa_lr` in the rate after `step`.
    fn part(&self, step: f64) -> f64 {
        let part = (step / self.anneal_epochs.max(1) as f64).clamp(0.0, 1.0);
        match self.anneal {
            Anneal::Cos => (1.0 - (PI * part).cos()) / 2.0,
            Anneal::Linear => part,
        }
    }
}

setters! { SwaLr,
    /// The number of steps; 0 sets `swa_lr` at once.
    anneal_epochs: u64;
    /// The shape of the curve.
    anneal_strategy: Anneal => anneal = anneal_strategy;
}

impl Schedule for SwaLr {
    fn next(&self, step: u64, _base: f64, lr: f64) -> f64 {
        let step = if self.anneal_epochs == 0 { step.max(1) } else { step } as f64;
        let (before, now) = (self.part(step - 1.0), self.part(step));
        let start = if before == 1.0 { self.swa_lr } else { (lr - before * self.swa_lr) / (1.0 - before) };
        self.swa_lr * now + start * (1.0 - now)
    }

    fn first(&self, base: f64, lr: f64) -> f64 {
        self.next(0, base, lr)
    }

    fn restart(&self, base: f64, lr: f64) -> f64 {
        self.first(base, lr) // from the current rate
    }
}
