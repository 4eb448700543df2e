//! Copies of strided rows: parts of matrices, and images inside larger ones.

use super::check_same_length;
use crate::{
    buffer::{DeviceBuffer, DeviceView, DeviceViewMut},
    device_copy::DeviceCopy,
    driver::{Copy2d, End},
    error::{Error, Result},
    stream::Stream,
};

/// The layout of equally long rows at a fixed stride.
///
/// # Examples
/// Download the left half of a 3 × 4 matrix:
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
    /// The number of rows.
    pub rows: usize,
    /// The number of elements in a row.
    pub width: usize,
    /// The number of elements from the start of one row to the start of the next; at least `width`.
    pub stride: usize,
}

impl RowLayout {
    /// Contiguous rows.
    pub fn dense(rows: usize, width: usize) -> Self {
        Self { rows, width, stride: width }
    }

    fn check(self, len: usize) -> Result<()> {
        let Self { rows, width, stride } = self;
        let needed = if rows == 0 { 0 } else { stride.saturating_mul(rows - 1).saturating_add(width) };
        let fits = needed <= len && (width <= stride || rows <= 1);
        if fits {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "{rows} rows of {width} elements with stride {stride} need {needed} elements, but there are {len}; the stride \
             must be at least the width"
        )))
    }

    /// An error unless the shapes are equal, and these rows and `target` fit in `source_len` and `target_len` elements.
    pub(super) fn check_against(self, source_len: usize, target: RowLayout, target_len: usize) -> Result<()> {
        self.check(source_len)?;
        target.check(target_len)?;
        check_same_length(self.rows, target.rows)?;
        check_same_length(self.width, target.width)
    }

    pub(super) fn copy<T>(self, from: End, target: RowLayout, to: End) -> Copy2d {
        // The stride of a single row is unused and was not checked.
        let pitch = |rows: RowLayout| size_of::<T>() * if rows.rows > 1 { rows.stride } else { rows.width };
        let (from_pitch, to_pitch) = (pitch(self), pitch(target));
        Copy2d { from, from_pitch, to, to_pitch, row_bytes: self.width * size_of::<T>(), rows: self.rows }
    }

    pub(super) fn is_empty(self) -> bool {
        self.rows == 0 || self.width == 0
    }
}

/// A view, of which all elements or some rows are copied; see [`DeviceView::in_rows`].
#[derive(Debug)]
pub struct InRows<V> {
    pub(super) view: V,
    pub(super) rows: Option<[RowLayout; 2]>, // layouts of the view and of the host memory
}

impl<'a, T: DeviceCopy> DeviceView<'a, T> {
    /// Selects rows of this view, which [`Stream::download`] copies to rows of host memory. The elements between the
    /// rows on the host have arbitrary values after that.
    pub fn in_rows(self, rows: RowLayout, on_host: RowLayout) -> InRows<Self> {
        InRows { view: self, rows: Some([rows, on_host]) }
    }
}

impl<'a, T: DeviceCopy> DeviceViewMut<'a, T> {
    /// Selects rows of this view, to which [`Stream::upload`] copies rows of host memory.
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
    /// Like [`copy`](Self::copy), but copies rows to rows, on this stream's device only.
    ///
    /// # Errors
    /// [`Error::Argument`] if rows exceed their memory, or if the layouts differ in rows or width;
    /// [`Error::OtherDevice`], [`Error::Driver`].
    pub fn copy_rows<'a, 'b, T: DeviceCopy>(
        &self,
        source: impl Into<DeviceView<'a, T>>,
        source_rows: RowLayout,
        target: impl Into<DeviceViewMut<'b, T>>,
        target_rows: RowLayout,
    ) -> Result<()> {
        let (source, target) = (source.into(), target.into());
        source_rows.check_against(source.len(), target_rows, target.len())?;
        source.check_same_device(self.core())?;
        target.check_same_device(self.core())?;
        if source_rows.is_empty() {
            return Ok(());
        }
        let (from, to) = (End::Device(source.address()), End::Device(target.address()));
        let copy = source_rows.copy::<T>(from, target_rows, to);
        let queued = self.core().enqueue_on_device(&[source.access(), target.access()], |driver, stream| {
            // SAFETY: the rows are inside the source and the target (checked), and `enqueue` orders both.
            unsafe { driver.copy_2d(stream, &copy) }
        });
        Ok(queued?)
    }
}
