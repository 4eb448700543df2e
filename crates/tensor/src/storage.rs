//! Storage: the bytes behind one or several tensors, on the host or on a device, with a lock and a version.
//!
//! Views share a storage, in-place operations write it under its lock, and every write makes a new version, so that
//! `backward` can tell whether a tensor that it saved is still the one it saved.
//!
//! Invariant: no code of a user ever runs while a lock is held, but for `Trim::trim`, which must not use tensors; no
//! thread takes the same lock twice, and several locks are taken in the order of [`lock_order`], so threads cannot
//! deadlock. A device works after the lock is released; later uses of the same memory are queued behind that work, or
//! wait for it.

use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, Weak};

use bytemuck::Pod;
use pagelock_cuda::{DeviceBuffer, DeviceView, Parts, Stream};
use pagelock_memory::HostBuffer;

use crate::capture;
use crate::cpu::math::half::Half;
use crate::cpu::{self, CpuView, Stored, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::device::Device;
use crate::element::{Computing, DType, Element};
use crate::error::{Error, Result};
use crate::free_lists::{self, Slot};
use crate::heap::{self, CountedHeap};
use crate::inlined::{Array, Slice, from_fn};
use crate::layout::Layout;
use crate::profiler;
use crate::shape::Shape;
use crate::tensor::{Raw, by_bits, by_dtype};

/// A handle to a storage, counted like an `Arc`: dropping the last one returns the bytes to their pool. Facts that
/// are read of many handles in a row are kept in the handle itself, since fetching each storage from memory takes
/// longer.
#[derive(Clone)]
pub(crate) struct StorageRef {
    handle: Handle,
}

#[derive(Clone)]
enum Handle {
    /// To a storage in an allocation of its own.
    Own { slot: Arc<Slot<OnDevice>>, is_on_host: bool, dtype: DType },
    /// To one part of a block.
    Part { block: Arc<UploadedBlock>, at: u32, dtype: DType },
}

/// A handle that does not keep the storage.
pub(crate) struct WeakStorage {
    slot: Weak<Slot<OnDevice>>,
    dtype: DType,
}

impl WeakStorage {
    /// A handle that keeps the storage, if it still exists.
    pub(crate) fn upgraded(&self) -> Option<StorageRef> {
        let slot = self.slot.upgrade()?;
        let is_on_host = slot.value().device.is_cpu();
        Some(StorageRef { handle: Handle::Own { slot, is_on_host, dtype: self.dtype } })
    }
}

struct OnDevice {
    storage: Storage,
    device: Device,
}

impl StorageRef {
    fn new(memory: Memory, dtype: DType, device: Device) -> StorageRef {
        let is_on_host = device.is_cpu();
        // Each storage counts together with one tensor, wherever the program keeps that.
        let slot = free_lists::share(OnDevice { storage: Storage::new(memory), device }, size_of::<Raw>());
        StorageRef { handle: Handle::Own { slot, is_on_host, dtype } }
    }

    /// Where the bytes are.
    #[inline]
    pub(crate) fn device(&self) -> &Device {
        match &self.handle {
            Handle::Own { is_on_host: true, .. } => &Device::Cpu,
            Handle::Own { slot, .. } => &slot.value().device,
            Handle::Part { block, .. } => &block.device,
        }
    }

    #[inline]
    pub(crate) fn dtype(&self) -> DType {
        match self.handle {
            Handle::Own { dtype, .. } | Handle::Part { dtype, .. } => dtype,
        }
    }

    /// Whether two handles are to one storage.
    pub(crate) fn is(&self, other: &StorageRef) -> bool {
        self.address() == other.address()
    }

    /// Whether this is known to be the only handle, which a handle to a part of a block never is.
    pub(crate) fn is_unique(&self) -> bool {
        self.handles() == Some(1)
    }

    /// The number of handles; `None` for a part of a block.
    pub(crate) fn handles(&self) -> Option<usize> {
        match &self.handle {
            Handle::Own { slot, .. } => Some(Arc::strong_count(slot)),
            Handle::Part { .. } => None,
        }
    }

    /// A handle that does not keep the storage; `None` for a part of a block.
    pub(crate) fn downgraded(&self) -> Option<WeakStorage> {
        match &self.handle {
            Handle::Own { slot, dtype, .. } => Some(WeakStorage { slot: Arc::downgrade(slot), dtype: *dtype }),
            Handle::Part { .. } => None,
        }
    }

    /// Gives all handles other memory of the device, with the same values, and makes a storage of the old memory.
    pub(crate) fn with_other_memory(&self, device: &CudaDevice) -> Result<StorageRef> {
        let failed = |source| Error::cuda("copy", source);
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        let Memory::Cuda(old) = &mut *memory else { unreachable!("the storage is on a device") };
        let stream = device.stream();
        let mut other = stream.allocate(old.len()).map_err(failed)?;
        stream.copy(&*old, &mut other).map_err(failed)?;
        let old = Memory::Cuda(std::mem::replace(old, other));
        drop(memory);
        Ok(StorageRef::new(old, self.dtype(), self.device().clone()))
    }

    /// Splits the storage into one of the first `bytes` and one of the others, and leaves this one empty. `None`,
    /// without a change, if there may be another handle, or if the storage is not on a device.
    pub(crate) fn split_at(&self, bytes: usize) -> Result<Option<[StorageRef; 2]>> {
        let Device::Cuda(cuda) = self.device() else { return Ok(None) };
        if !self.is_unique() {
            return Ok(None);
        }
        let failed = |source| Error::cuda("split", source);
        let empty = cuda.stream().allocate(0).map_err(failed)?;
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        let Memory::Cuda(whole) = std::mem::replace(&mut *memory, Memory::Cuda(empty)) else {
            unreachable!("the storage is on a device")
        };
        let end = whole.len();
        let parts = whole.split([0..bytes, bytes..end]).map_err(failed)?.into_iter();
        let parts = parts.map(|part| on_cuda(part, self.dtype(), self.device()));
        Ok(parts.collect::<Vec<_>>().try_into().ok())
    }

    /// The memory, if it is on the host and this is the only handle.
    pub(crate) fn into_host(self) -> std::result::Result<HostBuffer, StorageRef> {
        if !self.is_unique() || !self.device().is_cpu() {
            return Err(self);
        }
        let Ok(empty) = HostBuffer::placed(0) else { return Err(self) };
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *memory, Memory::Host(empty)) {
            Memory::Host(buffer) => Ok(buffer),
            Memory::Cuda(_) => unreachable!("the storage is on the host"),
        }
    }

    pub(crate) fn address(&self) -> *const Storage {
        &**self
    }

    /// Its place in the order in which all threads lock storages: those of floats first, then by address. So an operation on
    /// floats may lock its labels while it holds its inputs.
    pub(crate) fn lock_key(&self) -> LockKey {
        (!self.dtype().is_float(), self.address())
    }
}

