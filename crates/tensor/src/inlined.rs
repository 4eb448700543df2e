//! The parts of `std` that loops of kernels use, written so that they are always inlined (decision 0080).
//!
//! The compiler instantiates each generic function of `std` once, in one codegen unit of this crate. Loops in other
//! units call it, and are not vectorized, unless the units are optimized together, which takes a fifth of the
//! compiler's time.
//!
//! Unsafe code: access to elements of slices without bounds checks, and arrays that are filled element by element.

use std::hint::assert_unchecked;
use std::iter::{Rev, Skip, StepBy};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit, needs_drop};
use std::ops::{Range, RangeFrom};
use std::slice::{Chunks, ChunksExact, ChunksExactMut, ChunksMut, Iter, IterMut};
use std::{array, ptr, slice};

/// The operands of [`zip`]: items whose number is known beforehand.
///
/// # Safety
/// `at(i)` may be called once for each `i < count()`, in ascending order.
pub(crate) unsafe trait Items {
    type Item;

    fn count(&self) -> usize;

    /// The item at `i`.
    ///
    /// # Safety
    /// `i` is less than `count()`; the calls come in ascending order without gaps, each once.
    unsafe fn at(&mut self, i: usize) -> Self::Item;
}

/// Types that can be converted to [`Items`].
pub(crate) trait IntoItems {
    type Items: Items;

    fn into_items(self) -> Self::Items;
}

pub(crate) struct Shared<'a, T> {
    start: *const T,
    len: usize,
    slice: PhantomData<&'a [T]>,
}

// SAFETY: all of `len` elements from `start` on are borrowed.
unsafe impl<'a, T> Items for Shared<'a, T> {
    type Item = &'a T;

    #[inline(always)]
    fn count(&self) -> usize {
        self.len
    }

    #[inline(always)]
    unsafe fn at(&mut self, i: usize) -> &'a T {
        // SAFETY: `i` is less than the length of the slice.
        let element = unsafe { self.start.add(i) };
        // SAFETY: no element is at null. The hint is there because `next` represents `None` by null, and a loop that
        // compares with null is not vectorized.
        unsafe { assert_unchecked(!element.is_null()) };
        // SAFETY: it is an element of a slice that is borrowed for 'a.
        unsafe { &*element }
    }
}

pub(crate) struct Unique<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: all of `len` elements from `start` on are borrowed.
unsafe impl<'a, T> Items for Unique<'a, T> {
    type Item = &'a mut T;

    #[inline(always)]
    fn count(&self) -> usize {
        self.len
    }

    #[inline(always)]
    unsafe fn at(&mut self, i: usize) -> &'a mut T {
        // SAFETY: `i` is less than the length of the slice.
        let element = unsafe { self.start.add(i) };
        // SAFETY: as in `Shared`.
        unsafe { assert_unchecked(!element.is_null()) };
        // SAFETY: it is an element of a slice that is mutably borrowed for 'a, and it is handed out once.
        unsafe { &mut *element }
    }
}

impl<'a, T> IntoItems for &'a [T] {
    type Items = Shared<'a, T>;

    #[inline(always)]
    fn into_items(self) -> Shared<'a, T> {
        Shared { start: self.as_ptr(), len: self.len(), slice: PhantomData }
    }
}

impl<'a, T> IntoItems for &'a mut [T] {
    type Items = Unique<'a, T>;

    #[inline(always)]
    fn into_items(self) -> Unique<'a, T> {
        Unique { start: self.as_mut_ptr(), len: self.len(), slice: PhantomData }
    }
}

/// Implements [`IntoItems`] for types that contain a slice.
macro_rules! items_of {
    ($($of:ty, [$($parameters:tt)*], $self:ident => $slice:expr, $items:ty;)*) => {$(
        impl<'a, $($parameters)*> IntoItems for $of {
            type Items = $items;

            #[inline(always)]
            fn into_items($self) -> $items {
                IntoItems::into_items($slice)
            }
        }
    )*};
}

items_of! {
    Iter<'a, T>, [T], self => self.as_slice(), Shared<'a, T>;
    &'a [T; N], [T, const N: usize], self => &self[..], Shared<'a, T>;
    &'a mut [T; N], [T, const N: usize], self => &mut self[..], Unique<'a, T>;
    &'a Vec<T>, [T], self => &self[..], Shared<'a, T>;
    &'a mut Vec<T>, [T], self => &mut self[..], Unique<'a, T>;
}

