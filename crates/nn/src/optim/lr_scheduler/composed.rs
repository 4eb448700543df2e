//! Schedules of schedules: [`SequentialLr`], [`ChainedScheduler`].

use super::Schedule;
use crate::{Error, Result};

/// One schedule after the other, as PyTorch's `SequentialLR`.
///
/// # Examples
/// Five steps of warm-up, and then down along a cosine:
/// ```
/// use pagelock_nn::optim::lr_scheduler::{CosineAnnealingLr, LinearLr, Schedule, SequentialLr};
///
/// let schedule = SequentialLr::new(LinearLr::new(5)).then(5, CosineAnnealingLr::new(95));
/// assert!(schedule.first(0.3, 0.3) < 0.101);
/// assert_eq!(schedule.next(5, 0.3, 0.2), 0.3);
/// ```
pub struct SequentialLr {
    schedules: Vec<(u64, Box<dyn Schedule>)>, // with the step at which each begins, ascending from 0
}

impl SequentialLr {
    /// Begins with `schedule`.
    pub fn new(schedule: impl Schedule + 'static) -> Self {
        Self { schedules: vec![(0, Box::new(schedule))] }
    }

    /// Switches to `schedule` at step `milestone`, from which it counts steps. It starts from the optimizer's initial
    /// rate, or as [`SwaLr`](super::SwaLr) from the current one. (In PyTorch, making a `CyclicLR` or a `OneCycleLR`
    /// changes the initial rate, for the other schedules too.)
    #[must_use]
    pub fn then(mut self, milestone: u64, schedule: impl Schedule + 'static) -> Self {
        self.schedules.push((milestone, Box::new(schedule)));
        self
    }
}

impl Schedule for SequentialLr {
    fn next(&self, step: u64, base: f64, lr: f64) -> f64 {
        let Some((milestone, schedule)) = self.schedules.iter().rev().find(|(milestone, _)| *milestone <= step) else {
            return lr; // not reached: the first begins at 0
        };
        match step - milestone {
            0 => schedule.restart(base, lr),
            step => schedule.next(step, base, lr),
        }
    }

    fn first(&self, base: f64, lr: f64) -> f64 {
        self.schedules[0].1.first(base, lr)
    }

    fn restart(&self, base: f64, lr: f64) -> f64 {
        self.schedules[0].1.restart(base, lr)
    }

    fn check(&self) -> Result<()> {
        if let Some(two) = self.schedules.windows(2).find(|two| two[1].0 <= two[0].0) {
            let (before, after) = (two[0].0, two[1].0);
            let fix = "give each `then` a later step than the one before";
            return Err(Error::Argument(format!("SequentialLr: milestone {after} is listed after {before}; {fix}")));
        }
        self.schedules.iter().try_for_each(|(_, schedule)| schedule.check())
    }
}

/// Applies several schedules in each step, each to the rate that the previous one returns, as PyTorch's
/// `ChainedScheduler`.
///
/// # Examples
/// ```
/// use pagelock_nn::optim::lr_scheduler::{ChainedScheduler, ConstantLr, ExponentialLr, Schedule};
///
/// let schedule = ChainedScheduler::new(ConstantLr::new(0.5, 3)).and(ExponentialLr::new(0.9));
/// assert_eq!(schedule.first(0.1, 0.1), 0.05);
/// assert_eq!(schedule.next(1, 0.1, 0.05), 0.05 * 0.9);
/// ```
pub struct ChainedScheduler {
    schedules: Vec<Box<dyn Schedule>>,
}

impl ChainedScheduler {
    /// Begins with `schedule`.
    pub fn new(schedule: impl Schedule + 'static) -> Self {
        Self { schedules: vec![Box::new(schedule)] }
    }

    /// Adds `schedule` after the others.
    #[must_use]
    pub fn and(mut self, schedule: impl Schedule + 'static) -> Self {
        self.schedules.push(Box::new(schedule));
        self
    }
}

impl Schedule for ChainedScheduler {
    fn next(&self, step: u64, base: f64, lr: f64) -> f64 {
        self.schedules.iter().fold(lr, |lr, schedule| schedule.next(step, base, lr))
    }

    fn first(&self, base: f64, lr: f64) -> f64 {
        self.schedules.iter().fold(lr, |lr, schedule| schedule.first(base, lr))
    }

    fn check(&self) -> Result<()> {
        self.schedules.iter().try_for_each(Schedule::check)
    }
}