impl Deref for StorageRef {
    type Target = Storage;

    #[inline]
    fn deref(&self) -> &Storage {
        match &self.handle {
            Handle::Own { slot, .. } => &slot.value().storage,
            Handle::Part { block, at, .. } => block.storage(*at as usize),
        }
    }
}

impl Drop for StorageRef {
    fn drop(&mut self) {
        if let Handle::Own { slot, .. } = &mut self.handle {
            free_lists::release(slot);
        }
    }
}

/// A block of a device's memory that was uploaded as one, and a storage for each of its parts. A storage is made when it is
/// first used: until then a thousand tensors cost little more than a thousand numbers. The block is freed with the last handle
/// to any of its parts.
pub(crate) struct UploadedBlock {
    device: Device,
    parts: Parts<u8>,
    storages: Box<[OnceLock<Box<Storage>>]>, // one for each part
    _counted: CountedHeap,
}

impl UploadedBlock {
    /// A block of `len` parts.
    pub(crate) fn new(parts: Parts<u8>, len: usize, device: &Device) -> Arc<UploadedBlock> {
        let storages = (0..len).map(|_| OnceLock::new()).collect();
        let counted = CountedHeap::new(len * (size_of::<OnceLock<Box<Storage>>>() + size_of::<Storage>()));
        Arc::new(UploadedBlock { device: device.clone(), parts, storages, _counted: counted })
    }

    /// Handles to all parts, whose elements are of the tensors' types.
    #[inline]
    pub(crate) fn all(self: &Arc<Self>, like: &[&Raw]) -> Vec<StorageRef> {
        let part =
            |(at, like): (usize, &&Raw)| Handle::Part { block: self.clone(), at: at as u32, dtype: like.dtype() };
        like.iter().enumerate().map(|numbered| StorageRef { handle: part(numbered) }).collect()
    }

    fn storage(&self, at: usize) -> &Storage {
        self.storages[at].get_or_init(|| {
            let Some(memory) = self.parts.take(at) else { unreachable!("a part is taken only once") };
            Box::new(Storage::new(Memory::Cuda(memory)))
        })
    }
}

