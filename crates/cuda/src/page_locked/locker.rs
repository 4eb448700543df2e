//! Locks pages through a device's driver.

use std::{fmt, ptr::NonNull, sync::Arc};

use pagelock_memory::{ByteSize, Error, PageLocker, Result};

use crate::{driver::Driver, host_function, leaked::LeakCount};

/// A [`PageLocker`] that locks pages for every device of a driver.
pub(super) struct DriverLocker {
    driver: Arc<dyn Driver>,
    leaked: Arc<LeakCount>,
}

impl DriverLocker {
    pub(super) fn new(driver: Arc<dyn Driver>, leaked: Arc<LeakCount>) -> Self {
        Self { driver, leaked }
    }
}

impl PageLocker for DriverLocker {
    unsafe fn lock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        // SAFETY: the caller's range consists of whole pages, mapped and writable until `unlock`.
        let locked = unsafe { self.driver.register(start, len_bytes) };
        locked.map_err(|failure| {
            // The pages may be registered all the same, and they are unmapped next.
            // SAFETY: undoes the call above; nothing uses the pages yet.
            let _ = unsafe { self.driver.unregister(start) };
            Error::Lock { asked: ByteSize(len_bytes as u64), source: Box::new(failure) }
        })
    }

    unsafe fn unlock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        // SAFETY: the caller promises that the range is locked; a block is dropped only when no copy uses it.
        let unlocked = unsafe { self.driver.unregister(start) };
        unlocked
            .inspect_err(|_| self.leaked.add(len_bytes))
            .map_err(|failure| Error::Lock { asked: ByteSize(len_bytes as u64), source: Box::new(failure) })
    }

    /// When a budget is exhausted, the requesting thread frees the memory of pools. Inside a host function, that is
    /// deferred.
    fn when_possible(&self, free: Box<dyn FnOnce() + Send>) {
        host_function::run_or_defer(free);
    }
}

impl fmt::Debug for DriverLocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DriverLocker({})", self.driver.properties().name)
    }
}
