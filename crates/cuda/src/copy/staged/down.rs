//! Staged downloads: the call lets the device fill slots, and threads help it to empty them.

use std::{collections::VecDeque, sync::Arc};

use super::{
    Part,
    crew::AtWork,
    job::pause,
    ring::{Share, Slot},
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
    asked: usize,           // pieces that the device was asked for
    landed: VecDeque<Slot>, // of the pieces from `emptied` to `arrived`
    arrived: usize,         // pieces that the device has filled
    emptied: usize,         // pieces that threads have emptied
    share: Share<'a>,       // dropped last
}

impl<'a> Download<'a> {
    pub(super) fn new(
        at_work: AtWork<'a>,
        share: Share<'a>,
        stream: &'a Arc<StreamCore>,
        (sources, parts): (&'a [Access<'a>], &'a [Part]),
    ) -> Self {
        Self { at_work, stream, sources, parts, asked: 0, landed: VecDeque::new(), arrived: 0, emptied: 0, share }
    }

    /// Returns when the target may be read.
    pub(super) fn run(mut self) -> Result<()> {
        let mut idle = 0;
        while self.emptied < self.parts.len() {
            let progressed = self.take_emptied() | self.ask()? | self.note_arrived()?;
            if progressed || self.at_work.job().work() {
                idle = 0;
            } else if self.landed.is_empty() {
                self.wait()?; // the device is at work, and nothing is left to empty
            } else {
                pause(&mut idle); // other threads are emptying the last granules
            }
        }
        Ok(())
    }

    /// Asks the device for pieces, as far as there are slots.
    fn ask(&mut self) -> Result<bool> {
        let before = self.asked;
        while self.asked < self.parts.len() {
            let Some(slot) = self.share.try_take()? else { break };
            self.ask_for_next(slot)?;
        }
        Ok(self.asked > before)
    }

    fn ask_for_next(&mut self, slot: Slot) -> Result<()> {
        let part = &self.parts[self.asked];
        let mut slot = InUse::new(slot, part.len_bytes);
        let to = slot.held_mut().start_mut();
        let queued = self.stream.enqueue(&self.sources[part.buffer..=part.buffer], |driver, stream| {
            // SAFETY: the part is inside the source, which `enqueue` orders; the slot has room for it, is in `InUse`,
            // and no thread knows it before it has landed.
            unsafe { driver.copy_to_host(stream, to, part.address, part.len_bytes) }
        });
        self.share.launch(slot, queued, false)?;
        self.asked += 1;
        Ok(())
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
        self.ask_for_next(slot)
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
        for slot in self.landed.drain(..) {
            self.share.give_back(slot);
        }
    }
}
