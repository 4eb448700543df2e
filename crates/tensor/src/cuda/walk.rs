//! Shapes and strides in the form that kernels take: as few dimensions as possible, the innermost first, passed by
//! value.

use bytemuck::{Pod, Zeroable};

use crate::inlined::{Array, from_fn};
use crate::shape::MAX_RANK;

/// The largest number of tensors that a kernel indexes together: the output and three inputs.
pub(crate) const MAX_OPERANDS: usize = 4;

/// The dimensions of tensors of one shape, the innermost first. Neighboring dimensions are merged if every tensor can
/// address them with a single stride.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dims {
    rank: usize,
    sizes: [usize; MAX_RANK],
    strides: [[usize; MAX_OPERANDS]; MAX_RANK],
}

impl Dims {
    /// The merged dimensions of `shape`, given the strides of each tensor.
    #[cfg(test)]
    fn merged(shape: &[usize], strides: &[&[usize]]) -> Dims {
        Dims::in_order(shape, strides, |_| true)
    }

    /// The dimensions of `shape` for which `is_wanted` holds, in the order of the shape.
    pub(crate) fn in_order(shape: &[usize], strides: &[&[usize]], is_wanted: impl Fn(usize) -> bool) -> Dims {
        let mut dims = Dims::NONE;
        for dim in (0..shape.len()).rev().filter(|&dim| shape[dim] != 1 && is_wanted(dim)) {
            dims.push(shape[dim], steps(strides, dim));
        }
        dims
    }

    /// Like [`in_order`](Self::in_order), but in the order of the first tensor's memory. Where any order will do,
    /// neighboring threads then access neighboring elements.
    pub(crate) fn by_stride(shape: &[usize], strides: &[&[usize]], is_wanted: impl Fn(usize) -> bool) -> Dims {
        let mut order: [usize; MAX_RANK] = from_fn(|i| MAX_RANK - 1 - i);
        let order = &mut order[MAX_RANK - shape.len()..];
        order.sort_by_key(|&dim| strides[0][dim]); // stable
        let mut dims = Dims::NONE;
        for &dim in order.iter().filter(|&&dim| shape[dim] != 1 && is_wanted(dim)) {
            dims.push(shape[dim], steps(strides, dim));
        }
        dims
    }

    const NONE: Dims = Dims { rank: 0, sizes: [1; MAX_RANK], strides: [[0; MAX_OPERANDS]; MAX_RANK] };

    /// Adds a dimension outside of all others, or makes the outermost one longer.
    fn push(&mut self, size: usize, steps: [usize; MAX_OPERANDS]) {
        if let Some(outermost) = self.rank.checked_sub(1) {
            let inner = self.strides[outermost].mapped(|step| step.wrapping_mul(self.sizes[outermost]));
            if steps == inner {
                self.sizes[outermost] *= size;
                return;
            }
        }
        self.sizes[self.rank] = size;
        self.strides[self.rank] = steps;
        self.rank += 1;
    }

    /// How many elements there are.
    pub(crate) fn len(&self) -> usize {
        self.sizes().iter().product()
    }

    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }

    /// The strides of all tensors, for each dimension.
    pub(crate) fn strides(&self) -> &[[usize; MAX_OPERANDS]] {
        &self.strides[..self.rank]
    }

    /// The innermost size and strides; 1 and zeros if there is no dimension.
    pub(crate) fn inner(&self) -> (usize, [usize; MAX_OPERANDS]) {
        (self.sizes[0], self.strides[0])
    }

    /// The same elements in packs of `pack` neighbors along the innermost dimension, whose size must be a multiple of
    /// `pack`.
    pub(crate) fn in_packs(mut self, pack: usize) -> Dims {
        self.sizes[0] /= pack;
        self.strides[0] = self.strides[0].mapped(|step| step * pack);
        self
    }

    /// The dimensions without the two at the indices `gone`.
    pub(crate) fn without(&self, gone: [usize; 2]) -> Dims {
        let mut dims = Dims::NONE;
        for dim in (0..self.rank).filter(|dim| !gone.contains(dim)) {
            dims.push(self.sizes[dim], self.strides[dim]);
        }
        dims
    }

    /// The form for kernels with 32-bit positions; `None` if these do not reach all elements.
    pub(crate) fn indexing(&self) -> Option<Indexing> {
        const LIMIT: usize = 1 << 31;
        let reach = |k: usize| -> usize {
            let steps = self.sizes().iter().zip(self.strides()).map(|(&size, steps)| size.saturating_sub(1) * steps[k]);
            steps.sum()
        };
        if self.len() >= LIMIT || (0..MAX_OPERANDS).any(|k| reach(k) >= LIMIT) {
            return None;
        }
        let mut indexing = Indexing::zeroed();
        (indexing.n, indexing.rank) = (self.len() as u32, self.rank as u32);
        for (dim, (&size, steps)) in self.sizes().iter().zip(self.strides()).enumerate() {
            let divisor = Divisor::new(size as u32);
            indexing.size[dim] = size as u32;
            (indexing.magic[dim], indexing.shift[dim]) = (divisor.magic, divisor.shift);
            indexing.stride[dim] = steps.mapped(|step| step as u32);
        }
        Some(indexing)
    }

    /// The form for kernels with 64-bit positions.
    pub(crate) fn wide_indexing(&self) -> WideIndexing {
        let mut indexing = WideIndexing { n: self.len() as u64, rank: self.rank as u64, ..WideIndexing::zeroed() };
        for (dim, (&size, steps)) in self.sizes().iter().zip(self.strides()).enumerate() {
            indexing.size[dim] = size as u64;
            indexing.stride[dim] = steps.mapped(|step| step as u64);
        }
        indexing
    }
}

