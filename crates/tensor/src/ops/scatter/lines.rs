//! Tensors as lines along an indexed dimension, for kernels.

use bytemuck::{Pod, Zeroable};

use crate::cuda::CudaView;
use crate::inlined::Array;
use crate::layout::Layout;
use crate::ops::index::cuda::Index;
use crate::shape::{MAX_RANK, Shape};

/// `Lines` of `lines.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Lines {
    pub(super) lines: u64,
    rank: u64,
    size: [u64; MAX_RANK],
    stride: [[u64; 3]; MAX_RANK],
    pub(super) y_len: u64,
    pub(super) x_len: u64,
    pub(super) step: [u64; 3],
}

impl Lines {
    pub(super) fn new(out: &Shape, x: CudaView<'_>, index: Index<'_>) -> Lines {
        let layout = Layout::contiguous(*out);
        let of = |dim: usize| [layout.strides()[dim], index.strides[dim], x.strides()[dim]].mapped(|step| step as u64);
        let mut lines = Lines { lines: 1, y_len: 1, x_len: 1, ..Lines::zeroed() };
        for dim in (0..out.rank()).rev() {
            if dim == index.dim {
                (lines.y_len, lines.x_len, lines.step) = (out[dim] as u64, x.shape()[dim] as u64, of(dim));
                continue;
            }
            let rank = lines.rank as usize;
            (lines.size[rank], lines.stride[rank]) = (x.shape()[dim] as u64, of(dim));
            lines.lines *= x.shape()[dim] as u64;
            lines.rank += 1;
        }
        lines
    }

    /// Whether lines are long, and so few that a warp for each would leave most of a device idle.
    pub(super) fn are_few_and_long(&self) -> bool {
        const FEW: u64 = 2048;
        self.lines < FEW && self.are_long()
    }

    /// Whether indices are sorted first: a warp for each line would leave most of a device idle, or load neighbors of
    /// other lines without using them. Sorting takes 3 KiB of memory for each line, so not for many lines.
    pub(super) fn are_sorted(&self) -> bool {
        const MANY: u64 = 1 << 18;
        self.are_few_and_long() || self.step[0] != 1 && self.are_long() && self.lines < MANY
    }

    /// Whether all lines have the same index, so that whole entries are written.
    pub(super) fn have_one_index(&self) -> bool {
        let mut dims = self.size.iter().zip(&self.stride).take(self.rank as usize);
        self.x_len < u32::MAX.into() && dims.all(|(size, [_, index, _])| *size == 1 || *index == 0)
    }

    /// The lines of the index: those that share one count once.
    pub(super) fn of_index(&self) -> Lines {
        let mut distinct = Lines { lines: 1, rank: 0, ..*self };
        for dim in (0..self.rank as usize).filter(|&dim| self.stride[dim][1] != 0) {
            let rank = distinct.rank as usize;
            (distinct.size[rank], distinct.stride[rank]) = (self.size[dim], self.stride[dim]);
            distinct.lines *= self.size[dim];
            distinct.rank += 1;
        }
        distinct
    }

    /// The first line alone, for an index that all lines share.
    pub(super) fn first(&self) -> Lines {
        Lines { lines: 1, rank: 0, ..*self }
    }

    fn are_long(&self) -> bool {
        const LONG: u64 = 128;
        self.x_len >= LONG && self.x_len.max(self.y_len) < u32::MAX.into()
    }

    /// Elements of `x`.
    pub(super) fn elements(&self) -> usize {
        (self.lines * self.x_len) as usize
    }

    /// Whether neighbors in `x` are in one line.
    pub(super) fn is_source_in_rows(&self) -> bool {
        self.lines == 1 || self.step[2] == 1
    }
}
