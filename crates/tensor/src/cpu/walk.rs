//! Strided positions in row-major order.
//!
//! [`Dims`] is a shape with strides, in which dimensions are merged where possible. [`Walk`] is a position in it that
//! advances and copies elements. Both are on the stack.

use bytemuck::Pod;

use super::copy::{copy_line, fill_line};
use super::transpose::Tile;
use super::{MAX_RANK, Stored, simd};
use crate::element::Computing;
use crate::inlined::{Slice, zip};

/// A shape with strides. Neighboring dimensions are merged where possible, and none has size 1.
///
/// There is always at least one dimension: a single element is shape `[1]` with stride 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dims {
    rank: usize,
    shape: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl Dims {
    /// Merges `(size, stride)` pairs, given from the outermost dimension to the innermost. No size may be 0.
    #[inline]
    pub(super) fn merged(pairs: impl Iterator<Item = (usize, usize)>) -> Dims {
        let mut dims = Dims { rank: 0, shape: [1; MAX_RANK], strides: [1; MAX_RANK] };
        for (size, stride) in pairs {
            if size != 1 {
                dims.push(size, stride);
            }
        }
        dims.rank = dims.rank.max(1);
        dims
    }

    #[inline]
    fn push(&mut self, size: usize, stride: usize) {
        let last = self.rank.wrapping_sub(1);
        if last < MAX_RANK && self.strides[last] == size * stride {
            self.shape[last] *= size;
            self.strides[last] = stride;
        } else {
            self.shape[self.rank] = size;
            self.strides[self.rank] = stride;
            self.rank += 1;
        }
    }

    /// Merges the dimensions of a view.
    #[inline]
    pub(super) fn of(shape: &[usize], strides: &[usize]) -> Dims {
        Dims::merged(std::iter::zip(shape, strides).map(|(&size, &stride)| (size, stride)))
    }

    /// Whether all neighboring elements are `distance` apart.
    pub(super) fn is_evenly_spaced(&self, distance: usize) -> bool {
        self.rank <= 1 && self.strides[0] == distance
    }

    /// Elements per dimension.
    #[inline]
    pub(super) fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    /// Distance between neighbours, per dimension.
    #[inline]
    pub(super) fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// Number of elements.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// The distance between the entries of the outermost dimension, and the number of elements in each, if each ends
    /// before the next begins.
    pub(super) fn entries(&self) -> Option<(usize, usize)> {
        let (sizes, strides) = (&self.shape()[1..], &self.strides()[1..]);
        let last: usize = sizes.iter().zip(strides).map(|(&size, &stride)| (size - 1) * stride).sum();
        (self.strides[0] > last).then(|| (self.strides[0], sizes.iter().product()))
    }

    /// The first `n` entries of the outermost dimension.
    pub(super) fn first(&self, n: usize) -> Dims {
        let mut first = *self;
        first.shape[0] = n;
        first
    }

    /// Size and stride of the innermost dimension.
    #[inline]
    pub(super) fn inner(&self) -> (usize, usize) {
        (self.shape[self.rank - 1], self.strides[self.rank - 1])
    }

    /// Whether the elements are contiguous, in row-major order.
    #[inline]
    pub(super) fn is_contiguous(&self) -> bool {
        self.rank == 1 && self.strides[0] == 1
    }

    /// The offset of element number `position`, in row-major order.
    #[inline]
    pub(super) fn offset(&self, position: usize) -> usize {
        if self.rank == 1 {
            return position * self.strides[0];
        }
        let (mut rest, mut offset) = (position, 0);
        for dim in (0..self.rank).rev() {
            offset += rest % self.shape[dim] * self.strides[dim];
            rest /= self.shape[dim];
        }
        offset
    }
}

/// The strides of a contiguous tensor.
pub(super) fn contiguous_strides(shape: &[usize]) -> [usize; MAX_RANK] {
    let mut strides = [1; MAX_RANK];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    strides
}

/// A position in [`Dims`] that advances in row-major order. After the last element it starts over.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    dims: Dims,
    index: [usize; MAX_RANK],
    offset: usize,
}

impl Walk {
    /// A walk at element number `position`.
    pub(super) fn starting_at(dims: Dims, position: usize) -> Walk {
        let mut walk = Walk { dims, index: [0; MAX_RANK], offset: 0 };
        let mut rest = position;
        for dim in (0..dims.rank).rev() {
            if rest == 0 {
                break;
            }
            walk.index[dim] = rest % dims.shape[dim];
            walk.offset += walk.index[dim] * dims.strides[dim];
            rest /= dims.shape[dim];
        }
        walk
    }

    /// Size and stride of the innermost dimension.
    #[inline]
    pub(super) fn inner(&self) -> (usize, usize) {
        self.dims.inner()
    }

    /// The offset of the current element.
    #[inline]
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// The number of elements from here to the end of the line along the innermost dimension.
    #[inline]
    pub(super) fn run(&self) -> usize {
        let last = self.dims.rank - 1;
        self.dims.shape[last] - self.index[last]
    }

    /// Advances by `len` elements, at most to the end of the current [`run`](Walk::run).
    #[inline]
    pub(super) fn advance(&mut self, len: usize) {
        self.step(self.dims.rank - 1, len);
    }

    /// Advances by `count` entries of a dimension, at most to its end.
    #[inline]
    fn step(&mut self, mut dim: usize, count: usize) {
        self.index[dim] += count;
        self.offset += count * self.dims.strides[dim];
        while self.index[dim] == self.dims.shape[dim] {
            self.offset -= self.dims.shape[dim] * self.dims.strides[dim];
            self.index[dim] = 0;
            if dim == 0 {
                return;
            }
            dim -= 1;
            self.index[dim] += 1;
            self.offset += self.dims.strides[dim];
        }
    }

