//! Remainders, and quotients that are rounded down. Integers wrap. Dividing them by 0 gives 0, because a device
//! cannot report an error.

use super::Functions;

/// Division of integers and floats.
pub(crate) trait Division: Sized {
    /// Whether only [`fmod`](Self::fmod) and [`floor_div`](Self::floor_div) divide these exactly.
    fn needs_long_division(self, divisor: Self) -> bool;
    /// A faster [`fmod`](Self::fmod), for operands that need no long division.
    fn near_fmod(self, divisor: Self) -> Self;
    /// The remainder, with the sign of the dividend.
    fn fmod(self, divisor: Self) -> Self;
    /// A faster [`floor_div`](Self::floor_div), for operands that need no long division.
    fn near_floor_div(self, divisor: Self) -> Self;
    /// The quotient rounded down.
    fn floor_div(self, divisor: Self) -> Self;
}

macro_rules! integer {
    ($type:ty, $is_rare:expr, |$a:ident, $b:ident| $near:expr, $exact:expr) => {
        impl Division for $type {
            #[inline(always)]
            fn needs_long_division(self, divisor: Self) -> bool {
                $is_rare(self) || $is_rare(divisor)
            }
            #[inline(always)]
            fn near_fmod(self, divisor: Self) -> Self {
                let ($a, $b) = (self, divisor);
                let quotient: $type = $near;
                if divisor == 0 { 0 } else { self.wrapping_sub(quotient.wrapping_mul(divisor)) }
            }
            #[inline(always)]
            fn fmod(self, divisor: Self) -> Self {
                if divisor == 0 { 0 } else { self.wrapping_rem(divisor) }
            }
            #[inline(always)]
            fn near_floor_div(self, divisor: Self) -> Self {
                let ($a, $b) = (self, divisor);
                floor_of!($type, $a, $b, $near)
            }
            #[inline(always)]
            fn floor_div(self, divisor: Self) -> Self {
                let ($a, $b) = (self, divisor);
                floor_of!($type, $a, $b, $exact)
            }
        }
    };
}

/// The quotient rounded down, from the truncated quotient.
macro_rules! floor_of {
    ($type:ty, $a:expr, $b:expr, $quotient:expr) => {{
        let quotient: $type = $quotient;
        let rest = $a.wrapping_sub(quotient.wrapping_mul($b));
        #[allow(unused_comparisons, reason = "a byte is never below 0")]
        let is_below = rest != 0 && (rest < 0) != ($b < 0) && $b != 0;
        if is_below { quotient.wrapping_sub(1) } else { quotient }
    }};
}

integer! { i64, is_long, |a, b| quotient_of_short(a, b), if b == 0 { 0 } else { a.wrapping_div(b) } }
integer! { i32, |_| false, |a, b| whole_quotient(a, b), whole_quotient(a, b) }
integer! { u8, |_| false, |a, b| small_quotient(a, b), small_quotient(a, b) }

/// Whether a number is out of range for [`quotient_of_short`], which takes −2⁵⁰ to 2⁵⁰ − 1.
#[inline(always)]
fn is_long(x: i64) -> bool {
    (x.wrapping_add(1 << 50)) as u64 >> 51 != 0
}

/// [`whole_quotient`] for numbers that are not [`is_long`]. Rounding does not turn a fractional quotient into a whole
/// number: it is at least 1/|b| away from one, and the rounding error is at most 2⁻⁵³ · |a/b|, which is less because
/// |a| ≤ 2⁵⁰.
#[inline(always)]
fn quotient_of_short(a: i64, b: i64) -> i64 {
    let bits = super::f64::ROUND.to_bits() as i64;
    // The integer in the low bits.
    let float = |x: i64| f64::from_bits(x.wrapping_add(bits) as u64) - super::f64::ROUND;
    let quotient = float(a) / float(if b == 0 { 1 } else { b });
    let quotient = ((quotient.trunc() + super::f64::ROUND).to_bits() as i64).wrapping_sub(bits);
    if b == 0 { 0 } else { quotient }
}

/// [`whole_quotient`] for bytes, in `f32`.
#[inline(always)]
fn small_quotient(a: u8, b: u8) -> u8 {
    let quotient = f32::from(a) / f32::from(if b == 0 { 1 } else { b });
    let quotient = (quotient.trunc() + 12_582_912.0).to_bits() as u8; // 1.5 · 2²³
    if b == 0 { 0 } else { quotient }
}

/// The truncated quotient, or 0 if `b` is 0. Divides in `f64`, which is precise enough and vectorizes.
#[inline(always)]
fn whole_quotient(a: i32, b: i32) -> i32 {
    let quotient = f64::from(a) / f64::from(if b == 0 { 1 } else { b });
    // The integer in the low bits: −2³¹ / −1 wraps.
    let quotient = (quotient.trunc() + super::f64::ROUND).to_bits() as i32;
    if b == 0 { 0 } else { quotient }
}

/// The quotient rounded down, computed from the remainder, so that the two are consistent.
macro_rules! floor_div_of {
    ($a:expr, $b:expr, $rest:expr) => {{
        let (a, b, rest) = ($a, $b, $rest);
        let is_below = rest != 0.0 && (b < 0.0) != (rest < 0.0);
        let quotient = (a - rest) / b - if is_below { 1.0 } else { 0.0 };
        let floor = Functions::floor(quotient);
        let nearest = if quotient - floor > 0.5 { floor + 1.0 } else { floor };
        let nearest = if quotient == 0.0 { a / b * 0.0 } else { nearest };
        if b == 0.0 { a / b } else { nearest }
    }};
}

macro_rules! float {
    ($type:ty, |$a:ident, $b:ident| $is_rare:expr, $near:expr) => {
        impl Division for $type {
            #[inline(always)]
            fn needs_long_division(self, divisor: Self) -> bool {
                let ($a, $b) = (self.abs(), divisor.abs());
                $is_rare
            }
            #[inline(always)]
            fn near_fmod(self, divisor: Self) -> Self {
                let ($a, $b) = (self.abs(), divisor.abs());
                let rest: $type = $near;
                rest.copysign(self)
            }
            #[inline(always)]
            fn fmod(self, divisor: Self) -> Self {
                self % divisor
            }
            #[inline(always)]
            fn near_floor_div(self, divisor: Self) -> Self {
                floor_div_of!(self, divisor, self.near_fmod(divisor))
            }
            #[inline(always)]
            fn floor_div(self, divisor: Self) -> Self {
                floor_div_of!(self, divisor, self.fmod(divisor))
            }
        }
    };
}

// In `f64`, a quotient below 2²⁸ of two `f32` is not rounded up to a whole number, and its products are exact.
float! { f32, |a, b| !(a < b * 268_435_456.0 && b < f32::INFINITY), {
    let (a, b) = (f64::from(a), f64::from(b));
    (a - (a / b).trunc() * b) as f32
} }
// If the quotient is below 2⁵⁰, `f64` represents the remainder exactly. If the quotient was rounded up, it is
// negative.
float! { f64, |a, b| !(a < b * 1_125_899_906_842_624.0 && a < 1e290 && b < 1e290 && b > 1e-280), {
    let rest = (-(a / b).trunc()).mul_add(b, a);
    if rest < 0.0 { rest + b } else { rest }
} }
