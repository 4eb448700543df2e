//! Copies of borrowed slices, in a scope that waits for the copies.

use std::{cell::Cell, marker::PhantomData, process};

use bytemuck::allocation::try_zeroed_vec;
use pagelock_memory::{ByteSize, MemoryKind};

use super::check_same_length;
use crate::{
    buffer::{DeviceBuffer, DeviceView, DeviceViewMut},
    device_copy::DeviceCopy,
    driver::EventTiming,
    error::{Error, Result},
    event::Recorded,
    sanitize,
    stream::Stream,
};

/// Starts copies of borrowed slices; see [`Stream::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    stream: &'env Stream,
    copied: Cell<bool>,                         // whether a copy may be in flight
    scope: PhantomData<&'scope mut &'scope ()>, // invariant, as in `std::thread::Scope`
    env: PhantomData<&'env mut &'env ()>,
}

impl Stream {
    /// Calls `work` with a scope that starts copies of borrowed slices. The copies run while `work` continues.
    /// Returns, or unwinds, only when they are done.
    ///
    /// # Aborts
    /// If the driver cannot say whether the device is done with the borrowed memory, the process aborts: otherwise
    /// the device might write memory after it was freed or reused.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let mut on_device = stream.allocate::<u32>(3)?;
    /// let (source, mut target) = (vec![1, 2, 3], [0; 3]);
    /// stream.scope(|scope| {
    ///     scope.upload(&source, &mut on_device)?;
    ///     scope.download(&on_device, &mut target)
    /// })?;
    /// assert_eq!(target, [1, 2, 3]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    ///
    /// A source cannot be changed while it is copied:
    /// ```compile_fail,E0506
    /// # use pagelock_cuda::{Device, software::Config};
    /// # let stream = Device::software(Config::default())?.stream()?;
    /// # let mut on_device = stream.allocate::<u32>(3)?;
    /// let mut source = [1, 2, 3];
    /// stream.scope(|scope| {
    ///     scope.upload(&source, &mut on_device)?;
    ///     source[0] = 4;
    ///     Ok::<(), pagelock_cuda::Error>(())
    /// })?;
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    ///
    /// A target cannot be read while the copy writes it:
    /// ```compile_fail,E0502
    /// # use pagelock_cuda::{Device, software::Config};
    /// # let stream = Device::software(Config::default())?.stream()?;
    /// # let on_device = stream.zeros::<u32>(3)?;
    /// let mut target = [0; 3];
    /// stream.scope(|scope| {
    ///     scope.download(&on_device, &mut target)?;
    ///     assert_eq!(target[0], 0);
    ///     Ok::<(), pagelock_cuda::Error>(())
    /// })?;
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    ///
    /// The borrowed memory must outlive the scope:
    /// ```compile_fail,E0597
    /// # use pagelock_cuda::{Device, software::Config};
    /// # let stream = Device::software(Config::default())?.stream()?;
    /// # let mut on_device = stream.allocate::<u32>(3)?;
    /// stream.scope(|scope| {
    ///     let source = [1, 2, 3];
    ///     scope.upload(&source, &mut on_device)
    /// })?;
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn scope<'env, R>(&'env self, work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
        let scope = Scope { stream: self, copied: Cell::new(false), scope: PhantomData, env: PhantomData };
        let _waits = WaitsAtEnd { stream: self, copied: &scope.copied };
        work(&scope)
    }

    /// Allocates a buffer and copies the elements of `source` to it. Returns when the copy is done.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), and [`Error::Driver`](crate::Error::Driver).
    #[track_caller]
    pub fn allocate_from<T: DeviceCopy>(&self, source: &[T]) -> Result<DeviceBuffer<T>> {
        let _here = sanitize::here();
        let mut buffer = self.allocate(source.len())?;
        self.scope(|scope| scope.upload(source, &mut buffer))?;
        Ok(buffer)
    }

    /// Copies the elements of `source` to a vector. Returns when the copy is done.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the system has no memory for the vector,
    /// [`Error::OtherDevice`](crate::Error::OtherDevice), [`Error::Driver`](crate::Error::Driver).
    #[track_caller]
    pub fn read<'a, T: DeviceCopy>(&self, source: impl Into<DeviceView<'a, T>>) -> Result<Vec<T>> {
        let _here = sanitize::here();
        let source = source.into();
        let asked = ByteSize(source.len_bytes() as u64);
        let refused = pagelock_memory::Error::OutOfMemory { asked, kind: MemoryKind::Pageable };
        let mut target = try_zeroed_vec(source.len()).map_err(|()| Error::Memory(refused))?;
        self.scope(|scope| scope.download(source, &mut target))?;
        Ok(target)
    }
}

impl<'env> Scope<'_, 'env> {
    /// Starts copying `source` to `target`.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the lengths differ,
    /// [`Error::OtherDevice`](crate::Error::OtherDevice), [`Error::Driver`](crate::Error::Driver).
    #[track_caller]
    pub fn upload<'a, T: DeviceCopy>(&self, source: &'env [T], target: impl Into<DeviceViewMut<'a, T>>) -> Result<()> {
        let _here = sanitize::here();
        let target = target.into();
        let stream = self.stream.core();
        target.check_same_device(stream)?;
        check_same_length(source.len(), target.len())?;
        let len_bytes = target.len_bytes();
        if len_bytes == 0 {
            return Ok(());
        }
        stream.note_upload();
        let queued = stream.enqueue(&[target.access()], |driver, handle| {
            self.copied.set(true);
            // SAFETY: the lengths are equal (checked); `enqueue` orders the target; the source is borrowed for
            // `'env`, and `WaitsAtEnd` does not let the scope end before the device is done.
            unsafe { driver.copy_to_device(handle, target.address(), source.as_ptr().cast(), len_bytes) }
        });
        Ok(queued?)
    }

    /// Starts copying `source` to `target`.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    #[track_caller]
    pub fn download<'a, T: DeviceCopy>(
        &self,
        source: impl Into<DeviceView<'a, T>>,
        target: &'env mut [T],
    ) -> Result<()> {
        let _here = sanitize::here();
        let source = source.into();
        let stream = self.stream.core();
        source.check_same_device(stream)?;
        check_same_length(source.len(), target.len())?;
        let len_bytes = source.len_bytes();
        if len_bytes == 0 {
            return Ok(());
        }
        stream.note_download();
        let queued = stream.enqueue(&[source.access()], |driver, handle| {
            self.copied.set(true);
            // SAFETY: as in `upload`, with the target borrowed mutably.
            unsafe { driver.copy_to_host(handle, target.as_mut_ptr().cast(), source.address(), len_bytes) }
        });
        Ok(queued?)
    }
}

/// Waits for the scope's copies when dropped. It lives in the frame of [`Stream::scope`]: no user code can forget it.
struct WaitsAtEnd<'a> {
    stream: &'a Stream,
    copied: &'a Cell<bool>,
}

impl Drop for WaitsAtEnd<'_> {
    fn drop(&mut self) {
        if !self.copied.get() {
            return;
        }
        let stream = self.stream.core();
        let done = match Recorded::new(stream, EventTiming::Untimed) {
            Ok(recorded) => recorded.wait_with_fallback(),
            Err(_) => stream.wait_until_idle(),
        };
        if let Err(failure) = done {
            eprintln!("the device cannot say whether it is done with memory borrowed by `Stream::scope`: {failure}");
            process::abort();
        }
    }
}
