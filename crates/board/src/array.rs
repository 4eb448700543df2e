//! The values that the writer takes: numbers with a shape, from slices, vectors, arrays or tensors.

use std::borrow::Cow;

#[cfg(feature = "tensors")]
use pagelock_tensor::CountedHeap;

use crate::error::{Result, collect, ensure};

/// Numbers in row-major order, and their shape.
///
/// # Examples
/// ```
/// use pagelock_board::Array;
///
/// let pixels = vec![0u8; 3 * 28 * 28];
/// let picture = Array::new(&pixels, [3, 28, 28])?;
/// assert_eq!(picture.shape(), [3, 28, 28]);
/// assert_eq!(
///     Array::new(&pixels, [28, 28]).unwrap_err().to_string(),
///     "2352 values do not fill the shape [28, 28], which holds 784"
/// );
/// # Ok::<(), pagelock_board::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Array<'a> {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Values<'a>,
    /// Of the values of a tensor.
    #[cfg(feature = "tensors")]
    pub(crate) counted: std::sync::Arc<CountedHeap>,
}

/// The element types of an [`Array`]: `u8`, `i64`, `f32`, `f64`. Values of a picture go from 0 to 255 if they are `u8`,
/// otherwise from 0 to 1.
pub trait Number: sealed::Number {}

pub(crate) use sealed::Values;

mod sealed {
    use std::borrow::Cow;

    /// The numbers of an [`Array`], in their original precision.
    #[derive(Debug, Clone, PartialEq)]
    pub enum Values<'a> {
        U8(Cow<'a, [u8]>),
        I64(Cow<'a, [i64]>),
        F32(Cow<'a, [f32]>),
        F64(Cow<'a, [f64]>),
    }

    pub trait Number: Sized + Clone {
        fn values(values: Cow<'_, [Self]>) -> Values<'_>;
    }

    macro_rules! numbers {
        ($($number:ty => $variant:ident),+) => {$(
            impl super::Number for $number {}
            impl Number for $number {
                fn values(values: Cow<'_, [Self]>) -> Values<'_> {
                    Values::$variant(values)
                }
            }
        )+};
    }
    numbers!(u8 => U8, i64 => I64, f32 => F32, f64 => F64);
}

impl<'a> Array<'a> {
    /// An array of `values` with a shape.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the number of values is not the product of the shape.
    pub fn new<T: Number>(values: &'a [T], shape: impl Into<Vec<usize>>) -> Result<Self> {
        Self::of(T::values(Cow::Borrowed(values)), shape.into())
    }

    pub(crate) fn of(values: Values<'a>, shape: Vec<usize>) -> Result<Self> {
        let holds = shape.iter().try_fold(1usize, |len, &size| len.checked_mul(size));
        let (len, holds) = (values.len(), holds.unwrap_or(usize::MAX));
        ensure!(len == holds, "{len} values do not fill the shape {shape:?}, which holds {holds}");
        Ok(Self {
            shape,
            values,
            #[cfg(feature = "tensors")]
            counted: CountedHeap::new(0).into(),
        })
    }

    /// The size of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of values.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// The value at a position in row-major order.
    pub(crate) fn f64(&self, at: usize) -> f64 {
        match &self.values {
            Values::U8(values) => values[at].into(),
            Values::I64(values) => values[at] as f64,
            Values::F32(values) => values[at].into(),
            Values::F64(values) => values[at],
        }
    }

    /// [`f64`](Self::f64), rounded once.
    pub(crate) fn f32(&self, at: usize) -> f32 {
        match &self.values {
            Values::I64(values) => values[at] as f32,
            _ => self.f64(at) as f32,
        }
    }

    /// A copy of the values.
    pub(crate) fn to_f32(&self) -> Result<Vec<f32>> {
        collect("a copy of the values", self.len(), (0..self.len()).map(|at| self.f32(at)))
    }

    /// The values as bytes of a picture: `u8` unchanged, others times 255 and clamped to 0..=255.
    pub(crate) fn to_bytes(&self) -> Result<Cow<'_, [u8]>> {
        let byte = |at| (self.f32(at) * 255.0) as u8; // `as` saturates; NaN is 0
        match &self.values {
            Values::U8(values) => Ok(Cow::Borrowed(values)),
            _ => Ok(Cow::Owned(collect("the bytes of a picture", self.len(), (0..self.len()).map(byte))?)),
        }
    }
}

impl Values<'_> {
    fn len(&self) -> usize {
        match self {
            Values::U8(values) => values.len(),
            Values::I64(values) => values.len(),
            Values::F32(values) => values.len(),
            Values::F64(values) => values.len(),
        }
    }
}

/// Types that can be read as an [`Array`]: arrays, slices and vectors of numbers, and with the feature `tensors` the
/// tensors of `pagelock-tensor`, on any device.
pub trait ToArray {
    /// The values: borrowed from arrays, slices and vectors, copied from tensors.
    ///
    /// # Errors
    /// The tensor's error, if it cannot be read.
    fn to_array(&self) -> Result<Array<'_>>;
}

impl ToArray for Array<'_> {
    fn to_array(&self) -> Result<Array<'_>> {
        let values = match &self.values {
            Values::U8(values) => Values::U8(Cow::Borrowed(values)),
            Values::I64(values) => Values::I64(Cow::Borrowed(values)),
            Values::F32(values) => Values::F32(Cow::Borrowed(values)),
            Values::F64(values) => Values::F64(Cow::Borrowed(values)),
        };
        Array::of(values, self.shape.clone())
    }
}

impl<T: Number> ToArray for [T] {
    fn to_array(&self) -> Result<Array<'_>> {
        Array::new(self, [self.len()])
    }
}

impl<T: Number> ToArray for Vec<T> {
    fn to_array(&self) -> Result<Array<'_>> {
        self.as_slice().to_array()
    }
}

impl<T: Number, const N: usize> ToArray for [T; N] {
    fn to_array(&self) -> Result<Array<'_>> {
        self.as_slice().to_array()
    }
}

/// Types that can be read as one number: Rust's numbers, and with the feature `tensors` tensors with one element.
pub trait ToScalar {
    /// The number.
    ///
    /// # Errors
    /// The tensor's error, if it has more than one element or cannot be read.
    fn to_scalar(&self) -> Result<f64>;
}

impl<T: ToScalar + ?Sized> ToScalar for &T {
    fn to_scalar(&self) -> Result<f64> {
        (**self).to_scalar()
    }
}

macro_rules! scalars {
    ($($number:ty)+) => {$(
        impl ToScalar for $number {
            fn to_scalar(&self) -> Result<f64> {
                Ok(*self as f64)
            }
        }
    )+};
}
scalars!(f32 f64 i8 i16 i32 i64 isize u8 u16 u32 u64 usize);
