//! One block as several buffers.
//!
//! Cutting one block after another into parts, as a loader does with its batches, allocates nothing: the reference
//! counter of a whole is reused once the whole is dropped.
//!
//! Invariants: the parts of a whole do not overlap, and nothing else refers to the whole, which is dropped after the
//! last part. A free counter has no parts. The counter identifies the whole: a part that is cut again is a new
//! whole, even if it begins at the same address.

use std::{
    cell::RefCell,
    mem,
    ops::{Deref, Range},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    ptr::NonNull,
    sync::{Arc, Mutex},
};

use super::HostBuffer;
use crate::{ALIGN, Block, ByteSize, Error, MemoryKind, Result, sync::lock_std};

/// Identifies a part: its whole, and its index there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PartId {
    whole: usize, // the address of its counter, which no other whole has while the part lives
    index: usize,
}

/// A range of a buffer's bytes that belongs to no other part.
struct Part {
    whole: Whole,
    start: usize,
    len_bytes: usize,
}

/// The whole buffer, dropped with the last of its parts.
#[derive(Clone)]
struct Whole(Arc<Option<HostBuffer>>); // none only in a free counter

/// Counters of dropped wholes, for reuse.
static FREE_COUNTERS: Mutex<Vec<Arc<Option<HostBuffer>>>> = Mutex::new(Vec::new());

/// How many free counters are kept at most.
const MAX_FREE_COUNTERS: usize = 256;

impl Whole {
    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn of(whole: HostBuffer) -> Self {
        let mut counter = lock_std(&FREE_COUNTERS).pop().unwrap_or_default();
        match Arc::get_mut(&mut counter) {
            Some(slot) => *slot = Some(whole),
            None => counter = Arc::new(Some(whole)),
        }
        Self(counter)
    }
}

impl Deref for Whole {
    type Target = HostBuffer;

    fn deref(&self) -> &HostBuffer {
        self.0.as_ref().as_ref().unwrap_or_else(|| unreachable!("the whole is dropped after its last part"))
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let Some(slot) = Arc::get_mut(&mut self.0) else { return };
        slot.take().into_iter().for_each(drop_in_turn); // before the lock is taken: its resource may run any code
        let mut free = lock_std(&FREE_COUNTERS);
        if free.len() < MAX_FREE_COUNTERS {
            free.push(self.0.clone()); // `self.0` is dropped next, so `free` has the only reference
        }
    }
}

/// Drops a whole, and then those wholes of which it was the last part. One after the other, since a part of a part of a
/// part would take much stack.
fn drop_in_turn(whole: HostBuffer) {
    thread_local! {
        // Wholes to be dropped after the one that this thread is dropping; none if it is dropping none.
        static LATER: RefCell<Option<Vec<HostBuffer>>> = const { RefCell::new(None) };
    }
    let (mut next, mut result) = (Some(whole), Ok(()));
    // At the end of a thread the list may be gone.
    let _ = LATER.try_with(|later| match &mut *later.borrow_mut() {
        Some(later) => later.extend(next.take()),
        later => *later = Some(Vec::new()),
    });
    while let Some(whole) = next {
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(whole))); // a panic keeps no other from being dropped
        if result.is_ok() {
            result = dropped
        } else {
            mem::forget(dropped)
        }
        let last = |later: &RefCell<Option<Vec<_>>>| {
            let mut later = later.borrow_mut();
            let last = later.as_mut().and_then(Vec::pop);
            *later = later.take().filter(|_| last.is_some());
            last
        };
        next = LATER.try_with(last).ok().flatten();
    }
    result.unwrap_or_else(|panic| resume_unwind(panic));
}

