//! [`Integer`], [`IntoShape`]: sizes as users give them. Any integer type will do, so that `dims()` can be passed to
//! `reshape`.

use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::shape::{AxisSet, MAX_RANK, Shape};

/// An integer type for sizes, indices and dimensions.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an integer",
    label = "sizes, indices and dimensions are integers",
    note = "`usize`, `isize`, `i32`, `i64`, `u32` and `u64` are; a count that is a float is converted first: `n as usize`"
)]
pub trait Integer: Copy {
    /// The number as an index. One that exceeds `isize` becomes its largest number, an index that no tensor has.
    #[doc(hidden)]
    fn index(self) -> isize;

    #[doc(hidden)]
    fn wide(self) -> i128;

    /// Sizes, of which some may be −1.
    #[doc(hidden)]
    fn sizes(of: &[Self]) -> Result<Sizes>;

    /// Axes of a shape.
    #[doc(hidden)]
    fn axes(of: &[Self], op: &'static str, shape: &Shape) -> Result<AxisSet>;
}

/// Sizes as they were given, where −1 leaves a size open.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Sizes {
    given: [isize; MAX_RANK],
    rank: usize,
}

impl Sizes {
    fn new(given: &mut dyn ExactSizeIterator<Item = i128>) -> Result<Sizes> {
        let rank = given.len();
        if rank > MAX_RANK {
            return Err(Error::too_many_dims(&given.collect::<Vec<_>>()));
        }
        let mut all = [0; MAX_RANK];
        all.iter_mut().zip(given).for_each(|(to, size)| *to = size);
        match all.iter().all(|&size| isize::try_from(size).is_ok()) {
            true => Ok(Sizes { given: all.mapped(|size| size as isize), rank }),
            false => Err(Error::too_large(format_args!("{:?}", &all[..rank]))),
        }
    }

    pub(crate) fn as_slice(&self) -> &[isize] {
        &self.given[..self.rank]
    }

    /// The shape, if no size is left open.
    fn shape(&self) -> Result<Shape> {
        if self.as_slice().iter().any(|&size| size < 0) {
            return Err(Error::Argument(format!(
                "shape {:?} has a negative size; give sizes of 0 and more (only reshape, view and expand take a −1)",
                self.as_slice()
            )));
        }
        Shape::new(&self.given.mapped(|size| size as usize)[..self.rank])
    }

    /// The shape for `expand`, where −1 keeps the size of a dimension.
    pub(crate) fn expanding(mut self, from: &Shape) -> Result<Shape> {
        let kept = self.rank.saturating_sub(from.rank());
        for (dim, &size) in from.iter().enumerate() {
            if let Some(open) = self.given.get_mut(kept + dim).filter(|size| **size == -1) {
                *open = size as isize;
            }
        }
        self.shape()
    }
}

/// An argument that is a shape: `5`, `[2, 3]`, `(batch, 3)`, `x.dims()`, `x.shape()`, or `()` for a scalar. The sizes
/// are integers of any type; `reshape`, `view` and `expand` also take −1. Literals without a type are `i32`, so sizes
/// from 2³¹ on are written with a type: `[1_usize << 31]`.
///
/// ```
/// # use pagelock_tensor::Tensor;
/// assert_eq!(Tensor::zeros(5)?.rank(), 1);
/// assert_eq!(Tensor::zeros([2, 3])?.rank(), 2);
/// assert_eq!(Tensor::zeros(())?.rank(), 0);
/// let x = Tensor::zeros([2, 3, 4])?;
/// let [batch, rows, columns] = x.sizes()?;
/// assert_eq!(x.reshape((batch, -1))?.dims(), [batch, rows * columns]);
/// assert_eq!(Tensor::ones(x.dims())?.shape(), x.shape());
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a shape",
    label = "not sizes",
    note = "a shape is an integer, an array or a tuple of integers (`[2, 3]`, `(batch, -1)`), `()` for one number, or that of another tensor: `x.dims()`"
)]
pub trait IntoShape: Sized {
    /// The checked shape.
    ///
    /// # Errors
    /// As [`Shape::new`]; [`Error::Argument`] for a negative size.
    fn into_shape(self) -> Result<Shape> {
        self.into_sizes()?.shape()
    }

    /// The sizes, of which some may be −1.
    #[doc(hidden)]
    fn into_sizes(self) -> Result<Sizes>;
}

macro_rules! integers {
    ($($type:ty)+) => { $(
        impl Integer for $type {
            fn index(self) -> isize {
                isize::try_from(self).unwrap_or(isize::MAX)
            }

            fn wide(self) -> i128 {
                self as i128
            }

            fn sizes(of: &[$type]) -> Result<Sizes> {
                Sizes::new(&mut of.iter().map(|&size| size as i128))
            }

            fn axes(of: &[$type], op: &'static str, shape: &Shape) -> Result<AxisSet> {
                AxisSet::of(&mut of.iter().map(|axis| axis.index()), op, shape)
            }
        }

        impl IntoShape for $type {
            fn into_sizes(self) -> Result<Sizes> {
                Integer::sizes(&[self])
            }
        }
    )+ };
}

integers! { usize isize i32 i64 u32 u64 }

impl IntoShape for () {
    fn into_sizes(self) -> Result<Sizes> {
        Sizes::new(&mut [].into_iter())
    }
}

impl<T: Integer, const N: usize> IntoShape for [T; N] {
    fn into_sizes(self) -> Result<Sizes> {
        T::sizes(&self)
    }
}

impl<T: Integer, const N: usize> IntoShape for &[T; N] {
    fn into_sizes(self) -> Result<Sizes> {
        T::sizes(self)
    }
}

impl<T: Integer> IntoShape for &[T] {
    fn into_sizes(self) -> Result<Sizes> {
        T::sizes(self)
    }
}

impl<T: Integer> IntoShape for &Vec<T> {
    fn into_sizes(self) -> Result<Sizes> {
        T::sizes(self)
    }
}

impl<T: Integer> IntoShape for Vec<T> {
    fn into_sizes(self) -> Result<Sizes> {
        T::sizes(&self)
    }
}

impl IntoShape for Shape {
    fn into_shape(self) -> Result<Shape> {
        Ok(self)
    }

    fn into_sizes(self) -> Result<Sizes> {
        Integer::sizes(&self[..])
    }
}

impl IntoShape for &Shape {
    fn into_shape(self) -> Result<Shape> {
        Ok(*self)
    }

    fn into_sizes(self) -> Result<Sizes> {
        Integer::sizes(&self[..])
    }
}

macro_rules! tuples {
    ($(($($A:ident $index:tt)+))+) => { $(
        impl<$($A: Integer),+> IntoShape for ($($A,)+) {
            fn into_sizes(self) -> Result<Sizes> {
                Sizes::new(&mut [$(self.$index.wide()),+].into_iter())
            }
        }
    )+ };
}

tuples! { (A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5) }
