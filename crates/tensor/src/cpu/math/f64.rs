//! Elementary functions of `f64`: those of `f32.rs` with longer polynomials; see the head of `math/mod.rs`.

edges! { f64, u64 }

/// 1.5 · 2⁵²: adding it rounds to an integer, which then is in the low bits.
pub(super) const ROUND: f64 = 6_755_399_441_055_744.0;
/// The first 32 bits of ln 2: products with exponents are exact.
const LN_2_HIGH: f64 = 0.6931471803691238;
const LN_2_LOW: f64 = 1.9082149292705877e-10;

/// eˣ
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    exp_of_sum(x, 0.0)
}

/// e^(x + rest) for a `rest` that is much smaller than x.
#[inline(always)]
pub(super) fn exp_of_sum(x: f64, rest: f64) -> f64 {
    // The arithmetic below gives ∞ above 710, 0 below -746, and NaN for NaN. At the lower bound both factors, 2⁻¹⁰²³,
    // are 0, so that no intermediate result is subnormal, which would be slow.
    let x = if x > 710.0 { 710.0 } else { x };
    let x = if x < -1418.2 { -1418.2 } else { x };
    let (r, n) = reduced(x, rest);
    scaled(1.0 + exp_m1_of_small(r), n)
}

/// 2ⁿ·x, in two steps, so that neither factor is too large or too small.
#[inline(always)]
fn scaled(x: f64, n: u64) -> f64 {
    let half = n >> 1;
    x * two_to(half) * two_to(n.wrapping_sub(half))
}

/// 2ˣ
#[inline(always)]
pub(crate) fn exp2(x: f64) -> f64 {
    let x = if x > 1025.0 { 1025.0 } else { x };
    let x = if x < -2046.0 { -2046.0 } else { x }; // at which both factors are 0
    let shifted = x + ROUND;
    let r = (x - (shifted - ROUND)) * std::f64::consts::LN_2;
    scaled(1.0 + exp_m1_of_small(r), shifted.to_bits())
}

/// eˣ − 1
#[inline(always)]
pub(crate) fn exp_m1(x: f64) -> f64 {
    let y = 2.0 * half_exp_m1(x);
    if x.abs() < 1e-17 { x } else { y }
}

/// (eˣ − 1) / 2, which is finite for slightly larger x than eˣ.
#[inline(always)]
fn half_exp_m1(x: f64) -> f64 {
    let x = if x > 710.5 { 710.5 } else { x };
    let x = if x < -60.0 { -60.0 } else { x };
    let (r, n) = reduced(x, 0.0);
    let quarter = two_to(n.wrapping_sub(2));
    2.0 * quarter.mul_add(exp_m1_of_small(r), quarter - 0.25)
}

/// (eˣ − e⁻ˣ) / 2 from m = e^|x| − 1: (m + m / (m + 1)) / 2.
#[inline(always)]
pub(crate) fn sinh(x: f64) -> f64 {
    let a = x.abs();
    let half = half_exp_m1(a);
    let bounded = if half > 1e18 { 1e18 } else { half };
    let y = half + bounded / (2.0 * bounded + 1.0);
    (if a < 1e-9 { a } else { y }).copysign(x)
}

/// (eˣ + e⁻ˣ) / 2
#[inline(always)]
pub(crate) fn cosh(x: f64) -> f64 {
    let half = half_exp_m1(x.abs()) + 0.5;
    half + 0.25 / half
}

/// 2⁵¹²
const TWO_512: f64 = f64::from_bits((1023 + 512) << 52);

/// eˣ for x ≤ 0. At the lower bound the power of two is 0, so that no intermediate result is subnormal.
#[inline(always)]
pub(crate) fn exp_below(x: f64) -> f64 {
    let x = if x < -1064.0 { -1064.0 } else { x };
    let (r, n) = reduced(x, 0.0);
    (1.0 + exp_m1_of_small(r)) * two_to(n.wrapping_add(512)) * (1.0 / TWO_512)
}

/// 1 − eˣ for x ≤ 0.
#[inline(always)]
pub(crate) fn one_minus_exp_below(x: f64) -> f64 {
    let x = if x < -60.0 { -60.0 } else { x };
    let (r, n) = reduced(x, 0.0);
    let power = two_to(n);
    (-power).mul_add(exp_m1_of_small(r), 1.0 - power)
}

/// eʳ − 1 for |r| ≤ ln 2 / 2.
#[inline(always)]
fn exp_m1_of_small(r: f64) -> f64 {
    (r * r).mul_add(exp_rest(r), r)
}

/// (eʳ − 1 − r) / r² for |r| ≤ ln 2 / 2.
#[inline(always)]
fn exp_rest(r: f64) -> f64 {
    polynomial(
        r,
        [
            2.4999962752161227e-8,
            2.7630378614888184e-7,
            2.7557587350023017e-6,
            2.4801492762837084e-5,
            1.9841269504757152e-4,
            1.3888888943922556e-3,
            8.333333333495627e-3,
            4.166666666652919e-2,
            1.666666666666641e-1,
            5.000000000000011e-1,
        ],
    )
}