// SAFETY: the bytes are those of the whole's block, which lives as long as `whole`, at a multiple of `ALIGN` from its
// start; no other part contains them, and only parts can reach the whole (both established in `split_into`).
unsafe impl Block for Part {
    fn ptr(&self) -> NonNull<u8> {
        let start = self.whole.ptr.as_ptr().wrapping_add(self.start);
        NonNull::new(start).unwrap_or_else(|| unreachable!("a block does not wrap around the address space"))
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn kind(&self) -> MemoryKind {
        self.whole.kind
    }
}

impl HostBuffer {
    /// Cuts the buffer into parts, each a buffer of its own. The bytes between the parts are unused. The memory is
    /// freed with the last part. Pending device accesses to the buffer are pending for every part.
    ///
    /// # Errors
    /// [`Error::Argument`] if a range does not start at a multiple of [`ALIGN`](crate::ALIGN), ends beyond the buffer,
    /// or does not come after the range before it.
    ///
    /// # Examples
    /// ```
    /// use pagelock_memory::{HostBuffer, default_host};
    ///
    /// let buffer = HostBuffer::allocate(default_host(), 1_000)?;
    /// let mut parts = buffer.split([0..10, 64..1_000])?;
    /// parts[0].bytes_mut()?.fill(7);
    /// assert_eq!((parts[0].len_bytes(), parts[1].len_bytes()), (10, 936));
    /// assert!(parts[0].is_followed_by(&parts[1]));
    /// # Ok::<(), pagelock_memory::Error>(())
    /// ```
    pub fn split(self, ranges: impl IntoIterator<Item = Range<usize>>) -> Result<Vec<HostBuffer>> {
        let mut parts = Vec::new();
        self.split_into(ranges, &mut parts)?;
        Ok(parts)
    }

    /// Like [`split`](Self::split), but appends the parts to `parts`.
    ///
    /// # Errors
    /// As `split`; `parts` is then unchanged.
    ///
    /// # Examples
    /// ```
    /// use pagelock_memory::{HostBuffer, default_host};
    ///
    /// let mut parts = Vec::with_capacity(2);
    /// HostBuffer::allocate(default_host(), 1_000)?.split_into([0..10, 64..1_000], &mut parts)?;
    /// assert_eq!(parts[1].len_bytes(), 936);
    /// # Ok::<(), pagelock_memory::Error>(())
    /// ```
    pub fn split_into(self, ranges: impl IntoIterator<Item = Range<usize>>, parts: &mut Vec<HostBuffer>) -> Result<()> {
        let whole = Whole::of(self);
        let (n_before, mut end) = (parts.len(), 0);
        for (index, range) in ranges.into_iter().enumerate() {
            let follows = range.start >= end && range.start.is_multiple_of(ALIGN);
            if !follows || range.start > range.end || range.end > whole.len_bytes {
                parts.truncate(n_before);
                let len = ByteSize(whole.len_bytes as u64);
                return Err(Error::Argument(format!(
                    "cannot cut {range:?} out of a buffer of {len}: parts start at multiples of {ALIGN}, come one after the \
                     other (the last one ended at {end}), and end in the buffer"
                )));
            }
            end = range.end;
            let part = Part { whole: whole.clone(), start: range.start, len_bytes: range.len() };
            let mut part = HostBuffer::from_block(part);
            part.pending = whole.pending.fork();
            part.part_id = Some(PartId { whole: whole.identity(), index });
            parts.push(part);
        }
        if parts.len() > n_before {
            // Now every part waits for these accesses. The whole must not: a device may keep it in its list of dropped
            // parts, and would then be kept alive by its own completions.
            whole.pending.forget();
        }
        Ok(())
    }

    /// Whether `next` is the next part of the same whole. A device can then copy both at once, with the unused bytes
    /// between them.
    pub fn is_followed_by(&self, next: &HostBuffer) -> bool {
        let next_id = self.part_id.map(|part| PartId { index: part.index + 1, ..part });
        next_id.is_some() && next_id == next.part_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Limited, Pageable};

    fn whole(len_bytes: usize) -> HostBuffer {
        HostBuffer::allocate(&Pageable, len_bytes).unwrap()
    }