/// The items of an iterator that knows its length.
pub(crate) struct Counted<I>(I);

// SAFETY: only made below, of iterators that give exactly as many items as their size hint says.
unsafe impl<I: Iterator> Items for Counted<I> {
    type Item = I::Item;

    #[inline(always)]
    fn count(&self) -> usize {
        self.0.size_hint().0
    }

    #[inline(always)]
    unsafe fn at(&mut self, _: usize) -> I::Item {
        let item = self.0.next();
        // SAFETY: there is an item: this is not called more often than the iterator has items.
        unsafe { item.unwrap_unchecked() }
    }
}

/// Iterators of `std` that give exactly as many items as their size hint says.
macro_rules! counted {
    ($($iterator:ty, [$($parameters:tt)*];)*) => {$(
        impl<$($parameters)*> IntoItems for $iterator {
            type Items = Counted<Self>;

            #[inline(always)]
            fn into_items(self) -> Counted<Self> {
                Counted(self)
            }
        }
    )*};
}

counted! {
    Chunks<'_, T>, [T];
    ChunksMut<'_, T>, [T];
    ChunksExact<'_, T>, [T];
    ChunksExactMut<'_, T>, [T];
    Range<usize>, [];
    RangeFrom<usize>, [];
    RangeFrom<i64>, [];
    StepBy<RangeFrom<usize>>, [];
    StepBy<Iter<'_, T>>, [T];
    StepBy<Skip<Iter<'_, T>>>, [T];
    StepBy<Skip<IterMut<'_, T>>>, [T];
    Rev<Iter<'_, T>>, [T];
    Rev<IterMut<'_, T>>, [T];
}

/// The elements of an array.
pub(crate) struct Values<T, const N: usize>([T; N]);

// SAFETY: an array has `N` elements.
unsafe impl<T: Copy, const N: usize> Items for Values<T, N> {
    type Item = T;

    #[inline(always)]
    fn count(&self) -> usize {
        N
    }

    #[inline(always)]
    unsafe fn at(&mut self, i: usize) -> T {
        // SAFETY: `i` is less than `N`.
        unsafe { *self.0.get_unchecked(i) }
    }
}

impl<T: Copy, const N: usize> IntoItems for [T; N] {
    type Items = Values<T, N>;

    #[inline(always)]
    fn into_items(self) -> Values<T, N> {
        Values(self)
    }
}

/// See [`zip_all`].
pub(crate) struct ZipAll<'a, T, const N: usize> {
    starts: [*const T; N],
    len: usize,
    slices: PhantomData<&'a [T]>,
}

/// The elements at the same index of each slice, up to the length of the shortest slice.
#[inline(always)]
pub(crate) fn zip_all<'a, T: Copy, const N: usize>(slices: &[&'a [T]; N]) -> ZipAll<'a, T, N> {
    let (mut len, mut n) = (usize::MAX, 0);
    while n < N {
        len = if slices[n].len() < len { slices[n].len() } else { len };
        n += 1;
    }
    ZipAll { starts: from_fn(|n| slices[n].as_ptr()), len, slices: PhantomData }
}

// SAFETY: all slices have `len` elements, and are borrowed.
unsafe impl<T: Copy, const N: usize> Items for ZipAll<'_, T, N> {
    type Item = [T; N];

    #[inline(always)]
    fn count(&self) -> usize {
        self.len
    }

    #[inline(always)]
    unsafe fn at(&mut self, i: usize) -> [T; N] {
        from_fn(|n| {
            // SAFETY: `i` is less than the length of each slice.
            let element = unsafe { self.starts[n].add(i) };
            // SAFETY: it is an element of a slice that is borrowed.
            unsafe { *element }
        })
    }
}

impl<T: Copy, const N: usize> IntoItems for ZipAll<'_, T, N> {
    type Items = Self;

    #[inline(always)]
    fn into_items(self) -> Self {
        self
    }
}

/// See [`zip`].
pub(crate) struct Zip<A, B> {
    a: A,
    b: B,
    next: usize,
    count: usize, // of the shorter
}