/// r and n in the low bits, such that x + rest = n·ln 2 + r with |r| ≤ ln 2 / 2.
#[inline(always)]
pub(super) fn reduced(x: f64, rest: f64) -> (f64, u64) {
    let shifted = x.mul_add(std::f64::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    ((-n).mul_add(LN_2_HIGH, x) - n.mul_add(LN_2_LOW, -rest), shifted.to_bits())
}

/// 2ⁿ for n from −1022 to 1023, and 0 for −1023, in the low bits.
#[inline(always)]
pub(super) fn two_to(n: u64) -> f64 {
    f64::from_bits(n.wrapping_add(1023) << 52)
}

/// The natural logarithm; NaN below 0.
#[inline(always)]
pub(crate) fn ln(x: f64) -> f64 {
    let (k, f) = ln_parts(x);
    let s = f / (2.0 + f);
    let z = s * s;
    let less = s.mul_add((-z).mul_add(artanh_rest(z), f), -k * LN_2_LOW);
    log_at_edges(x, k.mul_add(LN_2_HIGH, f - less))
}

/// k and ln(1 + f) of [`ln_parts`].
#[inline(always)]
fn log_parts(x: f64) -> (f64, f64) {
    let (k, f) = ln_parts(x);
    let s = f / (2.0 + f);
    let z = s * s;
    (k, (-s).mul_add((-z).mul_add(artanh_rest(z), f), f))
}

/// The logarithm to base 2.
#[inline(always)]
pub(crate) fn log2(x: f64) -> f64 {
    let (k, rest) = log_parts(x);
    log_at_edges(x, rest.mul_add(std::f64::consts::LOG2_E, k))
}

/// The logarithm to base 10, with log₁₀2 in two parts.
#[inline(always)]
pub(crate) fn log10(x: f64) -> f64 {
    const HIGH: f64 = 0.3010299955494702;
    const LOW: f64 = 1.1451100898021838e-10;
    let (k, rest) = log_parts(x);
    log_at_edges(x, k.mul_add(HIGH, k.mul_add(LOW, rest * std::f64::consts::LOG10_E)))
}

/// ln(1 + x): the logarithm of the rounded sum, with a first-order correction of the rounding, as in FreeBSD's
/// `s_log1p.c`.
#[inline(always)]
pub(crate) fn ln_1p(x: f64) -> f64 {
    let sum = 1.0 + x;
    let lost = if x > 1.0 { 1.0 - (sum - x) } else { x - (sum - 1.0) };
    let (k, f) = ln_parts(sum);
    let s = f / (2.0 + f);
    let z = s * s;
    let less = s.mul_add((-z).mul_add(artanh_rest(z), f), -k.mul_add(LN_2_LOW, lost / sum));
    let y = k.mul_add(LN_2_HIGH, f - less);
    ln_1p_at_edges(x, y)
}

/// ln(1 + eˣ) for x ≤ 0: 2·artanh(s) with s = eˣ / (2 + eˣ) ≤ ⅓.
#[inline(always)]
pub(crate) fn log1p_exp(x: f64) -> f64 {
    let e = exp_below(x);
    let s = e / (2.0 + e);
    let z = s * s;
    let r = polynomial(
        z,
        [
            1.701_076_998_563_25e-1,
            8.344_439_609_436_455e-2,
            1.210_506_310_181_392_9e-1,
            1.330_110_690_314_591e-1,
            1.538_654_945_807_895_7e-1,
            1.818_174_443_089_59e-1,
            2.222_222_395_495_928e-1,
            2.857_142_854_809_779e-1,
            4.000_000_000_015_527e-1,
            6.666_666_666_666_631e-1,
        ],
    );
    (-s).mul_add((-z).mul_add(r, e), e)
}

/// A polynomial, given its coefficients from the highest degree down. Even and odd powers are summed separately,
/// because each step depends on the one before it.
#[inline(always)]
pub(crate) fn polynomial<const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
    let z = x * x;
    let (mut first, mut second) = (coefficients[0], if N > 1 { coefficients[1] } else { 0.0 });
    // `while`, and two at a time: the compiler unrolls this for any `N`, as it must before it vectorizes the loop around it.
    let mut i = 2;
    while i + 1 < N {
        first = first.mul_add(z, coefficients[i]);
        second = second.mul_add(z, coefficients[i + 1]);
        i += 2;
    }
    if N > 1 && N % 2 == 1 {
        first = first.mul_add(z, coefficients[N - 1]);
    }
    let [even, odd] = if N % 2 == 1 { [first, second] } else { [second, first] };
    odd.mul_add(x, even)
}

/// The number whose hyperbolic cosine this is; NaN below 1.
#[inline(always)]
pub(crate) fn acosh(x: f64) -> f64 {
    // (x − 1)² could overflow, and ln(2x) is as good there.
    let is_large = x > 1e9;
    let t = x - 1.0;
    let y = ln_1p(if is_large { t } else { t + (t * (t + 2.0)).sqrt() });
    let y = y + if is_large { std::f64::consts::LN_2 } else { 0.0 };
    if t < 0.0 { f64::NAN } else { y }
}

