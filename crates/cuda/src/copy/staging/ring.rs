//! [`Ring`]: the page-locked staging buffers ("slots") of one size, and [`Lease`]: what one call holds of them.
//!
//! ```text
//!            take                    launch: an event is recorded
//!   free ───────────> held by a call ───────────────────────────> in flight
//!    ^                  │       ^                                     │
//!    └── give_back ─────┘       └──── the event has been reached ─────┘
//! ```
//! Slots are made when they are first needed, up to a limit; then they are used again and again, the last one first, so
//! that they stay in the processor's cache. A call that ends leaves its slots in flight to the ring, with their events.
//!
//! A short upload needs only a part of a slot. The next short upload of the same stream may use the rest; its event then
//! covers both. So a thousand short uploads ask the device only now and then which slots it is done with.
//!
//! Invariants: `slots` counts those that exist, wherever they are. A slot in flight is in an [`InUse`], so that it is leaked
//! rather than used again when the device cannot say that it is done. A call waits for a slot only while it holds none, so
//! that calls cannot wait for each other in a circle. The ring holds no stream and no device: these hold it.

use std::{
    collections::VecDeque,
    mem,
    ops::Range,
    sync::{Arc, PoisonError},
};

use crate::{
    deferred_drops::DeferredDrops,
    device_shared::DeviceShared,
    driver::{EventHandle, EventTiming},
    error::Result,
    page_locked::Pinned,
    stream::{StreamCore, Unqueued},
    sync::{Condvar, Mutex, lock},
    ticket::{InUse, Ticket},
};

/// A page-locked staging buffer.
pub(super) type Slot = Pinned<u8>;

/// Short uploads begin at multiples of this in their slot.
const ALIGN: usize = 64;

/// See the head of the file.
pub(super) struct Ring {
    pub(super) slot_bytes: usize,
    state: Mutex<State>, // guards where the slots are
    returned: Condvar,   // with `state`: a slot can be taken or made
}

struct State {
    free: Vec<Slot>,
    in_flight: VecDeque<InFlight>, // of calls that have ended, oldest first
    slots: usize,
    limit: usize,
    calls: usize,   // that have a lease
    waiting: usize, // of these, for a slot
    retired: bool,
}

/// A slot that a device may still use after its call has ended.
struct InFlight {
    event: EventHandle, // recorded, untimed
    slot: InUse<Slot>,
    stream: u64,       // whose work the event follows
    used_bytes: usize, // from the slot's start; the rest is open to short uploads of the same stream
}

impl Ring {
    pub(super) fn new(slot_bytes: usize, limit: usize) -> Self {
        let (free, in_flight) = (Vec::new(), VecDeque::new());
        let state = State { free, in_flight, slots: 0, limit, calls: 0, waiting: 0, retired: false };
        Self { slot_bytes, state: Mutex::new(state), returned: Condvar::new() }
    }

    /// Bytes of the slots that exist.
    pub(super) fn len_bytes(&self) -> usize {
        lock(&self.state).slots * self.slot_bytes
    }

    /// What a new call holds: nothing yet.
    pub(super) fn lease<'a>(&'a self, stream: &'a Arc<StreamCore>) -> Lease<'a> {
        lock(&self.state).calls += 1;
        Lease { ring: self, stream, in_flight: VecDeque::new(), held: 0 }
    }

    /// Whether the device still uses a slot of a call that has ended.
    pub(super) fn is_in_use(&self, shared: &DeviceShared) -> bool {
        let state = lock(&self.state);
        // SAFETY: the event was recorded before it was left here, and no other handle to it exists.
        state.in_flight.back().is_some_and(|last| unsafe { shared.driver.query_event(last.event) } != Ok(true))
    }

