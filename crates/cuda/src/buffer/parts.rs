//! Splits one allocation into several buffers, and tells which of them can be copied as one.
//!
//! A part keeps track of its uses from its first use on. Until then it is only an address range of the whole, so that
//! a thousand parts cost little more than a thousand numbers.
//!
//! Invariant: the parts of a whole do not overlap, and the whole is used only through its parts. Its block returns to
//! the pool after its home stream was ordered after all work that uses any part. If that fails for a part, the whole
//! is leaked.

use std::{
    fmt,
    marker::PhantomData,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Allocation, DeviceBuffer, DeviceView, DeviceViewMut, Memory, Storage};
use crate::{
    device_copy::DeviceCopy,
    driver::Address,
    error::{Error, Result},
};

/// The memory of a buffer that is a part of another.
pub(super) struct Part {
    whole: Arc<Allocation>,
    pub(super) address: Address,
    info: PartInfo,
    allocation: OnceLock<Arc<Allocation>>, // set at the first use
}

/// The index and the length of a part.
#[derive(Clone, Copy)]
pub(super) struct PartInfo {
    index: usize,
    len_bytes: usize,
}

/// Parts of a buffer. Each can be taken once, and is cut when it is taken; see [`DeviceBuffer::split_when_taken`].
pub struct Parts<T> {
    whole: Arc<Allocation>,
    ranges: Vec<Range<usize>>, // inside the whole, sorted, without overlap
    taken: Vec<AtomicBool>,    // Relaxed: taking a part reads nothing that other threads wrote
    elements: PhantomData<fn() -> T>,
}

impl<T: DeviceCopy> Parts<T> {
    /// Takes part `index`; `None` if it was taken already or there is no such part.
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

    /// The allocation that tracks the part's uses, which begin as a copy of those of the whole.
    pub(super) fn allocation(&self) -> &Arc<Allocation> {
        self.allocation.get_or_init(|| {
            let memory = Memory::Part(self.whole.clone(), self.info);
            Arc::new(Allocation::new(Some(memory), self.address, self.whole.uses.fork()))
        })
    }
}

impl DeviceViewMut<'_, u8> {
    /// Whether this view is a whole part of a buffer and `next` is the whole part after it. Then one copy can write
    /// both, including the gap between them, which belongs to no buffer.
    pub(crate) fn is_followed_by(&self, next: &Self) -> bool {
        are_neighbors((self.allocation(), self.len()), (next.allocation(), next.len()))
    }
}

impl DeviceView<'_, u8> {
    /// Like [`DeviceViewMut::is_followed_by`], for views that are read.
    pub(crate) fn is_followed_by(&self, next: &Self) -> bool {
        are_neighbors((self.allocation(), self.len()), (next.allocation(), next.len()))
    }

    /// Whether one copy can read this view and `next`: neighboring parts with a gap of at most 256 bytes, which belongs to
    /// no buffer, or adjacent views of one buffer. A gap inside a buffer may belong to another view.
    pub(crate) fn is_closely_followed_by(&self, next: &Self) -> bool {
        const MAX_GAP: u64 = 256;
        let end = self.address().0 + self.len() as u64;
        let is_one_buffer = Arc::ptr_eq(self.allocation(), next.allocation());
        let max_gap = if is_one_buffer { 0 } else { MAX_GAP };
        (is_one_buffer || self.is_followed_by(next)) && (end..=end + max_gap).contains(&next.address().0)
    }
}

/// Whether both lengths are those of whole parts of one buffer, and the second part follows the first.
fn are_neighbors(this: (&Allocation, usize), next: (&Allocation, usize)) -> bool {
    match (whole_part(this), whole_part(next)) {
        (Some((whole, this)), Some((other, next))) => Arc::ptr_eq(whole, other) && this.index + 1 == next.index,
        _ => false,
    }
}

