//! [`Packed`]: many small slices in one device buffer, moved as one copy.

use std::{fmt, ops::Range};

use super::staging::{Staging, Start};
use crate::{
    buffer::{self, DeviceBuffer, DeviceView, DeviceViewMut},
    element::{Element, element_size, len_bytes},
    error::{Error, Result},
    host_function, sanitize,
    stream::Stream,
};

/// Where each slice starts is a multiple of this, for elements whose size is a power of two.
pub(super) const ALIGN: usize = 256;

/// Many slices in one device buffer, one behind the other.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, software::Config};
///
/// let stream = Device::software(Config::default())?.stream()?;
/// let tensors: Vec<Vec<f32>> = (1..=10).map(|len| vec![len as f32; len]).collect();
/// let slices: Vec<&[f32]> = tensors.iter().map(|tensor| &tensor[..]).collect();
/// let packed = stream.upload_packed(&slices)?;
/// assert_eq!(packed.len(), 10);
/// assert_eq!(stream.read(packed.get(2).unwrap())?, [3.0; 3]);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
pub struct Packed<T: Element> {
    buffer: DeviceBuffer<T>,
    ranges: Vec<Range<usize>>, // of elements of the buffer, ascending
}

/// What [`Packed`] becomes when its slices are to be buffers; see [`Packed::split`].
pub struct PackedParts<T: Element>(buffer::Parts<T>);

impl<T: Element> Packed<T> {
    /// How many slices.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// One of the slices, to be read.
    pub fn get(&self, index: usize) -> Option<DeviceView<'_, T>> {
        self.buffer.slice(self.ranges.get(index)?.clone()).ok()
    }

    /// All slices, to be read.
    pub fn views(&self) -> impl ExactSizeIterator<Item = DeviceView<'_, T>> {
        let view = |range: &Range<usize>| self.buffer.slice(range.clone());
        self.ranges
            .iter()
            .map(move |range| view(range).unwrap_or_else(|_| unreachable!("slices are inside their buffer")))
    }

    /// One of the slices, to be written.
    pub fn get_mut(&mut self, index: usize) -> Option<DeviceViewMut<'_, T>> {
        self.buffer.slice_mut(self.ranges.get(index)?.clone()).ok()
    }

    /// Where each slice is in [`buffer`](Self::buffer).
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// All of them, with unused elements in between.
    pub fn buffer(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }

    /// The buffer, and where each slice is in it.
    pub fn into_parts(self) -> (DeviceBuffer<T>, Vec<Range<usize>>) {
        (self.buffer, self.ranges)
    }

    /// A buffer for each slice, cut when somebody takes it; what is between them nobody has any more. The memory is given back
    /// with the last of them, and what this returns.
    ///
    /// # Errors
    /// [`Error::Shared`] if a graph has the buffer too.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let parts = stream.upload_packed(&[&[1, 2][..], &[3]])?.split()?;
    /// let second = parts.take(1).unwrap();
    /// assert_eq!(stream.read(&second)?, [3]);
    /// assert!(parts.take(1).is_none(), "somebody has it");
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn split(self) -> Result<PackedParts<T>> {
        self.buffer.split_when_taken(self.ranges).map(PackedParts)
    }
}

impl<T: Element> PackedParts<T> {
    /// One of the slices, unless there are less or it was taken.
    pub fn take(&self, index: usize) -> Option<DeviceBuffer<T>> {
        self.0.take(index)
    }
}

impl<T: Element> fmt::Debug for PackedParts<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedParts({} slices)", self.0.len())
    }
}

impl<T: Element> fmt::Debug for Packed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed({} slices in {:?})", self.ranges.len(), self.buffer)
    }
}

impl Stream {
    /// Copies many slices, small ones above all, as one; returns when they may be changed. They come back with
    /// [`download_each`](Self::download_each).
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate) and [`upload_from`](Self::upload_from).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let packed = stream.upload_packed(&[&[1, 2][..], &[3]])?;
    /// let mut targets = [vec![0; 2], vec![0; 1]];
    /// stream.download_each(packed.views().zip(&mut targets))?;
    /// assert_eq!(targets, [vec![1, 2], vec![3]]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_packed<T: Element>(&self, slices: &[&[T]]) -> Result<Packed<T>> {
        let _here = sanitize::here();
        host_function::refuse_inside()?;
        let (ranges, len) = layout::<T>(slices.iter().map(|slice| slice.len()))?;
        let mut buffer = self.allocate::<T>(len)?;
        let staging = Staging::of(self);
        let mut plan = staging.plan_upload();
        plan.reserve(slices.len() + 1);
        for (slice, range) in slices.iter().zip(&ranges) {
            let start = Start::Memory(slice.as_ptr().cast::<u8>().cast_mut());
            let address = buffer.address().offset(range.start * size_of::<T>());
            plan.add(0, start, address, size_of_val(*slice), range.start > 0);
        }
        staging.upload(self.core(), plan, &[buffer.view_mut().access()])?;
        Ok(Packed { buffer, ranges })
    }
}

/// Where slices of these lengths go, and how many elements that takes.
pub(super) fn layout<T: Element>(lens: impl Iterator<Item = usize>) -> Result<(Vec<Range<usize>>, usize)> {
    len_bytes::<T>(0)?; // the element's own conditions, when this is compiled
    let step = (ALIGN / size_of::<T>()).max(1);
    let mut end = 0_usize;
    let mut ranges = Vec::with_capacity(lens.size_hint().0);
    for len in lens {
        let start = end.checked_next_multiple_of(step);
        let placed = start.and_then(|start| Some(start..start.checked_add(len)?));
        let Some(range) = placed else { return Err(Error::TooLong { len, element: element_size::<T>() }) };
        end = range.end;
        ranges.push(range);
    }
    Ok((ranges, end))
}
