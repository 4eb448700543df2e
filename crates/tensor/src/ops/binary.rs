//! Operations on pairs of elements that are less usual than arithmetic: extremes, remainders, quotients, powers, angles.
//!
//! Integers are divided as in Python. An integer divided by 0 gives 0, because a device cannot report the error in
//! time.

use super::elementwise::{ShareOfLarger, binary, formula};
use super::fused::FmodGrad;
use super::number_like;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula};
use crate::element::{Num, Real, Scalar};
use crate::error::{Error, Result};
use crate::kind::{Number, Numeric};
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, apply_raw, per_type, run_unrecorded};
use crate::tensor::{Raw, Tensor};

// Equal operands get half of the gradient each, as in PyTorch. NaN wins, and then both operands get the whole gradient.
binary! { Minimum: Num, "minimum", Inputs, |a, b| if a < b || a.is_nan() { a } else { b }, "a < b || is_nan(a) ? a : b", |saved, grad| [
    apply(ShareOfLarger, [grad, saved.input(1), saved.input(0)]),
    apply(ShareOfLarger, [grad, saved.input(0), saved.input(1)]),
] }
binary! { Atan2: Real, "atan2", Inputs, map2_longest: |y, x| y.atan2(x), "atan2(y, x)", |saved, grad| [
    over_squares(grad, saved)?.mul(saved.input(1)),
    over_squares(grad, saved)?.mul(&saved.input(0).neg()?),
] }
binary! { Fmod: Num, "fmod", Inputs, map2_except((T::needs_long_division, T::fmod)): |a, b| a.near_fmod(b), "fmod_of(a, b)", |saved, grad| [
    Ok(grad.clone()),
    apply(FmodGrad, [grad, saved.input(0), saved.input(1)]),
] }
binary! { Remainder: Num, "remainder", Inputs, map2_except((T::needs_long_division, |a: T, b: T| remainder(a.fmod(b), b))): |a, b| remainder(a.near_fmod(b), b), "remainder_of(a, b)", |saved, grad| [
    Ok(grad.clone()),
    grad.mul(&saved.input(0).floor_divide(saved.input(1))?)?.neg(),
] }
binary! { FloorDivide: Num, "floor_divide", Nothing, map2_except((T::needs_long_division, T::floor_div)): |a, b| a.near_floor_div(b), "floor_div(a, b)", |_saved, grad| [
    grad.zeros_like(),
    grad.zeros_like(),
] }
binary! { PowTensor: Real, "pow", Inputs, map2_longest: |x, y| if y == T::ZERO || x == T::ONE { T::ONE } else { x.powf(y) }, "pow(x, y)", |saved, grad| [
    of_base(grad, saved),
    of_exponent(grad, saved),
] }

per_type! { Minimum[2]: Num }
per_type! { Atan2[2]: Real }
per_type! { Fmod[2]: Num }
per_type! { Remainder[2]: Num }
per_type! { FloorDivide[2]: Num }
per_type! { PowTensor[2]: Real }

/// `grad / (y² + x²)`; 0 where both are 0, as in PyTorch.
fn over_squares(grad: &Tensor, saved: &Saved<'_, 2>) -> Result<Tensor> {
    let (y, x) = (saved.input(0), saved.input(1));
    let squares = y.mul(y)?.add(&x.mul(x)?)?;
    grad.mul(&squares.masked_fill(&squares.eq_scalar(0.0)?, f64::INFINITY)?.reciprocal()?)
}

/// `grad · y · x^(y − 1)`, and 0 for an exponent of 0.
fn of_base(grad: &Tensor, saved: &Saved<'_, 2>) -> Result<Tensor> {
    let (x, y) = (saved.input(0), saved.input(1));
    let slope = grad.mul(&y.mul(&x.pow_tensor(&y.add_scalar(-1.0)?)?)?)?;
    slope.masked_fill(&y.eq_scalar(0.0)?, 0.0)
}

/// `grad · xʸ · ln x`, and 0 where x is 0 and y is not negative.
fn of_exponent(grad: &Tensor, saved: &Saved<'_, 2>) -> Result<Tensor> {
    let (x, y) = (saved.input(0), saved.input(1));
    let slope = grad.mul(&x.pow_tensor(y)?.mul(&x.log()?)?)?;
    let is_flat = x.eq_scalar(0.0)?.mul(&y.ge_scalar(0.0)?)?;
    slope.masked_fill(&is_flat, 0.0)
}

