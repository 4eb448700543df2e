//! Exponentials, logarithms, trigonometric, hyperbolic and error functions.
//!
//! All are written without branches, so that loops vectorize. Common functions of `f32` have formulas of their own in
//! `f32.rs`, with errors below two units in the last place. The other functions of `f32` are computed in `f64` here
//! and rounded once, with errors below one unit. The functions of `f64` are in `f64.rs`, `angles.rs` and `erf.rs`.
//! Functions that only the `libm` crate has are computed number by number.
//!
//! # How, in `f32`
//! - **sin, cos, tan**: x = n·π/2 + r with |r| ≤ π/4, where π/2 is subtracted in parts, for |x| ≤ 10⁶; polynomials
//!   of r². Larger numbers are [`far`](Functions::is_far) and are computed by `libm`.
//! - **atan2**: the quotient, or the quotient of difference and sum, is below tan(π/8); then a polynomial of it.
//! - asinh and acosh use ln(1 + x), atanh a logarithm with a single division, and sinh e^x − 1.
//! - **erfc** of a = |x| is e^(−a²) times a polynomial of (a − 2.5) / (a + 2.5).
//!
//! The polynomials are minimax polynomials by Remez exchange, with relative errors below 2⁻³³.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, LN_2};

use super::f32::{exp_in_f64, exp_parts_in_f64, ln_in_f64, twice_artanh};
use super::f64::{ROUND, ln_1p_at_edges, polynomial};
use super::{angles, erf, f32 as single, f64 as double};

