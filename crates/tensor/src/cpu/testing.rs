//! Helpers for the tests of this folder: random strided views, and a naive model of their elements.

use proptest::prelude::*;

use super::math::half::Half;
use super::{CpuView, MAX_RANK, Stored, StoredMut};
use crate::element::{Computing, Element};

/// Element types, as kernels take them.
pub(crate) trait Stores: Element {
    type C: Computing;
    fn stored(elements: &[Self]) -> Stored<'_, Self::C>;
    fn stored_mut(elements: &mut [Self]) -> StoredMut<'_, Self::C>;
}

macro_rules! stores {
    ($($type:ident)+; $($half:ident $name:ident)+) => {
        $(impl Stores for $type {
            type C = $type;
            fn stored(elements: &[$type]) -> Stored<'_, $type> {
                elements.into()
            }
            fn stored_mut(elements: &mut [$type]) -> StoredMut<'_, $type> {
                elements.into()
            }
        })+
        $(impl Stores for half::$half {
            type C = f32;
            fn stored(elements: &[Self]) -> Stored<'_, f32> {
                Stored::Halves(bytemuck::cast_slice(elements), Half::$name)
            }
            fn stored_mut(elements: &mut [Self]) -> StoredMut<'_, f32> {
                StoredMut::Halves(bytemuck::cast_slice_mut(elements), Half::$name)
            }
        })+
    };
}

stores!(f32 f64 i64 i32 u8; f16 F16 bf16 BF16);

/// Elements as a kernel takes them.
pub(crate) fn stored<T: Stores>(elements: &[T]) -> Stored<'_, T::C> {
    T::stored(elements)
}

/// Elements as a kernel writes them.
pub(crate) fn stored_mut<T: Stores>(elements: &mut [T]) -> StoredMut<'_, T::C> {
    T::stored_mut(elements)
}

/// A strided view that owns its storage.
#[derive(Clone, Debug)]
pub(super) struct Strided {
    pub(super) data: Vec<i32>,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

impl Strided {
    /// A view of a storage that is just large enough, with values that look random.
    pub(super) fn new(shape: Vec<usize>, strides: Vec<usize>) -> Self {
        let last: usize = shape.iter().zip(&strides).map(|(&size, stride)| size.saturating_sub(1) * stride).sum();
        let span = if shape.contains(&0) { 0 } else { last + 1 };
        let data = (0..span as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as i32 % 1_000 - 500).collect();
        Strided { data, shape, strides }
    }

    pub(super) fn contiguous(shape: Vec<usize>) -> Self {
        let strides = (0..shape.len()).map(|dim| shape[dim + 1..].iter().product()).collect();
        Strided::new(shape, strides)
    }

    pub(super) fn view(&self) -> CpuView<'_, i32> {
        CpuView { data: self.data[..].into(), shape: &self.shape, strides: &self.strides }
    }

    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The indices of all elements, in row-major order.
    pub(super) fn indices(&self) -> Vec<Vec<usize>> {
        let mut indices = vec![vec![]];
        for &size in &self.shape {
            indices = indices.iter().flat_map(|index| (0..size).map(move |i| [&index[..], &[i]].concat())).collect();
        }
        indices
    }

    /// The offsets of all elements, in row-major order.
    pub(super) fn offsets(&self) -> Vec<usize> {
        self.indices().iter().map(|index| self.offset(index)).collect()
    }

    pub(super) fn offset(&self, index: &[usize]) -> usize {
        index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum()
    }

    /// All elements, in row-major order.
    pub(super) fn values(&self) -> Vec<i32> {
        self.offsets().into_iter().map(|offset| self.data[offset]).collect()
    }

    /// A view of the same shape in which no two elements share memory.
    pub(super) fn without_broadcasts(self) -> Self {
        if self.strides.iter().zip(&self.shape).all(|(&stride, &size)| stride > 0 || size == 1) {
            return self;
        }
        Strided::contiguous(self.shape)
    }
}

/// Shapes of 0 to 5 dimensions, some of them of size 0 or 1, up to some thousands of elements.
pub(super) fn shape() -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![1 => Just(0_usize), 4 => Just(1), 20 => 2..6_usize, 5 => 6..40_usize];
    let few = |shape: &Vec<usize>| shape.iter().product::<usize>() < 4_000;
    prop::collection::vec(size, 0..=5).prop_filter("too many elements", few)
}

/// Views of a shape: dimensions in any order in memory, with steps, and some of them broadcast.
pub(super) fn strided(shape: Vec<usize>) -> impl Strategy<Value = Strided> {
    let rank = shape.len();
    assert!(rank <= MAX_RANK);
    let order = prop_oneof![Just((0..rank).collect::<Vec<_>>()), Just((0..rank).collect::<Vec<_>>()).prop_shuffle()];
    let steps = prop::collection::vec(prop_oneof![8 => Just(1_usize), 1 => 2..4_usize, 1 => Just(0)], rank);
    (order, steps).prop_map(move |(order, steps)| {
        let (mut strides, mut distance) = (vec![0; rank], 1);
        for &dim in order.iter().rev() {
            strides[dim] = distance * steps[dim];
            distance *= if steps[dim] == 0 { 1 } else { shape[dim].max(1) * steps[dim] };
        }
        Strided::new(shape.clone(), strides)
    })
}

/// Several views of one shape.
pub(super) fn same_shape<const N: usize>() -> impl Strategy<Value = [Strided; N]> {
    shape().prop_flat_map(|shape| std::array::from_fn(|_| strided(shape.clone())))
}
