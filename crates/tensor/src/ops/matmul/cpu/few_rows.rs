//! Products with few rows and a large right side. Each task computes some columns of the result. It copies these
//! columns of the right side to a contiguous buffer, some rows at a time, and multiplies all rows of the left side by
//! that chunk while it is in the cache. Half types are widened during the copy.

use pagelock_memory::Result;

use super::{Matrix, Sizes, in_pieces, narrow, real};
use crate::cpu::{self, CpuView, Stored};
use crate::element::{Num, Real};
use crate::inlined::{Slice, zip};
use crate::parallel::{for_each_chunk_mut, try_for_each_chunk_mut};
use crate::scratch;

/// Bytes per row of the columns that a task copies: three AVX-512 vectors.
const ROW_BYTES: usize = 192;
/// Rows that a task copies at a time; the copy stays in the L2 cache.
const DEPTH: usize = 1024;
/// With fewer rows of the right side, copying results would cost more than it gains.
const MIN_DEPTH: usize = 128;
/// Rows of the result that a task assembles from the column panels.
const TASK_ROWS: usize = 8;

/// An operand of a product as it is stored, `[k, n]`.
#[derive(Clone, Copy)]
pub(super) struct Side<'a, R> {
    pub(super) numbers: Stored<'a, R>,
    pub(super) strides: [usize; 2],
}

/// Whether this algorithm suits the product. It does not suit a right side of plain numbers with contiguous columns,
/// which can be read in place.
pub(super) fn suits<R>(Sizes { m, k, n }: Sizes, right: Side<'_, R>) -> bool {
    let in_columns = right.strides[0] == 1 && matches!(right.numbers, Stored::Halves(..));
    let are_few = (narrow::MIN_SIDE..=narrow::NARROW).contains(&m);
    are_few && k >= MIN_DEPTH && k * n > narrow::MAX_RIGHT && (right.strides[1] == 1 || in_columns)
}

pub(super) fn product<R: Real>(sizes: Sizes, a: Matrix<'_, R>, right: Side<'_, R>, c: &mut [R]) -> Result<()> {
    let Sizes { m, n, .. } = sizes;
    let width = ROW_BYTES / size_of::<R>();
    scratch::with(m * n, |results: &mut [R]| {
        try_for_each_chunk_mut(results, m * width, |task, results| {
            columns(sizes, a, right.part([0, task * width]), results)
        })?;
        for_each_chunk_mut(c, TASK_ROWS * n, |task, c| {
            for (row, c) in c.chunks_exact_mut(n).enumerate() {
                for (panel, c) in zip(results.chunks(m * width), c.chunks_mut(width)) {
                    c.copy_from(&panel[(task * TASK_ROWS + row) * c.len()..][..c.len()]);
                }
            }
        });
        Ok(())
    })
}

/// Computes the first columns of a product, as many as fit `results`.
fn columns<R: Real>(Sizes { m, k, .. }: Sizes, a: Matrix<'_, R>, right: Side<'_, R>, results: &mut [R]) -> Result<()> {
    let (n, depth) = (results.len() / m, DEPTH.min(k));
    scratch::with(depth * n + results.len(), |buffer| {
        let (buffer, sums) = buffer.split_at_mut(depth * n);
        in_pieces((0..k, depth), [results, sums], |first, k, results| {
            let a = Matrix { numbers: &a.numbers[first * a.strides[1]..], ..a };
            real(Sizes { m, k, n }, a, right.part([first, 0]).copied([k, n], buffer)?, results)
        })
    })
}

impl<'a, T: Num> Side<'a, T> {
    /// Casts to `U`, which is the same type as `T`.
    pub(super) fn cast<U: Num>(self) -> Side<'a, U> {
        Side { numbers: self.numbers.cast(), strides: self.strides }
    }
}

impl<'a, R: Real> Side<'a, R> {
    /// The part from this row and column on.
    pub(super) fn part(self, [row, column]: [usize; 2]) -> Side<'a, R> {
        let start = row * self.strides[0] + column * self.strides[1];
        Side { numbers: self.numbers.part(start, self.numbers.len() - start), ..self }
    }

    /// The first rows and columns as plain numbers: in place, or widened into `buffer`.
    pub(super) fn plain<'r>(self, sizes: [usize; 2], buffer: &'r mut [R]) -> Result<Matrix<'r, R>>
    where
        'a: 'r,
    {
        match self.numbers {
            Stored::Plain(numbers) => Ok(Matrix { numbers, strides: self.strides }),
            Stored::Halves(..) => self.copied(sizes, buffer),
        }
    }

    /// Copies the first rows and columns to `buffer` as plain numbers: row by row, or column by column if columns are
    /// contiguous.
    fn copied<'r>(self, [rows, columns]: [usize; 2], buffer: &'r mut [R]) -> Result<Matrix<'r, R>> {
        let [row, column] = self.strides;
        let (shape, steps, strides) = match (row, column) {
            (1, 2..) => ([columns, rows], [column, row], [1, rows]),
            _ => ([rows, columns], [row, column], [columns, 1]),
        };
        let buffer = &mut buffer[..rows * columns];
        match self.numbers {
            Stored::Plain(numbers) => {
                cpu::copy(CpuView { data: numbers.into(), shape: &shape, strides: &steps }, buffer);
            }
            Stored::Halves(bits, half) => scratch::with(buffer.len(), |copied: &mut [u16]| {
                cpu::copy(CpuView { data: bits.into(), shape: &shape, strides: &steps }, copied);
                half.widen(copied, R::f32s(buffer));
                Ok(())
            })?,
        }
        Ok(Matrix { numbers: buffer, strides })
    }
}
