//! [`DeferredDrops`]: holds memory that was dropped while a device may still use it, until the device is done with
//! it.
//!
//! A ticket that is dropped in flight neither waits nor frees. Its memory is queued here together with an event, and
//! is freed after the device has reached the event. Host buffers that are dropped without waiting have a queue of
//! their own, with a limit. New copies query the events of a few entries, and free those that are done.

use std::collections::VecDeque;

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
    queue: Mutex<VecDeque<Deferred>>, // guards the deferred memory
    count: AtomicUsize,               // length of `queue`. Relaxed: a hint, so that an empty queue costs one load
}

struct Deferred {
    event: EventHandle, // recorded, untimed
    memory: Box<dyn DeferredDrop>,
}

/// How many events a scan queries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scan {
    /// At most four, up to the first that is not done: cheap enough to run before other work.
    Few,
    /// All.
    All,
}

/// Something that a device uses: mostly host memory.
pub(crate) trait DeferredDrop: Send + 'static {
    /// How many bytes leak if [`free`](Self::free) is never called.
    fn len_bytes(&self) -> usize;

    /// Frees it: the device is done with it. Dropping it without this call leaks it.
    fn free(self: Box<Self>);
}

impl DeferredDrops {
    pub(crate) fn defer(&self, done: Recorded, memory: Box<dyn DeferredDrop>) {
        let Some(event) = done.into_handle() else { return };
        self.defer_until(event, memory);
    }

    /// Like [`defer`](Self::defer), with an untimed event that is recorded. The queue takes ownership of the event.
    pub(crate) fn defer_until(&self, event: EventHandle, memory: Box<dyn DeferredDrop>) {
        let mut queue = lock(&self.queue);
        queue.push_back(Deferred { event, memory });
        self.count.store(queue.len(), Relaxed);
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Queries the events, and frees the entries whose event is reached.
    pub(crate) fn release_finished(&self, shared: &DeviceShared, scan: Scan) {
        if self.count.load(Relaxed) == 0 || host_function::is_inside() {
            return;
        }
        let done = self.take_done(shared, scan);
        for Deferred { event, memory } in done {
            shared.recycle_event(event, EventTiming::Untimed);
            memory.free(); // without the lock
        }
    }

    fn take_done(&self, shared: &DeviceShared, scan: Scan) -> Vec<Deferred> {
        let mut queue = lock(&self.queue);
        let mut done = Vec::new();
        let max_count = queue.len().min(if scan == Scan::Few { 4 } else { usize::MAX });
        for _ in 0..max_count {
            let Some(next) = queue.pop_front() else { break };
            // SAFETY: the event was recorded before it was deferred, and no other handle to it exists.
            let reached = unsafe { shared.driver.query_event(next.event) };
            if reached == Ok(true) {
                done.push(next);
                continue;
            }
            // Not done, or the driver cannot say. It moves to the back, so that an event that is never reached does
            // not keep the others from being freed.
            queue.push_back(next);
            if scan == Scan::Few {
                break;
            }
        }
        self.count.store(queue.len(), Relaxed);
        done
    }

    /// Waits for the oldest entries until the queue holds at most `max_bytes`.
    pub(crate) fn wait_down_to(&self, shared: &DeviceShared, max_bytes: usize) {
        while let Some(Deferred { event, memory }) = self.take_first_above(max_bytes) {
            // SAFETY: the event was recorded before it was deferred, and no other handle to it exists.
            let reached = unsafe { shared.driver.synchronize_event(event) };
            if reached.is_err() {
                return self.defer_until(event, memory); // the driver cannot say
            }
            shared.recycle_event(event, EventTiming::Untimed);
            memory.free();
        }
    }

    fn take_first_above(&self, max_bytes: usize) -> Option<Deferred> {
        let mut queue = lock(&self.queue);
        let len_bytes: usize = queue.iter().map(|deferred| deferred.memory.len_bytes()).sum();
        let first = if len_bytes > max_bytes { queue.pop_front() } else { None };
        self.count.store(queue.len(), Relaxed);
        first
    }

    /// Empties the queue when its device is dropped: frees everything if the device is done, and leaks it if not.
    pub(crate) fn clear(&self, shared: &DeviceShared, done: bool) {
        let queue = std::mem::take(&mut *lock(&self.queue));
        self.count.store(0, Relaxed);
        for Deferred { event, memory } in queue {
            shared.recycle_event(event, EventTiming::Untimed);
            if done {
                memory.free();
            } else {
                let len_bytes = memory.len_bytes();
                shared.leaked.leak(memory, len_bytes);
            }
        }
    }
}
