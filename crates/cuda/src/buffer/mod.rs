//! [`DeviceBuffer`]: elements in a device's memory, and views of them (`view.rs`).
//!
//! Invariant: the block has room for `len` elements, and goes back to the pool of the stream that allocated it only
//! when that stream comes after everything that was queued with the buffer.

mod view;

use std::{fmt, marker::PhantomData, ops::RangeBounds, sync::Arc};

use pagelock_memory::ByteSize;

pub use self::view::{DeviceView, DeviceViewMut};
use crate::{
    device::Device,
    driver::Address,
    element::{Element, element_size, len_bytes},
    error::Result,
    host_function,
    pool::{self, Block},
    stream::{Stream, Uses},
};

/// Elements in a device's memory. Any bytes are elements, so a new buffer has values, whatever they are.
///
/// Use it on any stream: uses on different streams are ordered against each other. Dropping it neither waits nor
/// asks the driver for anything, unless other streams used it.
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
pub struct DeviceBuffer<T: Element> {
    allocation: Arc<Allocation>,
    len: usize,
    elements: PhantomData<T>,
}

/// The memory of a buffer, and who uses it: held by the buffer, and by graphs that share it.
pub(crate) struct Allocation {
    block: Option<Block>, // none if there are no elements, and while it is dropped
    uses: Uses,
}

impl Stream {
    /// Room for `len` elements, with whatever was there before.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the device's [budget](Device::memory_budget) refuses,
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if the device has nothing left,
    /// [`Error::TooLong`](crate::Error::TooLong).
    pub fn allocate<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let block = match len_bytes::<T>(len)? {
            0 => None,
            bytes => Some(pool::allocate(self.core(), bytes, element_size::<T>())?),
        };
        let worked_on = block.as_ref().map_or(0, |block| block.worked_on);
        let allocation = Arc::new(Allocation { block, uses: Uses::new(self.core().clone(), worked_on) });
        Ok(DeviceBuffer { allocation, len, elements: PhantomData })
    }

    /// `len` zeros.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), and [`Error::Driver`](crate::Error::Driver).
    pub fn zeros<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let mut buffer = self.allocate(len)?;
        self.fill(&mut buffer, T::zeroed())?;
        Ok(buffer)
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// How many elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the elements take.
    pub fn size(&self) -> ByteSize {
        ByteSize((self.len * size_of::<T>()) as u64)
    }

    /// The device that has them.
    pub fn device(&self) -> &Device {
        self.uses().home().device()
    }

    /// Where the device has them: a number for kernels, nothing that the host could follow.
    pub fn address(&self) -> Address {
        self.allocation.block.as_ref().map_or(Address(0), |block| block.address)
    }

    pub(crate) fn uses(&self) -> &Uses {
        &self.allocation.uses
    }

    /// All elements, to be read.
    pub fn view(&self) -> DeviceView<'_, T> {
        DeviceView::of(self.address(), self.len, &self.allocation)
    }

    /// All elements, to be written.
    pub fn view_mut(&mut self) -> DeviceViewMut<'_, T> {
        DeviceViewMut::of(self.address(), self.len, &self.allocation)
    }

    /// Some elements, to be read.
    ///
    /// # Errors
    /// [`Error::Range`](crate::Error::Range).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceView<'_, T>> {
        self.view().slice(range)
    }

    /// Some elements, to be written.
    ///
    /// # Errors
    /// [`Error::Range`](crate::Error::Range).
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceViewMut<'_, T>> {
        self.view_mut().slice(range)
    }
}

impl Allocation {
    pub(crate) fn uses(&self) -> &Uses {
        &self.uses
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        let home = self.uses.home();
        let ordered = home.order_after_all(&self.uses).is_ok();
        if ordered || (!host_function::is_inside() && self.uses.prove_done().is_ok()) {
            pool::keep(home, block);
        } else {
            home.base().live.sub(block.len_bytes);
            block.leak();
        }
    }
}

impl<T: Element> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} × {} on {:?})", self.len, std::any::type_name::<T>(), self.device())
    }
}
