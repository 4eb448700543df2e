//! [`StagingConfig`]: the sizes of a device's staging ring, and [`DeviceStaging`]: the device's owner of the ring.

use std::{num::NonZero, sync::Arc, thread};

use pagelock_memory::{ByteSize, host_budget};

use super::Staging;
use crate::{
    deferred_drops::DeferredDrops,
    device::Device,
    device_shared::DeviceShared,
    page_locked::page_locked_budget,
    sync::{Mutex, lock},
};

/// The configuration of a device's staged copies; see [`Device::set_staging`]. Values above the maximum are lowered
/// to it: 256 MiB for the ring, 128 MiB for a slot, and 1024 threads.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, StagingConfig, software::Config};
/// use pagelock_memory::{ByteSize, host_budget};
///
/// let device = Device::software(Config::default())?;
/// device.set_staging(StagingConfig { ring: ByteSize::mib(16), ..device.staging() });
/// assert_eq!(device.staging().ring, ByteSize::mib(16));
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingConfig {
    /// The most page-locked memory of all slots, but at least two slots.
    pub ring: ByteSize,
    /// The size of a slot. It bounds how long a small copy waits for a large one: the device copies slot by slot.
    pub slot: ByteSize,
    /// The number of helper threads; the caller copies too. At most nine of them fill slots for uploads from memory,
    /// since more slow each other down.
    pub threads: usize,
}

/// The device copies 8 MiB in 150 µs, so its overhead of about 3 µs for each copy is negligible.
const MAX_SLOT: ByteSize = ByteSize::mib(8);
const MIN_SLOT: ByteSize = ByteSize::mib(4);
const MAX_RING: ByteSize = ByteSize::mib(256); // four times what any machine was measured to need
const MAX_THREADS: usize = 1_024;

impl Default for StagingConfig {
    /// The configuration for this machine. One thread per processor, at most 16 including the caller. The ring has 8
    /// MiB per thread, but at most 64 MiB, half of the limit of page-locked memory, and an eighth of the host budget.
    /// A slot has an eighth of the ring, but at least 4 MiB.
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get).clamp(2, 16);
        let ring = ByteSize::mib(8).0 * processors as u64;
        let max_ring = (page_locked_budget().limit().0 / 2).min(host_budget().limit().0 / 8);
        let ring = ByteSize(ring.min(ByteSize::mib(64).0).min(max_ring));
        Self { ring, slot: ByteSize(ring.0 / 8).clamp(MIN_SLOT, MAX_SLOT), threads: processors - 1 }
    }
}

impl StagingConfig {
    fn within_bounds(self) -> Self {
        let (ring, slot) = (self.ring.min(MAX_RING), self.slot.min(ByteSize(MAX_RING.0 / 2)));
        Self { ring, slot, threads: self.threads.min(MAX_THREADS) }
    }
}

/// Owns a device's [`Staging`], which is created at the first staged copy.
#[derive(Default)]
pub(crate) struct DeviceStaging(Mutex<State>); // guards the current staging and its configuration

#[derive(Default)]
struct State {
    config: Option<StagingConfig>,
    staging: Option<Arc<Staging>>,
}

impl DeviceStaging {
    pub(super) fn get(&self) -> Arc<Staging> {
        let mut state = lock(&self.0);
        if let Some(staging) = &state.staging {
            return staging.clone();
        }
        let staging = Staging::new(state.config.unwrap_or_default()); // the default takes longer than a short copy
        state.staging.insert(Arc::new(staging)).clone()
    }

    fn len_bytes(&self) -> usize {
        let staging = lock(&self.0).staging.clone();
        staging.map_or(0, |staging| staging.large.len_bytes() + staging.small.len_bytes())
    }

    /// Frees the slots that no copy uses, and returns their size in bytes.
    pub(crate) fn trim(&self, shared: &DeviceShared) -> usize {
        let staging = lock(&self.0).staging.clone();
        staging.map_or(0, |staging| staging.large.trim(shared) + staging.small.trim(shared))
    }

    /// Frees the rings and ends the threads. Slots that the device still uses move to `deferred`.
    pub(crate) fn release(&self, deferred: &DeferredDrops) {
        let staging = lock(&self.0).staging.take();
        if let Some(staging) = staging {
            staging.large.retire(deferred);
            staging.small.retire(deferred);
        }
    }
}

impl Device {
    /// The configuration of staged copies: the one that was [set](Self::set_staging), or this machine's default.
    pub fn staging(&self) -> StagingConfig {
        lock(&self.core().staging.0).config.unwrap_or_default()
    }

    /// Sets the configuration of staged copies. The memory and the threads of the current ring are released.
    pub fn set_staging(&self, config: StagingConfig) {
        lock(&self.core().staging.0).config = Some(config.within_bounds());
        self.release_staging(); // last, so that no copy creates the ring of the old configuration again
    }

    /// Releases the page-locked memory and the threads of staged copies. The next staged copy creates them again.
    pub fn release_staging(&self) {
        self.core().staging.release(&self.core().deferred);
    }

    /// The page-locked memory that staged copies hold at the moment. Zero before the first staged copy.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    /// use pagelock_memory::ByteSize;
    ///
    /// let device = Device::software(Config::default())?;
    /// assert_eq!(device.staged(), ByteSize(0));
    /// let stream = device.stream()?;
    /// stream.upload_from(&[1_u8; 10], &mut stream.allocate(10)?)?;
    /// assert!(device.staged().0 > 0 && device.staged() <= device.staging().ring);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn staged(&self) -> ByteSize {
        ByteSize(self.core().staging.len_bytes() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_s_shape_is_taken_as_the_nearest_that_can_be() {
        let most = StagingConfig { ring: ByteSize::MAX, slot: ByteSize::MAX, threads: usize::MAX };
        let nearest = StagingConfig { ring: MAX_RING, slot: ByteSize::mib(128), threads: MAX_THREADS };
        assert_eq!(most.within_bounds(), nearest);
        assert_eq!(StagingConfig::default().within_bounds(), StagingConfig::default());
    }
}