    /// Gives all slots back to the pool that they came from, those in flight through `deferred`. Calls that hold slots give
    /// them back when they end.
    pub(super) fn retire(&self, deferred: &DeferredDrops) {
        let (free, in_flight) = {
            let mut state = lock(&self.state);
            state.retired = true;
            state.slots -= state.free.len() + state.in_flight.len();
            (mem::take(&mut state.free), mem::take(&mut state.in_flight))
        };
        self.returned.notify_all(); // a call that waits for one of these makes another
        drop(free);
        for InFlight { event, slot, .. } in in_flight {
            deferred.defer_until(event, Box::new(slot));
        }
    }

    /// Gives free slots back to the pool, but none during a call. Returns how many bytes they were.
    pub(super) fn trim(&self, shared: &DeviceShared) -> usize {
        let mut state = lock(&self.state);
        while let Some(slot) = state.take_finished(shared) {
            state.free.push(slot);
        }
        let free = if state.calls == 0 { mem::take(&mut state.free) } else { Vec::new() };
        state.slots -= free.len();
        drop(state); // dropping the slots takes the pool's lock
        free.len() * self.slot_bytes
    }

    /// A slot that is free, finished, or can be made without waiting for other calls.
    fn try_take(&self, stream: &StreamCore) -> Result<Option<Slot>> {
        let mut state = lock(&self.state);
        if let Some(slot) = state.free.pop() {
            return Ok(Some(slot));
        }
        if let Some(slot) = state.take_finished(stream.shared()) {
            return Ok(Some(slot));
        }
        if state.slots >= state.limit {
            return Ok(None);
        }
        state.slots += 1;
        drop(state); // page-locking memory takes long
        let made = Slot::for_device(stream.device(), self.slot_bytes);
        let Err(refused) = made else { return made.map(Some) };
        let mut state = lock(&self.state);
        state.slots -= 1;
        if state.slots == 0 {
            self.returned.notify_all(); // no slot will come back: all who wait try to make one, and are refused too
            return Err(refused);
        }
        state.limit = state.slots; // the slots that exist must suffice
        Ok(None)
    }

    /// A slot, after waiting for one.
    fn take(&self, stream: &StreamCore) -> Result<Slot> {
        lock(&self.state).waiting += 1;
        let taken = self.wait_for_slot(stream);
        lock(&self.state).waiting -= 1;
        taken
    }