/// `functions! {…}` defines the trait, and implements it for `f32` and `f64`.
macro_rules! functions {
    ({$($(#[$doc:meta])* $name:ident = |$x:ident $(, $y:ident)?| $single:expr, $double:expr;)+}
    $($(#[$both_doc:meta])* $both:ident = $both_single:path, $both_double:path;)+) => {
        /// Elementary functions of `f32` and `f64`.
        #[allow(clippy::wrong_self_convention, reason = "numbers are passed by value")]
        pub(crate) trait Functions: Sized {
            /// Whether [`sin`](Self::sin), [`cos`](Self::cos) and [`tan`](Self::tan) have to be computed by the
            /// `far_` functions.
            fn is_far(self) -> bool;
            $($(#[$doc])* fn $name(self $(, $y: Self)?) -> Self;)+
            $($(#[$both_doc])* fn $both(self) -> Self;)+
            /// The distribution function of the normal distribution, and e^(−x²/2).
            fn normal_and_bell(self) -> (Self, Self);
            /// The magnitude of this with the sign of the other.
            fn with_sign_of(self, other: Self) -> Self;
        }

        impl Functions for f32 {
            #[inline(always)]
            fn is_far(self) -> bool {
                f32::abs(self) > angles::FAR as f32
            }
            $(#[inline(always)]
            fn $name(self $(, $y: f32)?) -> f32 {
                let $x = f64::from(self);
                $(let $y = f64::from($y);)?
                let y: f64 = $single;
                y as f32
            })+
            $(#[inline(always)]
            fn $both(self) -> f32 {
                $both_single(self)
            })+
            #[inline(always)]
            fn normal_and_bell(self) -> (f32, f32) {
                single::normal_and_bell(self)
            }
            #[inline(always)]
            fn with_sign_of(self, other: f32) -> f32 {
                self.copysign(other)
            }
        }

        impl Functions for f64 {
            #[inline(always)]
            fn is_far(self) -> bool {
                self.abs() > angles::FAR
            }
            $(#[inline(always)]
            fn $name(self $(, $y: f64)?) -> f64 {
                let $x = self;
                $double
            })+
            $(#[inline(always)]
            fn $both(self) -> f64 {
                $both_double(self)
            })+
            #[inline(always)]
            fn normal_and_bell(self) -> (f64, f64) {
                erf::normal_and_bell(self)
            }
            #[inline(always)]
            fn with_sign_of(self, other: f64) -> f64 {
                self.copysign(other)
            }
        }
    };
}

functions! {{
    /// The tangent, for numbers that are not [far](Self::is_far).
    tan = |x| { let (s, c, n) = sin_cos(x); (if n & 1 == 0 { s } else { -c }) / (if n & 1 == 0 { c } else { s }) }, angles::tan(x);
    /// The sine.
    far_sin = |x| libm::sin(x), libm::sin(x);
    /// The cosine.
    far_cos = |x| libm::cos(x), libm::cos(x);
    /// The tangent.
    far_tan = |x| libm::tan(x), libm::tan(x);
    /// The angle whose tangent this is.
    atan = |x| angle(x, 1.0), angles::atan(x);
    /// The angle of the point (other, self).
    atan2 = |y, x| angle(y, x), angles::atan2(y, x);
    /// (eˣ − e⁻ˣ) / 2
    sinh = |x| { let m = exp_m1(x.abs()); (0.5 * (m + m / (m + 1.0))).copysign(x) }, double::sinh(x);
    /// (eˣ + e⁻ˣ) / 2
    cosh = |x| { let e = exp_in_f64(x.abs()); 0.5 * (e + 1.0 / e) }, double::cosh(x);
    /// The number whose hyperbolic sine this is.
    asinh = |x| asinh(x), libm::asinh(x);
    /// The number whose hyperbolic cosine this is; NaN below 1.
    acosh = |x| { let t = x - 1.0; let y = ln_1p(t + (t * (t + 2.0)).sqrt()); if t < 0.0 { f64::NAN } else { y } }, double::acosh(x);
    /// The number whose hyperbolic tangent this is; NaN outside of [−1, 1].
    atanh = |x| atanh(x), double::atanh(x);
    /// eˣ − 1
    exp_m1 = |x| exp_m1(x), double::exp_m1(x);
    /// 1 − erf(x), precise where that is small.
    erfc = |x| erfc(x), erf::erfc(x);
    /// Rounded down.
    floor = |x| x.floor(), f64::floor(x);
    /// Rounded up.
    ceil = |x| x.ceil(), f64::ceil(x);
    /// Truncated to an integer.
    trunc = |x| x.trunc(), f64::trunc(x);
    /// Rounded to the nearest, halves to even.
    round = |x| x.round_ties_even(), f64::round_ties_even(x);
}
    /// eˣ
    exp = single::exp, double::exp;
    /// eˣ for x ≤ 0 or slightly above, with fewer operations.
    exp_below = single::exp_below, double::exp_below;
    /// 1 − eˣ for x ≤ 0.
    one_minus_exp_below = single::one_minus_exp_below, double::one_minus_exp_below;
    /// The natural logarithm.
    ln = single::ln, double::ln;
    /// The hyperbolic tangent.
    tanh = single::tanh, double::tanh;
    /// 1 / (1 + e⁻ˣ)
    sigmoid = single::sigmoid, double::sigmoid;
    /// The sine, for numbers that are not [far](Self::is_far).
    sin = single::sin, angles::sin;
    /// The cosine, for numbers that are not [far](Self::is_far).
    cos = single::cos, angles::cos;
    /// The angle whose sine this is; NaN outside of [−1, 1].
    asin = single::asin, angles::asin;
    /// The angle whose cosine this is; NaN outside of [−1, 1].
    acos = single::acos, angles::acos;
    /// ln(1 + x)
    ln_1p = single::ln_1p, double::ln_1p;
    /// ln(1 + eˣ) for x ≤ 0.
    log1p_exp = single::log1p_exp, double::log1p_exp;
    /// 2ˣ
    exp2 = single::exp2, double::exp2;
    /// The logarithm to base 2.
    log2 = single::log2, double::log2;
    /// The logarithm to base 10.
    log10 = single::log10, double::log10;
    /// The error function.
    erf = single::erf, erf::erf;
    /// The inverse of the error function: ±∞ at ±1, NaN beyond.
    erfinv = single::erfinv, erf::erfinv;
}

/// π/2 minus the `f64` nearest to it.
const FRAC_PI_2_REST: f64 = 6.123_233_995_736_766e-17;

/// Sine and cosine of x − n·π/2, and n in the low bits.
#[inline(always)]
fn sin_cos(x: f64) -> (f64, f64, u64) {
    let shifted = x.mul_add(FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    let r = (-n).mul_add(FRAC_PI_2_REST, (-n).mul_add(FRAC_PI_2, x));
    let z = r * r;
    let s = polynomial(
        z,
        [2.717_564_232_673_03e-6, -1.983_925_660_998_414e-4, 8.333_329_143_845_136e-3, -1.666_666_663_955_744e-1],
    );
    let c = polynomial(
        z,
        [-2.720_330_451_899_634e-7, 2.479_943_642_137_038e-5, -1.388_888_343_849_686_2e-3, 4.166_666_661_920_551e-2],
    );
    (r * z.mul_add(s, 1.0), (z * z).mul_add(c, 1.0 - 0.5 * z), shifted.to_bits())
}

/// The angle of the point (x, y).
#[inline(always)]
fn angle(y: f64, x: f64) -> f64 {
    super::angles::angle(
        (y, x),
        inlined!(|z| {
            polynomial(
                z,
                [
                    4.747_375_063_108_318e-2,
                    -8.477_990_053_857_846e-2,
                    1.104_502_261_667_388_7e-1,
                    -1.428_203_664_749_63e-1,
                    1.999_990_500_809_876_7e-1,
                    -3.333_333_251_286_273e-1,
                ],
            )
        }),
    )
}

#[inline(always)]
fn asinh(x: f64) -> f64 {
    let a = x.abs();
    let y = ln_1p(a + a * a / (1.0 + (a * a + 1.0).sqrt()));
    (if a == f64::INFINITY { a } else { y }).copysign(x)
}

/// ½·ln((1 + a) / (1 − a)) for a = |x|. With 1 − a = 2ᵏ·m and m near 1 + a, that is artanh((1 + a − m) / (1 + a + m)) − k·ln √2: one
/// division.
#[inline(always)]
fn atanh(x: f64) -> f64 {
    let a = x.abs();
    let above = 1.0 + a;
    let (k, f) = double::ln_parts(1.0 - a);
    let m = 1.0 + f;
    let (k, m) = if above > std::f64::consts::SQRT_2 * m { (k - 1.0, m + m) } else { (k, m) };
    let difference = if k == 0.0 { a + a } else { above - m }; // equal, but not rounded
    let y = 0.5 * k.mul_add(-LN_2, twice_artanh(difference / (above + m)));
    let at_least_1 = if a == 1.0 { f64::INFINITY } else { f64::NAN };
    (if a < 1.0 { y } else { at_least_1 }).copysign(x)
}

#[inline(always)]
fn ln_1p(x: f64) -> f64 {
    let sum = 1.0 + x;
    let (k, rest) = ln_in_f64(sum);
    let y = k.mul_add(LN_2, rest) + (x - (sum - 1.0)) / sum;
    ln_1p_at_edges(x, y)
}

#[inline(always)]
fn exp_m1(x: f64) -> f64 {
    let (rest, power) = exp_parts_in_f64(x);
    let y = power.mul_add(rest, power - 1.0);
    if x == 0.0 { x } else { y }
}

#[inline(always)]
fn erfc(x: f64) -> f64 {
    let a = x.abs();
    let a = if a > 10.1 { 10.1 } else { a }; // beyond, 0 in `f32`
    let q = polynomial(
        (a - 2.5) / (a + 2.5),
        [
            6.047_854_702_297_628e-6,
            1.533_725_819_039_330_6e-5,
            -3.391_612_254_071_412e-5,
            -1.269_622_900_599_891_2e-4,
            2.284_980_042_422_355e-4,
            8.753_506_665_764_322e-4,
            -2.642_413_380_469_089_5e-3,
            -3.993_616_299_460_414e-3,
            3.992_254_395_431_29e-2,
            -1.250_330_580_409_761_4e-1,
            2.517_131_931_121_643e-1,
            -3.717_367_338_400_504e-1,
            2.108_063_640_607_398_3e-1,
        ],
    );
    let tail = exp_in_f64(-a * a) * q;
    if x < 0.0 { 2.0 - tail } else { tail }
}
