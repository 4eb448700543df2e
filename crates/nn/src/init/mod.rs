//! Initial weights, as PyTorch's `torch.nn.init`.
//!
//! ```
//! use pagelock_nn::{Linear, init};
//! use pagelock_tensor::default_generator;
//!
//! let layer = Linear::new(784, 10)?;
//! init::kaiming_uniform_(&layer.weight, init::Fan::In, init::Nonlinearity::Relu, default_generator())?;
//! assert!(layer.weight.to_vec::<f32>()?.iter().all(|w| w.abs() <= (6.0f32 / 784.0).sqrt()));
//! # Ok::<(), pagelock_tensor::Error>(())
//! ```
//!
//! All functions change a tensor's elements in place, outside the autograd graph. Random numbers come from a
//! [`Generator`]; those for half types are drawn as `f32` and rounded once.
//!
//! - Kaiming: K. He, X. Zhang, S. Ren, J. Sun, "Delving deep into rectifiers", 2015, <https://arxiv.org/abs/1502.01852>
//! - Xavier: X. Glorot, Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010,
//!   <https://proceedings.mlr.press/v9/glorot10a.html>

mod host;

use pagelock_tensor::{Error, Generator, Result, Tensor, no_grad};

pub use host::{dirac_, eye_, orthogonal_, sparse_, trunc_normal_};

/// The side of a weight on which the variance is preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// The inputs of each unit: preserves the variance of activations in the forward pass.
    In,
    /// The outputs that each input feeds: preserves the variance of gradients in the backward pass.
    Out,
}

/// The nonlinearity that follows the layer. It determines the gain of the weights, as PyTorch's `calculate_gain`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nonlinearity {
    /// Nothing, or a sigmoid: gain 1.
    Linear,
    /// tanh: gain 5/3.
    Tanh,
    /// ReLU: gain √2.
    Relu,
    /// ReLU with this slope below zero: gain √(2 / (1 + slope²)).
    LeakyRelu(f64),
    /// SELU: gain 3/4.
    Selu,
}

impl Nonlinearity {
    /// The factor for the standard deviation.
    pub fn gain(self) -> f64 {
        match self {
            Self::Linear => 1.0,
            Self::Tanh => 5.0 / 3.0,
            Self::Relu => 2f64.sqrt(),
            Self::Selu => 0.75,
            Self::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
        }
    }
}

/// How many inputs each unit has and how many outputs each input feeds.
///
/// For a weight `[out, in, ..kernel]`: `in · kernel` and `out · kernel`.
///
/// # Errors
/// [`Error::Argument`] if the weight has fewer than two dimensions.
pub fn fans(weight: &Tensor) -> Result<(usize, usize)> {
    match weight.dims() {
        [outputs, inputs, kernel @ ..] => {
            let area: usize = kernel.iter().product();
            Ok((inputs * area, outputs * area))
        }
        _ => Err(Error::Argument(format!(
            "init: weight is {}, but it must have a dimension of outputs and one of inputs; use uniform_ or normal_ for others",
            weight.shape()
        ))),
    }
}

/// Fills with uniformly distributed numbers in `low..high`.
///
/// # Errors
/// The numbers do not fit the memory budget.
pub fn uniform_(tensor: &Tensor, low: f64, high: f64, generator: &Generator) -> Result<()> {
    let numbers = Tensor::on(&tensor.device()).of(tensor.dtype().computing()).rand_with(tensor.shape(), generator)?;
    fill(tensor, &numbers, high - low, low)
}

/// Fills with normally distributed numbers.
///
/// # Errors
/// The numbers do not fit the memory budget.
pub fn normal_(tensor: &Tensor, mean: f64, deviation: f64, generator: &Generator) -> Result<()> {
    let numbers = Tensor::on(&tensor.device()).of(tensor.dtype().computing()).randn_with(tensor.shape(), generator)?;
    fill(tensor, &numbers, deviation, mean)
}

fn fill(tensor: &Tensor, numbers: &Tensor, scale: f64, shift: f64) -> Result<()> {
    no_grad(|| {
        numbers.mul_scalar_(scale)?;
        numbers.add_scalar_(shift)?;
        tensor.copy_(numbers)
    })
}

/// Fills with one number.
///
/// # Errors
/// [`Error::Argument`] if the tensor is expanded.
pub fn constant_(tensor: &Tensor, value: f64) -> Result<()> {
    no_grad(|| tensor.fill_(value))
}

/// Fills with 0.
///
/// # Errors
/// As [`constant_`].
pub fn zeros_(tensor: &Tensor) -> Result<()> {
    constant_(tensor, 0.0)
}

/// Fills with 1.
///
/// # Errors
/// As [`constant_`].
pub fn ones_(tensor: &Tensor) -> Result<()> {
    constant_(tensor, 1.0)
}

/// He et al.'s uniform numbers: between ±gain · √(3 / fan).
///
/// # Errors
/// As [`fans`].
pub fn kaiming_uniform_(weight: &Tensor, fan: Fan, next: Nonlinearity, generator: &Generator) -> Result<()> {
    let bound = 3f64.sqrt() * kaiming_deviation(weight, fan, next)?;
    uniform_(weight, -bound, bound, generator)
}

/// He et al.'s normal numbers: standard deviation gain / √fan.
///
/// # Errors
/// As [`fans`].
pub fn kaiming_normal_(weight: &Tensor, fan: Fan, next: Nonlinearity, generator: &Generator) -> Result<()> {
    normal_(weight, 0.0, kaiming_deviation(weight, fan, next)?, generator)
}

fn kaiming_deviation(weight: &Tensor, fan: Fan, next: Nonlinearity) -> Result<f64> {
    let (fan_in, fan_out) = fans(weight)?;
    let fan = match fan {
        Fan::In => fan_in,
        Fan::Out => fan_out,
    };
    Ok(next.gain() / (fan.max(1) as f64).sqrt())
}

/// Glorot and Bengio's uniform numbers: between ±gain · √(6 / (fan_in + fan_out)).
///
/// # Errors
/// As [`fans`].
pub fn xavier_uniform_(weight: &Tensor, gain: f64, generator: &Generator) -> Result<()> {
    let bound = 3f64.sqrt() * xavier_deviation(weight, gain)?;
    uniform_(weight, -bound, bound, generator)
}

/// Glorot and Bengio's normal numbers: standard deviation gain · √(2 / (fan_in + fan_out)).
///
/// # Errors
/// As [`fans`].
pub fn xavier_normal_(weight: &Tensor, gain: f64, generator: &Generator) -> Result<()> {
    normal_(weight, 0.0, xavier_deviation(weight, gain)?, generator)
}

fn xavier_deviation(weight: &Tensor, gain: f64) -> Result<f64> {
    let (fan_in, fan_out) = fans(weight)?;
    Ok(gain * (2.0 / (fan_in + fan_out).max(1) as f64).sqrt())
}

/// PyTorch's default for `Linear` and `Conv2d`: weight and bias are both uniform in ±1 / √fan_in.
///
/// (It is `kaiming_uniform_` with a leaky slope of √5, whose gain of √(1/3) cancels the √3 of a uniform distribution.)
///
/// # Errors
/// As [`fans`].
pub fn default_(weight: &Tensor, bias: Option<&Tensor>, generator: &Generator) -> Result<()> {
    let bound = 1.0 / (fans(weight)?.0.max(1) as f64).sqrt();
    uniform_(weight, -bound, bound, generator)?;
    bias.map_or(Ok(()), |bias| uniform_(bias, -bound, bound, generator))
}
