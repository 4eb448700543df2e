//! The gamma function's logarithm and its derivatives, and the inverse of the error function.
//!
//! The gamma functions are computed in `f64`, by the expansions of Cephes (Moshier 1989), which PyTorch uses, too:
//! without branches for positive numbers, and one number at a time for others.

use std::f64::consts::{FRAC_2_SQRT_PI, PI};

use super::elementwise::{formula, unary};
use crate::autograd::Saved;
use crate::cpu::math::{Functions, polynomial};
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{Real, Scalar};
use crate::error::Result;
use crate::op::{CpuKernel, Derivative, Op, Precision, Saves, apply, per_type};
use crate::tensor::Tensor;

unary! {
    /// ln |Γ(x)| of every element: ∞ at 0 and at negative integers.
    lgamma = Lgamma, Inputs, F32UnderAutocast, map1_except((|x: R| is_outside(x, 0.0), |x: R| R::from_f64(libm::lgamma(wide(x))))): |x| R::from_f64(lgamma(wide(x))), "lgamma(x)",
    |saved, grad| grad.mul(&saved.input(0).digamma()?)
}
unary! {
    /// The inverse error function of every element: ±∞ at ±1, NaN beyond.
    erfinv = Erfinv, Output, F32UnderAutocast, map1_longest: |x| x.erfinv(), "erfinv(x)",
    |saved, grad| grad.mul(&saved.output().square()?.exp()?.mul_scalar(1.0 / FRAC_2_SQRT_PI)?)
}

impl Tensor {
    /// The derivative of [`lgamma`](Tensor::lgamma): NaN at negative integers, −∞ at 0 and ∞ at −0.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn digamma(&self) -> Result<Tensor> {
        self.polygamma(0)
    }

    /// The `n`th derivative of [`digamma`](Tensor::digamma); for 0, `digamma` itself.
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

per_type! { Polygamma[1]: Real }

impl<R: Real> CpuKernel<R, 1> for Polygamma {
    type Out = R;

    fn cpu(&self, [x]: [CpuView<'_, R>; 1], out: StoredMut<'_, R>) -> Result<()> {
        match self.0 {
            0 => cpu::map1_except(
                x,
                out,
                inlined!(|x: R| R::from_f64(digamma(wide(x)))),
                (|x: R| is_outside(x, 0.0), |x: R| R::from_f64(digamma_below(wide(x)))),
            ),
            1 => cpu::map1_except(
                x,
                out,
                inlined!(|x: R| R::from_f64(trigamma(wide(x)))),
                (|x: R| is_outside(x, 0.5), |x: R| R::from_f64(trigamma_below(wide(x)))),
            ),
            n => {
                let factor = (if n % 2 == 1 { 1.0 } else { -1.0 }) * libm::tgamma(f64::from(n) + 1.0);
                cpu::map1(x, out, move |x: R| R::from_f64(factor * zeta(n.saturating_add(1), wide(x))));
            }
        }
        Ok(())
    }
}

impl Op<1> for Polygamma {
    const NAME: &'static str = "polygamma";
    const PRECISION: Precision = Precision::F32UnderAutocast;

    // The same functions as below, in CUDA.
    formula! { 1, "polygamma", [x], |op| [order = Scalar::Int(op.0.into())],
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
    auto zeta = [=](f64 x) -> f64 { \
    f64 sum = pow(x, -s), a = x, b = 0; \
    for (int i = 0; i < 9 || a <= 9; i++) { a += 1; b = pow(a, -s); sum += b; if (b < 1.11022302462515654042e-16 * sum) return sum; } \
    f64 w = a; sum += b * w / (s - 1) - 0.5 * b; a = 1; f64 k = 0; \
    for (int i = 0; i < 12; i++) { a *= s + k; b /= w; f64 t = a * b / of[i]; sum += t; if (fabs(t / sum) < 1.11022302462515654042e-16) break; k += 1; a *= s + k; b /= w; k += 1; } \
    return sum; }; \
    if (!(x <= 0)) return factor * zeta(x); \
    if (x == floor(x)) return factor * f64(INFINITY); \
    f64 f = ceil(x) - x; \
    return factor * ((n % 2 ? 1 : -1) * (zeta(f) - zeta(1 - x)) + zeta(1 - f)); \
    }(f64(x), int(order)))" }
}

impl Derivative<1> for Polygamma {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(grad.mul(&saved.input(0).polygamma(self.0.saturating_add(1))?)?)])
    }
}

#[inline(always)]
fn wide<R: Real>(x: R) -> f64 {
    x.to_scalar().to_f64()
}

/// Whether a number is not between `least` and 10³⁰⁰, and so needs branches.
#[inline(always)]
fn is_outside<R: Real>(x: R, least: f64) -> bool {
    let x = wide(x);
    !(x > least && x < 1e300)
}

