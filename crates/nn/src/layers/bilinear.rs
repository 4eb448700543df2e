//! [`Bilinear`]: a bilinear form of two inputs.

use super::{debug_is_display, python};
use crate::functional::shared::size;
use crate::parameter::charged;
use crate::setters::setters;
use crate::{Module, Parameter, functional, init, module_scope};
use pagelock_tensor::{Generator, Result, Tensor, default_generator};

/// `x1ᵀ · weight · x2 + bias` for each output, as PyTorch's `nn.Bilinear`.
///
/// - inputs: `[.., in1_features]` and `[.., in2_features]`
/// - output: `[.., out_features]`
///
/// Weight and bias are initialized uniformly in ±1 / √in1_features.
///
/// ```
/// use pagelock_nn::Bilinear;
/// # use pagelock_tensor::Tensor;
/// let layer = Bilinear::new(3, 4, 5)?;
/// assert_eq!(layer.forward(&Tensor::ones([2, 3])?, &Tensor::ones([2, 4])?)?.dims(), [2, 5]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(details = Self::describe)]
pub struct Bilinear {
    /// `[out_features, in1_features, in2_features]`
    pub weight: Parameter,
    /// `[out_features]`, if there is one.
    pub bias: Option<Parameter>,
}

impl Bilinear {
    /// A layer with weights from the default generator.
    ///
    /// # Errors
    /// The weights do not fit the memory budget.
    pub fn new(in1_features: usize, in2_features: usize, out_features: usize) -> Result<Self> {
        Self::new_with(in1_features, in2_features, out_features, default_generator())
    }

    /// A layer with weights from `generator`.
    ///
    /// # Errors
    /// The weights do not fit the memory budget.
    pub fn new_with(
        in1_features: usize,
        in2_features: usize,
        out_features: usize,
        generator: &Generator,
    ) -> Result<Self> {
        let bound = 1.0 / (in1_features.max(1) as f64).sqrt();
        let _charged = charged();
        let weight = Tensor::zeros([out_features, in1_features, in2_features])?;
        let bias = Tensor::zeros(out_features)?;
        init::uniform_(&weight, -bound, bound, generator)?;
        init::uniform_(&bias, -bound, bound, generator)?;
        Ok(Self { weight: Parameter::new(weight), bias: Some(Parameter::new(bias)) })
    }

    /// The output for two inputs.
    ///
    /// # Errors
    /// As [`functional::bilinear`].
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        functional::bilinear(x1, x2, &self.weight, self.bias.as_deref())
    }

    fn describe(&self) -> String {
        let (sizes, bias) = ([0, 1, 2].map(|dim| size(&self.weight, dim)), python(self.bias.is_some()));
        format!("in1_features={}, in2_features={}, out_features={}, bias={bias}", sizes[1], sizes[2], sizes[0])
    }
}

setters! { Bilinear,
    /// The layer without its bias.
    without_bias => bias = None;
}

debug_is_display!(Bilinear);
