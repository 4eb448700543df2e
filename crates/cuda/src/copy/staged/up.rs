//! Staged uploads: threads fill slots, and the call that they help sends what is filled.
//!
//! The call itself sends, on the caller's stream, what is filled without a gap: whole chunks, since every copy costs the
//! device some microseconds; two pieces at once, where both ends lie together and the device has enough to do until both
//! are filled. But of the first and the last piece it sends less, so that it starts early and ends soon.
//!
//! A device reads what a core has just written at half of the wire's speed, out of that core's cache, and slows the core down.
//! As long as the threads are some slots ahead of the device, their caches have let go of what it comes to. Once they are not,
//! they are slowed, and stay behind to the end. So a long upload that gets there lets the device wait, a fraction of a
//! millisecond, until they are ahead again. A call of one piece cannot do that. While the device still has the one before it,
//! such a call sends its piece as a whole, filled by all threads there are. That gets a few calls ahead of the device; where
//! it does not, the next ones fill past the caches until they are.

use std::{collections::VecDeque, ops::Range, sync::Arc, time::Duration};

use super::{
    Part,
    crew::AtWork,
    job::pause,
    manners::Manners,
    ring::{Flight, Share, Slot},
};
use crate::{
    error::{Error, Result},
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
    is_awaited: bool,        // by the device: it has nothing else to do
    filling: VecDeque<Slot>, // of the pieces from `sending` to `published`
    published: usize,
    sending: Sending,
    lead: Lead,
    manners: Manners<'a>,
    share: Share<'a>, // dropped last
}

/// The piece that is being sent.
#[derive(Default)]
struct Sending {
    piece: usize,
    sent_bytes: usize,           // of the piece
    slot: Option<InUse<Flight>>, // from the first byte sent to the last
}

/// Whether the threads are ahead of the device.
#[derive(Default)]
struct Lead {
    lost_bytes: usize,   // sent since anything was filled beyond what was sent
    is_made_again: bool, // while that is so, nothing is sent
}

const LEAD: usize = 12 << 20; // with as much of the source, more than the caches of eight cores hold
const FIRST: usize = 128 << 10; // what the device starts with
const LEAST_AT_ONCE: usize = 256 << 10; // after that; below, a copy costs the device too much more than its bytes do
const GROWTH: usize = 2; // of the first piece, then so many times what was sent before: few copies, and none of them waited for
const LEAST_AT_LAST: usize = 768 << 10; // of the last piece
const AT_MOST_BUSY: Duration = Duration::from_millis(1);

impl<'a> Upload<'a> {
    pub(super) fn new(
        at_work: AtWork<'a>,
        share: Share<'a>,
        stream: &'a Arc<StreamCore>,
        (targets, parts): (&'a [Access<'a>], &'a [Part]),
        most_at_once: usize,
        is_awaited: bool,
    ) -> Self {
        Self {
            at_work,
            stream,
            targets,
            parts,
            most_at_once,
            is_awaited,
            filling: VecDeque::new(),
            published: 0,
            sending: Sending::default(),
            lead: Lead::default(),
            manners: Manners::new(stream, &stream.base().uploads, parts.len() == 1, AT_MOST_BUSY),
            share,
        }
    }

    /// Says where the next bytes of a plan are that left this open. The caller has borrowed them for longer than the call.
    #[inline]
    pub(super) fn give(&mut self, source: &[u8]) {
        self.at_work.give(source.as_ptr().cast_mut(), source.len());
    }

    /// Lets the crew copy what was given, and sends what is filled; waits for nothing.
    pub(super) fn go_on(&mut self) -> Result<()> {
        self.at_work.publish_what_is_given();
        self.publish_what_has_slots()?;
        while self.send()? {}
        Ok(())
    }

