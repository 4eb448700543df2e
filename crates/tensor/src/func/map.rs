//! [`vmap`]: applies a function of one sample to a batch.

use super::tree::{Tree, leaves, rebuilt};
use crate::error::{Error, Result};
use crate::map::AnyTensor;

/// Calls `f` for each index of the first dimension of all inputs, and stacks the results: `torch.func.vmap` with its defaults.
///
/// The results are PyTorch's, but the cost is not: `f` runs once for each index. Use it for computations that have no
/// batched form, such as per-sample gradients. Where operations broadcast, give them the whole batch. To map over
/// another dimension, transpose before and after. Tensors that all samples use (`in_dims=None`) are captured by the
/// closure.
///
/// ```
/// # use pagelock_tensor::{Tensor, func};
/// let w = Tensor::new([1.0, -1.0])?;
/// let (x, y) = (Tensor::new([[1.0, 2.0], [3.0, 5.0]])?, Tensor::new([0.0, 1.0])?);
/// let per_sample = func::vmap(|(x, y)| func::grad(|w| (x.matmul(w)? - y)?.pow(2.0), &w), &(x, y))?;
/// assert_eq!(per_sample.to_vec::<f32>()?, [-2.0, -4.0, -18.0, -30.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`] if there is no input or no sample, if an input has no dimension, or if inputs differ in their
/// number of samples; the errors of `f`; those of [`Tensor::stack`](crate::Tensor::stack) if results differ in shape.
pub fn vmap<I: Tree, O: Tree>(mut f: impl FnMut(&I) -> Result<O>, inputs: &I) -> Result<O> {
    let given = leaves(inputs)?;
    let n_samples = batch_size(&given)?;
    let mut results = Vec::new();
    let mut first = None;
    for index in 0..n_samples {
        let sample = f(&rebuilt(inputs, &mut samples(&given, index)?.into_iter())?)?;
        results.push(leaves(&sample)?);
        first.get_or_insert(sample);
    }
    let Some(first) = first else { unreachable!("a batch has a sample") };
    rebuilt(&first, &mut stacked(&results)?.into_iter())
}

/// How many samples all inputs have.
fn batch_size(inputs: &[AnyTensor]) -> Result<usize> {
    let mut size = None;
    for (index, input) in inputs.iter().enumerate() {
        let Some(&n_samples) = input.dims().first() else {
            return Err(Error::Argument(format!(
                "vmap: tensor {index} is one number, and has no samples; capture it in the function instead of passing it"
            )));
        };
        let expected = *size.get_or_insert(n_samples);
        if n_samples != expected {
            return Err(Error::Argument(format!(
                "vmap: tensor {index} is {}, and the first one has {expected} samples; give all of them the same first dimension",
                input.shape()
            )));
        }
    }
    match size {
        None => Err(Error::empty("vmap", "the structure of inputs", "give at least one tensor")),
        Some(0) => {
            Err(Error::empty("vmap", "the batch", "give at least one sample: its result determines what is returned"))
        }
        Some(size) => Ok(size),
    }
}

fn samples(inputs: &[AnyTensor], index: usize) -> Result<Vec<AnyTensor>> {
    inputs.iter().map(|input| input.select(0, index as isize)).collect()
}

/// The results of all samples, which have the same number of tensors.
fn stacked(results: &[Vec<AnyTensor>]) -> Result<Vec<AnyTensor>> {
    let n_tensors = results.first().map_or(0, Vec::len);
    if let Some((sample, other)) = results.iter().enumerate().find(|(_, result)| result.len() != n_tensors) {
        return Err(Error::Argument(format!(
            "vmap: sample {sample} gave {} tensors, and the first one {n_tensors}; return the same structure for each",
            other.len()
        )));
    }
    (0..n_tensors).map(|index| AnyTensor::stack(&Vec::from_iter(results.iter().map(|all| &all[index])), 0)).collect()
}
