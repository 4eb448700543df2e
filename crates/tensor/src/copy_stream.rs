//! [`CopyStream`]: a stream for copying tensors to a device, beside the stream on which operations run.
//!
//! Copies from page-locked memory overlap with the device's computation. An operation that uses a copied tensor
//! waits, on the device, for that copy alone: `pagelock-cuda` orders streams by the buffers that they use.

use std::fmt;

use pagelock_cuda::Stream;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::tensor::{Raw, Tensor};
use crate::transfer::upload_on;

/// Copies tensors to a device while it computes, to feed a loop from the host.
///
/// # Examples
/// ```
/// use pagelock_tensor::{CopyStream, Device, Tensor};
///
/// let copies = CopyStream::new(&Device::best())?;
/// let next = copies.upload(&Tensor::ones([64, 784])?.pin_memory()?)?; // while operations go on
/// assert_eq!(next.device(), *copies.device());
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct CopyStream {
    device: Device,
    stream: Option<Stream>, // none for the CPU, to which nothing is copied
}

impl CopyStream {
    /// A stream of `device` for copies alone. For the CPU, it does nothing.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn new(device: &Device) -> Result<CopyStream> {
        let stream = match device {
            Device::Cuda(cuda) => Some(cuda.cuda().stream().map_err(|source| Error::cuda("to", source))?),
            Device::Cpu => None,
        };
        Ok(CopyStream { device: device.clone(), stream })
    }

    /// `tensor` on the device, without its gradient. A tensor that is there already is returned as it is; others are
    /// copied as [`Tensor::to`](Tensor::to) copies, but on this stream. Returns while the copy may still be in
    /// flight. Dropping the last handle of a page-locked `tensor` waits for the copy, so keep a handle until the next
    /// upload, for example.
    ///
    /// # Errors
    /// As [`Tensor::to`].
    pub fn upload<K: Kind>(&self, tensor: &Tensor<K>) -> Result<Tensor<K>> {
        self.upload_raw(tensor.raw().without_node()).map(Raw::typed)
    }

    fn upload_raw(&self, tensor: Raw) -> Result<Raw> {
        let _running = crate::profiler::op("to");
        match &self.stream {
            Some(stream) if tensor.storage.device().is_cpu() => {
                let dense = if tensor.layout.is_dense() { tensor } else { tensor.contiguous()? };
                upload_on(stream, &dense, &self.device)
            }
            _ => tensor.to(&self.device),
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The stream, to record events on; none for the CPU.
    pub fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }
}

impl fmt::Debug for CopyStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopyStream({})", self.device)
    }
}