    /// Returns when the source, of which all is given, was read and everything is queued.
    pub(super) fn run(mut self) -> Result<()> {
        let mut idle = 0;
        while self.sending.piece < self.parts.len() {
            if let Some(source) = self.at_work.job().failure() {
                return Err(Error::File { source });
            }
            let published = self.publish_what_has_slots()?;
            let sent = self.send()?;
            if published || sent || (!self.first_is_being_filled() && self.at_work.job().work()) {
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
            let slot = if reused.is_some() { reused } else { self.share.try_take(self.filling.back())? };
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
        let most = self.manners.most_at_once(self.most_at_once);
        let next = if ready == part.len_bytes { self.next_of_two(most) } else { None };
        let both_filled = next.is_some() && self.is_filled(self.sending.piece + 1);
        if next.is_some() && !both_filled && !self.share.all_have_landed() {
            return Ok(false);
        }
        if self.lead.is_made_again && !self.has_lead() {
            return Ok(false);
        }
        self.lead.is_made_again = false;
        if self.manners.has_to_wait(&self.share) {
            return Ok(false);
        }
        let piece = self.sending.piece;
        match next.filter(|_| both_filled) {
            Some(next) => self.send_two(part, next)?,
            None => self.send_bytes(part, ready.min(most))?,
        }
        self.note_lead(piece..self.sending.piece);
        self.manners.note_queued()?;
        Ok(true)
    }

    /// Whether so much is filled, or all that has slots.
    fn has_lead(&self) -> bool {
        let waiting = &self.parts[self.sending.piece..self.published];
        let filled = (self.sending.piece..self.published).take_while(|&piece| self.is_filled(piece)).count();
        filled == waiting.len() || len_bytes(&waiting[..filled]) >= LEAD
    }

    /// Notes whether more was filled than these pieces, which were sent; at the end, where nothing would be gained, no more.
    fn note_lead(&mut self, sent: Range<usize>) {
        let has_all = self.published == self.parts.len();
        if has_all || sent.end == self.published || self.is_filled(sent.end) {
            self.lead.lost_bytes = 0;
            return;
        }
        self.lead.lost_bytes += len_bytes(&self.parts[sent]);
        if self.lead.lost_bytes >= LEAD {
            self.lead = Lead { lost_bytes: 0, is_made_again: true };
        }
    }

    fn is_filled(&self, piece: usize) -> bool {
        self.at_work.job().copied_bytes(piece) == self.parts[piece].len_bytes
    }

    /// The next piece, if one copy can send it with the one whose turn it is: in the slots and in the target, it begins where
    /// that ends.
    fn next_of_two(&self, most_at_once: usize) -> Option<&'a Part> {
        let (this, next) = (&self.parts[self.sending.piece], self.parts.get(self.sending.piece + 1)?);
        let (slot, next_slot) = (self.filling.front()?, self.filling.get(1)?);
        let is_one = this.buffers == next.buffers && this.address.offset(this.len_bytes) == next.address;
        let lies_together = this.len_bytes == slot.len() && slot.is_followed_by(next_slot);
        (is_one && lies_together && this.len_bytes + next.len_bytes <= most_at_once).then_some(next)
    }

    /// Sends two pieces that are filled, as [`next_of_two`](Self::next_of_two) found them.
    fn send_two(&mut self, this: &Part, next: &Part) -> Result<()> {
        let (Some(first), Some(second)) = (self.filling.pop_front(), self.filling.pop_front()) else {
            unreachable!("published pieces have slots")
        };
        let len_bytes = this.len_bytes + next.len_bytes;
        let mut slots = Flight::of_two(first, second);
        let from = slots.start_mut(); // before they are in use: a watcher may panic
        let slots = InUse::new(slots, len_bytes);
        let queued = self.stream.enqueue(&self.targets[this.buffers.clone()], |driver, stream| {
            // SAFETY: both parts are inside the target, which `enqueue` orders, one behind the other (`next_of_two`); so are
            // their bytes in the two slots, all filled, which are in `InUse`.
            unsafe { driver.copy_to_device(stream, this.address, from.cast_const(), len_bytes) }
        });
        self.sending = Sending { piece: self.sending.piece + 2, ..Sending::default() };
        self.share.launch(slots, queued, false)
    }

    /// Whether other threads are about to have filled what is sent first. The device waits for it, so the call does not begin
    /// anything else.
    fn first_is_being_filled(&self) -> bool {
        let (Sending { piece: 0, sent_bytes: 0, .. }, Some(part)) = (&self.sending, self.parts.first()) else {
            return false;
        };
        let (job, first) = (self.at_work.job(), FIRST.min(self.most_at_once).min(part.len_bytes));
        job.copied_bytes(0) < first && job.taken_bytes() >= first
    }

    /// Whether to send a part of a piece.
    fn is_worth_sending(&self, ready: usize) -> bool {
        let Sending { piece, sent_bytes, .. } = self.sending;
        let least = match piece {
            0 if !self.is_awaited => return false,
            0 if sent_bytes == 0 => FIRST,
            0 => (GROWTH * sent_bytes).max(LEAST_AT_ONCE),
            last if last + 1 == self.parts.len() => LEAST_AT_LAST,
            _ => self.most_at_once,
        };
        ready >= least.min(self.most_at_once)
    }

    fn send_bytes(&mut self, part: &Part, len_bytes: usize) -> Result<()> {
        let start = self.sending.sent_bytes;
        let slot = match self.sending.slot.take() {
            Some(slot) => Some(slot),
            None => self.filling.pop_front().map(|slot| InUse::new(slot.into(), part.len_bytes)),
        };
        let Some(mut slot) = slot else { unreachable!("a published piece has a slot") };
        let from = slot.held_mut().start_mut().wrapping_add(start);
        let queued = self.stream.enqueue(&self.targets[part.buffers.clone()], |driver, stream| {
            // SAFETY: the part is inside the target, which `enqueue` orders; the slot has room for the part, its
            // bytes are filled up to here, and it is in `InUse`.
            unsafe { driver.copy_to_device(stream, part.address.offset(start), from.cast_const(), len_bytes) }
        });
        self.note(slot, queued, start, len_bytes)
    }

    /// Keeps the slot for the rest of the piece, or gives it to the device until that is done with it.
    fn note(
        &mut self,
        slot: InUse<Flight>,
        queued: Result<(), Unqueued>,
        start: usize,
        len_bytes: usize,
    ) -> Result<()> {
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

fn len_bytes(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.len_bytes).sum()
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