pub(crate) struct Storage {
    memory: RwLock<Memory>,
    version: AtomicU64,
}

/// Bytes, and where they are.
pub(crate) enum Memory {
    Host(HostBuffer),
    Cuda(DeviceBuffer<u8>),
}

impl Storage {
    #[inline]
    fn new(memory: Memory) -> Storage {
        Storage { memory: RwLock::new(memory), version: AtomicU64::new(0) }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Makes a new version, when a write has been queued on a device.
    pub(crate) fn note_write(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Locks for reading, wherever the bytes are.
    pub(crate) fn lock(&self) -> Locked<'_> {
        // A poisoned lock means that a kernel panicked on a bug of ours; the bytes are still initialised.
        Locked(self.memory.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Prefetches the lock: the processor fetches many at once, while locking waits for one after another.
    #[inline]
    pub(crate) fn fetch(&self) {
        black_box(self.memory.is_poisoned());
    }

    /// The same as [`lock`](Self::lock), if nobody is writing.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        match self.memory.try_read() {
            Ok(memory) => Some(Locked(memory)),
            Err(TryLockError::Poisoned(poisoned)) => Some(Locked(poisoned.into_inner())), // as above
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks for writing and makes a new version.
    pub(crate) fn lock_mut(&self) -> LockedMut<'_> {
        let guard = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        self.note_write();
        LockedMut(guard)
    }
}

/// Whether a storage holds no floats, and its address.
pub(crate) type LockKey = (bool, *const Storage);

/// The order in which a thread locks several storages: by [`StorageRef::lock_key`], equal ones next to each other.
pub(crate) fn lock_order<const N: usize>(storages: [Option<&StorageRef>; N]) -> [usize; N] {
    let key = |i: usize| storages[i].map_or((false, std::ptr::null()), StorageRef::lock_key);
    let mut order = from_fn(|i| (key(i), i));
    sort_by_lock_key(&mut order);
    order.mapped(|(_, i)| i)
}

/// [`lock_order`] for any number of storages, each with its index. (One compiled sort serves all callers.)
pub(crate) fn sort_by_lock_key(order: &mut [(LockKey, usize)]) {
    order.sort_unstable();
}

/// A storage locked for reading.
pub(crate) struct Locked<'a>(RwLockReadGuard<'a, Memory>);

impl Locked<'_> {
    /// How many bytes there are, wherever they are.
    pub(crate) fn len_bytes(&self) -> usize {
        match &*self.0 {
            Memory::Host(buffer) => buffer.len_bytes(),
            Memory::Cuda(buffer) => buffer.len(),
        }
    }

    /// The memory on the host, if it is there.
    #[inline]
    pub(crate) fn host(&self) -> Option<&HostBuffer> {
        match &*self.0 {
            Memory::Host(buffer) => Some(buffer),
            Memory::Cuda(_) => None,
        }
    }

    /// A tensor of elements `T`, as a kernel of the CPU sees it.
    pub(crate) fn cpu<'a, T: Element>(&'a self, layout: &'a Layout) -> CpuView<'a, T> {
        let data = T::slice(self.span(layout, size_of::<T>())).into();
        CpuView { data, shape: layout.shape(), strides: layout.strides() }
    }

    /// A tensor of `dtype`, whose computing type is `C`, as a kernel of the CPU sees it.
    pub(crate) fn stored<'a, C: Computing>(&'a self, layout: &'a Layout, dtype: DType) -> CpuView<'a, C> {
        let bytes = self.span(layout, dtype.size());
        let data = match Half::of(dtype) {
            Some(half) => Stored::Halves(bytemuck::cast_slice(bytes), half),
            None => Stored::Plain(C::slice(bytes)),
        };
        CpuView { data, shape: layout.shape(), strides: layout.strides() }
    }

    /// The bits of a tensor's elements, which have the size of a `B`.
    pub(crate) fn bits<'a, B: Pod>(&'a self, layout: &'a Layout) -> CpuView<'a, B> {
        let data = Stored::Plain(bytemuck::cast_slice(self.span(layout, size_of::<B>())));
        CpuView { data, shape: layout.shape(), strides: layout.strides() }
    }

    /// The bytes from a view's first element to its last, on the host.
    fn span(&self, layout: &Layout, size: usize) -> &[u8] {
        let Some(buffer) = self.host() else { unreachable!("operations run where their inputs are") };
        &buffer.bytes()[layout.offset() * size..][..layout.span() * size]
    }

