//! Strided read-only views: what every loop reads from.

/// The largest number of dimensions; fixed so that no loop allocates.
pub(crate) const MAX_RANK: usize = 8;

use super::Stored;
use super::walk::Dims;

/// A strided read-only view: element `[i0, i1, …]` is `data[i0 * strides[0] + i1 * strides[1] + …]`.
///
/// Broadcast dimensions have stride 0. The strides of dimensions of size 1 mean nothing. A view with a dimension of
/// size 0 has no elements, and `data` may then be empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuView<'a, T> {
    /// The storage from the view's first element on.
    pub(crate) data: Stored<'a, T>,
    /// The sizes of the dimensions, of which there are at most [`MAX_RANK`].
    pub(crate) shape: &'a [usize],
    /// Distance in elements between neighbours, one per dimension.
    pub(crate) strides: &'a [usize],
}

impl<T> CpuView<'_, T> {
    /// Whether the elements are contiguous. There must be at least one.
    pub(crate) fn is_contiguous(&self) -> bool {
        Dims::of(self.shape, self.strides).is_contiguous()
    }
}
