//! `logaddexp`, `logaddexp2`, `hypot`, `xlogy`, `sinc`, `heaviside`, `isclose`, `square`, and the core of `multinomial`.

use std::f64::consts::{LN_2, LOG2_E, PI};

use super::elementwise::{binary, formula, unary};
use crate::autocast::no_autocast;
use crate::autograd::Saved;
use crate::cpu::math::half::Half;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula};
use crate::element::Real;
use crate::error::Result;
use crate::inlined::Array;
use crate::kind::{Bool, Numeric};
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, per_type, widest};
use crate::tensor::{Raw, Tensor};

// ln(eᵃ + eᵇ), without overflow. The derivatives are the shares of eᵃ and eᵇ in the sum.
binary! { LogAddExp: Real, "logaddexp", Inputs, map2_longest: |a, b| {
    let (more, less) = if a > b || a.is_nan() { (a, b) } else { (b, a) };
    if a == b { a + (T::ONE + T::ONE).ln() } else { more + (less - more).log1p_exp() }
}, "a == b ? a + log(R(2)) : (a > b || is_nan(a) ? a : b) + log1p(exp((a > b || is_nan(a) ? b : a) - (a > b || is_nan(a) ? a : b)))",
|saved, grad| [
    grad.mul(&saved.input(0).sub(saved.input(1))?.sigmoid()?),
    grad.mul(&saved.input(1).sub(saved.input(0))?.sigmoid()?),
] }
// log₂(2ᵃ + 2ᵇ), in the same way.
binary! { LogAddExp2: Real, "logaddexp2", Inputs, map2_longest: |a, b| {
    let (more, less) = if a > b || a.is_nan() { (a, b) } else { (b, a) };
    let rest = ((less - more) * T::from_f64(LN_2)).log1p_exp() * T::from_f64(LOG2_E);
    if a == b { a + T::ONE } else { more + rest }
}, "a == b ? a + R(1) : (a > b || is_nan(a) ? a : b) \
    + log1p(exp2((a > b || is_nan(a) ? b : a) - (a > b || is_nan(a) ? a : b))) * R(1.4426950408889634)",
|saved, grad| [
    grad.mul(&share_of_powers([saved.input(0), saved.input(1)])?),
    grad.mul(&share_of_powers([saved.input(1), saved.input(0)])?),
] }
/// 2ᵃ / (2ᵃ + 2ᵇ), rounded once.
fn share_of_powers(pair: [&Tensor; 2]) -> Result<Tensor> {
    in_computing_type("logaddexp2", pair, |[a, b]| a.sub(&b)?.mul_scalar(LN_2)?.sigmoid())
}

// √(a² + b²), without overflow.
binary! { Hypot: Real, "hypot", Inputs, map2_longest: |a, b| {
    let (a, b) = (a.magnitude(), b.magnitude());
    let (more, less) = if a > b { (a, b) } else { (b, a) };
    let ratio = less / more;
    let length = more * (T::ONE + ratio * ratio).sqrt();
    if a == T::HIGHEST || b == T::HIGHEST { T::HIGHEST } else if more == T::ZERO { less } else { length }
}, // CUDA's `hypot` overflows where the larger one is the largest number.
"isinf(a) || isinf(b) ? R(INFINITY) : fabs(a) > fabs(b) ? fabs(a) * sqrt(R(1) + (b / a) * (b / a))
    : b == R(0) ? fabs(a) : fabs(b) * sqrt(R(1) + (a / b) * (a / b))", |saved, grad| [
    apply(HypotGrad, [grad, saved.input(0), saved.input(1)]),
    apply(HypotGrad, [grad, saved.input(1), saved.input(0)]),
] }

// x · ln(y), and 0 where x is 0 and y is not NaN. The derivatives are those of x · ln(y) where y is positive.
binary! { XLogY: Real, "xlogy", Inputs, map2_long: |x, y| {
    let product = x * y.ln();
    if x == T::ZERO && !y.is_nan() { T::ZERO } else { product }
}, "x == R(0) && !is_nan(y) ? R(0) : x * log(y)", |saved, grad| [
    in_computing_type("xlogy", [grad, saved.input(0), saved.input(1)], |[grad, x, y]| {
        grad.mul(&masked_y(&x, &y)?.log()?)
    }),
    in_computing_type("xlogy", [grad, saved.input(0), saved.input(1)], |[grad, x, y]| {
        grad.mul(&x.div(&masked_y(&x, &y)?)?)
    }),
] }

