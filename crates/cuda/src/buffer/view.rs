//! Views: all or some elements of a [`DeviceBuffer`], for reading or for writing.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Bound, Range, RangeBounds},
    sync::Arc,
};

use super::{Allocation, DeviceBuffer};
use crate::{
    device_copy::DeviceCopy,
    driver::Address,
    error::{Error, OnDevice, Result},
    stream::{Access, StreamCore},
};

/// Elements of a device buffer that may be read: what `&[T]` is to host memory.
pub struct DeviceView<'a, T: DeviceCopy> {
    address: Address,
    len: usize,
    allocation: &'a Arc<Allocation>,
    elements: PhantomData<&'a [T]>,
}

/// Elements of a device buffer that may be written: what `&mut [T]` is to host memory.
///
/// # Examples
/// Two halves can be written at once:
/// ```
/// use pagelock_cuda::{Device, software::Config};
///
/// let stream = Device::software(Config::default())?.stream()?;
/// let mut numbers = stream.allocate::<u8>(6)?;
/// let (low, high) = numbers.view_mut().split_at(3)?;
/// stream.fill(low, 1)?;
/// stream.fill(high, 2)?;
/// assert_eq!(stream.read(&numbers)?, [1, 1, 1, 2, 2, 2]);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
pub struct DeviceViewMut<'a, T: DeviceCopy> {
    address: Address,
    len: usize,
    allocation: &'a Arc<Allocation>,
    elements: PhantomData<&'a mut [T]>,
}

/// Implements the methods that both kinds of views have.
macro_rules! view {
    ($View:ident, $access:ident) => {
        impl<'a, T: DeviceCopy> $View<'a, T> {
            pub(super) fn of(address: Address, len: usize, allocation: &'a Arc<Allocation>) -> Self {
                Self { address, len, allocation, elements: PhantomData }
            }

            /// The number of elements.
            pub fn len(&self) -> usize {
                self.len
            }

            /// Whether the view has no elements.
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }

            /// The device address of the elements.
            pub fn address(&self) -> Address {
                self.address
            }

            /// A view of the elements of that range.
            ///
            /// # Errors
            /// [`Error::Argument`] if the range is not inside the view.
            pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
                let Range { start, end } = resolve_range(range, self.len)?;
                let address = self.address.offset(start * size_of::<T>());
                Ok(Self { address, len: end - start, ..self })
            }

            /// The elements before `middle`, and the rest.
            ///
            /// # Errors
            /// [`Error::Argument`] if the range is not inside the view.
            pub fn split_at(self, middle: usize) -> Result<(Self, Self)> {
                resolve_range(middle..self.len, self.len)?;
                let rest = self.address.offset(middle * size_of::<T>());
                let first = Self::of(self.address, middle, self.allocation);
                Ok((first, Self::of(rest, self.len - middle, self.allocation)))
            }

            /// The bytes of the elements.
            pub fn bytes(self) -> $View<'a, u8> {
                $View::of(self.address, self.len_bytes(), self.allocation)
            }

            pub(crate) fn len_bytes(&self) -> usize {
                self.len * size_of::<T>()
            }

            pub(super) fn allocation(&self) -> &Arc<Allocation> {
                self.allocation
            }

            /// How work that takes this view uses the buffer.
            pub(crate) fn access(&self) -> Access<'a> {
                self.allocation.uses().$access().of(self.allocation)
            }

            /// An error if the buffer is on another device than the stream.
            pub(crate) fn check_same_device(&self, stream: &StreamCore) -> Result<()> {
                stream.check_device(self.allocation.uses().home().shared(), OnDevice::Buffer)
            }
        }

        impl<T: DeviceCopy> fmt::Debug for $View<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($View), "({} × {})"), self.len, std::any::type_name::<T>())
            }
        }
    };
}

view!(DeviceView, read);
view!(DeviceViewMut, write);

impl<T: DeviceCopy> DeviceView<'_, T> {
    pub(crate) fn home(&self) -> &Arc<StreamCore> {
        self.allocation.uses().home()
    }
}

impl<T: DeviceCopy> Clone for DeviceView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: DeviceCopy> Copy for DeviceView<'_, T> {}

impl<'a, T: DeviceCopy> From<&'a DeviceBuffer<T>> for DeviceView<'a, T> {
    fn from(buffer: &'a DeviceBuffer<T>) -> Self {
        buffer.view()
    }
}

impl<'a, T: DeviceCopy> From<&'a mut DeviceBuffer<T>> for DeviceViewMut<'a, T> {
    fn from(buffer: &'a mut DeviceBuffer<T>) -> Self {
        buffer.view_mut()
    }
}

impl<'a, T: DeviceCopy> From<DeviceViewMut<'a, T>> for DeviceView<'a, T> {
    fn from(view: DeviceViewMut<'a, T>) -> Self {
        Self::of(view.address, view.len, view.allocation)
    }
}

impl<T: DeviceCopy> DeviceViewMut<'_, T> {
    /// The same elements, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> DeviceViewMut<'_, T> {
        DeviceViewMut::of(self.address, self.len, self.allocation)
    }
}

fn resolve_range(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&previous) => previous.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    if start <= end && end <= len { Ok(start..end) } else { Err(Error::range(start, end, len)) }
}
