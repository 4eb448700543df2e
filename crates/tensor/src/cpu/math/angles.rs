//! Sines, cosines and angles in `f64`.
//!
//! Sine and cosine find x = n·π/2 + r with |r| ≤ π/4 and r in two parts, as in FreeBSD's `e_rem_pio2.c`, and evaluate
//! polynomials of r². Angles are computed as in `functions.rs`, with a longer polynomial. The minimax polynomials
//! have relative errors below 2⁻⁵⁷.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, FRAC_PI_4, PI};

use super::f64::{ROUND, polynomial, signed_by};

/// The largest |x| for which n·π/2 in three parts is precise enough to find x = n·π/2 + r.
pub(super) const FAR: f64 = 1e6;

/// Sine and cosine of x − n·π/2, and n in the low bits, for |x| ≤ [`FAR`].
#[inline(always)]
fn sin_cos(x: f64) -> (f64, f64, u64) {
    let shifted = x.mul_add(FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    let first = (-n).mul_add(1.570_796_326_734_125_6, x);
    let second = n * 6.077_100_506_303_966e-11;
    let high = first - second;
    let low = n.mul_add(2.022_266_248_795_950_6e-21, second - (first - high));
    let r = high - low;
    let rest = (high - r) - low;
    let z = r * r;
    let s = polynomial(
        z,
        [
            1.589_590_497_077_89e-10,
            -2.505_074_231_292_701_3e-8,
            2.755_731_358_766_046e-6,
            -1.984_126_982_949_565e-4,
            8.333_333_333_322_006e-3,
            -1.666_666_666_666_663e-1,
        ],
    );
    let c = polynomial(
        z,
        [
            -1.135_831_047_715_976_6e-11,
            2.087_569_657_209_58e-9,
            -2.755_731_414_861_759e-7,
            2.480_158_728_874_815_6e-5,
            -1.388_888_888_887_289_5e-3,
            4.166_666_666_666_659e-2,
        ],
    );
    let half = 0.5 * z;
    let whole = 1.0 - half;
    let cos = whole + (((1.0 - whole) - half) + (z * z).mul_add(c, -r * rest));
    (r + (z * s).mul_add(r, rest * whole), cos, shifted.to_bits())
}

/// The sine, for |x| ≤ [`FAR`].
#[inline(always)]
pub(crate) fn sin(x: f64) -> f64 {
    let (s, c, n) = sin_cos(x);
    let y = signed_by(if n & 1 == 0 { s } else { c }, n);
    if x == 0.0 { x } else { y }
}

/// The cosine, for |x| ≤ [`FAR`].
#[inline(always)]
pub(crate) fn cos(x: f64) -> f64 {
    let (s, c, n) = sin_cos(x);
    signed_by(if n & 1 == 0 { c } else { s }, n.wrapping_add(1))
}

/// The tangent, for |x| ≤ [`FAR`].
#[inline(always)]
pub(crate) fn tan(x: f64) -> f64 {
    let (s, c, n) = sin_cos(x);
    let y = if n & 1 == 0 { s } else { -c } / if n & 1 == 0 { c } else { s };
    if x == 0.0 { x } else { y }
}

#[inline(always)]
pub(crate) fn asin(x: f64) -> f64 {
    atan2(x, ((1.0 - x) * (1.0 + x)).sqrt())
}

#[inline(always)]
pub(crate) fn acos(x: f64) -> f64 {
    atan2(((1.0 - x) * (1.0 + x)).sqrt(), x)
}

#[inline(always)]
pub(crate) fn atan(x: f64) -> f64 {
    atan2(x, 1.0)
}

/// The angle of the point (x, y).
#[inline(always)]
pub(crate) fn atan2(y: f64, x: f64) -> f64 {
    // Sums of the largest numbers would overflow, products of the smallest would be 0.
    let is_large = y.abs() > 1e300 || x.abs() > 1e300;
    let is_small = y.abs() < 1e-290 && x.abs() < 1e-290;
    let scale = if is_large { 0.25 } else { 1.0 };
    let scale = if is_small { 1e20 } else { scale };
    angle(
        (y * scale, x * scale),
        inlined!(|z| {
            polynomial(
                z,
                [
                    -1.790_352_136_452_218e-2,
                    3.806_077_925_150_995e-2,
                    -5.039_137_947_712_13e-2,
                    5.847_847_882_977_587e-2,
                    -6.663_097_676_569_452e-2,
                    7.692_059_586_773_974e-2,
                    -9.090_897_718_140_041e-2,
                    1.111_111_078_191_714_1e-1,
                    -1.428_571_428_016_203_8e-1,
                    1.999_999_999_995_320_6e-1,
                    -3.333_333_333_333_32e-1,
                ],
            )
        }),
    )
}

/// The angle of the point (x, y). `rest` of u² is the polynomial (atan(u) − u) / u³ for |u| ≤ tan(π/8).
#[inline(always)]
pub(super) fn angle((y, x): (f64, f64), rest: impl Fn(f64) -> f64) -> f64 {
    const TAN_PI_8: f64 = 0.414_213_562_373_095;
    let (a, b) = (y.abs(), x.abs());
    let are_infinite = a == f64::INFINITY && b == f64::INFINITY;
    let a = if are_infinite { 1.0 } else { a };
    let b = if are_infinite || a == 0.0 && b == 0.0 { 1.0 } else { b };
    let (is_small, is_middle) = (a <= TAN_PI_8 * b, a * TAN_PI_8 <= b);
    let above = if is_middle { a - b } else { -b };
    let above = if is_small { a } else { above };
    let below = if is_middle { a + b } else { a };
    let below = if is_small { b } else { below };
    let start = if is_middle { FRAC_PI_4 } else { FRAC_PI_2 };
    let start = if is_small { 0.0 } else { start };
    let u = above / below;
    let z = u * u;
    let angle = start + (u * z).mul_add(rest(z), u);
    (if x.is_sign_negative() { PI - angle } else { angle }).copysign(y)
}
