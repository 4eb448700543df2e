//! Gradient clipping.

use super::groups::at_least_0;
use crate::{Parameter, Result};
use pagelock_tensor::{Tensor, no_grad, optimizer_steps};

/// Scales the gradients of all parameters down in place, so that their norm as one vector is at most `max_norm`.
/// Returns the norm before scaling. PyTorch's `nn.utils.clip_grad_norm_`.
///
/// Call it between `backward` and [`Optimizer::step`](super::Optimizer::step), and with a scaler after
/// [`GradScaler::unscale`](super::GradScaler::unscale). Nothing waits for a GPU, so it may be part of a captured
/// step. If the norm is not finite, the gradients become zero or NaN, as in PyTorch.
///
/// # Examples
/// ```
/// use pagelock_nn::{Parameter, optim::clip_grad_norm_};
/// use pagelock_tensor::Tensor;
///
/// let w = Parameter::new(Tensor::new([3.0, 4.0])?);
/// w.pow(2.0)?.sum(..)?.backward()?; // a gradient of [6, 8]
/// let norm = clip_grad_norm_([w.clone()], 5.0)?;
/// assert_eq!(norm.item::<f32>()?, 10.0);
/// assert!((w.grad().unwrap().to_vec::<f32>()?[1] - 4.0).abs() < 1e-5);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) for a `max_norm` below 0, with nothing changed;
/// [`Error::Tensor`](crate::Error::Tensor) if sums do not fit the memory budget.
pub fn clip_grad_norm_(parameters: impl IntoIterator<Item = Parameter>, max_norm: f64) -> Result<Tensor> {
    at_least_0("clip_grad_norm_", "max_norm", max_norm)?;
    let grads = parameters.into_iter().filter_map(|parameter| parameter.grad());
    Ok(optimizer_steps::clip_grad_norm_(grads, max_norm)?)
}

/// Clamps every element of the parameters' gradients to the range from `−clip_value` to `clip_value`, in place:
/// PyTorch's `nn.utils.clip_grad_value_`. NaN stays NaN.
///
/// Call it between `backward` and [`Optimizer::step`](super::Optimizer::step), and with a scaler after
/// [`GradScaler::unscale`](super::GradScaler::unscale). Nothing waits for a GPU, so it may be part of a captured
/// step.
///
/// # Examples
/// ```
/// use pagelock_nn::{Parameter, optim::clip_grad_value_};
/// use pagelock_tensor::Tensor;
///
/// let w = Parameter::new(Tensor::new([3.0, -0.1])?);
/// w.pow(2.0)?.sum(..)?.backward()?; // a gradient of [6, -0.2]
/// clip_grad_value_([w.clone()], 1.0)?;
/// assert_eq!(w.grad().unwrap().to_vec::<f32>()?, [1.0, -0.2]);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) for a `clip_value` below 0, with nothing changed.
pub fn clip_grad_value_(parameters: impl IntoIterator<Item = Parameter>, clip_value: f64) -> Result<()> {
    at_least_0("clip_grad_value_", "clip_value", clip_value)?;
    let grads = parameters.into_iter().filter_map(|parameter| parameter.grad());
    Ok(no_grad(|| optimizer_steps::clip_grad_value_(grads, clip_value))?)
}
