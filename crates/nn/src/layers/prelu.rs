//! Activations with a learned or random slope below 0: [`PReLU`], [`RReLU`].

use super::{debug_is_display, number};
use crate::functional as F;
use crate::parameter::charged;
use crate::setters::{default_is_new, setters};
use crate::{Forward, Mode, Module, Parameter, module_scope};
use pagelock_tensor::{Result, Tensor, default_generator};

/// x above 0, `weight · x` elsewhere, with a learned weight: one for all elements, or one for each channel in
/// dimension 1.
///
/// ```
/// use pagelock_nn::{Forward, PReLU};
/// # use pagelock_tensor::Tensor;
/// let layer = PReLU::new(1)?;
/// assert_eq!(layer.forward(&Tensor::new([-4.0, 2.0])?)?.detach().to_vec::<f32>()?, [-1.0, 2.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(details = Self::describe)]
pub struct PReLU {
    /// `[num_parameters]`, initialized to 0.25.
    pub weight: Parameter,
}

impl PReLU {
    /// A layer with `num_parameters` weights: 1, or the number of channels in dimension 1 of its input.
    ///
    /// # Errors
    /// The weights do not fit the memory budget.
    pub fn new(num_parameters: usize) -> Result<Self> {
        let _charged = charged();
        let weight = Tensor::zeros(num_parameters)?;
        weight.fill_(0.25)?;
        Ok(Self { weight: Parameter::new(weight) })
    }

    fn describe(&self) -> String {
        format!("num_parameters={}", self.weight.len())
    }
}

impl Forward for PReLU {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        F::prelu(x, &self.weight)
    }
}

debug_is_display!(PReLU);

/// x above 0, and x times a slope elsewhere, as PyTorch's `nn.RReLU`. While training, the default generator draws a
/// slope between `lower` and `upper` for each element; otherwise the slope is their mean.
///
/// ```
/// use pagelock_nn::{Forward, Module, RReLU};
/// # use pagelock_tensor::Tensor;
/// let layer = RReLU::new();
/// let y = layer.forward(&Tensor::new([-8.0, 1.0])?)?.to_vec::<f32>()?;
/// assert!((-8.0 / 3.0..=-1.0).contains(&y[0]) && y[1] == 1.0);
/// layer.eval();
/// # assert!((layer.forward(&Tensor::new([-1.0])?)?.item::<f32>()? + 11.0 / 48.0).abs() < 1e-6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(details = Self::describe)]
pub struct RReLU {
    #[module(skip)]
    lower: f64,
    #[module(skip)]
    upper: f64,
    mode: Mode,
}

impl RReLU {
    /// Slopes from 1/8 to 1/3.
    pub fn new() -> Self {
        Self { lower: 1.0 / 8.0, upper: 1.0 / 3.0, mode: Mode::default() }
    }

    fn describe(&self) -> String {
        format!("lower={}, upper={}", number(self.lower), number(self.upper))
    }
}

setters! { RReLU,
    /// The smallest slope.
    lower: f64;
    /// The largest slope.
    upper: f64;
}

default_is_new!(RReLU);

impl Forward for RReLU {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        F::rrelu(x, self.lower, self.upper, self.mode.is_training(), default_generator())
    }
}

debug_is_display!(RReLU);