    fn wait_for_slot(&self, stream: &StreamCore) -> Result<Slot> {
        loop {
            if let Some(slot) = self.try_take(stream)? {
                return Ok(slot);
            }
            let mut state = lock(&self.state);
            if let Some(oldest) = state.in_flight.pop_front() {
                drop(state);
                return self.wait_for_device(oldest, stream.shared());
            }
            while state.free.is_empty() && state.in_flight.is_empty() && state.slots >= state.limit {
                state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn wait_for_device(&self, in_flight: InFlight, shared: &DeviceShared) -> Result<Slot> {
        // SAFETY: the event was recorded before it was left here, and no other handle to it exists.
        let reached = unsafe { shared.driver.synchronize_event(in_flight.event) };
        let done = reached.or_else(|failure| shared.driver.synchronize().map_err(|_| failure));
        shared.keep_event(in_flight.event, EventTiming::Untimed);
        match done {
            Ok(()) => Ok(in_flight.slot.done()),
            Err(failure) => {
                self.lose_slot();
                Err(in_flight.slot.lost(shared, failure))
            }
        }
    }

    fn put_back(&self, slot: Slot) {
        let mut state = lock(&self.state);
        if state.retired {
            state.slots -= 1;
            self.returned.notify_one(); // a call that waits for it makes another
            return drop(state); // and the slot, to the pool that it came from
        }
        state.free.push(slot);
        self.returned.notify_one();
    }

    /// The slot of that stream's last short upload, if it has room for these bytes, and where they begin.
    fn take_open(&self, stream: &StreamCore, len_bytes: usize) -> Option<(InUse<Slot>, usize)> {
        let mut state = lock(&self.state);
        let has_room = |slot: &InFlight| slot.stream == stream.id() && slot.used_bytes + len_bytes <= self.slot_bytes;
        let at = state.in_flight.iter().rposition(has_room)?;
        let InFlight { event, slot, used_bytes, .. } = state.in_flight.remove(at)?;
        stream.shared().keep_event(event, EventTiming::Untimed);
        Some((slot, used_bytes))
    }

    fn leave_in_flight(&self, in_flight: InFlight, stream: &StreamCore) {
        let mut state = lock(&self.state);
        if state.retired {
            state.slots -= 1;
            self.returned.notify_all(); // as in `put_back`
            drop(state);
            return stream.device().core().deferred().defer_until(in_flight.event, Box::new(in_flight.slot));
        }
        state.in_flight.push_back(in_flight);
        self.returned.notify_one();
    }

    /// A slot does not exist any more.
    fn lose_slot(&self) {
        lock(&self.state).slots -= 1;
        self.returned.notify_all();
    }
}

impl State {
    /// The oldest slot of ended calls, if the device is done with it.
    fn take_finished(&mut self, shared: &DeviceShared) -> Option<Slot> {
        let oldest = self.in_flight.front()?;
        // SAFETY: the event was recorded before it was left here, and no other handle to it exists.
        let done = unsafe { shared.driver.query_event(oldest.event) };
        let finished = if done == Ok(true) { self.in_flight.pop_front() } else { None }?;
        shared.keep_event(finished.event, EventTiming::Untimed);
        Some(finished.slot.done())
    }
}

/// What one call holds of a ring. Dropping it leaves what is in flight to the ring.
pub(super) struct Lease<'a> {
    ring: &'a Ring,
    stream: &'a Arc<StreamCore>,
    in_flight: VecDeque<(Ticket<Slot>, usize)>, // oldest first, and how many bytes of the slot are used
    held: usize,                                // slots, in flight, or being filled or emptied
}

impl Lease<'_> {
    /// One more slot, if the call may have one without waiting: the oldest in flight, if the device is done with it, or another.
    pub(super) fn try_take(&mut self) -> Result<Option<Slot>> {
        if !self.oldest_is_done() {
            return self.try_take_another();
        }
        let slot = self.wait_for_oldest()?;
        if self.may_hold(self.held) {
            return Ok(slot);
        }
        slot.into_iter().for_each(|slot| self.give_back(slot)); // to a call that has less
        Ok(None)
    }

    /// One more slot beside those in flight, if the call may have one without waiting.
    pub(super) fn try_take_another(&mut self) -> Result<Option<Slot>> {
        if !self.may_hold(self.held + 1) {
            return Ok(None);
        }
        let taken = self.ring.try_take(self.stream)?;
        self.held += usize::from(taken.is_some());
        Ok(taken)
    }

    /// Whether the call may hold this many slots: no other call waits for one, and all calls can have as many.
    fn may_hold(&self, slots: usize) -> bool {
        let state = lock(&self.ring.state);
        state.waiting == 0 && slots <= (state.limit / state.calls.max(1)).max(1)
    }

    /// A slot, after waiting for one. To be called only by a call that holds none but in flight.
    pub(super) fn take(&mut self) -> Result<Slot> {
        if let Some(slot) = self.wait_for_oldest()? {
            return Ok(slot);
        }
        let slot = self.ring.take(self.stream)?;
        self.held += 1;
        Ok(slot)
    }

    /// Room for a short upload, and where it begins in its slot; after waiting for a slot if there is none.
    pub(super) fn take_room(&mut self, len_bytes: usize) -> Result<(InUse<Slot>, usize)> {
        if let Some(open) = self.ring.take_open(self.stream, len_bytes) {
            self.held += 1;
            return Ok(open);
        }
        Ok((InUse::new(self.take()?, self.ring.slot_bytes), 0))
    }

    /// Gives a slot to the device until what was queued so far is done: `queued` is what came of queueing a copy of its
    /// bytes in `range`; copies of the bytes before were queued earlier.
    pub(super) fn launch(
        &mut self,
        slot: InUse<Slot>,
        queued: Result<(), Unqueued>,
        range: Range<usize>,
    ) -> Result<()> {
        let (queued, refused) = match queued {
            Err(Unqueued::No(error)) if range.start > 0 => (Ok(()), Some(error)),
            other => (other, None),
        };
        match Ticket::new(self.stream, queued, slot) {
            Ok(ticket) => self.in_flight.push_back((ticket, range.end.next_multiple_of(ALIGN))),
            Err(refused) => {
                let (returned, error) = refused.into_parts();
                match returned {
                    Some(slot) => self.give_back(slot),
                    None => self.lose_slot(),
                }
                return Err(error);
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Whether the device is done with every slot of this call.
    pub(super) fn all_are_done(&self) -> bool {
        self.in_flight.back().is_none_or(|(last, _)| last.is_done())
    }

    /// Whether the device is done with the slot that was launched first.
    pub(super) fn oldest_is_done(&self) -> bool {
        self.in_flight.front().is_some_and(|(oldest, _)| oldest.is_done())
    }

    /// The slot that was launched first, after waiting for the device; none if none is in flight.
    pub(super) fn wait_for_oldest(&mut self) -> Result<Option<Slot>> {
        let Some((ticket, _)) = self.in_flight.pop_front() else { return Ok(None) };
        let waited = ticket.wait();
        if waited.is_err() {
            self.lose_slot();
        }
        waited.map(Some)
    }

    pub(super) fn give_back(&mut self, slot: Slot) {
        self.held -= 1;
        self.ring.put_back(slot);
    }

    fn lose_slot(&mut self) {
        self.held -= 1;
        self.ring.lose_slot();
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        for (ticket, used_bytes) in self.in_flight.drain(..) {
            match ticket.into_flight() {
                Some((event, slot)) => {
                    let stream = self.stream.id();
                    self.ring.leave_in_flight(InFlight { event, slot, stream, used_bytes }, self.stream);
                }
                None => self.ring.lose_slot(),
            }
        }
        lock(&self.ring.state).calls -= 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        Device,
        software::{Config, Execution},
    };

    #[test]
    fn the_rest_of_a_slot_is_used_by_its_stream_only_and_once() {
        let lazy = Config { execution: Execution::Stepped { haste: 0 }, ..Config::default() };
        let device = Device::software(lazy).unwrap();
        let [one, other] = [0; 2].map(|_| device.stream().unwrap());
        let ring = Ring::new(1 << 10, 8);
        let call = |stream: &crate::Stream, len_bytes: usize| {
            let mut lease = ring.lease(stream.core());
            let (mut slot, start) = lease.take_room(len_bytes).unwrap();
            let at = slot.held_mut().as_ptr().addr() + start;
            let queued = stream.core().enqueue(&[], |_, _| Ok(()));
            lease.launch(slot, queued, start..start + len_bytes).unwrap();
            at
        };
        let first = call(&one, 100);
        assert_eq!(call(&one, 100), first + 128);
        let another = call(&other, 1);
        assert!(!(first..first + 1_024).contains(&another));
        assert_eq!(call(&other, 1), another + 64);
        assert_eq!(call(&one, 1_024 - 256), first + 256);
        assert!(!(first..first + 1_024).contains(&call(&one, 1)), "it is full");
        assert_eq!(ring.len_bytes(), 3 << 10);
        ring.retire(device.core().deferred());
    }

    /// A call gets its ring before it takes a slot of it, and in between the ring may be replaced.
    #[test]
    fn a_call_makes_slots_of_its_own_if_its_ring_was_retired_with_all_others() {
        let device = Device::software(Config::default()).unwrap();
        let stream = device.stream().unwrap();
        let ring = Ring::new(1 << 10, 2);
        let (mut early, mut late) = (ring.lease(stream.core()), ring.lease(stream.core()));
        let slots = [early.take().unwrap(), early.take().unwrap()];
        slots.into_iter().for_each(|slot| early.give_back(slot));

        ring.retire(device.core().deferred());

        let slot = late.take().unwrap();
        assert_eq!((ring.len_bytes(), slot.len()), (1 << 10, 1 << 10));
        late.give_back(slot);
        assert_eq!(ring.len_bytes(), 0);
    }
}
