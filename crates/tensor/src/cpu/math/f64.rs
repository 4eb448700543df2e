//! Elementary functions of `f64`: those of `f32.rs` with longer polynomials; see the head of `math/mod.rs`.

/// 1.5 · 2⁵²: adding it rounds to an integer, which then is in the low bits.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// The first 32 bits of ln 2: products with exponents are exact.
const LN_2_HIGH: f64 = 0.6931471803691238;
const LN_2_LOW: f64 = 1.9082149292705877e-10;

/// eˣ
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    // Beyond these the result is 0 or infinite, in which the arithmetic below ends by itself. NaN passes through.
    let x = if x > 710.0 { 710.0 } else { x };
    let x = if x < -746.0 { -746.0 } else { x };
    let rounded = x * std::f64::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let q = 2.4999962752161227e-8;
    let q = q * r + 2.7630378614888184e-7;
    let q = q * r + 2.7557587350023017e-6;
    let q = q * r + 2.4801492762837084e-5;
    let q = q * r + 1.9841269504757152e-4;
    let q = q * r + 1.3888888943922556e-3;
    let q = q * r + 8.333333333495627e-3;
    let q = q * r + 4.166666666652919e-2;
    let q = q * r + 1.666666666666641e-1;
    let q = q * r + 5.000000000000011e-1;
    let power = 1.0 + (r + r * r * q);
    // The low bits are those of n; what is above them is even, and does not reach them.
    let half = rounded.to_bits() >> 1;
    power * power_of_two(half) * power_of_two(rounded.to_bits() - half)
}

/// 2ⁿ for an integer n from −1022 to 1023, of which only the lowest bits are looked at.
#[inline(always)]
fn power_of_two(n: u64) -> f64 {
    f64::from_bits((n << 52).wrapping_add(1023 << 52))
}

/// The natural logarithm; NaN below 0.
#[inline(always)]
pub(crate) fn ln(x: f64) -> f64 {
    const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    const TWO_52: f64 = 4_503_599_627_370_496.0;
    let is_subnormal = x < f64::MIN_POSITIVE;
    let scaled = if is_subnormal { x * TWO_52 } else { x };
    let bits = scaled.to_bits().wrapping_sub(SQRT_HALF);
    // The exponent plus 2048 as an integer, put into the low bits of 2⁵²: AVX2 cannot convert 64-bit integers.
    let biased = (bits.wrapping_add(2048 << 52) >> 52) & 0xfff;
    let k = (f64::from_bits(TWO_52.to_bits() | biased) - TWO_52) - if is_subnormal { 2100.0 } else { 2048.0 };
    let f = f64::from_bits((bits & 0x000f_ffff_ffff_ffff).wrapping_add(SQRT_HALF)) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let r = 1.4799066108059503e-1;
    let r = r * z + 1.5313755752712596e-1;
    let r = r * z + 1.8183575166059565e-1;
    let r = r * z + 2.2222198378459493e-1;
    let r = r * z + 2.857142874414164e-1;
    let r = r * z + 3.999999999940749e-1;
    let r = r * z + 6.666666666666735e-1;
    let y = k * LN_2_HIGH - ((s * (f - z * r) - k * LN_2_LOW) - f);
    let y = if x == f64::INFINITY { x } else { y };
    let y = if x == 0.0 { f64::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f64::NAN }
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f64) -> f64 {
    let a = x.abs();
    let a = if a > 20.0 { 20.0 } else { a }; // tanh(20) rounds to 1
    let z = a * a;
    let p = -1.6058990779264442e-5;
    let p = p * z + 7.711661848184323e-5;
    let p = p * z - 2.2853980532720435e-4;
    let p = p * z + 5.863044566381178e-4;
    let p = p * z - 1.4549551805938467e-3;
    let p = p * z + 3.591988451426177e-3;
    let p = p * z - 8.863220912719618e-3;
    let p = p * z + 2.1869487569199854e-2;
    let p = p * z - 5.396825393096522e-2;
    let p = p * z + 1.3333333333261438e-1;
    let p = p * z - 3.333333333333285e-1;
    let small = a + a * z * p;
    let large = 1.0 - 2.0 / (exp(a + a) + 1.0);
    (if a < 0.625 { small } else { large }).copysign(x)
}

/// 1 / (1 + e⁻ˣ)
#[inline(always)]
pub(crate) fn sigmoid(x: f64) -> f64 {
    let e = exp(-x.abs());
    let y = e / (1.0 + e);
    // The same, less dependent on the rounding of 1 + e.
    let y = if e < 0.5 { e - e * y } else { y };
    if x < 0.0 { y } else { 1.0 - y }
}
