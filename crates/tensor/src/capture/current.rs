//! The capture that a thread has going, if any: where operations find the stream to queue on.

use std::cell::{Cell, RefCell};

use pagelock_cuda::{Recording, Stream};

use super::NAME;
use crate::cuda::CudaDevice;
use crate::error::{Error, Result};
use crate::storage::StorageRef;

thread_local! {
    static IS_CAPTURING: Cell<bool> = const { Cell::new(false) };
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

struct Current {
    device: CudaDevice,
    stream: Stream,
    written: Vec<StorageRef>,
}

/// The stream in the place of the device's own, while this thread captures.
pub(crate) fn stream_on(device: &CudaDevice) -> Option<Stream> {
    if !IS_CAPTURING.get() {
        return None;
    }
    CURRENT.with_borrow(|current| {
        current.as_ref().filter(|current| current.device == *device).map(|current| current.stream.clone())
    })
}

/// Notes, while this thread captures, that work changes a storage in place.
pub(crate) fn note_write(storage: &StorageRef) {
    if IS_CAPTURING.get() {
        CURRENT.with_borrow_mut(|current| {
            if let Some(current) = current.as_mut().filter(|current| !current.written.iter().any(|w| w.is(storage))) {
                current.written.push(storage.clone());
            }
        });
    }
}

/// Takes down what `work` asks of the device: that, its result, and the storages that it changes in place.
pub(super) fn capture<R, E: From<Error>>(
    device: &CudaDevice,
    work: impl FnOnce() -> Result<R, E>,
) -> Result<(Recording, R, Vec<StorageRef>), E> {
    if IS_CAPTURING.get() {
        return Err(Error::Captured { what: "another captured step" }.into());
    }
    let mut done = None;
    let recording = device.cuda().capture(|stream| {
        let ended = Ends;
        CURRENT.set(Some(Current { device: device.clone(), stream: stream.clone(), written: Vec::new() }));
        IS_CAPTURING.set(true);
        let result = work();
        let written = CURRENT.take().map(|current| current.written);
        drop(ended);
        done = Some((result, written.unwrap_or_default()));
        Ok(())
    });
    let Some((result, written)) = done else { unreachable!("a capture calls its work, or is an error") };
    let result = result?;
    Ok((recording.map_err(|source| Error::cuda(NAME, source))?, result, written))
}

/// Ends the capture of this thread, also when work unwinds.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        IS_CAPTURING.set(false);
        drop(CURRENT.take());
    }
}

/// An error while this thread captures, for what a graph cannot do.
pub(crate) fn refuse(what: &'static str) -> Result<()> {
    if IS_CAPTURING.get() { Err(Error::Captured { what }) } else { Ok(()) }
}
