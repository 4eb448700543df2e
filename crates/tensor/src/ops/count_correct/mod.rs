//! [`add_correct_`]: counts a classifier's correct predictions on the device where they are.

mod cuda;

use crate::autograd::no_grad;
use crate::device::{Device, common_device};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::kind::Int;
use crate::tensor::Tensor;

const OP: &str = "add_correct_";

/// Adds to `correct` the number of rows of scores whose largest score is at their label, and to `total` the number of
/// rows, on a GPU in one kernel. As in [`argmax`](Tensor::argmax), the first of equal scores counts as larger, and
/// NaN is larger than any number.
///
/// - `correct`, `total`: one integer each
/// - `scores`: `[n, classes]`
/// - `labels`: `[n]`; rows whose label is no class count as wrong
///
/// # Examples
/// ```
/// use pagelock_tensor::{Tensor, add_correct_};
///
/// let (correct, total) = (Tensor::scalar(0)?, Tensor::scalar(0)?);
/// add_correct_(&correct, &total, &Tensor::new([[0.1, 0.9], [0.8, 0.2]])?, &Tensor::new([1, 1])?)?;
/// assert_eq!((correct.item::<i64>()?, total.item::<i64>()?), (1, 2));
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`] for other shapes; [`Error::DeviceMismatch`]; as [`Tensor::add_`].
pub fn add_correct_(correct: &Tensor<Int>, total: &Tensor<Int>, scores: &Tensor, labels: &Tensor<Int>) -> Result<()> {
    let ([n, _], true) = (scores.dims(), [correct, total].iter().all(|count| count.len() == 1)) else {
        return Err(wrong(correct, total, scores, labels));
    };
    if labels.dims() != [*n] {
        return Err(wrong(correct, total, scores, labels));
    }
    let device = common_device(OP, &[scores.raw(), labels.raw(), correct.raw(), total.raw()])?;
    [correct, total].iter().try_for_each(|count| count.raw().check_writable(OP, []))?;
    if scores.is_empty() {
        return total.add_scalar_(*n as i64);
    }
    let shares_labels = [correct, total].iter().any(|count| count.shares_storage(labels));
    let are_separate = !correct.shares_storage(total) && !shares_labels;
    let are_i64 = correct.dtype() == DType::I64 && total.dtype() == DType::I64;
    no_grad(|| match device {
        Device::Cuda(cuda) if are_separate && are_i64 => {
            let (scores, labels) = (scores.detach().contiguous()?, labels.to_dtype(DType::I64)?.contiguous()?);
            cuda::add_correct(OP, cuda, [correct.raw(), total.raw()], [scores.raw(), labels.raw()])
        }
        _ => {
            let right = scores.detach().argmax(-1)?.eq(&labels.to_dtype(DType::I64)?)?.to_int()?;
            correct.add_(&right.sum(..)?.to_dtype(correct.dtype())?.reshape(correct.dims())?)?;
            total.add_scalar_(*n as i64)
        }
    })
}

fn wrong(correct: &Tensor<Int>, total: &Tensor<Int>, scores: &Tensor, labels: &Tensor<Int>) -> Error {
    let [correct, total, labels] = [correct, total, labels].mapped(|tensor| *tensor.shape());
    let problem = format!("counts are {correct} and {total}, scores {}, labels {labels}", scores.shape());
    Error::Argument(format!("{OP}: {problem}; give counts of one integer, scores [n, classes] and labels [n]"))
}
