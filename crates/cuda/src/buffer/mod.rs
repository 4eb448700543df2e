//! [`DeviceBuffer`]: elements in a device's memory, with views (`view.rs`) and buffers cut into parts (`parts.rs`).
//!
//! Invariant: the block is at least `len` elements long, and returns to the cache of the stream that allocated it
//! only after that stream was ordered after all work that uses the buffer.

mod parts;
mod view;

use std::{
    fmt,
    marker::PhantomData,
    ops::RangeBounds,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pagelock_memory::ByteSize;

pub use self::parts::Parts;
use self::parts::{Part, PartInfo};
pub use self::view::{DeviceView, DeviceViewMut};
use crate::{
    device::Device,
    device_copy::{DeviceCopy, element_size, len_bytes},
    driver::Address,
    error::Result,
    host_function,
    pool::{self, PoolBlock},
    stream::{Stream, Uses},
};

/// Elements in a device's memory. Any bytes are valid elements, so the elements of a new buffer are valid but
/// arbitrary.
///
/// Use it on any stream: uses on different streams are ordered against each other. Dropping it does not wait. It
/// calls the driver only if other streams used the buffer.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, software::Config};
///
/// let stream = Device::software(Config::default())?.stream()?;
/// let mut numbers = stream.zeros::<i32>(4)?;
/// stream.fill(numbers.slice_mut(1..3)?, 7)?;
/// assert_eq!(stream.read(&numbers)?, [0, 7, 7, 0]);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
pub struct DeviceBuffer<T: DeviceCopy> {
    storage: Storage,
    len: usize,
    elements: PhantomData<T>,
}

/// The memory of a buffer: an allocation of its own, or a part of another.
enum Storage {
    Whole(Arc<Allocation>),
    Part(Part),
}

/// The memory of a buffer and its uses: owned by the buffer, and by graphs that share the buffer.
pub(crate) struct Allocation {
    memory: Option<Memory>, // none if there are no elements, and during the drop
    address: Address,
    uses: Uses,
    must_leak: AtomicBool, // Release: whether the device may never be done with a part
}

/// A whole block, or a part of an allocation that is used only through its parts.
enum Memory {
    Whole(PoolBlock),
    Part(Arc<Allocation>, PartInfo),
}

impl Stream {
    /// Allocates a buffer of `len` elements, whose values are arbitrary.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the device's [budget](Device::memory_budget) refuses,
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if the device has nothing left,
    /// [`Error::Argument`](crate::Error::Argument) if the elements have more bytes than the address space.
    pub fn allocate<T: DeviceCopy>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        host_function::refuse_inside()?; // even if the allocation would need no call of the driver
        let block = match len_bytes::<T>(len)? {
            0 => None,
            bytes => Some(pool::allocate(self.core(), bytes, element_size::<T>())?),
        };
        let (address, last_use) = block.as_ref().map_or((Address(0), 0), |block| (block.address, block.last_use));
        let block_bytes = block.as_ref().map_or(0, |block| block.len_bytes);
        let (memory, uses) = (block.map(Memory::Whole), Uses::new(self.core().clone(), last_use));
        let allocation = Arc::new(Allocation::new(memory, address, uses));
        self.core().list_reused(&allocation, block_bytes);
        Ok(DeviceBuffer { storage: Storage::Whole(allocation), len, elements: PhantomData })
    }

    /// Allocates a buffer of `len` zeros.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), and [`Error::Driver`](crate::Error::Driver).
    pub fn zeros<T: DeviceCopy>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let mut buffer = self.allocate(len)?;
        self.fill(&mut buffer, T::zeroed())?;
        Ok(buffer)
    }
}

impl<T: DeviceCopy> DeviceBuffer<T> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The size of the elements.
    pub fn size(&self) -> ByteSize {
        ByteSize((self.len * size_of::<T>()) as u64)
    }

    /// The device whose memory has the elements.
    pub fn device(&self) -> &Device {
        match &self.storage {
            Storage::Whole(allocation) => allocation.uses.home().device(),
            Storage::Part(part) => part.whole().uses.home().device(),
        }
    }

    /// The device address of the elements, for kernels. The host cannot dereference it.
    pub fn address(&self) -> Address {
        match &self.storage {
            Storage::Whole(allocation) => allocation.address,
            Storage::Part(part) => part.address,
        }
    }

    pub(crate) fn uses(&self) -> &Uses {
        &self.allocation().uses
    }

    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        match &self.storage {
            Storage::Whole(allocation) => allocation,
            Storage::Part(part) => part.allocation(),
        }
    }

    /// A view of all elements, for reading.
    pub fn view(&self) -> DeviceView<'_, T> {
        DeviceView::of(self.address(), self.len, self.allocation())
    }

    /// A view of all elements, for writing.
    pub fn view_mut(&mut self) -> DeviceViewMut<'_, T> {
        DeviceViewMut::of(self.address(), self.len, self.allocation())
    }

    /// A view of the elements of that range, for reading.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the range is not inside the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceView<'_, T>> {
        self.view().slice(range)
    }

    /// A view of the elements of that range, for writing.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the range is not inside the buffer.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceViewMut<'_, T>> {
        self.view_mut().slice(range)
    }
}

impl Allocation {
    fn new(memory: Option<Memory>, address: Address, uses: Uses) -> Self {
        Self { memory, address, uses, must_leak: AtomicBool::new(false) }
    }

    pub(crate) fn uses(&self) -> &Uses {
        &self.uses
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// Gives up the memory. Returns the allocation of which this was a part.
    fn give_up(&mut self) -> Option<Arc<Allocation>> {
        let memory = self.memory.take()?;
        if host_function::is_inside() {
            let (uses, must_leak) = (self.uses.fork(), AtomicBool::new(self.must_leak.load(Ordering::Acquire)));
            let deferred = Allocation { memory: Some(memory), address: self.address, uses, must_leak };
            host_function::run_or_defer(|| drop(deferred));
            return None;
        }
        let home = self.uses.home();
        let ordered = home.order_after_all(&self.uses).is_ok();
        let is_done = ordered || (!host_function::is_inside() && self.uses.wait_until_unused_elsewhere().is_ok());
        let is_reusable = is_done && !self.must_leak.load(Ordering::Acquire);
        match memory {
            Memory::Whole(block) if is_reusable => pool::release(home, block),
            Memory::Whole(block) => pool::leak(home, block),
            Memory::Part(whole, _) => {
                if !is_reusable {
                    whole.must_leak.store(true, Ordering::Release); // leaked after its last part
                }
                return Some(whole);
            }
        }
        None
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let mut whole = self.give_up();
        // A loop: dropping parts of parts of parts would take much stack.
        while let Some(mut last) = whole.and_then(Arc::into_inner) {
            whole = last.give_up();
        }
    }
}

impl<T: DeviceCopy> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} × {} on {:?})", self.len, std::any::type_name::<T>(), self.device())
    }
}
