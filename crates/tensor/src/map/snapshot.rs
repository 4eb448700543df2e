//! [`snapshot_all`]: copies of many tensors on the host, to be read while the program changes the tensors.

use super::AnyTensor;
use crate::error::Result;
use crate::tensor::Raw;
use crate::transfer::many;

/// Copies of tensors on the host, in ordinary memory or, of a GPU's tensors, in page-locked memory: what a checkpoint is written
/// from. Later changes of the tensors do not change the copies, whose gradients do not flow back.
///
/// A GPU's tensors come down together. The copies are counted in the host budget; without room for page-locked copies, they are in
/// ordinary memory.
///
/// # Errors
/// [`Error::Memory`](crate::Error::Memory) if the copies do not fit the budget; [`Error::Cuda`](crate::Error::Cuda);
/// [`Error::IndexOutOfRange`](crate::Error::IndexOutOfRange) if a GPU was given such an index before.
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
