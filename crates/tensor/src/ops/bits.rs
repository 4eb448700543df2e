//! Bits of integers, their common divisors, signs of floats, and maximum and minimum that ignore NaN.

use std::ops::{BitAnd, BitOr, BitXor};

use super::elementwise::{ShareOfLarger, binary, formula, scalar};
use super::fused::CopysignGrad;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula};
use crate::element::{Num, Real};
use crate::error::Result;
use crate::kind::{Bool, Int};
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, per_type};
use crate::tensor::Tensor;

/// An integer with bitwise operations.
pub(crate) trait Whole:
    Num + Ord + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
    /// The bits shifted left; 0 if `by` is negative or at least the number of bits.
    fn up(self, by: Self) -> Self;
    /// The bits shifted right, filled with the sign; all of them are the sign if `by` is negative or too large.
    fn down(self, by: Self) -> Self;
    /// The greatest common divisor; 0 for two zeros. Not negative, unless it is 2 to the number of bits less one.
    fn gcd(self, other: Self) -> Self;
}

macro_rules! whole {
    ($($type:ty, $bits:ty);*) => {$(
        impl Whole for $type {
            #[inline(always)]
            fn up(self, by: $type) -> $type {
                let is_within = (by as $bits) < <$bits>::BITS as $bits;
                if is_within { self << (by as $bits & (<$bits>::BITS - 1) as $bits) } else { 0 }
            }
            #[inline(always)]
            #[allow(unused_comparisons, reason = "a byte is never below 0")]
            fn down(self, by: $type) -> $type {
                let is_within = (by as $bits) < <$bits>::BITS as $bits;
                let filled = if self < 0 { (0 as $type).wrapping_sub(1) } else { 0 };
                if is_within { self >> (by as $bits & (<$bits>::BITS - 1) as $bits) } else { filled }
            }
            #[inline(always)]
            #[allow(unused_comparisons, reason = "a byte is never below 0")]
            fn gcd(self, other: $type) -> $type {
                let magnitude = |x: $type| if x < 0 { (0 as $bits).wrapping_sub(x as $bits) } else { x as $bits };
                let (mut a, mut b) = (magnitude(self), magnitude(other));
                // Most numbers are small, and division of 32 bits takes less time.
                if <$bits>::BITS == u64::BITS && (a as u64 | b as u64) >> u32::BITS == 0 {
                    let (mut small, mut divisor) = (a as u32, b as u32);
                    while divisor != 0 {
                        (small, divisor) = (divisor, small % divisor);
                    }
                    return small as $type;
                }
                while b != 0 {
                    (a, b) = (b, a % b);
                }
                a as $type
            }
        }
    )*};
}
whole! { i64, u64; i32, u32; u8, u8 }

macro_rules! of_bits {
    ($name:ident, $op_name:literal, |$a:ident, $b:ident| $formula:expr, $cuda:literal) => {
        // Whole numbers have no gradient.
        binary! { $name: Whole, $op_name, Nothing, |$a, $b| $formula, $cuda, |_saved, grad| [Ok(grad.clone()), Ok(grad.clone())] }
        per_type! { $name[2]: [i64 I64, i32 I32, u8 U8] }
    };
}

of_bits! { And, "bitwise_and", |a, b| a & b, "a & b" }
of_bits! { Or, "bitwise_or", |a, b| a | b, "a | b" }
of_bits! { Xor, "bitwise_xor", |a, b| a ^ b, "a ^ b" }
of_bits! { Up, "bitwise_left_shift", |a, b| a.up(b), "b < 0 || b >= R(8 * sizeof(R)) ? R(0) : R(u64(a) << u64(b))" }
of_bits! { Down, "bitwise_right_shift", |a, b| a.down(b), "b < 0 || b >= R(8 * sizeof(R)) ? (a < 0 ? R(-1) : R(0)) : R(a >> b)" }
of_bits! { Gcd, "gcd", |a, b| a.gcd(b), "[](R a, R b) -> R { while (b != R(0)) { R rest = fmod_of(a, b); a = b; b = rest; } return magnitude(a); }(a, b)" }
of_bits! { Lcm, "lcm", |a, b| { let d = a.gcd(b); if d == T::ZERO { d } else { multiples(a, d).times(b).magnitude() } },
"[](R x, R y) -> R { R a = x, b = y; while (b != R(0)) { R rest = fmod_of(a, b); a = b; b = rest; } return a == R(0) ? a : magnitude(times(floor_div(x, a), y)); }(a, b)" }

/// The quotient of a number and one of its divisors.
#[inline(always)]
fn multiples<T: Num>(x: T, divisor: T) -> T {
    if x.needs_long_division(divisor) { x.floor_div(divisor) } else { x.near_floor_div(divisor) }
}