/// [`std::iter::zip`] of slices, arrays, chunks and ranges.
#[inline(always)]
pub(crate) fn zip<A: IntoItems, B: IntoItems>(a: A, b: B) -> Zip<A::Items, B::Items> {
    let (a, b) = (a.into_items(), b.into_items());
    let (of_a, of_b) = (a.count(), b.count());
    Zip { a, b, next: 0, count: if of_a < of_b { of_a } else { of_b } }
}

impl<A: Items, B: Items> Iterator for Zip<A, B> {
    type Item = (A::Item, B::Item);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let i = self.next;
        if i >= self.count {
            return None;
        }
        self.next = i + 1;
        // SAFETY: `i` is less than the counts of both, and one more with each call.
        let a = unsafe { self.a.at(i) };
        // SAFETY: as above.
        let b = unsafe { self.b.at(i) };
        Some((a, b))
    }

    /// Always inlined, unlike `std`'s own, and without an `Option` for each item.
    #[inline(always)]
    fn for_each<F: FnMut(Self::Item)>(mut self, mut f: F) {
        while self.next < self.count {
            // SAFETY: `next` is less than the counts of both, and one more each time.
            let a = unsafe { self.a.at(self.next) };
            // SAFETY: as above.
            let b = unsafe { self.b.at(self.next) };
            self.next += 1;
            f((a, b));
        }
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.count - self.next;
        (left, Some(left))
    }
}

// SAFETY: both operands have an item for each one that is left.
unsafe impl<A: Items, B: Items> Items for Zip<A, B> {
    type Item = (A::Item, B::Item);

    #[inline(always)]
    fn count(&self) -> usize {
        self.count - self.next
    }

    #[inline(always)]
    unsafe fn at(&mut self, i: usize) -> Self::Item {
        // SAFETY: the caller's calls come in order, and the items before `next` have been taken.
        let a = unsafe { self.a.at(self.next + i) };
        // SAFETY: as above.
        let b = unsafe { self.b.at(self.next + i) };
        (a, b)
    }
}

impl<A: Items, B: Items> IntoItems for Zip<A, B> {
    type Items = Self;

    #[inline(always)]
    fn into_items(self) -> Self {
        self
    }
}

/// [`array::from_fn`](std::array::from_fn). Elements that must be dropped if `f` panics are left to `std`'s own
/// function.
#[inline(always)]
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "kernels have no such elements"))]
pub(crate) fn from_fn<T, const N: usize>(mut f: impl FnMut(usize) -> T) -> [T; N] {
    if const { needs_drop::<T>() } {
        return array::from_fn(f);
    }
    let mut array = [const { MaybeUninit::uninit() }; N];
    let mut i = 0;
    while i < N {
        array[i] = MaybeUninit::new(f(i));
        i += 1;
    }
    let array = ptr::from_ref(&array).cast::<[T; N]>();
    // SAFETY: each of the `N` elements was written. `MaybeUninit<T>` has the layout of `T` and drops nothing.
    unsafe { array.read() }
}

pub(crate) trait Array<T, const N: usize> {
    /// [`map`](array::map). Elements that must be dropped if `f` panics are left to `std`'s own function.
    fn mapped<R>(self, f: impl FnMut(T) -> R) -> [R; N];
}

impl<T, const N: usize> Array<T, N> for [T; N] {
    #[inline(always)]
    #[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "kernels have no such elements"))]
    fn mapped<R>(self, mut f: impl FnMut(T) -> R) -> [R; N] {
        if const { needs_drop::<T>() || needs_drop::<R>() } {
            return self.map(f);
        }
        let array = ManuallyDrop::new(self);
        from_fn(|i| {
            let element = ptr::from_ref(&array[i]);
            // SAFETY: `from_fn` visits each element once, and the array does not drop it.
            f(unsafe { element.read() })
        })
    }
}

pub(crate) trait Slice<T> {
    /// [`copy_from_slice`](slice::copy_from_slice).
    fn copy_from(&mut self, from: &[T]);

    /// [`fill`](slice::fill).
    fn set_to(&mut self, value: T);
}

impl<T: Copy> Slice<T> for [T] {
    #[inline(always)]
    fn copy_from(&mut self, from: &[T]) {
        assert!(self.len() == from.len(), "copies between slices of different lengths");
        let (n, to) = (from.len(), self.as_mut_ptr());
        // SAFETY: both have `n` elements, and they cannot overlap, because one is mutably borrowed.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, n) };
    }

