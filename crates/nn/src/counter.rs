//! [`Counter`]: a whole number that belongs to a module's saved state.

use std::fmt;
use std::ops::Deref;

use pagelock_tensor::{Create, Float, Result, Tensor, no_grad};

use crate::{Event, EventMut, Module, Visitor, VisitorMut};

/// How often something happened, such as the batches that a layer has seen: exact whatever the element type of the model, and
/// saved as PyTorch saves it, as an `i64` without dimensions.
///
/// It is a tensor where the model is, so that captured steps count too.
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
/// assert_eq!(layer.calls.item()?, 1);
/// assert_eq!(layer.state_dict().count("calls").unwrap().item()?, 1);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Counter {
    tensor: Tensor<i64>,
}

impl Counter {
    /// A counter at 0.
    ///
    /// # Errors
    /// It does not fit the memory budget.
    pub fn new() -> Result<Self> {
        Ok(Self { tensor: Tensor::<i64>::zeros(())? })
    }

    /// Counts one more.
    ///
    /// # Errors
    /// As [`Tensor::add_scalar_`].
    pub fn increment(&self) -> Result<()> {
        no_grad(|| self.tensor.add_scalar_(1))
    }
}

impl Deref for Counter {
    type Target = Tensor<i64>;

    fn deref(&self) -> &Tensor<i64> {
        &self.tensor
    }
}

impl<T: Float> Module<T> for Counter {
    fn visit(&self, visitor: &mut Visitor<'_, T>) {
        visitor.report(Event::Counter(&self.tensor));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_, T>) {
        visitor.report(EventMut::Counter(&mut self.tensor));
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
