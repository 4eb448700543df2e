//! [`DeferredDrops`]: holds memory that was dropped while a device may still use it, until the device is done with
//! it.
//!
//! A ticket that is dropped in flight neither waits nor frees. Its memory is queued here together with an event, and
//! is freed after the device has reached the event. Host buffers that are dropped without waiting have a queue of
//! their own, with a limit. New copies query the events of a few entries, and free those that are done.
//!
//! Events are queried without the lock of the queue, since host functions defer drops, too. An entry stays in the queue
//! until it is known to be done, so that other threads find it meanwhile.

use std::{
    collections::VecDeque,
    mem, thread,
    time::{Duration, Instant},
};

use crate::{
    device_shared::DeviceShared,
    driver::{EventHandle, EventTiming},
    event::Recorded,
    host_function,
    sync::{AtomicUsize, Mutex, Ordering::Relaxed, lock},
};

/// See the head of the file.
#[derive(Default)]
pub(crate) struct DeferredDrops {
    queue: Mutex<Queue>, // guards the deferred memory
    count: AtomicUsize,  // its number of entries. Relaxed: a hint, so that an empty queue costs one load
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Deferred>,
    next_number: u64,
}

struct Deferred {
    number: u64,        // no other entry of the queue ever has it
    event: EventHandle, // recorded, untimed
    memory: DeferredDrop,
}

/// About the time that a copy of a few hundred kilobytes takes.
const BETWEEN_QUERIES: Duration = Duration::from_micros(20);

/// How many events a scan queries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scan {
    /// At most four, up to the first that is not done: cheap enough to run before other work.
    Few,
    /// All.
    All,
}

/// Something that a device uses: mostly host memory.
pub(crate) struct DeferredDrop {
    /// How many bytes leak if `free` is never called.
    pub(crate) len_bytes: usize,
    /// Frees the memory; called when the device is done with it. Dropped without a call, it leaks the memory.
    pub(crate) free: Box<dyn FnOnce() + Send>,
}

impl DeferredDrops {
    pub(crate) fn defer(&self, done: Recorded, memory: DeferredDrop) {
        let Some(event) = done.into_handle() else { return };
        self.defer_until(event, memory);
    }

    /// Like [`defer`](Self::defer), with an untimed event that is recorded. The queue takes ownership of the event.
    pub(crate) fn defer_until(&self, event: EventHandle, memory: DeferredDrop) {
        let mut queue = lock(&self.queue);
        let number = queue.next_number;
        queue.next_number += 1;
        queue.entries.push_back(Deferred { number, event, memory });
        self.count.store(queue.entries.len(), Relaxed);
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Queries the events, and frees the entries whose event is reached.
    pub(crate) fn release_finished(&self, shared: &DeviceShared, scan: Scan) {
        if self.count.load(Relaxed) == 0 || host_function::is_inside() {
            return;
        }
        let max_count = if scan == Scan::Few { 4 } else { self.len() };
        for _ in 0..max_count {
            let Some((number, event)) = self.rotate() else { return };
            // SAFETY: the event was recorded before it was deferred, and events exist as long as the device. If another
            // thread frees this entry meanwhile, the answer is of no use, and `take` finds no entry.
            let reached = unsafe { shared.driver.query_event(event) };
            if reached == Ok(true) {
                self.take(number).into_iter().for_each(|done| done.free(shared));
            } else if scan == Scan::Few {
                return;
            }
        }
    }

    /// Moves the first entry to the back, so that an event that is never reached does not keep the others from being
    /// freed. Returns the number of the entry, and its event.
    fn rotate(&self) -> Option<(u64, EventHandle)> {
        let mut queue = lock(&self.queue);
        let first = queue.entries.pop_front()?;
        let (number, event) = (first.number, first.event);
        queue.entries.push_back(first);
        Some((number, event))
    }

    fn take(&self, number: u64) -> Option<Deferred> {
        let mut queue = lock(&self.queue);
        let at = queue.entries.iter().rposition(|entry| entry.number == number)?;
        let taken = queue.entries.remove(at);
        self.count.store(queue.entries.len(), Relaxed);
        taken
    }

    /// Waits for the oldest entries until the queue holds at most `max_bytes`.
    pub(crate) fn wait_down_to(&self, shared: &DeviceShared, max_bytes: usize) {
        while let Some(first) = self.take_first_above(max_bytes) {
            // SAFETY: the event was recorded before it was deferred, and is not recorded again before it is recycled.
            let reached = unsafe { shared.driver.synchronize_event(first.event) };
            if reached.is_err() {
                return self.defer_until(first.event, first.memory); // the driver cannot say
            }
            first.free(shared);
        }
    }

    /// Frees the oldest entries as the device is done with them, until none is left, `limit` has passed, or the driver
    /// cannot say. Asks the driver again and again, since its own waits have no limit.
    pub(crate) fn wait_at_most(&self, shared: &DeviceShared, limit: Duration) {
        let deadline = Instant::now() + limit;
        while let Some((number, event)) = self.first() {
            // SAFETY: as in `release_finished`.
            match unsafe { shared.driver.query_event(event) } {
                Ok(true) => self.take(number).into_iter().for_each(|done| done.free(shared)),
                Ok(false) if Instant::now() < deadline => thread::sleep(BETWEEN_QUERIES),
                Ok(false) | Err(_) => return,
            }
        }
    }

    fn first(&self) -> Option<(u64, EventHandle)> {
        lock(&self.queue).entries.front().map(|first| (first.number, first.event))
    }

    fn take_first_above(&self, max_bytes: usize) -> Option<Deferred> {
        let mut queue = lock(&self.queue);
        let len_bytes: usize = queue.entries.iter().map(|deferred| deferred.memory.len_bytes).sum();
        let first = if len_bytes > max_bytes { queue.entries.pop_front() } else { None };
        self.count.store(queue.entries.len(), Relaxed);
        first
    }

    /// Empties the queue when its device is dropped: frees everything if the device is done, and leaks it if not.
    pub(crate) fn clear(&self, shared: &DeviceShared, done: bool) {
        let queue = mem::take(&mut *lock(&self.queue));
        self.count.store(0, Relaxed);
        for deferred in queue.entries {
            if done {
                // The device is being dropped, and the other entries have to be freed, too.
                host_function::run_quietly(|| deferred.free(shared));
            } else {
                shared.recycle_event(deferred.event, EventTiming::Untimed);
                let len_bytes = deferred.memory.len_bytes;
                shared.leaked.leak(deferred.memory, len_bytes);
            }
        }
    }
}

impl Deferred {
    fn free(self, shared: &DeviceShared) {
        shared.recycle_event(self.event, EventTiming::Untimed);
        (self.memory.free)();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::Arc,
    };

