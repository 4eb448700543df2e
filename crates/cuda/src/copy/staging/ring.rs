//! [`Ring`]: the page-locked staging buffers ("slots") of one size, and [`Lease`]: the slots of one call.
//!
//! ```text
//!            take                 put_in_flight: an event is recorded
//!   free ───────────> held by a call ───────────────────────────> in flight
//!    ^                  │       ^                                     │
//!    └── return_slot ───┘       └──── the event has been reached ─────┘
//! ```
//! Slots are allocated when they are first needed, up to a limit. Then they are reused. The slot that was freed last
//! is taken first, because its memory is most likely in the processor's cache. When a call ends, its slots in flight
//! move to the ring with their events.
//!
//! A short upload needs only a part of a slot. The next short upload of the same stream may use the rest of the slot.
//! One event, recorded after the later upload, then covers both. So a thousand short uploads query only few events.
//!
//! Invariants: `slots` counts all slots that exist, in any state. A slot in flight is in an [`InUse`], so that it is
//! leaked rather than reused if the driver cannot say that the device is done. A call waits for a slot only while
//! all slots that it holds are in flight, so calls cannot deadlock. Streams and devices own the ring, not the reverse.

use std::{
    collections::VecDeque,
    iter, mem,
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
    sync::{Condvar, Mutex, OnDrop, lock},
    ticket::{InUse, Ticket},
};

pub(super) type Slot = Pinned<u8>;

/// Short uploads begin at multiples of this in their slot.
const ALIGN: usize = 64;

pub(super) struct Ring {
    pub(super) slot_bytes: usize,
    max_slots: usize,
    state: Mutex<State>, // guards the lists of slots
    returned: Condvar,   // with `state`: a slot can be taken or allocated
}

struct State {
    free: Vec<Slot>,
    in_flight: VecDeque<InFlight>, // of calls that have ended, oldest first
    slots: usize,
    limit: usize,   // fewer than `max_slots` after a refused allocation, until all calls have ended
    calls: usize,   // calls that have a lease
    waiting: usize, // calls that wait for a slot
    retired: bool,
    next_number: u64,
}

struct InFlight {
    number: u64,        // no other slot in flight ever has it
    event: EventHandle, // recorded, untimed
    slot: InUse<Slot>,
    stream: u64,       // on which the event was recorded
    used_bytes: usize, // from the slot's start; short uploads of the same stream may use the rest
}

impl Ring {
    pub(super) fn new(slot_bytes: usize, max_slots: usize) -> Self {
        let (free, in_flight) = (Vec::new(), VecDeque::new());
        let (slots, calls, waiting, retired, next_number) = (0, 0, 0, false, 0);
        let state = State { free, in_flight, slots, limit: max_slots, calls, waiting, retired, next_number };
        Self { slot_bytes, max_slots, state: Mutex::new(state), returned: Condvar::new() }
    }

    pub(super) fn len_bytes(&self) -> usize {
        lock(&self.state).slots * self.slot_bytes
    }

    pub(super) fn lease<'a>(&'a self, stream: &'a Arc<StreamCore>) -> Lease<'a> {
        let mut state = lock(&self.state);
        if state.calls == 0 {
            state.limit = self.max_slots; // memory that was refused before may be free now
        }
        state.calls += 1;
        drop(state);
        Lease { ring: self, stream, in_flight: VecDeque::new(), held_slots: 0 }
    }

    pub(super) fn is_in_use(&self, shared: &DeviceShared) -> bool {
        let last = lock(&self.state).in_flight.back().map(|last| last.event);
        // SAFETY: as in `take_finished`. If another call takes the slot meanwhile, the answer may be wrong: a slow upload.
        last.is_some_and(|event| unsafe { shared.driver.query_event(event) } != Ok(true))
    }

