//! Elementary functions of `f32`; see the head of `math/mod.rs` for the methods.

use super::f64 as wide;

edges! { f32, u32 }

/// 1.5 · 2²³: adding it rounds to an integer, which then is in the low bits.
const ROUND: f32 = 12_582_912.0;
/// The first 9 bits of ln 2: products with exponents are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// eˣ
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // The arithmetic below gives ∞ above 89, 0 below -104, and NaN for NaN. At the lower bound both factors, 2⁻¹²⁷,
    // are 0, so that no intermediate result is subnormal, which would be slow (see `exp_below`).
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -176.06 { -176.06 } else { x };
    let (power, n) = exp_parts(x);
    // 2ⁿ in two steps, so that neither is too large or too small.
    let half = n >> 1;
    power * two_to(half) * two_to(n.wrapping_sub(half))
}

/// eˣ for x ≤ 0, and 0 below -88.7, where e⁻ˣ is infinite. Intel processors take a hundred cycles for an instruction
/// whose result is subnormal: softmax of a row with -∞, or sigmoid of large numbers, took fifteen times as long.
#[inline(always)]
pub(crate) fn exp_below(x: f32) -> f32 {
    exp_down_to(-88.722_84, x)
}

/// eˣ for x ≤ 0, and 0 below `least`, which is at least -104.
#[inline(always)]
fn exp_down_to(least: f32, x: f32) -> f32 {
    const TWO_64: f32 = 18_446_744_073_709_551_616.0;
    let (power, n) = exp_parts(if x < least { 0.0 } else { x });
    let y = power * two_to(n.wrapping_add(64)) * (1.0 / TWO_64);
    if x < least { 0.0 } else { y }
}

/// 1 − eˣ for x ≤ 0. The smaller eˣ is, the less its error matters, so ln 2 need not be in two parts.
#[inline(always)]
pub(crate) fn one_minus_exp_below(x: f32) -> f32 {
    const ROUND_TO_POWER: f32 = ROUND + 127.0;
    let x = if x < -80.0 { -80.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND_TO_POWER);
    let m = exp_m1_of_reduced((ROUND_TO_POWER - shifted).mul_add(std::f32::consts::LN_2, x));
    let power = f32::from_bits(shifted.to_bits() << 23);
    (-power).mul_add(m, 1.0 - power)
}

/// eʳ and n in the low bits, such that eˣ = 2ⁿ·eʳ with |r| ≤ ln 2 / 2.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, u32) {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = (-n).mul_add(LN_2_LOW, (-n).mul_add(LN_2_HIGH, x));
    (1.0 + exp_m1_of_reduced(r), shifted.to_bits())
}

/// eʳ − 1 for |r| ≤ ln 2 / 2.
#[inline(always)]
fn exp_m1_of_reduced(r: f32) -> f32 {
    let q = polynomial(r, [1.381_446_7e-3, 8.368_781e-3, 4.166_839_3e-2, 1.666_652e-1, 4.999_999_4e-1]);
    (r * r).mul_add(q, r)
}

/// 2ⁿ for n from −126 to 127, and 0 for −127, in the low bits.
#[inline(always)]
fn two_to(n: u32) -> f32 {
    f32::from_bits(n.wrapping_add(127) << 23)
}

/// The natural logarithm; NaN below 0.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    let (k, f) = ln_parts(x);
    log_at_edges(x, k.mul_add(LN_2_HIGH, f - (-k).mul_add(LN_2_LOW, less_than(f))))
}

/// ln(1 + x), as in `f64.rs`.
#[inline(always)]
pub(crate) fn ln_1p(x: f32) -> f32 {
    let sum = 1.0 + x;
    let lost = if x > 1.0 { 1.0 - (sum - x) } else { x - (sum - 1.0) };
    let (k, f) = ln_parts(sum);
    let y = k.mul_add(LN_2_HIGH, f - (less_than(f) - k.mul_add(LN_2_LOW, lost / sum)));
    ln_1p_at_edges(x, y)
}

/// The logarithm to base 2: k + ln(1 + f) · log₂e, with log₂e in two parts.
#[inline(always)]
pub(crate) fn log2(x: f32) -> f32 {
    const LOW: f32 = 1.925_963e-8;
    let (k, f) = ln_parts(x);
    let rest = f - less_than(f);
    log_at_edges(x, rest.mul_add(std::f32::consts::LOG2_E, rest.mul_add(LOW, k)))
}

/// The logarithm to base 10, with log₁₀2 in two parts.
#[inline(always)]
pub(crate) fn log10(x: f32) -> f32 {
    const HIGH: f32 = 3.010_254e-1;
    const LOW: f32 = 4.605_039e-6;
    let (k, f) = ln_parts(x);
    log_at_edges(x, k.mul_add(HIGH, k.mul_add(LOW, (f - less_than(f)) * std::f32::consts::LOG10_E)))
}

