//! Kinds of tensors: floats, integers and truth values. A tensor's kind is part of its Rust type, its precision is a value.
//!
//! The kind determines what a tensor can be used for: only floats have gradients, only integers are indices, only
//! truth values are masks. So labels in the place of floats do not compile. The traits are sealed: kernels exist for
//! these kinds alone.

use std::sync::atomic::{AtomicU8, Ordering};

use half::{bf16, f16};

use crate::element::{DType, Element, Scalar};
use crate::error::{Error, Result};

/// Floating-point numbers, of `float16`, `bfloat16`, `float32` or `float64`.
#[derive(Debug, Clone, Copy)]
pub enum Float {}

/// Whole numbers, of `uint8`, `int32` or `int64`.
#[derive(Debug, Clone, Copy)]
pub enum Int {}

/// Truth values.
#[derive(Debug, Clone, Copy)]
pub enum Bool {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Float {}
    impl Sealed for super::Int {}
    impl Sealed for super::Bool {}
}

/// The kind of a tensor's elements: [`Float`], [`Int`] or [`Bool`].
pub trait Kind: sealed::Sealed + Send + Sync + 'static {
    /// Its name in errors.
    const NAME: &'static str;

    /// The precision of tensors for which none is named: [`default_dtype`](crate::default_dtype) for floats, `int64`, `bool`.
    fn default_dtype() -> DType;

    /// Whether tensors of this kind may hold such elements.
    fn holds(dtype: DType) -> bool;
}

/// A kind as a value: for code that is compiled once, not for each kind in each program.
pub(crate) struct Facts {
    name: &'static str,
    default_dtype: fn() -> DType,
    holds: fn(DType) -> bool,
}

pub(crate) fn facts<K: Kind>() -> Facts {
    Facts { name: K::NAME, default_dtype: K::default_dtype, holds: K::holds }
}

impl Facts {
    /// The requested precision, or else the default.
    pub(crate) fn dtype(&self, op: &'static str, requested: Option<DType>) -> Result<DType> {
        match requested {
            None => Ok((self.default_dtype)()),
            Some(dtype) if (self.holds)(dtype) => Ok(dtype),
            Some(dtype) => Err(Error::WrongKind { op, dtype, kind: self.name }),
        }
    }
}

/// The kinds that can be added and multiplied: [`Float`] and [`Int`].
pub trait Numeric: Kind {}

impl Kind for Float {
    const NAME: &'static str = "float";

    fn default_dtype() -> DType {
        default_dtype()
    }

    fn holds(dtype: DType) -> bool {
        dtype.is_float()
    }
}

impl Kind for Int {
    const NAME: &'static str = "integer";

    fn default_dtype() -> DType {
        DType::I64
    }

    fn holds(dtype: DType) -> bool {
        dtype.is_int()
    }
}

impl Kind for Bool {
    const NAME: &'static str = "bool";

    fn default_dtype() -> DType {
        DType::Bool
    }

    fn holds(dtype: DType) -> bool {
        dtype == DType::Bool
    }
}

impl Numeric for Float {}
impl Numeric for Int {}

/// A plain number or truth value: what [`Number`] is made of.
pub trait PlainNumber: Copy {
    /// The number, exactly.
    #[doc(hidden)]
    fn scalar(self) -> Scalar;
}

/// A plain number beside a tensor of kind `K`: `&x * 2.0`, `&x * 2`, `&labels + 1`.
///
/// The number is converted to the type that the tensor computes in (`f32` for the half types), and the result is
/// rounded once.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number for tensors of kind `{K}`",
    note = "float tensors take floats and integers, integer tensors take integers, and bool tensors take truth values",
    note = "convert tensors of different kinds to one kind: `labels.to_float()?`; `clamp` with one bound is `clamp_min` or `clamp_max`"
)]
pub trait Number<K: Kind>: PlainNumber {}

macro_rules! numbers {
    ($($type:ty: $($kind:ty),+;)+) => { $(
        impl PlainNumber for $type {
            #[inline]
            fn scalar(self) -> Scalar {
                Element::to_scalar(self)
            }
        }
        $(impl Number<$kind> for $type {})+
    )+ };
}

numbers! {
    f32: Float;
    f64: Float;
    f16: Float;
    bf16: Float;
    i64: Float, Int;
    i32: Float, Int;
    u8: Float, Int;
    bool: Bool;
}

/// A type that tensors of kind `K` are made of: `f32`, `f64`, `f16` and `bf16` for floats, `i64`, `i32` and `u8` for integers.
#[diagnostic::on_unimplemented(
    message = "tensors of kind `{K}` are not made of `{Self}`",
    label = "of another kind than the requested tensor",
    note = "floats have a point, `Tensor::new([1.0, 2.0])`; integers without one make a `Tensor<Int>`, which `to_float()` converts"
)]
pub trait ElementOf<K> {}

macro_rules! elements {
    ($($kind:ty: $($type:ty),+;)+) => { $($(impl ElementOf<$kind> for $type {})+)+ };
}

elements! {
    Float: f32, f64, f16, bf16;
    Int: i64, i32, u8;
    Bool: bool;
}

/// Sizes and counts.
impl PlainNumber for usize {
    #[inline]
    fn scalar(self) -> Scalar {
        Scalar::Int(i64::try_from(self).unwrap_or(i64::MAX))
    }
}

impl Number<Float> for usize {}
impl Number<Int> for usize {}

/// The precisions that float tensors can have by default; `DEFAULT` is an index into them.
const DEFAULTS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];
static DEFAULT: AtomicU8 = AtomicU8::new(0); // Relaxed: guards no other memory

/// The precision of float tensors for which none is named: `float32`, unless [`set_default_dtype`] changed it.
pub fn default_dtype() -> DType {
    DEFAULTS[usize::from(DEFAULT.load(Ordering::Relaxed))]
}

/// Sets the precision of float tensors for which none is named, in all threads, as PyTorch's `torch.set_default_dtype`.
///
/// ```
/// # use pagelock_tensor::{DType, Tensor, set_default_dtype};
/// set_default_dtype(DType::F64)?;
/// assert_eq!(Tensor::zeros([2, 3])?.dtype(), DType::F64);
/// # set_default_dtype(DType::F32)?;
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::WrongKind`] for a type that is no float.
pub fn set_default_dtype(dtype: DType) -> Result<()> {
    let Some(index) = DEFAULTS.iter().position(|&default| default == dtype) else {
        return Err(Error::WrongKind { op: "set_default_dtype", dtype, kind: Float::NAME });
    };
    DEFAULT.store(index as u8, Ordering::Relaxed);
    Ok(())
}