    /// Returns all slots to the pool of page-locked memory, those in flight through `deferred`. Calls that hold slots
    /// return them when they end.
    pub(super) fn retire(&self, deferred: &DeferredDrops) {
        let (free, in_flight) = {
            let mut state = lock(&self.state);
            state.retired = true;
            state.slots -= state.free.len() + state.in_flight.len();
            (mem::take(&mut state.free), mem::take(&mut state.in_flight))
        };
        self.returned.notify_all(); // a call that waits for one of these slots allocates another
        drop(free);
        for InFlight { event, slot, .. } in in_flight {
            deferred.defer_until(event, slot.into_deferred());
        }
    }

    /// Gives free slots back to the pool, unless a call has a lease. Returns the total size of these slots in bytes.
    pub(super) fn trim(&self, shared: &DeviceShared) -> usize {
        iter::from_fn(|| self.take_finished(shared)).for_each(|slot| self.return_slot(slot));
        let mut state = lock(&self.state);
        let free = if state.calls == 0 { mem::take(&mut state.free) } else { Vec::new() };
        state.slots -= free.len();
        drop(state); // unlocked before the slots are dropped, which takes the pool's lock
        free.len() * self.slot_bytes
    }

    /// A slot that is free, no longer in flight, or newly allocated; `None` if the call would have to wait for others.
    fn try_take(&self, stream: &StreamCore) -> Result<Option<Slot>> {
        let free = lock(&self.state).free.pop();
        if let Some(slot) = free.or_else(|| self.take_finished(stream.shared())) {
            return Ok(Some(slot));
        }
        let mut state = lock(&self.state);
        if state.slots >= state.limit {
            return Ok(None);
        }
        state.slots += 1;
        drop(state); // unlocked, since page-locking memory takes long
        let uncount = OnDrop(|| self.lose_slot()); // if a user's pool, which the budget trims, panics
        let allocated = Slot::for_device(stream.device(), self.slot_bytes);
        mem::forget(uncount);
        let Err(refused) = allocated else { return allocated.map(Some) };
        let mut state = lock(&self.state);
        state.slots -= 1;
        if state.slots == 0 {
            self.returned.notify_all(); // no slot will be returned: calls that wait try to allocate one, and fail too
            return Err(refused);
        }
        state.limit = state.slots; // the slots that exist must suffice
        Ok(None)
    }

    /// The oldest slot in flight, if the device is done with it.
    fn take_finished(&self, shared: &DeviceShared) -> Option<Slot> {
        let (number, event) = lock(&self.state).in_flight.front().map(|oldest| (oldest.number, oldest.event))?;
        // SAFETY: the event was recorded before it was stored here, and events exist as long as the device. If another
        // call takes the slot meanwhile, `is_same` discards the answer.
        let is_reached = unsafe { shared.driver.query_event(event) } == Ok(true);
        let is_same = |oldest: &mut InFlight| oldest.number == number;
        let finished = if is_reached { lock(&self.state).in_flight.pop_front_if(is_same) } else { None }?;
        shared.recycle_event(finished.event, EventTiming::Untimed);
        Some(finished.slot.release())
    }

    fn take(&self, stream: &StreamCore) -> Result<Slot> {
        lock(&self.state).waiting += 1;
        let _waiting = OnDrop(|| lock(&self.state).waiting -= 1);
        self.wait_for_slot(stream)
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
        // SAFETY: the event was recorded before it was stored here, and no other handle to it exists.
        let reached = unsafe { shared.driver.synchronize_event(in_flight.event) };
        let done = reached.or_else(|failure| shared.driver.synchronize().map_err(|_| failure));
        shared.recycle_event(in_flight.event, EventTiming::Untimed);
        match done {
            Ok(()) => Ok(in_flight.slot.release()),
            Err(failure) => {
                self.lose_slot();
                Err(in_flight.slot.leak(shared, failure))
            }
        }
    }

    fn return_slot(&self, slot: Slot) {
        let mut state = lock(&self.state);
        if state.retired {
            state.slots -= 1;
            self.returned.notify_one(); // a call that waits for a slot allocates another
            return drop(state); // unlocked before the slot is dropped, which takes the pool's lock
        }
        state.free.push(slot);
        self.returned.notify_one();
    }

