//! Where tensors live: [`Device`], and how a program chooses one.

use std::fmt;
use std::str::FromStr;

use pagelock_cuda as cuda;

use crate::cuda::CudaDevice;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::Raw;

/// Where tensors live and operations run. Cheap to clone.
///
/// An operation runs on the device of its inputs, which must be the same for all of them;
/// [`Tensor::to`](crate::Tensor::to) copies.
///
/// # Examples
/// ```
/// use pagelock_tensor::{Device, Tensor};
///
/// let device = Device::best(); // a GPU where there is one
/// let x = Tensor::ones([2, 3])?.to(&device)?;
/// assert_eq!(x.device(), device);
/// assert_eq!(x.to(&Device::Cpu)?.device().to_string(), "cpu");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Device {
    /// Host memory and the processor's cores.
    #[default]
    Cpu,
    /// A device that CUDA drives, and its memory.
    Cuda(CudaDevice),
}

impl Device {
    /// The GPU with this ordinal, opened at the first call and kept for the life of the process.
    ///
    /// # Errors
    /// [`Error::NoDevice`], which says what is missing.
    pub fn cuda(ordinal: u32) -> Result<Device> {
        CudaDevice::open(ordinal).map(Device::Cuda)
    }

    /// The first GPU, or the CPU where there is none.
    pub fn best() -> Device {
        Device::cuda(0).unwrap_or(Device::Cpu)
    }

    /// Whether this is the CPU.
    pub fn is_cpu(&self) -> bool {
        matches!(self, Device::Cpu)
    }

    /// Waits until all work queued on this device is done; returns at once on the CPU. Only measurements need it,
    /// since reading a result waits for it.
    ///
    /// # Errors
    /// [`Error::Cuda`], also for earlier work that failed; [`Error::IndexOutOfRange`] if an operation on the device
    /// had an index out of range, which it could not report at once.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Cuda(device) => {
                device.stream().synchronize().map_err(|source| Error::cuda("synchronize", source))?;
                device.check_faults()
            }
        }
    }
}

/// Converts a device of `pagelock-cuda`, which may be a software device. Converting the same one again gives the same
/// device.
impl TryFrom<&cuda::Device> for Device {
    type Error = Error;

    fn try_from(device: &cuda::Device) -> Result<Device> {
        CudaDevice::of(device).map(Device::Cuda)
    }
}

/// `cpu`, `cuda:0`
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(device) => write!(f, "cuda:{}", device.ordinal()),
        }
    }
}

/// Parses the name of a device as it prints: `cpu`, `cuda` for the first GPU, `cuda:1`. Parsing the name of a GPU
/// opens it.
///
/// # Examples
/// ```
/// use pagelock_tensor::Device;
///
/// assert_eq!("cpu".parse::<Device>()?, Device::Cpu);
/// assert_eq!(
///     "gpu".parse::<Device>().unwrap_err().to_string(),
///     "device: name is gpu, but a device is called `cpu`, `cuda`, or `cuda:` and its number",
/// );
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
impl FromStr for Device {
    type Err = Error;

    fn from_str(name: &str) -> Result<Device> {
        let unknown = || {
            Error::bad_argument("device", "name", name, "a device is called `cpu`, `cuda`, or `cuda:` and its number")
        };
        match name.split_once(':') {
            None if name == "cpu" => Ok(Device::Cpu),
            None if name == "cuda" => Device::cuda(0),
            Some(("cuda", ordinal)) => Device::cuda(ordinal.parse().map_err(|_| unknown())?),
            _ => Err(unknown()),
        }
    }
}

/// A tensor as errors name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand {
    /// Its position among the operation's tensors, from 0.
    pub position: usize,
    /// Its shape.
    pub shape: Shape,
    /// Its precision.
    pub dtype: DType,
    /// Where it is.
    pub device: Device,
}

impl Operand {
    fn new(position: usize, tensor: &Raw) -> Operand {
        let device = tensor.storage.device().clone();
        Operand { position, shape: *tensor.shape(), dtype: tensor.dtype(), device }
    }
}

/// `tensor 0, float32 [2, 3], is on cpu`
impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor {}, {} {}, is on {}", self.position, self.dtype, self.shape, self.device)
    }
}

/// The device that all of an operation's tensors are on: the only place that decides where an operation runs.
pub(crate) fn common_device<'a>(op: &'static str, tensors: &[&'a Raw]) -> Result<&'a Device> {
    let Some((first, rest)) = tensors.split_first() else { return Ok(&Device::Cpu) };
    match rest.iter().position(|tensor| tensor.storage.device() != first.storage.device()) {
        None => Ok(first.storage.device()),
        Some(other) => {
            let [first, other] = [Operand::new(0, first), Operand::new(other + 1, rest[other])];
            Err(Error::DeviceMismatch { op, operands: Box::new([first, other]) })
        }
    }
}