/// k and f such that x = 2ᵏ·(1 + f) with 1 + f in [√½, √2).
#[inline(always)]
fn ln_parts(x: f32) -> (f32, f32) {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let is_subnormal = x < f32::MIN_POSITIVE;
    let scaled = if is_subnormal { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits().wrapping_sub(SQRT_HALF);
    let k = (bits as i32 >> 23) as f32 - if is_subnormal { 23.0 } else { 0.0 };
    (k, f32::from_bits((bits & 0x007f_ffff).wrapping_add(SQRT_HALF)) - 1.0)
}

/// f − ln(1 + f), for 1 + f in [√½, √2).
#[inline(always)]
fn less_than(f: f32) -> f32 {
    let s = f / (2.0 + f);
    let z = s * s;
    s * (-z).mul_add(polynomial(z, [2.987_442e-1, 3.997_745e-1, 6.666_677_6e-1]), f)
}

/// ln(1 + eˣ) for x ≤ 0: 2·artanh(s) with s = eˣ / (2 + eˣ) ≤ ⅓.
#[inline(always)]
pub(crate) fn log1p_exp(x: f32) -> f32 {
    let e = exp_down_to(-104.0, x);
    let s = e / (2.0 + e);
    let z = s * s;
    let r = polynomial(z, [2.801_267e-1, 2.800_167_9e-1, 4.002_153_4e-1, 6.666_642e-1]);
    (-s).mul_add((-z).mul_add(r, e), e)
}

/// 2ˣ
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let x = if x > 130.0 { 130.0 } else { x };
    let x = if x < -254.0 { -254.0 } else { x }; // at which both factors are 0
    let shifted = x + ROUND;
    let r = x - (shifted - ROUND);
    let (n, half) = (shifted.to_bits(), shifted.to_bits() >> 1);
    r.mul_add(polynomial(r, EXP2), 1.0) * two_to(half) * two_to(n.wrapping_sub(half))
}

/// Coefficients of (2^r − 1) / r, with relative errors of 2^r below 2⁻²⁸.
const EXP2: [f32; 6] = [1.535_333_8e-4, 1.339_888_7e-3, 9.618_438e-3, 5.550_332_4e-2, 2.402_264_8e-1, 6.931_472e-1];
/// Fewer coefficients, with relative errors below 2⁻²³.
#[allow(clippy::approx_constant)] // a coefficient, fitted with the others
const EXP2_SHORT: [f32; 5] = [1.326_471_3e-3, 9.671_524e-3, 5.550_734e-2, 2.402_224_2e-1, 6.931_47e-1];

/// 2ˣ for x from −125 to 128: x = n + r with |r| ≤ ½, and n is added to the exponent of 2^r. NaN becomes any number.
#[inline(always)]
fn exp2_of_few(x: f32) -> f32 {
    let shifted = x + ROUND;
    let r = x - (shifted - ROUND);
    f32::from_bits(r.mul_add(polynomial(r, EXP2_SHORT), 1.0).to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// A polynomial, given its coefficients from the highest degree down.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut y = coefficients[0];
    for c in &coefficients[1..] {
        y = y.mul_add(x, *c);
    }
    y
}

/// The error function: an odd polynomial near 0, 1 − e^q(|x|) with a polynomial q beyond.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let a = x.abs();
    let z = a * a;
    let p = polynomial(z, [-6.315_13e-4, 5.051_095e-3, -2.680_254_8e-2, 1.128_271_74e-1, -3.761_257_2e-1]);
    let near = a.mul_add(z.mul_add(p, 1.283_791_6e-1), a);
    let b = if a > 4.0 { 4.0 } else { a }; // erf(4) rounds to 1
    // The coefficients of ln(erfc(b)), times log₂e.
    let q = polynomial(
        b,
        [2.953_469_5e-4, -4.512_329e-3, 3.254_259e-2, -1.509_073_3e-1, -9.181_849e-1, -1.627_514_6, -1.354_923_4e-4],
    );
    let far = 1.0 - exp2_of_few(q);
    (if a >= 0.85 { far } else { near }).copysign(x)
}

