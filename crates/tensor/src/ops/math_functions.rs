//! Functions of single numbers: trigonometric and hyperbolic ones, error functions, logarithms and exponentials of other bases,
//! and rounding.
//!
//! Derivatives have the form of PyTorch's, so that they round in the same places.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10};

use super::elementwise::{binary, formula, unary};
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula};
use crate::element::{Real, Scalar};
use crate::error::Result;
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, per_type};
use crate::tensor::Tensor;

// ---- angles -------------------------------------------------------------------------------------------------------

unary! {
    /// The sine of every element, which is in radians.
    sin = Sin, Inputs, Same, map1_except((|x: R| x.is_far(), |x: R| x.far_sin())): |x| x.sin(), "sin(x)",
    |saved, grad| grad.mul(&saved.input(0).cos()?)
}
unary! {
    /// The cosine of every element, which is in radians.
    cos = Cos, Inputs, Same, map1_except((|x: R| x.is_far(), |x: R| x.far_cos())): |x| x.cos(), "cos(x)",
    |saved, grad| grad.mul(&saved.input(0).sin()?.neg()?)
}
unary! {
    /// The tangent of every element, which is in radians.
    tan = Tan, Output, F32UnderAutocast, map1_except((|x: R| x.is_far(), |x: R| x.far_tan())): |x| x.tan(), "tan(x)",
    |saved, grad| grad.mul(&saved.output().pow(2.0)?.add_scalar(1.0)?)
}
unary! {
    /// The arcsine of every element, in [−π/2, π/2]; NaN outside of [−1, 1].
    asin = Asin, Inputs, F32UnderAutocast, map1_longest: |x| x.asin(), "asin(x)",
    |saved, grad| grad.mul(&one_minus_square(saved.input(0))?.rsqrt()?)
}
unary! {
    /// The arccosine of every element, in [0, π]; NaN outside of [−1, 1].
    acos = Acos, Inputs, F32UnderAutocast, map1_longest: |x| x.acos(), "acos(x)",
    |saved, grad| grad.mul(&one_minus_square(saved.input(0))?.rsqrt()?.neg()?)
}
unary! {
    /// The arctangent of every element, in [−π/2, π/2].
    atan = Atan, Inputs, Same, map1_longest: |x| x.atan(), "atan(x)",
    |saved, grad| grad.div(&saved.input(0).mul(saved.input(0))?.add_scalar(1.0)?)
}

/// 1 − x²
fn one_minus_square(x: &Tensor) -> Result<Tensor> {
    x.neg()?.mul(x)?.add_scalar(1.0)
}

// ---- hyperbolic functions -----------------------------------------------------------------------------------------

unary! {
    /// The hyperbolic sine of every element: (eˣ − e⁻ˣ) / 2.
    sinh = Sinh, Inputs, F32UnderAutocast, map1_longest: |x| x.sinh(), "sinh(x)",
    |saved, grad| grad.mul(&saved.input(0).cosh()?)
}
unary! {
    /// The hyperbolic cosine of every element: (eˣ + e⁻ˣ) / 2.
    cosh = Cosh, Inputs, F32UnderAutocast, map1_longest: |x| x.cosh(), "cosh(x)",
    |saved, grad| grad.mul(&saved.input(0).sinh()?)
}
unary! {
    /// The inverse hyperbolic sine of every element.
    asinh = Asinh, Inputs, Same, map1_longest: |x| x.asinh(), "asinh(x)",
    |saved, grad| grad.mul(&saved.input(0).pow(2.0)?.add_scalar(1.0)?.rsqrt()?)
}
unary! {
    /// The inverse hyperbolic cosine of every element; NaN below 1.
    acosh = Acosh, Inputs, Same, map1_longest: |x| x.acosh(), "acosh(x)",
    |saved, grad| grad.mul(&saved.input(0).pow(2.0)?.add_scalar(-1.0)?.rsqrt()?)
}
unary! {
    /// The inverse hyperbolic tangent of every element; NaN outside of [−1, 1].
    atanh = Atanh, Inputs, Same, map1_longest: |x| x.atanh(), "atanh(x)",
    |saved, grad| grad.mul(&saved.input(0).pow(2.0)?.scalar_minus(1.0.into())?.scalar_over(1.0.into())?)
}

// ---- exponentials, logarithms and error functions -----------------------------------------------------------------

