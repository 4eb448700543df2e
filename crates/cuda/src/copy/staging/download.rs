//! [`Download`]: one staged download. The device fills slots, and threads empty them.
//!
//! ```text
//!   pieces      0 … emptied     emptied … arrived          arrived … queued           queued …
//!   slots       free again      being emptied by threads   being filled by the device none yet
//! ```
//! `queued` counts the pieces whose copy to a slot was queued on the device.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    ring::{Lease, Slot},
    workers::{Job, RunningJob, pause},
    yielding::Yielding,
};
use crate::{
    error::Result,
    stream::{Access, StreamCore},
    ticket::InUse,
};

/// A download in progress. After it is dropped, even before its end, no thread uses the target.
pub(super) struct Download<'a> {
    running: RunningJob<'a>, // closed first: then no thread uses the target or a slot
    stream: &'a Arc<StreamCore>,
    sources: &'a [Access<'a>],
    queued: usize,                          // pieces whose copies are queued completely
    queueing: Option<(InUse<Slot>, usize)>, // the slot of piece `queued`, and how many of its bytes are queued
    emptying: VecDeque<Slot>,               // of the pieces from `emptied` to `arrived`
    arrived: usize,                         // pieces that the device has filled
    emptied: usize,                         // pieces that threads have emptied
    yielding: Yielding<'a>,
    lease: Lease<'a>, // dropped last
}

const SHORT: usize = 4 << 20; // up to this length a call does not yield
const AHEAD_BYTES: usize = 20 << 20; // queued in advance; bounds how long copies of other streams wait at first
/// Longer than for uploads: while the device runs out of copies and starts again, threads have nothing to empty.
const YIELD_AFTER: Duration = Duration::from_millis(10);

impl<'a> Download<'a> {
    pub(super) fn new(
        running: RunningJob<'a>,
        lease: Lease<'a>,
        stream: &'a Arc<StreamCore>,
        sources: &'a [Access<'a>],
    ) -> Self {
        let len_bytes: usize = running.job().pieces().iter().map(|piece| piece.len_bytes).sum();
        let yielding = Yielding::new(stream, &stream.shared().downloads, len_bytes <= SHORT, YIELD_AFTER);
        let (queueing, emptying) = (None, VecDeque::new());
        Self { running, stream, sources, queued: 0, queueing, emptying, arrived: 0, emptied: 0, yielding, lease }
    }

    fn job(&self) -> &Job {
        self.running.job()
    }

    /// Runs the download. Returns when the target may be read.
    pub(super) fn run(mut self) -> Result<()> {
        let mut idle = 0;
        while self.emptied < self.job().pieces().len() {
            let progressed = self.release_emptied() | self.queue_next()? | self.receive_arrived()?;
            if progressed || self.job().work() {
                idle = 0;
            } else if self.emptying.is_empty() && self.queueing.is_none() {
                self.wait()?; // the device is filling slots, and nothing is left to empty
            } else {
                pause(&mut idle); // other threads are emptying the last granules, or the call yields to other streams
            }
        }
        Ok(())
    }

    /// Queues copies of the next pieces, as long as there are slots.
    fn queue_next(&mut self) -> Result<bool> {
        let mut has_queued = false;
        while self.queued < self.job().pieces().len() && !self.is_far_ahead() && !self.yielding.has_to_wait(&self.lease)
        {
            let queueing = match self.queueing.take() {
                Some(queueing) => queueing,
                None => match self.lease.try_take_another()? {
                    Some(slot) => self.start(slot),
                    None => break,
                },
            };
            self.queue_piece(queueing)?;
            has_queued = true;
        }
        Ok(has_queued)
    }

    fn is_far_ahead(&self) -> bool {
        let ahead = &self.job().pieces()[self.arrived..self.queued];
        ahead.len() > 1 && ahead.iter().map(|piece| piece.len_bytes).sum::<usize>() >= AHEAD_BYTES
    }

    fn start(&self, slot: Slot) -> (InUse<Slot>, usize) {
        (InUse::new(slot, self.job().pieces()[self.queued].len_bytes), 0)
    }

    /// Queues the copy of the next piece, or of the part of it that may be queued at once.
    fn queue_piece(&mut self, (mut slot, start): (InUse<Slot>, usize)) -> Result<()> {
        let piece = &self.running.job().pieces()[self.queued];
        let len_bytes = self.yielding.max_at_once(piece.len_bytes - start);
        let (to, end) = (slot.memory_mut().start_mut(), start + len_bytes);
        let queued = self.stream.enqueue(&self.sources[piece.buffers.clone()], |driver, stream| {
            self.running.job().plan().on_device(piece, start..end).try_for_each(|(address, part)| {
                // SAFETY: the part is inside the source, which `enqueue` orders; the slot is long enough and in
                // `InUse`, and no thread uses it before the device has filled it.
                unsafe { driver.copy_to_host(stream, to.wrapping_add(part.start), address, part.len()) }
            })
        });
        if queued.is_ok() && end < piece.len_bytes {
            self.queueing = Some((slot, end));
        } else {
            self.queued += 1;
            self.lease.put_in_flight(slot, queued, start..end)?;
        }
        self.yielding.note_queued()
    }

    fn receive_arrived(&mut self) -> Result<bool> {
        let before = self.arrived;
        while self.lease.oldest_is_done() {
            self.receive()?;
        }
        Ok(self.arrived > before)
    }

    fn wait(&mut self) -> Result<()> {
        if self.receive()? {
            return Ok(());
        }
        let slot = self.lease.take()?;
        let queueing = self.start(slot);
        self.queue_piece(queueing)
    }

    /// Waits for the next piece and lets threads empty it; false if none is queued.
    fn receive(&mut self) -> Result<bool> {
        let Some(mut slot) = self.lease.wait_for_oldest()? else { return Ok(false) };
        let start = slot.start_mut();
        self.emptying.push_back(slot); // owned by this call before any thread uses it
        self.running.publish(self.arrived, start);
        self.arrived += 1;
        Ok(true)
    }

    fn release_emptied(&mut self) -> bool {
        let before = self.emptied;
        while self.emptied < self.arrived && self.job().is_copied(self.emptied) {
            let Some(slot) = self.emptying.pop_front() else { unreachable!("an arrived piece has a slot") };
            self.lease.return_slot(slot);
            self.emptied += 1;
        }
        self.emptied > before
    }
}

impl Drop for Download<'_> {
    fn drop(&mut self) {
        self.job().close(); // no thread uses a slot any more
        if let Some((slot, queued_bytes)) = self.queueing.take() {
            // A failure stopped the call in the middle of a piece: the queued copies still write to the slot.
            let _ = self.lease.put_in_flight(slot, Ok(()), queued_bytes..queued_bytes);
        }
        for slot in self.emptying.drain(..) {
            self.lease.return_slot(slot);
        }
    }
}
