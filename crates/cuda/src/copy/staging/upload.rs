//! [`Upload`]: one staged upload, from its first slot to its last.
//!
//! ```text
//!   pieces      0 … sent        sent … published           published …
//!   slots       in flight       being filled by threads    none yet
//! ```
//! The call publishes each piece when it has a slot for it, helps to fill pieces, and queues copies of the filled
//! bytes on the caller's stream ("sends" them), in order. When it returns, the source may be changed.
//!
//! To begin early and to end soon, the first and the last piece are sent in parts of growing length. After the first
//! pieces, a piece is sent only when the next [`LEAD`] bytes are filled too. By then the bytes that the device reads
//! have left the caches of the cores that wrote them (`non_temporal.rs`), and the device never catches up with the
//! threads, which would slow both.
//!
//! An upload of one piece cannot get such a lead. If the device waits for it, the threads write it past the caches.
//! If the device still has earlier uploads ([`DeviceState::Busy`]), all threads fill it and it is sent as a whole, so
//! that several such calls in a row get ahead of the device.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    ring::{Lease, Slot},
    workers::{Job, RunningJob, pause},
    yielding::Yielding,
};
use crate::{
    error::{Error, Result},
    stream::{Access, StreamCore},
    ticket::InUse,
};

/// An upload in progress. After it is dropped, even before its end, no thread uses the source.
pub(super) struct Upload<'a> {
    running: RunningJob<'a>, // closed first: then no thread uses the source or a slot
    stream: &'a Arc<StreamCore>,
    targets: &'a [Access<'a>],
    filling: VecDeque<Slot>, // of the pieces from `sent` to `published`, except the slot in `sending`
    published: usize,        // pieces that have a slot
    sent: usize,             // pieces that are sent completely
    sending: Option<(InUse<Slot>, usize)>, // the slot of piece `sent`, and how many of its bytes are sent, if only some
    device_state: DeviceState,
    yielding: Yielding<'a>,
    lease: Lease<'a>, // dropped last
}

/// Whether the device has earlier uploads in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceState {
    /// The device waits for this upload.
    Idle,
    /// The device still executes earlier uploads.
    Busy,
}

/// In bytes. With a larger lead, a concurrent download would leave the upload too few slots to reach it.
const LEAD: usize = 6 << 20;
/// The length of the first copy. Each later copy is twice as long as all before it, so that copies are few and the
/// device does not wait for them.
const FIRST: usize = 256 << 10;
/// The first small copy of another stream waits at most this long for a long upload, later ones for 1 MiB of it.
const YIELD_AFTER: Duration = Duration::from_millis(4);