/// The distribution function Φ of the normal distribution, and e^(−x²/2). Φ(−|x|) is e^(−x²/2) times a rational
/// function whose coefficients are all positive. The rounding error of x² is not corrected: it is 10⁻⁶ of Φ(−5) and
/// 7·10⁻⁶ of Φ(−13), below which Φ is 0 here.
#[inline(always)]
pub(crate) fn normal_and_bell(x: f32) -> (f32, f32) {
    const MOST: f32 = 13.0;
    let a = x.abs();
    let is_beyond = a > MOST;
    let a = if is_beyond { MOST } else { a };
    let bell = exp2_of_few(a * a * (-0.5 * std::f32::consts::LOG2_E));
    let bell = if is_beyond { 0.0 } else { bell };
    let above = polynomial(a, [4.077_403e-3, 4.037_135e-2, 1.824_585_6e-1, 4.372_469_8e-1, 0.5]);
    let below = polynomial(a, [1.022_040_4e-2, 1.012_027_8e-1, 4.674_204e-1, 1.199_277_9, 1.672_378_9, 1.0]);
    let tail = bell * above / below;
    (if x > 0.0 { 1.0 - tail } else { tail }, bell)
}

/// The inverse of the error function: x times a polynomial of x² near 0, then of w = −ln(1 − x²), then of √w
/// (Giles 2010, <https://people.maths.ox.ac.uk/gilesm/files/gems_erfinv.pdf>). ±∞ at ±1, NaN beyond.
#[inline(always)]
pub(crate) fn erfinv(x: f32) -> f32 {
    let a = x.abs();
    let near = polynomial(
        a * a,
        [1.522_990_3e-1, -1.719_274_8e-2, 8.416_042e-2, 8.392_372e-2, 1.277_238_9e-1, 2.320_097e-1, -1.137_730_6e-1],
    );
    let w = -ln((1.0 - a) * (1.0 + a));
    let middle = polynomial(
        w - 1.5,
        [
            -4.428_94e-9,
            5.277_977e-8,
            1.586_642e-7,
            -5.584_842e-6,
            2.297_906_3e-5,
            1.782_646e-4,
            -2.092_272_7e-3,
            8.794_104e-4,
            2.503_624_5e-1,
            2.520_638_7e-1,
        ],
    );
    let far = polynomial(
        w.sqrt() - 3.0,
        [
            -2.293_612_4e-4,
            1.334_382_5e-3,
            -3.461_056e-3,
            5.706_305e-3,
            -7.664_310_3e-3,
            9.444_582e-3,
            1.001_676_3,
            1.832_976_8,
        ],
    );
    let factor = if w < 6.0 { middle } else { far };
    let y = a.mul_add(if a < 0.6 { near } else { factor }, a);
    (if a == 1.0 { f32::INFINITY } else { y }).copysign(x)
}

/// The angle whose sine this is: a polynomial near 0, π/2 − 2·asin(√((1 − |x|) / 2)) beyond; NaN outside of [−1, 1].
#[inline(always)]
pub(crate) fn asin(x: f32) -> f32 {
    let (is_far, s, more) = asin_parts(x.abs());
    let far = (FRAC_PI_2_HIGH - 2.0 * s) - (2.0 * more - FRAC_PI_2_LOW);
    (if is_far { far } else { s + more }).copysign(x)
}

/// The angle whose cosine this is, by the same polynomial; NaN outside of [−1, 1].
#[inline(always)]
pub(crate) fn acos(x: f32) -> f32 {
    let (is_far, s, more) = asin_parts(x.abs());
    let angle = s + more;
    let middle = FRAC_PI_2_HIGH - (angle.copysign(x) - FRAC_PI_2_LOW);
    let far = 2.0 * if x < 0.0 { FRAC_PI_2_HIGH - (angle - FRAC_PI_2_LOW) } else { angle };
    if is_far { far } else { middle }
}

const FRAC_PI_2_HIGH: f32 = std::f32::consts::FRAC_PI_2;
const FRAC_PI_2_LOW: f32 = -4.371_139e-8;
const FRAC_PI_2_REST: f32 = -1.715_124_5e-15;

/// Whether a number a ≥ 0 is above ½. Then acos(a) / 2 follows, else asin(a), as a sum of two numbers.
#[inline(always)]
fn asin_parts(a: f32) -> (bool, f32, f32) {
    let is_far = a > 0.5;
    let z = if is_far { 0.5 * (1.0 - a) } else { a * a };
    let s = if is_far { z.sqrt() } else { a };
    let p = polynomial(z, [4.217_821e-2, 2.417_296_8e-2, 4.547_16e-2, 7.495_289e-2, 1.666_675_3e-1]);
    (is_far, s, s * (z * p))
}

