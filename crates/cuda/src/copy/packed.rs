//! [`Packed`]: many small slices in one device buffer, moved as one copy.

use std::ops::Range;

use super::staging::{Direction, Staging, Start};
use crate::{
    buffer::DeviceBuffer,
    device_copy::{DeviceCopy, element_size, len_bytes},
    error::{Error, Result},
    host_function, sanitize,
    stream::Stream,
};

/// The alignment in bytes of each slice in its buffer, if the size of an element is a power of two. Each device run in
/// a staging buffer has it too (`staging/plan.rs` says what device runs are).
pub(super) const ALIGN: usize = 256;

/// Many slices in one device buffer, one after the other, returned by [`Stream::upload_packed`].
#[derive(Debug)]
pub struct Packed<T: DeviceCopy> {
    /// All slices, with unused elements between them.
    pub buffer: DeviceBuffer<T>,
    /// The range of each slice in the buffer, ascending.
    pub ranges: Vec<Range<usize>>,
}

impl Stream {
    /// Copies many slices, which may be small, in one copy to one buffer. Returns when the slices may be changed.
    /// [`DeviceBuffer::split`] turns each of them into a buffer.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate) and [`upload_from`](Self::upload_from).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let slices: [&[i32]; 2] = [&[1, 2], &[3]];
    /// let packed = stream.upload_packed(&slices)?;
    /// assert_eq!(stream.read(packed.buffer.slice(packed.ranges[1].clone())?)?, [3]);
    ///
    /// let parts = packed.buffer.split(packed.ranges)?;
    /// let mut targets = [vec![0; 2], vec![0; 1]];
    /// stream.download_each(parts.iter().zip(&mut targets))?;
    /// assert_eq!(targets, slices);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_packed<T: DeviceCopy>(&self, slices: &[&[T]]) -> Result<Packed<T>> {
        let _here = sanitize::here();
        host_function::refuse_inside()?;
        let (ranges, len) = layout::<T>(slices.iter().map(|slice| slice.len()))?;
        let mut buffer = self.allocate::<T>(len)?;
        let staging = Staging::of(self);
        let mut plan = staging.plan(Direction::ToSlots, len * size_of::<T>());
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

/// The ranges of slices of these lengths in one buffer, and the length of the buffer in elements.
pub(super) fn layout<T: DeviceCopy>(lens: impl Iterator<Item = usize>) -> Result<(Vec<Range<usize>>, usize)> {
    len_bytes::<T>(0)?; // checks size and alignment of `T` at compile time
    let step = (ALIGN / size_of::<T>()).max(1);
    let mut end = 0_usize;
    let mut ranges = Vec::with_capacity(lens.size_hint().0);
    for len in lens {
        let start = end.checked_next_multiple_of(step);
        let range = start.and_then(|start| Some(start..start.checked_add(len)?));
        let Some(range) = range else { return Err(Error::too_long(len, element_size::<T>())) };
        end = range.end;
        ranges.push(range);
    }
    Ok((ranges, end))
}