/// `y`, but 1 where `x` is 0 and `y` is infinite or not positive: there `xlogy(x, y)` is 0.
fn masked_y(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let outside = y.le_scalar(0.0)?.logical_or(&y.eq_scalar(f64::INFINITY)?)?;
    y.masked_fill(&x.eq_scalar(0.0)?.logical_and(&outside)?, 1.0)
}

unary! {
    /// sin(πx) / (πx) of every element, and 1 at 0.
    sinc = Sinc, Inputs, Same, map1_except((|x: R| (x * R::from_f64(PI)).is_far(), |x: R| {
        let angle = x * R::from_f64(PI);
        angle.far_sin() / angle
    })): |x| {
        let angle = x * R::from_f64(PI);
        if x == R::ZERO { R::ONE } else { angle.sin() / angle }
    }, "x == R(0) ? R(1) : sin(x * R(3.14159265358979323846)) / (x * R(3.14159265358979323846))", |saved, grad|
    in_computing_type("sinc", [grad, saved.input(0)], |[grad, x]| {
        let is_zero = x.eq_scalar(0.0)?;
        let x = x.masked_fill(&is_zero, 1.0)?;
        let slope = x.mul_scalar(PI)?.cos()?.sub(&x.sinc()?)?.div(&x)?;
        grad.mul(&slope.masked_fill(&is_zero, 0.0)?)
    })
}

/// grad · a / √(a² + b²), the derivative of [`Hypot`] by its first operand.
struct HypotGrad;

per_type! { HypotGrad[3]: Real }

impl Op<3> for HypotGrad {
    const NAME: &'static str = "hypot's gradient";
    const INPUTS: Inputs = Inputs::Broadcast;
    const PRECISION: Precision = Precision::Widest;

    formula! { 3, "hypot's gradient", [grad, a, b], |_| [], "grad * (a / (fabs(a) > fabs(b) \
    ? fabs(a) * sqrt(R(1) + (b / a) * (b / a)) : fabs(b) * sqrt(R(1) + (a / b) * (a / b))))" }
}

impl<R: Real> CpuKernel<R, 3> for HypotGrad {
    type Out = R;

    fn cpu(&self, [grad, a, b]: [CpuView<'_, R>; 3], out: StoredMut<'_, R>) -> Result<()> {
        if matches!(out, StoredMut::Halves(_, Half::F16)) {
            // No square of an `f16` is too large or too small for `f32`: 2.7 times as fast.
            cpu::map3(grad, a, b, out, inlined!(|grad: R, a: R, b: R| grad * (a / (a * a + b * b).sqrt())));
            return Ok(());
        }
        cpu::map3(
            grad,
            a,
            b,
            out,
            inlined!(|grad: R, a: R, b: R| {
                let (of_a, of_b) = (a.magnitude(), b.magnitude());
                let (more, less) = if of_a > of_b { (of_a, of_b) } else { (of_b, of_a) };
                let ratio = less / more;
                grad * (a / (more * (R::ONE + ratio * ratio).sqrt()))
            }),
        );
        Ok(())
    }
}

impl Derivative<3> for HypotGrad {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, h: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let [grad, a, b] = [0, 1, 2].mapped(|i| saved.input(i));
        let length = a.hypot(b)?;
        // The derivatives of a / √(a² + b²) are b² and −a·b, over (a² + b²)^1.5.
        let slope = |side: &Tensor| h.mul(grad)?.mul(&side.div(&length)?)?.mul(&b.div(&length)?)?.div(&length);
        Ok([
            saved.grad_of(0, || apply(HypotGrad, [h, a, b]))?,
            saved.grad_of(1, || slope(b))?,
            saved.grad_of(2, || slope(a)?.neg())?,
        ])
    }
}

// 0 below 0, 1 above 0. Its inputs are detached.
binary! { Heaviside: Real, "heaviside", Nothing, |x, at_zero| if x == T::ZERO {
    at_zero
} else if x > T::ZERO {
    T::ONE
} else {
    T::ZERO
}, "x == R(0) ? at_zero : x > R(0) ? R(1) : R(0)", |saved, grad| [grad.zeros_like(), grad.zeros_like()] }

