//! One allocation as several buffers, and several of them copied as one.
//!
//! From its first use on, a part keeps track of its own uses. Until then it is only an address range of the whole, so that a
//! thousand parts cost little more than a thousand numbers.
//!
//! Invariant: the parts of a whole do not overlap, and nobody else has the whole: it is only kept. Its block goes back to
//! the pool after its home stream was ordered after all work that was queued with any part; if that fails for a part, the
//! whole is leaked.

use std::{
    fmt,
    marker::PhantomData,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Allocation, DeviceBuffer, DeviceView, DeviceViewMut, Held, Memory};
use crate::{
    device_copy::DeviceCopy,
    driver::Address,
    error::{Error, Result},
};

/// Where a buffer lies that is a part of another.
pub(super) struct Part {
    whole: Arc<Allocation>,
    pub(super) address: Address,
    cut: PartIndex,
    used: OnceLock<Arc<Allocation>>, // from its first use on
}

/// Which part it is, and how long.
#[derive(Clone, Copy)]
pub(super) struct PartIndex {
    index: usize,
    len_bytes: usize,
}

/// Parts of a buffer. Each can be taken once, and is cut when it is taken; see [`DeviceBuffer::split_when_taken`].
pub struct Parts<T> {
    whole: Arc<Allocation>,
    ranges: Vec<Range<usize>>, // inside the whole, each after the one before
    taken: Vec<AtomicBool>,    // Relaxed: whoever takes a part has nothing to learn from others
    elements: PhantomData<fn() -> T>,
}

impl<T: DeviceCopy> Parts<T> {
    /// One of the parts, unless there are less or it was taken.
    pub fn take(&self, index: usize) -> Option<DeviceBuffer<T>> {
        let is_taken = self.taken.get(index)?.swap(true, Ordering::Relaxed);
        (!is_taken).then(|| part(&self.whole, index, self.ranges[index].clone()))
    }
}

impl<T> fmt::Debug for Parts<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts({:?})", self.ranges)
    }
}

impl Part {
    pub(super) fn whole(&self) -> &Allocation {
        &self.whole
    }

    /// What has the part's uses, which begin with those of the whole.
    pub(super) fn allocation(&self) -> &Arc<Allocation> {
        self.used.get_or_init(|| {
            let memory = Memory::Part(self.whole.clone(), self.cut);
            Arc::new(Allocation::new(Some(memory), self.address, self.whole.uses.fork()))
        })
    }
}

impl DeviceViewMut<'_, u8> {
    /// Whether this is a whole part of a buffer, and `next` the one that was cut off behind it, so that both can be written
    /// at once, with what is between them, which nobody has.
    pub(crate) fn is_followed_by(&self, next: &Self) -> bool {
        are_neighbors((self.allocation(), self.len()), (next.allocation(), next.len()))
    }
}

impl DeviceView<'_, u8> {
    /// The same, to be read.
    pub(crate) fn is_followed_by(&self, next: &Self) -> bool {
        are_neighbors((self.allocation(), self.len()), (next.allocation(), next.len()))
    }

    /// The same, or both are of one buffer, with little between them.
    pub(crate) fn is_closely_followed_by(&self, next: &Self) -> bool {
        const LITTLE: u64 = 256;
        let end = self.address().0 + self.len() as u64;
        let is_one_buffer = Arc::ptr_eq(self.allocation(), next.allocation());
        (is_one_buffer || self.is_followed_by(next)) && (end..=end + LITTLE).contains(&next.address().0)
    }
}

/// Whether both lengths are those of whole parts, and the second part was cut off right behind the first.
fn are_neighbors(this: (&Allocation, usize), next: (&Allocation, usize)) -> bool {
    match (whole_part(this), whole_part(next)) {
        (Some((whole, this)), Some((other, next))) => Arc::ptr_eq(whole, other) && this.index + 1 == next.index,
        _ => false,
    }
}

fn whole_part((allocation, len_bytes): (&Allocation, usize)) -> Option<(&Arc<Allocation>, PartIndex)> {
    match &allocation.memory {
        Some(Memory::Part(whole, cut)) if cut.len_bytes == len_bytes => Some((whole, *cut)),
        _ => None,
    }
}

