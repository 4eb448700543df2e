//! [`Indices`], the argument of [`Tensor::i`](crate::Tensor::i), and the items that it consists of.

use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use arrayvec::ArrayVec;

use crate::kind::{Bool, Int};
use crate::shape::MAX_RANK;
use crate::tensor::{Raw, Tensor};

/// Python's `...` in an index: all dimensions that no other item covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ellipsis;

/// Python's `None` in an index: a new dimension of size 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewAxis;

/// An item of an index as a value, so that the code that interprets it is compiled once.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub enum Item<'a> {
    At(isize),
    Range((Bound<isize>, Bound<isize>)),
    Ellipsis,
    NewAxis,
    Index(AnyIndex<'a>),
    Mask(AnyIndex<'a>),
}

/// A tensor without its kind.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct AnyIndex<'a>(pub(super) &'a Raw);

/// One item of an index: a number (removes the dimension; negative numbers count from the end), a Rust range or
/// `[start, end]`, `..` for the whole dimension, a tensor of indices, a mask, [`Ellipsis`] or [`NewAxis`].
pub trait IndexItem<'a>: sealed::Sealed {
    #[doc(hidden)]
    fn item(self) -> Item<'a>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! items {
    ($($type:ty: |$value:pat_param| $item:expr;)+) => { $(
        impl sealed::Sealed for $type {}
        impl<'a> IndexItem<'a> for $type {
            fn item(self) -> Item<'a> {
                let $value = self;
                $item
            }
        }
    )+ };
}

macro_rules! ranges {
    ($($type:ty),+) => { items! { $($type: |range| Item::Range((range.start_bound().cloned(), range.end_bound().cloned()));)+ } };
}

items! {
    isize: |at| Item::At(at);
    [isize; 2]: |[start, end]| Item::Range((Bound::Included(start), Bound::Excluded(end)));
    Ellipsis: |_| Item::Ellipsis;
    NewAxis: |_| Item::NewAxis;
    RangeFull: |_| Item::Range((Bound::Unbounded, Bound::Unbounded));
}

ranges!(Range<isize>, RangeFrom<isize>, RangeInclusive<isize>, RangeTo<isize>, RangeToInclusive<isize>);

impl sealed::Sealed for &Tensor<Int> {}
impl<'a> IndexItem<'a> for &'a Tensor<Int> {
    fn item(self) -> Item<'a> {
        Item::Index(AnyIndex(self.raw()))
    }
}

impl sealed::Sealed for &Tensor<Bool> {}
impl<'a> IndexItem<'a> for &'a Tensor<Bool> {
    fn item(self) -> Item<'a> {
        Item::Mask(AnyIndex(self.raw()))
    }
}

/// An index: one [`IndexItem`], or up to eight of them in a tuple, which apply to the dimensions from the first one
/// on.
pub trait Indices<'a> {
    #[doc(hidden)]
    fn items(self) -> ArrayVec<Item<'a>, MAX_RANK>;
}

impl<'a, T: IndexItem<'a>> Indices<'a> for T {
    fn items(self) -> ArrayVec<Item<'a>, MAX_RANK> {
        ArrayVec::from_iter([self.item()])
    }
}

macro_rules! tuples {
    ($($name:ident)+) => {
        impl<'a, $($name: IndexItem<'a>),+> Indices<'a> for ($($name,)+) {
            fn items(self) -> ArrayVec<Item<'a>, MAX_RANK> {
                #[allow(non_snake_case, reason = "named after their types")]
                let ($($name,)+) = self;
                ArrayVec::from_iter([$($name.item()),+])
            }
        }
    };
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