    /// Copies the next `out.len()` elements of `data` to `out` and advances past them.
    pub(super) fn read<T: Pod>(&mut self, data: &[T], out: &mut [T]) {
        let (len, stride) = self.dims.inner();
        let mut rest = out;
        while !rest.is_empty() {
            let n_lines = self.lines().min(rest.len() / len);
            let (now, others) = rest.split_at_mut(if n_lines > 0 { n_lines * len } else { self.run().min(rest.len()) });
            if n_lines > 0 {
                let outside = self.dims.rank - 2;
                read_lines(&data[self.offset..], [self.dims.strides[outside], stride], len, now);
                self.step(outside, n_lines);
            } else {
                read_line(&data[self.offset..], stride, now);
                self.advance(now.len());
            }
            rest = others;
        }
    }

    /// The number of whole lines from here along the dimension outside of them; 0 in the middle of a line.
    #[inline]
    fn lines(&self) -> usize {
        match self.dims.rank {
            rank @ 2.. if self.index[rank - 1] == 0 => self.dims.shape[rank - 2] - self.index[rank - 2],
            _ => 0,
        }
    }

    /// [`read`](Walk::read), converted to the computing type.
    pub(super) fn read_widened<C: Computing>(&mut self, data: Stored<'_, C>, out: &mut [C]) {
        match data {
            Stored::Plain(elements) => self.read(elements, out),
            Stored::Halves(bits, half) => {
                let mut buffer = [0; 256];
                for out in out.chunks_mut(buffer.len()) {
                    let buffer = &mut buffer[..out.len()];
                    self.read(bits, buffer);
                    half.widen(buffer, C::f32s(out));
                }
            }
        }
    }

    /// Copies `values` to the next `values.len()` elements of `data` and advances past them.
    pub(super) fn write<T: Copy>(&mut self, data: &mut [T], values: &[T]) {
        let (_, stride) = self.dims.inner();
        let mut rest = values;
        while !rest.is_empty() {
            let (line, others) = rest.split_at(self.run().min(rest.len()));
            let target = &mut data[self.offset..];
            match stride {
                1 => target[..line.len()].copy_from(line),
                _ => line.iter().enumerate().for_each(|(i, &value)| target[i * stride] = value),
            }
            self.advance(line.len());
            rest = others;
        }
    }
}

/// [`read_line`], converted to the computing type.
pub(super) fn read_line_widened<C: Computing>(data: Stored<'_, C>, stride: usize, out: &mut [C]) {
    match data {
        Stored::Plain(data) => read_line(data, stride, out),
        Stored::Halves(bits, half) if stride == 1 => half.widen(bits, C::f32s(out)),
        Stored::Halves(bits, half) => {
            let mut buffer = [0; 256];
            for (i, out) in out.chunks_mut(buffer.len()).enumerate() {
                let (from, buffer) = (&bits[i * 256 * stride..], &mut buffer[..out.len()]);
                read_line(from, stride, buffer);
                half.widen(buffer, C::f32s(out));
            }
        }
    }
}

/// Copies lines of `len` elements: `out[i][j] = data[i * distance + j * stride]`.
pub(super) fn read_lines<T: Pod>(data: &[T], [distance, stride]: [usize; 2], len: usize, out: &mut [T]) {
    if distance == 1 && stride > 1 {
        let tile = Tile { rows: out.len() / len, columns: len, stride, row_len: len };
        return tile.copy(data, out);
    }
    simd::vectorized(inlined!(|| {
        for (i, line) in out.chunks_exact_mut(len).enumerate() {
            let from = &data[i * distance..];
            match stride {
                1 => copy_line(line, &from[..len]),
                0 => fill_line(line, from[0]),
                _ => read_line(from, stride, line),
            }
        }
    }));
}

/// `out[i] = data[i * stride]`.
#[inline]
fn read_line<T: Copy>(data: &[T], stride: usize, out: &mut [T]) {
    match stride {
        1 => out.copy_from(&data[..out.len()]),
        0 => out.set_to(data[0]),
        2 => {
            let Some((last, out)) = out.split_last_mut() else { return };
            *last = data[2 * out.len()]; // the data may end there, in the middle of a pair
            zip(out, data.as_chunks::<2>().0).for_each(|(value, pair)| *value = pair[0]);
        }
        _ => out.iter_mut().enumerate().for_each(|(i, value)| *value = data[i * stride]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_dimensions_merge_and_sizes_of_one_vanish() {
        let dims = Dims::of(&[2, 1, 3, 4, 5], &[60, 77, 20, 5, 1]);

        assert_eq!((dims.shape(), dims.strides()), (&[120][..], &[1][..]));
        assert!(dims.is_contiguous());
    }

    #[test]
    fn broadcast_and_permuted_dimensions_stay_apart() {
        let dims = Dims::of(&[2, 3, 4, 5], &[0, 0, 1, 4]);

        assert_eq!((dims.shape(), dims.strides()), (&[6, 4, 5][..], &[0, 1, 4][..]));
    }

    #[test]
    fn a_single_element_is_one_contiguous_dimension() {
        assert!(Dims::of(&[], &[]).is_contiguous());
        assert!(Dims::of(&[1, 1], &[0, 9]).is_contiguous());
    }

    #[test]
    fn a_walk_stands_where_its_position_says_and_wraps_at_the_end() {
        let dims = Dims::of(&[2, 3, 2], &[1, 20, 5]);
        for start in 0..12 {
            let mut walk = Walk::starting_at(dims, start);
            for step in 0..24 {
                assert_eq!(walk.offset(), dims.offset((start + step) % 12), "start {start}, step {step}");
                walk.advance(1);
            }
        }
    }
}
