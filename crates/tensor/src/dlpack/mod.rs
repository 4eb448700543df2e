//! [`Dlpack`]: exchanges tensors with other libraries of the process, as DLPack structs.
//!
//! ```text
//! ours   tensor ── copied, or shared (unsafe) ──▶ Exported { shape, strides, struct } ──▶ pointer ── its deleter frees all
//! theirs pointer ──▶ Dlpack ── checked (given.rs), copied ──▶ tensor; then their deleter
//! ```
//! The structs and all `unsafe` are in `managed.rs`. Every field of another library's struct is checked before it is used
//! (`given.rs`); that its pointers are valid is what the caller of [`Dlpack::from_raw`] promises. `tests/dlpack` compares with
//! PyTorch and NumPy.

mod given;
mod managed;
#[cfg(test)]
mod tests;

use std::ffi::c_void;
use std::ptr::NonNull;

use self::given::{ForeignTensor, Location};
use self::managed::Managed;
use crate::capture;
use crate::cuda::CudaDevice;
use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::kind::Int;
use crate::map::AnyTensor;
use crate::storage::{Fresh, on_cuda};
use crate::tensor::Raw;

/// A tensor as DLPack passes it between libraries of one process (`DLManagedTensorVersioned`, version 1).
/// [`new`](Self::new) makes one of a tensor here, [`from_raw`](Self::from_raw) takes one from another library.
/// Dropping it calls its deleter in either case.
///
/// DLPack has all element types of this crate, on the CPU and on CUDA devices. Python passes the pointer in a capsule
/// named `dltensor_versioned` (`dltensor` for the struct before version 1).
///
/// | | copies | |
/// |---|---|---|
/// | [`Dlpack::new`] | once | the other library may use the elements freely |
/// | [`Dlpack::sharing`] | never | `unsafe`: nobody may write while somebody else reads or writes |
/// | [`to_tensor`](Self::to_tensor) | once | an ordinary tensor |
/// | [`into_shared_tensor`](Self::into_shared_tensor) | never | `unsafe`, on the host: a tensor that cannot be changed in place |
///
/// # Examples
/// ```
/// use pagelock_tensor::{Dlpack, Tensor};
///
/// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?;
/// let pointer = Dlpack::new(&x)?.into_raw(); // for another library, which calls the deleter when it is done
/// // SAFETY: it was just made, and nobody else has it.
/// let theirs = unsafe { Dlpack::from_raw(pointer) };
/// assert_eq!(theirs.to_tensor()?.float()?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Dlpack {
    managed: Managed,
}

impl Dlpack {
    /// A row-major copy of the tensor, which the other library owns alone. On a device, the call waits for the copy,
    /// so that any stream may use it.
    ///
    /// The deleter of device memory waits for everything that is queued on the device, since the other library may
    /// still have work there. While a step is captured, waiting would spoil the capture, so the memory is leaked
    /// instead.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::DeviceMemory`] if the copy does not fit; [`Error::Cuda`].
    pub fn new(tensor: impl Into<AnyTensor>) -> Result<Dlpack> {
        let copy = tensor.into().raw().detached_copy("dlpack")?;
        Ok(Dlpack { managed: Managed::of(copy, managed::IS_COPIED)? })
    }

