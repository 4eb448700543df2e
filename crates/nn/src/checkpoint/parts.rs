//! [`Checkpoint`]: what is to be saved, by name.

use std::fmt::Display;

use pagelock_memory::Holder;
use pagelock_tensor::{AnyTensor, DType, GeneratorState, Tensor, default_generator, snapshot_all};

use super::CheckpointValue;
use crate::optim::lr_scheduler::{LrScheduler, LrState, ReduceLrOnPlateau};
use crate::optim::{GradScaler, Optimizer};
use crate::{Error, Module, Result, StateDict};

pub(super) const MODEL: &str = "model";
pub(super) const OPTIMIZER: &str = "optimizer";
pub(super) const SCHEDULER: &str = "scheduler";
pub(super) const PLATEAU: &str = "plateau";
pub(super) const SCALER: &str = "scaler";
pub(super) const RANDOM: &str = "random";
pub(super) const LOADER: &str = "loader";
pub(super) const VALUES: &str = "values";
pub(super) const SCORE: &str = "score";

/// All that is to be saved of a training, collected between two of its steps; see [`Checkpoints`](super::Checkpoints).
///
/// Tensors are those of the model and the optimizer themselves until [`Checkpoints::save`](super::Checkpoints::save) copies them.
/// Everything else is read when it is added.
///
/// # Examples
/// ```
/// use pagelock_nn::{Checkpoint, Linear, Module, optim::{AveragedModel, Sgd}};
///
/// let model = Linear::new(3, 2)?;
/// let averaged = AveragedModel::new(Linear::new(3, 2)?)?.ema(0.99);
/// let opt = Sgd::new(model.parameters(), 0.1);
/// let checkpoint = Checkpoint::new()
///     .model(&model)?
///     .module("averaged", &averaged)?
///     .optimizer(&opt)?
///     .random()?
///     .value("epoch", 3)?
///     .value("note", "before the change".to_owned())?;
/// # drop(checkpoint);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Checkpoint {
    entries: StateDict,
    pub(super) score: Option<f64>,
}

impl Checkpoint {
    /// One with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// A model's parameters and buffers, as `model`.
    ///
    /// # Errors
    /// [`Error::Argument`] if two tensors of the model have one name, or the checkpoint has a `model` already.
    pub fn model<M: Module>(self, model: &M) -> Result<Self> {
        self.tensors(MODEL, &model.state_dict())
    }

    /// The same under another name: for a second model, or averages ([`AveragedModel`](crate::optim::AveragedModel)).
    ///
    /// # Errors
    /// As [`tensors`](Self::tensors).
    pub fn module<M: Module>(self, name: &str, module: &M) -> Result<Self> {
        self.tensors(name, &module.state_dict())
    }

    /// What an optimizer keeps, and its settings. Of a second optimizer, save
    /// [`to_dict`](crate::optim::OptimizerState::to_dict) of its state as [`tensors`](Self::tensors).
    ///
    /// # Errors
    /// As [`Optimizer::state_dict`]; [`Error::Argument`] if the checkpoint has an optimizer already.
    pub fn optimizer(self, optimizer: &dyn Optimizer) -> Result<Self> {
        self.tensors(OPTIMIZER, &optimizer.state_dict()?.to_dict()?)
    }

    /// Where a schedule of learning rates is.
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has one already.
    pub fn scheduler<S: crate::optim::lr_scheduler::Schedule>(self, scheduler: &LrScheduler<S>) -> Result<Self> {
        self.lr_state(scheduler.state())
    }

    fn lr_state(self, LrState { step, base, lrs }: LrState) -> Result<Self> {
        let rates = |rates: &[f64]| Tensor::of(DType::F64).from_slice(rates, rates.len());
        let parts = [("step", step.to_tensor()?), ("base", rates(&base)?.into()), ("lrs", rates(&lrs)?.into())];
        self.tensors(SCHEDULER, &named(parts))
    }

    /// Where a [`ReduceLrOnPlateau`] is.
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has one already.
    pub fn plateau(self, scheduler: &ReduceLrOnPlateau) -> Result<Self> {
        let state = scheduler.state();
        let mut parts =
            named([("bad_epochs", state.bad_epochs.to_tensor()?), ("cooldown", state.cooldown.to_tensor()?)]);
        if let Some(best) = state.best {
            parts.insert("best", best.to_tensor()?);
        }
        self.tensors(PLATEAU, &parts)
    }

