//! Values of Arrow arrays without a copy: the buffers of `arrow-buffer`, on which Rust's Arrow arrays are built.

use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use bytes::Bytes;
use pagelock_memory::{Foreign, HostBuffer};
use pagelock_tensor::{AnyTensor, Bool, DType, Element, Tensor};

use crate::elements::with_element;
use crate::{Error, Result};

/// A tensor of the values of a primitive array: `from_arrow(array.values(), array.nulls())`.
///
/// Nothing is copied if the values begin at a multiple of 64 bytes, as in buffers that Arrow allocated. The tensor
/// then keeps the buffer alive and cannot be changed in place; the buffer counts in no budget. Other values, for
/// example those of a slice that begins later, or of a buffer that was made from a `Vec`, are copied once.
///
/// # Errors
/// [`Error::Argument`] if a value is null; [`Error::Tensor`] if the budget refuses a copy.
///
/// # Examples
/// ```
/// use arrow_buffer::{MutableBuffer, ScalarBuffer};
/// use pagelock_data::from_arrow;
///
/// let mut buffer = MutableBuffer::new(12);
/// buffer.extend_from_slice(&[1.0_f32, 2.0, 3.0]);
/// let values = ScalarBuffer::<f32>::from(buffer); // or `array.values()`
/// let x = from_arrow(&values, None)?;
/// assert_eq!(x.sum(..)?.item::<f32>()?, 6.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn from_arrow<T: ArrowNativeType + Element>(
    values: &ScalarBuffer<T>,
    nulls: Option<&NullBuffer>,
) -> Result<Tensor<T::Kind>> {
    Ok(tensor_of(values.inner(), nulls, T::DTYPE)?.kind()?)
}

/// A tensor of truth values. This is a copy, since Arrow packs eight values into a byte and tensors do not.
///
/// # Errors
/// As [`from_arrow`].
///
/// # Examples
/// ```
/// use arrow_buffer::BooleanBuffer;
/// use pagelock_data::from_arrow_bool;
///
/// let x = from_arrow_bool(&BooleanBuffer::from(vec![true, false, true]), None)?;
/// assert_eq!(x.to_vec::<bool>()?, [true, false, true]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub fn from_arrow_bool(values: &BooleanBuffer, nulls: Option<&NullBuffer>) -> Result<Tensor<Bool>> {
    refuse_nulls(nulls)?;
    let fill = |out: &mut [bool]| out.iter_mut().zip(values).for_each(|(to, value)| *to = value);
    Ok(Tensor::build(values.len(), fill)?)
}

/// The elements of a tensor in row-major order, for a primitive array: `PrimitiveArray::new(to_arrow(x)?, None)`.
/// Nothing is copied if `tensor` is the only handle to its storage, is contiguous, and has elements of type `T`;
/// otherwise the elements are copied once. They count in the budget until Arrow frees them.
///
/// # Errors
/// [`Error::Tensor`] if the budget refuses a copy, or a device cannot be read.
///
/// # Examples
/// ```
/// use pagelock_data::to_arrow;
/// use pagelock_tensor::Tensor;
///
/// assert_eq!(to_arrow::<f32>(Tensor::new([1.0, 2.0])?)?[..], [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn to_arrow<T: ArrowNativeType + Element>(tensor: Tensor<T::Kind>) -> Result<ScalarBuffer<T>> {
    let elements = tensor.into_elements::<T>()?;
    let len = elements.len();
    Ok(ScalarBuffer::new(Buffer::from(Bytes::from_owner(elements)), 0, len))
}

fn refuse_nulls(nulls: Option<&NullBuffer>) -> Result<()> {
    match nulls.map_or(0, NullBuffer::null_count) {
        0 => Ok(()),
        n_nulls => {
            let problem = "which a tensor cannot represent; fill or filter them first";
            Err(Error::Argument(format!("from_arrow: {n_nulls} values are null, {problem}")))
        }
    }
}

/// The part that is compiled once here, instead of in every program.
fn tensor_of(values: &Buffer, nulls: Option<&NullBuffer>, dtype: DType) -> Result<AnyTensor> {
    refuse_nulls(nulls)?;
    match Foreign::new(SharedBuffer(values.clone())) {
        Ok(block) => Ok(AnyTensor::from_buffer(HostBuffer::from_block(block), dtype)?),
        Err(SharedBuffer(values)) => with_element!(dtype, T => {
            let fill = |out: &mut [T]| out.copy_from_slice(T::slice(&values));
            Ok(Tensor::build(values.len() / size_of::<T>(), fill)?.into())
        }),
    }
}

/// A buffer whose bytes nobody can write while this handle exists.
struct SharedBuffer(Buffer);

impl AsRef<[u8]> for SharedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_buffer::MutableBuffer;
    use pagelock_memory::default_host;

    fn values(n: usize) -> ScalarBuffer<f64> {
        let mut buffer = MutableBuffer::new(8 * n);
        buffer.extend_from_slice(&(0..n).map(|i| i as f64).collect::<Vec<_>>());
        ScalarBuffer::from(buffer)
    }

    #[test]
    fn aligned_values_are_shared_and_others_copied() {
        let values = values(1_000);
        let address = |tensor: Tensor| to_arrow::<f64>(tensor).unwrap().as_ptr();
        let (whole, part) = (values.clone(), values.slice(3, 900));
        let shared = from_arrow(&whole, None).unwrap();
        assert_eq!(shared.sum(..).unwrap().item::<f64>().unwrap(), 499_500.0);
        assert!(shared.fill_(0.0).is_err());
        assert_eq!(address(shared), whole.as_ptr());
        let copied = from_arrow(&part, None).unwrap();
        assert_eq!(copied.to_vec::<f64>().unwrap()[..2], [3.0, 4.0]);
        copied.fill_(0.0).unwrap();
        assert_ne!(address(copied), part.as_ptr());
        assert_eq!(values[3], 3.0);
    }

    #[test]
    fn elements_stay_in_the_budget_until_arrow_is_done_with_them() {
        let before = default_host().stats().live_bytes;
        let values = to_arrow::<f32>(Tensor::zeros([100_000]).unwrap()).unwrap();
        assert!(default_host().stats().live_bytes >= before + 400_000);
        drop(values);
        assert!(default_host().stats().live_bytes < before + 400_000);
    }

    #[test]
    fn nulls_are_refused() {
        let nulls = NullBuffer::from(vec![true, false, true]);
        assert_eq!(
            from_arrow(&values(3), Some(&nulls)).unwrap_err().to_string(),
            "from_arrow: 1 values are null, which a tensor cannot represent; fill or filter them first"
        );
        let valid = NullBuffer::new_valid(3);
        assert_eq!(from_arrow(&values(3), Some(&valid)).unwrap().len(), 3);
    }
}
