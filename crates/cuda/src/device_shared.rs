//! State that all parts of one device share: its driver, its events, and counters.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use pagelock_memory::Budget;

use crate::{
    driver::{self, Driver, EventHandle, EventTiming},
    error::{Error, OnDevice, Result},
    leaked::LeakCount,
    sanitize::Watch,
    sync::{Mutex, lock},
};

/// See the head of the file.
pub(crate) struct DeviceShared {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) ordinal: u32,
    /// The budget to which all memory that the driver allocates for the pool is charged.
    pub(crate) memory: Budget,
    pub(crate) leaked: Arc<LeakCount>,
    pub(crate) live: Live,
    pub(crate) uploads: Traffic,
    pub(crate) downloads: Traffic,
    pub(crate) in_flight: AtomicU64,      // tickets; Relaxed: it guards nothing
    watch: Option<Arc<Watch>>,            // present if the driver is watched for races
    events: Mutex<[Vec<EventHandle>; 2]>, // guards the unused events, by `EventTiming`
}

/// The size of the blocks that buffers use. Relaxed: it guards nothing.
#[derive(Default)]
pub(crate) struct Live {
    pub(crate) bytes: AtomicU64,
    pub(crate) peak_bytes: AtomicU64,
}

/// The copies of one direction, so that a long copy can yield to those of other streams. Relaxed: it guards nothing.
#[derive(Default)]
pub(crate) struct Traffic {
    last: AtomicU64,     // the stream of the last copy
    switches: AtomicU64, // how often the stream changed
}

impl Traffic {
    /// Notes that a stream copies.
    pub(crate) fn note(&self, stream: u64) {
        if self.last.load(Relaxed) != stream {
            self.last.store(stream, Relaxed);
            self.switches.fetch_add(1, Relaxed);
        }
    }

    /// A number that changes when other streams copy.
    pub(crate) fn of_others(&self, stream: u64) -> u64 {
        self.note(stream);
        self.switches.load(Relaxed) / 2
    }
}

impl DeviceShared {
    pub(crate) fn new(driver: Arc<dyn Driver>, watch: Option<Arc<Watch>>) -> Self {
        let properties = driver.properties();
        let (ordinal, memory) = (properties.ordinal, properties.memory);
        let advice = "drop device buffers, use smaller batches, or raise the device's limit";
        Self {
            memory: Budget::new(format!("device {ordinal}"), memory).with_advice(advice),
            driver,
            ordinal,
            leaked: Arc::default(),
            live: Live::default(),
            uploads: Traffic::default(),
            downloads: Traffic::default(),
            in_flight: AtomicU64::new(0),
            watch,
            events: Mutex::default(),
        }
    }

    /// Whether this device's driver can use handles of the other device's driver.
    pub(crate) fn is_same_family(&self, other: &DeviceShared) -> bool {
        self.driver.family() == other.driver.family()
    }

    /// An error unless both are the same device. `what` belongs to `other` and is about to be used on `self`.
    pub(crate) fn check_same(self: &Arc<Self>, other: &Arc<Self>, what: OnDevice) -> Result<()> {
        match () {
            () if Arc::ptr_eq(self, other) => Ok(()),
            () if !self.is_same_family(other) => Err(Error::OtherDriver { what }),
            () => Err(Error::OtherDevice { what, device: other.ordinal, stream: self.ordinal }),
        }
    }

    /// An error if a race was found since the last call. Never an error unless races are watched for.
    pub(crate) fn check_races(&self) -> Result<()> {
        self.watch.as_ref().map_or(Ok(()), |watch| watch.check())
    }

    /// An event to be recorded: an unused one if there is one, else a new one.
    pub(crate) fn take_event(&self, timing: EventTiming) -> driver::Result<EventHandle> {
        let unused = lock(&self.events)[timing as usize].pop();
        unused.map_or_else(|| self.driver.create_event(timing), Ok)
    }

    /// Keeps an event for reuse. Waits for it that are queued remain valid: they refer to the recording, not to the
    /// event.
    pub(crate) fn recycle_event(&self, event: EventHandle, timing: EventTiming) {
        lock(&self.events)[timing as usize].push(event);
    }
}

impl Drop for DeviceShared {
    fn drop(&mut self) {
        for event in std::mem::take(&mut *lock(&self.events)).into_iter().flatten() {
            // SAFETY: made by this driver, returned by its last user, and removed from the list here.
            let _ = unsafe { self.driver.destroy_event(event) };
        }
    }
}

impl Live {
    pub(crate) fn add(&self, bytes: usize) {
        let now = self.bytes.fetch_add(bytes as u64, Relaxed) + bytes as u64;
        self.peak_bytes.fetch_max(now, Relaxed);
    }

    pub(crate) fn sub(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes as u64, Relaxed);
    }
}
