//! [`Linear`]: every output is a weighted sum of all inputs.

use super::{debug_is_display, python};
use crate::functional::shared::size;
use crate::parameter::charged;
use crate::parametrizations::Weighted;
use crate::setters::setters;
use crate::{Forward, Module, Parameter, functional, init, module_scope};
use pagelock_tensor::{Generator, Result, Tensor, default_generator};

/// `x · weightᵀ + bias`, as PyTorch's `nn.Linear`.
///
/// - input: `[.., in_features]`
/// - output: `[.., out_features]`
///
/// Weight and bias are initialized uniformly in ±1 / √in_features ([`init::default_`]).
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, Linear};
/// use pagelock_tensor::Tensor;
///
/// let layer = Linear::new(784, 10)?;
/// assert_eq!(layer.weight.dims(), [10, 784]);
/// assert_eq!(layer.forward(&Tensor::zeros([64, 784])?)?.dims(), [64, 10]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(details = Self::describe)]
pub struct Linear {
    /// `[out_features, in_features]`
    pub weight: Parameter,
    /// `[out_features]`, if there is one.
    pub bias: Option<Parameter>,
}

impl Linear {
    /// A layer with weights from the default generator.
    ///
    /// # Errors
    /// The weights do not fit the memory budget.
    pub fn new(in_features: usize, out_features: usize) -> Result<Self> {
        Self::new_with(in_features, out_features, default_generator())
    }

    /// A layer with weights from `generator`.
    ///
    /// # Errors
    /// The weights do not fit the memory budget.
    pub fn new_with(in_features: usize, out_features: usize, generator: &Generator) -> Result<Self> {
        let _charged = charged();
        let weight = Tensor::zeros([out_features, in_features])?;
        let bias = Tensor::zeros(out_features)?;
        init::default_(&weight, Some(&bias), generator)?;
        Ok(Self { weight: Parameter::new(weight), bias: Some(Parameter::new(bias)) })
    }

    fn describe(&self) -> String {
        let (outputs, inputs) = (size(&self.weight, 0), size(&self.weight, 1));
        format!("in_features={inputs}, out_features={outputs}, bias={}", python(self.bias.is_some()))
    }
}

setters! { Linear,
    /// The layer without its bias.
    without_bias => bias = None;
}

impl Forward for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with_weight(x, &self.weight)
    }
}

impl Weighted for Linear {
    fn weight(&self) -> &Parameter {
        &self.weight
    }

    fn forward_with_weight(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        functional::linear(x, weight, self.bias.as_deref())
    }
}

debug_is_display!(Linear);
