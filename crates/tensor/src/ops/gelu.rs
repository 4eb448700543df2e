//! GELU (Hendrycks and Gimpel 2016, <https://arxiv.org/abs/1606.08415>): x·Φ(x), where Φ is the distribution function
//! of the normal distribution, and its approximation with tanh.
//!
//! The approximation: y = x · (1 + t) / 2 with t = tanh(u) and u = √(2/π) · (x + 0.044715 · x³).

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::elementwise::{binary, formula, scalar, unary};
use super::fused::mixed;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula};
use crate::element::Real;
use crate::error::Result;
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, per_type};
use crate::tensor::Tensor;

/// √(2/π)
const FACTOR: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
const CUBIC: f64 = 0.044715;

/// 1 / √(2π)
const DENSITY: f64 = 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

unary! {
    /// GELU of every element, PyTorch's `gelu(x)`: x · (1 + erf(x / √2)) / 2, also precise where the result is small.
    gelu = ExactGelu, Inputs, Same, map1_long: |x| x * x.normal_and_bell().0, "[&] { R bell; return x * normal(x, bell); }()",
    |saved, grad| apply(ExactGeluGrad, [grad, saved.input(0)])
}
// g · (Φ(x) + x·φ(x)) with φ(x) = e^(−x²/2) / √(2π); the derivative of that is g · φ(x) · (2 − x²).
binary! { ExactGeluGrad: Real, "gelu's gradient", Inputs, map2_longest: |grad, x| {
    let (share, bell) = x.normal_and_bell();
    grad * (share + x * (bell * T::from_f64(DENSITY)))
},
"[&] { R bell, share = normal(x, bell); return grad * (share + x * bell * R(0.3989422804014326779)); }()", |saved, h| [
    apply(ExactGeluGrad, [h, saved.input(1)]),
    {
        let squares = saved.input(1).pow(2.0)?;
        let density = squares.mul_scalar(-0.5)?.exp()?.mul_scalar(DENSITY)?;
        h.mul(saved.input(0))?.mul(&density.mul(&squares.scalar_minus(2.0.into())?)?)
    },
] }

per_type! { ExactGeluGrad[2]: Real }

impl Tensor {
    /// GELU of every element, PyTorch's `gelu(x, approximate="tanh")`: x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))) / 2.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let y = Tensor::new([-1.0, 0.0, 1.0])?.gelu_tanh()?;
    /// assert!((y.select(0, 2)?.item::<f32>()? - 0.841192).abs() < 1e-6);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn gelu_tanh(&self) -> Result<Tensor> {
        apply(Gelu, [self])
    }
}

struct Gelu;
scalar! { Gelu: Real, "gelu", Inputs, Same, |_op| [],
|x| x * share(x), by map1_long,
"x * R(0.5) * (R(1) + rough_tanh(R(0.7978845608028654) * (x + R(0.044715) * (x * x * x))))",
|saved, grad| apply(GeluGrad, [grad, saved.input(0)]) }

/// The derivative: g · ((1 + t) / 2 + x / 2 · (1 − t²) · u̇) with u̇ = √(2/π) · (1 + 3 · 0.044715 · x²).
struct GeluGrad;

mixed! { GeluGrad[2]: Real, "gelu's gradient", [grad, x], |_| [],
|R| {
    let s = share(x);
    let slope = R::from_f64(2.0 * FACTOR) + R::from_f64(6.0 * FACTOR * CUBIC) * (x * x);
    grad * (s + x * (s * (R::ONE - s)) * slope)
}, map2_long, "[&] { R t = rough_tanh(R(0.7978845608028654) * (x + R(0.044715) * (x * x * x))); \
return grad * (R(0.5) * (R(1) + t) + R(0.5) * x * (R(1) - t * t) * (R(0.7978845608028654) * (R(1) + R(3) * R(0.044715) * (x * x)))); }()" }

impl Derivative<2> for GeluGrad {
    const SAVES: Saves = Saves::Inputs;

    /// With `h` the incoming gradient: the same operation on `h` for `g`, and h · g · (1 − t²) · (u̇ + x / 2 · (ü −
    /// 2t · u̇²)) for `x`, with ü = 6 · √(2/π) · 0.044715 · x.
    fn backward(&self, saved: &Saved<'_, 2>, h: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (grad, x) = (saved.input(0), saved.input(1));
        let for_x = || {
            let squares = x.mul(x)?;
            let t = squares.mul(x)?.mul_scalar(CUBIC)?.add(x)?.mul_scalar(FACTOR)?.tanh()?;
            let slope = squares.mul_scalar(3.0 * CUBIC)?.add_scalar(1.0)?.mul_scalar(FACTOR)?;
            let bend = x.mul_scalar(6.0 * FACTOR * CUBIC)?.sub(&t.mul(&slope)?.mul(&slope)?.mul_scalar(2.0)?)?;
            let both = slope.add(&x.mul_scalar(0.5)?.mul(&bend)?)?;
            let rest = t.mul(&t)?.neg()?.add_scalar(1.0)?;
            h.mul(grad)?.mul(&rest)?.mul(&both)
        };
        Ok([saved.grad_of(0, || apply(GeluGrad, [h, x]))?, saved.grad_of(1, for_x)?])
    }
}

/// (1 + t) / 2, which is the sigmoid of 2u.
#[inline(always)]
fn share<R: Real>(x: R) -> R {
    (x * (R::from_f64(2.0 * FACTOR) + R::from_f64(2.0 * FACTOR * CUBIC) * (x * x))).sigmoid()
}