/// ln Γ(x) for x > 0. From 13 on it is Stirling's series. Below, Γ(x + 1) = x·Γ(x) reduces x to u in [1.5, 2.5),
/// where a minimax polynomial of u − 2 has a relative error below 2⁻⁵³. So values near the zeros at 1 and 2 are
/// precise.
#[inline(always)]
fn lgamma(x: f64) -> f64 {
    const HALF_LN_TAU: f64 = 0.918_938_533_204_672_8;
    let is_large = x >= 13.0;
    // Steps down to below 2.5, or up to 1.5. No step depends on the one before.
    let down = if is_large { 0.0 } else { (x - 1.5).floor() };
    let mut above = 1.0;
    for i in 0..11 {
        let step = f64::from(i) + 1.0;
        above *= if step <= down { x - step } else { 1.0 };
    }
    let below = (if x < 1.5 { x } else { 1.0 }) * if x < 0.5 { x + 1.0 } else { 1.0 };
    let up = (if x < 1.5 { 1.0 } else { 0.0 }) + if x < 0.5 { 1.0 } else { 0.0 };
    let more = if down > 0.0 { -1.0 - down } else { up - 1.0 };
    let v = ((if is_large { 1.0 } else { x }) - 1.0) + more; // u − 2, without rounding errors near x = 1
    let ln = Functions::ln(if is_large { x } else { above * below }); // one of them is 1
    let ln = if x < 1.5 { -ln } else { ln };
    let near = polynomial(
        v,
        [
            -1.433_098_389_952_169e-7,
            2.785_220_698_159_767_7e-7,
            -4.200_230_311_240_258_5e-7,
            9.202_874_508_970_477e-7,
            -2.049_765_348_428_316e-6,
            4.384_600_742_539_089e-6,
            -9.437_233_517_535_142e-6,
            2.050_561_505_499_831e-5,
            -4.492_653_166_980_307e-5,
            9.945_767_031_401_024e-5,
            -2.231_547_351_129_726_2e-4,
            5.096_695_156_572_766e-4,
            -1.192_753_912_761_268_7e-3,
            2.890_510_331_024_394_3e-3,
            -7.385_551_028_649_631e-3,
            2.058_080_842_778_055_7e-2,
            -6.735_230_105_319_831e-2,
            3.224_670_334_241_132_6e-1,
            4.227_843_350_984_671_3e-1,
        ],
    );
    let inverse = 1.0 / x;
    let series = polynomial(
        inverse * inverse,
        [
            8.116_141_674_705_085e-4,
            -5.950_619_042_843_014e-4,
            7.936_503_404_577_169e-4,
            -2.777_777_777_300_997e-3,
            8.333_333_333_333_319e-2,
        ],
    );
    let stirling = (x - 0.5) * ln - x + HALF_LN_TAU + series * inverse;
    if is_large { stirling } else { v.mul_add(near, ln) }
}

/// The series of digamma for x ≥ 10 without the logarithm.
#[inline(always)]
fn digamma_series(x: f64) -> f64 {
    let z = 1.0 / (x * x);
    let tail = polynomial(
        z,
        [
            8.333_333_333_333_333e-2,
            -2.109_279_609_279_609_3e-2,
            7.575_757_575_757_576e-3,
            -4.166_666_666_666_667e-3,
            3.968_253_968_253_968e-3,
            -8.333_333_333_333_333e-3,
            8.333_333_333_333_333e-2,
        ],
    );
    -0.5 / x - z * tail
}

/// digamma for x > 0: ψ(x) = ψ(x + 1) − 1 / x until x is 10.
#[inline(always)]
fn digamma(x: f64) -> f64 {
    let (mut x, mut y) = (x, 0.0);
    for _ in 0..10 {
        let is_below = x < 10.0;
        y += if is_below { 1.0 / x } else { 0.0 };
        x += if is_below { 1.0 } else { 0.0 };
    }
    digamma_series(x) - y + Functions::ln(x)
}

/// digamma for all x; below 0 by ψ(x) = ψ(1 − x) − π / tan(πx).
fn digamma_below(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x > 0.0 || x.is_nan() {
        return digamma(x);
    }
    if x == x.trunc() { f64::NAN } else { digamma(1.0 - x) - PI / libm::tan(PI * (x - x.trunc())) }
}

/// trigamma for x ≥ ½.
#[inline(always)]
fn trigamma(x: f64) -> f64 {
    let (mut x, mut y) = (x, 0.0);
    for _ in 0..6 {
        y += 1.0 / (x * x);
        x += 1.0;
    }
    let z = 1.0 / (x * x);
    y + (1.0 + 1.0 / (2.0 * x) + z * (1.0 / 6.0 - z * (1.0 / 30.0 - z * (1.0 / 42.0)))) / x
}

/// trigamma for all x; below ½ by ψ′(x) = π² / sin²(πx) − ψ′(1 − x).
fn trigamma_below(x: f64) -> f64 {
    if x >= 0.5 || x.is_nan() {
        return trigamma(x);
    }
    let sine = libm::sin(PI * x);
    PI * PI / (sine * sine) - trigamma(1.0 - x)
}

/// The Hurwitz zeta function, Σ (x + k)^(−s) over k from 0 on, for s above 1: some terms, then the Euler–Maclaurin
/// formula. Below 0, the terms of each sign are sums of the same kind.
fn zeta(s: u32, x: f64) -> f64 {
    /// (2k)! divided by the Bernoulli numbers.
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
        if x == x.floor() {
            return f64::INFINITY;
        }
        // The terms below 0 are those of -f, -f - 1, …, x, and the terms above 0 begin at 1 - f.
        let (f, sign) = (x.ceil() - x, if s.is_multiple_of(2) { 1.0 } else { -1.0 });
        return sign * (zeta(s, f) - zeta(s, 1.0 - x)) + zeta(s, 1.0 - f);
    }
    let power = |x: f64| match i32::try_from(s) {
        Ok(s) if s < 64 => 1.0 / x.powi(s),
        _ => libm::pow(x, -f64::from(s)),
    };
    let (mut sum, mut at, mut term, mut terms) = (power(x), x, 0.0, 0);
    while terms < 9 || at <= 9.0 {
        (at, terms) = (at + 1.0, terms + 1);
        term = power(at);
        sum += term;
        if term < LEAST * sum {
            return sum;
        }
    }
    let s = f64::from(s);
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
