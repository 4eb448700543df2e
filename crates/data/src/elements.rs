//! From a precision, which is a value at run time, to the Rust type of its elements; and the elements of tensors.

use pagelock_memory::HeapReservation;
use pagelock_tensor::{DType, Element, Error as TensorError, IntoShape, Tensor};

use crate::Result;

/// `$body` with `$element` as the Rust type of the elements that `$dtype` names.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {{
        let dtype: pagelock_tensor::DType = $dtype;
        crate::elements::with_element!(dtype, $element => $body;
            F32: f32, F64: f64, F16: half::f16, BF16: half::bf16, I64: i64, I32: i32, U8: u8, Bool: bool)
    }};
    ($dtype:ident, $element:ident => $body:expr; $($name:ident: $type:ty),+) => {
        match $dtype {
            $(pagelock_tensor::DType::$name => {
                type $element = $type;
                $body
            })+
            other => unreachable!("{other} is one of the eight element types"),
        }
    };
}
pub(crate) use with_element;

/// [`Tensor::build`] with a `fill` that may fail.
pub(crate) fn try_build<T: Element, E: From<TensorError>>(
    shape: impl IntoShape,
    fill: impl FnOnce(&mut [T]) -> Result<(), E>,
) -> Result<Tensor<T::Kind>, E> {
    let mut outcome = Ok(());
    let tensor = Tensor::build(shape, |out: &mut [T]| outcome = fill(out))?;
    outcome.map(|()| tensor)
}

/// The name of the kind of tensors with elements of `dtype`, as programs write it.
pub(crate) fn kind_of(dtype: DType) -> &'static str {
    match dtype {
        dtype if dtype.is_float() => "Float",
        dtype if dtype.is_int() => "Int",
        _ => "Bool",
    }
}

/// The elements of a tensor, and the reservation of their memory in the budget.
pub(crate) fn listed<E: Element>(tensor: &Tensor<E::Kind>) -> Result<(Vec<E>, HeapReservation)> {
    let counted = HeapReservation::new((tensor.len() * size_of::<E>()) as u64)?;
    Ok((tensor.to_vec()?, counted))
}

/// Calls `f` for the pairs of elements at the same index, up to the end of the shorter slice. It loops over indices,
/// because zipped iterators are not always inlined (decision 0080).
#[inline(always)]
pub(crate) fn for_each_pair<A, B>(a: &mut [A], b: &[B], mut f: impl FnMut(&mut A, &B)) {
    let n = a.len().min(b.len());
    let (a, b) = (&mut a[..n], &b[..n]);
    for i in 0..n {
        f(&mut a[i], &b[i]);
    }
}
