//! [`Linear`]: every output is a weighted sum of every input.

use super::{python, shown};
use crate::{Forward, Module, Parameter, Visitor, VisitorMut, functional, init};
use pagelock_tensor::{Create, Float, Generator, Result, Tensor, default_generator};

/// `x · weightᵀ + bias`, as PyTorch's `nn.Linear`.
///
/// - input: `[.., in_features]`
/// - output: `[.., out_features]`
///
/// Weight and bias begin between ±1 / √in_features ([`init::default_`]).
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, Linear};
/// use pagelock_tensor::{Create, Tensor};
///
/// let layer = Linear::new(784, 10)?;
/// assert_eq!(layer.weight.dims(), [10, 784]);
/// assert_eq!(layer.forward(&Tensor::zeros([64, 784])?)?.dims(), [64, 10]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Linear<T: Float = f32> {
    /// `[out_features, in_features]`
    pub weight: Parameter<T>,
    /// `[out_features]`, if there is one.
    pub bias: Option<Parameter<T>>,
}

impl Linear {
    /// A layer of `f32` with weights from the default generator.
    ///
    /// # Errors
    /// The weights do not fit the memory budget.
    pub fn new(in_features: usize, out_features: usize) -> Result<Self> {
        Self::new_with(in_features, out_features, default_generator())
    }
}

impl<T: Float> Linear<T> {
    /// A layer with weights from `generator`.
    ///
    /// # Errors
    /// The weights do not fit the memory budget.
    pub fn new_with(in_features: usize, out_features: usize, generator: &Generator) -> Result<Self> {
        let weight = Tensor::<T>::zeros([out_features, in_features])?;
        let bias = Tensor::<T>::zeros(out_features)?;
        init::default_(&weight, Some(&bias), generator)?;
        Ok(Self { weight: Parameter::new(weight), bias: Some(Parameter::new(bias)) })
    }

    /// The layer without its bias.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }
}

impl<T: Float> Module<T> for Linear<T> {
    fn visit(&self, visitor: &mut Visitor<'_, T>) {
        visitor.child("weight", &self.weight);
        visitor.child("bias", &self.bias);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_, T>) {
        visitor.child(&mut self.weight);
        visitor.child(&mut self.bias);
    }

    fn details(&self) -> String {
        let (outputs, inputs) = (self.weight.dims()[0], self.weight.dims()[1]);
        format!("in_features={inputs}, out_features={outputs}, bias={}", python(self.bias.is_some()))
    }
}

impl<T: Float> Forward<T> for Linear<T> {
    fn forward(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        functional::linear(x, &self.weight, self.bias.as_deref())
    }
}

shown!(Linear<T>);
