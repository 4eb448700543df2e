//! Element types: which Rust types a tensor may hold, and the arithmetic that kernels use for each.
//!
//! `Element` (all eight) ⊃ `Computing` (all but `f16 bf16 bool`) ⊃ `Real` (`f32 f64`). Kernels are compiled for computing
//! types: half types are loaded and stored in 16 bits and compute in `f32` (`cpu/elements.rs`), truth values are bytes.
//! The traits are sealed: kernels rely on their arithmetic.

mod scalar;

use std::fmt;

use half::{bf16, f16};

pub use self::scalar::Scalar;
use crate::cpu::math::half::{BLOCK, Block, Registers};
use crate::cpu::{self, math};
use crate::error::Result;
use crate::kind::{Bool, ElementOf, Float, Int, Kind};
use crate::lanes::Lanes;
use crate::tensor::Raw;

/// The name of an element type, as a run-time value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// `f32`
    F32,
    /// `f64`
    F64,
    /// [`half::f16`]
    F16,
    /// [`half::bf16`]
    BF16,
    /// `i64`
    I64,
    /// `i32`
    I32,
    /// `u8`
    U8,
    /// `bool`
    Bool,
}

impl DType {
    /// PyTorch's name for the type.
    ///
    /// ```
    /// assert_eq!(pagelock_tensor::DType::F32.name(), "float32");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::I64 => "int64",
            DType::I32 => "int32",
            DType::U8 => "uint8",
            DType::Bool => "bool",
        }
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// The type in which values of this type are computed: `f32` for the half types, else the type itself.
    ///
    /// ```
    /// # use pagelock_tensor::DType;
    /// assert_eq!([DType::BF16.computing(), DType::F64.computing()], [DType::F32, DType::F64]);
    /// ```
    pub fn computing(self) -> DType {
        if matches!(self, DType::F16 | DType::BF16) { DType::F32 } else { self }
    }

    /// Whether this is a floating-point type, whose tensors can have gradients.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// Whether this is a type of whole numbers.
    pub fn is_int(self) -> bool {
        matches!(self, DType::I64 | DType::I32 | DType::U8)
    }

    /// The name of the kind of tensors that hold this type: `"float"`, `"integer"` or `"bool"`.
    pub fn kind_name(self) -> &'static str {
        match self {
            DType::Bool => Bool::NAME,
            _ if self.is_float() => Float::NAME,
            _ => Int::NAME,
        }
    }

    /// The type of one kind that holds every value of both; `None` for types of two kinds.
    pub(crate) fn wider(self, other: DType) -> Option<DType> {
        let (small, large) = if self.size() <= other.size() { (self, other) } else { (other, self) };
        match (small, large) {
            (one, other) if one == other => Some(one),
            (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => Some(DType::F32),
            _ if self.is_float() == other.is_float() && self.is_int() == other.is_int() => Some(large),
            _ => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    use crate::error::Result;
    use crate::tensor::Raw;

    /// Elements have no padding, so that they can be moved as bytes.
    pub trait Sealed: bytemuck::NoUninit + bytemuck::Zeroable {
        /// Copies a host tensor of this element type in row-major order. A method here is compiled once.
        fn copy_out(from: &Raw, op: &'static str, out: &mut [Self]) -> Result<()>;
    }
}

/// `seal! { type, the type of its bits }`
macro_rules! seal {
    ($type:ty, $bits:ty) => {
        impl sealed::Sealed for $type {
            fn copy_out(from: &Raw, op: &'static str, out: &mut [Self]) -> Result<()> {
                cpu::copy(from.host(op)?.bits::<$bits>(&from.layout), bytemuck::cast_slice_mut(out));
                Ok(())
            }
        }
    };
}

/// A type that tensors can hold: `f32 f64 f16 bf16 i64 i32 u8 bool`.
///
/// Addition and multiplication wrap for integers; for `bool` they are *or* and *and*, as in PyTorch.
pub trait Element:
    sealed::Sealed + ElementOf<<Self as Element>::Kind> + Copy + Send + Sync + PartialEq + PartialOrd + fmt::Debug + 'static
{
    /// The kind of tensors that hold such elements.
    type Kind: Kind;
    /// The type's run-time name.
    const DTYPE: DType;
    /// The additive identity.
    const ZERO: Self;
    /// The multiplicative identity.
    const ONE: Self;

    /// The value, exactly.
    fn to_scalar(self) -> Scalar;
    /// The number in this type. A float type rounds it to the nearest value. An integer type wraps integers, and
    /// truncates floats (saturating). As a `bool`, anything but zero is `true`.
    fn from_scalar(scalar: Scalar) -> Self;
    /// Bytes as elements. The bytes must be aligned and written as this type (or zeroed).
    #[doc(hidden)]
    fn slice(bytes: &[u8]) -> &[Self];
    /// Mutable bytes as elements; see [`Element::slice`].
    #[doc(hidden)]
    fn slice_mut(bytes: &mut [u8]) -> &mut [Self];

    /// The nearest value to an `f64`; see [`Element::from_scalar`].
    #[inline]
    fn from_f64(value: f64) -> Self {
        Self::from_scalar(Scalar::Float(value))
    }

    /// The same number in another type, converted as by Rust's `as`.
    #[inline]
    fn cast<U: Element>(self) -> U {
        U::from_scalar(self.to_scalar())
    }
}

/// The types that kernels compute in: `f32 f64 i64 i32 u8`. The half types are widened to `f32` and rounded; truth values
/// are the bytes 0 and 1.
pub(crate) trait Computing: Element + bytemuck::Pod {
    /// The type of sums: `i64` for integers, as in PyTorch.
    type Total: Num;

    /// `self + other`, wrapping.
    fn plus(self, other: Self) -> Self;
    /// `self · other`, wrapping.
    fn times(self, other: Self) -> Self;
    /// Converts the number to the type of sums, without loss.
    fn to_total(self) -> Self::Total;
    /// The type in which running sums and products are computed: `f64` or `i64`.
    type Wide: Num;
    /// Whether halves compute in this type, as a constant: loops over halves are compiled only then.
    const HAS_HALVES: bool = false;
    /// The numbers as `f32`, to which halves are widened; only `f32` has this.
    fn f32s(_: &mut [Self]) -> &mut [f32] {
        unreachable!("halves compute in f32")
    }
    /// The numbers as `f32`, from which halves are rounded; only `f32` has this.
    fn as_f32s(_: &[Self]) -> &[f32] {
        unreachable!("halves compute in f32")
    }
    /// A block of halves, widened.
    fn widened(_: impl Registers, _: &Block) -> [Self; BLOCK] {
        unreachable!("halves compute in f32")
    }
    /// A block of numbers, rounded to halves.
    fn narrowed(_: impl Registers, _: &[Self; BLOCK]) -> Block {
        unreachable!("halves compute in f32")
    }
}

/// Numbers. Integer arithmetic wraps.
pub(crate) trait Num: Computing + math::Division {
    /// `self − other`.
    fn minus(self, other: Self) -> Self;
    /// `−self`.
    fn negated(self) -> Self;
    /// `|self|`.
    fn magnitude(self) -> Self;
    /// The smallest value (−∞ for floats).
    const LOWEST: Self;
    /// The largest value (∞ for floats).
    const HIGHEST: Self;
    /// Whether this is not a number.
    fn is_nan(self) -> bool;
    /// The larger number (`MAX`) or the smaller one; NaN if either is NaN.
    fn extreme<const MAX: bool>(self, other: Self) -> Self;
}

/// `f32` and `f64`, the types that floating-point kernels compute in.
pub(crate) trait Real:
    Num
    + Computing<Total = Self>
    + math::Functions
    + Lanes
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
{
    /// The largest finite number.
    const LARGEST: Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// xʸ for y ≠ 0.
    fn powf(self, exponent: Self) -> Self;
}

macro_rules! pod_slices {
    () => {
        fn slice(bytes: &[u8]) -> &[Self] {
            bytemuck::cast_slice(bytes)
        }
        fn slice_mut(bytes: &mut [u8]) -> &mut [Self] {
            bytemuck::cast_slice_mut(bytes)
        }
    };
}

macro_rules! integer {
    ($type:ty, $bits:ty, $dtype:expr, $abs:expr) => {
        seal!($type, $bits);
        impl Element for $type {
            type Kind = Int;
            const DTYPE: DType = $dtype;
            const ZERO: Self = 0;
            const ONE: Self = 1;
            #[inline(always)]
            fn to_scalar(self) -> Scalar {
                Scalar::Int(self as i64)
            }
            #[inline(always)]
            fn from_scalar(scalar: Scalar) -> Self {
                match scalar {
                    Scalar::Int(value) => value as Self,
                    Scalar::Float(value) => value as Self,
                }
            }
            pod_slices!();
        }
        impl Computing for $type {
            type Total = i64;
            type Wide = i64;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn to_total(self) -> i64 {
                self as i64
            }
        }
        impl Num for $type {
            const LOWEST: Self = Self::MIN;
            const HIGHEST: Self = Self::MAX;
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn negated(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                $abs(self)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
            #[inline(always)]
            fn extreme<const MAX: bool>(self, other: Self) -> Self {
                if MAX { self.max(other) } else { self.min(other) }
            }
        }
    };
}

integer!(i64, u64, DType::I64, i64::wrapping_abs);
integer!(i32, u32, DType::I32, i32::wrapping_abs);
integer!(u8, u8, DType::U8, |value: u8| value);

/// `float!(type, its bits, its element type, 1, conversion from f64, from i64)`. Conversions round to nearest even.
macro_rules! float {
    ($type:ty, $bits:ty, $dtype:expr, $one:expr, $from_float:expr, $from_int:expr) => {
        seal!($type, $bits);
        impl Element for $type {
            type Kind = Float;
            const DTYPE: DType = $dtype;
            const ZERO: Self = <$type>::from_bits(0);
            const ONE: Self = $one;
            #[inline(always)]
            fn to_scalar(self) -> Scalar {
                Scalar::Float(f64::from(self))
            }
            #[inline(always)]
            fn from_scalar(scalar: Scalar) -> Self {
                match scalar {
                    Scalar::Int(value) => $from_int(value),
                    Scalar::Float(value) => $from_float(value),
                }
            }
            pod_slices!();
        }
    };
}

#[inline(always)]
fn f16_from(value: f64) -> f16 {
    math::half::f32_to_f16(math::half::f64_to_f32_odd(value))
}

#[inline(always)]
fn bf16_from(value: f64) -> bf16 {
    math::half::f32_to_bf16(math::half::f64_to_f32_odd(value))
}

// An i64 does not become f32 by way of f64, which would round twice.
float!(f32, u32, DType::F32, 1.0, |value: f64| value as f32, |value: i64| value as f32);
float!(f64, u64, DType::F64, 1.0, |value: f64| value, |value: i64| value as f64);
float!(f16, u16, DType::F16, f16::ONE, f16_from, |value: i64| f16_from(value as f64));
float!(bf16, u16, DType::BF16, bf16::ONE, bf16_from, |value: i64| bf16_from(value as f64));

macro_rules! real {
    ($type:ty, $math:ident, $($halves:item)*) => {
        impl Computing for $type {
            type Total = Self;
            type Wide = f64;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn to_total(self) -> Self {
                self
            }
            $($halves)*
        }
        impl Num for $type {
            const LOWEST: Self = <$type>::NEG_INFINITY;
            const HIGHEST: Self = <$type>::INFINITY;
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn negated(self) -> Self {
                -self
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                <$type>::is_nan(self)
            }
            // Each selection is one instruction: `of_b` is NaN if `b` is, `of_a` if `a` is. The bits of a NaN, or-ed
            // with those of any number, are a NaN.
            #[inline(always)]
            fn extreme<const MAX: bool>(self, other: Self) -> Self {
                let (a, b) = (self, other);
                let of_b = if (MAX && a > b) || (!MAX && a < b) { a } else { b };
                let of_a = if (MAX && b > a) || (!MAX && b < a) { b } else { a };
                Self::from_bits(of_b.to_bits() | of_a.to_bits())
            }
        }
        impl Real for $type {
            const LARGEST: Self = <$type>::MAX;
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$type>::sqrt(self)
            }
            #[inline(always)]
            fn powf(self, exponent: Self) -> Self {
                math::$math::pow(self, exponent)
            }
        }
    };
}

real! {
    f32, f32,
    const HAS_HALVES: bool = true;
    #[inline(always)]
    fn f32s(numbers: &mut [f32]) -> &mut [f32] {
        numbers
    }
    #[inline(always)]
    fn as_f32s(numbers: &[f32]) -> &[f32] {
        numbers
    }
    #[inline(always)]
    fn widened(registers: impl Registers, bits: &Block) -> [f32; BLOCK] {
        registers.widen(bits)
    }
    #[inline(always)]
    fn narrowed(registers: impl Registers, numbers: &[f32; BLOCK]) -> Block {
        registers.narrow(numbers)
    }
}
real! { f64, f64, }

impl sealed::Sealed for bool {
    fn copy_out(from: &Raw, op: &'static str, out: &mut [Self]) -> Result<()> {
        cpu::copy_lines(from.read(op)?.view(&from.layout), out);
        Ok(())
    }
}
impl Element for bool {
    type Kind = Bool;
    const DTYPE: DType = DType::Bool;
    const ZERO: Self = false;
    const ONE: Self = true;
    #[inline(always)]
    fn to_scalar(self) -> Scalar {
        Scalar::Int(i64::from(self))
    }
    #[inline(always)]
    fn from_scalar(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Int(value) => value != 0,
            Scalar::Float(value) => value != 0.0,
        }
    }
    // Checked casts: each byte is looked at, so that no byte but 0 and 1 is ever read as a bool.
    fn slice(bytes: &[u8]) -> &[Self] {
        bytemuck::checked::cast_slice(bytes)
    }
    fn slice_mut(bytes: &mut [u8]) -> &mut [Self] {
        bytemuck::checked::cast_slice_mut(bytes)
    }
}
