//! Devices to test on.

#![allow(dead_code, reason = "every test program uses some of it")]

use std::sync::OnceLock;

use pagelock_cuda::software::Config;
use pagelock_tensor::Device;

/// The CPU, and the GPU where there is one.
pub(crate) fn devices() -> Vec<Device> {
    [Device::Cpu].into_iter().chain(gpu()).collect()
}

/// The GPU, or none after saying so; an error if there has to be one.
pub(crate) fn gpu() -> Option<Device> {
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
