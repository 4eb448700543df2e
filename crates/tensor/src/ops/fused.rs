//! Formulas of several steps in one pass: interpolation, added products and quotients, logits, replacement of NaN.

use std::f64::consts;

use super::elementwise::{formula, scalar};
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{DType, Real, Scalar};
use crate::error::Result;
use crate::inlined::Array;
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, per_type};
use crate::tensor::Tensor;

impl Tensor {
    /// Linear interpolation between the elements and those of `other`: `self + weight · (other − self)`,
    /// broadcasting.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the shapes do not fit.
    pub fn lerp(&self, other: &Tensor, weight: f64) -> Result<Tensor> {
        apply(Lerp(Scalar::Float(weight)), [self, other])
    }

    /// [`lerp`](Tensor::lerp) with a weight for each element.
    ///
    /// # Errors
    /// As [`Tensor::lerp`].
    pub fn lerp_tensor(&self, other: &Tensor, weight: &Tensor) -> Result<Tensor> {
        apply(LerpTensor, [self, other, weight])
    }

    /// `self + value · a · b`, elementwise, broadcasting. PyTorch's default for `value` is 1.
    ///
    /// # Errors
    /// As [`Tensor::lerp`].
    pub fn addcmul(&self, a: &Tensor, b: &Tensor, value: f64) -> Result<Tensor> {
        apply(AddCMul(Scalar::Float(value)), [self, a, b])
    }

    /// `self + value · a / b`, elementwise, broadcasting. PyTorch's default for `value` is 1.
    ///
    /// # Errors
    /// As [`Tensor::lerp`].
    pub fn addcdiv(&self, a: &Tensor, b: &Tensor, value: f64) -> Result<Tensor> {
        apply(AddCDiv(Scalar::Float(value)), [self, a, b])
    }

    /// ln(x / (1 − x)) of every element, the inverse of [`sigmoid`](Tensor::sigmoid). With `eps`, elements are first
    /// clamped to [eps, 1 − eps]; without, elements outside [0, 1] give NaN.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn logit(&self, eps: Option<f64>) -> Result<Tensor> {
        let [low, high] = eps.map_or([f64::NEG_INFINITY, f64::INFINITY], |eps| [eps, 1.0 - eps]).mapped(Scalar::Float);
        apply(Logit { low, high }, [self])
    }

    /// The elements with `nan` in place of NaN, and the largest and the smallest finite number in place of ∞ and −∞.
    /// PyTorch's default for `nan` is 0. The gradient of replaced elements is 0.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([f32::NAN, f32::INFINITY, 1.0])?.nan_to_num(0.0)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, f32::MAX, 1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::logit`].
    pub fn nan_to_num(&self, nan: f64) -> Result<Tensor> {
        let most = match self.dtype() {
            DType::F16 => half::f16::MAX.to_f64(),
            DType::BF16 => half::bf16::MAX.to_f64(),
            DType::F32 => f32::MAX.into(),
            _ => f64::MAX,
        };
        apply(NanToNum { nan: Scalar::Float(nan), most: Scalar::Float(most) }, [self])
    }

    /// Converts every element from degrees to radians.
    ///
    /// # Errors
    /// As [`Tensor::logit`].
    pub fn deg2rad(&self) -> Result<Tensor> {
        self.mul_scalar(consts::PI / 180.0)
    }

    /// Converts every element from radians to degrees.
    ///
    /// # Errors
    /// As [`Tensor::logit`].
    pub fn rad2deg(&self) -> Result<Tensor> {
        self.mul_scalar(180.0 / consts::PI)
    }
}

