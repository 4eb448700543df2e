//! Optimizers with PyTorch's formulas and defaults: [`Sgd`], [`Adam`], [`AdamW`], [`RmsProp`], [`Adagrad`],
//! [`Adadelta`], [`Adamax`], [`NAdam`], [`RAdam`], [`Asgd`], [`Muon`], [`Lion`], and [`Lbfgs`], which evaluates the
//! loss itself; averages of weights ([`AveragedModel`]); schedules of learning rates ([`lr_scheduler`]).
//!
//! An optimizer holds handles to the parameters that it changes, and state of the same shapes, made in the first
//! step. Steps change elements in place outside the autograd graph; their temporary tensors come from the memory
//! pool. A parameter without a gradient is left as it is.
//!
//! State is `f64` for `f64` parameters and `f32` for all others. For a half-precision parameter an optimizer also
//! keeps `f32` weights (`master.rs`), so that steps smaller than the parameter's precision add up.

mod adadelta;
mod adagrad;
mod adam;
mod adamax;
mod asgd;
mod averaged_model;
mod clip;
mod group_states;
mod groups;
mod lbfgs;
mod lion;
pub mod lr_scheduler;
mod master;
mod method;
mod muon;
mod nadam;
mod radam;
mod rmsprop;
mod scaler;
mod sgd;
mod state;
mod state_dict;

pub use adadelta::Adadelta;
pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use adamax::Adamax;
pub use asgd::Asgd;
pub use averaged_model::AveragedModel;
pub use clip::{clip_grad_norm_, clip_grad_value_};
pub use groups::NamedParameter;
pub use lbfgs::Lbfgs;
pub use lion::Lion;
pub use muon::{AdjustLr, Muon};
pub use nadam::NAdam;
pub use radam::RAdam;
pub use rmsprop::RmsProp;
pub use scaler::{GradScaler, ScalerState};
pub use sgd::Sgd;
pub use state_dict::{OptimizerState, ParamGroup, Setting};

use crate::{Error, Result};

/// Changes parameters by their gradients.
///
/// # Examples
/// ```
/// use pagelock_nn::{Parameter, optim::{Optimizer, Sgd}};
/// use pagelock_tensor::Tensor;
///
/// let w = Parameter::new(Tensor::new([3.0])?);
/// let mut opt = Sgd::new([w.clone()], 0.1);
/// for _ in 0..100 {
///     w.pow(2.0)?.sum(..)?.backward()?;
///     opt.step()?;
///     opt.zero_grad();
/// }
/// assert!(w.item::<f32>()?.abs() < 1e-6);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
pub trait Optimizer {
    /// Changes every parameter that has a gradient.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are no parameters, or a setting is outside its range, with nothing changed;
    /// [`Error::Tensor`] if its state does not fit the memory budget.
    fn step(&mut self) -> Result<()>;

    /// Drops all gradients.
    fn zero_grad(&mut self);

    /// The learning rate of the first group.
    fn lr(&self) -> f64;

    /// Sets the learning rate of all groups.
    fn set_lr(&mut self, lr: f64);

    /// The learning rate of each group of parameters; one if there are no groups.
    fn lrs(&self) -> Vec<f64> {
        vec![self.lr()]
    }

    /// Sets the learning rate of each group.
    ///
    /// # Errors
    /// [`Error::Argument`] unless `lrs` has one rate for each group, with nothing changed.
    fn set_lrs(&mut self, lrs: &[f64]) -> Result<()> {
        groups::check_lrs("the optimizer", lrs, 1)?;
        lrs.iter().for_each(|lr| self.set_lr(*lr));
        Ok(())
    }

    /// Stores the learning rates that a scheduler began with. State dicts contain them as `initial_lr`.
    fn set_initial_lrs(&mut self, lrs: &[f64]) {
        let _ = lrs;
    }

    /// The settings and the state, as PyTorch's `optimizer.state_dict()`. Its tensors are the optimizer's own: a
    /// later step changes them.
    ///
    /// # Errors
    /// [`Error::Argument`] if the optimizer does not implement state dicts; [`Error::Tensor`] if a tensor on another
    /// device cannot be read.
    fn state_dict(&self) -> Result<OptimizerState> {
        Err(no_state_dict())
    }

    /// Resumes from the optimizer that `state` was made from, which may be one of PyTorch's. It takes over the
    /// settings, learning rates included, and copies the state in the precision and to the device of each parameter.
    /// A parameter without entries in `state` starts without state.
    ///
    /// A captured step ([`CapturedStep`](pagelock_tensor::CapturedStep)) uses the loaded state and learning rates,
    /// but not the other settings: load before the first step is captured, or call
    /// [`forget`](pagelock_tensor::CapturedStep::forget).
    ///
    /// # Errors
    /// [`Error::Argument`] names what does not fit: groups, settings, shapes, or entries that are missing or unknown;
    /// [`Error::Tensor`] if the state does not fit the memory budget. Nothing is loaded then.
    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()> {
        let _ = state;
        Err(no_state_dict())
    }

    /// Multiplies every gradient by `factor`, and returns whether all are finite after that; see [`GradScaler`].
    ///
    /// # Errors
    /// [`Error::Tensor`] if the gradients cannot be read, for example in a captured step, during which the host
    /// cannot wait for the device.
    fn scale_gradients(&mut self, factor: f64) -> Result<bool>;
}

fn no_state_dict() -> Error {
    Error::Argument(
        "this optimizer has no state dict; implement `Optimizer::state_dict` and `load_state_dict`".to_owned(),
    )
}