/// The strides of all tensors along one dimension.
fn steps(strides: &[&[usize]], dim: usize) -> [usize; MAX_OPERANDS] {
    from_fn(|k| strides.get(k).map_or(0, |strides| strides[dim]))
}

/// `Indexing` of `header.cu`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Indexing {
    n: u32,
    rank: u32,
    size: [u32; MAX_RANK],
    magic: [u32; MAX_RANK],
    shift: [u32; MAX_RANK],
    stride: [[u32; MAX_OPERANDS]; MAX_RANK],
}

impl Indexing {
    pub(crate) fn len(&self) -> usize {
        self.n as usize
    }
}

/// `WideIndexing` of `header.cu`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct WideIndexing {
    n: u64,
    rank: u64,
    size: [u64; MAX_RANK],
    stride: [[u64; MAX_OPERANDS]; MAX_RANK],
}

impl WideIndexing {
    pub(crate) fn len(&self) -> usize {
        self.n as usize
    }
}

/// Division of a number below 2³¹ by a constant below 2³¹, as a multiplication and a shift; `header.cu` says how.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Divisor {
    magic: u32,
    shift: u32,
}

impl Divisor {
    /// For that divisor; 0 counts as 1.
    pub(crate) fn new(divisor: u32) -> Divisor {
        let divisor = divisor.max(1);
        let shift = u32::BITS - (divisor - 1).leading_zeros(); // log2(divisor), rounded up
        let magic = ((1_u64 << 32) * ((1_u64 << shift) - u64::from(divisor)) / u64::from(divisor) + 1) as u32;
        Divisor { magic, shift }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplying_by_the_magic_number_divides() {
        let numbers = || (0..31).flat_map(|bit| [1_u32 << bit, (1 << bit) + 1, (2_u32 << bit) - 1, 3 << bit]);
        let numbers = || numbers().filter(|&n| n < 1 << 31).chain([7, 10, 641, 1_000_003, (1 << 31) - 1]);
        for divisor in numbers() {
            let Divisor { magic, shift } = Divisor::new(divisor);
            for n in numbers().chain([0]) {
                let high = ((u64::from(n) * u64::from(magic)) >> 32) as u32;
                assert_eq!((high + n) >> shift, n / divisor, "{n} / {divisor}");
            }
        }
    }

    #[test]
    fn dimensions_are_merged_where_all_tensors_allow_it() {
        let contiguous: &[usize] = &[12, 4, 1];
        let merged = Dims::merged(&[2, 3, 4], &[contiguous, contiguous]);
        assert_eq!((merged.sizes(), merged.inner().1[..2].to_vec()), (&[24][..], vec![1, 1]));

        let bias: &[usize] = &[0, 0, 1];
        let merged = Dims::merged(&[2, 3, 4], &[contiguous, bias]);
        assert_eq!(merged.sizes(), [4, 6]);
        assert_eq!(merged.strides()[1][..2], [4, 0]);

        let of_ones = Dims::merged(&[1, 1], &[&[9, 7]]);
        assert_eq!((of_ones.len(), of_ones.sizes()), (1, &[][..]));
    }

    #[test]
    fn dimensions_in_the_order_of_memory_are_merged_further() {
        let transposed: &[usize] = &[1, 4, 12];
        let everything = Dims::by_stride(&[4, 3, 2], &[transposed], |_| true);
        assert_eq!((everything.sizes(), everything.inner().1[0]), (&[24][..], 1));
        let some = Dims::by_stride(&[4, 3, 2], &[transposed], |dim| dim != 1);
        assert_eq!(some.sizes(), [4, 2]);
    }

    #[test]
    fn tensors_too_large_for_32_bits_have_no_narrow_indexing() {
        assert!(Dims::merged(&[1 << 31], &[&[1]]).indexing().is_none());
        assert!(Dims::merged(&[2, 2], &[&[1 << 31, 1]]).indexing().is_none());
        assert!(Dims::merged(&[1 << 30], &[&[1]]).indexing().is_some());
    }
}
