//! Large products, computed by the `gemm` crates. There is one for each type; the common one would also bring
//! complex numbers.
//!
//! The result is cut into blocks, each of which is computed as a product of its own. `gemm` packs the right side for
//! every block. If the rows of the right side are not contiguous, packing takes as long as the product, so it is
//! transposed first.

use pagelock_memory::Result;
use pulp::{Simd, WithSimd};

use super::{Matrix, Sizes};
use crate::element::{DType, Real};
use crate::inlined::{Array, from_fn};
use crate::lanes;
use crate::parallel::{for_each_chunk_mut, run};
use crate::scratch;

/// Rows of the result per block.
const BLOCK_ROWS: usize = 256;

/// The fewest columns of a block if the result is cut along its columns.
const MIN_BLOCK_COLUMNS: usize = 256;

/// A result with few rows is cut along its columns, too, into about this many blocks. If that gives fewer than
/// `FEW_BLOCKS`, blocks get fewer rows, but at least `MIN_ROWS`.
const ENOUGH_BLOCKS: usize = 8;
const FEW_BLOCKS: usize = 4;
const MIN_ROWS: usize = 64;

/// Multiply-adds that make a block worth handing out: some thirty microseconds.
const BLOCK_WORK: usize = 4 << 20;

/// With fewer rows than this, a right side is not worth transposing.
const TRANSPOSE_ROWS: usize = 64;

/// The largest part of a right side that is transposed at once, in elements.
const TRANSPOSE_LEN: usize = 4 << 20;

pub(super) fn product<R: Real>(sizes: Sizes, a: Matrix<'_, R>, b: Matrix<'_, R>, c: &mut [R]) -> Result<()> {
    let Sizes { m, k, n } = sizes;
    if b.strides[1] == 1 || m < TRANSPOSE_ROWS {
        blocks(sizes, a, b, c, n);
        return Ok(());
    }
    let width = (TRANSPOSE_LEN / k).clamp(1, n);
    scratch::with(k * width, |transposed| {
        for first in (0..n).step_by(width) {
            let width = width.min(n - first);
            let part = Matrix { numbers: &b.numbers[first * b.strides[1]..], ..b };
            transpose(k, width, part, &mut transposed[..k * width]);
            let b = Matrix { numbers: &transposed[..k * width], strides: [width, 1] };
            blocks(Sizes { n: width, ..sizes }, a, b, &mut c[first..], n);
        }
        Ok(())
    })
}

/// `c = a · b` block by block; the rows of `c` are `c_stride` apart.
fn blocks<R: Real>(sizes: Sizes, a: Matrix<'_, R>, b: Matrix<'_, R>, c: &mut [R], c_stride: usize) {
    let Sizes { m, k, n } = sizes;
    let [rows, columns] = block_size(sizes);
    let across = n.div_ceil(columns);
    assert!(c.len() >= (m - 1) * c_stride + n, "the result has room for all rows");
    let place = Place(c.as_mut_ptr());
    run(m.div_ceil(rows) * across, |block| {
        let (i, j) = (block / across * rows, block % across * columns);
        let sizes = Sizes { m: rows.min(m - i), k, n: columns.min(n - j) };
        let a = Matrix { numbers: &a.numbers[i * a.strides[0]..], ..a };
        let b = Matrix { numbers: &b.numbers[j * b.strides[1]..], ..b };
        place.block(sizes, a, b, i * c_stride + j, c_stride);
    });
}

/// The size of a block, `[rows, columns]`; depends on the sizes of the product only.
fn block_size(Sizes { m, k, n }: Sizes) -> [usize; 2] {
    if m.saturating_mul(k).saturating_mul(n) < 2 * BLOCK_WORK {
        return [m, n];
    }
    let rows = BLOCK_ROWS.max(BLOCK_WORK.div_ceil(k * n)).min(m);
    let across = ENOUGH_BLOCKS.div_ceil(m.div_ceil(rows)).min(n / MIN_BLOCK_COLUMNS).max(1);
    let rows = match m.div_ceil(rows) * across < FEW_BLOCKS {
        true => m.div_ceil(FEW_BLOCKS.div_ceil(across)).max(MIN_ROWS).max(BLOCK_WORK.div_ceil(k * n)).min(m),
        false => rows,
    };
    // Whole vectors, so that no column is computed twice.
    [rows, n.div_ceil(across).next_multiple_of(64)]
}

/// Where the result begins.
struct Place<R>(*mut R);

// SAFETY: tasks write through the pointer only to blocks that do not overlap, and `R` may be sent to another thread.
unsafe impl<R: Real> Sync for Place<R> {}

