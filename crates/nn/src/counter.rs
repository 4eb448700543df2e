//! [`Counter`]: a whole number that belongs to a module's saved state.

use std::fmt;
use std::ops::Deref;

use pagelock_tensor::{Int, Result, Tensor, no_grad};

use crate::{Module, VisitEvent, VisitEventMut, Visitor, VisitorMut};

/// Counts events, such as the batches that a layer has seen. It is exact in models of any precision, and saved as in
/// PyTorch, as an `i64` without dimensions.
///
/// It is a tensor on the model's device, so captured steps count too.
///
/// # Examples
/// ```
/// use pagelock_nn::{Counter, Module};
///
/// #[derive(Module)]
/// struct Layer {
///     calls: Counter,
/// }
/// let layer = Layer { calls: Counter::new()? };
/// layer.calls.increment()?;
/// assert_eq!(layer.calls.item::<i64>()?, 1);
/// assert_eq!(layer.state_dict().get_int("calls").unwrap().item::<i64>()?, 1);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Counter {
    tensor: Tensor<Int>,
}

impl Counter {
    /// A counter at 0.
    ///
    /// # Errors
    /// It does not fit the memory budget.
    pub fn new() -> Result<Self> {
        Ok(Self { tensor: Tensor::full((), 0)? })
    }

    /// Adds 1 to the count.
    ///
    /// # Errors
    /// As [`Tensor::add_scalar_`].
    pub fn increment(&self) -> Result<()> {
        no_grad(|| self.tensor.add_scalar_(1))
    }
}

impl Deref for Counter {
    type Target = Tensor<Int>;

    fn deref(&self) -> &Tensor<Int> {
        &self.tensor
    }
}

impl Module for Counter {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.report(VisitEvent::IntBuffer(&self.tensor));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.report(VisitEventMut::IntBuffer(&mut self.tensor));
    }

    fn title(&self) -> String {
        String::new()
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tensor)
    }
}