    /// The scale of a [`GradScaler`], and how it goes on.
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has one already.
    pub fn scaler(self, scaler: &GradScaler) -> Result<Self> {
        let state = scaler.state();
        self.tensors(
            SCALER,
            &named([("scale", state.scale.to_tensor()?), ("good_steps", state.good_steps.to_tensor()?)]),
        )
    }

    /// Where the [`default_generator`] is: dropout and all else that draws from it goes on with the same numbers, on any device.
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has it already.
    pub fn random(self) -> Result<Self> {
        let GeneratorState { seed, position } = default_generator().state();
        self.tensors(RANDOM, &named([("seed", seed.to_tensor()?), ("position", position.to_tensor()?)]))
    }

    /// Where a loader is: `pagelock_data`'s `loader.state()`, or anything that prints as a text that parses again.
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has one already.
    pub fn loader(self, state: impl Display) -> Result<Self> {
        let text = state.to_string().to_tensor()?;
        self.tensors(LOADER, &named([("state", text)]))
    }

    /// A number or a text: how many epochs are done, figures of each as JSON.
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has a value of that name already.
    pub fn value<V: CheckpointValue>(self, name: &str, value: V) -> Result<Self> {
        self.tensor(name, value.to_tensor()?)
    }

    /// A tensor beside the model, such as a sum that is kept on a GPU.
    ///
    /// # Errors
    /// As [`value`](Self::value), with whose names its name must not clash.
    pub fn tensor(self, name: &str, tensor: impl Into<AnyTensor>) -> Result<Self> {
        self.entry(format!("{VALUES}.{name}"), tensor.into())
    }

    /// How good the model is, for [`keep_best`](super::Checkpoints::keep_best): larger is better, so give the negative of a loss. NaN is
    /// worse than all.
    #[must_use]
    pub fn score(mut self, score: f64) -> Self {
        self.score = Some(score);
        self
    }

    /// Tensors of any names, under one.
    ///
    /// # Errors
    /// [`Error::Argument`] if two of `dict` have one name, the checkpoint has something of that name already, or `name` has a dot.
    pub fn tensors(mut self, name: &str, dict: &StateDict) -> Result<Self> {
        dict.check_names()?;
        if name.contains('.') || name.is_empty() {
            let problem = "a part has a name without dots";
            return Err(Error::Argument(format!("Checkpoint: `{name}` cannot be saved: {problem}; give it one")));
        }
        for (entry, tensor) in dict.iter() {
            self = self.entry(format!("{name}.{entry}"), tensor.clone())?;
        }
        Ok(self)
    }

    fn entry(mut self, name: String, tensor: AnyTensor) -> Result<Self> {
        if self.entries.get_any(&name).is_some() {
            let fix = "save each thing once, under a name of its own";
            return Err(Error::Argument(format!("Checkpoint: `{name}` was added already; {fix}")));
        }
        self.entries.insert(name, tensor);
        Ok(self)
    }

    /// Copies of all tensors, on the host.
    pub(super) fn snapshot(mut self) -> Result<StateDict> {
        if let Some(score) = self.score {
            self.entries.insert(SCORE, score.to_tensor()?);
        }
        let tensors: Vec<&AnyTensor> = self.entries.iter().map(|(_, tensor)| tensor).collect();
        let _charged = Holder::named("checkpoint").by_default();
        let copies = snapshot_all(&tensors)?;
        Ok(self.entries.names().map(str::to_owned).zip(copies).collect())
    }
}

fn named<const N: usize>(parts: [(&str, AnyTensor); N]) -> StateDict {
    parts.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_charged_to_checkpoint_until_they_are_written() {
        let checkpoint = Checkpoint::new().tensor("x", Tensor::ones([1000]).unwrap()).unwrap();
        let held = || pagelock_memory::default_host().holders().iter().any(|held| held.name == "checkpoint");
        let copies = checkpoint.snapshot().unwrap();
        assert!(held());
        drop(copies);
        assert!(!held());
    }
}
