//! Tensors made of arrays of the crate `ndarray`, and array views of a tensor's elements.

use ndarray::{ArrayBase, ArrayViewD, Data, Dimension, IxDyn};
use pagelock_tensor::{Element, HostElements, Tensor};

use crate::Result;

/// A tensor of an array's elements. The array may have any layout. The elements are copied once, because tensors need
/// memory that begins at a multiple of 64 bytes, and an array's rarely does.
///
/// # Errors
/// [`Error::Tensor`](crate::Error::Tensor) for more than 8 dimensions, or if the budget refuses.
///
/// # Examples
/// ```
/// use ndarray::array;
/// use pagelock_data::from_ndarray;
///
/// let columns = array![[1.0_f32, 2.0], [3.0, 4.0]].reversed_axes();
/// assert_eq!(from_ndarray(&columns)?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub fn from_ndarray<S: Data<Elem: Element>, D: Dimension>(
    array: &ArrayBase<S, D>,
) -> Result<Tensor<<S::Elem as Element>::Kind>> {
    copied(array.view().into_dyn())
}

/// Compiled once for each element type.
fn copied<T: Element>(array: ArrayViewD<'_, T>) -> Result<Tensor<T::Kind>> {
    Ok(Tensor::build(array.shape(), |out: &mut [T]| match array.as_slice() {
        Some(elements) => out.copy_from_slice(elements),
        None => out.iter_mut().zip(array.iter()).for_each(|(to, from)| *to = *from),
    })?)
}

/// The elements of a tensor as an array, without a copy.
///
/// # Examples
/// ```
/// use pagelock_data::ndarray_view;
/// use pagelock_tensor::Tensor;
///
/// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?;
/// let elements = x.into_elements::<f32>()?; // no copy either, if `x` was the only handle
/// let view = ndarray_view(&elements);
/// assert_eq!((view.shape(), view[[1, 0]], view.sum()), (&[2, 2][..], 3.0, 10.0));
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn ndarray_view<T: Element>(elements: &HostElements<T>) -> ArrayViewD<'_, T> {
    ArrayViewD::from_shape(IxDyn(elements.dims()), elements)
        .unwrap_or_else(|error| unreachable!("the shape has as many elements: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array, Axis, Slice};
    use pagelock_tensor::DType;

    #[test]
    fn views_of_any_layout_are_copied_in_the_order_of_their_elements() {
        let array = Array::from_shape_fn((3, 4), |(row, column)| (10 * row + column) as i64);
        let mut view = array.slice_axis(Axis(1), Slice::new(1, Some(4), 2));
        view.invert_axis(Axis(0));
        let tensor = from_ndarray(&view).unwrap();
        assert_eq!((tensor.dims(), tensor.dtype()), (&[3, 2][..], DType::I64));
        assert_eq!(tensor.to_vec::<i64>().unwrap(), [21, 23, 11, 13, 1, 3]);
        assert_eq!(from_ndarray(&array).unwrap().to_vec::<i64>().unwrap(), array.iter().copied().collect::<Vec<_>>());
        let half = Array::from_elem((2,), half::bf16::from_f32(1.5));
        assert_eq!(from_ndarray(&half).unwrap().to_vec::<f32>().unwrap(), [1.5, 1.5]);
    }

    #[test]
    fn what_a_tensor_becomes_and_what_comes_back_is_equal() {
        let x = Tensor::arange(0.0, 24.0, 1.0).unwrap().reshape([2, 3, 4]).unwrap().permute([1, 0, 2]).unwrap();
        let elements = x.clone().into_elements::<f32>().unwrap();
        let back = from_ndarray(&ndarray_view(&elements)).unwrap();
        assert_eq!((back.dims(), back.to_vec::<f32>().unwrap()), (x.dims(), x.to_vec::<f32>().unwrap()));
    }

    #[test]
    fn an_array_of_more_dimensions_than_a_tensor_has_is_refused() {
        let array = Array::from_elem(vec![1; 9], 0.0_f32);
        assert!(from_ndarray(&array).unwrap_err().to_string().contains('8'));
    }
}
