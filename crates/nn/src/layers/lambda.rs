//! [`Lambda`]: a closure as a layer.

use super::shown;
use crate::{Forward, Module, Visitor, VisitorMut};
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
pub struct Lambda {
    function: Box<Function>,
}

type Function = dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync;

impl Lambda {
    /// Wraps a function.
    pub fn new(function: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Self {
        Self { function: Box::new(function) }
    }
}

impl Module for Lambda {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
}

impl Forward for Lambda {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        (self.function)(x)
    }
}

shown!(Lambda);
