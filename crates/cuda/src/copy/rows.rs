//! Copies of rows that do not follow each other: parts of matrices, images inside larger ones.

use super::{Source, same_length};
use crate::{
    buffer::{DeviceView, DeviceViewMut},
    driver::{Copy2d, End},
    element::Element,
    error::{Error, Result},
    page_locked::{Pinned, Uninit},
    sanitize,
    stream::Stream,
    ticket::{InUse, Refused, Ticket},
};

/// Rows inside a longer stretch of elements.
///
/// # Examples
/// The left half of a 3 × 4 matrix, as a matrix of its own:
/// ```
/// use pagelock_cuda::{Device, Rows, Uninit, software::Config};
///
/// let device = Device::software(Config::default())?;
/// let stream = device.stream()?;
/// let matrix = stream.allocate_from(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])?;
/// let left = Rows { rows: 3, width: 2, stride: 4 };
/// let ticket = stream.download_rows(&matrix, left, Uninit::<i32>::new(&device, 6)?, Rows::dense(3, 2))?;
/// assert_eq!(*ticket.wait()?, [1, 2, 5, 6, 9, 10]);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// How many rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Elements from one row's start to the next row's; at least `width`.
    pub stride: usize,
}

impl Rows {
    /// Rows that follow each other.
    pub fn dense(rows: usize, width: usize) -> Self {
        Self { rows, width, stride: width }
    }

    /// An error unless the rows lie apart from each other inside `len` elements.
    fn check(self, len: usize) -> Result<()> {
        let Self { rows, width, stride } = self;
        let needed = match rows {
            0 => Some(0),
            n => stride.checked_mul(n - 1).and_then(|to_last| to_last.checked_add(width)),
        };
        let needed = needed.unwrap_or(usize::MAX);
        let fits = needed <= len && (width <= stride || rows <= 1);
        if fits { Ok(()) } else { Err(Error::Rows { rows, width, stride, needed, len }) }
    }

    /// An error unless rows of `source_len` elements can become these of `target_len` elements.
    fn check_against(self, source_len: usize, target: Rows, target_len: usize) -> Result<()> {
        self.check(source_len)?;
        target.check(target_len)?;
        same_length(self.rows, target.rows)?;
        same_length(self.width, target.width)
    }

    fn copy<T>(self, from: End, target: Rows, to: End) -> Copy2d {
        // The stride of a single row leads nowhere, and may be anything.
        let pitch = |rows: Rows| {
            let stride = if rows.rows > 1 { rows.stride } else { rows.width };
            stride * size_of::<T>()
        };
        let (from_pitch, to_pitch) = (pitch(self), pitch(target));
        Copy2d { from, from_pitch, to, to_pitch, row_bytes: self.width * size_of::<T>(), rows: self.rows }
    }

    fn is_empty(self) -> bool {
        self.rows == 0 || self.width == 0
    }
}

impl Stream {
    /// As [`upload`](Self::upload), of rows to rows.
    ///
    /// # Errors
    /// [`Error::Rows`] if rows do not fit their memory, and as `upload`.
    #[track_caller]
    pub fn upload_rows<'a, S: Source>(
        &self,
        source: S,
        source_rows: Rows,
        target: impl Into<DeviceViewMut<'a, S::Element>>,
        target_rows: Rows,
    ) -> Result<Ticket<S>, Refused<S>>
    where
        S::Element: 'a,
    {
        let _here = sanitize::here();
        let target = target.into();
        let elements = source.elements();
        let fits = source_rows.check_against(elements.len(), target_rows, target.len());
        if let Err(error) = fits.and_then(|()| target.check_beside(self.core())) {
            return Err(Refused::before(error, source));
        }
        if source_rows.is_empty() {
            return Ok(Ticket::over(source));
        }
        let (len_bytes, from) = (size_of_val(elements), End::Host(elements.as_ptr().cast_mut().cast()));
        let source = InUse::new(source, len_bytes);
        self.core().note_upload();
        let copy = source_rows.copy::<S::Element>(from, target_rows, End::Device(target.address()));
        let queued = self.core().enqueue(&[target.access()], |driver, stream| {
            // SAFETY: rows are inside both ends (checked); the rest as in `upload`. The source is only read.
            unsafe { driver.copy_2d(stream, &copy) }
        });
        Ticket::new(self.core(), queued, source)
    }

    /// As [`download`](Self::download), of rows to rows. What lies between the target's rows means nothing.
    ///
    /// # Errors
    /// [`Error::Rows`] if rows do not fit their memory, and as `download`.
    #[track_caller]
    pub fn download_rows<'a, T: Element>(
        &self,
        source: impl Into<DeviceView<'a, T>>,
        source_rows: Rows,
        target: Uninit<T>,
        target_rows: Rows,
    ) -> Result<Ticket<Pinned<T>>, Refused<Uninit<T>>> {
        let _here = sanitize::here();
        let source = source.into();
        let fits = source_rows.check_against(source.len(), target_rows, target.len());
        if let Err(error) = fits.and_then(|()| source.check_beside(self.core())) {
            return Err(Refused::before(error, target));
        }
        if source_rows.is_empty() {
            return Ok(Ticket::over(target.into_pinned()));
        }
        let len_bytes = target.len() * size_of::<T>();
        let mut target = target.into_pinned();
        let to = End::Host(target.start_mut().cast()); // before it is in use: a watcher may panic
        let target = InUse::new(target, len_bytes);
        super::note_download(self.core());
        let queued = self.core().enqueue(&[source.access()], |driver, stream| {
            let copy = source_rows.copy::<T>(End::Device(source.address()), target_rows, to);
            // SAFETY: rows are inside both ends (checked); the rest as in `download`.
            unsafe { driver.copy_2d(stream, &copy) }
        });
        Ticket::new(self.core(), queued, target).map_err(|refused| refused.map(Pinned::into_uninit))
    }

    /// As [`copy`](Self::copy), of rows to rows, on one device.
    ///
    /// # Errors
    /// [`Error::Rows`] if rows do not fit their memory; [`Error::OtherDevice`], [`Error::Driver`].
    pub fn copy_rows<'a, 'b, T: Element>(
        &self,
        source: impl Into<DeviceView<'a, T>>,
        source_rows: Rows,
        target: impl Into<DeviceViewMut<'b, T>>,
        target_rows: Rows,
    ) -> Result<()> {
        let (source, target) = (source.into(), target.into());
        source_rows.check_against(source.len(), target_rows, target.len())?;
        source.check_beside(self.core())?;
        target.check_beside(self.core())?;
        if source_rows.is_empty() {
            return Ok(());
        }
        let (from, to) = (End::Device(source.address()), End::Device(target.address()));
        let copy = source_rows.copy::<T>(from, target_rows, to);
        let queued = self.core().enqueue_on_device(&[source.access(), target.access()], |driver, stream| {
            // SAFETY: rows are inside both ends (checked), and `enqueue` orders both.
            unsafe { driver.copy_2d(stream, &copy) }
        });
        Ok(queued?)
    }
}