    #[inline(always)]
    fn set_to(&mut self, value: T) {
        for element in self {
            *element = value;
        }
    }
}

pub(crate) trait Flat<T> {
    /// [`as_flattened`](slice::as_flattened).
    fn flattened(&self) -> &[T];

    /// [`as_flattened_mut`](slice::as_flattened_mut).
    fn flattened_mut(&mut self) -> &mut [T];
}

impl<T, const N: usize> Flat<T> for [[T; N]] {
    #[inline(always)]
    fn flattened(&self) -> &[T] {
        let (start, len) = (self.as_ptr().cast(), self.len() * N);
        // SAFETY: adjacent arrays have adjacent elements.
        unsafe { slice::from_raw_parts(start, len) }
    }

    #[inline(always)]
    fn flattened_mut(&mut self) -> &mut [T] {
        let (start, len) = (self.as_mut_ptr().cast(), self.len() * N);
        // SAFETY: as above, and they are mutably borrowed.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn zip_ends_with_the_shortest() {
        let (a, b, mut c) = ([1, 2, 3], [10, 20], [0; 4]);
        for (c, (&a, &b)) in zip(&mut c, zip(&a, &b)) {
            *c = a + b;
        }
        assert_eq!(c, [11, 22, 0, 0]);
        assert_eq!(zip(&a, 5_usize..).map(|(&a, i)| a * i as i32).collect::<Vec<_>>(), [5, 12, 21]);
        assert_eq!(zip(a.chunks(2), b).map(|(a, b)| (a.len(), b)).collect::<Vec<_>>(), [(2, 10), (1, 20)]);
        assert_eq!(zip(a.iter().rev(), &b).map(|(a, b)| a * b).collect::<Vec<_>>(), [30, 40]);
        assert_eq!(zip(a.iter().step_by(2), 0_usize..1).count(), 1);
        assert_eq!(zip(&a[..0], &b).next(), None);
    }

    #[test]
    fn a_zip_that_has_begun_gives_what_is_left() {
        let (a, b) = ([1, 2, 3], [10, 20, 30]);
        let mut begun = zip(&a, &b);
        assert_eq!((begun.next(), begun.size_hint()), (Some((&1, &10)), (2, Some(2))));
        assert_eq!(zip(begun, ["x", "y", "z"]).collect::<Vec<_>>(), [((&2, &20), "x"), ((&3, &30), "y")]);
    }

    #[test]
    fn zip_all_ends_with_the_shortest() {
        let mut sums = [0; 4];
        for (sum, [a, b]) in zip(&mut sums, zip_all(&[&[1, 2, 3], &[10, 20]])) {
            *sum = a + b;
        }
        assert_eq!(sums, [11, 22, 0, 0]);
        assert_eq!(zip(&[7, 8], zip_all::<i32, 0>(&[])).count(), 2);
    }

    #[test]
    fn arrays_are_made_and_mapped_once_each() {
        let shared = Rc::new(());
        let array: [_; 3] = from_fn(|i| (i, shared.clone()));
        let indices = array.mapped(|(i, one)| {
            drop(one);
            i
        });
        assert_eq!((indices, Rc::strong_count(&shared)), ([0, 1, 2], 1));
    }

    #[test]
    fn a_panic_drops_what_was_made_and_what_is_left() {
        let shared = Rc::new(());
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let array: [_; 3] = from_fn(|i| (i, shared.clone()));
            array.mapped(|(i, one)| if i == 1 { panic!("in the middle") } else { one })
        }));
        assert!(panics.is_err());
        assert_eq!(Rc::strong_count(&shared), 1);
    }

    #[test]
    fn slices_are_copied_filled_and_flattened() {
        let mut rows = [[1, 2], [3, 4], [5, 6]];
        assert_eq!(rows.flattened(), [1, 2, 3, 4, 5, 6]);
        rows.flattened_mut()[1..4].copy_from(&[7, 8, 9]);
        rows[2].set_to(0);
        assert_eq!(rows, [[1, 7], [8, 9], [0, 0]]);
    }

    #[test]
    #[should_panic = "different lengths"]
    fn copies_between_different_lengths_panic() {
        [0; 3].copy_from(&[1, 2]);
    }
}