    /// The tensor itself, without a copy: its elements stay alive until the other library calls the deleter. It is
    /// marked read-only if its memory cannot be written, or if its elements overlap. On a device, the call waits
    /// until the elements are computed.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Safety
    /// Until the deleter is called, nobody writes the elements while somebody else reads or writes them. The other
    /// library does not write them while operations here use the tensor or a view of it. No tensor of this storage is
    /// changed in place, not even by a captured step, while the other library uses it. The other library's writes
    /// make no new [version](crate::Tensor::version), so no gradient computed later may need the elements as they
    /// were. Bytes of `bool` elements stay 0 or 1.
    ///
    /// # Examples
    /// ```
    /// use pagelock_tensor::{Dlpack, Tensor};
    ///
    /// let x = Tensor::new([1.0, 2.0])?;
    /// // SAFETY: nobody writes them.
    /// let shared = unsafe { Dlpack::sharing(&x)?.into_shared_tensor()? };
    /// assert_eq!(shared.float()?.sum(..)?.item::<f32>()?, 3.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub unsafe fn sharing(tensor: impl Into<AnyTensor>) -> Result<Dlpack> {
        Ok(Dlpack { managed: Managed::of(tensor.into().raw().without_node(), 0)? })
    }

    /// The struct, a `DLManagedTensorVersioned`, for another library, which calls its deleter when it is done.
    pub fn into_raw(self) -> NonNull<c_void> {
        self.managed.into_raw()
    }

    /// Like [`into_raw`](Self::into_raw), but makes the struct from before version 1, a `DLManagedTensor`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the elements are read-only, which this struct cannot say.
    pub fn into_raw_unversioned(self) -> Result<NonNull<c_void>> {
        if self.is_read_only() {
            let fix = "use the versioned one, or a copy";
            return Err(refused(&format!(
                "the elements are read-only, which a struct without a version cannot state; {fix}"
            )));
        }
        Ok(self.managed.into_unversioned())
    }

    /// Takes ownership of a struct that another library made.
    ///
    /// # Safety
    /// The pointer is to a `DLManagedTensorVersioned` as DLPack describes it, which the caller alone owns. Dropping
    /// this calls its deleter. Until then, the elements that shape and strides name are initialized, the bytes
    /// between the first and the last of them are readable, and nobody writes them. The work that computes elements
    /// on a device is done.
    ///
    /// # Examples
    /// See [`Dlpack`].
    pub unsafe fn from_raw(pointer: NonNull<c_void>) -> Dlpack {
        // SAFETY: the caller's promise.
        Dlpack { managed: unsafe { Managed::from_raw(pointer) } }
    }

    /// Like [`from_raw`](Self::from_raw), for the struct from before version 1, a `DLManagedTensor`.
    ///
    /// # Safety
    /// The conditions of [`from_raw`](Self::from_raw), for that struct.
    pub unsafe fn from_raw_unversioned(pointer: NonNull<c_void>) -> Dlpack {
        // SAFETY: the caller's promise.
        Dlpack { managed: unsafe { Managed::from_unversioned(pointer) } }
    }

    /// Whether the struct is marked read-only.
    pub fn is_read_only(&self) -> bool {
        self.managed.flags() & managed::READ_ONLY != 0
    }

    /// A copy of the elements on the device where they are, or on the host. Any nonzero byte of a `bool` tensor
    /// becomes `true`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a version, element type, device or layout that no tensor has; [`Error::Memory`] or
    /// [`Error::DeviceMemory`] if the copy does not fit; [`Error::NoDevice`], [`Error::Cuda`].
    pub fn to_tensor(&self) -> Result<AnyTensor> {
        let foreign = ForeignTensor::of(&self.managed)?;
        match foreign.location {
            Location::Host => self.copied_to_host(&foreign),
            Location::Cuda(ordinal) => self.copied_on(&foreign, &Device::cuda(ordinal)?),
        }
    }

    /// The elements themselves, without a copy, if they are on the host. The tensor cannot be changed in place and is
    /// charged to no budget here. The deleter is called when its last view is dropped, on whichever thread that is.
    ///
    /// # Errors
    /// [`Error::Argument`] as for [`to_tensor`](Self::to_tensor). Also for elements on a device, for a first element
    /// whose address is not a multiple of 64 bytes, which storages here require, and for `bool` bytes that are
    /// neither 0 nor 1. Copy the elements then.
    ///
    /// # Safety
    /// Nobody writes the elements, or the bytes between them, until the deleter is called, and it may be called on any thread.
    pub unsafe fn into_shared_tensor(self) -> Result<AnyTensor> {
        let foreign = ForeignTensor::of(&self.managed)?;
        if foreign.location != Location::Host {
            return Err(refused(
                "the elements are on a device, where they cannot be shared; copy them with `to_tensor`",
            ));
        }
        let layout = foreign.layout()?;
        // SAFETY: the caller's promise.
        let buffer = unsafe { self.managed.into_buffer(foreign.low(), foreign.span_bytes()?) };
        let Some(buffer) = buffer else {
            let fix = "copy the elements with `to_tensor`";
            return Err(refused(&format!("the address of the first element is not a multiple of 64 bytes; {fix}")));
        };
        let storage = AnyTensor::from_buffer(buffer, foreign.dtype)?;
        Ok(AnyTensor::new(storage.raw().with_layout(layout)))
    }

    fn copied_to_host(&self, foreign: &ForeignTensor) -> Result<AnyTensor> {
        let mut out = Fresh::allocate("dlpack", foreign.shape, foreign.dtype)?;
        let bytes = out.bits::<u8>();
        self.managed.gather(foreign, bytes);
        if foreign.dtype == DType::Bool {
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Ok(AnyTensor::new(out.share()))
    }

    /// A copy on `device`, where the elements are.
    fn copied_on(&self, foreign: &ForeignTensor, device: &Device) -> Result<AnyTensor> {
        let Device::Cuda(cuda) = device else { return Err(refused("the device is not a CUDA device")) };
        capture::refuse("a copy of another library's tensor")?;
        let layout = foreign.layout()?;
        // Elsewhere, any nonzero byte may mean true; here, only 1 does.
        let is_bool = foreign.dtype == DType::Bool;
        let dtype = if is_bool { DType::U8 } else { foreign.dtype };
        let memory = self.device_copy(foreign, dtype, cuda)?;
        let raw = Raw { storage: on_cuda(memory, dtype, device), layout, node: None }.gap_free()?;
        match is_bool {
            true => Ok(raw.typed::<Int>().ne_scalar(0)?.into()),
            false => Ok(AnyTensor::new(raw)),
        }
    }

    fn device_copy(
        &self,
        foreign: &ForeignTensor,
        dtype: DType,
        cuda: &CudaDevice,
    ) -> Result<pagelock_cuda::DeviceBuffer<u8>> {
        let stream = cuda.stream();
        let full = |source| Error::DeviceMemory { op: "dlpack", shape: foreign.shape, dtype, source };
        let mut memory = stream.allocate::<u8>(foreign.span_bytes()?).map_err(full)?;
        self.managed.copy_on_device(foreign, &stream, &mut memory).map_err(|source| Error::cuda("dlpack", source))?;
        Ok(memory)
    }
}

/// An error of this module.
fn refused(problem: &str) -> Error {
    Error::Argument(format!("dlpack: {problem}"))
}
