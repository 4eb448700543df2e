//! [`Parameter`]: a tensor that is trained; [`Buffer`]: one that is saved but not trained.

use crate::{Event, EventMut, Module, Visitor, VisitorMut};
use pagelock_tensor::{Element, Float, Result, Tensor};
use std::fmt;
use std::ops::{Add, Deref, Div, Mul, Sub};
use std::sync::{Arc, OnceLock};

/// A tensor that is trained: a leaf of the autograd graph that requires a gradient.
///
/// Derefs to [`Tensor`], and takes part in arithmetic as `&parameter`. A clone is the same parameter: the model and the
/// optimizer each hold one. Its elements change in place only; when its model moves to another device, the model has a
/// new one, which optimizers find.
///
/// # Examples
/// ```
/// use pagelock_nn::Parameter;
/// use pagelock_tensor::{Create, Tensor};
///
/// let weights = Parameter::new((Tensor::randn([784, 10])? / 28.0)?);
/// assert!(weights.requires_grad() && weights.is_leaf());
/// let y = Tensor::ones([1, 784])?.matmul(&weights)?;
/// y.sum(..)?.backward()?;
/// assert_eq!(weights.grad().unwrap().dims(), [784, 10]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Parameter<T: Element = f32> {
    shared: Arc<Shared<T>>,
}

/// What the handles of a parameter share.
struct Shared<T: Element> {
    tensor: Tensor<T>,
    /// The parameter that took its place, on another device or in another order.
    moved: OnceLock<Parameter<T>>,
}

impl<T: Float> Parameter<T> {
    /// Makes a parameter of a tensor's elements (shared, not copied), cut off from whatever computed them.
    pub fn new(tensor: Tensor<T>) -> Self {
        let tensor = if tensor.requires_grad() { tensor.detach() } else { tensor };
        Self::of(tensor.set_requires_grad(true))
    }

    /// Another one like this, whose elements are elsewhere.
    pub(crate) fn with_elements_of(&self, copy: Tensor<T>) -> Self {
        Self::of(copy.set_requires_grad(self.requires_grad()))
    }
}

impl<T: Element> Parameter<T> {
    /// The tensor itself, as the deref gives it.
    pub fn as_tensor(&self) -> &Tensor<T> {
        &self.shared.tensor
    }

    /// What two handles have in common if, and only if, they are one parameter, as long as one of them lives.
    pub(crate) fn id(&self) -> *const () {
        Arc::as_ptr(&self.shared).cast()
    }

    /// Whether two handles are one parameter.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    fn of(tensor: Tensor<T>) -> Self {
        Self { shared: Arc::new(Shared { tensor, moved: OnceLock::new() }) }
    }

    /// Becomes another parameter, and tells who has handles of this one.
    pub(crate) fn replace(&mut self, other: &Self) {
        let _ = self.shared.moved.set(other.clone());
        *self = other.clone();
    }

    /// Becomes the parameter that took this one's place, if one did; whether that is so.
    pub(crate) fn follow(&mut self) -> bool {
        let mut has_moved = false;
        while let Some(other) = self.shared.moved.get().cloned() {
            (*self, has_moved) = (other, true);
        }
        has_moved
    }
}

impl<T: Element> Clone for Parameter<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Element> Deref for Parameter<T> {
    type Target = Tensor<T>;

    fn deref(&self) -> &Tensor<T> {
        &self.shared.tensor
    }
}

impl<T: Float> Module<T> for Parameter<T> {
    fn visit(&self, visitor: &mut Visitor<'_, T>) {
        visitor.report(Event::Parameter(self));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_, T>) {
        visitor.report(EventMut::Parameter(self));
    }

    fn title(&self) -> String {
        String::new()
    }
}

/// Prints as PyTorch does: `Parameter containing:` and the tensor.
impl<T: Element> fmt::Debug for Parameter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parameter containing:\n{}", self.as_tensor())
    }
}

/// A tensor that belongs to a module's saved state but is not trained, such as a running mean.
///
/// # Examples
/// ```
/// use pagelock_nn::{Buffer, Module};
/// use pagelock_tensor::{Create, Tensor};
///
/// #[derive(Module)]
/// struct Center {
///     mean: Buffer,
/// }
/// let center = Center { mean: Buffer::new(Tensor::zeros(3)?) };
/// assert_eq!(center.parameters().len(), 0);
/// assert!(center.state_dict().get("mean").is_some());
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Buffer<T: Element = f32> {
    tensor: Tensor<T>,
}

impl<T: Float> Buffer<T> {
    /// Makes a buffer of a tensor's elements (shared, not copied), cut off from whatever computed them.
    pub fn new(tensor: Tensor<T>) -> Self {
        Self { tensor: if tensor.requires_grad() { tensor.detach() } else { tensor } }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = Tensor<T>;

    fn deref(&self) -> &Tensor<T> {
        &self.tensor
    }
}

impl<T: Float> Module<T> for Buffer<T> {
    fn visit(&self, visitor: &mut Visitor<'_, T>) {
        visitor.report(Event::Buffer(&self.tensor));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_, T>) {
        visitor.report(EventMut::Buffer(&mut self.tensor));
    }

    fn title(&self) -> String {
        String::new()
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tensor)
    }
}

/// `&parameter` on either side of an operator, as if it were `&tensor`.
macro_rules! operators {
    ($($operator:ident $method:ident)+) => {$(
        impl<T: Float> $operator<&Parameter<T>> for &Tensor<T> {
            type Output = Result<Tensor<T>>;
            fn $method(self, right: &Parameter<T>) -> Self::Output {
                self.$method(right.as_tensor())
            }
        }

        impl<T: Float> $operator<&Parameter<T>> for Tensor<T> {
            type Output = Result<Tensor<T>>;
            fn $method(self, right: &Parameter<T>) -> Self::Output {
                (&self).$method(right.as_tensor())
            }
        }

        impl<T: Float> $operator<&Parameter<T>> for Result<Tensor<T>> {
            type Output = Result<Tensor<T>>;
            fn $method(self, right: &Parameter<T>) -> Self::Output {
                (&self?).$method(right.as_tensor())
            }
        }

        impl<T: Float> $operator<&Tensor<T>> for &Parameter<T> {
            type Output = Result<Tensor<T>>;
            fn $method(self, right: &Tensor<T>) -> Self::Output {
                self.as_tensor().$method(right)
            }
        }

        impl<T: Float> $operator<&Parameter<T>> for &Parameter<T> {
            type Output = Result<Tensor<T>>;
            fn $method(self, right: &Parameter<T>) -> Self::Output {
                self.as_tensor().$method(right.as_tensor())
            }
        }
    )+};
}

operators! { Add add Sub sub Mul mul Div div }
