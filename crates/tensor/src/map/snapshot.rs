//! [`snapshot_all`]: copies of many tensors on the host, to be read while the program changes the tensors.

use super::AnyTensor;
use crate::error::Result;
use crate::tensor::Raw;
use crate::transfer::many;

/// Copies tensors to the host, as for a checkpoint: a GPU's tensors into page-locked memory, others into ordinary
/// memory. Later changes of the tensors do not change the copies, and gradients do not flow back from these.
///
/// A GPU's tensors are copied together. The copies count in the host budget; without room for page-locked copies,
/// they are in ordinary memory.
///
/// # Errors
/// [`Error::Memory`](crate::Error::Memory) if the copies do not fit the budget; [`Error::Cuda`](crate::Error::Cuda);
/// [`Error::IndexOutOfRange`](crate::Error::IndexOutOfRange) if an earlier operation on a GPU had an index out of
/// range.
///
/// # Examples
/// ```
/// use pagelock_tensor::{AnyTensor, Tensor, snapshot_all};
///
/// let weights = Tensor::ones([2])?;
/// let copies = snapshot_all(&[&AnyTensor::from(&weights)])?;
/// weights.zero_()?;
/// assert_eq!(copies[0].float()?.to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[track_caller]
pub fn snapshot_all(tensors: &[&AnyTensor]) -> Result<Vec<AnyTensor>> {
    let _here = pagelock_cuda::here();
    let raws: Vec<&Raw> = tensors.iter().map(|tensor| tensor.raw()).collect();
    Ok(many::snapshot(&raws)?.into_iter().map(AnyTensor::new).collect())
}
