//! [`Ring`]: the page-locked slots of one size, and [`Share`], what one call holds of them.
//!
//! Slots are made when they are needed, up to a number, and then used again and again, the last one first, so that
//! they stay in the processor's cache. A call that ends while a device still reads its slots leaves them here, with the
//! event that says when it is done. Slots made as a pair lie behind each other, so that a device can read both at once: a
//! call that wants this takes them in that order.
//!
//! A short upload needs a part of a slot only. The rest is open to the next short upload of the same stream, whose event then
//! covers both: so many of them ask a device only now and then which slots it is done with.
//!
//! Invariants: `made` counts the slots that exist, wherever they are; a slot in flight is in an `InUse`, so that it is
//! leaked rather than used again when the device cannot say that it is done. The ring holds no stream and no device,
//! which hold it.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use super::Behind;
use crate::{
    base::Base,
    driver::{EventHandle, EventTiming},
    error::Result,
    page_locked::Pinned,
    parking::Lot,
    stream::{StreamCore, Unqueued},
    sync::{Condvar, Mutex, MutexGuard, lock},
    ticket::{InUse, Ticket},
};

/// A slot: page-locked bytes.
pub(super) type Slot = Pinned<u8>;

/// What a device uses at once: a slot, or a pair of them.
pub(super) struct Flight {
    first: Slot,
    second: Option<Slot>,
}

impl Flight {
    /// Two slots, the second of which follows the first.
    pub(super) fn of_two(first: Slot, second: Slot) -> Self {
        debug_assert!(first.is_followed_by(&second));
        Self { first, second: Some(second) }
    }

    /// Where the device begins.
    pub(super) fn start_mut(&mut self) -> *mut u8 {
        self.first.start_mut()
    }

    fn slots(&self) -> usize {
        1 + usize::from(self.second.is_some())
    }
}

impl From<Slot> for Flight {
    fn from(first: Slot) -> Self {
        Self { first, second: None }
    }
}

/// So many calls.
const FAR: usize = 3;

/// Short uploads begin at multiples of this in their slot.
const ALIGN: usize = 64;

/// See the head of the file.
pub(super) struct Ring {
    slot_bytes: usize,
    in_pairs: bool,       // while there is room for two
    shelf: Mutex<Shelf>,  // guards where the slots are
    changed: Condvar,     // with `shelf`: a slot came back
    calls: AtomicUsize,   // that hold slots, or want to. Relaxed: a hint
    waiting: AtomicUsize, // of these, for their next slot. Relaxed: a hint
}

struct Shelf {
    free: Vec<Slot>,
    parked: VecDeque<Parked>,
    made: usize,
    limit: usize,
    retired: bool,
}

/// What a device may still use after its call has ended.
struct Parked {
    event: EventHandle, // recorded, untimed
    flight: InUse<Flight>,
    open: Option<Open>,
}

/// The part of a slot in flight that nothing was written to yet.
struct Open {
    stream: u64,  // whose work the event is behind
    start: usize, // of the slot's bytes
}

