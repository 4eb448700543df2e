//! [`SavedCheckpoint`]: a checkpoint read from its file.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use pagelock_tensor::text::shortened;
use pagelock_tensor::{AnyTensor, Device, GeneratorState, TensorFile, copy_all_, default_generator, no_grad};

use super::CheckpointValue;
use super::parts::{GENERATORS, LOADER, MODEL, OPTIMIZER, PLATEAU, RANDOM, SCALER, SCHEDULER, SCORE, VALUES};
use super::value::numbers;
use crate::optim::lr_scheduler::{LrScheduler, LrState, PlateauState, ReduceLrOnPlateau, Schedule};
use crate::optim::{GradScaler, Optimizer, OptimizerState, ScalerState};
use crate::walk::{self, Of};
use crate::{Error, Module, Result, StateDict};

/// A checkpoint of [`Checkpoints`](super::Checkpoints) whose checksums were verified. A call that fails to load
/// leaves its target unchanged.
#[derive(Debug)]
pub struct SavedCheckpoint {
    step: u64,
    path: PathBuf,
    file: TensorFile,
}

impl SavedCheckpoint {
    /// Opens a file and reads all of it to verify its checksums.
    pub(super) fn open(step: u64, path: PathBuf) -> Result<Self> {
        let file = TensorFile::open(&path)?;
        file.check()?;
        Ok(Self { step, path, file })
    }

    /// The step after which it was saved.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The path of its safetensors file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number given to [`Checkpoint::score`](super::Checkpoint::score), if any.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the file cannot be read any more.
    pub fn score(&self) -> Result<Option<f64>> {
        score_in(&self.file)
    }

    /// Loads the model's parameters, buffers and generators into a model of the same architecture. A generator that is
    /// not in the checkpoint, as in those of older versions, keeps its position.
    ///
    /// # Errors
    /// As [`Module::load_state_dict`]; [`Error::Argument`] if the checkpoint has no model.
    pub fn load_model<M: Module>(&self, model: &M) -> Result<()> {
        self.load_module(MODEL, model)
    }

    /// Loads the model that [`Checkpoint::module`](super::Checkpoint::module) added under `name`.
    ///
    /// # Errors
    /// As [`load_model`](Self::load_model).
    pub fn load_module<M: Module>(&self, name: &str, module: &M) -> Result<()> {
        let states = self.generators(name, walk::generators(&Of(module)))?;
        module.load_state_dict(&self.tensors(name)?)?;
        walk::set_generators(&Of(module), &states);
        Ok(())
    }

    /// The saved states of a module's generators. One that was not saved keeps its present state.
    fn generators(&self, name: &str, present: Vec<(String, GeneratorState)>) -> Result<Vec<GeneratorState>> {
        let saved = |(path, present): (String, GeneratorState)| {
            let [seed, position] = ["seed", "position"].map(|field| format!("{name}.{path}.{field}"));
            if !self.has(GENERATORS, &seed) {
                return Ok(present);
            }
            Ok(GeneratorState { seed: self.part(GENERATORS, &seed)?, position: self.part(GENERATORS, &position)? })
        };
        present.into_iter().map(saved).collect()
    }

    /// Loads the optimizer's state into an optimizer of the same kind with the same parameter groups.
    ///
    /// # Errors
    /// As [`Optimizer::load_state_dict`]; [`Error::Argument`] if the checkpoint has none.
    pub fn load_optimizer(&self, optimizer: &mut dyn Optimizer) -> Result<()> {
        optimizer.load_state_dict(&OptimizerState::from_dict(&self.tensors(OPTIMIZER)?)?)
    }

    /// Loads the position in a learning-rate schedule. The optimizer keeps its current learning rates, which
    /// [`load_optimizer`](Self::load_optimizer) restores: the program may have changed them after the schedule set
    /// them.
    ///
    /// # Errors
    /// As [`LrScheduler::load_state`]; [`Error::Argument`] if the checkpoint has none.
    pub fn load_scheduler<S: Schedule>(
        &self,
        scheduler: &mut LrScheduler<S>,
        optimizer: &mut dyn Optimizer,
    ) -> Result<()> {
        let lrs = optimizer.lrs();
        scheduler.load_state(optimizer, self.lr_state()?)?;
        optimizer.set_lrs(&lrs)
    }

    fn lr_state(&self) -> Result<LrState> {
        let rates = |name: &str| Ok::<_, Error>(numbers(&self.any(SCHEDULER, name)?.float()?)?);
        Ok(LrState { step: self.part(SCHEDULER, "step")?, base: rates("base")?, lrs: rates("lrs")? })
    }

    /// Loads the state of a [`ReduceLrOnPlateau`].
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has none.
    pub fn load_plateau(&self, scheduler: &mut ReduceLrOnPlateau) -> Result<()> {
        let has_best = self.has(PLATEAU, "best");
        let best = has_best.then(|| self.part(PLATEAU, "best")).transpose()?;
        let [bad_epochs, cooldown] = [self.part(PLATEAU, "bad_epochs")?, self.part(PLATEAU, "cooldown")?];
        scheduler.load_state(PlateauState { best, bad_epochs, cooldown });
        Ok(())
    }

