//! Staged uploads: threads fill slots, and the call that they help sends what is filled.
//!
//! The call itself sends, on the caller's stream, what is filled without a gap: whole chunks, since every copy costs the
//! device some microseconds; but of the first and the last piece less, so that it starts early and ends soon.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Part,
    crew::AtWork,
    job::pause,
    ring::{Share, Slot},
};
use crate::{
    driver::EventTiming,
    error::Result,
    event::Recorded,
    stream::{Access, StreamCore, Unqueued},
    ticket::InUse,
};

/// One call. Dropping it, also in the middle, leaves no thread at work on the source.
pub(super) struct Upload<'a> {
    at_work: AtWork<'a>, // dropped first: then no thread uses the source or a slot
    stream: &'a Arc<StreamCore>,
    targets: &'a [Access<'a>],
    parts: &'a [Part],
    most_at_once: usize,
    filling: VecDeque<Slot>, // of the pieces from `sending` to `published`
    published: usize,
    sending: Sending,
    yielded: Yielded,
    last: Option<Recorded>, // after the last part of a piece that was sent politely
    share: Share<'a>,       // dropped last
}

/// The piece that is being sent.
#[derive(Default)]
struct Sending {
    piece: usize,
    sent_bytes: usize,         // of the piece
    slot: Option<InUse<Slot>>, // from the first byte sent to the last
}

/// When a long copy last let others go first: a device does one stream's copies in a row, for as long as there are any.
struct Yielded {
    at: Instant,
    seen: u64, // copies of other streams
    polite_until: Instant,
}

const FIRST: usize = 256 << 10; // what the device starts with
const LEAST_AT_ONCE: usize = 768 << 10; // at the ends; below, a copy costs the device too much more than its bytes do
const AT_MOST_BUSY: Duration = Duration::from_millis(1);
const POLITE_FOR: Duration = Duration::from_millis(5);
const POLITE_BYTES: usize = 1 << 20; // at once, while others wait for their turn

impl<'a> Upload<'a> {
    pub(super) fn new(
        at_work: AtWork<'a>,
        share: Share<'a>,
        stream: &'a Arc<StreamCore>,
        (targets, parts): (&'a [Access<'a>], &'a [Part]),
        most_at_once: usize,
    ) -> Self {
        Self {
            at_work,
            stream,
            targets,
            parts,
            most_at_once,
            filling: VecDeque::new(),
            published: 0,
            sending: Sending::default(),
            yielded: Yielded {
                at: Instant::now(),
                seen: stream.base().uploads.of_others(stream.id()),
                polite_until: Instant::now(),
            },
            last: None,
            share,
        }
    }

    /// Returns when the source was read and everything is queued.
    pub(super) fn run(mut self) -> Result<()> {
        let mut idle = 0;
        while self.sending.piece < self.parts.len() {
            let published = self.publish_what_has_slots()?;
            let sent = self.send()?;
            if published || sent || self.at_work.job().work() {
                idle = 0;
            } else if self.sending.piece == self.published {
                let slot = match self.share.land()? {
                    Some(slot) => slot,
                    None => self.share.take()?,
                };
                self.publish(slot);
            } else {
                pause(&mut idle); // other threads are about to fill what comes next
            }
        }
        Ok(())
    }

    fn publish_what_has_slots(&mut self) -> Result<bool> {
        let before = self.published;
        while self.published < self.parts.len() {
            let reused = self.share.try_reuse()?;
            let slot = if reused.is_some() { reused } else { self.share.try_take()? };
            let Some(slot) = slot else { break };
            self.publish(slot);
        }
        Ok(self.published > before)
    }

    fn publish(&mut self, mut slot: Slot) {
        let start = slot.start_mut();
        self.filling.push_back(slot); // owned by this call before any thread knows it
        self.at_work.publish(self.published, start);
        self.published += 1;
    }

