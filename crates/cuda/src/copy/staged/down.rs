//! Staged downloads: the call lets the device fill slots, and threads help it to empty them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    Part,
    crew::AtWork,
    job::pause,
    manners::Manners,
    ring::{Flight, Share, Slot},
};
use crate::{
    error::Result,
    stream::{Access, StreamCore},
    ticket::InUse,
};

/// One call. Dropping it, also in the middle, leaves no thread at work on the target.
pub(super) struct Download<'a> {
    at_work: AtWork<'a>, // dropped first: then no thread uses the target or a slot
    stream: &'a Arc<StreamCore>,
    sources: &'a [Access<'a>],
    parts: &'a [Part],
    asked: usize,           // pieces that the device was asked for, to their ends
    asking: Option<Asking>, // the next one, if the device was asked for its start
    landed: VecDeque<Slot>, // of the pieces from `emptied` to `arrived`
    arrived: usize,         // pieces that the device has filled
    emptied: usize,         // pieces that threads have emptied
    manners: Manners<'a>,
    share: Share<'a>, // dropped last
}

const SHORT: usize = 4 << 20; // up to here a call is soon over
const AHEAD_BYTES: usize = 20 << 20; // what the device is asked for in advance: so long may others wait at first
// Longer than for uploads: while the device runs out of copies and starts again, threads have nothing to empty.
const AT_MOST_BUSY: Duration = Duration::from_millis(10);

/// A piece that the device was asked for in part.
struct Asking {
    slot: InUse<Flight>,
    asked_bytes: usize,
}

impl<'a> Download<'a> {
    pub(super) fn new(
        at_work: AtWork<'a>,
        share: Share<'a>,
        stream: &'a Arc<StreamCore>,
        (sources, parts): (&'a [Access<'a>], &'a [Part]),
    ) -> Self {
        let len_bytes: usize = parts.iter().map(|part| part.len_bytes).sum();
        let manners = Manners::new(stream, &stream.base().downloads, len_bytes <= SHORT, AT_MOST_BUSY);
        let (asking, landed) = (None, VecDeque::new());
        Self { at_work, stream, sources, parts, asked: 0, asking, landed, arrived: 0, emptied: 0, manners, share }
    }

    /// Returns when the target may be read.
    pub(super) fn run(mut self) -> Result<()> {
        let mut idle = 0;
        while self.emptied < self.parts.len() {
            let progressed = self.take_emptied() | self.ask()? | self.note_arrived()?;
            if progressed || self.at_work.job().work() {
                idle = 0;
            } else if self.landed.is_empty() && self.asking.is_none() {
                self.wait()?; // the device is at work, and nothing is left to empty
            } else {
                pause(&mut idle); // other threads are emptying the last granules, or other streams have their turn
            }
        }
        Ok(())
    }

    /// Asks the device for pieces, as far as there are slots and nobody else is to go first.
    fn ask(&mut self) -> Result<bool> {
        let mut has_asked = false;
        while self.asked < self.parts.len() && !self.is_far_ahead() && !self.manners.has_to_wait(&self.share) {
            let asking = match self.asking.take() {
                Some(asking) => asking,
                None => match self.share.try_take(None)? {
                    Some(slot) => self.start(slot),
                    None => break,
                },
            };
            self.ask_for_more(asking)?;
            has_asked = true;
        }
        Ok(has_asked)
    }

    fn is_far_ahead(&self) -> bool {
        let ahead = &self.parts[self.arrived..self.asked];
        ahead.len() > 1 && ahead.iter().map(|part| part.len_bytes).sum::<usize>() >= AHEAD_BYTES
    }

    /// The next piece, in this slot.
    fn start(&self, slot: Slot) -> Asking {
        Asking { slot: InUse::new(slot.into(), self.parts[self.asked].len_bytes), asked_bytes: 0 }
    }

    /// Asks for the next piece, or for the part of it that may be asked for at once.
    fn ask_for_more(&mut self, Asking { mut slot, asked_bytes: start }: Asking) -> Result<()> {
        let part = &self.parts[self.asked];
        let len_bytes = (part.len_bytes - start).min(self.manners.most_at_once(part.len_bytes));
        let to = slot.held_mut().start_mut().wrapping_add(start);
        let queued = self.stream.enqueue(&self.sources[part.buffers.clone()], |driver, stream| {
            // SAFETY: the part is inside the source, which `enqueue` orders; the slot has room for it, is in `InUse`,
            // and no thread knows it before it has landed.
            unsafe { driver.copy_to_host(stream, to, part.address.offset(start), len_bytes) }
        });
        let end = start + len_bytes;
        if queued.is_ok() && end < part.len_bytes {
            self.asking = Some(Asking { slot, asked_bytes: end });
        } else {
            self.asked += 1;
            self.share.launch(slot, queued, start > 0)?;
        }
        self.manners.note_queued()
    }

    fn note_arrived(&mut self) -> Result<bool> {
        let before = self.arrived;
        while self.share.first_has_landed() {
            self.land()?;
        }
        Ok(self.arrived > before)
    }

    fn wait(&mut self) -> Result<()> {
        if self.land()? {
            return Ok(());
        }
        let slot = self.share.take()?;
        let asking = self.start(slot);
        self.ask_for_more(asking)
    }

    /// Waits for the next piece and lets threads empty it; false if the device was asked for none.
    fn land(&mut self) -> Result<bool> {
        let Some(mut slot) = self.share.land()? else { return Ok(false) };
        let start = slot.start_mut();
        self.landed.push_back(slot); // owned by this call before any thread knows it
        self.at_work.publish(self.arrived, start);
        self.arrived += 1;
        Ok(true)
    }

    fn take_emptied(&mut self) -> bool {
        let before = self.emptied;
        while self.emptied < self.arrived && self.is_emptied(self.emptied) {
            let Some(slot) = self.landed.pop_front() else { unreachable!("an arrived piece has a slot") };
            self.share.give_back(slot);
            self.emptied += 1;
        }
        self.emptied > before
    }

    fn is_emptied(&self, piece: usize) -> bool {
        self.at_work.job().copied_bytes(piece) == self.parts[piece].len_bytes
    }
}

impl Drop for Download<'_> {
    fn drop(&mut self) {
        self.at_work.job().close(); // no thread uses a slot any more
        if let Some(asking) = self.asking.take() {
            // A failure stopped the call in the middle of a piece: what is queued still writes to the slot.
            let _ = self.share.launch(asking.slot, Ok(()), true);
        }
        for slot in self.landed.drain(..) {
            self.share.give_back(slot);
        }
    }
}