    /// The slot of a short upload of that stream with enough unused bytes, and the offset at which they begin.
    fn take_partly_used(&self, stream: &StreamCore, len_bytes: usize) -> Option<(InUse<Slot>, usize)> {
        let mut state = lock(&self.state);
        let has_space = |slot: &InFlight| slot.stream == stream.id() && slot.used_bytes + len_bytes <= self.slot_bytes;
        let at = state.in_flight.iter().rposition(has_space)?;
        let InFlight { event, slot, used_bytes, .. } = state.in_flight.remove(at)?;
        stream.shared().recycle_event(event, EventTiming::Untimed);
        Some((slot, used_bytes))
    }

    fn add_in_flight(&self, (event, slot): (EventHandle, InUse<Slot>), used_bytes: usize, stream: &StreamCore) {
        let mut state = lock(&self.state);
        if state.retired {
            state.slots -= 1;
            self.returned.notify_all(); // as in `return_slot`
            drop(state);
            return stream.device().core().deferred.defer_until(event, slot.into_deferred());
        }
        let number = state.next_number;
        state.next_number += 1;
        state.in_flight.push_back(InFlight { number, event, slot, stream: stream.id(), used_bytes });
        self.returned.notify_one();
    }

    fn lose_slot(&self) {
        lock(&self.state).slots -= 1;
        self.returned.notify_all();
    }
}

/// The slots of one call. Dropping the lease moves its slots in flight to the ring.
pub(super) struct Lease<'a> {
    ring: &'a Ring,
    stream: &'a Arc<StreamCore>,
    in_flight: VecDeque<(Ticket<Slot>, usize)>, // oldest first, each with the number of used bytes of the slot
    held_slots: usize,                          // slots of the call, in flight or not
}