    /// Loads the state of a [`GradScaler`].
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has none.
    pub fn load_scaler(&self, scaler: &mut GradScaler) -> Result<()> {
        let (scale, good_steps) = (self.part(SCALER, "scale")?, self.part(SCALER, "good_steps")?);
        scaler.load_state(ScalerState { scale, good_steps });
        Ok(())
    }

    /// Moves the [`default_generator`] to the saved position.
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has none.
    pub fn load_random(&self) -> Result<()> {
        let (seed, position) = (self.part(RANDOM, "seed")?, self.part(RANDOM, "position")?);
        default_generator().set_state(GeneratorState { seed, position });
        Ok(())
    }

    /// The saved position of the loader, for `loader.resume(checkpoint.loader()?)?`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has none, or the text does not parse.
    pub fn loader<S: FromStr>(&self) -> Result<S>
    where
        S::Err: fmt::Display,
    {
        let text: String = self.part(LOADER, "state")?;
        text.parse().map_err(|error: S::Err| self.refused(&format!("the loader's state: {error}")))
    }

    /// The number or string saved under `name`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has none of that name, or one of another type.
    pub fn value<V: CheckpointValue>(&self, name: &str) -> Result<V> {
        self.part(VALUES, name)
    }

    /// Copies the tensor saved under `name` into `tensor`, which must have the same shape.
    ///
    /// # Errors
    /// [`Error::Argument`] if the checkpoint has none of that name, or one of another shape; [`Error::Tensor`] if the
    /// copy fails.
    pub fn load_tensor(&self, name: &str, tensor: impl Into<AnyTensor>) -> Result<()> {
        let (saved, tensor) = (self.any(VALUES, name)?, tensor.into());
        if saved.shape() != tensor.shape() {
            let problem = format!("`{name}` is {} in the checkpoint, but {} here", saved.shape(), tensor.shape());
            return Err(self.refused(&problem));
        }
        Ok(no_grad(|| copy_all_(&[(&tensor, &saved)]))?)
    }

    /// All tensors saved under `name`, on the host. The name is `model`, `optimizer`, or one given to
    /// [`tensors`](super::Checkpoint::tensors).
    ///
    /// # Errors
    /// [`Error::Argument`] if there are none; [`Error::Tensor`] if they do not fit the memory budget.
    pub fn tensors(&self, name: &str) -> Result<StateDict> {
        let mut dict = StateDict::new();
        for full in self.file.names() {
            if let Some(entry) = full.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')) {
                dict.insert(entry, self.file.get_any(full, &Device::Cpu)?);
            }
        }
        if dict.is_empty() { Err(self.lacks(name)) } else { Ok(dict) }
    }

    fn part<V: CheckpointValue>(&self, part: &str, name: &str) -> Result<V> {
        let tensor = self.any(part, name)?;
        V::from_tensor(&tensor)?.ok_or_else(|| self.mistyped(part, name, &tensor, V::NAME))
    }

    fn any(&self, part: &str, name: &str) -> Result<AnyTensor> {
        if !self.has(part, name) {
            let what = if part == VALUES { name } else { part };
            return Err(self.lacks(what));
        }
        Ok(self.file.get_any(&format!("{part}.{name}"), &Device::Cpu)?)
    }

    fn has(&self, part: &str, name: &str) -> bool {
        self.file.elements(&format!("{part}.{name}")).is_ok()
    }

    fn lacks(&self, name: &str) -> Error {
        let in_values =
            |full: &str| full.strip_prefix(VALUES).and_then(|rest| rest.strip_prefix('.')).map(str::to_owned);
        let part = |full: &str| full.split('.').next().unwrap_or_default().to_owned();
        let parts: BTreeSet<String> =
            self.file.names().map(|full| in_values(full).unwrap_or_else(|| part(full))).collect();
        let parts = shortened(&parts.into_iter().collect::<Vec<_>>().join(", "));
        self.refused(&format!("it has no `{}`; it has {parts}", shortened(name)))
    }

    fn mistyped(&self, part: &str, name: &str, tensor: &AnyTensor, wanted: &str) -> Error {
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        self.refused(&format!("`{part}.{name}` is {dtype} {shape}, not {wanted}"))
    }

    fn refused(&self, problem: &str) -> Error {
        Error::Argument(format!("checkpoint {}: {problem}", self.path.display()))
    }
}

/// The score in a file.
pub(super) fn score_in(file: &TensorFile) -> Result<Option<f64>> {
    if file.elements(SCORE).is_err() {
        return Ok(None);
    }
    Ok(f64::from_tensor(&file.get_any(SCORE, &Device::Cpu)?)?)
}
