//! [`StagingConfig`]: the shape of a device's ring, and [`DeviceStaging`]: where the device has it.

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

/// How a device's staged copies are made; see [`Device::set_staging`]. A ring has at most 256 MiB, a slot half of that, and
/// 1024 threads help at most: what is above is taken as these.
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
    /// The most that is page-locked for it.
    pub ring: ByteSize,
    /// What one slot holds: how much the device copies at once, and so how long a small copy may have to wait for a large one.
    pub slot: ByteSize,
    /// Threads that help; the caller copies too. At most nine of them fill slots for uploads from memory: more get in their
    /// way.
    pub threads: usize,
}

/// Copying 8 MiB takes the device 150 µs, so that its overhead of some 3 µs for each copy hardly counts.
const MOST_SLOT: ByteSize = ByteSize::mib(8);
const LEAST_SLOT: ByteSize = ByteSize::mib(4);
const MOST_RING: ByteSize = ByteSize::mib(256); // four times what any machine was measured to need
const MOST_THREADS: usize = 1_024;

impl Default for StagingConfig {
    /// For this machine: all processors, at most 16, the caller's among them, and 8 MiB for each, at most 64 MiB, half of what
    /// may be page-locked, and an eighth of all memory of the host; a slot has an eighth of the ring, at least 4 MiB.
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get).clamp(2, 16);
        let ring = ByteSize::mib(8).0 * processors as u64;
        let most = (page_locked_budget().limit().0 / 2).min(host_budget().limit().0 / 8);
        let ring = ByteSize(ring.min(ByteSize::mib(64).0).min(most));
        Self { ring, slot: ByteSize(ring.0 / 8).clamp(LEAST_SLOT, MOST_SLOT), threads: processors - 1 }
    }
}

impl StagingConfig {
    /// The nearest that takes no more memory and threads than any may.
    fn within_bounds(self) -> Self {
        let (ring, slot) = (self.ring.min(MOST_RING), self.slot.min(ByteSize(MOST_RING.0 / 2)));
        Self { ring, slot, threads: self.threads.min(MOST_THREADS) }
    }
}

/// Where a device has its [`Staging`], from its first staged copy on.
#[derive(Default)]
pub(crate) struct DeviceStaging(Mutex<State>); // guards which there is

#[derive(Default)]
struct State {
    chosen: Option<StagingConfig>,
    staging: Option<Arc<Staging>>,
}

impl DeviceStaging {
    pub(super) fn get(&self) -> Arc<Staging> {
        let mut state = lock(&self.0);
        if let Some(staging) = &state.staging {
            return staging.clone();
        }
        let staging = Staging::new(state.chosen.unwrap_or_default()); // looking at the machine takes longer than a short copy
        state.staging.insert(Arc::new(staging)).clone()
    }

    fn len_bytes(&self) -> usize {
        let staging = lock(&self.0).staging.clone();
        staging.map_or(0, |staging| staging.large.len_bytes() + staging.small.len_bytes())
    }

    /// Gives back the slots that no copy uses. How many bytes.
    pub(crate) fn trim(&self, shared: &DeviceShared) -> usize {
        let staging = lock(&self.0).staging.clone();
        staging.map_or(0, |staging| staging.large.trim(shared) + staging.small.trim(shared))
    }

    /// Ends the rings and the threads; what a device still uses goes to `deferred`.
    pub(crate) fn release(&self, deferred: &DeferredDrops) {
        let staging = lock(&self.0).staging.take();
        if let Some(staging) = staging {
            staging.large.retire(deferred);
            staging.small.retire(deferred);
        }
    }
}

impl Device {
    /// How staged copies are made: as was [set](Self::set_staging), or as fits the machine.
    pub fn staging(&self) -> StagingConfig {
        lock(&self.core().staging().0).chosen.unwrap_or_default()
    }

    /// How staged copies are made from now on. What the ring so far held is given back.
    pub fn set_staging(&self, config: StagingConfig) {
        self.release_staging();
        lock(&self.core().staging().0).chosen = Some(config.within_bounds());
    }

    /// Gives back the page-locked memory and the threads of staged copies. The next such copy gets them again.
    pub fn release_staging(&self) {
        self.core().staging().release(self.core().deferred());
    }

    /// What is page-locked for staged copies at the moment: nothing before the first one.
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
        ByteSize(self.core().staging().len_bytes() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_s_shape_is_taken_as_the_nearest_that_can_be() {
        let most = StagingConfig { ring: ByteSize::MAX, slot: ByteSize::MAX, threads: usize::MAX };
        let nearest = StagingConfig { ring: MOST_RING, slot: ByteSize::mib(128), threads: MOST_THREADS };
        assert_eq!(most.within_bounds(), nearest);
        assert_eq!(StagingConfig::default().within_bounds(), StagingConfig::default());
    }
}
