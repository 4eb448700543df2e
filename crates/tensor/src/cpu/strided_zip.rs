//! Iterates over the lines of several strided tensors of one shape at once.
//!
//! [`Walk`](super::walk::Walk) steps through one tensor. Where a loop reads one tensor and writes another, or looks
//! up a third, [`StridedZip`] merges the dimensions of all and yields rectangles of lines, so that short lines cost no
//! more than a few instructions each.

use std::ops::Range;

use super::{MAX_RANK, Value};
use crate::inlined::{Array, from_fn, zip};
use crate::parallel::for_each_chunk_mut;

/// A shape with the strides of `N` tensors, which are called sides here. Neighboring dimensions are merged where
/// possible, and dimensions of size 1 are left out.
///
/// There is always at least one dimension: that of a single element has size 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct StridedZip<const N: usize> {
    rank: usize,
    shape: [usize; MAX_RANK],
    strides: [[usize; N]; MAX_RANK],
}

/// Evenly spaced lines of equal length in each of `N` tensors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines<const N: usize> {
    /// Where the first line begins.
    pub(super) starts: [usize; N],
    /// How many lines there are.
    pub(super) count: usize,
    /// The distance from the beginning of a line to that of the next.
    pub(super) distances: [usize; N],
    /// Elements of a line.
    pub(super) len: usize,
    /// The distance from an element of a line to the next.
    pub(super) steps: [usize; N],
}

impl<const N: usize> Lines<N> {
    /// Where line number `line` begins, on each side.
    #[inline(always)]
    pub(super) fn beginnings(&self, line: usize) -> [usize; N] {
        from_fn(|side| self.starts[side] + line * self.distances[side])
    }
}

impl<const N: usize> StridedZip<N> {
    /// Merges dimensions that can be merged on all sides. No size may be 0.
    pub(super) fn of(shape: &[usize], strides: [&[usize]; N]) -> Self {
        let mut sides = StridedZip { rank: 0, shape: [1; MAX_RANK], strides: [[1; N]; MAX_RANK] };
        for (dim, &size) in shape.iter().enumerate().filter(|&(_, &size)| size != 1) {
            sides.push(size, strides.mapped(|strides| strides[dim]));
        }
        sides.rank = sides.rank.max(1);
        sides
    }

    fn push(&mut self, size: usize, strides: [usize; N]) {
        let is_one_with_last = |last: usize| (0..N).all(|i| self.strides[last][i] == size * strides[i]);
        if let Some(last) = self.rank.checked_sub(1).filter(|&last| is_one_with_last(last)) {
            self.shape[last] *= size;
            self.strides[last] = strides;
        } else {
            self.shape[self.rank] = size;
            self.strides[self.rank] = strides;
            self.rank += 1;
        }
    }

    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        self.count(0..self.rank)
    }

    /// The number of positions in these dimensions.
    pub(super) fn count(&self, dims: Range<usize>) -> usize {
        self.shape[dims].iter().product()
    }

    /// Number of dimensions.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// The size of a dimension, and its stride on each side.
    pub(super) fn dim(&self, dim: usize) -> (usize, [usize; N]) {
        (self.shape[dim], self.strides[dim])
    }

    /// The length of a line, and its stride on each side.
    pub(super) fn line(&self) -> (usize, [usize; N]) {
        self.dim(self.rank - 1)
    }

    /// Calls `visit` with groups of lines that together have all elements, in row-major order.
    #[inline]
    pub(super) fn each(&self, mut visit: impl FnMut(Lines<N>)) {
        let inner = self.rank - 1;
        let lines = Lines {
            starts: [0; N],
            count: if inner == 0 { 1 } else { self.shape[inner - 1] },
            distances: if inner == 0 { [0; N] } else { self.strides[inner - 1] },
            len: self.shape[inner],
            steps: self.strides[inner],
        };
        let n_outside = self.count(0..inner.saturating_sub(1));
        for position in 0..n_outside {
            visit(Lines { starts: self.starts(0..inner.saturating_sub(1), position), ..lines });
        }
    }

    /// The offset on each side of position number `position` in these dimensions, counted in row-major order.
    pub(super) fn starts(&self, dims: Range<usize>, position: usize) -> [usize; N] {
        let (mut rest, mut starts) = (position, [0; N]);
        for dim in dims.rev() {
            let index = rest % self.shape[dim];
            rest /= self.shape[dim];
            (0..N).for_each(|i| starts[i] += index * self.strides[dim][i]);
        }
        starts
    }

    /// Calls `work(part, offsets, sides)` for parts of `dst`, which is side 0, on several threads if there are more
    /// than `chunk` elements.
    ///
    /// `sides` has the shape and strides of the part. Side 0 begins at `part[0]`, and each other side at its offset.
    pub(super) fn in_parts<T: Value>(
        &self,
        dst: &mut [T],
        chunk: usize,
        work: impl Fn(&mut [T], [usize; N], &Self) + Sync,
    ) {
        self.parts(dst, ([0; N], chunk), &work);
    }

    fn parts<T: Value>(
        &self,
        dst: &mut [T],
        (from, chunk): ([usize; N], usize),
        work: &(dyn Fn(&mut [T], [usize; N], &Self) + Sync),
    ) {
        let row =
            StridedZip { shape: shifted(self.shape, 1), strides: shifted(self.strides, [1; N]), rank: self.rank - 1 };
        let (rows, distance) = (self.shape[0], self.strides[0][0]);
        let row_span = (0..row.rank).map(|dim| (row.shape[dim] - 1) * row.strides[dim][0]).sum::<usize>() + 1;
        let (row_len, at) = (self.len() / rows, |row| add(from, self.strides[0].mapped(|stride| row * stride)));
        if self.len() <= chunk || distance < row_span {
            return work(dst, from, self);
        }
        if rows < FEW && row.rank > 0 {
            return (0..rows).for_each(|i| row.parts(&mut dst[i * distance..], (at(i), chunk), work));
        }
        let chunk_rows = (chunk / row_len).max(1);
        for_each_chunk_mut(&mut dst[..(rows - 1) * distance + row_span], chunk_rows * distance, |i, part| {
            let mut sides = *self;
            sides.shape[0] = part.len().div_ceil(distance);
            work(part, at(i * chunk_rows), &sides);
        });
    }
}

