//! Elementary functions of `f32`; see the head of `math/mod.rs` for the methods.

use super::f64 as wide;

/// 1.5 · 2²³: adding it rounds to an integer, which then is in the low bits.
const ROUND: f32 = 12_582_912.0;
/// The first 9 bits of ln 2: products with exponents are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// eˣ
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Beyond these the result is 0 or infinite, in which the arithmetic below ends by itself. NaN passes through.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let (power, n) = exp_parts(x);
    // 2ⁿ in two steps, so that neither is too large or too small.
    let half = n >> 1;
    power * two_to(half) * two_to(n.wrapping_sub(half))
}

/// 2⁶⁴
const TWO_64: f32 = 18_446_744_073_709_551_616.0;

/// eˣ for x ≤ 0.
#[inline(always)]
pub(crate) fn exp_below(x: f32) -> f32 {
    let x = if x < -104.0 { -104.0 } else { x };
    let (power, n) = exp_parts(x);
    power * two_to(n.wrapping_add(64)) * (1.0 / TWO_64)
}

/// eʳ and n in the low bits, such that eˣ = 2ⁿ·eʳ with |r| ≤ ln 2 / 2.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, u32) {
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let q = 1.381_446_7e-3;
    let q = q * r + 8.368_781e-3;
    let q = q * r + 4.166_839_3e-2;
    let q = q * r + 1.666_652e-1;
    let q = q * r + 4.999_999_4e-1;
    (1.0 + (r + r * r * q), shifted.to_bits())
}

/// 2ⁿ for n from −126 to 127 in the low bits.
#[inline(always)]
fn two_to(n: u32) -> f32 {
    f32::from_bits(n.wrapping_add(127) << 23)
}

/// The natural logarithm; NaN below 0.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let is_subnormal = x < f32::MIN_POSITIVE;
    let scaled = if is_subnormal { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits().wrapping_sub(SQRT_HALF);
    let k = (bits as i32 >> 23) as f32 - if is_subnormal { 23.0 } else { 0.0 };
    let f = f32::from_bits((bits & 0x007f_ffff).wrapping_add(SQRT_HALF)) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z * ((2.987_442e-1 * z + 3.997_745e-1) * z + 6.666_677_6e-1);
    let y = k * LN_2_HIGH - ((s * (f - r) - k * LN_2_LOW) - f);
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let a = if a > 10.0 { 10.0 } else { a }; // tanh(10) rounds to 1
    let z = a * a;
    let p = 2.141_915_3e-3;
    let p = p * z - 8.176_29e-3;
    let p = p * z + 2.170_027e-2;
    let p = p * z - 5.394_669e-2;
    let p = p * z + 1.333_320_6e-1;
    let p = p * z - 3.333_333e-1;
    let small = a + a * z * p;
    let (power, n) = exp_parts(a + a);
    let large = 1.0 - 2.0 / (power * two_to(n) + 1.0);
    (if a < 0.625 { small } else { large }).copysign(x)
}

/// 1 / (1 + e⁻ˣ)
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    let e = exp_below(-x.abs());
    let sum = 1.0 + e;
    let y = e / sum;
    let y = y + y * ((sum - 1.0) - e); // what was lost in the sum
    if x < 0.0 { y } else { 1.0 - y }
}

/// xʸ for y ≠ 0: e^(y·ln x) in `f64`, with polynomials that are long enough for `f32`.
#[inline(always)]
pub(crate) fn pow(x: f32, y: f32) -> f32 {
    let (k, rest) = ln_in_f64(f64::from(x.abs()));
    let magnitude = exp_in_f64(f64::from(y) * (k * std::f64::consts::LN_2 + rest)) as f32;
    power_at_edges(x, y, magnitude)
}

/// k and ln f of a positive finite x = 2ᵏ·f with f near 1, to more than 24 bits.
#[inline(always)]
pub(super) fn ln_in_f64(x: f64) -> (f64, f64) {
    let (k, f) = wide::ln_parts(x);
    let s = f / (2.0 + f);
    let z = s * s;
    let q = 2.358_219_024_324_3e-1;
    let q = q * z + 2.853_730_658_084_26e-1;
    let q = q * z + 4.000_033_522_036_43e-1;
    let q = q * z + 6.666_666_564_533_13e-1;
    (k, s + s + s * z * q)
}

/// eᵗ to more than 24 bits, if that is neither 0 nor infinite in `f32`.
#[inline(always)]
pub(super) fn exp_in_f64(t: f64) -> f64 {
    let (rest, power) = exp_parts_in_f64(t);
    power + power * rest
}

/// eʳ − 1 and 2ⁿ such that eᵗ = 2ⁿ·eʳ; see [`exp_in_f64`].
#[inline(always)]
pub(super) fn exp_parts_in_f64(t: f64) -> (f64, f64) {
    let t = if t > 200.0 { 200.0 } else { t };
    let t = if t < -200.0 { -200.0 } else { t };
    let (r, _, n) = wide::reduced(t, 0.0);
    (exp_m1_of_small(r), wide::two_to(n))
}

/// eʳ − 1 for |r| ≤ ln 2 / 2.
#[inline(always)]
pub(super) fn exp_m1_of_small(r: f64) -> f64 {
    let q = 1.979_022_358_942e-4;
    let q = q * r + 1.394_478_449_366_12e-3;
    let q = q * r + 8.333_497_822_191_02e-3;
    let q = q * r + 4.166_629_328_842_28e-2;
    let q = q * r + 1.666_666_586_348_03e-1;
    let q = q * r + 5.000_000_068_131_94e-1;
    r + r * r * q
}

/// xʸ, of which `magnitude` is the magnitude where |x| is neither 0, 1, infinite nor NaN.
#[inline(always)]
fn power_at_edges(x: f32, y: f32, magnitude: f32) -> f32 {
    let (is_whole, is_odd) = (y.trunc() == y, (y * 0.5).trunc() != y * 0.5);
    let of_zero = if y > 0.0 { 0.0 } else { y.abs() * f32::INFINITY };
    let of_infinity = if y < 0.0 { 0.0 } else { y * f32::INFINITY };
    let a = x.abs();
    let magnitude = if a == 0.0 { of_zero } else { magnitude };
    let magnitude = if a == f32::INFINITY { of_infinity } else { magnitude };
    let magnitude = if a == 1.0 { 1.0 } else { magnitude };
    let power = if is_whole && is_odd { magnitude.copysign(x) } else { magnitude };
    if x.is_nan() || !is_whole && x < 0.0 && x > f32::NEG_INFINITY { f32::NAN } else { power }
}
