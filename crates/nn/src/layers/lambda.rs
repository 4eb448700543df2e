//! [`Lambda`]: a closure as a layer.

use super::shown;
use crate::{Forward, Module, Visitor, VisitorMut};
use pagelock_tensor::{Float, Result, Tensor};

/// A function of a tensor as a layer without parameters.
///
/// ```
/// use pagelock_nn::{Forward, Lambda};
/// use pagelock_tensor::{Create, Tensor};
///
/// let to_images = Lambda::new(|x| x.reshape([-1, 1, 28, 28]));
/// assert_eq!(to_images.forward(&Tensor::zeros([64, 784])?)?.dims(), [64, 1, 28, 28]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Lambda<T: Float = f32> {
    function: Box<Function<T>>,
}

type Function<T> = dyn Fn(&Tensor<T>) -> Result<Tensor<T>> + Send + Sync;

impl<T: Float> Lambda<T> {
    /// Wraps a function.
    pub fn new(function: impl Fn(&Tensor<T>) -> Result<Tensor<T>> + Send + Sync + 'static) -> Self {
        Self { function: Box::new(function) }
    }
}

impl<T: Float> Module<T> for Lambda<T> {
    fn visit(&self, _: &mut Visitor<'_, T>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_, T>) {}
}

impl<T: Float> Forward<T> for Lambda<T> {
    fn forward(&self, x: &Tensor<T>) -> Result<Tensor<T>> {
        (self.function)(x)
    }
}

shown!(Lambda<T>);
