//! Transposition: rows of the output are columns of the input. It proceeds square by square, so that the input is
//! read, and the output written, by whole cache lines.

use bytemuck::Pod;

use super::simd;
use crate::inlined::Slice;
use crate::lanes::{Lanes, Transpose, dispatch};

/// A rectangle of the output. `stride` is the distance between columns in the input, `row_len` that between rows in
/// the output.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) stride: usize,
    pub(super) row_len: usize,
}

/// Rows and columns of a square of short elements.
const SIDE: usize = 16;

impl Tile {
    /// `out[row * row_len + column] = data[row + column * stride]`.
    pub(super) fn copy<T: Pod>(self, data: &[T], out: &mut [T]) {
        match size_of::<T>() {
            8 => self.copy_vectors::<f64>(bytemuck::cast_slice(data), bytemuck::cast_slice_mut(out)),
            4 => self.copy_vectors::<f32>(bytemuck::cast_slice(data), bytemuck::cast_slice_mut(out)),
            _ => simd::vectorized(inlined!(|| self.copy_squares(data, out))),
        }
    }

    /// Copies elements as vectors of floats, which preserve all bits.
    fn copy_vectors<R: Lanes>(self, from: &[R], to: &mut [R]) {
        let Tile { rows, columns, stride, row_len } = self;
        dispatch(Transpose { from, stride, to, row_len, rows, columns });
    }

    /// Copies elements as arrays, which the compiler vectorizes.
    #[inline(always)]
    fn copy_squares<T: Pod>(self, data: &[T], out: &mut [T]) {
        for row in (0..self.rows).step_by(SIDE) {
            for column in (0..self.columns).step_by(SIDE) {
                let (rows, columns) = (SIDE.min(self.rows - row), SIDE.min(self.columns - column));
                let tile = Tile { rows, columns, ..self };
                let (data, out) = (&data[row + column * self.stride..], &mut out[row * self.row_len + column..]);
                if rows == SIDE && columns == SIDE { tile.copy_square(data, out) } else { tile.copy_part(data, out) }
            }
        }
    }

    #[inline(always)]
    fn copy_part<T: Pod>(self, data: &[T], out: &mut [T]) {
        for row in 0..self.rows {
            let line = &mut out[row * self.row_len..][..self.columns];
            line.iter_mut().enumerate().for_each(|(column, out)| *out = data[row + column * self.stride]);
        }
    }

    #[inline(always)]
    fn copy_square<T: Pod>(self, data: &[T], out: &mut [T]) {
        let mut square = [[data[0]; SIDE]; SIDE];
        for (column, values) in square.iter_mut().enumerate() {
            values.copy_from(&data[column * self.stride..][..SIDE]);
        }
        for (row, line) in transposed(square).iter().enumerate() {
            out[row * self.row_len..][..SIDE].copy_from(line);
        }
    }
}

/// Element `j` of row `i` becomes element `i` of row `j`. The rows of the lower and the upper half are interleaved
/// four times, for which processors have instructions.
#[inline(always)]
fn transposed<T: Pod>(mut rows: [[T; SIDE]; SIDE]) -> [[T; SIDE]; SIDE] {
    for _ in 0..SIDE.ilog2() {
        let before = rows;
        for (i, row) in rows.iter_mut().enumerate() {
            let (low, high) = (&before[i / 2], &before[i / 2 + SIDE / 2]);
            let start = i % 2 * SIDE / 2;
            for j in 0..SIDE / 2 {
                (row[2 * j], row[2 * j + 1]) = (low[start + j], high[start + j]);
            }
        }
    }
    rows
}
