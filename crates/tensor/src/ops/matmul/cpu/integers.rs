//! Products of integer matrices, which wrap.

use pagelock_memory::Result;

use super::{Matrix, Sizes};
use crate::cpu::{vectorized, vectorized_widely};
use crate::element::Num;
use crate::parallel::try_for_each_chunk_mut;
use crate::scratch;

/// Multiply-adds that make a task worth handing out.
const TASK_WORK: usize = 1 << 17;
/// Rows of a tile, whose sums stay in registers.
const ROWS: usize = 4;
/// The fewest rows for which columns are copied next to each other.
const MIN_ROWS: usize = 4 * ROWS;

pub(super) fn product<T: Num>(sizes: Sizes, a: Matrix<'_, T>, b: Matrix<'_, T>, c: &mut [T]) -> Result<()> {
    let Sizes { m, k, n } = sizes;
    let rows = TASK_WORK.div_ceil(k * n).next_multiple_of(MIN_ROWS).min(m);
    try_for_each_chunk_mut(c, rows * n, |task, c| {
        let a = Matrix { numbers: &a.numbers[task * rows * a.strides[0]..], ..a };
        let sizes = Sizes { m: c.len() / n, ..sizes };
        match sizes.m < ROWS {
            true => {
                let by_row = c.chunks_exact_mut(n).enumerate();
                by_row.for_each(|(i, c)| row((k, &a.numbers[i * a.strides[0]..], a.strides[1]), b, c));
                Ok(())
            }
            false => match size_of::<T>() {
                1 => tiles::<T, 64>(sizes, a, b, c),
                8 => tiles::<T, 8>(sizes, a, b, c),
                _ => tiles::<T, 16>(sizes, a, b, c),
            },
        }
    })
}

/// `c = a · b`, by columns that are copied next to each other.
fn tiles<T: Num, const COLUMNS: usize>(
    Sizes { m, k, n }: Sizes,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: &mut [T],
) -> Result<()> {
    scratch::with(k, |panel: &mut [[T; COLUMNS]]| {
        for first in (0..n).step_by(COLUMNS) {
            let width = COLUMNS.min(n - first);
            for (p, row) in panel.iter_mut().enumerate() {
                let from = &b.numbers[p * b.strides[0] + first * b.strides[1]..];
                row[..width].iter_mut().enumerate().for_each(|(j, to)| *to = from[j * b.strides[1]]);
            }
            for top in (0..m).step_by(ROWS) {
                let sums = tile((m - top).min(ROWS), Matrix { numbers: &a.numbers[top * a.strides[0]..], ..a }, panel);
                for (i, sums) in sums.iter().enumerate().take(m - top) {
                    c[(top + i) * n + first..][..width].copy_from_slice(&sums[..width]);
                }
            }
        }
        Ok(())
    })
}

/// The sums of up to [`ROWS`] rows of `a` with the columns of a panel.
fn tile<T: Num, const COLUMNS: usize>(rows: usize, a: Matrix<'_, T>, panel: &[[T; COLUMNS]]) -> [[T; COLUMNS]; ROWS] {
    // Where rows are missing, the last one is repeated; those sums are not used.
    let starts: [usize; ROWS] = std::array::from_fn(|i| i.min(rows - 1) * a.strides[0]);
    // AVX2 has no product of numbers of eight bytes.
    match size_of::<T>() {
        8 => vectorized_widely(
            #[inline(always)]
            || sums(a, starts, panel),
        ),
        _ => vectorized(
            #[inline(always)]
            || sums(a, starts, panel),
        ),
    }
}

#[inline(always)]
fn sums<T: Num, const COLUMNS: usize>(
    a: Matrix<'_, T>,
    starts: [usize; ROWS],
    panel: &[[T; COLUMNS]],
) -> [[T; COLUMNS]; ROWS] {
    let mut sums = [[T::ZERO; COLUMNS]; ROWS];
    for (p, b) in panel.iter().enumerate() {
        for (sums, start) in sums.iter_mut().zip(starts) {
            let factor = a.numbers[start + p * a.strides[1]];
            sums.iter_mut().zip(b).for_each(|(sum, &b)| *sum = sum.plus(factor.times(b)));
        }
    }
    sums
}

/// `c = a · b` for one row of `a`, whose numbers are `a_step` apart.
fn row<T: Num>((k, a, a_step): (usize, &[T], usize), b: Matrix<'_, T>, c: &mut [T]) {
    c.fill(T::ZERO);
    vectorized(
        #[inline(always)]
        || {
            for p in 0..k {
                let factor = a[p * a_step];
                let b_row = &b.numbers[p * b.strides[0]..];
                if b.strides[1] == 1 {
                    c.iter_mut().zip(b_row).for_each(|(c, &b)| *c = c.plus(factor.times(b)));
                } else {
                    c.iter_mut().enumerate().for_each(|(j, c)| *c = c.plus(factor.times(b_row[j * b.strides[1]])));
                }
            }
        },
    );
}
