//! [`Uninit`]: page-locked memory that a copy will write.

use std::fmt;

use super::Pinned;
use crate::{device::Device, device_copy::DeviceCopy, error::Result};

/// Page-locked elements without values: the target of a download, which turns it into a [`Pinned`].
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, Uninit, software::Config};
///
/// let device = Device::software(Config::default())?;
/// let stream = device.stream()?;
/// let on_device = stream.allocate_from(&[1_u32, 2, 3])?;
/// let ticket = stream.download(&on_device, Uninit::new(&device, 3)?)?;
/// assert_eq!(*ticket.wait()?, [1, 2, 3]);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
///
/// The elements cannot be read before the download:
/// ```compile_fail,E0608
/// # use pagelock_cuda::{Device, Uninit, software::Config};
/// # let device = Device::software(Config::default())?;
/// let target = Uninit::<u32>::new(&device, 3)?;
/// println!("{}", target[0]);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
pub struct Uninit<T: DeviceCopy> {
    memory: Pinned<T>, // initialized as far as Rust is concerned, but its values are arbitrary
}

impl<T: DeviceCopy> Uninit<T> {
    /// `len` elements without values, from the device's [page-locked memory](Device::page_locked).
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if its budget is exhausted or the system refuses;
    /// [`Error::Argument`](crate::Error::Argument) if the elements have more bytes than the address space.
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        Pinned::allocate(device.page_locked(), len).map(Self::from_pinned)
    }

    pub(super) fn from_pinned(memory: Pinned<T>) -> Self {
        Self { memory }
    }

    pub(crate) fn into_pinned(self) -> Pinned<T> {
        self.memory
    }

    /// Writes `value(i)` to every element `i`, without a download.
    pub fn fill_with(self, mut value: impl FnMut(usize) -> T) -> Pinned<T> {
        let mut memory = self.memory;
        memory.iter_mut().enumerate().for_each(|(i, element)| *element = value(i));
        memory
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }
}

impl<T: DeviceCopy> fmt::Debug for Uninit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uninit({} × {})", self.len(), std::any::type_name::<T>())
    }
}
