//! Devices to test on.

#![allow(dead_code, reason = "every test program uses some of it")]

use std::ops::Deref;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pagelock_cuda::software::Config;
use pagelock_tensor::Device;

/// The CPU, and the GPU where there is one.
pub(crate) fn devices() -> Vec<Device> {
    [Device::Cpu].into_iter().chain(gpu().map(|gpu| gpu.clone())).collect()
}

/// A GPU that tests use together, or that one has alone.
pub(crate) struct Gpu<Use> {
    device: Device,
    _use: Use,
}

impl<Use> Deref for Gpu<Use> {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

/// What an operation notes on a GPU for the host to find is found by whoever looks first.
static USE: RwLock<()> = RwLock::new(());

/// The GPU, together with other tests; none after saying so, an error if there has to be one.
pub(crate) fn gpu() -> Option<Gpu<RwLockReadGuard<'static, ()>>> {
    found().map(|device| Gpu { device, _use: USE.read().unwrap_or_else(PoisonError::into_inner) })
}

/// The GPU while no other test of this program uses it.
pub(crate) fn gpu_alone() -> Option<Gpu<RwLockWriteGuard<'static, ()>>> {
    found().map(|device| Gpu { device, _use: USE.write().unwrap_or_else(PoisonError::into_inner) })
}

fn found() -> Option<Device> {
    static GPU: OnceLock<Result<Device, String>> = OnceLock::new();
    match GPU.get_or_init(|| Device::cuda(0).map_err(|missing| missing.to_string())) {
        Ok(device) => Some(device.clone()),
        Err(missing) => {
            let required = std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1");
            assert!(!required, "REQUIRE_GPU=1, but {missing}");
            eprintln!("SKIPPED: {missing}");
            None
        }
    }
}

/// A device made of software, which copies and fills but runs no kernels.
pub(crate) fn software() -> Device {
    let device = pagelock_cuda::Device::software(Config::default()).unwrap();
    Device::try_from(&device).unwrap()
}

/// A device that compiles kernels for a Hopper GPU, and then does nothing; none where there is no compiler.
pub(crate) fn compiler() -> Option<Device> {
    if let Err(missing) = pagelock_cuda::compiler_version() {
        eprintln!("SKIPPED: {missing}");
        return None;
    }
    let config = Config { kernels_for: Some((9, 0)), ..Config::default() };
    let device = pagelock_cuda::Device::software(config).unwrap();
    Some(Device::try_from(&device).unwrap())
}
