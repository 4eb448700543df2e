//! Remainders and quotients that are rounded down. Integers wrap; divided by 0 they give 0, because a device cannot report it.

use super::Functions;

/// Division of integers and floats.
pub(crate) trait Division: Sized {
    /// The remainder, with the sign of the dividend.
    fn fmod(self, divisor: Self) -> Self;
    /// The quotient rounded down.
    fn floor_div(self, divisor: Self) -> Self;
}

macro_rules! integer {
    ($($type:ty),+) => { $(
        impl Division for $type {
            #[inline(always)]
            fn fmod(self, divisor: Self) -> Self {
                if divisor == 0 { 0 } else { self.wrapping_rem(divisor) }
            }
            #[inline(always)]
            #[allow(unused_comparisons, reason = "of bytes none is below 0")]
            fn floor_div(self, divisor: Self) -> Self {
                let quotient = if divisor == 0 { 0 } else { self.wrapping_div(divisor) };
                let rest = self.fmod(divisor);
                if rest != 0 && (rest < 0) != (divisor < 0) { quotient - 1 } else { quotient }
            }
        }
    )+ };
}

integer!(i64, i32, u8);

macro_rules! float {
    ($($type:ty),+) => { $(
        impl Division for $type {
            #[inline(always)]
            fn fmod(self, divisor: Self) -> Self {
                self % divisor
            }
            /// From the remainder, so that it fits that.
            #[inline(always)]
            fn floor_div(self, divisor: Self) -> Self {
                let rest = self % divisor;
                let is_below = rest != 0.0 && (divisor < 0.0) != (rest < 0.0);
                let quotient = (self - rest) / divisor - if is_below { 1.0 } else { 0.0 };
                let floor = Functions::floor(quotient);
                let nearest = if quotient - floor > 0.5 { floor + 1.0 } else { floor };
                let nearest = if quotient == 0.0 { self / divisor * 0.0 } else { nearest };
                if divisor == 0.0 { self / divisor } else { nearest }
            }
        }
    )+ };
}

float!(f32, f64);
