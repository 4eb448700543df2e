//! Where that which a device may still use waits for its owner to be dropped for good.
//!
//! A ticket that is dropped in flight neither waits nor frees: it leaves what it holds here, with the event that says
//! when the device is done with it. So do buffers that are dropped without waiting, in a lot of their own, of which there is
//! never more than a little. New copies look in and give back what is done.

use std::collections::VecDeque;

use crate::{
    device_shared::DeviceShared,
    driver::{EventHandle, EventTiming},
    event::Recorded,
    host_function,
    sync::{AtomicUsize, Mutex, Ordering::Relaxed, lock},
};

/// What waits; see the head of the file.
#[derive(Default)]
pub(crate) struct Lot {
    parked: Mutex<VecDeque<Parked>>, // guards what waits
    count: AtomicUsize,              // of `parked`. Relaxed: a hint, so that an empty lot costs one load
}

struct Parked {
    event: EventHandle, // recorded, untimed
    held: Box<dyn Held>,
}

/// How many are asked about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// A few, as long as they are done: for the way to other work.
    Little,
    /// All.
    All,
}

/// Something that a device uses: host memory, mostly.
pub(crate) trait Held: Send + 'static {
    /// How much memory is lost if it is never given back.
    fn len_bytes(&self) -> usize;

    /// The device is done with it. Merely dropping it leaks.
    fn give_back(self: Box<Self>);
}

impl Lot {
    pub(crate) fn park(&self, done: Recorded, held: Box<dyn Held>) {
        let Some(event) = done.into_handle() else { return };
        self.park_event(event, held);
    }

    /// As [`park`](Self::park); the event is untimed, recorded, and the lot's from now on.
    pub(crate) fn park_event(&self, event: EventHandle, held: Box<dyn Held>) {
        let mut parked = lock(&self.parked);
        parked.push_back(Parked { event, held });
        self.count.store(parked.len(), Relaxed);
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Asks the driver what is done, and gives that back.
    pub(crate) fn reap(&self, base: &DeviceShared, effort: Effort) {
        if self.count.load(Relaxed) == 0 || host_function::is_inside() {
            return;
        }
        let done = self.take_done(base, effort);
        for Parked { event, held } in done {
            base.keep_event(event, EventTiming::Untimed);
            held.give_back(); // without the lock
        }
    }

    fn take_done(&self, base: &DeviceShared, effort: Effort) -> Vec<Parked> {
        let mut parked = lock(&self.parked);
        let mut done = Vec::new();
        let at_most = parked.len().min(if effort == Effort::Little { 4 } else { usize::MAX });
        for _ in 0..at_most {
            let Some(next) = parked.pop_front() else { break };
            // SAFETY: the event was recorded before it was parked, and is kept for nobody else.
            let answer = unsafe { base.driver.query_event(next.event) };
            if answer == Ok(true) {
                done.push(next);
                continue;
            }
            // Not done, or nobody can say. It goes behind the others, so that one that is stuck holds nobody up.
            parked.push_back(next);
            if effort == Effort::Little {
                break;
            }
        }
        self.count.store(parked.len(), Relaxed);
        done
    }

    /// Waits for those that were parked first, until the lot holds at most so many bytes.
    pub(crate) fn wait_down_to(&self, base: &DeviceShared, most_bytes: usize) {
        while let Some(Parked { event, held }) = self.take_first_above(most_bytes) {
            // SAFETY: the event was recorded before it was parked, and is kept for nobody else.
            let reached = unsafe { base.driver.synchronize_event(event) };
            if reached.is_err() {
                return self.park_event(event, held); // nobody can say
            }
            base.keep_event(event, EventTiming::Untimed);
            held.give_back();
        }
    }

    fn take_first_above(&self, most_bytes: usize) -> Option<Parked> {
        let mut parked = lock(&self.parked);
        let len_bytes: usize = parked.iter().map(|parked| parked.held.len_bytes()).sum();
        let first = if len_bytes > most_bytes { parked.pop_front() } else { None };
        self.count.store(parked.len(), Relaxed);
        first
    }

    /// Empties the lot at the end of its device: gives everything back if the device is done, and leaks it if not.
    pub(crate) fn clear(&self, base: &DeviceShared, done: bool) {
        let parked = std::mem::take(&mut *lock(&self.parked));
        self.count.store(0, Relaxed);
        for Parked { event, held } in parked {
            base.keep_event(event, EventTiming::Untimed);
            if done {
                held.give_back();
            } else {
                let len_bytes = held.len_bytes();
                base.leaked.give_up(held, len_bytes);
            }
        }
    }
}
