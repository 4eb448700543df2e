//! [`Managed`]: the structs of DLPack, <https://github.com/dmlc/dlpack/blob/main/include/dlpack/dlpack.h>, and all
//! code that reads their pointers.
//!
//! Invariant of `Managed`: its struct is valid, nothing else owns it, and its deleter has not been called.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;

use pagelock_cuda::driver::Address;
use pagelock_cuda::{DeviceBuffer, Stream};
use pagelock_memory::{Foreign, HostBuffer};

use super::given::ForeignTensor;
use super::refused;
use crate::device::Device;
use crate::error::Result;
use crate::shape::MAX_RANK;
use crate::tensor::Raw;

pub(super) const READ_ONLY: u64 = 1;
pub(super) const IS_COPIED: u64 = 2;
pub(super) const CPU: i32 = 1;
pub(super) const CUDA: i32 = 2;
pub(super) const CUDA_HOST: i32 = 3;
pub(super) const CUDA_MANAGED: i32 = 13;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DataType {
    pub(super) code: u8,
    pub(super) bits: u8,
    pub(super) lanes: u16,
}

/// `DLTensor`, with the two fields of its `DLDevice` in place.
#[repr(C)]
#[derive(Clone, Copy)]
struct DlTensor {
    data: *mut u8,
    device: i32,
    ordinal: i32,
    rank: i32,
    data_type: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Unversioned {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

pub(super) struct Managed {
    at: NonNull<Versioned>,
}

/// A struct of ours together with all that it points to. Its `context` is the address of this.
struct Exported {
    managed: Versioned,
    shape: [i64; MAX_RANK],
    strides: [i64; MAX_RANK],
    tensor: Option<Raw>,
}

/// The deleter of structs that `Managed::of` makes.
unsafe extern "C" fn delete_exported(managed: *mut Versioned) {
    // SAFETY: the struct is valid until its deleter runs.
    let context = unsafe { &*managed }.context;
    // SAFETY: `context` is the address of the box that contains the struct, and the deleter is called once.
    let mut exported = unsafe { Box::from_raw(context.cast::<Exported>()) };
    let Some(tensor) = exported.tensor.take() else { return };
    let is_done = match tensor.storage.device() {
        Device::Cpu => true,
        // The other library may have queued work that is not done.
        Device::Cuda(cuda) => cuda.cuda().synchronize_context().is_ok(),
    };
    if !is_done {
        std::mem::forget(tensor);
    }
}

impl Managed {
    /// A struct for a tensor of ours, which it keeps alive. Waits until the elements are computed.
    pub(super) fn of(tensor: Raw, mut flags: u64) -> Result<Managed> {
        let (shape, strides) = (padded(tensor.shape()), padded(tensor.layout.strides()));
        let start = tensor.layout.offset() * tensor.dtype().size();
        tensor.storage.device().synchronize()?;
        let locked = tensor.storage.lock();
        let (data, device, ordinal) = match (locked.host(), locked.device_buffer()) {
            (Some(buffer), _) => {
                buffer.wait_for_writers();
                flags |= if buffer.is_writable() { 0 } else { READ_ONLY };
                (buffer.as_ptr().as_ptr().wrapping_add(start), CPU, 0)
            }
            (_, Some(buffer)) => {
                let ordinal = buffer.device().properties().ordinal as i32;
                let address = buffer.address().offset(start).0;
                (std::ptr::without_provenance_mut(address as usize), CUDA, ordinal)
            }
            _ => unreachable!("memory is on the host or on a device"),
        };
        drop(locked);
        flags |= if tensor.layout.overlaps() { READ_ONLY } else { 0 };
        let (rank, data_type) = (tensor.rank() as i32, DataType::of(tensor.dtype()));
        let unset = std::ptr::null();
        let described =
            DlTensor { data, device, ordinal, rank, data_type, shape: unset, strides: unset, byte_offset: 0 };
        let (context, deleter) = (std::ptr::null_mut(), Some(delete_exported as unsafe extern "C" fn(_)));
        let managed = Versioned { version: [1, 1], context, deleter, flags, tensor: described };
        let exported = Box::into_raw(Box::new(Exported { managed, shape, strides, tensor: Some(tensor) }));
        Ok(Self::linked(exported))
    }

    /// Makes the struct in a box point to the shape and strides beside it.
    fn linked(exported: *mut Exported) -> Managed {
        // SAFETY: the pointer was just made from a box, and nobody else has it.
        let inside = unsafe { &mut *exported };
        inside.managed.context = exported.cast();
        inside.managed.tensor.shape = (&raw const inside.shape).cast();
        inside.managed.tensor.strides = (&raw const inside.strides).cast();
        // Only `context` gives access to the whole box; this pointer need only be valid for the struct.
        let Some(at) = NonNull::new((&raw mut inside.managed).cast()) else { unreachable!("a field has an address") };
        Managed { at }
    }

    /// # Safety
    /// As `Dlpack::from_raw`.
    pub(super) unsafe fn from_raw(pointer: NonNull<c_void>) -> Managed {
        Managed { at: pointer.cast() }
    }

    /// # Safety
    /// As `Dlpack::from_raw_unversioned`.
    pub(super) unsafe fn from_unversioned(pointer: NonNull<c_void>) -> Managed {
        // SAFETY: the caller's promise.
        let tensor = unsafe { pointer.cast::<Unversioned>().as_ref() }.tensor;
        let deleter = Some(delete_unversioned as unsafe extern "C" fn(_));
        let made = Versioned { version: [1, 0], context: pointer.as_ptr(), deleter, flags: 0, tensor };
        Managed { at: NonNull::from(Box::leak(Box::new(made))) }
    }

    pub(super) fn into_raw(self) -> NonNull<c_void> {
        let at = self.at;
        std::mem::forget(self);
        at.cast()
    }

    pub(super) fn into_unversioned(self) -> NonNull<c_void> {
        let tensor = *self.described();
        let deleter = Some(delete_versioned as unsafe extern "C" fn(_));
        let made = Unversioned { tensor, context: self.into_raw().as_ptr(), deleter };
        NonNull::from(Box::leak(Box::new(made))).cast()
    }

    fn versioned(&self) -> &Versioned {
        // SAFETY: the invariant.
        unsafe { self.at.as_ref() }
    }

    fn described(&self) -> &DlTensor {
        &self.versioned().tensor
    }

    pub(super) fn version(&self) -> (u32, u32) {
        self.versioned().version.into()
    }

    pub(super) fn flags(&self) -> u64 {
        self.versioned().flags
    }

    /// The kind and the ordinal of the device.
    pub(super) fn device(&self) -> (i32, i32) {
        (self.described().device, self.described().ordinal)
    }

    pub(super) fn data_type(&self) -> DataType {
        self.described().data_type
    }

    /// The shape, if its rank is supported.
    pub(super) fn sizes(&self) -> Result<&[i64]> {
        let DlTensor { rank, shape, .. } = *self.described();
        match usize::try_from(rank) {
            Ok(0) => Ok(&[]),
            // SAFETY: a valid struct has `rank` sizes, which live as long as it does.
            Ok(rank) if rank <= MAX_RANK => Ok(unsafe { slice::from_raw_parts(shape, rank) }),
            _ => Err(refused(&format!(
                "the shape has {rank} sizes, but a tensor has at most {MAX_RANK}; reshape it first"
            ))),
        }
    }

    /// One stride for each size; `None` for row-major elements without gaps. Call it only after `sizes` has checked
    /// the rank.
    pub(super) fn strides(&self) -> Option<&[i64]> {
        let DlTensor { rank, strides, .. } = *self.described();
        if strides.is_null() {
            return if rank == 0 { Some(&[]) } else { None };
        }
        // SAFETY: a valid struct has `rank` strides, which live as long as it does.
        Some(unsafe { slice::from_raw_parts(strides, rank.clamp(0, MAX_RANK as i32) as usize) })
    }

    fn data(&self) -> *mut u8 {
        self.described().data.wrapping_add(self.described().byte_offset as usize)
    }

    /// Copies the elements, which must be on the host, to `out` in row-major order. `out` has exactly their size.
    pub(super) fn gather(&self, foreign: &ForeignTensor, out: &mut [u8]) {
        let (data, size, rank) = (self.data(), foreign.dtype.size(), foreign.shape.rank());
        let mut run = 1; // elements that are contiguous and in row-major order
        let mut outer = rank;
        while outer > 0 && (foreign.shape[outer - 1] == 1 || foreign.strides[outer - 1] == run as i64) {
            run *= foreign.shape[outer - 1];
            outer -= 1;
        }
        if out.is_empty() {
            return;
        }
        let mut index = [0; MAX_RANK];
        for out in out.chunks_exact_mut(run * size) {
            let at: i64 = index[..outer].iter().zip(&foreign.strides).map(|(&i, stride)| i as i64 * stride).sum();
            let from = data.wrapping_offset(at as isize * size as isize);
            // SAFETY: the elements that shape and strides name are readable (`Dlpack::from_raw`), and `out` is as
            // long and borrowed by us alone.
            unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
            for dim in (0..outer).rev() {
                index[dim] += 1;
                if index[dim] < foreign.shape[dim] {
                    break;
                }
                index[dim] = 0;
            }
        }
    }

    /// Copies the bytes from the first to the last element, which are on the stream's device, and waits for the copy.
    pub(super) fn copy_on_device(
        &self,
        foreign: &ForeignTensor,
        stream: &Stream,
        out: &mut DeviceBuffer<u8>,
    ) -> pagelock_cuda::Result<()> {
        let from = Address(self.data().wrapping_offset(foreign.low()).addr() as u64);
        // SAFETY: the bytes between the elements are readable until the deleter is called (`Dlpack::from_raw`), and
        // that happens after the wait below. The work that computes the elements is done.
        let copied = unsafe { stream.copy_from_address(from, out) };
        stream.synchronize()?;
        copied
    }

    /// The bytes from the first to the last element as a buffer that owns this struct; `None` if their address is not
    /// a multiple of 64.
    ///
    /// # Safety
    /// As `Dlpack::into_shared_tensor`.
    pub(super) unsafe fn into_buffer(self, low: isize, len: usize) -> Option<HostBuffer> {
        let start = self.data().wrapping_offset(low);
        Foreign::new(ForeignBytes { start, len, _managed: self }).ok().map(HostBuffer::from_block)
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        if let Some(deleter) = self.versioned().deleter {
            // SAFETY: the invariant; this is the only call.
            unsafe { deleter(self.at.as_ptr()) };
        }
    }
}

/// Elements on the host that another library owns.
struct ForeignBytes {
    start: *const u8,
    len: usize,
    _managed: Managed,
}

// SAFETY: nobody writes the bytes, and the deleter may be called on any thread (`Dlpack::into_shared_tensor`).
unsafe impl Send for ForeignBytes {}
// SAFETY: as above.
unsafe impl Sync for ForeignBytes {}

impl AsRef<[u8]> for ForeignBytes {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the bytes are readable and not written until the deleter is called (`Dlpack::into_shared_tensor`).
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

/// The deleter of structs that `from_unversioned` makes around others.
unsafe extern "C" fn delete_unversioned(managed: *mut Versioned) {
    // SAFETY: it was made of a box, and the deleter is called once.
    let managed = unsafe { Box::from_raw(managed) };
    let inner = managed.context.cast::<Unversioned>();
    // SAFETY: the struct inside is valid until its deleter is called, which is here.
    if let Some(deleter) = unsafe { &*inner }.deleter {
        // SAFETY: as above.
        unsafe { deleter(inner) };
    }
}

/// The deleter of structs that `into_unversioned` makes around others.
unsafe extern "C" fn delete_versioned(managed: *mut Unversioned) {
    // SAFETY: it was made of a box, and the deleter is called once.
    let managed = unsafe { Box::from_raw(managed) };
    if let Some(inner) = NonNull::new(managed.context) {
        // SAFETY: `into_unversioned` stored the pointer to a struct that it owned there.
        drop(unsafe { Managed::from_raw(inner) });
    }
}

fn padded(numbers: &[usize]) -> [i64; MAX_RANK] {
    let mut all = [0; MAX_RANK];
    numbers.iter().zip(&mut all).for_each(|(from, to)| *to = *from as i64);
    all
}