unary! {
    /// ln(1 + x) of every element, precise near 0: −∞ at −1, NaN below.
    log1p = Log1p, Inputs, F32UnderAutocast, map1_longest: |x| x.ln_1p(), "log1p(x)",
    |saved, grad| grad.div(&saved.input(0).add_scalar(1.0)?)
}
unary! {
    /// eˣ − 1 of every element, precise near 0.
    expm1 = Expm1, Output, F32UnderAutocast, map1_longest: |x| x.exp_m1(), "expm1(x)",
    |saved, grad| grad.mul(&saved.output().add_scalar(1.0)?)
}
unary! {
    /// The logarithm to base 2 of every element: −∞ at 0, NaN below.
    log2 = Log2, Inputs, F32UnderAutocast, map1_longest: |x| x.log2(), "log2(x)",
    |saved, grad| grad.div(&saved.input(0).mul_scalar(LN_2)?)
}
unary! {
    /// The logarithm to base 10 of every element: −∞ at 0, NaN below.
    log10 = Log10, Inputs, F32UnderAutocast, map1_longest: |x| x.log10(), "log10(x)",
    |saved, grad| grad.div(&saved.input(0).mul_scalar(LN_10)?)
}
unary! {
    /// 2ˣ of every element.
    exp2 = Exp2, Output, Same, map1_long: |x| x.exp2(), "exp2(x)",
    |saved, grad| grad.mul(saved.output())?.mul_scalar(LN_2)
}
unary! {
    /// The error function of every element: 2/√π · ∫ e^(−t²) dt from 0 to x.
    erf = Erf, Inputs, Same, map1_long: |x| x.erf(), "erf(x)",
    |saved, grad| saved.input(0).pow(2.0)?.neg()?.exp()?.mul_scalar(FRAC_2_SQRT_PI)?.mul(grad)
}
unary! {
    /// 1 − erf(x) of every element, precise where that is small.
    erfc = Erfc, Inputs, Same, map1_longest: |x| x.erfc(), "erfc(x)",
    |saved, grad| saved.input(0).pow(2.0)?.neg()?.exp()?.mul_scalar(-FRAC_2_SQRT_PI)?.mul(grad)
}
unary! {
    /// 1 / √x of every element: ∞ at 0, NaN below.
    rsqrt = Rsqrt, Inputs, F32UnderAutocast, map1: |x| R::ONE / x.sqrt(), "R(1) / sqrt(x)",
    |saved, grad| apply(RsqrtGrad, [grad, saved.input(0)])
}
// −g / 2 · x^(−3/2), in one operation, because the cube of a rounded root is far off in half types.
binary! { RsqrtGrad: Real, "rsqrt's gradient", Inputs,
|grad, x| { let y = T::ONE / x.sqrt(); grad * T::from_f64(-0.5) * (y * y * y) },
"grad * R(-0.5) * (R(1) / sqrt(x) * (R(1) / sqrt(x)) * (R(1) / sqrt(x)))", |saved, h| [
    apply(RsqrtGrad, [h, saved.input(1)]),
    h.mul(saved.input(0))?.mul(&saved.input(1).pow(-2.5)?.mul_scalar(0.75)?),
] }

per_type! { RsqrtGrad[2]: Real }

// ---- rounding -----------------------------------------------------------------------------------------------------

unary! {
    /// Every element rounded down to an integer. The derivative is 0.
    floor = Floor, Nothing, Same, map1: |x| x.floor(), "floor(x)", |_saved, grad| grad.zeros_like()
}
unary! {
    /// Every element rounded up to an integer. The derivative is 0.
    ceil = Ceil, Nothing, Same, map1: |x| x.ceil(), "ceil(x)", |_saved, grad| grad.zeros_like()
}
unary! {
    /// Every element rounded toward zero to an integer. The derivative is 0.
    trunc = Trunc, Nothing, Same, map1: |x| x.trunc(), "trunc(x)", |_saved, grad| grad.zeros_like()
}
unary! {
    /// Every element rounded to the nearest integer, halves to the even one. The derivative is 0.
    round = Round, Nothing, Same, map1: |x| x.round(), "rint(x)", |_saved, grad| grad.zeros_like()
}
unary! {
    /// The fractional part of every element, with its sign. The derivative is 1.
    frac = Frac, Nothing, Same, map1: |x| x - x.trunc(), "x - trunc(x)", |_saved, grad| Ok::<_, crate::Error>(grad.clone())
}

impl Tensor {
    /// 1 / x of every element.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn reciprocal(&self) -> Result<Tensor> {
        self.scalar_over(Scalar::Float(1.0))
    }
}
