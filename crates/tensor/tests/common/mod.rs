//! Devices to test on, and tensors of any kind.

#![allow(dead_code, reason = "every test program uses some of it")]

use std::ops::Deref;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::{slice, vec};

use pagelock_cuda::software::Config;
pub(crate) use pagelock_operations::{FLOATS, INTS};
use pagelock_tensor::{AnyTensor, Bool, DType, Device, Float, Int, Kind, Result, Tensor};

/// The CPU, and the GPU where there is one, which other tests may use too.
pub(crate) fn devices() -> Devices {
    let gpu = gpu();
    let list: Vec<Device> = [Device::Cpu].into_iter().chain(gpu.as_ref().map(|gpu| gpu.device.clone())).collect();
    Devices { list: list.into_iter(), _use: gpu }
}

/// [`devices`], and a software device, which can copy too.
pub(crate) fn all_devices() -> impl Iterator<Item = Device> {
    devices().chain([software()])
}

/// Devices to loop over. No test has the GPU alone before this is dropped.
pub(crate) struct Devices {
    list: vec::IntoIter<Device>,
    _use: Option<Gpu<RwLockReadGuard<'static, ()>>>,
}

impl Iterator for Devices {
    type Item = Device;

    fn next(&mut self) -> Option<Device> {
        self.list.next()
    }
}

impl<'a> IntoIterator for &'a Devices {
    type Item = &'a Device;
    type IntoIter = slice::Iter<'a, Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.as_slice().iter()
    }
}

/// The GPU, which tests share or one test has alone.
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

/// An error that a kernel leaves on the GPU is reported to whichever host thread reads first, so a test that causes
/// one must be alone.
static USE: RwLock<()> = RwLock::new(());

/// The GPU, shared with other tests. Without one, prints why and returns `None`; panics if `REQUIRE_GPU` is 1.
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

/// A software device, which copies and fills but runs no kernels.
pub(crate) fn software() -> Device {
    let device = pagelock_cuda::Device::software(Config::default()).unwrap();
    Device::try_from(&device).unwrap()
}

/// A device that compiles kernels for a Hopper GPU but does not run them. `None` if there is no compiler.
pub(crate) fn compiler() -> Option<Device> {
    if let Err(missing) = pagelock_cuda::compiler_version() {
        eprintln!("SKIPPED: {missing}");
        return None;
    }
    let config = Config { kernels_for: Some((9, 0)), ..Config::default() };
    let device = pagelock_cuda::Device::software(config).unwrap();
    Some(Device::try_from(&device).unwrap())
}

/// Kinds whose elements can be read as `f64`, which is exact for all but large integers.
pub(crate) trait Values: Kind + Sized {
    fn values(tensor: &Tensor<Self>) -> Result<Vec<f64>>;
}

impl Values for Float {
    fn values(tensor: &Tensor) -> Result<Vec<f64>> {
        tensor.to_vec()
    }
}

impl Values for Int {
    fn values(tensor: &Tensor<Int>) -> Result<Vec<f64>> {
        Ok(tensor.to_vec::<i64>()?.into_iter().map(|number| number as f64).collect())
    }
}

impl Values for Bool {
    fn values(tensor: &Tensor<Bool>) -> Result<Vec<f64>> {
        Ok(tensor.to_vec::<bool>()?.into_iter().map(|truth| f64::from(u8::from(truth))).collect())
    }
}

/// The elements of a tensor of any kind.
pub(crate) fn numbers_of(x: &AnyTensor) -> Result<Vec<f64>> {
    match x.dtype() {
        DType::Bool => Bool::values(&x.bool()?),
        dtype if dtype.is_float() => Float::values(&x.float()?),
        _ => Int::values(&x.int()?),
    }
}

/// All precisions of `dtype`'s kind.
pub(crate) fn same_kind(dtype: DType) -> &'static [DType] {
    match dtype {
        DType::Bool => &[DType::Bool],
        _ if dtype.is_float() => FLOATS,
        _ => INTS,
    }
}

/// A view with the dimensions in reverse order.
pub(crate) fn reversed<K: Kind>(x: &Tensor<K>) -> Result<Tensor<K>> {
    let last = x.rank() as isize - 1;
    (0..x.rank() as isize / 2).try_fold(x.clone(), |x, dim| x.transpose(dim, last - dim))
}

/// Converts floats to a precision of any kind.
pub(crate) fn converted<K: Kind>(x: &Tensor, dtype: DType) -> Tensor<K> {
    let convert = || -> Result<AnyTensor> {
        Ok(match dtype {
            DType::Bool => x.to_bool()?.into(),
            _ if dtype.is_float() => x.to_dtype(dtype)?.into(),
            _ => x.to_int()?.to_dtype(dtype)?.into(),
        })
    };
    convert().and_then(|x| x.kind()).unwrap()
}

/// Ones (`true`) of any precision on a device.
pub(crate) fn ones<K: Kind>(device: &Device, dtype: DType, shape: &[usize]) -> Result<Tensor<K>> {
    let ones: AnyTensor = match dtype {
        DType::Bool => Tensor::on(device).full(shape, true)?.into(),
        _ if dtype.is_float() => Tensor::on(device).of(dtype).ones(shape)?.into(),
        _ => Tensor::on(device).of(dtype).full(shape, 1)?.into(),
    };
    ones.kind()
}
