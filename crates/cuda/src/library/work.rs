//! Code for all libraries: handles, refusals, and how their work is queued.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::{
    device::Device,
    driver::{Call, Failure, Status},
    error::{Error, LibraryAbsence, OnDevice, Result},
    host_function,
    stream::{Access, Stream},
};

/// A handle of a library. It may be used by several threads at once only if the library allows that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle(usize);

impl Handle {
    pub(super) fn new(pointer: *mut c_void) -> Handle {
        Handle(pointer.expose_provenance())
    }

    pub(super) fn get(self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

/// A call of a library that failed.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    pub(super) call: &'static str,
    pub(super) status: c_int,
}

pub(super) fn done(call: &'static str, status: c_int) -> Result<(), Refusal> {
    if status == 0 { Ok(()) } else { Err(Refusal { call, status }) }
}

/// Makes the device current on this thread, before calls of a library that create objects for the device.
pub(super) fn make_current(device: &Device, library: &'static str) -> Result<()> {
    host_function::refuse_inside()?;
    device.core().shared().driver.make_current().map_err(|failure| match failure.status {
        Status::NOT_SUPPORTED => Error::NoLibrary(LibraryAbsence::OtherDevice { library }),
        _ => failure.into(),
    })
}

/// An error unless the stream belongs to the device for which the library was started.
pub(super) fn check(device: &Device, stream: &Stream) -> Result<()> {
    stream.core().check_is_of(device.core().shared(), OnDevice::Library)
}

/// Queues a library's work. `call` gets CUDA's stream and returns the library's status, which is the inner error
/// unless it is 0.
pub(super) fn queue(
    stream: &Stream,
    accesses: &[Access<'_>],
    call: impl FnOnce(*mut c_void) -> c_int,
) -> Result<Result<(), c_int>> {
    let mut status = 0;
    let queued = stream.core().enqueue_on_device(accesses, |driver, handle| {
        driver.make_current()?;
        status = call(ptr::without_provenance_mut(handle.0 as usize));
        if status == 0 { Ok(()) } else { Err(Failure { call: Call::Launch, status: Status::UNKNOWN }) }
    });
    if status != 0 {
        return Ok(Err(status));
    }
    Ok(Ok(queued?))
}
