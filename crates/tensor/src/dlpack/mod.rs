//! [`Dlpack`]: tensors for other libraries of the process, and theirs for us, as DLPack structs.
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

use self::given::{Given, Place};
use self::managed::Managed;
use crate::cuda::CudaDevice;
use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::kind::Int;
use crate::map::AnyTensor;
use crate::storage::{Fresh, on_cuda};
use crate::tensor::Raw;

/// A tensor as DLPack passes it between libraries of one process (`DLManagedTensorVersioned`, version 1): made of one of ours with
/// [`new`](Self::new), or got from another library with [`from_raw`](Self::from_raw). Dropping it calls its deleter, wherever it
/// came from.
///
/// All element types here are DLPack's, on the CPU and on CUDA devices. Python passes the pointer in a capsule that is called
/// `dltensor_versioned` (`dltensor` for the struct before version 1).
///
/// | | copies | |
/// |---|---|---|
/// | [`Dlpack::new`] | once | the other library may do with the elements what it likes |
/// | [`Dlpack::sharing`] | never | `unsafe`: nobody may write while somebody else reads or writes |
/// | [`to_tensor`](Self::to_tensor) | once | a tensor as any other |
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
    /// A copy of the tensor, row-major, for another library alone. Of a tensor on a device, the call returns when the copy is
    /// done, so that any stream may use it.
    ///
    /// When the other library is done with memory of a device, everything that was queued on that device is waited for, since the
    /// library may have work there that is not done. Not while a step is captured, which that would spoil: then the memory is
    /// leaked.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::DeviceMemory`] if the copy does not fit; [`Error::Cuda`].
    pub fn new(tensor: impl Into<AnyTensor>) -> Result<Dlpack> {
        let copy = tensor.into().raw().deep_copy("dlpack")?;
        Ok(Dlpack { managed: Managed::of(copy, managed::IS_COPIED)? })
    }

    /// The tensor itself, without a copy: its elements are kept until the other library calls the deleter. One whose elements
    /// cannot be written, or are shown twice, says that it is read-only. On a device the call returns when everything is done
    /// that computes the elements.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Safety
    /// From now on until the deleter was called, nobody writes the elements while somebody else reads or writes them: neither
    /// does the other library while operations here use the tensor or a view of it, nor is a tensor of this storage changed in
    /// place (also in a captured step) while the other library uses it. What the other library writes makes no new
    /// [version](crate::Tensor::version): no gradient that is still to be computed may need the elements as they were. Truth
    /// values stay 0 or 1.
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

    /// The same as the struct from before version 1, a `DLManagedTensor`.
    ///
    /// # Errors
    /// [`Error::Argument`] for elements that must not be written: this struct cannot say so.
    pub fn into_raw_unversioned(self) -> Result<NonNull<c_void>> {
        if self.is_read_only() {
            let fix = "give the versioned one, or a copy";
            return Err(refused(&format!(
                "the elements are read-only, which a struct without a version cannot say; {fix}"
            )));
        }
        Ok(self.managed.into_unversioned())
    }

    /// What another library made.
    ///
    /// # Safety
    /// The pointer is to a `DLManagedTensorVersioned` as DLPack describes it, and the caller has it alone. Until its deleter is
    /// called, which happens when this is dropped: the elements that shape and strides name are there and initialized, and the
    /// bytes between the first and the last of them readable; nobody writes them. Elements on a device are computed: what
    /// computes them was waited for.
    ///
    /// # Examples
    /// See [`Dlpack`].
    pub unsafe fn from_raw(pointer: NonNull<c_void>) -> Dlpack {
        // SAFETY: the caller's promise.
        Dlpack { managed: unsafe { Managed::from_raw(pointer) } }
    }

    /// The same of the struct from before version 1, a `DLManagedTensor`.
    ///
    /// # Safety
    /// As [`from_raw`](Self::from_raw), of that struct.
    pub unsafe fn from_raw_unversioned(pointer: NonNull<c_void>) -> Dlpack {
        // SAFETY: the caller's promise.
        Dlpack { managed: unsafe { Managed::from_unversioned(pointer) } }
    }

    /// Whether whoever made it forbids to write the elements.
    pub fn is_read_only(&self) -> bool {
        self.managed.flags() & managed::READ_ONLY != 0
    }

    /// A copy of the elements, where they are: on the host or on the same device. Bytes of truth values that are not 0 are true.
    ///
    /// # Errors
    /// [`Error::Argument`] for a version, element type, place or layout that no tensor has; [`Error::Memory`] or
    /// [`Error::DeviceMemory`] if the copy does not fit; [`Error::NoDevice`], [`Error::Cuda`].
    pub fn to_tensor(&self) -> Result<AnyTensor> {
        let given = Given::of(&self.managed)?;
        match given.place {
            Place::Host => self.copied_to_host(&given),
            Place::Cuda(ordinal) => self.copied_on(&given, &Device::cuda(ordinal)?),
        }
    }

    /// The elements themselves, on the host, without a copy: a tensor that cannot be changed in place, in nobody's budget here.
    /// The deleter is called when the last of its views is gone, on whichever thread.
    ///
    /// # Errors
    /// [`Error::Argument`] as [`to_tensor`](Self::to_tensor); also for elements on a device, a first element that does not lie at
    /// a multiple of 64 bytes, as all memory of tensors here does, and bytes of truth values that are neither 0 nor 1. Copy them
    /// then.
    ///
    /// # Safety
    /// Nobody writes the elements, or the bytes between them, until the deleter is called, and it may be called on any thread.
    pub unsafe fn into_shared_tensor(self) -> Result<AnyTensor> {
        let given = Given::of(&self.managed)?;
        if given.place != Place::Host {
            return Err(refused(
                "the elements are on a device, where they cannot be shared; copy them with `to_tensor`",
            ));
        }
        let layout = given.layout()?;
        // SAFETY: the caller's promise.
        let buffer = unsafe { self.managed.into_buffer(given.low(), given.span_bytes()?) };
        let Some(buffer) = buffer else {
            let fix = "copy them with `to_tensor`";
            return Err(refused(&format!("the first element does not lie at a multiple of 64 bytes; {fix}")));
        };
        let storage = AnyTensor::from_buffer(buffer, given.dtype)?;
        Ok(AnyTensor::new(storage.raw().with_layout(layout)))
    }

    fn copied_to_host(&self, given: &Given) -> Result<AnyTensor> {
        let mut out = Fresh::allocate("dlpack", given.shape, given.dtype)?;
        let bytes = out.bits::<u8>();
        self.managed.gather(given, bytes);
        if given.dtype == DType::Bool {
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Ok(AnyTensor::new(out.share()))
    }

    /// On the device that has them.
    fn copied_on(&self, given: &Given, device: &Device) -> Result<AnyTensor> {
        let Device::Cuda(cuda) = device else { return Err(refused("the device is no CUDA device")) };
        let layout = given.layout()?;
        // Any byte may stand for true, and only 1 does so here.
        let is_bool = given.dtype == DType::Bool;
        let dtype = if is_bool { DType::U8 } else { given.dtype };
        let memory = self.device_copy(given, dtype, cuda)?;
        let raw = Raw { storage: on_cuda(memory, dtype, device), layout, node: None }.gap_free()?;
        match is_bool {
            true => Ok(raw.typed::<Int>().ne_scalar(0)?.into()),
            false => Ok(AnyTensor::new(raw)),
        }
    }

    fn device_copy(&self, given: &Given, dtype: DType, cuda: &CudaDevice) -> Result<pagelock_cuda::DeviceBuffer<u8>> {
        let stream = cuda.stream();
        let full = |source| Error::DeviceMemory { op: "dlpack", shape: given.shape, dtype, source };
        let mut memory = stream.allocate::<u8>(given.span_bytes()?).map_err(full)?;
        self.managed.copy_on_device(given, &stream, &mut memory).map_err(|source| Error::cuda("dlpack", source))?;
        Ok(memory)
    }
}

/// An error of this module.
fn refused(problem: &str) -> Error {
    Error::Argument(format!("dlpack: {problem}"))
}