impl<R: Real> Place<R> {
    /// Computes one block, whose element `[i, j]` is element `start + i * c_stride + j` of the result.
    fn block(&self, Sizes { m, k, n }: Sizes, a: Matrix<'_, R>, b: Matrix<'_, R>, start: usize, c_stride: usize) {
        let [a_rows, a_columns] = a.strides.mapped(|stride| stride as isize);
        let [b_rows, b_columns] = b.strides.mapped(|stride| stride as isize);
        let c = self.0.wrapping_add(start);
        assert!(a.numbers.len() > (m - 1) * a.strides[0] + (k - 1) * a.strides[1], "the left side is whole");
        assert!(b.numbers.len() > (k - 1) * b.strides[0] + (n - 1) * b.strides[1], "the right side is whole");
        // `gemm` prefers a column-major result: the transposed product, bᵀ · aᵀ.
        let (left, right) = (b.numbers.as_ptr(), a.numbers.as_ptr());
        macro_rules! product {
            ($gemm:path, $real:ty) => {
                // SAFETY: `gemm` reads `a[i * a_rows + p * a_columns]` for i < m, p < k and `b` likewise, which the
                // two assertions above put inside their slices, and does not read `c` (`read_dst` is false). It writes
                // `c[i * c_stride + j]` for i < m, j < n: `blocks` has asserted that `c` has room for the last row,
                // borrows it mutably for as long as tasks run, and gives each block to one task. The casts change
                // nothing: `R` is `$real`, whose `DTYPE` was matched.
                unsafe {
                    $gemm()(
                        n,
                        m,
                        k,
                        c.cast::<$real>(),
                        c_stride as isize,
                        1,
                        false,
                        left.cast::<$real>(),
                        b_rows,
                        b_columns,
                        right.cast::<$real>(),
                        a_rows,
                        a_columns,
                        0.0,
                        1.0,
                        false,
                        false,
                        false,
                        gemm_common::Parallelism::None,
                    );
                }
            };
        }
        match R::DTYPE {
            DType::F64 => product!(gemm_f64::gemm::f64::get_gemm_fn, f64),
            _ => product!(gemm_f32::gemm::f32::get_gemm_fn, f32),
        }
    }
}

/// The side of the squares that are transposed in registers, in elements.
const SQUARE: usize = 8;

/// Rows of the transposed matrix per task.
const TASK_ROWS: usize = 64;

/// Copies `from` to `to`, which is contiguous with shape `[rows, columns]`; the rows of `from` are not contiguous.
pub(super) fn transpose<R: Real>(rows: usize, columns: usize, from: Matrix<'_, R>, to: &mut [R]) {
    debug_assert_eq!(to.len(), rows * columns);
    for_each_chunk_mut(to, TASK_ROWS * columns, |task, to| {
        let from = Matrix { numbers: &from.numbers[task * TASK_ROWS * from.strides[0]..], ..from };
        lanes::dispatch(Transpose { columns, from, to });
    });
}

struct Transpose<'a, R> {
    columns: usize,
    from: Matrix<'a, R>,
    to: &'a mut [R],
}

impl<R: Real> WithSimd for Transpose<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Transpose { columns, from: Matrix { numbers, strides }, to } = self;
        let rows = to.len() / columns;
        for i in (0..rows).step_by(SQUARE) {
            for j in (0..columns).step_by(SQUARE) {
                let height = SQUARE.min(rows - i);
                let width = SQUARE.min(columns - j);
                let start = i * strides[0] + j * strides[1];
                if strides[0] == 1 && height == SQUARE && width == SQUARE {
                    square(&numbers[start..], strides[1], &mut to[i * columns + j..], columns);
                    continue;
                }
                for (row, column) in (0..height).flat_map(|row| (0..width).map(move |column| (row, column))) {
                    to[(i + row) * columns + j + column] = numbers[start + row * strides[0] + column * strides[1]];
                }
            }
        }
    }
}

/// Transposes a square whose columns are contiguous.
#[inline(always)]
fn square<R: Real>(from: &[R], from_stride: usize, to: &mut [R], to_stride: usize) {
    let columns: [[R; SQUARE]; SQUARE] =
        from_fn(|j| *from[j * from_stride..].first_chunk().expect("the square is inside"));
    for i in 0..SQUARE {
        let row: &mut [R; SQUARE] = to[i * to_stride..].first_chunk_mut().expect("the square is inside");
        *row = from_fn(|j| columns[j][i]);
    }
}