    /// Sends what is filled, if that is worth it.
    fn send(&mut self) -> Result<bool> {
        if self.sending.piece == self.published {
            return Ok(false);
        }
        let part = &self.parts[self.sending.piece];
        let filled = self.at_work.job().copied_bytes(self.sending.piece);
        let ready = filled - self.sending.sent_bytes;
        if ready == 0 || (filled < part.len_bytes && !self.is_worth_sending(ready)) {
            return Ok(false);
        }
        if self.has_to_yield() {
            return Ok(false);
        }
        let polite = self.is_polite();
        let most = if polite { POLITE_BYTES.min(self.most_at_once) } else { self.most_at_once };
        let part = &self.parts[self.sending.piece];
        self.send_bytes(part, ready.min(most))?;
        self.last = if polite { Some(Recorded::new(self.stream, EventTiming::Untimed)?) } else { None };
        Ok(true)
    }

    /// Whether to send a part of a piece.
    fn is_worth_sending(&self, ready: usize) -> bool {
        let is_at_an_end = self.sending.piece == 0 || self.sending.piece + 1 == self.parts.len();
        let is_first = self.sending.piece == 0 && self.sending.sent_bytes == 0;
        ready >= self.most_at_once || (is_at_an_end && ready >= if is_first { FIRST } else { LEAST_AT_ONCE })
    }

    /// Whether to let the device run out of this call's copies first, so that those of other streams get their turn:
    /// after every chunk while there are some, and now and then in case there are.
    fn has_to_yield(&mut self) -> bool {
        if self.parts.len() == 1 {
            return false; // soon over
        }
        let (now, others) = (Instant::now(), self.stream.base().uploads.of_others(self.stream.id()));
        if others != self.yielded.seen {
            self.yielded = Yielded { seen: others, polite_until: now + POLITE_FOR, ..self.yielded };
        }
        let due = now < self.yielded.polite_until || now > self.yielded.at + AT_MOST_BUSY;
        let is_reached = |last: &Recorded| last.is_reached().unwrap_or(true);
        if due && self.share.all_have_landed() && self.last.as_ref().is_none_or(is_reached) {
            self.yielded.at = now;
            return false;
        }
        due
    }

    fn is_polite(&self) -> bool {
        self.parts.len() > 1 && Instant::now() < self.yielded.polite_until
    }

    fn send_bytes(&mut self, part: &Part, len_bytes: usize) -> Result<()> {
        let start = self.sending.sent_bytes;
        let slot = match self.sending.slot.take() {
            Some(slot) => Some(slot),
            None => self.filling.pop_front().map(|slot| InUse::new(slot, part.len_bytes)),
        };
        let Some(mut slot) = slot else { unreachable!("a published piece has a slot") };
        let from = slot.held_mut().start_mut().wrapping_add(start);
        let queued = self.stream.enqueue(&self.targets[part.buffer..=part.buffer], |driver, stream| {
            // SAFETY: the part is inside the target, which `enqueue` orders; the slot has room for the part, its
            // bytes are filled up to here, and it is in `InUse`.
            unsafe { driver.copy_to_device(stream, part.address.offset(start), from.cast_const(), len_bytes) }
        });
        self.note(slot, queued, start, len_bytes)
    }

    /// Keeps the slot for the rest of the piece, or gives it to the device until that is done with it.
    fn note(&mut self, slot: InUse<Slot>, queued: Result<(), Unqueued>, start: usize, len_bytes: usize) -> Result<()> {
        let end = start + len_bytes;
        if queued.is_ok() && end < self.parts[self.sending.piece].len_bytes {
            self.sending = Sending { sent_bytes: end, slot: Some(slot), ..self.sending };
            return Ok(());
        }
        self.sending = Sending { piece: self.sending.piece + 1, ..Sending::default() };
        // After a refusal threads may still be filling the rest of this slot.
        if queued.is_err() {
            self.at_work.job().close();
        }
        self.share.launch(slot, queued, start > 0)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        self.at_work.job().close(); // no thread uses a slot any more
        if let Some(slot) = self.sending.slot.take() {
            // A failure stopped the call in the middle of a piece: what is queued still reads the slot.
            let _ = self.share.launch(slot, Ok(()), true);
        }
        for slot in self.filling.drain(..) {
            self.share.give_back(slot);
        }
    }
}
