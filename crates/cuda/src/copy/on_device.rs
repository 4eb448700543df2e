//! Copies on a device, and from one device to another.

use super::check_same_length;
use crate::{
    buffer::{DeviceView, DeviceViewMut},
    device_copy::DeviceCopy,
    driver::Address,
    error::{OnDevice, Result},
    stream::Stream,
};

impl Stream {
    /// Copies memory of this stream's device that no buffer owns, such as memory of another library, to `target`.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    ///
    /// # Safety
    /// `source` must be the address of at least `target.len()` readable bytes in this device's memory, which are neither
    /// written nor freed before the copy is done.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let source = stream.allocate_from(&[1_u8, 2, 3])?;
    /// let mut target = stream.allocate::<u8>(2)?;
    /// // SAFETY: the source lives, and nobody writes it.
    /// unsafe { stream.copy_from_address(source.address().offset(1), &mut target)? };
    /// assert_eq!(stream.read(&target)?, [2, 3]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub unsafe fn copy_from_address<'a>(
        &self,
        source: Address,
        target: impl Into<DeviceViewMut<'a, u8>>,
    ) -> Result<()> {
        let target = target.into();
        target.check_same_device(self.core())?;
        let (to, len_bytes) = (target.address(), target.len_bytes());
        if len_bytes == 0 {
            return Ok(());
        }
        let queued = self.core().enqueue_on_device(&[target.access()], |driver, stream| {
            // SAFETY: the caller promises that the source is readable; `enqueue` orders the target.
            unsafe { driver.copy_on_device(stream, to, source, len_bytes) }
        });
        Ok(queued?)
    }

    /// Copies `source` to `target`. The target is on this stream's device, the source on the same or another device.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the lengths differ;
    /// [`Error::OtherDevice`](crate::Error::OtherDevice) if the target is not on the stream's device;
    /// [`Error::OtherDriver`](crate::Error::OtherDriver) if the source is on a device of another family of drivers; [`Error::Driver`](crate::Error::Driver).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::software::{Config, Machine};
    ///
    /// let machine = Machine::new(Config { devices: 2, ..Config::default() });
    /// let (here, there) = (machine.device(0)?.stream()?, machine.device(1)?.stream()?);
    /// let source = there.allocate_from(&[1.0_f32, 2.0])?;
    /// let mut target = here.allocate::<f32>(2)?;
    /// here.copy(&source, &mut target)?; // after what `there` did with the source
    /// assert_eq!(here.read(&target)?, [1.0, 2.0]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn copy<'a, 'b, T: DeviceCopy>(
        &self,
        source: impl Into<DeviceView<'a, T>>,
        target: impl Into<DeviceViewMut<'b, T>>,
    ) -> Result<()> {
        let (source, target) = (source.into(), target.into());
        target.check_same_device(self.core())?;
        self.core().check_same_family(source.home(), OnDevice::Buffer)?;
        check_same_length(source.len(), target.len())?;
        let (from, to, len_bytes) = (source.address(), target.address(), source.len_bytes());
        if len_bytes == 0 {
            return Ok(());
        }
        let peer = source.home().driver().context();
        let is_same_device = source.home().is_same_device(self.core());
        let queued = self.core().enqueue_on_device(&[source.access(), target.access()], |driver, stream| {
            if is_same_device {
                // SAFETY: the lengths are equal (checked), and `enqueue` orders both ends.
                unsafe { driver.copy_on_device(stream, to, from, len_bytes) }
            } else {
                // SAFETY: as above; the source is in the memory of `peer`.
                unsafe { driver.copy_from_peer(stream, to, peer, from, len_bytes) }
            }
        });
        Ok(queued?)
    }
}
