//! How a module computes: [`Forward`], and [`Layer`] for members of a [`Sequential`](crate::Sequential).

use crate::Module;
use pagelock_tensor::{Result, Tensor};

/// One tensor in, one tensor out.
///
/// A model with other inputs defines a method of its own instead. Containers such as
/// [`Sequential`](crate::Sequential) and functions such as [`fit`](crate::fit) require this trait.
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, Module, Parameter};
/// use pagelock_tensor::{Result, Tensor};
///
/// #[derive(Module)]
/// struct Logistic {
///     weights: Parameter,
///     bias: Parameter,
/// }
///
/// impl Forward for Logistic {
///     fn forward(&self, xb: &Tensor) -> Result<Tensor> {
///         xb.matmul(&self.weights)? + &self.bias
///     }
/// }
///
/// let model = Logistic { weights: Parameter::new(Tensor::randn([784, 10])?), bias: Parameter::new(Tensor::zeros(10)?) };
/// assert_eq!(model.forward(&Tensor::zeros([64, 784])?)?.dims(), [64, 10]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no `forward` from `Tensor` to `Tensor`",
    note = "implement `Forward` for it, or wrap a closure in `Lambda::new(|x| ..)`"
)]
pub trait Forward {
    /// The output for `x`.
    ///
    /// # Errors
    /// Those of the tensor operations inside, such as a shape that does not fit or an exhausted memory budget.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;

    /// [`relu`](Tensor::relu) of the output for `x`. A [`Sequential`](crate::Sequential) calls it for a layer that a
    /// [`ReLU`](crate::ReLU) follows. A layer overrides it if it can fuse both operations.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn forward_relu(&self, x: &Tensor) -> Result<Tensor> {
        relu(self.forward(x))
    }

    /// Whether `forward` is exactly `x.relu()`.
    fn is_relu(&self) -> bool {
        false
    }
}

/// Outside of the trait, so that it is compiled once and not for each layer.
fn relu(y: Result<Tensor>) -> Result<Tensor> {
    y?.relu()
}

/// A [`Module`] that implements [`Forward`]. A [`Sequential`](crate::Sequential) holds them as `Box<dyn Layer>`.
///
/// It is implemented for every type that has both traits, and never by hand. A type that lacks one of them does not
/// compile:
///
/// ```compile_fail,E0277
/// # use pagelock_nn::{Linear, Module, Sequential};
/// #[derive(Module)]
/// struct Half {
///     linear: Linear,
/// }
///
/// let half = Half { linear: Linear::new(1, 1)? };
/// let model = Sequential::new((half,)); // `Half` has no `forward` from `Tensor` to `Tensor`
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub trait Layer: Module + Forward + Send + Sync {}

impl<L: Module + Forward + Send + Sync + ?Sized> Layer for L {}