/// An operation on `n` tensors that broadcast, with constants.
macro_rules! mixed {
    ($name:ident[$n:literal]: $bound:ident, $op_name:literal, [$($x:ident),*], |$op:pat_param| [$($c:ident = $value:expr),*], |$real:ident| $formula:expr, $map:ident, $cuda:literal) => {
        per_type! { $name[$n]: $bound }

        impl Op<$n> for $name {
            const NAME: &'static str = $op_name;
            const INPUTS: Inputs = Inputs::Broadcast;
            const PRECISION: Precision = Precision::Widest;

            formula! { $n, $op_name, [$($x),*], |$op| [$($c = $value),*], $cuda }
        }

        impl<$real: $bound> CpuKernel<$real, $n> for $name {
            type Out = $real;

            fn cpu(&self, [$($x),*]: [CpuView<'_, $real>; $n], out: StoredMut<'_, $real>) -> Result<()> {
                let $op = self;
                $(let $c = <$real>::from_scalar($value);)*
                cpu::$map($($x,)* out, #[inline(always)] move |$($x: $real),*| $formula);
                Ok(())
            }
        }
    };
}

pub(super) use mixed;

// Computed from the nearer end, so that a weight of 1 gives `other` exactly, as in PyTorch.
struct Lerp(Scalar);
mixed! { Lerp[2]: Real, "lerp", [x, y], |op| [weight = op.0, rest = Scalar::Float(1.0 - op.0.to_f64())],
|R| if weight.magnitude() + weight.magnitude() < R::ONE { x + weight * (y - x) } else { y - (y - x) * rest }, map2,
"magnitude(weight) < R(0.5) ? x + weight * (y - x) : y - (y - x) * rest" }

impl Derivative<2> for Lerp {
    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let weight = self.0.to_f64();
        Ok([saved.grad_of(0, || grad.mul_scalar(1.0 - weight))?, saved.grad_of(1, || grad.mul_scalar(weight))?])
    }
}

struct LerpTensor;
mixed! { LerpTensor[3]: Real, "lerp", [x, y, weight], |_op| [],
|R| if weight.magnitude() + weight.magnitude() < R::ONE { x + weight * (y - x) } else { y - (y - x) * (R::ONE - weight) }, map3,
"magnitude(weight) < R(0.5) ? x + weight * (y - x) : y - (y - x) * (R(1) - weight)" }

impl Derivative<3> for LerpTensor {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let [x, y, weight] = [0, 1, 2].mapped(|i| saved.input(i));
        Ok([
            saved.grad_of(0, || grad.mul(&weight.scalar_minus(1.0.into())?))?,
            saved.grad_of(1, || grad.mul(weight))?,
            saved.grad_of(2, || grad.mul(&y.sub(x)?))?,
        ])
    }
}

/// −grad · trunc(a / b): the derivative of `fmod(a, b)` with respect to `b`.
pub(super) struct FmodGrad;
mixed! { FmodGrad[3]: Real, "fmod's gradient", [grad, a, b], |_op| [], |R| -(grad * (a / b).trunc()), map3, "-(grad * trunc(a / b))" }

/// grad · copysign(a, b) / a, and 0 where `a` is 0: the derivative of `copysign(a, b)` with respect to `a`, as in PyTorch.
pub(super) struct CopysignGrad;
mixed! { CopysignGrad[3]: Real, "copysign's gradient", [grad, a, b], |_op| [],
|R| if a == R::ZERO { R::ZERO } else { grad * (a.with_sign_of(b) / a) }, map3, "a == R(0) ? R(0) : grad * (copysign(a, b) / a)" }

/// The derivative of an operation that is linear in the first input, and piecewise constant in the others.
macro_rules! linear_in_grad {
    ($($name:ident)+) => {$(
        impl Derivative<3> for $name {
            const SAVES: Saves = Saves::Inputs;

            fn backward(&self, saved: &Saved<'_, 3>, h: &Tensor) -> Result<[Option<Tensor>; 3]> {
                let (a, b) = (saved.input(1), saved.input(2));
                let of_grad = || apply($name, [h, a, b]);
                Ok([saved.grad_of(0, of_grad)?, saved.grad_of(1, || a.zeros_like())?, saved.grad_of(2, || b.zeros_like())?])
            }
        }
    )+};
}
linear_in_grad! { FmodGrad CopysignGrad }

