//! Schedules of learning rates: [`LrScheduler`] with a [`Schedule`], and [`ReduceLrOnPlateau`], as in PyTorch's
//! `torch.optim.lr_scheduler`, with the same rates to the last bit.
//!
//! A schedule is a value without state that computes the next rate from the current one and the step. So schedules
//! can be combined ([`SequentialLr`], [`ChainedScheduler`]), and a scheduler is a schedule with a count of steps and
//! the rates.
//!
//! | PyTorch | here |
//! |---|---|
//! | `StepLR`, `MultiStepLR`, `ExponentialLR`, `PolynomialLR` | the same with `Lr`, in `decay.rs` |
//! | `ConstantLR`, `LinearLR` (warm-up), `LambdaLR`, `MultiplicativeLR` | the same, in `factor.rs` |
//! | `CosineAnnealingLR`, `CosineAnnealingWarmRestarts` | the same, in `cosine.rs` |
//! | `CyclicLR`, `OneCycleLR` | the same, with `cycle_momentum=False`, in `cycle.rs` |
//! | `SequentialLR`, `ChainedScheduler` | the same, of schedules, in `composed.rs` |
//! | `ReduceLROnPlateau` | the same, in `plateau.rs` |
//! | `swa_utils.SWALR` | the same, in `swa.rs` |

mod composed;
mod cosine;
mod cycle;
mod decay;
mod factor;
mod plateau;
mod swa;

pub use composed::{ChainedScheduler, SequentialLr};
pub use cosine::{CosineAnnealingLr, CosineAnnealingWarmRestarts};
pub use cycle::{Anneal, CyclicLr, CyclicMode, OneCycleLr};
pub use decay::{ExponentialLr, MultiStepLr, PolynomialLr, StepLr};
pub use factor::{ConstantLr, LambdaLr, LinearLr, MultiplicativeLr};
pub use plateau::{PlateauMode, PlateauState, ReduceLrOnPlateau, Threshold};
pub use swa::SwaLr;

use super::Optimizer;
use super::groups::{check, check_lrs};
use crate::Result;

/// How a learning rate changes from step to step.
///
/// # Examples
/// A custom schedule: the rate falls with the root of the number of steps.
/// ```
/// use pagelock_nn::optim::lr_scheduler::Schedule;
///
/// struct InverseRoot;
///
/// impl Schedule for InverseRoot {
///     fn next(&self, step: u64, base: f64, _lr: f64) -> f64 {
///         base / ((step + 1) as f64).sqrt()
///     }
/// }
/// assert_eq!(InverseRoot.next(3, 0.1, 0.0), 0.05);
/// ```
pub trait Schedule {
    /// The rate after `step` calls of [`LrScheduler::step`], where `step` is at least 1. `base` is the optimizer's
    /// initial rate, `lr` its current rate.
    fn next(&self, step: u64, base: f64, lr: f64) -> f64;

    /// The rate to begin with, which replaces the optimizer's initial rate `base`. `lr` equals `base`, or is the rate
    /// that the previous schedule of a [`ChainedScheduler`] returns.
    fn first(&self, base: f64, lr: f64) -> f64 {
        let _ = base;
        lr
    }

    /// The rate to begin with in a [`SequentialLr`] if this schedule is not the first. `lr` is the current rate.
    fn restart(&self, base: f64, lr: f64) -> f64 {
        let _ = lr;
        self.first(base, base)
    }

    /// Checks that the settings are in their ranges.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) names the setting, its value and what is allowed.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl<S: Schedule + ?Sized> Schedule for Box<S> {
    fn next(&self, step: u64, base: f64, lr: f64) -> f64 {
        (**self).next(step, base, lr)
    }

    fn first(&self, base: f64, lr: f64) -> f64 {
        (**self).first(base, lr)
    }

    fn restart(&self, base: f64, lr: f64) -> f64 {
        (**self).restart(base, lr)
    }

