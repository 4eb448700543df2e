//! [`Lambda`]: a closure as a layer.

use super::debug_is_display;
use crate::{Forward, Module, module_scope};
use pagelock_tensor::{Result, Tensor};

/// A function of a tensor as a layer without parameters.
///
/// ```
/// use pagelock_nn::{Forward, Lambda};
/// use pagelock_tensor::Tensor;
///
/// let to_images = Lambda::new(|x| x.reshape([-1, 1, 28, 28]));
/// assert_eq!(to_images.forward(&Tensor::zeros([64, 784])?)?.dims(), [64, 1, 28, 28]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct Lambda {
    #[module(skip)]
    function: Box<Function>,
}

type Function = dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync;

impl Lambda {
    /// Wraps a function.
    pub fn new(function: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Self {
        Self { function: Box::new(function) }
    }
}

impl Forward for Lambda {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        (self.function)(x)
    }
}

debug_is_display!(Lambda);