/// Turns a remainder with the sign of the dividend into the one with the sign of the divisor.
#[inline(always)]
fn remainder<T: Num>(rest: T, b: T) -> T {
    if rest != T::ZERO && (rest < T::ZERO) != (b < T::ZERO) { rest.plus(b) } else { rest }
}

/// `pair! { docs method, method with a number, Struct, recorded or unrecorded }`
macro_rules! pair {
    ($(#[$doc:meta])* $method:ident, $with_number:ident, $op:ident, $apply:ident) => {
        impl<K: Numeric> Tensor<K> {
            $(#[$doc])*
            ///
            /// # Errors
            /// [`Error::Argument`] if the shapes do not fit.
            pub fn $method(&self, other: &Tensor<K>) -> Result<Tensor<K>> {
                $apply($op, self.raw(), other.raw()).map(Raw::typed)
            }

            #[doc = concat!("As [`Tensor::", stringify!($method), "`], with one number for all elements.")]
            ///
            /// # Errors
            /// [`Error::Argument`] for integers and 0; [`Error::Memory`] if the result does not fit the budget.
            pub fn $with_number(&self, value: impl Number<K>) -> Result<Tensor<K>> {
                let value = divisor(stringify!($method), self.raw(), value.scalar())?;
                $apply($op, self.raw(), &value).map(Raw::typed)
            }
        }
    };
}

pair! {
    /// The remainder of the division by `other`, elementwise, broadcasting, with the sign of the dividend: C's `fmod`. An
    /// integer divided by 0 leaves 0.
    fmod, fmod_scalar, Fmod, recorded
}
pair! {
    /// The remainder of the division by `other`, elementwise, broadcasting, with the sign of the divisor: Python's `%`. An
    /// integer divided by 0 leaves 0.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([-3, 3, 5])?;
    /// assert_eq!(x.remainder_scalar(4)?.to_vec::<i64>()?, [1, 3, 1]);
    /// assert_eq!(x.fmod_scalar(4)?.to_vec::<i64>()?, [-3, 3, 1]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    remainder, remainder_scalar, Remainder, recorded
}
pair! {
    /// The quotient rounded down, elementwise, broadcasting: Python's `//`. It has no gradient. An integer divided by 0 is 0.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([-3, 3, 9])?.floor_divide_scalar(4)?.to_vec::<i64>()?, [-1, 0, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    floor_divide, floor_divide_scalar, FloorDivide, unrecorded
}

fn recorded<O: Op<2> + Derivative<2>>(op: O, a: &Raw, b: &Raw) -> Result<Raw> {
    apply_raw(op, [a, b])
}

fn unrecorded<O: Op<2>>(op: O, a: &Raw, b: &Raw) -> Result<Raw> {
    run_unrecorded(&op, [a, b])
}

/// A number to divide by, as a tensor.
fn divisor(op: &'static str, x: &Raw, value: Scalar) -> Result<Raw> {
    if x.dtype().is_int() && value.to_f64() == 0.0 {
        return Err(Error::bad_argument(op, "the divisor", 0, "integers cannot be divided by 0; give another number"));
    }
    number_like(op, x, value)
}

impl<K: Numeric> Tensor<K> {
    /// The smaller of each pair of elements, broadcasting. NaN wins.
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not fit.
    pub fn minimum(&self, other: &Tensor<K>) -> Result<Tensor<K>> {
        apply_raw(Minimum, [self.raw(), other.raw()]).map(Raw::typed)
    }
}

impl Tensor {
    /// The angle in [−π, π] of the point (`other`, `self`), elementwise, broadcasting: the angle whose tangent is
    /// `self / other`, in the right quadrant.
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not fit.
    pub fn atan2(&self, other: &Tensor) -> Result<Tensor> {
        apply(Atan2, [self, other])
    }

    /// Each element raised to the element of `exponent` at its place, broadcasting: PyTorch's `pow` of two tensors.
    /// For a single exponent, see [`Tensor::pow`].
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not fit.
    pub fn pow_tensor(&self, exponent: &Tensor) -> Result<Tensor> {
        apply(PowTensor, [self, exponent])
    }
}
