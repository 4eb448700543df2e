//! [`CudaDevice`]: a device, the stream on which operations run, and its kernels.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pagelock_cuda as cuda;

use super::code::{LoadedKernels, load_kernel_archive};
use super::fault::Faults;
use super::libraries::Loaded;
use crate::capture;
use crate::error::{Error, Result};

/// A CUDA device with what tensors need on it. Cheap to clone; see [`Device`](crate::Device).
///
/// All operations run on one stream, in the order in which they are called. Other streams may use the same buffers;
/// `pagelock-cuda` orders their work with that of this stream.
#[derive(Clone)]
pub struct CudaDevice {
    core: Arc<Core>,
}

struct Core {
    device: cuda::Device,
    stream: cuda::Stream,
    kernels: LoadedKernels,
    faults: Faults,
    libraries: Loaded,
}

/// All devices in use: tensors of one device share a stream and kernels, no matter how the device was opened.
static KNOWN: Mutex<Vec<Weak<Core>>> = Mutex::new(Vec::new());
/// The GPUs that were opened. Each is opened once per process.
static OPENED: Mutex<Vec<CudaDevice>> = Mutex::new(Vec::new());

impl CudaDevice {
    pub(crate) fn open(ordinal: u32) -> Result<CudaDevice> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = opened.iter().find(|device| device.ordinal() == ordinal) {
            return Ok(device.clone());
        }
        let device = CudaDevice::of(&cuda::Device::cuda(ordinal).map_err(Error::NoDevice)?)?;
        opened.push(device.clone());
        Ok(device)
    }

    pub(crate) fn of(device: &cuda::Device) -> Result<CudaDevice> {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|core| core.strong_count() > 0);
        if let Some(core) = known.iter().filter_map(Weak::upgrade).find(|core| core.device == *device) {
            return Ok(CudaDevice { core });
        }
        load_kernel_archive();
        let stream = device.stream().map_err(Error::NoDevice)?;
        let core = Arc::new(Core {
            device: device.clone(),
            stream,
            kernels: LoadedKernels::default(),
            faults: Faults::default(),
            libraries: Loaded::default(),
        });
        known.push(Arc::downgrade(&core));
        Ok(CudaDevice { core })
    }

    /// All devices that are in use.
    pub(crate) fn known() -> Vec<CudaDevice> {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter_map(Weak::upgrade).map(|core| CudaDevice { core }).collect()
    }

    /// Its number among the devices of its driver.
    pub fn ordinal(&self) -> u32 {
        self.cuda().properties().ordinal
    }

    /// The device of `pagelock-cuda`, for a program's own copies, events and kernels.
    pub fn cuda(&self) -> &cuda::Device {
        &self.core.device
    }

    /// The stream on which operations run; while this thread captures a [`CapturedStep`](crate::CapturedStep), the one
    /// that captures.
    pub fn stream(&self) -> cuda::Stream {
        capture::stream_on(self).unwrap_or_else(|| self.core.stream.clone())
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.core.faults
    }

    pub(super) fn loaded(&self) -> &Loaded {
        &self.core.libraries
    }

    pub(super) fn kernels(&self) -> &LoadedKernels {
        &self.core.kernels
    }
}

impl PartialEq for CudaDevice {
    fn eq(&self, other: &CudaDevice) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl Eq for CudaDevice {}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.device.fmt(f)
    }
}