/// Sine and cosine of x − n·π/2, and n in the low bits, for |x| ≤ 10⁶. π/2 is subtracted in three parts. The first is
/// subtracted exactly, since the difference is a multiple of 2⁻²³ below 1. What rounding loses of the second goes to
/// `rest`; this holds near 0 only because the product with the second part is rounded before it is subtracted.
#[inline(always)]
fn sin_cos(x: f32) -> (f32, f32, u32) {
    let shifted = x.mul_add(std::f32::consts::FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    let first = (-n).mul_add(FRAC_PI_2_HIGH, x);
    let r = first - n * FRAC_PI_2_LOW;
    let rest = (-n).mul_add(FRAC_PI_2_REST, (-n).mul_add(FRAC_PI_2_LOW, first - r));
    let z = r * r;
    let s = polynomial(z, [-1.951_463_2e-4, 8.332_156e-3, -1.666_665_5e-1]);
    let c = polynomial(z, [2.443_241_2e-5, -1.388_731e-3, 4.166_664_6e-2]);
    let less = r.mul_add(rest, (-z * z).mul_add(c, 0.5 * z));
    (r + (z * s).mul_add(r, rest), 1.0 - less, shifted.to_bits())
}

/// The sine, for |x| ≤ 10⁶.
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    let (s, c, n) = sin_cos(x);
    let y = signed_by(if n & 1 == 0 { s } else { c }, n);
    if x == 0.0 { x } else { y }
}

/// The cosine, for |x| ≤ 10⁶.
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    let (s, c, n) = sin_cos(x);
    signed_by(if n & 1 == 0 { c } else { s }, n.wrapping_add(1))
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let a = if a > 10.0 { 10.0 } else { a }; // tanh(10) rounds to 1
    let z = a * a;
    let p = polynomial(z, [2.141_915_3e-3, -8.176_29e-3, 2.170_027e-2, -5.394_669e-2, 1.333_320_6e-1, -3.333_333e-1]);
    let small = (a * z).mul_add(p, a);
    let (power, n) = exp_parts(a + a);
    let large = 1.0 - 2.0 / power.mul_add(two_to(n), 1.0);
    (if a < 0.625 { small } else { large }).copysign(x)
}

/// 1 / (1 + e⁻ˣ), by way of [`exp_below`].
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    let e = exp_below(-x.abs());
    let sum = 1.0 + e;
    let y = e / sum;
    let y = y.mul_add((sum - 1.0) - e, y); // corrects the rounding of the sum
    if x < 0.0 { y } else { 1.0 - y }
}

/// xʸ for y ≠ 0: e^(y·ln x) in `f64`, with polynomials that are long enough for `f32`.
#[inline(always)]
pub(crate) fn pow(x: f32, y: f32) -> f32 {
    let (k, rest) = ln_in_f64(f64::from(x.abs()));
    let magnitude = exp_in_f64(f64::from(y) * k.mul_add(std::f64::consts::LN_2, rest)) as f32;
    power_at_edges(x, y, magnitude)
}

/// k and ln f of a positive finite x = 2ᵏ·f with f near 1, to more than 24 bits.
#[inline(always)]
pub(super) fn ln_in_f64(x: f64) -> (f64, f64) {
    let (k, f) = wide::ln_parts(x);
    (k, twice_artanh(f / (2.0 + f)))
}

/// 2·artanh(s) = ln((1 + s) / (1 − s)) for |s| ≤ 0.172, to more than 24 bits.
#[inline(always)]
pub(super) fn twice_artanh(s: f64) -> f64 {
    let z = s * s;
    let q = wide::polynomial(
        z,
        [2.358_219_024_324_3e-1, 2.853_730_658_084_26e-1, 4.000_033_522_036_43e-1, 6.666_666_564_533_13e-1],
    );
    (s * z).mul_add(q, s + s)
}

/// eᵗ to more than 24 bits, if that is neither 0 nor infinite in `f32`.
#[inline(always)]
pub(super) fn exp_in_f64(t: f64) -> f64 {
    let (rest, power) = exp_parts_in_f64(t);
    power.mul_add(rest, power)
}

/// eʳ − 1 and 2ⁿ such that eᵗ = 2ⁿ·eʳ; see [`exp_in_f64`].
#[inline(always)]
pub(super) fn exp_parts_in_f64(t: f64) -> (f64, f64) {
    let t = if t > 200.0 { 200.0 } else { t };
    let t = if t < -200.0 { -200.0 } else { t };
    let (r, n) = wide::reduced(t, 0.0);
    (exp_m1_of_small(r), wide::two_to(n))
}

/// eʳ − 1 for |r| ≤ ln 2 / 2.
#[inline(always)]
pub(super) fn exp_m1_of_small(r: f64) -> f64 {
    let q = wide::polynomial(
        r,
        [
            1.979_022_358_942e-4,
            1.394_478_449_366_12e-3,
            8.333_497_822_191_02e-3,
            4.166_629_328_842_28e-2,
            1.666_666_586_348_03e-1,
            5.000_000_068_131_94e-1,
        ],
    );
    (r * r).mul_add(q, r)
}
