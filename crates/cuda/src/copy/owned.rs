//! Copies that own their host memory: it moves into the copy, and is returned when the copy is done.

use crate::{
    buffer::{DeviceView, DeviceViewMut},
    device_copy::DeviceCopy,
    driver::End,
    error::Result,
    page_locked::{Frozen, Pinned, Uninit},
    sanitize,
    stream::Stream,
    ticket::{InUse, Refused, Ticket},
};

use super::{InRows, check_same_length};

/// Host memory that a copy can own and read: [`Pinned`], which only its owner can write, and [`Frozen`], which is never
/// written.
pub trait Source: sealed::Elements + Send + 'static {}

pub(super) mod sealed {
    use std::ops::Deref;

    use crate::device_copy::DeviceCopy;

    /// The elements keep their address and their values when the source itself is moved.
    pub trait Elements: Deref<Target = [Self::DeviceCopy]> {
        type DeviceCopy: DeviceCopy;
    }
}

impl<T: DeviceCopy> Source for Pinned<T> {}
impl<T: DeviceCopy> Source for Frozen<T> {}

impl<T: DeviceCopy> sealed::Elements for Pinned<T> {
    type DeviceCopy = T;
}

impl<T: DeviceCopy> sealed::Elements for Frozen<T> {
    type DeviceCopy = T;
}

impl Stream {
    /// Starts copying `source` to `target`, and returns at once. The ticket returns the source.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the lengths differ, or if [rows](InRows) exceed their memory;
    /// [`Error::OtherDevice`](crate::Error::OtherDevice), [`Error::Driver`](crate::Error::Driver);
    /// [`Error::Lost`](crate::Error::Lost) if the driver failed and cannot say whether the device still reads the source.
    /// [`Refused::into_parts`] returns the source unless it is lost.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, Pinned, software::Config};
    ///
    /// let device = Device::software(Config::default())?;
    /// let stream = device.stream()?;
    /// let mut target = stream.allocate::<f32>(2)?;
    /// let source = Pinned::from_slice(&device, &[1.0, 2.0])?;
    /// let ticket = stream.upload(source, &mut target)?;
    /// // … work that needs neither …
    /// let source = ticket.wait()?;
    /// # assert_eq!(*source, [1.0, 2.0]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload<'a, S: Source>(
        &self,
        source: S,
        target: impl Into<InRows<DeviceViewMut<'a, S::DeviceCopy>>>,
    ) -> Result<Ticket<S>, Refused<S>>
    where
        S::DeviceCopy: 'a,
    {
        let _here = sanitize::here();
        let InRows { view: target, rows } = target.into();
        let (len, from) = (source.len(), source.as_ptr().cast());
        let fits = match rows {
            Some([device, host]) => host.check_against(len, device, target.len()),
            None => check_same_length(len, target.len()),
        };
        if let Err(error) = fits.and_then(|()| target.check_same_device(self.core())) {
            return Err(Refused::returning(error, source));
        }
        if target.is_empty() || rows.is_some_and(|[device, _]| device.is_empty()) {
            return Ok(Ticket::completed(source));
        }
        let len_bytes = len * size_of::<S::DeviceCopy>();
        let source = InUse::new(source, len_bytes);
        self.core().note_upload();
        let queued = self.core().enqueue(&[target.access()], |driver, stream| {
            let Some([device, host]) = rows else {
                // SAFETY: the lengths are equal (checked); `enqueue` orders the target; the source is in `InUse`, so
                // it is neither written nor freed before the device is done.
                return unsafe { driver.copy_to_device(stream, target.address(), from, len_bytes) };
            };
            let copy = host.copy::<S::DeviceCopy>(End::Host(from.cast_mut()), device, End::Device(target.address()));
            // SAFETY: the rows are inside the source and the target (checked); the rest as above. The source is only
            // read.
            unsafe { driver.copy_2d(stream, &copy) }
        });
        Ticket::new(self.core(), queued, source)
    }

    /// Starts copying `source` to `target`, and returns at once. The ticket returns the target with its values.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, Uninit, software::Config};
    ///
    /// let device = Device::software(Config::default())?;
    /// let stream = device.stream()?;
    /// let squares = stream.allocate_from(&[1, 4, 9])?;
    /// let ticket = stream.download(squares.slice(1..)?, Uninit::<i32>::new(&device, 2)?)?;
    /// assert_eq!(*ticket.wait()?, [4, 9]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    ///
    /// The values cannot be read before that:
    /// ```compile_fail,E0608
    /// # use pagelock_cuda::{Device, Uninit, software::Config};
    /// # let device = Device::software(Config::default())?;
    /// # let stream = device.stream()?;
    /// # let squares = stream.allocate_from(&[1, 4, 9])?;
    /// let ticket = stream.download(&squares, Uninit::<i32>::new(&device, 3)?)?;
    /// println!("{}", ticket[0]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn download<'a, T: DeviceCopy>(
        &self,
        source: impl Into<InRows<DeviceView<'a, T>>>,
        target: Uninit<T>,
    ) -> Result<Ticket<Pinned<T>>, Refused<Uninit<T>>> {
        let _here = sanitize::here();
        let InRows { view: source, rows } = source.into();
        let fits = match rows {
            Some([device, host]) => device.check_against(source.len(), host, target.len()),
            None => check_same_length(source.len(), target.len()),
        };
        if let Err(error) = fits.and_then(|()| source.check_same_device(self.core())) {
            return Err(Refused::returning(error, target));
        }
        if source.is_empty() || rows.is_some_and(|[device, _]| device.is_empty()) {
            return Ok(Ticket::completed(target.into_pinned()));
        }
        let len_bytes = target.len() * size_of::<T>();
        let mut target = target.into_pinned();
        let to = target.start_mut().cast(); // before it is in use: the race watcher may panic
        let target = InUse::new(target, len_bytes);
        self.core().note_download();
        let queued = self.core().enqueue(&[source.access()], |driver, stream| {
            let Some([device, host]) = rows else {
                // SAFETY: the lengths are equal (checked); `enqueue` orders the source; the target is in `InUse`, so
                // nobody uses or frees it before the device is done.
                return unsafe { driver.copy_to_host(stream, to, source.address(), len_bytes) };
            };
            let copy = device.copy::<T>(End::Device(source.address()), host, End::Host(to));
            // SAFETY: the rows are inside the source and the target (checked); the rest as above.
            unsafe { driver.copy_2d(stream, &copy) }
        });
        Ticket::new(self.core(), queued, target).map_err(|refused| refused.map(Pinned::into_uninit))
    }
}