fn whole_part((allocation, len_bytes): (&Allocation, usize)) -> Option<(&Arc<Allocation>, PartInfo)> {
    match &allocation.memory {
        Some(Memory::Part(whole, info)) if info.len_bytes == len_bytes => Some((whole, *info)),
        _ => None,
    }
}

impl<T: DeviceCopy> DeviceBuffer<T> {
    /// Cuts the buffer into parts, each a buffer of its own. Elements between the ranges belong to no buffer any
    /// more. The memory is freed with the last part.
    ///
    /// # Errors
    /// [`Error::Argument`] if a range ends beyond the buffer, or begins after its own end or before the end of the range
    /// before it; [`Error::Shared`] if a graph shares the buffer.
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
        let ranges: Vec<_> = ranges.into_iter().collect(); // runs user code, so before the lock is taken
        let home = self.uses().home().clone();
        let mut capture = home.capture(); // locked, so that the capture cannot end meanwhile
        match capture.as_mut().filter(|capture| capture.writes(self.allocation()).is_some()) {
            Some(capture) if Arc::strong_count(self.allocation()) == 1 => {
                let parts = self.cut(ranges)?;
                parts.iter().for_each(|part| capture.add_own(part.allocation()));
                Ok(parts)
            }
            None if self.is_exclusive() => self.cut(ranges),
            _ => Err(Error::Shared),
        }
    }

    /// Whether no graph shares the buffer or can begin to share it.
    fn is_exclusive(&mut self) -> bool {
        self.allocation(); // creates the allocation of a part
        let allocation = match &mut self.storage {
            Storage::Whole(allocation) => Some(allocation),
            Storage::Part(part) => part.allocation.get_mut(),
        };
        allocation.is_some_and(|allocation| Arc::get_mut(allocation).is_some())
    }

    /// Like [`split`](Self::split), but each part is cut when it is taken: a thousand parts cost little more than a
    /// thousand numbers.
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

    /// The allocation of this buffer, which is used only through its parts from now on.
    fn into_whole(mut self) -> Result<Arc<Allocation>> {
        let home = self.uses().home().clone();
        let capture = home.capture(); // locked, so that the capture cannot end meanwhile
        if capture.as_ref().is_some_and(|capture| capture.writes(self.allocation()).is_some()) || !self.is_exclusive() {
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

    /// An error unless each range is inside the buffer and comes after the range before it.
    fn check_parts(&self, ranges: &[Range<usize>]) -> Result<()> {
        let mut last_end = 0;
        for &Range { start, end } in ranges {
            if start < last_end || start > end || end > self.len {
                return Err(Error::range(start, end, self.len));
            }
            last_end = end;
        }
        Ok(())
    }

    /// Whether `next` is the part that follows this one in the buffer of both. Then one copy can move both, including
    /// the gap between them, which belongs to no buffer.
    pub fn is_followed_by(&self, next: &DeviceBuffer<T>) -> bool {
        match (&self.storage, &next.storage) {
            (Storage::Part(this), Storage::Part(next)) => {
                Arc::ptr_eq(&this.whole, &next.whole) && this.info.index + 1 == next.info.index
            }
            _ => false,
        }
    }
}

/// Part `index` of the whole, which covers `range`.
#[inline]
fn part<T: DeviceCopy>(whole: &Arc<Allocation>, index: usize, range: Range<usize>) -> DeviceBuffer<T> {
    if range.is_empty() {
        return empty_part(whole);
    }
    let address = whole.address.offset(range.start * size_of::<T>());
    let info = PartInfo { index, len_bytes: range.len() * size_of::<T>() };
    let storage = Storage::Part(Part { whole: whole.clone(), address, info, allocation: OnceLock::new() });
    DeviceBuffer { storage, len: range.len(), elements: PhantomData }
}

#[cold]
fn empty_part<T: DeviceCopy>(whole: &Allocation) -> DeviceBuffer<T> {
    let allocation = Arc::new(Allocation::new(None, Address(0), whole.uses.fork()));
    DeviceBuffer { storage: Storage::Whole(allocation), len: 0, elements: PhantomData }
}
