//! [`DeferredDrops`]: memory that was dropped while a device may still use it, until the device is done with it.
//!
//! A ticket that is dropped in flight neither waits nor frees: what it holds is dropped later, here, after the event that
//! says that the device is done with it. The same goes for buffers that are dropped without waiting, in a queue of their own with
//! a limit. New copies ask about a few of them, and free what is done.

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
    queue: Mutex<VecDeque<Deferred>>, // guards what is deferred
    count: AtomicUsize,               // of `queue`. Relaxed: a hint, so that an empty queue costs one load
}

struct Deferred {
    event: EventHandle, // recorded, untimed
    held: Box<dyn DeferredDrop>,
}

/// How many events the driver is asked about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scan {
    /// A few, as long as they are done: before other work.
    Few,
    /// All.
    All,
}

/// Something that a device uses: host memory, mostly.
pub(crate) trait DeferredDrop: Send + 'static {
    /// How much memory is lost if it is never given back.
    fn len_bytes(&self) -> usize;

    /// The device is done with it. Merely dropping it leaks.
    fn give_back(self: Box<Self>);
}

impl DeferredDrops {
    pub(crate) fn defer(&self, done: Recorded, held: Box<dyn DeferredDrop>) {
        let Some(event) = done.into_handle() else { return };
        self.defer_until(event, held);
    }

    /// As [`defer`](Self::defer); the event is untimed, recorded, and this queue's from now on.
    pub(crate) fn defer_until(&self, event: EventHandle, held: Box<dyn DeferredDrop>) {
        let mut queue = lock(&self.queue);
        queue.push_back(Deferred { event, held });
        self.count.store(queue.len(), Relaxed);
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Asks the driver what is done, and frees that.
    pub(crate) fn release_finished(&self, shared: &DeviceShared, scan: Scan) {
        if self.count.load(Relaxed) == 0 || host_function::is_inside() {
            return;
        }
        let done = self.take_done(shared, scan);
        for Deferred { event, held } in done {
            shared.keep_event(event, EventTiming::Untimed);
            held.give_back(); // without the lock
        }
    }

    fn take_done(&self, shared: &DeviceShared, scan: Scan) -> Vec<Deferred> {
        let mut queue = lock(&self.queue);
        let mut done = Vec::new();
        let at_most = queue.len().min(if scan == Scan::Few { 4 } else { usize::MAX });
        for _ in 0..at_most {
            let Some(next) = queue.pop_front() else { break };
            // SAFETY: the event was recorded before it was deferred, and no other handle to it exists.
            let answer = unsafe { shared.driver.query_event(next.event) };
            if answer == Ok(true) {
                done.push(next);
                continue;
            }
            // Not done, or the driver cannot say. It goes behind the others, so that none waits for one that never ends.
            queue.push_back(next);
            if scan == Scan::Few {
                break;
            }
        }
        self.count.store(queue.len(), Relaxed);
        done
    }

    /// Waits for the oldest entries until the queue holds at most `most_bytes`.
    pub(crate) fn wait_down_to(&self, shared: &DeviceShared, most_bytes: usize) {
        while let Some(Deferred { event, held }) = self.take_first_above(most_bytes) {
            // SAFETY: the event was recorded before it was deferred, and no other handle to it exists.
            let reached = unsafe { shared.driver.synchronize_event(event) };
            if reached.is_err() {
                return self.defer_until(event, held); // the driver cannot say
            }
            shared.keep_event(event, EventTiming::Untimed);
            held.give_back();
        }
    }

    fn take_first_above(&self, most_bytes: usize) -> Option<Deferred> {
        let mut queue = lock(&self.queue);
        let len_bytes: usize = queue.iter().map(|deferred| deferred.held.len_bytes()).sum();
        let first = if len_bytes > most_bytes { queue.pop_front() } else { None };
        self.count.store(queue.len(), Relaxed);
        first
    }

    /// Empties the queue at the end of its device: frees everything if the device is done, and leaks it if not.
    pub(crate) fn clear(&self, shared: &DeviceShared, done: bool) {
        let queue = std::mem::take(&mut *lock(&self.queue));
        self.count.store(0, Relaxed);
        for Deferred { event, held } in queue {
            shared.keep_event(event, EventTiming::Untimed);
            if done {
                held.give_back();
            } else {
                let len_bytes = held.len_bytes();
                shared.leaked.give_up(held, len_bytes);
            }
        }
    }
}