    /// A tensor as a kernel of the device sees it.
    pub(crate) fn cuda<'a>(&'a self, layout: &'a Layout, dtype: DType) -> CudaView<'a> {
        match &*self.0 {
            Memory::Cuda(buffer) => CudaView::new(buffer.view(), layout, dtype),
            Memory::Host(_) => unreachable!("operations run where their inputs are"),
        }
    }

    /// The memory on a device, if it is there.
    pub(crate) fn device_buffer(&self) -> Option<&DeviceBuffer<u8>> {
        match &*self.0 {
            Memory::Cuda(buffer) => Some(buffer),
            Memory::Host(_) => None,
        }
    }

    /// All bytes on the device, if they are there.
    pub(crate) fn device_bytes(&self) -> Option<DeviceView<'_, u8>> {
        self.device_buffer().map(DeviceBuffer::view)
    }
}

/// A storage on the host, locked for reading elements of one type.
pub(crate) struct Reading<'a, T> {
    locked: Locked<'a>,
    element: PhantomData<T>,
}

impl<'a, T: Element> Reading<'a, T> {
    /// Takes the lock of a storage that is on the host; its elements are `T`.
    pub(crate) fn new(locked: Locked<'a>) -> Reading<'a, T> {
        Reading { locked, element: PhantomData }
    }

    /// A tensor as a kernel sees it.
    pub(crate) fn view<'b>(&'b self, layout: &'b Layout) -> CpuView<'b, T> {
        self.locked.cpu(layout)
    }

    /// The elements from a view's first to its last.
    pub(crate) fn of<'b>(&'b self, layout: &'b Layout) -> &'b [T] {
        T::slice(self.locked.span(layout, size_of::<T>()))
    }
}

/// A storage locked for writing.
pub(crate) struct LockedMut<'a>(RwLockWriteGuard<'a, Memory>);

impl LockedMut<'_> {
    /// The bytes from a view's first element to its last, on the host.
    pub(crate) fn span(&mut self, op: &'static str, layout: &Layout, size: usize) -> Result<&mut [u8]> {
        let Memory::Host(buffer) = &mut *self.0 else { unreachable!("operations run where their inputs are") };
        let bytes = buffer.bytes_mut().map_err(|source| Error::NotWritable { op, shape: *layout.shape(), source })?;
        Ok(&mut bytes[layout.offset() * size..][..layout.span() * size])
    }

    /// A tensor that a kernel of the device changes.
    pub(crate) fn cuda<'a>(&'a mut self, layout: &'a Layout, dtype: DType) -> CudaOut<'a> {
        match &mut *self.0 {
            Memory::Cuda(buffer) => CudaOut::new(buffer.view_mut(), layout, dtype),
            Memory::Host(_) => unreachable!("operations run where their inputs are"),
        }
    }
}

/// A new storage on the host that nobody else holds yet: the output of a kernel.
pub(crate) struct Fresh {
    memory: HostBuffer,
    shape: Shape,
    dtype: DType,
}

impl Fresh {
    /// Allocates a contiguous tensor, whose elements have unspecified values.
    pub(crate) fn allocate(op: &'static str, shape: Shape, dtype: DType) -> Result<Fresh> {
        crate::parallel::check()?;
        crate::processor::check()?;
        shape.check_size()?; // sizes may come from expanded tensors, which take no memory
        let refused = |source| Error::Memory { op, shape, dtype, source };
        heap::check().map_err(refused)?;
        let memory = HostBuffer::placed(shape.elements() * dtype.size()).map_err(refused)?;
        profiler::count_bytes(memory.len_bytes());
        Ok(Fresh { memory, shape, dtype })
    }

    /// All elements, to be written; `T` is their type.
    pub(crate) fn elements<T: Element>(&mut self) -> &mut [T] {
        debug_assert_eq!(self.dtype, T::DTYPE);
        if self.dtype == DType::Bool {
            self.bytes().set_to(0); // recycled bytes need not be truth values
        }
        T::slice_mut(self.bytes())
    }

