//! [`ReduceLrOnPlateau`]: the rate falls when a metric gets no better.

use super::check;
use crate::Result;
use crate::optim::Optimizer;

/// Multiplies the rate by a factor when a metric has not become better for some epochs, as PyTorch's `ReduceLROnPlateau`.
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, Module, optim::{Optimizer, Sgd, lr_scheduler::ReduceLrOnPlateau}};
///
/// let model = Linear::new(784, 10)?;
/// let mut opt = Sgd::new(model.parameters(), 0.1);
/// let mut scheduler = ReduceLrOnPlateau::new().patience(1);
/// for validation_loss in [2.0, 1.0, 1.0, 1.0] {
///     scheduler.step(&mut opt, validation_loss)?;
/// }
/// assert_eq!(opt.lr(), 0.1 * 0.1);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ReduceLrOnPlateau {
    mode: PlateauMode,
    factor: f64,
    patience: u64,
    threshold: Threshold,
    cooldown: u64,
    min_lr: f64,
    eps: f64,
    state: PlateauState,
}

/// Where a [`ReduceLrOnPlateau`] is: all that has to be kept to go on with it, beside the optimizer's rate.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PlateauState {
    /// The best metric so far.
    pub best: Option<f64>,
    /// How many epochs in a row had no better metric.
    pub bad_epochs: u64,
    /// For how many epochs bad ones do not count yet.
    pub cooldown: u64,
}

/// Which metrics are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlateauMode {
    /// Smaller ones, as losses.
    Min,
    /// Larger ones, as accuracies.
    Max,
}

/// By how much a metric has to be better than the best so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// By this part of the best.
    Rel(f64),
    /// By this much.
    Abs(f64),
}

impl Default for ReduceLrOnPlateau {
    fn default() -> Self {
        Self {
            mode: PlateauMode::Min,
            factor: 0.1,
            patience: 10,
            threshold: Threshold::Rel(1e-4),
            cooldown: 0,
            min_lr: 0.0,
            eps: 1e-8,
            state: PlateauState::default(),
        }
    }
}

impl ReduceLrOnPlateau {
    /// A tenth after more than 10 epochs in which a metric that should fall fell by less than a ten-thousandth.
    pub fn new() -> Self {
        Self::default()
    }

    /// Which metrics are better.
    #[must_use]
    pub fn mode(self, mode: PlateauMode) -> Self {
        Self { mode, ..self }
    }

    /// What the rate is multiplied by, at least 0 and below 1.
    #[must_use]
    pub fn factor(self, factor: f64) -> Self {
        Self { factor, ..self }
    }

    /// After how many epochs without a better metric the next one lowers the rate.
    #[must_use]
    pub fn patience(self, patience: u64) -> Self {
        Self { patience, ..self }
    }

    /// By how much a metric has to be better.
    #[must_use]
    pub fn threshold(self, threshold: Threshold) -> Self {
        Self { threshold, ..self }
    }

    /// For how many epochs after the rate was lowered bad ones do not count.
    #[must_use]
    pub fn cooldown(self, cooldown: u64) -> Self {
        Self { cooldown, ..self }
    }

    /// The least rate.
    #[must_use]
    pub fn min_lr(self, min_lr: f64) -> Self {
        Self { min_lr, ..self }
    }

    /// The least change of the rate: smaller ones are not made.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// To be called after each epoch, with its metric. NaN is never better.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the factor is not at least 0 and below 1, with nothing changed.
    pub fn step(&mut self, optimizer: &mut dyn Optimizer, metric: f64) -> Result<()> {
        let in_range = (0.0..1.0).contains(&self.factor);
        check(in_range, "ReduceLrOnPlateau", "factor", self.factor, "at least 0 and below 1")?;
        let worst = if self.mode == PlateauMode::Min { f64::INFINITY } else { f64::NEG_INFINITY };
        if self.is_better(metric, self.state.best.unwrap_or(worst)) {
            (self.state.best, self.state.bad_epochs) = (Some(metric), 0);
        } else {
            self.state.bad_epochs += 1;
        }
        if self.state.cooldown > 0 {
            (self.state.cooldown, self.state.bad_epochs) = (self.state.cooldown - 1, 0);
        }
        if self.state.bad_epochs > self.patience {
            let lower = |lr: f64| (lr * self.factor).max(self.min_lr);
            let lowered = |&lr: &f64| if lr - lower(lr) > self.eps { lower(lr) } else { lr };
            optimizer.set_lrs(&optimizer.lrs().iter().map(lowered).collect::<Vec<_>>())?;
            (self.state.cooldown, self.state.bad_epochs) = (self.cooldown, 0);
        }
        Ok(())
    }

    /// Where it is.
    pub fn state(&self) -> PlateauState {
        self.state
    }

    /// Goes on from the [`state`](Self::state) of a scheduler with the same settings.
    pub fn load_state(&mut self, state: PlateauState) {
        self.state = state;
    }

    fn is_better(&self, metric: f64, best: f64) -> bool {
        match (self.mode, self.threshold) {
            (PlateauMode::Min, Threshold::Rel(part)) => metric < best * (1.0 - part),
            (PlateauMode::Min, Threshold::Abs(by)) => metric < best - by,
            (PlateauMode::Max, Threshold::Rel(part)) => metric > best * (part + 1.0),
            (PlateauMode::Max, Threshold::Abs(by)) => metric > best + by,
        }
    }
}
