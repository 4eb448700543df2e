//! [`Stack`]: how samples become a batch. Types that do not implement it need a collating function.

use std::iter;

use pagelock_tensor::{AnyTensor, Bool, Error as TensorError, Float, Int, Kind, Tensor};

use crate::{Error, Result};

/// A sample type that can be stacked into a batch: tensors stack along a new first dimension, numbers become a
/// tensor, texts become a vector, and tuples stack part by part.
///
/// A [`DataLoader`](crate::DataLoader) uses this unless it is given a collating function.
///
/// # Examples
/// ```
/// use pagelock_data::Stack;
/// use pagelock_tensor::Tensor;
///
/// let samples = vec![(Tensor::new([1.0, 2.0])?, 7_i64), (Tensor::new([3.0, 4.0])?, 8)];
/// let (points, labels) = Stack::stack(samples)?;
/// assert_eq!(points.dims(), [2, 2]);
/// assert_eq!(points.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// assert_eq!(labels.to_vec::<i64>()?, [7, 8]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
///
/// A type of your own defines its batch:
/// ```
/// use pagelock_data::{Result, Stack};
/// use pagelock_tensor::{Int, Tensor};
///
/// struct Review { words: Tensor<Int>, stars: f32 }
/// struct Reviews { words: Vec<Tensor<Int>>, stars: Tensor }
///
/// impl Stack for Review {
///     type Batch = Reviews;
///
///     fn stack(samples: Vec<Self>) -> Result<Reviews> {
///         let (words, stars): (Vec<_>, Vec<_>) = samples.into_iter().map(|review| (review.words, review.stars)).unzip();
///         Ok(Reviews { words, stars: Stack::stack(stars)? })
///     }
/// }
/// # let review = || Ok::<_, pagelock_data::Error>(Review { words: Tensor::new([5, 6, 7])?, stars: 4.5 });
/// # let batch = Review::stack(vec![review()?, review()?])?;
/// # assert_eq!((batch.words.len(), batch.stars.dims()), (2, &[2][..]));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "samples of type `{Self}` do not stack into a batch by themselves",
    note = "tensors, numbers, texts, and tuples and arrays of them do",
    note = "implement `pagelock_data::Stack` for `{Self}`, or use `DataLoader::with_collate(dataset, |samples| ...)`"
)]
pub trait Stack: Sized {
    /// The batch of several samples.
    type Batch: Send + 'static;

    /// Makes a batch of `samples`, of which there is at least one.
    ///
    /// # Errors
    /// [`Error::Uneven`] if their shapes differ; [`Error::Tensor`] if their precisions do, or if memory is refused.
    fn stack(samples: Vec<Self>) -> Result<Self::Batch>;
}

impl<K: Kind> Stack for Tensor<K> {
    type Batch = Tensor<K>;

    fn stack(samples: Vec<Self>) -> Result<Tensor<K>> {
        let n_samples = samples.len();
        let mut samples = samples.into_iter();
        Ok(stack(n_samples, &mut || samples.next().map(AnyTensor::from))?.kind()?)
    }
}

/// Stacks the `n_samples` tensors that `next` gives.
fn stack(n_samples: usize, next: &mut dyn FnMut() -> Option<AnyTensor>) -> Result<AnyTensor> {
    let mut samples = Vec::with_capacity(n_samples);
    samples.extend(iter::from_fn(next));
    if let Some(index) = samples.iter().position(|sample| sample.shape() != samples[0].shape()) {
        let (shape, first_shape) = (samples[index].dims().into(), samples[0].dims().into());
        return Err(Error::Uneven { index, shape, first: 0, first_shape });
    }
    // Mixed precisions are refused: else the precision of a batch would depend on which samples are in it.
    let stacked = AnyTensor::stack(&samples.iter().collect::<Vec<_>>(), 0);
    Ok(stacked.map_err(|error| match error {
        TensorError::MixedTypes { left, right, wider, .. } => {
            TensorError::MixedTypes { op: "stack", left, right, wider }
        }
        other => other,
    })?)
}

impl Stack for String {
    type Batch = Vec<String>;

    fn stack(samples: Vec<Self>) -> Result<Vec<String>> {
        Ok(samples)
    }
}

impl Stack for () {
    type Batch = ();

    fn stack(_samples: Vec<Self>) -> Result<()> {
        Ok(())
    }
}

