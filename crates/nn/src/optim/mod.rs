//! Optimizers: [`Sgd`], [`Adam`], [`AdamW`], with PyTorch's formulas and defaults.
//!
//! An optimizer holds handles to the parameters that it changes, and state of the same shapes, made in the first step.
//! Steps change elements in place outside the autograd graph; their tensors come from the pool.
//! A parameter without a gradient is left as it is.
//!
//! State is `f64` for parameters of `f64`, else `f32`. Beside a parameter of half precision an optimizer also keeps its
//! weights in `f32` (`master.rs`), so that steps smaller than the parameter's precision add up.

mod adam;
mod clip;
pub mod lr_scheduler;
mod master;
mod scaler;
mod sgd;

pub use adam::{Adam, AdamW};
pub use clip::clip_grad_norm_;
pub use scaler::GradScaler;
pub use sgd::Sgd;

use crate::{Error, Parameter, Result};
use master::Master;
use pagelock_tensor::text::number;
use pagelock_tensor::{self as tensor, DType, Tensor, no_grad};

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
    /// [`Error::Argument`] if there is nothing to train, or a setting is outside its range, with nothing changed;
    /// [`Error::Tensor`] if its state does not fit the memory budget.
    fn step(&mut self) -> Result<()>;

    /// Forgets all gradients.
    fn zero_grad(&mut self);

    /// The learning rate.
    fn lr(&self) -> f64;

    /// Changes the learning rate, for schedules.
    fn set_lr(&mut self, lr: f64);

    /// Multiplies every gradient by `factor`, and says whether all are then finite; see [`GradScaler`].
    ///
    /// # Errors
    /// [`Error::Tensor`] if the gradients cannot be read, as in a captured step, which the host does not wait for.
    fn scale_gradients(&mut self, factor: f64) -> Result<bool>;
}

/// Parameters, each with what an optimizer keeps for it.
struct Slots<S> {
    slots: Vec<Slot<S>>,
}

/// A parameter, with the state `S` that an optimizer keeps for it from the first step on.
struct Slot<S> {
    parameter: Parameter,
    state: Option<S>,
    /// What is trained instead, for a parameter of half precision.
    master: Option<Master>,
}

/// What an optimizer keeps for a parameter.
trait State: Sized {
    /// The same where the parameter is now, and in its order and precision.
    fn beside(&self, parameter: &Tensor) -> tensor::Result<Self>;
}

/// The precision of what is kept for a parameter.
fn dtype_beside(parameter: &Tensor) -> DType {
    if parameter.dtype() == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The tensor on the parameter's device, in its order, and in the precision of what is kept for it.
fn laid_as(parameter: &Tensor, tensor: &Tensor) -> tensor::Result<Tensor> {
    let moved = tensor.to_dtype(dtype_beside(parameter))?.to(&parameter.device())?;
    if parameter.is_channels_last() { moved.channels_last() } else { moved.contiguous() }
}

impl<S: State> Slot<S> {
    /// What the step changes.
    fn weights(&self) -> &Tensor {
        self.master.as_ref().map_or(self.parameter.as_tensor(), |master| &master.weights)
    }

    /// The parameter, if something else is trained and rounded into it.
    fn half(&self) -> Option<Tensor> {
        self.master.as_ref().map(|_| self.parameter.as_tensor().clone())
    }

    /// The same for a parameter that took this one's place.
    fn beside(&self, parameter: Parameter) -> tensor::Result<Self> {
        let state = self.state.as_ref().map(|state| state.beside(&parameter)).transpose()?;
        let master = Master::beside(&parameter, self.weights())?;
        Ok(Self { parameter, state, master })
    }
}

impl<S: State> Slots<S> {
    fn new(parameters: Vec<Parameter>) -> Self {
        let slot = |parameter| Slot { parameter, state: None, master: None };
        Self { slots: parameters.into_iter().map(slot).collect() }
    }

    /// There is something to train, and it is followed to where it has moved.
    fn check(&mut self, optimizer: &'static str) -> Result<()> {
        if self.slots.is_empty() {
            let fix = "pass `model.parameters()` of a model that has some";
            return Err(Error::Argument(format!("{optimizer}: there are no parameters to train; {fix}")));
        }
        for slot in &mut self.slots {
            let mut followed = slot.parameter.clone();
            if followed.follow() {
                *slot = slot.beside(followed)?;
            }
        }
        Ok(())
    }

    /// Everything that first steps of parameters of half precision need beside their state.
    fn prepare(&mut self) -> tensor::Result<()> {
        self.slots.iter_mut().try_for_each(|slot| Master::prepare(&mut slot.master, &slot.parameter))
    }

    fn scale_gradients(&self, factor: f64) -> Result<bool> {
        no_grad(|| {
            let grads = || self.slots.iter().filter_map(|slot| slot.parameter.grad());
            let mut faults: Vec<Tensor> = Vec::new(); // zeros, or NaN where a scaled gradient is not finite
            for grad in grads() {
                let fault = grad.mul_scalar(factor)?;
                fault.mul_scalar_(0)?;
                faults.push(fault.sum(..)?.to(&faults.first().unwrap_or(&grad).device())?);
            }
            let Some(first) = faults.first() else { return Ok(true) };
            let all = faults[1..].iter().try_fold(first.clone(), |sum, fault| sum.add(fault))?;
            let are_finite = all.item::<f64>()? == 0.0;
            // Last, so that a call that fails has scaled nothing, and may be made again.
            grads().try_for_each(|grad| grad.mul_scalar_(factor))?;
            Ok(are_finite)
        })
    }

    fn zero_grad(&self) {
        self.slots.iter().for_each(|slot| slot.parameter.as_tensor().zero_grad());
    }
}

/// The parameters in a list. A loop: `collect` would compile ten times as much in every program.
fn listed(parameters: impl IntoIterator<Item = Parameter>) -> Vec<Parameter> {
    let mut list = Vec::new();
    for parameter in parameters {
        list.push(parameter);
    }
    list
}

/// Refuses a setting that is not `allowed` (NaN never is).
fn check(ok: bool, optimizer: &str, setting: &str, value: f64, allowed: &str) -> Result<()> {
    if ok {
        return Ok(());
    }
    Err(Error::Argument(format!("{optimizer}: {setting} is {}; it must be {allowed}", number(value))))
}