impl Lease<'_> {
    /// One more slot, if the call need not wait: the oldest in flight if the device is done with it, else another.
    pub(super) fn try_take(&mut self) -> Result<Option<Slot>> {
        if !self.oldest_is_done() {
            return self.try_take_another();
        }
        let slot = self.wait_for_oldest()?;
        if self.may_hold(self.held_slots) {
            return Ok(slot);
        }
        slot.into_iter().for_each(|slot| self.return_slot(slot)); // for a call that holds fewer slots
        Ok(None)
    }

    /// One more slot in addition to those in flight, if the call may have one without waiting.
    pub(super) fn try_take_another(&mut self) -> Result<Option<Slot>> {
        if !self.may_hold(self.held_slots + 1) {
            return Ok(None);
        }
        let taken = self.ring.try_take(self.stream)?;
        self.held_slots += usize::from(taken.is_some());
        Ok(taken)
    }

    /// Whether the call may hold this many slots: if no call waits for a slot, and each call could hold this many.
    fn may_hold(&self, slots: usize) -> bool {
        let state = lock(&self.ring.state);
        state.waiting == 0 && slots <= (state.limit / state.calls.max(1)).max(1)
    }

    /// Waits for a slot. Must be called only if all slots that this call holds are in flight.
    pub(super) fn take(&mut self) -> Result<Slot> {
        if let Some(slot) = self.wait_for_oldest()? {
            return Ok(slot);
        }
        let slot = self.ring.take(self.stream)?;
        self.held_slots += 1;
        Ok(slot)
    }

    /// A slot with enough unused bytes for a short upload, and their offset. Waits for a slot if necessary.
    pub(super) fn take_partly_used(&mut self, len_bytes: usize) -> Result<(InUse<Slot>, usize)> {
        if let Some(open) = self.ring.take_partly_used(self.stream, len_bytes) {
            self.held_slots += 1;
            return Ok(open);
        }
        Ok((InUse::new(self.take()?, self.ring.slot_bytes), 0))
    }

    /// Puts a slot in flight until all work that is queued so far is done. `queued` is the result of queueing a copy
    /// of the slot's bytes in `range`; copies of the bytes before `range` were queued earlier.
    pub(super) fn put_in_flight(
        &mut self,
        slot: InUse<Slot>,
        queued: Result<(), Unqueued>,
        range: Range<usize>,
    ) -> Result<()> {
        let (queued, refused) = match queued {
            Err(Unqueued::NotQueued(error)) if range.start > 0 => (Ok(()), Some(error)),
            other => (other, None),
        };
        match Ticket::new(self.stream, queued, slot) {
            Ok(ticket) => self.in_flight.push_back((ticket, range.end.next_multiple_of(ALIGN))),
            Err(refused) => {
                let (returned, error) = refused.into_parts();
                match returned {
                    Some(slot) => self.return_slot(slot),
                    None => self.lose_slot(),
                }
                return Err(error);
            }
        }
        refused.map_or(Ok(()), Err)
    }

    pub(super) fn all_are_done(&self) -> bool {
        self.in_flight.back().is_none_or(|(last, _)| last.is_done())
    }

    pub(super) fn oldest_is_done(&self) -> bool {
        self.in_flight.front().is_some_and(|(oldest, _)| oldest.is_done())
    }

    pub(super) fn wait_for_oldest(&mut self) -> Result<Option<Slot>> {
        let Some((ticket, _)) = self.in_flight.pop_front() else { return Ok(None) };
        let waited = ticket.wait();
        if waited.is_err() {
            self.lose_slot();
        }
        waited.map(Some)
    }

    pub(super) fn return_slot(&mut self, slot: Slot) {
        self.held_slots -= 1;
        self.ring.return_slot(slot);
    }

    fn lose_slot(&mut self) {
        self.held_slots -= 1;
        self.ring.lose_slot();
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // A watcher of accesses that panics can make a call lose slots.
        (self.in_flight.len()..self.held_slots).for_each(|_| self.ring.lose_slot());
        for (ticket, used_bytes) in self.in_flight.drain(..) {
            match ticket.into_flight() {
                Some(in_flight) => self.ring.add_in_flight(in_flight, used_bytes, self.stream),
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
    fn the_unused_bytes_of_a_slot_are_used_once_and_only_by_the_same_stream() {
        let lazy = Config { execution: Execution::Stepped { haste: 0 }, ..Config::default() };
        let device = Device::software(lazy).unwrap();
        let [one, other] = [0; 2].map(|_| device.stream().unwrap());
        let ring = Ring::new(1 << 10, 8);
        let call = |stream: &crate::Stream, len_bytes: usize| {
            let mut lease = ring.lease(stream.core());
            let (mut slot, start) = lease.take_partly_used(len_bytes).unwrap();
            let at = slot.memory_mut().as_ptr().addr() + start;
            let queued = stream.core().enqueue(&[], |_, _| Ok(()));
            lease.put_in_flight(slot, queued, start..start + len_bytes).unwrap();
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
        ring.retire(&device.core().deferred);
    }

    #[test]
    fn slots_that_calls_lost_are_replaced() {
        let device = Device::software(Config::default()).unwrap();
        let stream = device.stream().unwrap();
        let ring = Ring::new(1 << 10, 1);
        for _ in 0..2 {
            drop(ring.lease(stream.core()).take().unwrap());
            assert_eq!(ring.len_bytes(), 0);
        }
    }

    /// A call looks up the ring before it takes a slot, and in between the ring may be replaced.
    #[test]
    fn a_call_allocates_a_slot_if_all_slots_of_its_ring_were_retired() {
        let device = Device::software(Config::default()).unwrap();
        let stream = device.stream().unwrap();
        let ring = Ring::new(1 << 10, 2);
        let (mut early, mut late) = (ring.lease(stream.core()), ring.lease(stream.core()));
        let slots = [early.take().unwrap(), early.take().unwrap()];
        slots.into_iter().for_each(|slot| early.return_slot(slot));

        ring.retire(&device.core().deferred);

        let slot = late.take().unwrap();
        assert_eq!((ring.len_bytes(), slot.len()), (1 << 10, 1 << 10));
        late.return_slot(slot);
        assert_eq!(ring.len_bytes(), 0);
    }
}