macro_rules! stack_numbers {
    ($($kind:ty: $($number:ty)+;)*) => {$($(
        impl Stack for $number {
            type Batch = Tensor<$kind>;

            fn stack(samples: Vec<Self>) -> Result<Self::Batch> {
                let n_samples = samples.len();
                Ok(Tensor::from_vec(samples, n_samples)?)
            }
        }

        impl<const N: usize> Stack for [$number; N] {
            type Batch = Tensor<$kind>;

            fn stack(samples: Vec<Self>) -> Result<Self::Batch> {
                let n_samples = samples.len();
                Ok(Tensor::from_slice(samples.as_flattened(), [n_samples, N])?)
            }
        }
    )+)*};
}

stack_numbers! {
    Float: f32 f64;
    Int: i64 i32 u8;
    Bool: bool;
}

macro_rules! stack_tuples {
    ($(($($part:ident: $type:ident $position:tt),+))*) => {$(
        impl<$($type: Stack),+> Stack for ($($type,)+) {
            type Batch = ($($type::Batch,)+);

            fn stack(samples: Vec<Self>) -> Result<Self::Batch> {
                $(let mut $part = Vec::with_capacity(samples.len());)+
                for sample in samples {
                    $($part.push(sample.$position);)+
                }
                Ok(($(Stack::stack($part)?,)+))
            }
        }
    )*};
}

stack_tuples! {
    (a: A 0)
    (a: A 0, b: B 1)
    (a: A 0, b: B 1, c: C 2)
    (a: A 0, b: B 1, c: C 2, d: D 3)
}

#[cfg(test)]
mod tests {
    use pagelock_tensor::DType;

    use super::*;

    #[test]
    fn numbers_become_a_tensor_of_their_own_type() -> Result<()> {
        let (singles, doubles) = (Stack::stack(vec![1.5_f32, 2.5])?, Stack::stack(vec![1.5_f64, 2.5])?);
        assert_eq!((singles.to_vec::<f32>()?, singles.dtype()), (vec![1.5, 2.5], DType::F32));
        assert_eq!((doubles.to_vec::<f64>()?, doubles.dtype()), (vec![1.5, 2.5], DType::F64));
        let (longs, bytes) = (Stack::stack(vec![1_i64, 2])?, Stack::stack(vec![1_u8, 2])?);
        assert_eq!((longs.to_vec::<i64>()?, longs.dtype()), (vec![1, 2], DType::I64));
        assert_eq!((bytes.to_vec::<u8>()?, bytes.dtype()), (vec![1, 2], DType::U8));
        assert_eq!(Stack::stack(vec![true, false])?.to_vec::<bool>()?, [true, false]);
        Ok(())
    }

    #[test]
    fn arrays_become_rows() -> Result<()> {
        let batch = Stack::stack(vec![[1.0_f32, 2.0], [3.0, 4.0], [5.0, 6.0]])?;
        assert_eq!(batch.dims(), [3, 2]);
        assert_eq!(batch.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        Ok(())
    }

    #[test]
    fn tuples_go_part_by_part() -> Result<()> {
        let samples =
            vec![(Tensor::new([1.0])?, 1_i64, "one".to_string(), ()), (Tensor::new([2.0])?, 2, "two".to_string(), ())];
        let (x, y, names, ()) = Stack::stack(samples)?;
        assert_eq!((x.dims(), y.to_vec::<i64>()?), (&[2, 1][..], vec![1, 2]));
        assert_eq!(names, ["one", "two"]);
        Ok(())
    }

    #[test]
    fn scalars_stack_to_a_vector() -> Result<()> {
        let batch = Stack::stack(vec![Tensor::scalar(3)?, Tensor::scalar(4)?])?;
        assert_eq!((batch.dims(), batch.to_vec::<i64>()?), (&[2][..], vec![3, 4]));
        Ok(())
    }

    #[test]
    fn samples_of_different_precisions_are_refused() -> Result<()> {
        let samples = vec![Tensor::zeros([2])?, Tensor::of(DType::F64).zeros([2])?];
        assert_eq!(
            Stack::stack(samples).err().unwrap().to_string(),
            "stack: one operand is float32, another float64; convert one of them: x.to_dtype(DType::F64)"
        );
        Ok(())
    }
}
