//! Arguments of a kernel, in a list on the stack.

use arrayvec::ArrayVec;
use pagelock_cuda::{Argument, MAX_ARGUMENTS};

use super::CudaView;

/// The arguments of a kernel, at most [`MAX_ARGUMENTS`].
pub(crate) type Arguments<'a> = ArrayVec<Argument<'a>, MAX_ARGUMENTS>;

/// A null pointer.
pub(crate) const NULL: Argument<'static> = Argument::Value(&[0; 8]);

/// A tensor that a kernel reads, or null.
pub(crate) fn optional(x: Option<CudaView<'_>>) -> Argument<'_> {
    x.map_or(NULL, |x| x.argument())
}

/// Constants, each as a `u64` argument.
pub(crate) fn values(constants: &[u64]) -> impl Iterator<Item = Argument<'_>> {
    constants.iter().map(|constant| Argument::Value(bytemuck::bytes_of(constant)))
}
