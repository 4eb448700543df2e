//! One allocation as several buffers, and several of them copied as one.
//!
//! Invariant: the parts of a whole do not overlap, and nobody else has the whole: it is only kept. Its block goes back to
//! the pool after its home stream was ordered after everything that was queued with any part; if that cannot be said of a
//! part, the whole is leaked.

use std::{ops::Range, sync::Arc};

use super::{Allocation, DeviceBuffer, Memory};
use crate::{
    element::Element,
    error::{Error, Result},
};

/// Where a buffer lies that is a part of another.
pub(super) struct Part {
    pub(super) whole: Arc<Allocation>,
    start_bytes: usize,
    index: usize,
}

impl Part {
    pub(super) fn address(&self) -> crate::driver::Address {
        self.whole.address().offset(self.start_bytes)
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// Cuts the buffer into parts, each a buffer of its own; what is between them nobody has any more. The memory is given
    /// back with the last part.
    ///
    /// # Errors
    /// [`Error::Range`] if a range reaches beyond the end or does not come after the one before, [`Error::Shared`] if a graph
    /// has the buffer too.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let parts = stream.allocate_from(&[1, 2, 3, 4, 5])?.split([0..2, 3..5])?;
    /// assert_eq!(stream.read(&parts[1])?, [4, 5]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn split(mut self, ranges: impl IntoIterator<Item = Range<usize>>) -> Result<Vec<DeviceBuffer<T>>> {
        let home = self.uses().home().clone();
        let mut capture = home.capture(); // which does not end meanwhile
        match capture.as_mut().filter(|capture| capture.uses(self.uses())) {
            Some(capture) if Arc::strong_count(&self.allocation) == 1 => {
                let parts = self.cut(ranges)?;
                parts.iter().for_each(|part| capture.add_own(&part.allocation));
                Ok(parts)
            }
            None if Arc::get_mut(&mut self.allocation).is_some() => self.cut(ranges),
            _ => Err(Error::Shared),
        }
    }

    fn cut(&self, ranges: impl IntoIterator<Item = Range<usize>>) -> Result<Vec<DeviceBuffer<T>>> {
        let mut end = 0;
        let mut parts = Vec::new();
        for (index, range) in ranges.into_iter().enumerate() {
            if range.start < end || range.start > range.end || range.end > self.len {
                return Err(Error::Range { start: range.start, end: range.end, len: self.len });
            }
            end = range.end;
            let part = Part { whole: self.allocation.clone(), start_bytes: range.start * size_of::<T>(), index };
            let memory = if range.is_empty() { None } else { Some(Memory::Part(part)) };
            let allocation = Arc::new(Allocation::new(memory, self.allocation.uses.fork()));
            parts.push(DeviceBuffer { allocation, len: range.len(), elements: self.elements });
        }
        Ok(parts)
    }

    /// Whether `next` is the part that was cut off behind this one, so that both can be copied at once, with what is
    /// between them, which nobody has.
    pub fn is_followed_by(&self, next: &DeviceBuffer<T>) -> bool {
        match (&self.allocation.memory, &next.allocation.memory) {
            (Some(Memory::Part(this)), Some(Memory::Part(next))) => {
                Arc::ptr_eq(&this.whole, &next.whole) && this.index + 1 == next.index
            }
            _ => false,
        }
    }
}