struct AddCMul(Scalar);
mixed! { AddCMul[3]: Real, "addcmul", [x, a, b], |op| [value = op.0], |R| x + value * a * b, map3_product, "x + value * a * b" }

impl Derivative<3> for AddCMul {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let of = |other: &Tensor| grad.mul(&other.times_scalar(self.0)?);
        Ok([
            saved.grad_of(0, || Ok(grad.clone()))?,
            saved.grad_of(1, || of(saved.input(2)))?,
            saved.grad_of(2, || of(saved.input(1)))?,
        ])
    }
}

struct AddCDiv(Scalar);
mixed! { AddCDiv[3]: Real, "addcdiv", [x, a, b], |op| [value = op.0], |R| x + value * a / b, map3, "x + value * a / b" }

impl Derivative<3> for AddCDiv {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let [a, b] = [1, 2].mapped(|i| saved.input(i));
        let of_b = || grad.neg()?.mul(&a.times_scalar(self.0)?.div(&b.mul(b)?)?);
        Ok([
            saved.grad_of(0, || Ok(grad.clone()))?,
            saved.grad_of(1, || grad.mul(&b.scalar_over(self.0)?))?,
            saved.grad_of(2, of_b)?,
        ])
    }
}

struct NanToNum {
    nan: Scalar,
    most: Scalar,
}
scalar! { NanToNum: Real, "nan_to_num", Inputs, Same, |op| [nan = op.nan, most = op.most],
|x| if x.is_nan() { nan } else if x > most { most } else if x < -most { -most } else { x },
"is_nan(x) ? nan : x > most ? most : x < -most ? -most : x",
|saved, grad| grad.masked_fill(&saved.input(0).abs()?.le_scalar(op.most.to_f64())?.logical_not()?, 0.0) }

struct Logit {
    low: Scalar,
    high: Scalar,
}
scalar! { Logit: Real, "logit", Inputs, Same, |op| [low = op.low, high = op.high],
|x| { let z = if x > high { high } else { x }; let z = if x < low { low } else { z }; (z / (T::ONE - z)).ln() },
"log((x < low ? low : x > high ? high : x) / (R(1) - (x < low ? low : x > high ? high : x)))",
|saved, grad| apply(LogitGrad::of(op), [grad, saved.input(0)]) }

/// The gradient divided by x · (1 − x), or `outside` beyond the bounds: the derivative of [`Logit`].
#[derive(Clone, Copy)]
struct LogitGrad {
    low: Scalar,
    high: Scalar,
    outside: Scalar,
}

impl LogitGrad {
    fn of(logit: &Logit) -> LogitGrad {
        match logit.low.to_f64().is_finite() {
            true => LogitGrad { low: logit.low, high: logit.high, outside: Scalar::Int(0) },
            false => LogitGrad { low: Scalar::Int(0), high: Scalar::Int(1), outside: Scalar::Float(f64::NAN) },
        }
    }
}

mixed! { LogitGrad[2]: Real, "logit's gradient", [grad, x], |op| [low = op.low, high = op.high, outside = op.outside],
|R| if x < low || x > high { outside } else { grad / (x * (R::ONE - x)) }, map2,
"x < low || x > high ? outside : grad / (x * (R(1) - x))" }

impl Derivative<2> for LogitGrad {
    const SAVES: Saves = Saves::Inputs;

    /// With `h` the incoming gradient: the same operation on `h` for `g`, and h · g · (2x − 1) / (x · (1 − x))² for
    /// `x`.
    fn backward(&self, saved: &Saved<'_, 2>, h: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (grad, x) = (saved.input(0), saved.input(1));
        let for_x = || {
            let once = apply(*self, [h, x])?;
            apply(*self, [&once.mul(grad)?.mul(&x.mul_scalar(2.0)?.add_scalar(-1.0)?)?, x])
        };
        Ok([saved.grad_of(0, || apply(*self, [h, x]))?, saved.grad_of(1, for_x)?])
    }
}