impl Ring {
    pub(super) fn new(slot_bytes: usize, limit: usize) -> Self {
        let shelf = Shelf { free: Vec::new(), parked: VecDeque::new(), made: 0, limit, retired: false };
        Self {
            slot_bytes,
            in_pairs: false,
            shelf: Mutex::new(shelf),
            changed: Condvar::new(),
            calls: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    /// The same, with slots that are made two at a time.
    pub(super) fn in_pairs(self) -> Self {
        Self { in_pairs: true, ..self }
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Bytes of the slots that exist.
    pub(super) fn len_bytes(&self) -> usize {
        lock(&self.shelf).made * self.slot_bytes
    }

    /// What a new call holds: nothing yet.
    pub(super) fn share<'a>(&'a self, stream: &'a Arc<StreamCore>) -> Share<'a> {
        self.calls.fetch_add(1, Relaxed);
        Share { ring: self, stream, flying: VecDeque::new(), landed: None, held: 0 }
    }

    /// How far the device is behind ended calls. If it is done with what came last, that is used first: it is what the caches
    /// know.
    pub(super) fn behind(&self, base: &Base) -> Behind {
        let mut shelf = lock(&self.shelf);
        let is_done = |parked: &Parked| {
            // SAFETY: the event was recorded before it was parked, and is kept for nobody else.
            unsafe { base.driver.query_event(parked.event) == Ok(true) }
        };
        let Some(last) = shelf.parked.pop_back_if(|last| is_done(last)) else {
            let far = shelf.parked.len().checked_sub(FAR).and_then(|at| shelf.parked.get(at));
            return match far {
                None if shelf.parked.is_empty() => Behind::NotAtAll,
                Some(far) if !is_done(far) => Behind::Far,
                _ => Behind::ALittle,
            };
        };
        base.keep_event(last.event, EventTiming::Untimed);
        let first = shelf.first_of(last.flight.done());
        shelf.free.push(first);
        Behind::NotAtAll
    }

    /// Gives everything back, now or, through the lot, when the device is done with it; what is still with calls
    /// follows when they end.
    pub(super) fn retire(&self, lot: &Lot) {
        let (free, parked) = {
            let mut shelf = lock(&self.shelf);
            shelf.retired = true;
            shelf.made -= shelf.free.len() + shelf.parked.iter().map(Parked::slots).sum::<usize>();
            (mem::take(&mut shelf.free), mem::take(&mut shelf.parked))
        };
        self.changed.notify_all(); // who waits for one of these makes another
        drop(free);
        for Parked { event, flight, .. } in parked {
            lot.park_event(event, Box::new(flight));
        }
    }

    /// Returns free slots to the pool, but none while a call holds slots. Returns how many bytes they were.
    pub(super) fn trim(&self, base: &Base) -> usize {
        let mut shelf = lock(&self.shelf);
        while let Some(done) = shelf.take_done(base) {
            base.keep_event(done.event, EventTiming::Untimed);
            let first = shelf.first_of(done.flight.done());
            shelf.free.push(first);
        }
        let free = if self.calls.load(Relaxed) == 0 { mem::take(&mut shelf.free) } else { Vec::new() };
        shelf.made -= free.len();
        drop(shelf); // the slots go to the pool that they came from
        free.len() * self.slot_bytes
    }

    /// A slot that nobody uses, if there is one or one can be made without waiting; the one that follows `before`, if that is
    /// free.
    fn try_take(&self, stream: &StreamCore, before: Option<&Slot>) -> Result<Option<Slot>> {
        let mut shelf = lock(&self.shelf);
        if let Some(slot) = shelf.take_free(before) {
            return Ok(Some(slot));
        }
        if let Some(parked) = shelf.take_done(stream.base()) {
            stream.base().keep_event(parked.event, EventTiming::Untimed);
            return Ok(Some(shelf.first_of(parked.flight.done())));
        }
        let room = shelf.limit.saturating_sub(shelf.made);
        match room {
            0 => Ok(None),
            2.. if self.in_pairs => self.make_two(shelf, stream),
            _ => self.make(shelf, stream),
        }
    }

    /// One slot, and one behind it that is free.
    fn make_two(&self, mut shelf: MutexGuard<'_, Shelf>, stream: &StreamCore) -> Result<Option<Slot>> {
        shelf.made += 2;
        drop(shelf); // locking pages takes long
        let made = Slot::pair_for_device(stream.device(), self.slot_bytes);
        let mut shelf = lock(&self.shelf);
        let Ok((first, second)) = made else {
            shelf.made -= 2;
            if shelf.made == 0 {
                return self.make(shelf, stream); // perhaps there is room for one
            }
            shelf.limit = shelf.made; // make do with what there is
            return Ok(None);
        };
        if shelf.retired {
            shelf.made -= 1;
        } else {
            shelf.free.push(second);
        }
        self.changed.notify_one();
        Ok(Some(first))
    }

    fn make(&self, mut shelf: MutexGuard<'_, Shelf>, stream: &StreamCore) -> Result<Option<Slot>> {
        shelf.made += 1;
        drop(shelf); // as above
        let made = Slot::for_device(stream.device(), self.slot_bytes);
        let Err(refused) = made else { return made.map(Some) };
        let mut shelf = lock(&self.shelf);
        shelf.made -= 1;
        if shelf.made == 0 {
            self.changed.notify_all(); // nobody has one to bring back: all who wait try, and are refused too
            return Err(refused);
        }
        shelf.limit = shelf.made; // as above
        Ok(None)
    }

    /// A slot, after waiting for one.
    fn take(&self, stream: &StreamCore) -> Result<Slot> {
        self.waiting.fetch_add(1, Relaxed);
        let taken = self.wait_for_slot(stream);
        self.waiting.fetch_sub(1, Relaxed);
        taken
    }

    fn wait_for_slot(&self, stream: &StreamCore) -> Result<Slot> {
        loop {
            if let Some(slot) = self.try_take(stream, None)? {
                return Ok(slot);
            }
            let mut shelf = lock(&self.shelf);
            if let Some(parked) = shelf.parked.pop_front() {
                drop(shelf);
                return self.prove(parked, stream.base());
            }
            while shelf.free.is_empty() && shelf.parked.is_empty() && shelf.made >= shelf.limit {
                shelf = self.changed.wait(shelf).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Waits until the device is done with a slot.
    fn prove(&self, parked: Parked, base: &Base) -> Result<Slot> {
        // SAFETY: the event was recorded before it was parked, and is kept for nobody else.
        let reached = unsafe { base.driver.synchronize_event(parked.event) };
        let done = reached.or_else(|failure| base.driver.synchronize().map_err(|_| failure));
        base.keep_event(parked.event, EventTiming::Untimed);
        match done {
            Ok(()) => {
                let Flight { first, second } = parked.flight.done();
                second.into_iter().for_each(|second| self.put(second));
                Ok(first)
            }
            Err(failure) => {
                self.lose(parked.slots());
                Err(parked.flight.lost(base, failure))
            }
        }
    }

    fn put(&self, slot: Slot) {
        let mut shelf = lock(&self.shelf);
        if shelf.retired {
            shelf.made -= 1;
            self.changed.notify_one(); // who waits for it makes another
            return drop(shelf); // and the slot, to the pool that it came from
        }
        shelf.free.push(slot);
        self.changed.notify_one();
    }

    /// A slot of that stream's in flight of which so many bytes are open, from there on.
    fn take_open(&self, stream: &StreamCore, len_bytes: usize) -> Option<(InUse<Flight>, usize)> {
        let mut shelf = lock(&self.shelf);
        let has_room =
            |open: &Open| open.stream == stream.id() && len_bytes <= self.slot_bytes.saturating_sub(open.start);
        let at = shelf.parked.iter().rposition(|parked| parked.open.as_ref().is_some_and(has_room))?;
        let Parked { event, flight, open } = shelf.parked.remove(at)?;
        stream.base().keep_event(event, EventTiming::Untimed);
        Some((flight, open.map_or(0, |open| open.start)))
    }

    fn park(&self, parked: Parked, stream: &StreamCore) {
        let mut shelf = lock(&self.shelf);
        if shelf.retired {
            shelf.made -= parked.slots();
            self.changed.notify_all(); // as in `put`
            drop(shelf);
            return stream.device().core().lot().park_event(parked.event, Box::new(parked.flight));
        }
        shelf.parked.push_back(parked);
        self.changed.notify_one();
    }

    /// So many slots do not exist any more.
    fn lose(&self, slots: usize) {
        lock(&self.shelf).made -= slots;
        self.changed.notify_all();
    }
}

impl Parked {
    fn slots(&self) -> usize {
        self.flight.held().slots()
    }
}

impl Shelf {
    /// The one that follows `before`, or the one that came last; of a pair that is free the first.
    fn take_free(&mut self, before: Option<&Slot>) -> Option<Slot> {
        let last = self.free.last()?;
        let follows = before.and_then(|before| self.free.iter().position(|slot| before.is_followed_by(slot)));
        let at = follows.or_else(|| self.free.iter().position(|slot| slot.is_followed_by(last)));
        Some(match at {
            Some(at) => self.free.remove(at),
            None => self.free.pop()?,
        })
    }

    /// The first of what landed; if it was a pair, the second is free.
    fn first_of(&mut self, Flight { first, second }: Flight) -> Slot {
        self.free.extend(second);
        first
    }

    /// The slot that was parked first, if the device is done with it.
    fn take_done(&mut self, base: &Base) -> Option<Parked> {
        let first = self.parked.front()?;
        // SAFETY: the event was recorded before it was parked, and is kept for nobody else.
        let done = unsafe { base.driver.query_event(first.event) };
        if done == Ok(true) { self.parked.pop_front() } else { None }
    }
}

/// What one call holds of a ring. Dropping it leaves what is in flight to the ring.
pub(super) struct Share<'a> {
    ring: &'a Ring,
    stream: &'a Arc<StreamCore>,
    flying: VecDeque<Flying>,
    landed: Option<Slot>, // the second of a pair of which `land` gave the first
    held: usize,          // slots, in flight or in the call's hands
}

struct Flying {
    ticket: Ticket<Flight>,
    slots: usize,
    open: Option<Open>,
}

impl Share<'_> {
    /// The slot that was launched first, to be used again, if the device is done with it and nobody else waits.
    pub(super) fn try_reuse(&mut self) -> Result<Option<Slot>> {
        if !self.first_has_landed() {
            return Ok(None);
        }
        let slot = self.land()?;
        if self.is_fair() {
            return Ok(slot);
        }
        slot.into_iter().for_each(|slot| self.give_back(slot));
        Ok(None)
    }

    /// One more slot, if there is one for this call without waiting; the one that follows `before`, if that is free.
    pub(super) fn try_take(&mut self, before: Option<&Slot>) -> Result<Option<Slot>> {
        if self.ring.waiting.load(Relaxed) > 0 || self.held >= self.fair() {
            return Ok(None);
        }
        let taken = self.ring.try_take(self.stream, before)?;
        self.held += usize::from(taken.is_some());
        Ok(taken)
    }

    /// One more slot, after waiting for one.
    pub(super) fn take(&mut self) -> Result<Slot> {
        let slot = self.ring.take(self.stream)?;
        self.held += 1;
        Ok(slot)
    }

    /// Room for a short upload, and where it begins in its slot; after waiting for a slot if there is none.
    pub(super) fn take_room(&mut self, len_bytes: usize) -> Result<(InUse<Flight>, usize)> {
        match self.ring.take_open(self.stream, len_bytes) {
            Some(open) => {
                self.held += 1;
                Ok(open)
            }
            None => Ok((InUse::new(self.take()?.into(), self.ring.slot_bytes), 0)),
        }
    }

    /// As [`launch`](Self::launch), for work with the slot's bytes from `used` on, of which the next short upload may have those
    /// from `end` on.
    pub(super) fn launch_room(
        &mut self,
        flight: InUse<Flight>,
        queued: Result<(), Unqueued>,
        used: usize,
        end: usize,
    ) -> Result<()> {
        self.launch(flight, queued, used > 0)?;
        let start = end.next_multiple_of(ALIGN);
        if let Some(flying) = self.flying.back_mut() {
            flying.open = Some(Open { stream: self.stream.id(), start });
        }
        Ok(())
    }

    /// Gives slots to the device until what was queued so far is done. `earlier`: some of their work was queued before,
    /// whatever came of the last part.
    pub(super) fn launch(&mut self, flight: InUse<Flight>, queued: Result<(), Unqueued>, earlier: bool) -> Result<()> {
        let (queued, error) = match queued {
            Err(Unqueued::No(error)) if earlier => (Ok(()), Some(error)),
            other => (other, None),
        };
        let slots = flight.held().slots();
        match Ticket::new(self.stream, queued, flight) {
            Ok(ticket) => self.flying.push_back(Flying { ticket, slots, open: None }),
            Err(refused) => {
                let (returned, error) = refused.into_parts();
                match returned {
                    Some(Flight { first, second }) => {
                        [Some(first), second].into_iter().flatten().for_each(|slot| self.give_back(slot));
                    }
                    None => self.lose(slots),
                }
                return Err(error);
            }
        }
        error.map_or(Ok(()), Err)
    }

    /// Whether the slot that was launched last is done, so that nothing of this call is in flight.
    pub(super) fn all_have_landed(&self) -> bool {
        self.flying.back().is_none_or(|last| last.ticket.is_done())
    }

    /// Whether the slot that was launched first is done.
    pub(super) fn first_has_landed(&self) -> bool {
        self.landed.is_some() || self.flying.front().is_some_and(|first| first.ticket.is_done())
    }

    /// The slot that was launched first, after waiting for it; none if none is in flight.
    pub(super) fn land(&mut self) -> Result<Option<Slot>> {
        if self.landed.is_some() {
            return Ok(self.landed.take());
        }
        let Some(Flying { ticket, slots, .. }) = self.flying.pop_front() else { return Ok(None) };
        match ticket.wait() {
            Ok(Flight { first, second }) => {
                self.landed = second;
                Ok(Some(first))
            }
            Err(error) => {
                self.lose(slots);
                Err(error)
            }
        }
    }

    pub(super) fn give_back(&mut self, slot: Slot) {
        self.held -= 1;
        self.ring.put(slot);
    }

    fn lose(&mut self, slots: usize) {
        self.held -= slots;
        self.ring.lose(slots);
    }

    fn is_fair(&self) -> bool {
        self.ring.waiting.load(Relaxed) == 0 && self.held <= self.fair()
    }

    /// How many slots this call may hold while others go on.
    fn fair(&self) -> usize {
        let limit = lock(&self.ring.shelf).limit;
        (limit / self.ring.calls.load(Relaxed).max(1)).max(1)
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.landed.take().into_iter().for_each(|slot| self.ring.put(slot));
        for Flying { ticket, slots, open } in self.flying.drain(..) {
            match ticket.into_flight() {
                Some((event, flight)) => self.ring.park(Parked { event, flight, open }, self.stream),
                None => self.ring.lose(slots),
            }
        }
        self.ring.calls.fetch_sub(1, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{
        Device,
        software::{Config, Schedule},
    };

    #[test]
    fn a_device_is_far_behind_when_it_has_not_read_what_some_calls_wrote() {
        let device = Device::software(Config { schedule: Schedule::Threads(1), ..Config::default() }).unwrap();
        let stream = device.stream().unwrap();
        let (release, released) = mpsc::channel::<()>();
        drop(stream.call(move || released.recv()).unwrap()); // until then the device does nothing
        let (ring, base) = (Ring::new(1 << 10, 8), device.core().base());
        let call = || {
            let mut share = ring.share(stream.core());
            let slot = share.take().unwrap();
            let queued = stream.core().enqueue(&[], |_, _| Ok(()));
            share.launch(InUse::new(slot.into(), 1 << 10), queued, false).unwrap();
        };
        assert!(ring.behind(base) == Behind::NotAtAll);
        call();
        assert!(ring.behind(base) == Behind::ALittle);
        (1..FAR).for_each(|_| call());
        assert!(ring.behind(base) == Behind::Far);
        drop(release);
        stream.synchronize().unwrap();
        assert!(ring.behind(base) == Behind::NotAtAll);
        ring.retire(device.core().lot());
    }

    #[test]
    fn what_is_open_of_a_slot_is_used_by_its_stream_only_and_once() {
        let lazy = Config { schedule: Schedule::Stepped { haste: 0 }, ..Config::default() };
        let device = Device::software(lazy).unwrap();
        let [one, other] = [0; 2].map(|_| device.stream().unwrap());
        let ring = Ring::new(1 << 10, 8);
        let call = |stream: &crate::Stream, len_bytes: usize| {
            let mut share = ring.share(stream.core());
            let (slot, start) = share.take_room(len_bytes).unwrap();
            let at = slot.held().first.as_ptr().addr() + start;
            let queued = stream.core().enqueue(&[], |_, _| Ok(()));
            share.launch_room(slot, queued, start, start + len_bytes).unwrap();
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
        ring.retire(device.core().lot());
    }

    /// A call gets its ring before it takes a slot of it, and in between the ring may be replaced.
    #[test]
    fn a_call_makes_slots_of_its_own_if_its_ring_was_retired_with_all_others() {
        let device = Device::software(Config::default()).unwrap();
        let stream = device.stream().unwrap();
        let ring = Ring::new(1 << 10, 2);
        let (mut early, mut late) = (ring.share(stream.core()), ring.share(stream.core()));
        let slots = [early.take().unwrap(), early.take().unwrap()];
        slots.into_iter().for_each(|slot| early.give_back(slot));

        ring.retire(device.core().lot());

        let slot = late.take().unwrap();
        assert_eq!((ring.len_bytes(), slot.len()), (1 << 10, 1 << 10));
        late.give_back(slot);
        assert_eq!(ring.len_bytes(), 0);
    }
}
