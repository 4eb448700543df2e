//! [`Frozen`]: page-locked memory that is shared and read-only.

use std::{fmt, ops::Deref, sync::Arc};

use super::Pinned;
use crate::device_copy::DeviceCopy;

/// Page-locked elements that the host and devices may read at the same time. Cheap to clone: all clones share the
/// memory, and a copy in flight holds a clone.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, Pinned, software::Config};
///
/// let device = Device::software(Config::default())?;
/// let stream = device.stream()?;
/// let weights = Pinned::from_slice(&device, &[1.0_f32, 2.0])?.freeze();
/// let mut on_device = stream.allocate::<f32>(2)?;
/// let ticket = stream.upload(weights.clone(), &mut on_device)?;
/// assert_eq!(weights[1], 2.0); // read while the device may be reading
/// drop(ticket.wait()?);
/// let mut mine_again = weights.thaw().expect("nobody else has it");
/// mine_again[1] = 3.0;
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
///
/// The elements cannot be written:
/// ```compile_fail,E0594
/// # use pagelock_cuda::{Device, Pinned, software::Config};
/// # let device = Device::software(Config::default())?;
/// let weights = Pinned::from_slice(&device, &[1.0_f32, 2.0])?.freeze();
/// weights[1] = 3.0;
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
pub struct Frozen<T: DeviceCopy> {
    shared: Arc<Pinned<T>>,
}

impl<T: DeviceCopy> Frozen<T> {
    pub(super) fn new(pinned: Pinned<T>) -> Self {
        Self { shared: Arc::new(pinned) }
    }

    /// Returns the memory for exclusive use.
    ///
    /// # Errors
    /// The handle itself, if there are other handles, including those of copies in flight.
    pub fn thaw(self) -> Result<Pinned<T>, Self> {
        Arc::try_unwrap(self.shared).map_err(|shared| Self { shared })
    }
}

impl<T: DeviceCopy> Clone for Frozen<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T: DeviceCopy> Deref for Frozen<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.shared
    }
}

impl<T: DeviceCopy> fmt::Debug for Frozen<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frozen({} × {})", self.len(), std::any::type_name::<T>())
    }
}
