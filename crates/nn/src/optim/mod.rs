//! Optimizers: [`Sgd`], [`Adam`], [`AdamW`], with PyTorch's formulas and defaults.
//!
//! An optimizer holds handles to the parameters that it changes, and state of the same shapes, made in the first step.
//! Steps change elements in place outside the autograd graph; their tensors come from the pool.
//! A parameter without a gradient is left as it is.

mod adam;
mod scaler;
mod sgd;

pub use adam::{Adam, AdamW};
pub use scaler::GradScaler;
pub use sgd::Sgd;

use crate::{Error, Parameter, Result};
use pagelock_tensor::{self as tensor, Float, Tensor, no_grad};

/// Changes parameters by their gradients.
///
/// # Examples
/// ```
/// use pagelock_nn::{Parameter, optim::{Optimizer, Sgd}};
/// use pagelock_tensor::{Create, Tensor};
///
/// let w = Parameter::new(Tensor::new([3.0])?);
/// let mut opt = Sgd::new([w.clone()], 0.1);
/// for _ in 0..100 {
///     w.pow(2.0)?.sum(..)?.backward()?;
///     opt.step()?;
///     opt.zero_grad();
/// }
/// assert!(w.item()?.abs() < 1e-6);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
pub trait Optimizer {
    /// Changes every parameter that has a gradient.
    ///
    /// # Errors
    /// [`Error::Setting`] or [`Error::NoParameters`] if the optimizer cannot work, with nothing changed;
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

/// Parameters, each with the state `S` that an optimizer keeps for it from the first step on.
struct Slots<T: Float, S> {
    slots: Vec<(Parameter<T>, Option<S>)>,
}

/// What an optimizer keeps for a parameter.
trait State<T: Float>: Sized {
    /// The same where the parameter is now, and in its order.
    fn beside(&self, parameter: &Tensor<T>) -> tensor::Result<Self>;
}

/// The tensor on the parameter's device and in its order.
fn laid_as<T: Float>(parameter: &Tensor<T>, tensor: &Tensor<T>) -> tensor::Result<Tensor<T>> {
    let moved = tensor.to(&parameter.device())?;
    if parameter.is_channels_last() { moved.channels_last() } else { moved.contiguous() }
}

impl<T: Float, S: State<T>> Slots<T, S> {
    fn new(parameters: impl IntoIterator<Item = Parameter<T>>) -> Self {
        Self { slots: parameters.into_iter().map(|parameter| (parameter, None)).collect() }
    }

    /// There is something to train, and it is followed to where it has moved.
    fn check(&mut self, optimizer: &'static str) -> Result<()> {
        if self.slots.is_empty() {
            return Err(Error::NoParameters { optimizer });
        }
        for (parameter, state) in &mut self.slots {
            let mut followed = parameter.clone();
            if followed.follow() {
                let moved = state.as_ref().map(|state| state.beside(&followed)).transpose()?;
                (*parameter, *state) = (followed, moved);
            }
        }
        Ok(())
    }

    fn scale_gradients(&self, factor: f64) -> Result<bool> {
        no_grad(|| {
            let factor = T::from_f64(factor);
            let grads = || self.slots.iter().filter_map(|(parameter, _)| parameter.grad());
            let mut faults: Vec<Tensor<T>> = Vec::new(); // zeros, or NaN where a scaled gradient is not finite
            for grad in grads() {
                let fault = grad.mul_scalar(factor)?;
                fault.mul_scalar_(T::ZERO)?;
                faults.push(fault.sum(..)?.to(&faults.first().unwrap_or(&grad).device())?);
            }
            let Some(first) = faults.first() else { return Ok(true) };
            let all = faults[1..].iter().try_fold(first.clone(), |sum, fault| sum.add(fault))?;
            let are_finite = all.item()? == T::ZERO;
            // Last, so that a call that fails has scaled nothing, and may be made again.
            grads().try_for_each(|grad| grad.mul_scalar_(factor))?;
            Ok(are_finite)
        })
    }

    fn zero_grad(&self) {
        self.slots.iter().for_each(|(parameter, _)| parameter.as_tensor().zero_grad());
    }
}

/// Refuses a setting that is not `allowed` (NaN never is).
fn check(ok: bool, optimizer: &'static str, setting: &'static str, value: f64, allowed: &'static str) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::Setting { optimizer, setting, value, allowed }) }
}
