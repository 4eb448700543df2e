//! Elementary functions of `f32`; see the head of `math/mod.rs` for the methods.

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
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let q = 1.381_446_7e-3;
    let q = q * r + 8.368_781e-3;
    let q = q * r + 4.166_839_3e-2;
    let q = q * r + 1.666_652e-1;
    let q = q * r + 4.999_999_4e-1;
    let power = 1.0 + (r + r * r * q);
    // The low bits are those of n; what is above them is even, and does not reach them.
    let half = rounded.to_bits() >> 1;
    power * power_of_two(half) * power_of_two(rounded.to_bits() - half)
}

/// 2ⁿ for an integer n from −126 to 127, of which only the lowest bits are looked at.
#[inline(always)]
fn power_of_two(n: u32) -> f32 {
    f32::from_bits((n << 23).wrapping_add(127 << 23))
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
    let large = 1.0 - 2.0 / (exp(a + a) + 1.0);
    (if a < 0.625 { small } else { large }).copysign(x)
}

/// 1 / (1 + e⁻ˣ)
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let y = e / (1.0 + e);
    // The same, less dependent on the rounding of 1 + e.
    let y = if e < 0.5 { e - e * y } else { y };
    if x < 0.0 { y } else { 1.0 - y }
}
