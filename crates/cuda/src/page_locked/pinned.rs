//! [`Pinned`]: page-locked memory that no copy is using.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use pagelock_memory::{HostBuffer, MemoryKind, Resource};

use super::{Frozen, Uninit};
use crate::{
    device::Device,
    device_copy::{DeviceCopy, len_bytes},
    error::{Error, Result},
    host_function,
};

/// Page-locked elements. Their pages stay in RAM, a device can read and write them directly, and neither another
/// thread nor a device uses them while you own this.
///
/// It derefs to a slice; a copy takes it by value.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, Pinned, software::Config};
///
/// let device = Device::software(Config::default())?;
/// let mut numbers = Pinned::<f32>::zeroed(&device, 4)?;
/// numbers[2] = 1.0;
/// assert_eq!(*numbers, [0.0, 0.0, 1.0, 0.0]);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
pub struct Pinned<T: DeviceCopy> {
    buffer: HostBuffer, // page-locked and writable, without pending copies; at least `len` elements long
    len: usize,
    elements: PhantomData<T>,
}

impl<T: DeviceCopy> Pinned<T> {
    /// `len` zeros, from the device's [page-locked memory](Device::page_locked).
    ///
    /// # Errors
    /// [`Error::Memory`] if its budget is exhausted or the system refuses; [`Error::Argument`] if the
    /// elements have more bytes than the address space.
    #[track_caller]
    pub fn zeroed(device: &Device, len: usize) -> Result<Self> {
        let mut zeroed = Self::allocate(device.page_locked(), len)?;
        zeroed.fill(T::zeroed());
        Ok(zeroed)
    }

    /// A page-locked copy of a slice.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    #[track_caller]
    pub fn from_slice(device: &Device, elements: &[T]) -> Result<Self> {
        let mut copy = Self::allocate(device.page_locked(), elements.len())?;
        copy.copy_from_slice(elements);
        Ok(copy)
    }

    /// The buffer as elements. Waits for all copies that still use the buffer. Bytes after the last whole element are
    /// ignored.
    ///
    /// # Errors
    /// [`Error::Argument`] if the buffer is not page-locked.
    ///
    /// # Panics
    /// If a device was lost during a copy that used the buffer.
    pub fn from_buffer(buffer: HostBuffer) -> Result<Self> {
        if buffer.kind() != MemoryKind::PageLocked {
            let problem =
                format!("the buffer is {}: only page-locked memory can be copied asynchronously", buffer.kind());
            return Err(Error::Argument(problem));
        }
        host_function::refuse_inside()?;
        buffer.wait_for_all();
        len_bytes::<T>(0)?; // checks size and alignment of `T` at compile time
        let len = buffer.len_bytes() / size_of::<T>();
        Ok(Self { buffer, len, elements: PhantomData })
    }

    /// Elements with arbitrary values, from the given resource.
    pub(super) fn allocate<R: Resource>(resource: &R, len: usize) -> Result<Self> {
        host_function::refuse_inside()?;
        let buffer = HostBuffer::allocate(resource, len_bytes::<T>(len)?)?;
        Self::from_buffer(buffer)
    }

    /// `len` elements with arbitrary values, from the device's page-locked memory.
    pub(crate) fn for_device(device: &Device, len: usize) -> Result<Self> {
        Self::allocate(device.page_locked(), len)
    }

    /// The buffer that holds the elements.
    pub fn into_buffer(self) -> HostBuffer {
        self.buffer
    }

    /// The same memory, shared and read-only.
    pub fn freeze(self) -> Frozen<T> {
        Frozen::new(self)
    }

    /// The same memory, as the target of a copy.
    pub fn into_uninit(self) -> Uninit<T> {
        Uninit::from_pinned(self)
    }

    /// A pointer to the first element, for the copy that owns this memory.
    pub(crate) fn start_mut(&mut self) -> *mut T {
        self.buffer.as_ptr().cast().as_ptr()
    }
}

impl<T: DeviceCopy> Deref for Pinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.buffer.bytes()[..self.len * size_of::<T>()])
    }
}

impl<T: DeviceCopy> DerefMut for Pinned<T> {
    #[track_caller]
    fn deref_mut(&mut self) -> &mut [T] {
        let len_bytes = self.len * size_of::<T>();
        match self.buffer.bytes_mut() {
            Ok(bytes) => bytemuck::cast_slice_mut(&mut bytes[..len_bytes]),
            Err(error) => unreachable!("page-locked memory can be written: {error}"),
        }
    }
}

impl<T: DeviceCopy> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} × {})", self.len, std::any::type_name::<T>())
    }
}