impl<'a> Upload<'a> {
    pub(super) fn new(
        running: RunningJob<'a>,
        lease: Lease<'a>,
        stream: &'a Arc<StreamCore>,
        targets: &'a [Access<'a>],
        device_state: DeviceState,
    ) -> Self {
        let is_one_piece = running.job().pieces().len() == 1;
        let yielding = Yielding::new(stream, &stream.shared().uploads, is_one_piece, YIELD_AFTER);
        let (filling, sending) = (VecDeque::new(), None);
        Self { running, stream, targets, filling, published: 0, sent: 0, sending, device_state, yielding, lease }
    }

    fn job(&self) -> &Job {
        self.running.job()
    }

    /// Runs the upload. Returns when the source was read and all copies are queued.
    pub(super) fn run(mut self) -> Result<()> {
        let mut idle = 0;
        while self.sent < self.job().pieces().len() {
            if let Some(source) = self.job().failure() {
                return Err(Error::File { source });
            }
            let published = self.publish_what_has_slots()?;
            if published | self.send()? || (!self.first_is_being_filled() && self.job().work()) {
                idle = 0;
            } else if self.sent == self.published {
                let slot = self.lease.take()?;
                self.publish(slot);
            } else {
                pause(&mut idle); // other threads are filling the bytes that are sent next
            }
        }
        Ok(())
    }

    fn publish_what_has_slots(&mut self) -> Result<bool> {
        let before = self.published;
        while self.published < self.job().pieces().len() {
            let Some(slot) = self.lease.try_take()? else { break };
            self.publish(slot);
        }
        Ok(self.published > before)
    }

    fn publish(&mut self, mut slot: Slot) {
        let start = slot.start_mut();
        self.filling.push_back(slot); // owned by this call before any thread uses it
        self.running.publish(self.published, start);
        self.published += 1;
    }

    /// Whether other threads are filling the bytes that are sent first. The device waits for them, so the call must
    /// be ready to send them and does not begin to copy another granule.
    fn first_is_being_filled(&self) -> bool {
        let first = FIRST.min(self.job().pieces()[0].len_bytes);
        self.sent == 0
            && self.sending.is_none()
            && self.job().taken_bytes() >= first
            && self.job().copied_bytes(0) < first
    }

    /// Sends the filled bytes of the next piece, if they are enough.
    fn send(&mut self) -> Result<bool> {
        if self.sent == self.published {
            return Ok(false);
        }
        let sent_bytes = self.sending.as_ref().map_or(0, |(_, sent_bytes)| *sent_bytes);
        let ready = self.job().copied_bytes(self.sent) - sent_bytes;
        if ready < self.least_to_send(sent_bytes) || !self.is_ahead() || self.yielding.has_to_wait(&self.lease) {
            return Ok(false);
        }
        self.send_bytes(sent_bytes, self.yielding.max_at_once(ready))?;
        self.yielding.note_queued()?;
        Ok(true)
    }

    fn least_to_send(&self, sent_bytes: usize) -> usize {
        let pieces = self.job().pieces();
        let rest = pieces[self.sent].len_bytes - sent_bytes;
        let is_at_an_end = self.sent == 0 || self.sent + 1 == pieces.len();
        if is_at_an_end && self.device_state == DeviceState::Idle { FIRST.max(2 * sent_bytes).min(rest) } else { rest }
    }

    /// Whether the threads are far enough ahead of the device, or have filled all published pieces. The lead grows by
    /// one byte for every eight that are sent, so that the device does not wait at first.
    fn is_ahead(&self) -> bool {
        let pieces = self.job().pieces();
        let lead = LEAD.min(self.sent * pieces[self.sent].len_bytes / 8);
        let mut filled_bytes = 0;
        (self.sent + 1..self.published).all(|piece| {
            let is_enough = filled_bytes >= lead;
            filled_bytes += pieces[piece].len_bytes;
            is_enough || self.job().is_copied(piece)
        })
    }

    fn send_bytes(&mut self, start: usize, len_bytes: usize) -> Result<()> {
        let piece = &self.running.job().pieces()[self.sent];
        let slot = self.sending.take().map(|(slot, _)| slot);
        let slot = slot.or_else(|| self.filling.pop_front().map(|slot| InUse::new(slot, piece.len_bytes)));
        let Some(mut slot) = slot else { unreachable!("a published piece has a slot") };
        let from = slot.memory_mut().start_mut();
        let end = start + len_bytes;
        let queued = self.stream.enqueue(&self.targets[piece.buffers.clone()], |driver, stream| {
            self.running.job().plan().on_device(piece, start..end).try_for_each(|(address, part)| {
                let from = from.wrapping_add(part.start).cast_const();
                // SAFETY: the part is inside the target, which `enqueue` orders; the slot is as long as the piece,
                // its bytes are filled up to `end`, and it is in `InUse`.
                unsafe { driver.copy_to_device(stream, address, from, part.len()) }
            })
        });
        if queued.is_ok() && end < piece.len_bytes {
            self.sending = Some((slot, end));
            return Ok(());
        }
        self.sent += 1;
        if queued.is_err() {
            self.job().close(); // threads may still be filling the rest of this slot
        }
        self.lease.put_in_flight(slot, queued, start..end)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        self.job().close(); // no thread uses a slot any more
        if let Some((slot, sent_bytes)) = self.sending.take() {
            // A failure stopped the call in the middle of a piece: the queued copies still read the slot.
            let _ = self.lease.put_in_flight(slot, Ok(()), sent_bytes..sent_bytes);
        }
        for slot in self.filling.drain(..) {
            self.lease.return_slot(slot);
        }
    }
}
