//! [`KernelModule`]: compiled code on a device.
//!
//! A device keeps its modules loaded until it is dropped. So the same code is loaded once, and code is never unloaded
//! while a launch of it is queued.

use std::{ffi::CString, fmt, sync::Arc};

use super::{compiler::compile, launch::Kernel, signature::Signature, source::KernelSource};
use crate::{
    device::Device,
    device_shared::DeviceShared,
    driver::{Call, Failure, FunctionHandle, ModuleHandle, Status},
    error::{Error, Result},
    host_function,
    sync::{Mutex, lock},
};

/// Compiled code on a device. Cheap to clone.
///
/// # Examples
/// A kernel from its source to its result, if there is a GPU:
/// ```
/// use pagelock_cuda::{Device, KernelSource, Launch, Read, Write};
///
/// // y[i] = a * x[i] for i < n.   x, y: [n] f32.   One thread per element, grid-stride loop.
/// const SCALE: &str = r#"
///     extern "C" __global__ void scale(const float* x, float* y, float a, unsigned n) {
///         for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i];
///     }
/// "#;
/// let Ok(device) = Device::cuda(0) else { return Ok(()) };
/// let module = device.compile(&KernelSource::new("scale.cu", SCALE))?;
/// // SAFETY: the kernel takes these, and uses `n` elements of both buffers.
/// let scale = unsafe { module.kernel::<(Read<f32>, Write<f32>, f32, u32)>("scale") }?
///     .requires("x and y have n elements", |(x, y, _, n)| x.len() == *n as usize && y.len() == *n as usize);
///
/// let stream = device.stream()?;
/// let x = stream.allocate_from(&[1.0, 2.0, 3.0])?;
/// let mut y = stream.allocate(3)?;
/// scale.launch(&stream, Launch::covering(3, 256), (x.view(), y.view_mut(), 10.0, 3))?;
/// assert_eq!(stream.read(&y)?, [10.0, 20.0, 30.0]);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone)]
pub struct KernelModule {
    device: Device,
    handle: ModuleHandle,
    name: Arc<str>,
}

/// The modules of a device.
#[derive(Default)]
pub(crate) struct Modules(Mutex<Vec<Loaded>>); // guards the list of loaded modules, and attributes of their functions

impl Modules {
    /// Keeps other threads from loading modules, and from raising attributes of their functions.
    pub(super) fn lock(&self) -> impl Sized + '_ {
        lock(&self.0)
    }
}

struct Loaded {
    image: Box<[u8]>,
    handle: ModuleHandle,
}

impl Device {
    /// Compiles source for this device, or finds its code in an archive or the cache, and loads the code.
    ///
    /// # Errors
    /// As [`compile`](crate::compile), and [`Error::Driver`].
    pub fn compile(&self, source: &KernelSource) -> Result<KernelModule> {
        let image = compile(source, self.properties().compute_capability)?;
        // SAFETY: the image is NVRTC's output, either new or from the cache, which checks a hash, or from an archive,
        // for which the caller of `load_kernel_archive` vouched.
        unsafe { self.load(source.name(), image) }
    }

    /// Loads compiled code, for example from [`compile`](crate::compile). `name` is the module's name in error
    /// messages.
    ///
    /// # Errors
    /// [`Error::Driver`].
    ///
    /// # Safety
    /// The image is a complete cubin, fat binary or PTX text, unchanged since its compiler made it.
    pub unsafe fn load(&self, name: &str, mut image: Vec<u8>) -> Result<KernelModule> {
        host_function::refuse_inside()?;
        image.push(0); // PTX ends with a zero byte; the other formats contain their length
        let shared = self.core().shared();
        let mut loaded = lock(&self.core().modules().0);
        let known = loaded.iter().find(|known| *known.image == *image).map(|known| known.handle);
        let handle = match known {
            Some(handle) => handle,
            None => {
                // SAFETY: the caller's promise.
                let handle = unsafe { shared.driver.load_module(&image) }?;
                loaded.push(Loaded { image: image.into_boxed_slice(), handle });
                handle
            }
        };
        Ok(KernelModule { device: self.clone(), handle, name: name.into() })
    }
}

impl KernelModule {
    /// The device on which the module is loaded.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A kernel of the module.
    ///
    /// # Errors
    /// [`Error::Argument`] if the module has no kernel of that name, or if the parameters of the kernel differ in number
    /// or size from those of the signature (checked only with drivers of CUDA 12.4 or newer); [`Error::Driver`].
    ///
    /// # Safety
    /// The kernel's parameters are those of the signature, in this order: a pointer for [`Read`](super::Read) and
    /// [`Write`](super::Write), a value for all others. Launched with arguments that meet the
    /// [requirements](Kernel::requires), in any number of threads, with any number of bytes of dynamic shared memory, it
    /// reads only elements of its buffers, writes only elements of its [`Write`](super::Write) buffers, and ends. A kernel
    /// that needs dynamic shared memory compares its size (`%dynamic_smem_size` in PTX) with what it needs first, or is
    /// launched with [`KernelFunction::launch`](super::KernelFunction::launch).
    pub unsafe fn kernel<S: Signature>(&self, name: &str) -> Result<Kernel<S>> {
        Kernel::new(self.function(name)?)
    }

    pub(super) fn find(&self, name: &str) -> Result<FunctionHandle> {
        host_function::refuse_inside()?;
        let missing = || {
            let module = &self.name;
            Error::Argument(format!(
                "`{module}` has no kernel `{name}`; check the name, and that it is `extern \"C\" __global__`"
            ))
        };
        let c_name = CString::new(name).map_err(|_| missing())?;
        // SAFETY: the module stays loaded as long as its device exists.
        let function = unsafe { self.device.core().shared().driver.function(self.handle, &c_name) };
        match function {
            Err(Failure { status: Status::NOT_FOUND, .. }) => Err(missing()),
            other => Ok(other?),
        }
    }

    /// The size of each parameter in bytes, if the driver knows them.
    pub(super) fn parameter_sizes(&self, function: FunctionHandle) -> Result<Option<Vec<usize>>> {
        let driver = &self.device.core().shared().driver;
        let mut sizes = Vec::new();
        loop {
            // SAFETY: the function's module is loaded.
            match unsafe { driver.parameter_size(function, sizes.len()) } {
                Ok(Some(size)) => sizes.push(size),
                Ok(None) => return Ok(Some(sizes)),
                Err(Failure { call: Call::ParameterSize, status: Status::NOT_SUPPORTED }) => return Ok(None),
                Err(failure) => return Err(failure.into()),
            }
        }
    }
}

impl fmt::Debug for KernelModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelModule({} on {:?})", self.name, self.device)
    }
}

impl Modules {
    /// Unloads all modules when the device is dropped, if the device is done with all work.
    pub(crate) fn clear(&self, shared: &DeviceShared, done: bool) {
        for Loaded { handle, .. } in std::mem::take(&mut *lock(&self.0)) {
            if done {
                // SAFETY: every user of a module owns its device, which is being dropped, and all queued work is
                // done.
                let _ = unsafe { shared.driver.unload_module(handle) };
            }
        }
    }
}
