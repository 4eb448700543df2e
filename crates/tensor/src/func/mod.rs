//! Derivatives of functions: `torch.func`.
//!
//! `backward` stores gradients in tensors. The functions here take a function and the inputs at which to
//! differentiate it, and return the derivative. They nest: a derivative is an ordinary tensor operation, so a second
//! derivative is one call inside the function of another.
//!
//! ```
//! use pagelock_tensor::{Tensor, func};
//!
//! let x = Tensor::new([1.0, 2.0, 3.0])?;
//! let first = func::grad(|x| x.pow(3.0)?.sum(..), &x)?;
//! assert_eq!(first.to_vec::<f32>()?, [3.0, 12.0, 27.0]);
//!
//! let second = func::grad(|x| func::grad(|x| x.pow(3.0)?.sum(..), x)?.sum(..), &x)?;
//! assert_eq!(second.to_vec::<f32>()?, [6.0, 12.0, 18.0]);
//! # Ok::<(), pagelock_tensor::Error>(())
//! ```
//!
//! - **Several inputs** are a tuple, an array, a `Vec` or a state dict: any [`Tree`]. Tensors that are not
//!   differentiated are captured by the closure, which replaces PyTorch's `argnums`. Further results of the function
//!   (`has_aux`) are written to a variable that the closure captures.
//! - **What is recorded:** results require grad if they depend on an outside tensor that does: an input, or a tensor
//!   that the closure captures, such as a model's parameter. Inside [`no_grad`](crate::no_grad) they do not, as in
//!   PyTorch.
//! - **Cost:** a gradient takes one pass backward, a [`jvp`] two. [`jacrev`] takes a pass for each element of the result, [`jacfwd`]
//!   one for each element of the input, [`vmap`] a call for each index: PyTorch runs these passes as one with a batch dimension.
//!   Where a function broadcasts, give it the batch instead.

// `level.rs` has the computations. The generic functions here are compiled in a user's crate, so they only pass
// tensors on.

mod level;
mod map;
mod tree;

use self::level::{Level, Pass};
pub use self::map::vmap;
pub use self::tree::Tree;
use self::tree::{float_leaves, leaves, rebuilt_floats};
use crate::error::Result;
use crate::tensor::Tensor;

/// The gradient of a function whose result is one number: `torch.func.grad`. It is shaped like `inputs`, and 0 for inputs that
/// the result does not depend on.
///
/// ```
/// # use pagelock_tensor::{Tensor, func};
/// let (w, b) = (Tensor::new([2.0, -1.0])?, Tensor::scalar(0.5)?);
/// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?;
/// let (dw, db) = func::grad(|(w, b)| (x.matmul(w)? + b)?.sum(..), &(w, b))?;
/// assert_eq!((dw.to_vec::<f32>()?, db.item::<f32>()?), (vec![4.0, 6.0], 2.0));
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) if the result is not one number, or an input holds no floats; those of `f`, and of
/// [`Tensor::backward`].
pub fn grad<I: Tree>(f: impl FnOnce(&I) -> Result<Tensor>, inputs: &I) -> Result<I> {
    Ok(gradient("grad", f, inputs)?.0)
}

/// The gradient as in [`grad`], and the function's result: `torch.func.grad_and_value`.
///
/// ```
/// # use pagelock_tensor::{Tensor, func};
/// let (slope, y) = func::grad_and_value(|x| x * x, &Tensor::scalar(3.0)?)?;
/// assert_eq!((slope.item::<f32>()?, y.item::<f32>()?), (6.0, 9.0));
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`grad`].
pub fn grad_and_value<I: Tree>(f: impl FnOnce(&I) -> Result<Tensor>, inputs: &I) -> Result<(I, Tensor)> {
    gradient("grad_and_value", f, inputs)
}

fn gradient<I: Tree>(op: &'static str, f: impl FnOnce(&I) -> Result<Tensor>, inputs: &I) -> Result<(I, Tensor)> {
    let mut f = Once::new(f, inputs);
    let (grads, value) = level::gradient(op, &leaves(inputs)?, &mut |given| f.call(given).map(|y| vec![y]))?;
    Ok((rebuilt_floats(inputs, &grads)?, value))
}

/// The function's result, and a [`Pullback`] that multiplies cotangents by its Jacobian, from the left:
/// `torch.func.vjp`.
///
/// ```
/// # use pagelock_tensor::{Tensor, func};
/// let x = Tensor::new([1.0, 2.0])?;
/// let (y, pullback) = func::vjp(|x: &Tensor| x.exp(), &x)?;
/// let along_first = pullback.call(&Tensor::new([1.0, 0.0])?)?;
/// assert_eq!(along_first.to_vec::<f32>()?, [y.to_vec::<f32>()?[0], 0.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) if an input holds no floats; those of `f`.
pub fn vjp<I: Tree, O: Tree>(f: impl FnOnce(&I) -> Result<O>, inputs: &I) -> Result<(O, Pullback<I, O>)> {
    let (outputs, pass) = passed("vjp", f, inputs)?;
    let value = rebuilt_floats(&outputs, &pass.values())?;
    Ok((value, Pullback { pass, inputs: inputs.clone(), outputs }))
}

/// The graph of a function, through which any number of cotangents can be propagated; returned by [`vjp`].
pub struct Pullback<I, O> {
    pass: Pass,
    inputs: I,
    outputs: O,
}

impl<I: Tree, O: Tree> Pullback<I, O> {
    /// The product `cotangents` · Jacobian, which is shaped like the inputs. The cotangents are shaped like the
    /// result.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if `cotangents` are not shaped like the result; as [`Tensor::backward`].
    pub fn call(&self, cotangents: &O) -> Result<I> {
        rebuilt_floats(&self.inputs, &self.pass.backward(&float_leaves("vjp", cotangents)?)?)
    }

