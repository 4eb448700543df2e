//! [`SliceRange`]: what [`Tensor::slice`](crate::Tensor::slice) takes as a range.

use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::inlined::Array;

/// A range of indices in which negative bounds count from the end, as in Python.
///
/// `[1, -1]` is Python's `1:-1`. (Rust's `1..-1` means the same here, but Clippy takes it for an empty range.)
pub trait SliceRange: Sealed {
    /// The first index and the one after the last, clamped to `0..=size`.
    #[doc(hidden)]
    fn within(self, size: usize) -> [isize; 2];
}

pub trait Sealed {}

impl Sealed for [isize; 2] {}

impl SliceRange for [isize; 2] {
    fn within(self, size: usize) -> [isize; 2] {
        self.mapped(|index| from_start(index, 0, size as isize))
    }
}

macro_rules! ranges {
    ($index:ty: $($range:ty),+) => {$(
        impl Sealed for $range {}

        impl SliceRange for $range {
            fn within(self, size: usize) -> [isize; 2] {
                let index = |bound: Bound<&$index>| bound.map(|&index| isize::try_from(index).unwrap_or(isize::MAX));
                bounds(index(self.start_bound()), index(self.end_bound()), size as isize)
            }
        }
    )+};
    ($($index:ty),+) => {$(
        ranges! { $index:
            Range<$index>, RangeFrom<$index>, RangeInclusive<$index>, RangeTo<$index>, RangeToInclusive<$index>,
            (Bound<$index>, Bound<$index>)
        }
    )+};
}

ranges! { isize, usize, i32 } // literals are of type `i32` where several types fit
ranges! { isize: RangeFull }

fn bounds(start: Bound<isize>, end: Bound<isize>, size: isize) -> [isize; 2] {
    let start = match start {
        Bound::Included(start) => from_start(start, 0, size),
        Bound::Excluded(start) => from_start(start, 1, size),
        Bound::Unbounded => 0,
    };
    let end = match end {
        Bound::Included(end) => from_start(end, 1, size),
        Bound::Excluded(end) => from_start(end, 0, size),
        Bound::Unbounded => size,
    };
    [start, end]
}

/// The index `further` places behind one that counts from the end if it is negative, clamped to the dimension.
fn from_start(index: isize, further: isize, size: isize) -> isize {
    let index = if index < 0 { index.saturating_add(size) } else { index };
    index.saturating_add(further).clamp(0, size)
}