// weight / e, where e = −ln(1 − drawn) is exponentially distributed. Its inputs are detached.
binary! { ExponentialRace: Real, "multinomial", Nothing, map2_longest: |weight, drawn| weight / -(-drawn).ln_1p(), "weight / -log1p(-drawn)",
|saved, grad| [grad.zeros_like(), grad.zeros_like()] }

per_type! { ExponentialRace[2]: Real }
per_type! { Heaviside[2]: Real }
per_type! { LogAddExp[2]: Real }
per_type! { LogAddExp2[2]: Real }
per_type! { Hypot[2]: Real }
per_type! { XLogY[2]: Real }

impl Tensor {
    /// Divides each weight by an exponential random number, made from the uniform number `drawn`. Each element is the
    /// largest of its row with a probability proportional to its weight (the "exponential race").
    pub(crate) fn exponential_race(&self, drawn: &Tensor) -> Result<Tensor> {
        apply(ExponentialRace, [self, drawn])
    }

    /// ln(eˣ + eʸ), elementwise, broadcasting, without overflow.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the shapes do not fit.
    pub fn logaddexp(&self, other: &Tensor) -> Result<Tensor> {
        apply(LogAddExp, [self, other])
    }

    /// log₂(2ˣ + 2ʸ), elementwise, broadcasting, without overflow.
    ///
    /// # Errors
    /// As [`Tensor::logaddexp`].
    pub fn logaddexp2(&self, other: &Tensor) -> Result<Tensor> {
        apply(LogAddExp2, [self, other])
    }

    /// √(x² + y²), elementwise, broadcasting, without overflow.
    ///
    /// # Errors
    /// As [`Tensor::logaddexp`].
    pub fn hypot(&self, other: &Tensor) -> Result<Tensor> {
        apply(Hypot, [self, other])
    }

    /// `self · ln(other)`, elementwise, broadcasting, and 0 where `self` is 0 and `other` is not NaN.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([0.0, 2.0])?.xlogy(&Tensor::new([0.0, 1.0])?)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::logaddexp`].
    pub fn xlogy(&self, other: &Tensor) -> Result<Tensor> {
        apply(XLogY, [self, other])
    }

    /// 0 below 0, 1 above 0, and the element of `values` at 0, elementwise, broadcasting. It has no gradient.
    ///
    /// # Errors
    /// As [`Tensor::logaddexp`].
    pub fn heaviside(&self, values: &Tensor) -> Result<Tensor> {
        apply(Heaviside, [&self.detach(), &values.detach()])
    }

    /// Where two elements differ by at most `atol + rtol · |other|`, or are equal, broadcasting. PyTorch's defaults
    /// are `rtol` 1e-5 and `atol` 1e-8. `equal_nan` says whether two NaN are close.
    ///
    /// # Errors
    /// As [`Tensor::logaddexp`].
    pub fn isclose(&self, other: &Tensor, rtol: f64, atol: f64, equal_nan: bool) -> Result<Tensor<Bool>> {
        let [x, other] = [self.detach(), other.detach()];
        let allowed = other.abs()?.mul_scalar(rtol)?.add_scalar(atol)?;
        let is_near = x.sub(&other)?.abs()?.le(&allowed)?.logical_and(&allowed.isfinite()?)?;
        let is_close = is_near.logical_or(&x.eq(&other)?)?;
        if equal_nan { is_close.logical_or(&x.isnan()?.logical_and(&other.isnan()?)?) } else { Ok(is_close) }
    }
}

/// Calls `f` with the tensors in the widest of their precisions; for half types in `f32`, with the result rounded at
/// the end.
fn in_computing_type<const N: usize>(
    op: &'static str,
    tensors: [&Tensor; N],
    f: impl FnOnce([Tensor; N]) -> Result<Tensor>,
) -> Result<Tensor> {
    let dtype = widest(op, &tensors.mapped(Tensor::raw))?;
    let mut wide = tensors.mapped(Tensor::clone);
    wide.iter_mut().try_for_each(|x| x.to_dtype(dtype.computing()).map(|converted| *x = converted))?;
    no_autocast(|| f(wide))?.to_dtype(dtype)
}

impl<K: Numeric> Tensor<K> {
    /// Every element times itself.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn square(&self) -> Result<Tensor<K>> {
        self.raw().mul(self.raw()).map(Raw::typed)
    }
}
