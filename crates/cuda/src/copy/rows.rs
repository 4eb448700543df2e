//! Copies of rows that do not follow each other: parts of matrices, images inside larger ones.

use super::same_length;
use crate::{
    buffer::{DeviceBuffer, DeviceView, DeviceViewMut},
    device_copy::DeviceCopy,
    driver::{Copy2d, End},
    error::{Error, Result},
    stream::Stream,
};

/// Rows inside a longer stretch of elements.
///
/// # Examples
/// The left half of a 3 × 4 matrix, as a matrix of its own:
/// ```
/// use pagelock_cuda::{Device, RowLayout, Uninit, software::Config};
///
/// let device = Device::software(Config::default())?;
/// let stream = device.stream()?;
/// let matrix = stream.allocate_from(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])?;
/// let left = RowLayout { rows: 3, width: 2, stride: 4 };
/// let ticket = stream.download(matrix.view().in_rows(left, RowLayout::dense(3, 2)), Uninit::<i32>::new(&device, 6)?)?;
/// assert_eq!(*ticket.wait()?, [1, 2, 5, 6, 9, 10]);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// How many rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Elements from one row's start to the next row's; at least `width`.
    pub stride: usize,
}

impl RowLayout {
    /// Rows that follow each other.
    pub fn dense(rows: usize, width: usize) -> Self {
        Self { rows, width, stride: width }
    }

    /// An error unless the rows lie apart from each other inside `len` elements.
    fn check(self, len: usize) -> Result<()> {
        let Self { rows, width, stride } = self;
        let needed = if rows == 0 { 0 } else { stride.saturating_mul(rows - 1).saturating_add(width) };
        let fits = needed <= len && (width <= stride || rows <= 1);
        if fits { Ok(()) } else { Err(Error::Rows { rows, width, stride, needed, len }) }
    }

    /// An error unless rows of `source_len` elements can become these of `target_len` elements.
    pub(super) fn check_against(self, source_len: usize, target: RowLayout, target_len: usize) -> Result<()> {
        self.check(source_len)?;
        target.check(target_len)?;
        same_length(self.rows, target.rows)?;
        same_length(self.width, target.width)
    }

    pub(super) fn copy<T>(self, from: End, target: RowLayout, to: End) -> Copy2d {
        // The stride of a single row leads nowhere, and may be anything.
        let pitch = |rows: RowLayout| size_of::<T>() * if rows.rows > 1 { rows.stride } else { rows.width };
        let (from_pitch, to_pitch) = (pitch(self), pitch(target));
        Copy2d { from, from_pitch, to, to_pitch, row_bytes: self.width * size_of::<T>(), rows: self.rows }
    }

    pub(super) fn is_empty(self) -> bool {
        self.rows == 0 || self.width == 0
    }
}

/// A view that is copied whole, or rows of it; see [`DeviceView::in_rows`].
#[derive(Debug)]
pub struct InRows<V> {
    pub(super) view: V,
    pub(super) rows: Option<[RowLayout; 2]>, // of the view, and of the memory on the host
}

impl<'a, T: DeviceCopy> DeviceView<'a, T> {
    /// Rows of this view, to be copied to rows of memory on the host by [`Stream::download`]. What lies between the rows on the
    /// host means nothing then.
    pub fn in_rows(self, rows: RowLayout, on_host: RowLayout) -> InRows<Self> {
        InRows { view: self, rows: Some([rows, on_host]) }
    }
}

impl<'a, T: DeviceCopy> DeviceViewMut<'a, T> {
    /// Rows of this view, to be copied from rows of memory on the host by [`Stream::upload`].
    pub fn in_rows(self, rows: RowLayout, on_host: RowLayout) -> InRows<Self> {
        InRows { view: self, rows: Some([rows, on_host]) }
    }
}

impl<V> From<V> for InRows<V> {
    fn from(view: V) -> Self {
        Self { view, rows: None }
    }
}

impl<'a, T: DeviceCopy> From<&'a DeviceBuffer<T>> for InRows<DeviceView<'a, T>> {
    fn from(buffer: &'a DeviceBuffer<T>) -> Self {
        buffer.view().into()
    }
}

impl<'a, T: DeviceCopy> From<&'a mut DeviceBuffer<T>> for InRows<DeviceViewMut<'a, T>> {
    fn from(buffer: &'a mut DeviceBuffer<T>) -> Self {
        buffer.view_mut().into()
    }
}

impl Stream {
    /// As [`copy`](Self::copy), of rows to rows, on one device.
    ///
    /// # Errors
    /// [`Error::Rows`] if rows do not fit their memory; [`Error::OtherDevice`], [`Error::Driver`].
    pub fn copy_rows<'a, 'b, T: DeviceCopy>(
        &self,
        source: impl Into<DeviceView<'a, T>>,
        source_rows: RowLayout,
        target: impl Into<DeviceViewMut<'b, T>>,
        target_rows: RowLayout,
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