    /// All elements, to be written; their computing type is `C`.
    pub(crate) fn stored<C: Computing>(&mut self) -> StoredMut<'_, C> {
        let dtype = self.dtype;
        StoredMut::of_bytes(self.bytes(), dtype)
    }

    /// Sets all elements to the value.
    pub(crate) fn fill<T: Element>(&mut self, value: T) {
        let value = [value];
        by_bits!(T::DTYPE, B => cpu::fill(self.bits::<B>(), bytemuck::cast_slice(&value)[0]));
    }

    /// The bits of all elements, which have the size of a `B`.
    pub(crate) fn bits<B: Pod>(&mut self) -> &mut [B] {
        bytemuck::cast_slice_mut(self.bytes())
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.memory.bytes_mut().unwrap_or_else(|error| unreachable!("host memory is writable: {error}"))
    }

    /// Sets all elements to the converted numbers of type `from` in `numbers`, of which there are as many.
    pub(crate) fn converted(mut self, from: DType, numbers: &[u8]) -> Fresh {
        by_dtype!(from, S => by_dtype!(self.dtype, T => {
            self.elements::<T>().iter_mut().zip(S::slice(numbers)).for_each(|(out, number)| *out = number.cast());
        }));
        self
    }

    pub(crate) fn share(self) -> Raw {
        let storage = StorageRef::new(Memory::Host(self.memory), self.dtype, Device::Cpu);
        Raw { storage, layout: Layout::contiguous(self.shape), node: None }
    }
}

/// A storage of bytes that are values of the element type.
pub(crate) fn on_host(memory: HostBuffer, dtype: DType) -> Result<StorageRef> {
    crate::processor::check()?; // operations may change the elements in place
    Ok(StorageRef::new(Memory::Host(memory), dtype, Device::Cpu))
}

/// A storage of bytes of a device that are values of the element type.
pub(crate) fn on_cuda(memory: DeviceBuffer<u8>, dtype: DType, device: &Device) -> StorageRef {
    let storage = StorageRef::new(Memory::Cuda(memory), dtype, device.clone());
    capture::note_made(&storage);
    storage
}

/// A new storage on a device that nobody else holds yet: the output of a kernel.
pub(crate) struct FreshCuda<'d> {
    memory: DeviceBuffer<u8>,
    layout: Layout,
    dtype: DType,
    device: &'d Device,
}

impl<'d> FreshCuda<'d> {
    /// Allocates a contiguous tensor on `device`, which is `cuda`; its elements have unspecified values.
    pub(crate) fn allocate(
        op: &'static str,
        shape: Shape,
        dtype: DType,
        device: &'d Device,
        cuda: &CudaDevice,
    ) -> Result<FreshCuda<'d>> {
        Self::allocate_on(&cuda.stream(), op, shape, dtype, device)
    }

    /// The same tensor in another layout without gaps.
    pub(crate) fn with_layout(self, layout: Layout) -> FreshCuda<'d> {
        debug_assert!(layout.shape() == self.layout.shape() && layout.is_dense() && layout.offset() == 0);
        FreshCuda { layout, ..self }
    }

    /// As [`allocate`](Self::allocate), for work on `stream` of the device.
    pub(crate) fn allocate_on(
        stream: &Stream,
        op: &'static str,
        shape: Shape,
        dtype: DType,
        device: &'d Device,
    ) -> Result<FreshCuda<'d>> {
        crate::cuda::check()?;
        shape.check_size()?;
        let refused = |source| Error::DeviceMemory { op, shape, dtype, source };
        heap::check().map_err(|source| refused(source.into()))?;
        let memory = stream.allocate(shape.elements() * dtype.size()).map_err(refused)?;
        profiler::count_bytes(memory.len());
        Ok(FreshCuda { memory, layout: Layout::contiguous(shape), dtype, device })
    }

    /// The whole tensor, to be written.
    pub(crate) fn out(&mut self) -> CudaOut<'_> {
        CudaOut::new(self.memory.view_mut(), &self.layout, self.dtype)
    }

    /// A part of the tensor, to be written.
    pub(crate) fn window<'a>(&'a mut self, layout: &'a Layout) -> CudaOut<'a> {
        CudaOut::new(self.memory.view_mut(), layout, self.dtype)
    }

    pub(crate) fn share(self) -> Raw {
        Raw { storage: on_cuda(self.memory, self.dtype, self.device), layout: self.layout, node: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Int, Tensor};

    /// `cross_entropy` locks its labels while it holds its scores.
    #[test]
    fn storages_of_floats_are_locked_before_others_wherever_they_lie() {
        let pairs: Vec<(Tensor<Int>, Tensor)> =
            (0..8).map(|_| (Tensor::full([2], 0).unwrap(), Tensor::zeros([2]).unwrap())).collect();
        for (labels, _) in &pairs {
            for (_, scores) in &pairs {
                assert_eq!(lock_order([Some(labels.storage()), Some(scores.storage())]), [1, 0]);
            }
        }
    }
}