    use super::*;
    use crate::{
        Device,
        software::{Config, Execution},
    };

    #[test]
    fn memory_that_cannot_be_freed_keeps_no_other_from_being_freed() {
        let device = Device::software(Config::default()).unwrap();
        let stream = device.stream().unwrap();
        let (drops, freed, shared) = (DeferredDrops::default(), Arc::new(AtomicUsize::new(0)), device.core().shared());
        let defer = |_| {
            let event = Recorded::new(stream.core(), EventTiming::Untimed).unwrap();
            let freed = Arc::clone(&freed);
            let free = Box::new(move || {
                freed.fetch_add(1, Relaxed);
                panic!("an allocator panics");
            });
            drops.defer(event, DeferredDrop { len_bytes: 1, free });
        };
        (0..10).for_each(defer);
        stream.synchronize().unwrap();

        for left in (6..10).rev() {
            assert!(catch_unwind(AssertUnwindSafe(|| drops.release_finished(shared, Scan::All))).is_err());
            assert_eq!(drops.len(), left);
        }
        drops.clear(shared, true);

        assert_eq!((freed.load(Relaxed), drops.len()), (10, 0));
    }

    #[test]
    fn a_wait_ends_with_the_device_or_at_its_limit() {
        let config = Config { execution: Execution::Threads(1), ..Config::default() };
        let device = Device::software(config).unwrap();
        let stream = device.stream().unwrap();
        let (drops, freed, shared) = (DeferredDrops::default(), Arc::new(AtomicUsize::new(0)), device.core().shared());
        let (finish, finished) = std::sync::mpsc::channel::<()>();
        let call = stream.call(move || finished.recv().unwrap_err()).unwrap();
        for _ in 0..3 {
            let event = Recorded::new(stream.core(), EventTiming::Untimed).unwrap();
            let freed = Arc::clone(&freed);
            let free = Box::new(move || {
                freed.fetch_add(1, Relaxed);
            });
            drops.defer(event, DeferredDrop { len_bytes: 1, free });
        }

        drops.wait_at_most(shared, Duration::from_millis(20));
        assert_eq!((freed.load(Relaxed), drops.len()), (0, 3));

        drop(finish);
        drops.wait_at_most(shared, Duration::from_secs(60));
        assert_eq!((freed.load(Relaxed), drops.len()), (3, 0));
        call.wait().unwrap();
    }
}
