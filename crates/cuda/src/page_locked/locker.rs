//! Locks pages through a device's driver.

use std::{fmt, ptr::NonNull, sync::Arc};

use pagelock_memory::{ByteSize, Error, PageLocker, Result};

use crate::{driver::Driver, host_function};

/// A [`PageLocker`] that makes pages known to every device of a driver.
pub(super) struct DriverLocker {
    driver: Arc<dyn Driver>,
}

impl DriverLocker {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver }
    }
}

impl PageLocker for DriverLocker {
    unsafe fn lock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        // SAFETY: the caller's range is whole pages, mapped and writable until `unlock`.
        let locked = unsafe { self.driver.register(start, len_bytes) };
        locked.map_err(|failure| Error::Lock { asked: ByteSize(len_bytes as u64), source: Box::new(failure) })
    }

    unsafe fn unlock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        // SAFETY: locked before, by the caller's promise; and a block is dropped only when no copy uses it.
        let unlocked = unsafe { self.driver.unregister(start) };
        unlocked.map_err(|failure| Error::Lock { asked: ByteSize(len_bytes as u64), source: Box::new(failure) })
    }

    /// A budget that is short frees what pools keep on whatever thread asks it.
    fn when_possible(&self, free: Box<dyn FnOnce() + Send>) {
        host_function::outside(free);
    }
}

impl fmt::Debug for DriverLocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DriverLocker({})", self.driver.properties().name)
    }
}
