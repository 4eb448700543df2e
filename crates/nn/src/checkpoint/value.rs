//! [`CheckpointValue`]: numbers and strings as tensors, so that a file holds their exact bits.

use pagelock_tensor::{AnyTensor, CountedHeap, DType, Element, Int, Result, Tensor};

/// A value that a checkpoint can save: an integer, a float, a boolean or a string. A composite value can be saved as
/// a string, such as JSON. Floats keep their exact bits, including NaN and infinities.
pub trait CheckpointValue: Sized {
    /// The name of the type in error messages.
    const NAME: &'static str;

    /// The tensor that stores the value in a file.
    ///
    /// # Errors
    /// It does not fit the memory budget.
    fn to_tensor(&self) -> Result<AnyTensor>;

    /// The value that [`to_tensor`](Self::to_tensor) stored; `None` if that was of another type, or does not fit in
    /// this one.
    ///
    /// # Errors
    /// The tensor cannot be read.
    fn from_tensor(tensor: &AnyTensor) -> Result<Option<Self>>;
}

/// A file stores integers as `i64`, and integers above the range of `i64` as strings.
macro_rules! integers {
    ($($type:ident)*) => {$(
        impl CheckpointValue for $type {
            const NAME: &'static str = stringify!($type);

            fn to_tensor(&self) -> Result<AnyTensor> {
                match i64::try_from(*self) {
                    Ok(number) => Ok(Tensor::<Int>::full((), number)?.into()),
                    Err(_) => text(&self.to_string()),
                }
            }

            fn from_tensor(tensor: &AnyTensor) -> Result<Option<Self>> {
                if tensor.dtype() == DType::U8 {
                    let number = text_of(tensor)?.and_then(|text| text.parse::<Self>().ok());
                    return Ok(number.filter(|&number| i64::try_from(number).is_err())); // `to_tensor` stores no other
                }
                let Some(tensor) = scalar(tensor, DType::I64) else { return Ok(None) };
                Ok(tensor.int()?.item::<i64>()?.try_into().ok())
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);

/// Types that a tensor of one element stores exactly.
macro_rules! elements {
    ($($name:ident $dtype:ident $kind:ident)*) => {$(
        impl CheckpointValue for $name {
            const NAME: &'static str = stringify!($name);

            fn to_tensor(&self) -> Result<AnyTensor> {
                Ok(Tensor::of(DType::$dtype).full((), *self)?.into())
            }

            fn from_tensor(tensor: &AnyTensor) -> Result<Option<Self>> {
                scalar(tensor, DType::$dtype).map(|tensor| tensor.$kind()?.item()).transpose()
            }
        }
    )*};
}

elements!(f64 F64 float f32 F32 float bool Bool bool);

impl CheckpointValue for String {
    const NAME: &'static str = "a string";

    fn to_tensor(&self) -> Result<AnyTensor> {
        text(self)
    }

    fn from_tensor(tensor: &AnyTensor) -> Result<Option<Self>> {
        text_of(tensor)
    }
}

/// The tensor, if it has no dimensions and this element type.
fn scalar(tensor: &AnyTensor, dtype: DType) -> Option<&AnyTensor> {
    (tensor.dtype() == dtype && tensor.shape().rank() == 0).then_some(tensor)
}

/// A string as a tensor of its bytes.
fn text(text: &str) -> Result<AnyTensor> {
    Ok(Tensor::of(DType::U8).from_slice(text.as_bytes(), text.len())?.into())
}

fn text_of(tensor: &AnyTensor) -> Result<Option<String>> {
    if tensor.dtype() != DType::U8 || tensor.shape().rank() != 1 {
        return Ok(None);
    }
    Ok(String::from_utf8(numbers(&tensor.int()?)?).ok())
}

/// The elements, if the budget has room for this copy of them.
pub(super) fn numbers<T: Element>(tensor: &Tensor<T::Kind>) -> Result<Vec<T>> {
    let _copy = CountedHeap::granted("checkpoint", "a copy of its numbers", tensor.len() * size_of::<T>())?;
    tensor.to_vec()
}
