//! Elementwise loops over operands of which one is transposed: it is contiguous along a dimension that is not the
//! innermost, as in the sum of a matrix and a transposed one. The loops run over blocks of rows and columns, so that
//! each cache line is read or written once, as a whole.

use std::ops::Range;

use super::source::AlignedBuffer;
use super::strided_zip::StridedZip;
use super::walk::read_lines;
use super::{CHUNK, CpuView, Stored, StoredMut};
use crate::element::Computing;
use crate::inlined::Array;
use crate::parallel::{Columns, for_each_columns_mut, num_threads};

/// The most columns of a block: a run of this many elements is long enough for hardware prefetching.
const COLUMNS: usize = 512;
/// Bytes of a cache line. A block has at least this many bytes of each column.
const LINE: usize = 64;
/// The fewest columns in a line for which blocks pay off.
const FEWEST_COLUMNS: usize = 64;

/// Computes a piece of the destination from a piece of each operand.
type Work<'w, T, A, const N: usize> = dyn Fn(StoredMut<'_, T>, &[Stored<'_, A>; N]) + Sync + 'w;

/// A loop over `N` operands, block by block. Dimensions outside `row_dim` are matrices, those inside it are columns.
pub(super) struct Blocks<'a, A, const N: usize> {
    operands: [CpuView<'a, A>; N],
    sides: StridedZip<N>,
    /// The dimension of the rows.
    row_dim: usize,
    n_rows: usize,
    row_len: usize,
    /// The number of rows that share a cache line of a column.
    line_rows: usize,
}

impl<'a, A: Computing, const N: usize> Blocks<'a, A, N> {
    /// `None` where blocks do not help.
    pub(super) fn find(operands: [CpuView<'a, A>; N]) -> Option<Self> {
        let sides = StridedZip::of(operands.first()?.shape, operands.mapped(|operand| operand.strides));
        let (line_len, steps) = sides.line();
        let is_other = |dim: usize| (0..N).any(|i| steps[i] > 1 && sides.dim(dim).1[i] == 1);
        let row_dim = (0..sides.rank() - 1).find(|&dim| is_other(dim))?;
        let (n_rows, row_len) = (sides.dim(row_dim).0, sides.count(row_dim + 1..sides.rank()));
        let are_halves = operands.iter().all(|operand| matches!(operand.data, Stored::Halves(..)));
        let line_rows = LINE / if are_halves { size_of::<u16>() } else { size_of::<A>() };
        let are_long = line_len >= FEWEST_COLUMNS || line_len == row_len;
        are_long.then_some(Blocks { operands, sides, row_dim, n_rows, row_len, line_rows })
    }

    /// Calls `work` with every piece of a contiguous destination, to write or change it.
    pub(super) fn run<T: Computing>(&self, mut dst: StoredMut<'_, T>, work: &Work<'_, T, A, N>) {
        let Blocks { n_rows, row_len, line_rows, .. } = *self;
        let matrix_len = n_rows * row_len;
        let n_matrices = dst.len() / matrix_len;
        if n_matrices >= 2 * num_threads() {
            let matrices = (CHUNK / matrix_len).max(1);
            return dst.for_each_chunk(matrices * matrix_len, &|task, mut dst| {
                let mut buffers = [const { None }; N];
                for i in 0..dst.len() / matrix_len {
                    self.rows(dst.part(i * matrix_len, matrix_len), (task * matrices + i, 0), &mut buffers, work);
                }
            });
        }
        for matrix in 0..n_matrices {
            let dst = dst.part(matrix * matrix_len, matrix_len);
            if row_len <= n_rows.max(COLUMNS) {
                let rows = CHUNK.div_ceil(row_len).next_multiple_of(line_rows);
                dst.for_each_chunk(rows * row_len, &|task, dst| {
                    self.rows(dst, (matrix, task * rows), &mut [const { None }; N], work);
                });
                continue;
            }
            let width = CHUNK.div_ceil(n_rows).next_multiple_of(COLUMNS);
            let block = |first: usize, width: usize| (matrix, 0..n_rows, first..first + width);
            match dst {
                StoredMut::Plain(dst) => for_each_columns_mut(dst, row_len, width, |i, dst| {
                    let block = block(i * width, dst.width());
                    self.part(block, &mut [const { None }; N], &mut |row, columns, sources| {
                        work(StoredMut::Plain(piece(dst, row, i * width, columns)), sources);
                    });
                }),
                StoredMut::Halves(dst, half) => for_each_columns_mut(dst, row_len, width, |i, dst| {
                    let block = block(i * width, dst.width());
                    self.part(block, &mut [const { None }; N], &mut |row, columns, sources| {
                        work(StoredMut::Halves(piece(dst, row, i * width, columns), half), sources);
                    });
                }),
            }
        }
    }

    /// Computes rows of a matrix, from number `first` on, into `dst`.
    fn rows<T: Computing>(
        &self,
        mut dst: StoredMut<'_, T>,
        (matrix, first): (usize, usize),
        buffers: &mut [Option<BlockBuffer>; N],
        work: &Work<'_, T, A, N>,
    ) {
        let row_len = self.row_len;
        let rows = first..first + dst.len() / row_len;
        self.part((matrix, rows, 0..row_len), buffers, &mut |row, columns, sources| {
            work(dst.part((row - first) * row_len + columns.start, columns.len()), sources);
        });
    }

    /// Calls `work(row, columns, sources)` for pieces of these rows and columns of a matrix. If whole rows are
    /// contiguous in all operands, a piece spans several rows, and `columns` is longer than a row.
    fn part(
        &self,
        (matrix, rows, columns): (usize, Range<usize>, Range<usize>),
        buffers: &mut [Option<BlockBuffer>; N],
        work: &mut dyn FnMut(usize, Range<usize>, &[Stored<'_, A>; N]),
    ) {
        let Blocks { operands, sides, row_dim, row_len, line_rows, .. } = self;
        let ((line_len, steps), (_, distances)) = (sides.line(), sides.dim(*row_dim));
        let outside = sides.starts(0..*row_dim, matrix);
        let mut column = columns.start;
        while column < columns.end {
            let (line, in_line) = (column / line_len, column % line_len);
            let len = COLUMNS.min(line_len - in_line).min(columns.end - column);
            let block_rows = COLUMNS / len * line_rows;
            let inside = sides.starts(row_dim + 1..sides.rank() - 1, line);
            for first in rows.clone().step_by(block_rows) {
                let n = block_rows.min(rows.end - first);
                let mut sources = [Rows { data: Stored::Plain(&[][..]), distance: 0 }; N];
                for (i, (source, buffer)) in sources.iter_mut().zip(buffers.iter_mut()).enumerate() {
                    let start = outside[i] + inside[i] + first * distances[i] + in_line * steps[i];
                    let operand = Rows { data: operands[i].data.from(start), distance: distances[i] };
                    *source = operand.in_order(steps[i], [n, len], buffer);
                }
                let follow = len == *row_len && sources.iter().all(|source| source.distance == len);
                let (pieces, len) = if follow { (1, n * len) } else { (n, len) };
                for row in 0..pieces {
                    let pieces = sources.each_ref().mapped(|rows| rows.data.part(row * rows.distance, len));
                    work(first + row, column..column + len, &pieces);
                }
            }
            column += len;
        }
    }
}

/// These columns of a row of `dst`, whose own columns begin at number `first`.
fn piece<'d, B>(dst: &'d mut Columns<'_, B>, row: usize, first: usize, columns: Range<usize>) -> &'d mut [B] {
    let row = dst.row_mut(row).expect("a row of the matrix");
    &mut row[columns.start - first..columns.end - first]
}

/// A buffer for a block.
type BlockBuffer = AlignedBuffer<u8, { LINE * COLUMNS }>;

/// Rows of an operand, and the distance from one row to the next.
#[derive(Clone, Copy)]
struct Rows<'a, A> {
    data: Stored<'a, A>,
    distance: usize,
}

impl<'a, A: Computing> Rows<'a, A> {
    /// The rows as contiguous elements: in place if `step` is 1, else copied to `buffer`.
    fn in_order<'r>(self, step: usize, [rows, len]: [usize; 2], buffer: &'r mut Option<BlockBuffer>) -> Rows<'r, A>
    where
        'a: 'r,
    {
        if step == 1 {
            return self;
        }
        let AlignedBuffer(buffer) = buffer.get_or_insert(AlignedBuffer([0; _]));
        // A broadcast row is read once.
        let (rows, distance) = if self.distance == 0 { (1, 0) } else { (rows, len) };
        let distances = [self.distance, step];
        let data = match self.data {
            Stored::Plain(data) => {
                let buffer = bytemuck::cast_slice_mut(&mut buffer[..rows * len * size_of::<A>()]);
                read_lines(data, distances, len, buffer);
                Stored::Plain(&*buffer)
            }
            Stored::Halves(data, half) => {
                let buffer = bytemuck::cast_slice_mut(&mut buffer[..rows * len * size_of::<u16>()]);
                read_lines(data, distances, len, buffer);
                Stored::Halves(&*buffer, half)
            }
        };
        Rows { data, distance }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::super::map::map2;
    use super::super::testing::{Stores, Strided, stored, stored_mut};
    use super::*;

    /// The sum of two views of one shape, of which both may be permuted.
    fn check<T: Stores>(name: &str, shape: &[usize], strides: [&[usize]; 2], of: impl Fn(i32) -> T) {
        let views = strides.mapped(|strides| Strided::new(shape.to_vec(), strides.to_vec()));
        let numbers = views.each_ref().mapped(|view| view.data.iter().map(|&x| of(x % 50)).collect::<Vec<T>>());
        let view = |i: usize| CpuView { data: stored(&numbers[i]), shape, strides: strides[i] };
        assert!(Blocks::find([view(0), view(1)]).is_some(), "{name} {shape:?} has no blocks");

        let mut out = vec![of(0); shape.iter().product()];
        map2(view(0), view(1), stored_mut(&mut out), |a, b| a.plus(b));

        let [a, b] = views.mapped(|view| view.values());
        let expected: Vec<T> = a.iter().zip(&b).map(|(a, b)| of(a % 50 + b % 50)).collect();
        assert!(out == expected, "{name} {shape:?} {strides:?}");
    }

    #[test]
    fn sums_of_views_that_lie_differently_match_index_arithmetic() {
        let cases: [(&[usize], [&[usize]; 2]); 11] = [
            (&[70, 130], [&[130, 1], &[1, 70]]),
            (&[70, 1030], [&[1, 71], &[1030, 1]]),
            (&[30_000, 3], [&[3, 1], &[1, 30_000]]),
            (&[3_000, 70], [&[1, 3_000], &[70, 1]]),
            (&[100, 40, 3], [&[120, 3, 1], &[120, 1, 40]]),
            (&[3, 30_000], [&[1, 3], &[30_000, 1]]),
            (&[5, 40, 100], [&[4_000, 100, 1], &[4_000, 1, 40]]),
            (&[2, 40, 3, 600], [&[72_000, 1_800, 600, 1], &[72_000, 1, 24_000, 40]]),
            (&[40, 3, 200], [&[1, 8_000, 40], &[0, 0, 0]]),
            (&[33, 600], [&[1, 33], &[0, 1]]),
            (&[33, 600], [&[7, 0], &[1, 40]]),
        ];
        for (shape, strides) in cases {
            check("f32", shape, strides, |x| x as f32);
            check("f64", shape, strides, f64::from);
            check("i64", shape, strides, i64::from);
            check("bf16", shape, strides, |x| bf16::from_f32(x as f32));
            check("u8", shape, strides, |x| x as u8);
        }
    }
}
