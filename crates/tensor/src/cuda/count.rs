//! Sizes that kernels count with 32 bits.

use crate::error::{Error, Result};

/// CUDA's limit on the blocks of a grid in y and in z.
pub(crate) const MAX_BLOCKS: usize = 65_535;

/// `size` as a kernel's 32-bit count; an error if it is too large.
pub(crate) fn count(op: &'static str, size: usize) -> Result<i32> {
    i32::try_from(size).map_err(|_| {
        Error::bad_argument(
            op,
            "a size",
            size,
            format!("GPU kernels count to at most {}; split the tensor, or compute on the CPU", i32::MAX),
        )
    })
}
