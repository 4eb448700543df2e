//! [`Checkpoint`]: named tensors and values to save.

use std::fmt::Display;

use pagelock_memory::Holder;
use pagelock_tensor::{AnyTensor, DType, GeneratorState, Tensor, default_generator, snapshot_all};

use super::CheckpointValue;
use crate::optim::lr_scheduler::{LrScheduler, LrState, ReduceLrOnPlateau};
use crate::optim::{GradScaler, Optimizer};
use crate::walk::{self, Of};
use crate::{Error, Module, Result, StateDict};

pub(super) const MODEL: &str = "model";
pub(super) const OPTIMIZER: &str = "optimizer";
pub(super) const SCHEDULER: &str = "scheduler";
pub(super) const PLATEAU: &str = "plateau";
pub(super) const SCALER: &str = "scaler";
pub(super) const RANDOM: &str = "random";
pub(super) const GENERATORS: &str = "generators";
pub(super) const LOADER: &str = "loader";
pub(super) const VALUES: &str = "values";
pub(super) const SCORE: &str = "score";

/// The state of a training run to save, collected between two of its steps; see [`Checkpoints`](super::Checkpoints).
///
/// It shares the tensors of the model and the optimizer until [`Checkpoints::save`](super::Checkpoints::save) copies
/// them. Everything else is copied when it is added.
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
    /// An empty checkpoint.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a model's parameters, buffers and generators ([`Dropout::new_with`](crate::Dropout::new_with)), under the name
    /// `model`.
    ///
    /// # Errors
    /// [`Error::Argument`] if two tensors of the model have the same name, or the checkpoint has a `model` already.
    pub fn model<M: Module>(self, model: &M) -> Result<Self> {
        self.module(MODEL, model)
    }

    /// Adds a model under another name: a second model, or averages ([`AveragedModel`](crate::optim::AveragedModel)).
    ///
    /// # Errors
    /// As [`tensors`](Self::tensors).
    pub fn module<M: Module>(self, name: &str, module: &M) -> Result<Self> {
        self.tensors(name, &module.state_dict())?.generators(name, &walk::generators(&Of(module)))
    }

    fn generators(mut self, name: &str, states: &[(String, GeneratorState)]) -> Result<Self> {
        for (path, GeneratorState { seed, position }) in states {
            self = self.entry(format!("{GENERATORS}.{name}.{path}.seed"), seed.to_tensor()?)?;
            self = self.entry(format!("{GENERATORS}.{name}.{path}.position"), position.to_tensor()?)?;
        }
        Ok(self)
    }

    /// Adds an optimizer's state and settings. For a second optimizer, pass
    /// [`to_dict`](crate::optim::OptimizerState::to_dict) of its state to [`tensors`](Self::tensors).
    ///
    /// # Errors
    /// As [`Optimizer::state_dict`]; [`Error::Argument`] if the checkpoint has an optimizer already.
    pub fn optimizer(self, optimizer: &dyn Optimizer) -> Result<Self> {
        self.tensors(OPTIMIZER, &optimizer.state_dict()?.to_dict()?)
    }

    /// Adds the position in a learning-rate schedule.
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

    /// Adds the state of a [`ReduceLrOnPlateau`].
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

    /// Adds the state of a [`GradScaler`]: its scale and its count of good steps.
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

    /// Adds the position of the [`default_generator`], so that dropout and all other random operations continue with
    /// the same numbers, on any device. The generators that belong to a model's layers are saved by
    /// [`model`](Self::model). For another generator, save the [`seed`](pagelock_tensor::Generator::seed) and the
    /// [`position`](pagelock_tensor::Generator::position) by [`value`](Self::value).
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has it already.
    pub fn random(self) -> Result<Self> {
        let GeneratorState { seed, position } = default_generator().state();
        self.tensors(RANDOM, &named([("seed", seed.to_tensor()?), ("position", position.to_tensor()?)]))
    }

    /// Adds the position of a loader: `loader.state()` of `pagelock_data`, or any value whose `Display` output parses
    /// back.
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has one already.
    pub fn loader(self, state: impl Display) -> Result<Self> {
        let text = state.to_string().to_tensor()?;
        self.tensors(LOADER, &named([("state", text)]))
    }

    /// Adds a number or a string, such as the number of finished epochs, or metrics as JSON.
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has a value of that name already.
    pub fn value<V: CheckpointValue>(self, name: &str, value: V) -> Result<Self> {
        self.tensor(name, value.to_tensor()?)
    }

    /// Adds a tensor that is not part of the model, such as a running sum on a GPU.
    ///
    /// # Errors
    /// As [`value`](Self::value). Tensors and values share one set of names.
    pub fn tensor(self, name: &str, tensor: impl Into<AnyTensor>) -> Result<Self> {
        self.entry(format!("{VALUES}.{name}"), tensor.into())
    }

    /// Sets how good the model is, for [`keep_best`](super::Checkpoints::keep_best). Larger is better, so negate a
    /// loss. NaN ranks last.
    #[must_use]
    pub fn score(mut self, score: f64) -> Self {
        self.score = Some(score);
        self
    }

    /// Adds the tensors of `dict`, their names prefixed with `name` and a dot.
    ///
    /// # Errors
    /// [`Error::Argument`] if two tensors of `dict` have the same name, the checkpoint already has an entry of that
    /// name, or `name` is empty, has a dot, or is `generators`, under which those of models are saved.
    pub fn tensors(mut self, name: &str, dict: &StateDict) -> Result<Self> {
        dict.check_names()?;
        if name.contains('.') || name.is_empty() || name == GENERATORS {
            let problem = "the name must be non-empty, without dots, and not `generators`";
            return Err(Error::Argument(format!("Checkpoint: `{name}` cannot be saved: {problem}")));
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
