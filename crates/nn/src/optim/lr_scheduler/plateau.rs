//! [`ReduceLrOnPlateau`]: lowers the rate when a metric stops improving.

use super::check;
use crate::Result;
use crate::optim::Optimizer;
use crate::setters::setters;

/// Multiplies the rate by a factor when a metric has not improved for some epochs, as PyTorch's `ReduceLROnPlateau`.
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

/// The state of a [`ReduceLrOnPlateau`]: all that is needed to resume it, apart from the optimizer's rate.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PlateauState {
    /// The best metric so far.
    pub best: Option<f64>,
    /// The number of epochs in a row without improvement.
    pub bad_epochs: u64,
    /// The number of epochs to come in which a missing improvement is not counted.
    pub cooldown: u64,
}

/// Whether smaller or larger metrics are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlateauMode {
    /// Smaller metrics are better, such as losses.
    Min,
    /// Larger metrics are better, such as accuracies.
    Max,
}

/// By how much a metric has to be better than the best so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// By this share of the best.
    Rel(f64),
    /// By this absolute difference.
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
    /// PyTorch's defaults: multiplies the rate by 0.1 after more than 10 epochs in which the metric is not below the
    /// best by more than 0.01 %.
    pub fn new() -> Self {
        Self::default()
    }

    /// Call it after each epoch, with the metric of the epoch. NaN is never better.
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
            self.state.bad_epochs = self.state.bad_epochs.saturating_add(1);
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

    /// The state, to resume from.
    pub fn state(&self) -> PlateauState {
        self.state
    }

    /// Resumes from the [`state`](Self::state) of a scheduler with the same settings.
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

setters! { ReduceLrOnPlateau,
    /// Whether smaller or larger metrics are better.
    mode: PlateauMode;
    /// The factor of the rate, at least 0 and below 1; 0.1 by default.
    factor: f64;
    /// The number of epochs without improvement after which the next one lowers the rate; 10 by default.
    patience: u64;
    /// By how much a metric has to be better than the best so far; [`Threshold::Rel`] of 1e-4 by default.
    threshold: Threshold;
    /// The number of epochs after lowering the rate in which a missing improvement is not counted; 0 by default.
    cooldown: u64;
    /// The lowest rate; 0 by default.
    min_lr: f64;
    /// Changes of the rate that are not larger than this are skipped; 1e-8 by default.
    eps: f64;
}