macro_rules! method {
    ($method:ident = $name:ident, $doc:literal) => {
        impl Tensor<Int> {
            #[doc = $doc]
            ///
            /// # Errors
            /// [`Error::Argument`](crate::Error::Argument) if the shapes do not fit.
            pub fn $method(&self, other: &Tensor<Int>) -> Result<Tensor<Int>> {
                apply($name, [self, other])
            }
        }
    };
}

method!(bitwise_and = And, "Bitwise AND, elementwise, broadcasting. For truth values there is `logical_and`.");
method!(bitwise_or = Or, "Bitwise OR, elementwise, broadcasting. For truth values there is `logical_or`.");
method!(bitwise_xor = Xor, "Bitwise XOR, elementwise, broadcasting.");
method!(
    bitwise_left_shift = Up,
    "The bits shifted left by `other`, elementwise, broadcasting; 0 if `other` is negative or too large."
);
method!(
    bitwise_right_shift = Down,
    "The bits shifted right by `other` and filled with the sign, elementwise, broadcasting."
);
method!(gcd = Gcd, "The greatest common divisor, elementwise, broadcasting; 0 for two zeros.");
method!(lcm = Lcm, "The least common multiple, not negative, elementwise, broadcasting.");

struct Not;
scalar! { Not: Num, "bitwise_not", Nothing, Same, |_op| [], |x| x.negated().minus(T::ONE), "minus(negated(x), R(1))",
|_saved, grad| Ok::<_, crate::Error>(grad.clone()) }

impl Tensor<Int> {
    /// All bits inverted: −1 − x, or 255 − x for `uint8`.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn bitwise_not(&self) -> Result<Tensor<Int>> {
        apply(Not, [self])
    }
}

// As in PyTorch, half of the gradient goes to each where both are equal. Where one is NaN, all of it goes to the other;
// where both are, to the first.
binary! { Fmax: Real, "fmax", Inputs, |a, b| if a >= b || b.is_nan() { a } else { b }, "a >= b || is_nan(b) ? a : b", |saved, grad| [
    of_first(&apply(ShareOfLarger, [grad, saved.input(0), saved.input(1)])?, saved),
    of_second(&apply(ShareOfLarger, [grad, saved.input(1), saved.input(0)])?, saved),
] }
binary! { Fmin: Real, "fmin", Inputs, |a, b| if a <= b || b.is_nan() { a } else { b }, "a <= b || is_nan(b) ? a : b", |saved, grad| [
    of_first(&apply(ShareOfLarger, [grad, saved.input(1), saved.input(0)])?, saved),
    of_second(&apply(ShareOfLarger, [grad, saved.input(0), saved.input(1)])?, saved),
] }

/// The share of the first input of `fmax` or `fmin`: 0 where it alone is NaN.
fn of_first(share: &Tensor, saved: &Saved<'_, 2>) -> Result<Tensor> {
    let is_alone = saved.input(0).isnan()?.logical_and(&saved.input(1).isnan()?.logical_not()?)?;
    share.masked_fill(&is_alone, 0.0)
}

/// The share of the second: 0 where it is NaN.
fn of_second(share: &Tensor, saved: &Saved<'_, 2>) -> Result<Tensor> {
    share.masked_fill(&saved.input(1).isnan()?, 0.0)
}

binary! { Copysign: Real, "copysign", Inputs, map2_by_bits(|a, b| a & 0x7fff | b & 0x8000): |a, b| a.with_sign_of(b), "copysign(a, b)", |saved, grad| [
    apply(CopysignGrad, [grad, saved.input(0), saved.input(1)]),
    grad.zeros_like(),
] }

per_type! { Fmax[2]: Real }
per_type! { Fmin[2]: Real }
per_type! { Copysign[2]: Real }

impl Tensor {
    /// The larger of both, or the other one where one is NaN, elementwise, broadcasting.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the shapes do not fit.
    pub fn fmax(&self, other: &Tensor) -> Result<Tensor> {
        apply(Fmax, [self, other])
    }

    /// The smaller of both, or the other one where one is NaN, elementwise, broadcasting.
    ///
    /// # Errors
    /// As [`Tensor::fmax`].
    pub fn fmin(&self, other: &Tensor) -> Result<Tensor> {
        apply(Fmin, [self, other])
    }

    /// The magnitudes of `self` with the signs of `other`, including −0, elementwise, broadcasting.
    ///
    /// # Errors
    /// As [`Tensor::fmax`].
    pub fn copysign(&self, other: &Tensor) -> Result<Tensor> {
        apply(Copysign, [self, other])
    }

    /// Where an element has its sign bit set, as −0 has.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn signbit(&self) -> Result<Tensor<Bool>> {
        let x = self.detach();
        Tensor::on(&x.device()).of(x.dtype()).ones(())?.copysign(&x)?.lt_scalar(0.0)
    }
}
