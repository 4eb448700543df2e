//! [`Flatten`]: several dimensions become one.

use super::debug_is_display;
use crate::{Forward, Module, module_scope};
use pagelock_tensor::{Result, Tensor};

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

    /// Joins the dimensions from `start` to `end`, both included; negative ones count from the end.
    pub fn dims(start: isize, end: isize) -> Self {
        Self { start, end }
    }

    fn describe(&self) -> String {
        format!("start_dim={}, end_dim={}", self.start, self.end)
    }
}

impl Default for Flatten {
    fn default() -> Self {
        Self::new()
    }
}

impl Forward for Flatten {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        x.flatten(self.start, self.end)
    }
}

debug_is_display!(Flatten);
