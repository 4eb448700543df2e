//! Code for all libraries: handles, refusals, cached plans, and how their work is queued.

use std::{
    collections::HashMap,
    ffi::{c_int, c_void},
    hash::Hash,
    ptr,
    sync::Arc,
};

use crate::{
    buffer::DeviceBuffer,
    device::Device,
    driver::{Call, Failure, Status},
    error::{Error, LibraryAbsence, OnDevice, Result},
    host_function,
    stream::{Access, Stream},
    sync::{Mutex, lock},
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

pub(super) fn check_status(call: &'static str, status: c_int) -> Result<(), Refusal> {
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

/// An error unless the stream belongs to the device for which the library was started. Called before the lock of a plan
/// is taken, which may be held over calls of the driver.
pub(super) fn check_device(device: &Device, stream: &Stream) -> Result<()> {
    host_function::refuse_inside()?;
    stream.core().check_device(device.core().shared(), OnDevice::Library)
}

/// Queues a library's work. `call` gets CUDA's stream and returns the library's status, which is the inner error
/// unless it is 0.
pub(super) fn enqueue(
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

/// The plans of a library, by key. A plan is used by one thread at a time.
pub(super) struct PlanCache<K, P> {
    plans: Mutex<HashMap<K, Result<Arc<Mutex<P>>, Refusal>>>, // guards the cached plans
}

impl<K: Eq + Hash, P> PlanCache<K, P> {
    pub(super) fn new() -> Self {
        Self { plans: Mutex::new(HashMap::new()) }
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        lock(&self.plans).contains_key(key)
    }

    /// The plan of this key, or the library's refusal. `make` makes the plan at its first use. It is never removed,
    /// since graphs use the kernels that it has loaded.
    pub(super) fn get(
        &self,
        key: K,
        make: impl FnOnce() -> Result<Result<P, Refusal>>,
    ) -> Result<Result<Arc<Mutex<P>>, Refusal>> {
        if let Some(known) = lock(&self.plans).get(&key) {
            return Ok(known.clone());
        }
        let plan = make()?.map(|plan| Arc::new(Mutex::new(plan)));
        Ok(lock(&self.plans).entry(key).or_insert(plan).clone())
    }
}

/// Scratch memory for a plan, if it needs some.
pub(super) fn scratch(stream: &Stream, bytes: usize) -> Result<Option<DeviceBuffer<u8>>> {
    if bytes == 0 { Ok(None) } else { stream.allocate(bytes).map(Some) }
}