    /// The structure of the function's result.
    pub fn outputs(&self) -> &O {
        &self.outputs
    }
}

/// The function's result, and its derivative along `tangents`, the product of the Jacobian and `tangents`:
/// `torch.func.jvp`.
///
/// The derivative is computed by differentiating the vector-Jacobian product, which is linear in the vector, with
/// respect to the vector.
///
/// ```
/// # use pagelock_tensor::{Tensor, func};
/// let x = Tensor::new([1.0, 2.0, 3.0])?;
/// let (y, along) = func::jvp(|x: &Tensor| x * x, &x, &Tensor::new([1.0, 0.0, 0.5])?)?;
/// assert_eq!((y.to_vec::<f32>()?, along.to_vec::<f32>()?), (vec![1.0, 4.0, 9.0], vec![2.0, 0.0, 3.0]));
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) if an input holds no floats or `tangents` are not shaped like the inputs; those of
/// `f`; as [`Tensor::backward`], also if an operation has no second derivative.
pub fn jvp<I: Tree, O: Tree>(f: impl FnOnce(&I) -> Result<O>, inputs: &I, tangents: &I) -> Result<(O, O)> {
    let (outputs, pass) = passed("jvp", f, inputs)?;
    let along = pass.forward()?.along(&float_leaves("jvp", tangents)?)?;
    Ok((rebuilt_floats(&outputs, &pass.values())?, rebuilt_floats(&outputs, &along)?))
}

/// The Jacobian, row by row: `torch.func.jacrev`, and `torch.autograd.functional.jacobian`. For an input of shape
/// `[n]` and a result of shape `[m]` it is `[m, n]`. In general, there is one Jacobian for each input, and its shape
/// is the result's followed by the input's.
///
/// ```
/// # use pagelock_tensor::{Tensor, func};
/// let w = Tensor::new([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])?;
/// let jacobian = func::jacrev(|x| w.matmul(x), &Tensor::new([1.0, 1.0])?)?;
/// assert_eq!(jacobian.to_vec::<f32>()?, w.to_vec::<f32>()?);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) if an input holds no floats, or the Jacobian would have too many
/// dimensions; those of `f`; as [`Tensor::backward`].
pub fn jacrev<I: Tree>(f: impl FnOnce(&I) -> Result<Tensor>, inputs: &I) -> Result<I> {
    let (_, pass) = passed("jacrev", f, inputs)?;
    rebuilt_floats(inputs, &pass.rows()?)
}

/// The Jacobian, column by column: `torch.func.jacfwd`. It equals [`jacrev`]'s, and takes less time where the inputs
/// have fewer elements than the result.
///
/// ```
/// # use pagelock_tensor::{Tensor, func};
/// let curve = |t: &Tensor| Tensor::stack(&[&t.cos()?, &t.sin()?, t], 0);
/// let velocity = func::jacfwd(curve, &Tensor::scalar(0.0)?)?;
/// assert_eq!(velocity.to_vec::<f32>()?, [0.0, 1.0, 1.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`jacrev`], and as [`jvp`].
pub fn jacfwd<I: Tree>(f: impl FnOnce(&I) -> Result<Tensor>, inputs: &I) -> Result<I> {
    let (_, pass) = passed("jacfwd", f, inputs)?;
    rebuilt_floats(inputs, &pass.columns()?)
}

/// The second derivatives of a function of one tensor: `torch.func.hessian`. For an input of shape `[n]` and a result that is one
/// number it is `[n, n]`.
///
/// ```
/// # use pagelock_tensor::{Tensor, func};
/// let x = Tensor::new([1.0, 2.0])?;
/// let hessian = func::hessian(|x| x.prod(..), &x)?;
/// assert_eq!(hessian.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// A Hessian-vector product needs no Hessian: `func::grad(|x| (func::grad(&f, x)? * &v)?.sum(..), &x)`.
///
/// # Errors
/// As [`jacrev`].
pub fn hessian(f: impl FnOnce(&Tensor) -> Result<Tensor>, input: &Tensor) -> Result<Tensor> {
    let mut f = Once::new(f, input);
    level::hessian(input, &mut |given| f.call(given))
}

/// Runs `f` with inputs that are tracked.
fn passed<I: Tree, O: Tree>(op: &'static str, f: impl FnOnce(&I) -> Result<O>, inputs: &I) -> Result<(O, Pass)> {
    let level = Level::new(op, &leaves(inputs)?)?;
    let mut f = Once::new(f, inputs);
    let mut outputs = None;
    let pass = level.run(&mut |given| {
        let made = f.call(given)?;
        let leaves = float_leaves(op, &made)?;
        outputs = Some(made);
        Ok(leaves)
    })?;
    let outputs = outputs.unwrap_or_else(|| unreachable!("the function ran"));
    Ok((outputs, pass))
}

/// A function that is called once, with tensors in the structure of its inputs.
struct Once<'a, I, F> {
    f: Option<F>,
    inputs: &'a I,
}

impl<'a, I: Tree, F> Once<'a, I, F> {
    fn new(f: F, inputs: &'a I) -> Self {
        Once { f: Some(f), inputs }
    }

    fn call<R>(&mut self, given: &[Tensor]) -> Result<R>
    where
        F: FnOnce(&I) -> Result<R>,
    {
        let Some(f) = self.f.take() else { unreachable!("a function is called once") };
        f(&rebuilt_floats(self.inputs, given)?)
    }
}