    fn check(&self) -> Result<()> {
        (**self).check()
    }
}

/// Sets the learning rates of an optimizer by a schedule.
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, Module, optim::{Optimizer, Sgd, lr_scheduler::{LrScheduler, StepLr}}};
///
/// let model = Linear::new(784, 10)?;
/// let mut opt = Sgd::new(model.parameters(), 0.5);
/// let mut scheduler = LrScheduler::new(&mut opt, StepLr::new(2))?; // a tenth every two epochs
/// let mut rates = Vec::new();
/// for _epoch in 0..5 {
///     rates.push(opt.lr());
///     // … an epoch of opt.step()
///     scheduler.step(&mut opt)?;
/// }
/// assert_eq!(rates, [0.5, 0.5, 0.05, 0.05, 0.05 * 0.1]);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct LrScheduler<S> {
    schedule: S,
    state: LrState,
}

/// The state of a scheduler: all that is needed to resume it.
#[derive(Debug, Clone, PartialEq)]
pub struct LrState {
    /// The number of calls of [`LrScheduler::step`].
    pub step: u64,
    /// The initial rates of the optimizer's groups.
    pub base: Vec<f64>,
    /// The rates that the scheduler set last.
    pub lrs: Vec<f64>,
}

/// The rate, or 0 if rounding made it negative: optimizers refuse negative rates.
fn without_rounding(base: f64, lr: f64) -> f64 {
    if lr < 0.0 && lr > -1e-12 * base { 0.0 } else { lr }
}

impl<S: Schedule> LrScheduler<S> {
    /// Sets the rate to begin with for each group of parameters, computed from the group's current rate.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if a setting of the schedule is outside its range, with nothing changed.
    pub fn new(optimizer: &mut dyn Optimizer, schedule: S) -> Result<Self> {
        schedule.check()?;
        let base = optimizer.lrs();
        let lrs: Vec<f64> = base.iter().map(|&base| schedule.first(base, base)).collect();
        optimizer.set_lrs(&lrs)?;
        optimizer.set_initial_lrs(&base);
        Ok(Self { schedule, state: LrState { step: 0, base, lrs } })
    }

    /// Sets the next rate, computed from the optimizer's current one. Call it after the optimizer's steps of an
    /// epoch, or after each step if the schedule counts steps. A captured step uses the rate that is set when it is
    /// launched.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the optimizer has another number of groups than in
    /// [`new`](Self::new), with nothing changed.
    pub fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        let (step, now) = (self.state.step.saturating_add(1), optimizer.lrs());
        check_lrs("LrScheduler", &self.state.base, now.len())?;
        let groups = self.state.base.iter().zip(&now);
        let lrs: Vec<f64> =
            groups.map(|(&base, &lr)| without_rounding(base, self.schedule.next(step, base, lr))).collect();
        optimizer.set_lrs(&lrs)?;
        (self.state.step, self.state.lrs) = (step, lrs);
        Ok(())
    }

    /// The rates that were set last, one for each group.
    pub fn last_lr(&self) -> &[f64] {
        &self.state.lrs
    }

    /// The state, to resume from.
    pub fn state(&self) -> LrState {
        self.state.clone()
    }

    /// Resumes from the [`state`](Self::state) of a scheduler with the same schedule, and sets its rates.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the optimizer has another number of groups than `state`, with
    /// nothing changed.
    pub fn load_state(&mut self, optimizer: &mut dyn Optimizer, state: LrState) -> Result<()> {
        check_lrs("LrScheduler", &state.lrs, state.base.len())?;
        optimizer.set_lrs(&state.lrs)?;
        self.state = state;
        Ok(())
    }
}

/// Returns an error if a number of steps is 0.
fn check_steps(schedule: &str, setting: &str, steps: u64) -> Result<()> {
    check(steps > 0, schedule, setting, steps as f64, "at least 1")
}