/// Fewer rows than this are split one by one.
const FEW: usize = 16;

fn add<const N: usize>(mut a: [usize; N], b: [usize; N]) -> [usize; N] {
    zip(&mut a[..], b).for_each(|(a, b)| *a += b);
    a
}

/// Moves every entry to the dimension before its own, and puts `last` at the end.
fn shifted<T: Copy>(mut of: [T; MAX_RANK], last: T) -> [T; MAX_RANK] {
    of.rotate_left(1);
    of[MAX_RANK - 1] = last;
    of
}

#[cfg(test)]
mod tests {
    use super::super::CHUNK;
    use super::*;

    #[test]
    fn dimensions_merge_where_they_are_one_on_all_sides() {
        let sides = StridedZip::of(&[2, 1, 3, 4, 5], [&[60, 9, 20, 5, 1], &[120, 9, 40, 5, 1]]);

        assert_eq!((sides.rank, &sides.shape[..2]), (2, &[6, 20][..]));
        assert_eq!(sides.strides[..2], [[20, 40], [1, 1]]);
    }

    #[test]
    fn lines_come_in_row_major_order() {
        for shape in [&[][..], &[5], &[3, 4], &[2, 3, 4], &[2, 3, 2, 5]] {
            let strides: Vec<usize> = (0..shape.len()).map(|dim| 100_usize.pow(dim as u32)).collect();
            let mut offsets = Vec::new();
            StridedZip::of(shape, [&strides]).each(|lines| {
                for line in 0..lines.count {
                    let [start] = lines.beginnings(line);
                    offsets.extend((0..lines.len).map(|i| start + i * lines.steps[0]));
                }
            });

            let dims = super::super::walk::Dims::of(shape, &strides);
            assert_eq!(offsets, (0..dims.len()).map(|i| dims.offset(i)).collect::<Vec<_>>(), "{shape:?}");
        }
    }

    #[test]
    fn parts_are_all_elements_once_wherever_they_are_cut() {
        for shape in [[2, 3, 70_000], [3, 40_000, 2], [20_000, 3, 5], [1, 1, 90_000]] {
            let strides = [shape[1] * (shape[2] * 2 + 3), shape[2] * 2 + 3, 2];
            let mut dst = vec![0; shape[0] * strides[0]];
            let numbers = [shape[1] * shape[2], shape[2], 1];
            StridedZip::of(&shape, [&strides, &numbers]).in_parts(&mut dst, CHUNK, |part, from, sides| {
                sides.each(|lines| {
                    for (line, i) in (0..lines.count).flat_map(|line| (0..lines.len).map(move |i| (line, i))) {
                        let [to, number] = lines.beginnings(line);
                        part[to + i * lines.steps[0]] += from[1] + number + i * lines.steps[1] + 1;
                    }
                });
            });

            let dims = super::super::walk::Dims::of(&shape, &strides);
            assert!((0..dims.len()).all(|i| dst[dims.offset(i)] == i + 1), "{shape:?}");
            assert_eq!(dst.iter().filter(|&&x| x > 0).count(), dims.len());
        }
    }
}