impl<T: DeviceCopy> DeviceBuffer<T> {
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
        let ranges: Vec<_> = ranges.into_iter().collect(); // the caller's code, before the lock is taken
        let home = self.uses().home().clone();
        let mut capture = home.capture(); // which does not end meanwhile
        match capture.as_mut().filter(|capture| capture.writes(self.allocation()).is_some()) {
            Some(capture) if Arc::strong_count(self.allocation()) == 1 => {
                let parts = self.cut(ranges)?;
                parts.iter().for_each(|part| capture.add_own(part.allocation()));
                Ok(parts)
            }
            None if self.is_nobody_elses() => self.cut(ranges),
            _ => Err(Error::Shared),
        }
    }

    /// Whether no graph has the buffer too, nor could get it.
    fn is_nobody_elses(&mut self) -> bool {
        self.allocation(); // a part has one now
        let allocation = match &mut self.held {
            Held::Whole(allocation) => Some(allocation),
            Held::Part(part) => part.used.get_mut(),
        };
        allocation.is_some_and(|allocation| Arc::get_mut(allocation).is_some())
    }

    /// The same, but each part is cut when it is taken: a thousand parts cost little more than a thousand numbers.
    ///
    /// # Errors
    /// As [`split`](Self::split).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, Packed, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let Packed { buffer, ranges } = stream.upload_packed(&[&[1, 2][..], &[3]])?;
    /// let parts = buffer.split_when_taken(ranges)?;
    /// let second = parts.take(1).unwrap();
    /// assert_eq!(stream.read(&second)?, [3]);
    /// assert!(parts.take(1).is_none(), "it was taken");
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn split_when_taken(self, ranges: Vec<Range<usize>>) -> Result<Parts<T>> {
        self.check_parts(&ranges)?;
        let taken = ranges.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Parts { whole: self.into_whole()?, ranges, taken, elements: PhantomData })
    }

    /// What only parts will use.
    fn into_whole(mut self) -> Result<Arc<Allocation>> {
        let home = self.uses().home().clone();
        let capture = home.capture(); // which does not end meanwhile
        if capture.as_ref().is_some_and(|capture| capture.writes(self.allocation()).is_some())
            || !self.is_nobody_elses()
        {
            return Err(Error::Shared);
        }
        drop(capture);
        Ok(self.allocation().clone())
    }

    fn cut(&self, ranges: Vec<Range<usize>>) -> Result<Vec<DeviceBuffer<T>>> {
        self.check_parts(&ranges)?;
        let whole = self.allocation();
        Ok(ranges.into_iter().enumerate().map(|(index, range)| part(whole, index, range)).collect())
    }

    /// An error unless each range is inside the buffer and comes after the one before.
    fn check_parts(&self, ranges: &[Range<usize>]) -> Result<()> {
        let mut last_end = 0;
        for &Range { start, end } in ranges {
            if start < last_end || start > end || end > self.len {
                return Err(Error::Range { start, end, len: self.len });
            }
            last_end = end;
        }
        Ok(())
    }

    /// Whether `next` is the part that was cut off behind this one, so that both can be copied at once, with what is
    /// between them, which nobody has.
    pub fn is_followed_by(&self, next: &DeviceBuffer<T>) -> bool {
        match (&self.held, &next.held) {
            (Held::Part(this), Held::Part(next)) => {
                Arc::ptr_eq(&this.whole, &next.whole) && this.cut.index + 1 == next.cut.index
            }
            _ => false,
        }
    }
}

/// A part of a whole that has the range.
#[inline]
fn part<T: DeviceCopy>(whole: &Arc<Allocation>, index: usize, range: Range<usize>) -> DeviceBuffer<T> {
    if range.is_empty() {
        return empty_part(whole);
    }
    let address = whole.address.offset(range.start * size_of::<T>());
    let cut = PartIndex { index, len_bytes: range.len() * size_of::<T>() };
    let held = Held::Part(Part { whole: whole.clone(), address, cut, used: OnceLock::new() });
    DeviceBuffer { held, len: range.len(), elements: PhantomData }
}

#[cold]
fn empty_part<T: DeviceCopy>(whole: &Allocation) -> DeviceBuffer<T> {
    let allocation = Arc::new(Allocation::new(None, Address(0), whole.uses.fork()));
    DeviceBuffer { held: Held::Whole(allocation), len: 0, elements: PhantomData }
}
