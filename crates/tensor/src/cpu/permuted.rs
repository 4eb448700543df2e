//! Reductions in which neighboring results are made of elements that are far apart, as channels are after `permute`.
//! Results whose elements are close in memory are computed one after another, and then moved to their positions.

use super::walk::Dims;
use super::{CHUNK, StoredMut, Value};
use crate::element::Computing;

/// Results that are computed before they are moved.
const BUFFER_LEN: usize = 512;
/// The most parts if there are few rows, and the fewest rows of all matrices together, so that threads have enough
/// work.
const PARTS: usize = 16;
/// The fewest rows of a matrix.
const FEW: usize = 8;

/// The results as matrices, whose rows are closer to each other in memory than their columns.
pub(super) struct ColumnwiseResults {
    /// The dimensions outside of the matrices.
    outer: Dims,
    /// The numbers of rows and of columns, and the distances between neighbors.
    rows: (usize, usize),
    columns: (usize, usize),
    /// The number of elements that make one result.
    len: usize,
}

impl ColumnwiseResults {
    /// `None` if neighboring results are close in memory already, or if there are too few rows for it to pay off.
    pub(super) fn find(kept: &Dims, len: usize) -> Option<ColumnwiseResults> {
        let (shape, strides) = (kept.shape(), kept.strides());
        let (&[ref sizes @ .., n_rows, n_columns], &[ref distances @ .., down, right]) = (shape, strides) else {
            return None;
        };
        let outer = Dims::of(sizes, distances);
        let are_many = n_rows >= FEW && outer.len() * n_rows >= PARTS && n_rows * n_columns * len > CHUNK;
        (are_many && 0 < down && down < right).then_some(ColumnwiseResults {
            outer,
            rows: (n_rows, down),
            columns: (n_columns, right),
            len,
        })
    }

    /// Calls `compute(first, rows, out)` for all results, for some rows of a column at a time: `first` is the offset
    /// of the first row's elements, and `rows` has the rows as its dimension.
    pub(super) fn write<U: Computing>(
        &self,
        out: StoredMut<'_, U>,
        compute: &(dyn Fn(usize, Dims, StoredMut<'_, U>) + Sync),
    ) {
        let (n_rows, n_columns) = (self.rows.0, self.columns.0);
        let all_rows = out.len() / n_columns;
        let worth_it = CHUNK / (n_columns * self.len);
        let chunk_rows = worth_it.max(all_rows.div_ceil(PARTS).min(64)).clamp(1, BUFFER_LEN);
        out.for_each_chunk(chunk_rows * n_columns, &|i, mut out| {
            let (mut row, mut at) = (i * chunk_rows, 0);
            while at < out.len() {
                let n = (n_rows - row % n_rows).min((out.len() - at) / n_columns);
                self.write_rows((row, n), out.part(at, n * n_columns), compute);
                (row, at) = (row + n, at + n * n_columns);
            }
        });
    }

    /// Computes `n` rows of a matrix. `row` is the number of the first among the rows of all matrices.
    fn write_rows<U: Computing>(
        &self,
        (row, n): (usize, usize),
        mut out: StoredMut<'_, U>,
        compute: &(dyn Fn(usize, Dims, StoredMut<'_, U>) + Sync),
    ) {
        let ((n_rows, down), (n_columns, right)) = (self.rows, self.columns);
        let first = self.outer.offset(row / n_rows) + row % n_rows * down;
        let rows = Dims::of(&[n], &[down]);
        for column in 0..n_columns {
            let first = first + column * right;
            match &mut out {
                StoredMut::Plain(out) => {
                    let buffer = &mut [U::ZERO; BUFFER_LEN][..n];
                    compute(first, rows, StoredMut::Plain(buffer));
                    to_column(buffer, out, column);
                }
                StoredMut::Halves(out, half) => {
                    let buffer = &mut [0; BUFFER_LEN][..n];
                    compute(first, rows, StoredMut::Halves(buffer, *half));
                    to_column(buffer, out, column);
                }
            }
        }
    }
}

/// Moves results to a column of a matrix with as many rows.
fn to_column<B: Value>(results: &[B], matrix: &mut [B], column: usize) {
    let n_columns = matrix.len() / results.len();
    for (i, &result) in results.iter().enumerate() {
        matrix[i * n_columns + column] = result;
    }
}