/// The number whose hyperbolic tangent this is; NaN outside of [−1, 1].
#[inline(always)]
pub(crate) fn atanh(x: f64) -> f64 {
    let a = x.abs();
    (0.5 * ln_1p((a + a) / (1.0 - a))).copysign(x)
}

/// k and f such that x = 2ᵏ·(1 + f) with 1 + f in [√½, √2).
#[inline(always)]
pub(super) fn ln_parts(x: f64) -> (f64, f64) {
    const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    const TWO_52: f64 = 4_503_599_627_370_496.0;
    let is_subnormal = x < f64::MIN_POSITIVE;
    let scaled = if is_subnormal { x * TWO_52 } else { x };
    let bits = scaled.to_bits().wrapping_sub(SQRT_HALF);
    // The exponent plus 2048 as an integer, put into the low bits of 2⁵²: AVX2 cannot convert 64-bit integers.
    let biased = (bits.wrapping_add(2048 << 52) >> 52) & 0xfff;
    let k = (f64::from_bits(TWO_52.to_bits() | biased) - TWO_52) - if is_subnormal { 2100.0 } else { 2048.0 };
    (k, f64::from_bits((bits & 0x000f_ffff_ffff_ffff).wrapping_add(SQRT_HALF)) - 1.0)
}

/// (2·artanh(s) − 2s) / s³ for z = s².
#[inline(always)]
fn artanh_rest(z: f64) -> f64 {
    polynomial(
        z,
        [
            1.4799066108059503e-1,
            1.5313755752712596e-1,
            1.8183575166059565e-1,
            2.2222198378459493e-1,
            2.857142874414164e-1,
            3.999999999940749e-1,
            6.666666666666735e-1,
        ],
    )
}

/// xʸ for y ≠ 0: e^(y·ln x) with about 60 bits of the logarithm.
#[inline(always)]
pub(crate) fn pow(x: f64, y: f64) -> f64 {
    const MOST: f64 = 18_446_744_073_709_551_616.0; // greater exponents give 0, 1 or ∞ as this does
    let (high, low) = ln_exactly(x.abs());
    let bounded = y.clamp(-MOST, MOST);
    let product = bounded * high;
    let rest = bounded.mul_add(low, bounded.mul_add(high, -product)); // the rounding error, which is exact
    let magnitude = exp_of_sum(product, if product.abs() < 800.0 { rest } else { 0.0 });
    power_at_edges(x, y, magnitude)
}

/// The natural logarithm of a positive finite number as a sum of two: 2·artanh(s) with s = f / (2 + f) in two parts, as in
/// FreeBSD's `e_pow.c`.
#[inline(always)]
fn ln_exactly(x: f64) -> (f64, f64) {
    let (k, f) = ln_parts(x);
    let sum = 2.0 + f;
    let (inverse, sum_low) = (1.0 / sum, f - (sum - 2.0));
    let s = f * inverse;
    let s_low = (-s).mul_add(sum_low, (-s).mul_add(sum, f)) * inverse;
    let z = s * s;
    let (main, two) = (k * LN_2_HIGH, s + s);
    let high = main + two;
    let low = (main - high + two) + k.mul_add(LN_2_LOW, (s * z).mul_add(artanh_rest(z), s_low + s_low));
    let sum = high + low;
    (sum, (high - sum) + low)
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f64) -> f64 {
    let a = x.abs();
    let a = if a > 20.0 { 20.0 } else { a }; // tanh(20) rounds to 1
    let (r, n) = reduced(a + a, 0.0);
    let power = two_to(n);
    let m = power.mul_add(exp_m1_of_small(r), power - 1.0);
    (m / (m + 2.0)).copysign(x)
}

/// 1 / (1 + e⁻ˣ)
#[inline(always)]
pub(crate) fn sigmoid(x: f64) -> f64 {
    let e = exp_below(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// Converts as Rust's `as` does: truncates, saturates at the bounds of `i64`, and gives 0 for NaN. Compilers do not
/// vectorize `as`.
#[inline(always)]
pub(crate) fn to_i64(x: f64) -> i64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) & 0x7ff;
    let fraction = bits & 0x000f_ffff_ffff_ffff | 1 << 52;
    // At exponent 1075, the fraction of 52 bits is an integer.
    let (left, right) = (exponent.wrapping_sub(1075), 1075_u64.wrapping_sub(exponent));
    let larger = if left < 64 { fraction << (left & 63) } else { 0 };
    let smaller = if right < 64 { fraction >> (right & 63) } else { 0 };
    let magnitude = (larger | smaller) as i64; // equal where both are shifted by 0
    let is_negative = bits >> 63 == 1;
    let whole = if is_negative { magnitude.wrapping_neg() } else { magnitude };
    let nearest = if is_negative { i64::MIN } else { i64::MAX };
    let whole = if exponent >= 1023 + 63 { nearest } else { whole };
    if x.is_nan() { 0 } else { whole }
}
