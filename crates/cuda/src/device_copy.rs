//! The element types of buffers.

use bytemuck::Pod;
use pagelock_memory::{ALIGN, ByteSize};

use crate::error::{Error, Result};

/// Types for which every pattern of bytes is a value: numbers, arrays of numbers, and types that derive `Pod` of
/// [`bytemuck`](https://docs.rs/bytemuck).
///
/// A copy from a device writes arbitrary bytes, so `bool`, for example, is no such type:
/// ```compile_fail,E0277
/// # use pagelock_cuda::{Device, software::Config};
/// # let stream = Device::software(Config::default())?.stream()?;
/// let flags = stream.allocate::<bool>(3)?;
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a device cannot hold `{Self}`: not every byte pattern is a valid value of that type",
    note = "use numbers, arrays of numbers, or a type that derives `bytemuck::Pod`"
)]
pub trait DeviceCopy: Pod + Send + Sync {}

impl<T: Pod + Send + Sync> DeviceCopy for T {}

/// The size of `len` elements in bytes.
pub(crate) fn len_bytes<T: DeviceCopy>(len: usize) -> Result<usize> {
    const { assert!(size_of::<T>() > 0, "elements of a device buffer have a size") };
    const { assert!(align_of::<T>() <= ALIGN, "elements of a device buffer are aligned to at most 64 bytes") };
    let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize);
    bytes.ok_or_else(|| Error::too_long(len, element_size::<T>()))
}

pub(crate) fn element_size<T>() -> ByteSize {
    ByteSize(size_of::<T>() as u64)
}
