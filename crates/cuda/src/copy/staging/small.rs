//! Copies of up to 64 KiB of ordinary memory: the caller copies alone, through a part of a small slot.

use std::{ptr, sync::Arc};

use super::Staging;
use crate::{
    buffer::{DeviceView, DeviceViewMut},
    error::Result,
    host_function,
    stream::StreamCore,
    ticket::InUse,
};

impl Staging {
    /// Copies `source` to `target`. Both have the same length, at least one byte and at most
    /// [`small_bytes`](Self::small_bytes). Waits only for a slot.
    pub(in crate::copy) fn upload_small(
        &self,
        stream: &Arc<StreamCore>,
        source: &[u8],
        target: &DeviceViewMut<'_, u8>,
    ) -> Result<()> {
        // Checked first: a slot in flight cannot be waited for in a host function or a capture.
        host_function::refuse_inside()?;
        stream.refuse_capturing()?;
        let mut lease = self.small.lease(stream);
        let (mut slot, start) = lease.take_partly_used(source.len())?;
        let from = slot.memory_mut().start_mut().wrapping_add(start);
        // SAFETY: the source fits in the slot from `start` on, and no other thread and no device uses these bytes.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), from, source.len()) };
        stream.note_upload();
        let queued = stream.enqueue(&[target.access()], |driver, stream| {
            // SAFETY: the source is as long as the target (by contract), which `enqueue` orders; the slot has a copy
            // of the source and is in `InUse`.
            unsafe { driver.copy_to_device(stream, target.address(), from.cast_const(), source.len()) }
        });
        lease.put_in_flight(slot, queued, start..start + source.len())
    }

    /// Like [`upload_small`](Self::upload_small), in the other direction. Waits for the copy.
    pub(in crate::copy) fn download_small(
        &self,
        stream: &Arc<StreamCore>,
        source: DeviceView<'_, u8>,
        target: &mut [u8],
    ) -> Result<()> {
        let mut lease = self.small.lease(stream);
        let mut slot = lease.take()?;
        let to = slot.start_mut(); // before it is in use: the race watcher may panic
        let slot = InUse::new(slot, target.len());
        stream.note_download();
        let queued = stream.enqueue(&[source.access()], |driver, stream| {
            // SAFETY: the target is as long as the source (by contract), which `enqueue` orders; the slot is long
            // enough and is in `InUse`.
            unsafe { driver.copy_to_host(stream, to, source.address(), target.len()) }
        });
        // The whole slot: a short upload must not share it.
        lease.put_in_flight(slot, queued, 0..self.small.slot_bytes)?;
        if let Some(slot) = lease.wait_for_oldest()? {
            target.copy_from_slice(&slot[..target.len()]);
            lease.return_slot(slot);
        }
        Ok(())
    }
}
