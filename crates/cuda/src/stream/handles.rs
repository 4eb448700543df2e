//! All streams of a device, and which of them are capturing a graph.
//!
//! While one stream captures, CUDA refuses to wait for the whole device, and the attempt invalidates the capture. So
//! waiting for a device means waiting for each of its streams that does not capture.

use crate::{
    device_shared::DeviceShared,
    driver::{self, Driver, EventHandle, EventTiming, GraphHandle, Status, StreamHandle},
    error::{Error, Result},
    sync::{Mutex, lock},
};

/// See the head of the file. The device destroys its streams only when it is dropped. An outer lock (ARCHITECTURE.md).
#[derive(Default)]
pub(crate) struct Handles(Mutex<Vec<StreamEntry>>); // no event is recorded on a stream that captures

struct StreamEntry {
    handle: StreamHandle,
    is_capturing: bool,
}

impl Handles {
    pub(crate) fn add(&self, handle: StreamHandle) {
        lock(&self.0).push(StreamEntry { handle, is_capturing: false });
    }

    pub(super) fn begin_capture(&self, driver: &dyn Driver, stream: StreamHandle) -> driver::Result<()> {
        let mut all = lock(&self.0);
        mark(&mut all, stream, true);
        // SAFETY: the stream exists as long as its device.
        unsafe { driver.begin_capture(stream) }
    }

    /// After most failures it is unknown whether the stream still captures, so it counts as capturing.
    pub(super) fn end_capture(&self, driver: &dyn Driver, stream: StreamHandle) -> driver::Result<GraphHandle> {
        let mut all = lock(&self.0);
        // SAFETY: as above.
        let graph = unsafe { driver.end_capture(stream) };
        // An invalid capture has no graph, but it ends. An illegal state means that there was no capture.
        const ENDED: [Status; 2] = [Status::STREAM_CAPTURE_INVALIDATED, Status::ILLEGAL_STATE];
        let has_ended = graph.as_ref().map_or_else(|failure| ENDED.contains(&failure.status), |_| true);
        mark(&mut all, stream, !has_ended);
        graph
    }

    pub(crate) fn is_capturing(&self, stream: StreamHandle) -> bool {
        captures(&lock(&self.0), stream)
    }

    /// Whether the stream neither captures nor has unfinished work.
    pub(crate) fn is_idle(&self, driver: &dyn Driver, stream: StreamHandle) -> bool {
        let all = lock(&self.0); // no capture can begin while this is locked; the query would invalidate it
        // SAFETY: as above.
        !captures(&all, stream) && unsafe { driver.query_stream(stream) } == Ok(true)
    }

    /// Waits for all work in the context, or refuses it while a stream captures.
    pub(crate) fn synchronize_context(&self, driver: &dyn Driver) -> Result<()> {
        let all = lock(&self.0); // no capture can begin while this is locked
        if all.iter().any(|known| known.is_capturing) {
            return Err(Error::Capturing);
        }
        Ok(driver.synchronize()?)
    }

    /// Waits until all work that was queued on any stream is done.
    pub(crate) fn synchronize(&self, shared: &DeviceShared) -> driver::Result<()> {
        let mut recorded = Vec::new();
        let result = self.record_all(shared, &mut recorded);
        let waited = recorded.iter().map(|&event| {
            // SAFETY: recorded in `record_all`, and owned by this function until it is kept below.
            unsafe { shared.driver.synchronize_event(event) }
        });
        let result = waited.fold(result, driver::Result::and);
        recorded.into_iter().for_each(|event| shared.recycle_event(event, EventTiming::Untimed));
        result
    }

    /// Records an event on every stream that does not capture.
    fn record_all(&self, shared: &DeviceShared, recorded: &mut Vec<EventHandle>) -> driver::Result<()> {
        for StreamEntry { handle, .. } in lock(&self.0).iter().filter(|known| !known.is_capturing) {
            let event = shared.take_event(EventTiming::Untimed)?;
            // SAFETY: both belong to this device and exist.
            if let Err(failure) = unsafe { shared.driver.record_event(event, *handle) } {
                shared.recycle_event(event, EventTiming::Untimed);
                return Err(failure);
            }
            recorded.push(event);
        }
        Ok(())
    }
}

fn captures(all: &[StreamEntry], stream: StreamHandle) -> bool {
    all.iter().any(|known| known.handle == stream && known.is_capturing)
}

fn mark(all: &mut [StreamEntry], stream: StreamHandle, is_capturing: bool) {
    if let Some(known) = all.iter_mut().find(|known| known.handle == stream) {
        known.is_capturing = is_capturing;
    }
}
