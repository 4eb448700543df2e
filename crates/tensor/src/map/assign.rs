//! [`copy_all_`]: copies elements into many tensors, all or none.
//!
//! ```text
//! prepare   check that each target may be changed; convert, move and expand each source     may be refused
//! commit    copy each prepared source into its target                                       takes no memory
//! ```

use std::collections::HashSet;

use pagelock_memory::{self as memory, ByteSize};

use super::AnyTensor;
use crate::error::{Error, Result};
use crate::tensor::{Raw, Tensor, by_kind};

/// Copies the elements of each source into its target, as [`Tensor::copy_`] does. Devices may differ, and so may
/// precisions within a kind. If a copy is refused, no target has changed. A source that is also a target is read as
/// it was before the call.
///
/// # Errors
/// As [`Tensor::copy_`] and [`Tensor::to`]; [`Error::ElementType`](crate::Error::ElementType) for a source of another kind.
///
/// # Examples
/// ```
/// use pagelock_tensor::{AnyTensor, Tensor, copy_all_};
///
/// let (a, b) = (Tensor::new([1.0, 2.0])?, Tensor::new([3.0, 4.0])?);
/// let [one, other] = [AnyTensor::from(&a), AnyTensor::from(&b)];
/// copy_all_(&[(&one, &other), (&other, &one)])?;
/// assert_eq!((a.to_vec::<f32>()?, b.to_vec::<f32>()?), (vec![3.0, 4.0], vec![1.0, 2.0]));
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn copy_all_(pairs: &[(&AnyTensor, &AnyTensor)]) -> Result<()> {
    let targets: HashSet<_> = pairs.iter().map(|(target, _)| target.raw().storage.address()).collect();
    let prepare = |(target, source): &(&AnyTensor, &AnyTensor)| {
        check_memory(target.raw())?;
        let source = by_kind!(target.dtype(), K => source.kind::<K>().map(Tensor::into_raw))?;
        let source = source.converted(target.dtype())?.to(&target.device())?;
        target.raw().check_writable("copy_", [&source])?;
        let source = source.broadcast_to("copy_", target.shape())?;
        if targets.contains(&source.storage.address()) { source.detached_copy("copy_") } else { Ok(source) }
    };
    let prepared = pairs.iter().map(prepare).collect::<Result<Vec<Raw>>>()?;
    pairs.iter().zip(prepared).try_for_each(|((target, _), source)| {
        by_kind!(target.dtype(), K => target.raw().clone().typed::<K>().copy_(&source.typed::<K>()))
    })
}

/// Returns an error if the target's memory cannot be written.
fn check_memory(target: &Raw) -> Result<()> {
    match target.storage.lock().host().filter(|buffer| !buffer.is_writable()) {
        None => Ok(()),
        Some(buffer) => {
            let source = memory::Error::ReadOnly { kind: buffer.kind(), len: ByteSize(buffer.len_bytes() as u64) };
            Err(Error::NotWritable { op: "copy_", shape: *target.shape(), source })
        }
    }
}
