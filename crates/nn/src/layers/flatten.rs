//! [`Flatten`], [`Unflatten`] and [`Identity`]: layers that change the shape, or nothing.

use super::{debug_is_display, tuple};
use crate::setters::default_is_new;
use crate::{Forward, Module, module_scope};
use pagelock_tensor::{IntoShape, Result, Shape, Tensor};

/// Joins the dimensions from `start` to `end` (both included) into one; by default all but the batch.
///
/// ```
/// use pagelock_nn::{Flatten, Forward};
/// # use pagelock_tensor::Tensor;
/// assert_eq!(Flatten::new().forward(&Tensor::zeros([64, 10, 2, 3])?)?.dims(), [64, 60]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Module)]
#[module(details = Self::describe)]
pub struct Flatten {
    #[module(skip)]
    start: isize,
    #[module(skip)]
    end: isize,
}

impl Flatten {
    /// Keeps the first dimension and joins the others.
    pub fn new() -> Self {
        Self { start: 1, end: -1 }
    }

    /// Joins the dimensions from `start` to `end`, both included; negative numbers count from the end.
    pub fn dims(start: isize, end: isize) -> Self {
        Self { start, end }
    }

    fn describe(&self) -> String {
        format!("start_dim={}, end_dim={}", self.start, self.end)
    }
}

default_is_new!(Flatten);

impl Forward for Flatten {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        x.flatten(self.start, self.end)
    }
}

debug_is_display!(Flatten);

/// Splits one dimension into several: the inverse of [`Flatten`].
///
/// ```
/// use pagelock_nn::{Forward, Unflatten};
/// # use pagelock_tensor::Tensor;
/// assert_eq!(Unflatten::new(1, [2, 5])?.forward(&Tensor::zeros([64, 10])?)?.dims(), [64, 2, 5]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Module)]
#[module(details = Self::describe)]
pub struct Unflatten {
    #[module(skip)]
    dim: isize,
    #[module(skip)]
    sizes: Shape,
}

impl Unflatten {
    /// Splits dimension `dim` into `sizes`; a negative `dim` counts from the end.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) for sizes that no tensor can have.
    pub fn new(dim: isize, sizes: impl IntoShape) -> Result<Self> {
        Ok(Self { dim, sizes: sizes.into_shape()? })
    }

    fn describe(&self) -> String {
        format!("dim={}, unflattened_size={}", self.dim, tuple(&self.sizes))
    }
}

impl Forward for Unflatten {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        x.unflatten(self.dim, self.sizes)
    }
}

debug_is_display!(Unflatten);

/// Returns its input.
///
/// ```
/// use pagelock_nn::{Forward, Identity};
/// # use pagelock_tensor::Tensor;
/// assert_eq!(Identity.forward(&Tensor::new([1.0, 2.0])?)?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Default, Module)]
pub struct Identity;

impl Forward for Identity {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

debug_is_display!(Identity);
