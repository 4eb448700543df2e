//! Finds CUDA's driver library, or the reason why it cannot be used.

use std::{ffi::c_int, sync::OnceLock};

use cudarc::driver::sys;

use super::api::Api;
use crate::{
    driver::{Call, Failure, Status},
    error::Absence,
};

/// The initialized driver, its version and its number of devices.
pub(super) struct Library {
    pub(super) api: Api,
    pub(super) version: (u32, u32),
    pub(super) device_count: u32,
}

/// The driver's library, found and started at the first call.
pub(super) fn library() -> Result<&'static Library, Absence> {
    static LIBRARY: OnceLock<Result<Library, Absence>> = OnceLock::new();
    LIBRARY.get_or_init(start).as_ref().map_err(Absence::clone)
}

/// The number of devices that the driver sees; at least one.
pub(crate) fn device_count() -> Result<u32, Absence> {
    Ok(library()?.device_count)
}

fn start() -> Result<Library, Absence> {
    // SAFETY: opens and closes the library, which has no initializer of its own.
    let present = unsafe { sys::is_culib_present() };
    if !present {
        return Err(Absence::NoLibrary { looked_for: "libcuda.so, libcuda.so.1 or nvcuda" });
    }
    // SAFETY: the library is present, so this does not panic; loading it again runs no initializer.
    let api = Api::load(unsafe { sys::culib() }).map_err(|name| Absence::NoSymbol { name })?;
    // SAFETY: no precondition.
    let started = unsafe { (api.init)(0) };
    check(started)?;
    let version = version(&api)?;
    match count(&api)? {
        0 => Err(Absence::NoDevice),
        device_count => Ok(Library { api, version, device_count }),
    }
}

fn check(status: u32) -> Result<(), Absence> {
    match Status(status) {
        Status(0) => Ok(()),
        Status::STUB_LIBRARY => Err(Absence::Stub),
        Status::NO_DEVICE => Err(Absence::NoDevice),
        Status(code) => Err(Absence::NotStarted(Failure::new(Call::Open, code))),
    }
}

fn version(api: &Api) -> Result<(u32, u32), Absence> {
    let mut version: c_int = 0;
    // SAFETY: writes one local number.
    check(unsafe { (api.driver_version)(&mut version) })?;
    let version = version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}

fn count(api: &Api) -> Result<u32, Absence> {
    let mut count: c_int = 0;
    // SAFETY: writes one local number.
    check(unsafe { (api.device_count)(&mut count) })?;
    Ok(count.unsigned_abs())
}
