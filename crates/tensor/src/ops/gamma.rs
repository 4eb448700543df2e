//! The gamma function's logarithm and its derivatives, and the inverse of the error function.
//!
//! All are computed in `f64`, number by number, as PyTorch has them: Cephes' expansions (Moshier 1989), and two steps of Newton's
//! method for the inverse.

use std::f64::consts::{FRAC_2_SQRT_PI, PI};

use super::elementwise::{formula, scalar, unary};
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{Real, Scalar};
use crate::error::Result;
use crate::op::{CpuKernel, Derivative, Op, Precision, Saves, apply, per_type};
use crate::tensor::Tensor;

unary! {
    /// ln |Γ(x)| of every element: ∞ at 0 and at negative whole numbers.
    lgamma = Lgamma, Inputs, F32UnderAutocast, map1: |x| in_f64(x, libm::lgamma), "lgamma(x)",
    |saved, grad| grad.mul(&saved.input(0).digamma()?)
}
unary! {
    /// The number whose error function every element is: ±∞ at ±1, NaN beyond.
    erfinv = Erfinv, Output, F32UnderAutocast, map1: |x| in_f64(x, erf_inverse), "erfinv(x)",
    |saved, grad| grad.mul(&saved.output().square()?.exp()?.mul_scalar(1.0 / FRAC_2_SQRT_PI)?)
}

