//! Elementary functions that vectorize: plain arithmetic and bit operations, without branches, calls or tables.
//!
//! Every function is `#[inline(always)]`, so a loop over it compiles to the vector instructions that `simd` chose.
//! The operations are the same for every instruction set, so the results have the same bits: `mul_add` rounds once
//! everywhere, by an instruction with AVX2 and NEON, by a slow call on processors from before 2013. Errors are below
//! 2 units in the last place, subnormal results included, unless a function says otherwise. The tests measure them.
//!
//! # How
//! - **exp**: x = n·ln 2 + r with |r| ≤ ln 2 / 2 (Cody & Waite 1980: n·ln 2 is subtracted in two parts, the first
//!   exactly), then eˣ = 2ⁿ·(1 + r + r²·q(r)). The factor 2ⁿ is applied in two steps, so that results may be
//!   subnormal.
//!   ln(1 + f) = 2·artanh(s) = f − s·(f − s²·R(s²)), as in FreeBSD's `e_log.c`.
//! - **tanh** is m / (m + 2) with m = e^(2|x|) − 1, taken from the parts of exp without cancellation; in `f32`, where that
//!   is not exact enough, 1 − 2 / (e^(2|x|) + 1), and a polynomial near 0.
//! - **pow** is e^(y·ln x), in `f32` computed in `f64`, in `f64` with a logarithm in two parts.
//! - **asin** and **acos** are x + x³·p(x²) up to ½, and by the same polynomial of √((1 − x) / 2) beyond.
//! - **functions.rs** has the less common functions, and lists all; **angles.rs** and **erf.rs** have the longer ones
//!   of `f64`.
//! - **sigmoid** is 1 / (1 + e⁻ˣ), written with e^(−|x|) so that nothing overflows.
//!
//! q and R are minimax polynomials by Remez exchange (60 digits): q for (eʳ − 1 − r) / r² with weight r²/eʳ on
//! |r| ≤ 1.001·ln 2 / 2, R for (2·artanh(s) − 2s) / s³ as a function of s² with weight s²/2 on |s| ≤ 3 − 2√2, their
//! coefficients rounded to the type. Relative errors left by the polynomials: in `f32` 2⁻²⁸ and 2⁻³⁰, in `f64` 2⁻⁵⁷ and
//! 2⁻⁵⁹.

/// Defines what is the same text for `f32` and `f64`: the results at edges, and signs. `$bits` is as wide as `$float`.
macro_rules! edges {
    ($float:ident, $bits:ident) => {
        /// The logarithm of x, if `y` is the logarithm of positive finite numbers.
        #[inline(always)]
        pub(super) fn log_at_edges(x: $float, y: $float) -> $float {
            // In this order: otherwise the compiler merges all into one test of the bits of `x`, slower than three
            // comparisons.
            let y = if x < $float::INFINITY { y } else { x };
            let at_most_0 = if x == 0.0 { $float::NEG_INFINITY } else { $float::NAN };
            if x > 0.0 { y } else { at_most_0 }
        }

        /// ln(1 + x), if `y` is that of finite numbers above −1 other than 0.
        #[inline(always)]
        pub(super) fn ln_1p_at_edges(x: $float, y: $float) -> $float {
            let y = if x == 0.0 { x } else { y };
            let y = if x < $float::INFINITY { y } else { x };
            let at_most_minus_1 = if x == -1.0 { $float::NEG_INFINITY } else { $float::NAN };
            if x > -1.0 { y } else { at_most_minus_1 }
        }

        /// xʸ, where `magnitude` is its magnitude if |x| is not 0, 1, infinite or NaN.
        #[inline(always)]
        pub(super) fn power_at_edges(x: $float, y: $float, magnitude: $float) -> $float {
            let (is_whole, is_odd) = (y.trunc() == y, (y * 0.5).trunc() != y * 0.5);
            let of_zero = if y > 0.0 { 0.0 } else { y.abs() * $float::INFINITY };
            let of_infinity = if y < 0.0 { 0.0 } else { y * $float::INFINITY };
            let a = x.abs();
            let magnitude = if a == 0.0 { of_zero } else { magnitude };
            let magnitude = if a == $float::INFINITY { of_infinity } else { magnitude };
            let magnitude = if a == 1.0 { 1.0 } else { magnitude };
            let power = if is_whole && is_odd { magnitude.copysign(x) } else { magnitude };
            if x.is_nan() || !is_whole && x < 0.0 && x > $float::NEG_INFINITY { $float::NAN } else { power }
        }

        /// `x`, or −`x` if bit 1 of `sign` is set.
        #[inline(always)]
        pub(super) fn signed_by(x: $float, sign: $bits) -> $float {
            $float::from_bits(x.to_bits() ^ (sign & 2) << ($bits::BITS - 2))
        }
    };
}

mod angles;
mod division;
mod erf;
pub(crate) mod f32;
pub(crate) mod f64;
mod functions;
pub(crate) mod half;
#[cfg(test)]
mod tests;

pub(crate) use self::f64::polynomial;
pub(crate) use division::Division;
pub(crate) use functions::Functions;
