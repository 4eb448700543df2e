//! How a module computes: [`Forward`], and [`Layer`] for what can stand in a [`Sequential`](crate::Sequential).

use crate::Module;
use pagelock_tensor::{Result, Tensor};

/// One tensor in, one tensor out.
///
/// Models with other inputs have a method of their own instead; nothing but [`Sequential`](crate::Sequential) and
/// [`fit`](crate::fit) asks for this trait.
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
    /// What the tensor operations inside refuse: a shape that does not fit, a budget that is used up.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;

    /// [`relu`](Tensor::relu) of the output for `x`: what a [`Sequential`](crate::Sequential) calls where a
    /// [`ReLU`](crate::ReLU) comes next. A layer overrides it if it can do both in one go.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn forward_relu(&self, x: &Tensor) -> Result<Tensor> {
        relu(self.forward(x))
    }

    /// Whether the output is `x.relu()` and nothing else.
    fn is_relu(&self) -> bool {
        false
    }
}

/// Not a method of every module, so that it is compiled once.
fn relu(y: Result<Tensor>) -> Result<Tensor> {
    y?.relu()
}

/// A [`Module`] with a [`Forward`]: what a [`Sequential`](crate::Sequential) holds as `Box<dyn Layer>`.
///
/// Implemented for everything that has both; never by hand. What lacks one of them is refused:
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