impl Tensor {
    /// The derivative of [`lgamma`](Tensor::lgamma): NaN at negative whole numbers, −∞ at 0 and ∞ at −0.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn digamma(&self) -> Result<Tensor> {
        self.polygamma(0)
    }

    /// The derivative number `n` of [`digamma`](Tensor::digamma): 0 is `digamma` itself.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let slope = Tensor::new([1.0])?.polygamma(1)?.item::<f32>()?;
    /// assert!((slope - 1.644934).abs() < 1e-6); // π² / 6
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::digamma`].
    pub fn polygamma(&self, n: u32) -> Result<Tensor> {
        apply(Polygamma(n), [self])
    }
}

struct Polygamma(u32);
// The formula in CUDA is that of the functions below.
scalar! { Polygamma: Real, "polygamma", Inputs, F32UnderAutocast, |op| [order = Scalar::Int(op.0.into())],
|x| in_f64(x, { let n = order.to_scalar().to_f64(); move |x| polygamma(n, x) }),
"R([](f64 x, int n) -> f64 { \
if (n == 0) { \
if (x == 0) return copysign(f64(INFINITY), -x); \
f64 y = 0; \
if (x < 0) { if (x == trunc(x)) return f64(INFINITY) - f64(INFINITY); y = -3.141592653589793 / tan(3.141592653589793 * (x - trunc(x))); x = 1 - x; } \
while (x < 10) { y -= 1 / x; x += 1; } \
if (x == 10) return y + 2.25175258906672110764; \
f64 z = 1 / (x * x); \
f64 tail = x < 1e17 ? z * ((((((8.33333333333333333333e-2 * z - 2.10927960927960927961e-2) * z + 7.57575757575757575758e-3) * z - 4.16666666666666666667e-3) * z + 3.96825396825396825397e-3) * z - 8.33333333333333333333e-3) * z + 8.33333333333333333333e-2) : 0; \
return y + log(x) - 0.5 / x - tail; } \
if (n == 1) { \
f64 sign = 1, y = 0; \
if (x < 0.5) { f64 s = sin(3.141592653589793 * x); sign = -1; y = -9.869604401089358 / (s * s); x = 1 - x; } \
for (int i = 0; i < 6; i++) { y += 1 / (x * x); x += 1; } \
f64 z = 1 / (x * x); \
return sign * (y + (1 + 1 / (2 * x) + z * (1. / 6 - z * (1. / 30 - z * (1. / 42)))) / x); } \
const f64 of[] = {12., -720., 30240., -1209600., 47900160., -1.8924375803183791606e9, 7.47242496e10, -2.950130727918164224e12, 1.1646782814350067249e14, -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18}; \
f64 s = n + 1, factor = (n % 2 ? 1 : -1) * tgamma(s); \
if (x <= 0) return x == floor(x) ? factor * f64(INFINITY) : f64(INFINITY) - f64(INFINITY); \
f64 sum = pow(x, -s), a = x, b = 0; \
for (int i = 0; i < 9 || a <= 9; i++) { a += 1; b = pow(a, -s); sum += b; if (b < 1.11022302462515654042e-16 * sum) return factor * sum; } \
f64 w = a; sum += b * w / (s - 1) - 0.5 * b; a = 1; f64 k = 0; \
for (int i = 0; i < 12; i++) { a *= s + k; b /= w; f64 t = a * b / of[i]; sum += t; if (fabs(t / sum) < 1.11022302462515654042e-16) break; k += 1; a *= s + k; b /= w; k += 1; } \
return factor * sum; \
}(f64(x), int(order)))",
|saved, grad| grad.mul(&saved.input(0).polygamma(op.0.saturating_add(1))?) }

fn in_f64<R: Real>(x: R, f: impl Fn(f64) -> f64) -> R {
    R::from_f64(f(x.to_scalar().to_f64()))
}

fn polygamma(n: f64, x: f64) -> f64 {
    match n {
        0.0 => digamma(x),
        1.0 => trigamma(x),
        _ => (if n % 2.0 == 1.0 { 1.0 } else { -1.0 }) * libm::tgamma(n + 1.0) * zeta(n + 1.0, x),
    }
}

fn digamma(mut x: f64) -> f64 {
    const TAIL: [f64; 7] = [
        8.333_333_333_333_333e-2,
        -2.109_279_609_279_609_3e-2,
        7.575_757_575_757_576e-3,
        -4.166_666_666_666_667e-3,
        3.968_253_968_253_968e-3,
        -8.333_333_333_333_333e-3,
        8.333_333_333_333_333e-2,
    ];
    const AT_10: f64 = 2.251_752_589_066_721;
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    let mut y = 0.0;
    if x < 0.0 {
        if x == x.trunc() {
            return f64::NAN;
        }
        y = -PI / libm::tan(PI * (x - x.trunc()));
        x = 1.0 - x;
    }
    while x < 10.0 {
        y -= 1.0 / x;
        x += 1.0;
    }
    if x == 10.0 {
        return y + AT_10;
    }
    let z = 1.0 / (x * x);
    let tail = if x < 1e17 { z * TAIL.iter().fold(0.0, |sum, factor| sum * z + factor) } else { 0.0 };
    y + libm::log(x) - 0.5 / x - tail
}

fn trigamma(mut x: f64) -> f64 {
    let (mut sign, mut y) = (1.0, 0.0);
    if x < 0.5 {
        let sine = libm::sin(PI * x);
        (sign, y, x) = (-1.0, -PI * PI / (sine * sine), 1.0 - x);
    }
    for _ in 0..6 {
        y += 1.0 / (x * x);
        x += 1.0;
    }
    let z = 1.0 / (x * x);
    sign * (y + (1.0 + 1.0 / (2.0 * x) + z * (1.0 / 6.0 - z * (1.0 / 30.0 - z * (1.0 / 42.0)))) / x)
}

/// Hurwitz's zeta function, Σ (x + k)^(−s) over k from 0 on, for s above 1: some terms, then Euler and Maclaurin's formula.
fn zeta(s: f64, x: f64) -> f64 {
    /// (2k)! over Bernoulli's numbers.
    const FACTORS: [f64; 12] = [
        12.0,
        -720.0,
        30240.0,
        -1209600.0,
        47900160.0,
        -1.892_437_580_318_379e9,
        7.47242496e10,
        -2.950_130_727_918_164e12,
        1.164_678_281_435_006_7e14,
        -4.597_978_722_407_473e15,
        1.815_210_540_194_354_7e17,
        -7.166_165_256_175_667e18,
    ];
    const LEAST: f64 = f64::EPSILON / 2.0;
    if x <= 0.0 {
        return if x == x.floor() { f64::INFINITY } else { f64::NAN };
    }
    let (mut sum, mut at, mut term, mut terms) = (libm::pow(x, -s), x, 0.0, 0);
    while terms < 9 || at <= 9.0 {
        (at, terms) = (at + 1.0, terms + 1);
        term = libm::pow(at, -s);
        sum += term;
        if term < LEAST * sum {
            return sum;
        }
    }
    sum += term * at / (s - 1.0) - 0.5 * term;
    let (mut factor, mut k) = (1.0, 0.0);
    for of in FACTORS {
        factor *= s + k;
        term /= at;
        let next = factor * term / of;
        sum += next;
        if (next / sum).abs() < LEAST {
            break;
        }
        factor *= s + k + 1.0;
        term /= at;
        k += 2.0;
    }
    sum
}

fn erf_inverse(y: f64) -> f64 {
    if y.is_nan() || y.abs() >= 1.0 {
        return if y.abs() == 1.0 { f64::INFINITY.copysign(y) } else { f64::NAN };
    }
    let polynomial = |z: f64, factors: [f64; 4]| factors.iter().rev().fold(0.0, |sum, factor| sum * z + factor);
    let mut x = if y.abs() <= 0.7 {
        let z = y * y;
        let below = 1.0 + z * polynomial(z, [-2.118377725, 1.442710462, -0.329097515, 0.012229801]);
        y * polynomial(z, [0.886226899, -1.645349621, 0.914624893, -0.140543331]) / below
    } else {
        let z = (-libm::log((1.0 - y.abs()) / 2.0)).sqrt();
        let below = 1.0 + z * (3.543889200 + z * 1.637067800);
        polynomial(z, [-1.970840454, -1.62490649, 3.429567803, 1.641345311]).copysign(y) / below
    };
    for _ in 0..2 {
        x -= (libm::erf(x) - y) / (FRAC_2_SQRT_PI * libm::exp(-x * x));
    }
    x
}