    #[test]
    fn parts_are_apart_and_the_memory_goes_with_the_last() {
        let budget = Budget::new("parts", 1_000);
        let memory = Limited::new(Pageable, budget.clone());
        let buffer = HostBuffer::allocate(&memory, 300).unwrap();
        let mut parts = buffer.split([0..64, 64..65, 128..300]).unwrap();
        for (value, part) in parts.iter_mut().enumerate() {
            part.bytes_mut().unwrap().fill(value as u8 + 1);
        }
        assert_eq!(
            parts.iter().map(|part| (part.len_bytes(), part.bytes()[0])).collect::<Vec<_>>(),
            [(64, 1), (1, 2), (172, 3)]
        );
        let last = parts.pop();
        drop(parts);
        assert_eq!(budget.used().0, 300);
        drop(last);
        assert_eq!(budget.used().0, 0);
    }

    #[test]
    fn ranges_that_are_no_parts_are_refused() {
        for ranges in [&[(1, 2)][..], &[(0, 65), (64, 70)], &[(64, 128), (0, 10)], &[(0, 301)], &[(64, 10)]] {
            let error = whole(300).split(ranges.iter().map(|&(start, end)| start..end)).unwrap_err().to_string();
            assert!(error.contains("a buffer of 300 B"), "{ranges:?}: {error}");
        }
        assert_eq!(
            whole(300).split([0..65, 64..70]).unwrap_err().to_string(),
            "cannot cut 64..70 out of a buffer of 300 B: parts start at multiples of 64, come one after the other (the last \
             one ended at 65), and end in the buffer"
        );
    }

    #[test]
    fn parts_behind_others_leave_those_alone_if_they_cannot_be_cut() {
        let mut parts = vec![whole(10)];
        assert!(whole(300).split_into([0..64, 65..70], &mut parts).is_err());
        assert_eq!(parts.len(), 1);
        whole(300).split_into([0..64, 64..70], &mut parts).unwrap();
        assert_eq!(parts.iter().map(HostBuffer::len_bytes).collect::<Vec<_>>(), [10, 64, 6]);
    }

    #[test]
    fn wholes_that_many_threads_cut_and_drop_are_all_given_back() {
        let budget = Budget::new("parts", 1 << 20);
        let memory = Limited::new(Pageable, budget.clone());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let parts =
                            HostBuffer::allocate(&memory, 300).unwrap().split([0..64, 64..128, 128..300]).unwrap();
                        std::thread::scope(|scope| parts.into_iter().for_each(|part| drop(scope.spawn(|| drop(part)))));
                    }
                });
            }
        });
        assert_eq!(budget.used(), ByteSize(0));
    }

    #[test]
    fn only_the_next_part_of_the_same_whole_follows() {
        let (one, other) =
            (whole(300).split([0..10, 64..64, 64..70]).unwrap(), whole(300).split([0..10, 64..70]).unwrap());
        assert!(one[0].is_followed_by(&one[1]) && one[1].is_followed_by(&one[2]));
        assert!(!one[0].is_followed_by(&one[2]) && !one[0].is_followed_by(&other[1]));
        assert!(!whole(10).is_followed_by(&whole(10)));
    }

    #[test]
    fn parts_of_a_part_follow_no_part_of_another_whole() {
        let mut parts = whole(1_000).split([0..256, 256..512, 512..1_000]).unwrap();
        let inner = parts.remove(0).split([0..64, 64..128, 128..256]).unwrap();
        let innermost = parts.remove(0).split([0..64, 64..128, 128..256]).unwrap();
        for (one, others) in [(&inner, &innermost), (&innermost, &inner), (&inner, &parts), (&innermost, &parts)] {
            for (part, other) in one.iter().flat_map(|part| others.iter().map(move |other| (part, other))) {
                assert!(!part.is_followed_by(other) && !other.is_followed_by(part));
            }
        }
        assert!(inner[0].is_followed_by(&inner[1]) && innermost[1].is_followed_by(&innermost[2]));
    }
}
