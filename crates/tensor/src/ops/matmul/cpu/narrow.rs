//! Products with few rows or columns, and small ones: register tiles that read the operands directly, mostly without
//! packing. For `c[m, n] = a[m, k] · b[k, n]`, the first line that applies decides (`product`):
//!
//! ```text
//! a, b contiguous along   sizes
//! k, k                    small, k ≤ SHORT · m, k · n ≤ MAX_TRANSPOSED     `TimesRows`, b transposed
//! k, k                    m or n ≤ NARROW                                  `RowsTimesColumns`
//! m, n                    small, n ≥ MANY_COLUMNS, k ≤ PACKED_ROWS,        `TimesRows`, a transposed
//!                         m · k ≤ MAX_LEFT
//! any, n                  small                                            `TimesRows`
//! any, k                  small, m > NARROW                                `TimesRows`, b transposed
//!
//! small: m and n ≥ MIN_SIDE, k · n ≤ MAX_RIGHT
//! ```

use pagelock_memory::Result;
use pulp::{Simd, WithSimd};

use super::{Matrix, Sizes, large};
use crate::element::Real;
use crate::inlined::{Slice, zip};
use crate::lanes::{self, Dots, Numbers, Registers, StridedRows, Tiled, tile_rows};
use crate::parallel::for_each_chunk_mut;
use crate::scratch;

/// With at most this many rows or columns, packing (which transposes the right side) costs more than it gains: each
/// packed number is read at most this often.
pub(super) const NARROW: usize = 64;

/// The largest right side of a small product, in elements. A product reads it once per tile of rows, from the L2 cache:
/// larger ones do not stay there (512 KiB of `f32`).
pub(super) const MAX_RIGHT: usize = 128 << 10;

/// The fewest rows and columns of a small product. With fewer rows, each number of the right side is used too rarely;
/// with fewer columns, lanes of vectors stay empty.
pub(super) const MIN_SIDE: usize = 4;

/// Up to `k = SHORT · m` and `MAX_TRANSPOSED` elements of the right side, transposing that side (`k · n` elements) takes
/// less time than adding up the lanes of each of the `m · n` dot products.
const SHORT: usize = 2;
const MAX_TRANSPOSED: usize = 8 << 10;

/// A right side of at most this many rows is packed panel by panel, because rows that are a power of two apart share
/// few sets of the L1 cache.
const PACKED_ROWS: usize = 64;
/// A right side of at most this many bytes fits the L1 cache without packing.
const SPREAD_BYTES: usize = 16 << 10;
/// The most vectors of a panel.
const MAX_VECTORS: usize = 3;
/// With fewer rows of the result, a panel is read too rarely to be worth packing.
const MANY_ROWS: usize = 16;

/// A left side that is contiguous along `m` is transposed if the right side is packed and has at least this many
/// columns.
const MANY_COLUMNS: usize = 128;
/// The largest left side that is transposed, in elements. A larger one does not stay in the L2 cache until it is read
/// (256 KiB of `f32`).
const MAX_LEFT: usize = 64 << 10;

/// Multiply-adds that make a task worth handing out: some ten microseconds.
const TASK_WORK: usize = 1 << 20;
/// Elements of the left side that make a task worth handing out: with few columns, reading them takes most of the time.
const TASK_LEN: usize = 128 << 10;

/// Computes the product if it is narrow or small; else returns `None`.
pub(super) fn product<R: Real>(sizes: Sizes, a: Matrix<'_, R>, b: Matrix<'_, R>, c: &mut [R]) -> Option<Result<()>> {
    let Sizes { m, k, n } = sizes;
    let is_small = m.min(n) >= MIN_SIDE && k * n <= MAX_RIGHT;
    if m.min(n) <= NARROW && a.strides[1] == 1 && b.strides[0] == 1 {
        let is_short = k <= SHORT * m && k * n <= MAX_TRANSPOSED;
        return Some(match is_small && is_short {
            true => with_right_transposed(sizes, a, b, c),
            false => lanes::dispatch(RowsTimesColumns { sizes, a, b, c }),
        });
    }
    if is_small && b.strides[1] == 1 {
        let is_read_often = n >= MANY_COLUMNS && k <= PACKED_ROWS && m * k <= MAX_LEFT;
        return Some(match a.strides[1] != 1 && is_read_often {
            true => with_left_transposed(sizes, a, b, c),
            false => {
                lanes::dispatch(TimesRows { sizes, a, b, c });
                Ok(())
            }
        });
    }
    (is_small && b.strides[0] == 1 && m > NARROW).then(|| with_right_transposed(sizes, a, b, c))
}

/// The product `[rows, k] · [k, n]` of contiguous matrices by `TimesRows`, whatever their sizes: each sum is one chain of
/// fused multiply-adds, so its bits do not depend on how many rows and columns are computed together.
pub(crate) fn chained<R: Real>([k, n]: [usize; 2], a: &[R], b: &[R], c: &mut [R]) {
    let (a, b) = (Matrix { numbers: a, strides: [k, 1] }, Matrix { numbers: b, strides: [n, 1] });
    lanes::dispatch(TimesRows { sizes: Sizes { m: c.len() / n, k, n }, a, b, c });
}

/// With the right side transposed first, so that it is contiguous along `n`.
fn with_right_transposed<R: Real>(sizes: Sizes, a: Matrix<'_, R>, b: Matrix<'_, R>, c: &mut [R]) -> Result<()> {
    let Sizes { k, n, .. } = sizes;
    scratch::with(k * n, |transposed| {
        large::transpose(k, n, b, transposed);
        lanes::dispatch(TimesRows { sizes, a, b: Matrix { numbers: transposed, strides: [n, 1] }, c });
        Ok(())
    })
}

/// With the left side transposed first, so that its rows are contiguous.
fn with_left_transposed<R: Real>(sizes: Sizes, a: Matrix<'_, R>, b: Matrix<'_, R>, c: &mut [R]) -> Result<()> {
    let Sizes { m, k, .. } = sizes;
    scratch::with(m * k, |transposed| {
        large::transpose(m, k, a, transposed);
        lanes::dispatch(TimesRows { sizes, a: Matrix { numbers: transposed, strides: [k, 1] }, b, c });
        Ok(())
    })
}

/// Rows of the result per task.
fn task_rows(Sizes { m, k, n }: Sizes) -> usize {
    TASK_WORK.div_ceil(k * n).min(TASK_LEN.div_ceil(k)).next_multiple_of(8).min(m)
}

/// Both sides are contiguous along `k`: every element is a dot product.
struct RowsTimesColumns<'a, R> {
    sizes: Sizes,
    a: Matrix<'a, R>,
    b: Matrix<'a, R>,
    c: &'a mut [R],
}

impl<R: Real> WithSimd for RowsTimesColumns<'_, R> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Result<()> {
        let RowsTimesColumns { sizes, a, b, c } = self;
        let (rows, n) = (task_rows(sizes), sizes.n);
        scratch::with(n, |starts: &mut [usize]| {
            starts.iter_mut().enumerate().for_each(|(j, start)| *start = j * b.strides[1]);
            let starts = &*starts;
            for_each_chunk_mut(c, rows * n, |task, sums| {
                sums.set_to(R::ZERO);
                let left = StridedRows { numbers: &a.numbers[task * rows * a.strides[0]..], distance: a.strides[0] };
                let multiplier = Numbers::<S, R>::new(simd);
                Dots { multiplier, left, right: b.numbers, starts, len: sizes.k, sums }.run();
            });
            Ok(())
        })
    }
}

/// The right side is contiguous along `n`: each row of the result is a weighted sum of rows of the right side.
struct TimesRows<'a, R> {
    sizes: Sizes,
    a: Matrix<'a, R>,
    b: Matrix<'a, R>,
    c: &'a mut [R],
}

impl<R: Real> WithSimd for TimesRows<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let TimesRows { sizes, a, b, c } = self;
        let rows = task_rows(sizes);
        for_each_chunk_mut(c, rows * sizes.n, |task, c| {
            let a = Matrix { numbers: &a.numbers[task * rows * a.strides[0]..], ..a };
            let sizes = Sizes { m: c.len() / sizes.n, ..sizes };
            match tile_rows::<S>(sizes.m) {
                8 if Registers::<S>::ARE_MANY => simd.vectorize(Tiles::<R, 8> { sizes, a, b, c }),
                6 => simd.vectorize(Tiles::<R, 6> { sizes, a, b, c }),
                5 => simd.vectorize(Tiles::<R, 5> { sizes, a, b, c }),
                4 => simd.vectorize(Tiles::<R, 4> { sizes, a, b, c }),
                2 => simd.vectorize(Tiles::<R, 2> { sizes, a, b, c }),
                1 => simd.vectorize(Tiles::<R, 1> { sizes, a, b, c }),
                rows => unreachable!("`tile_rows` does not return {rows}"),
            }
        });
    }
}

/// The rows of a task, in tiles of `M`.
struct Tiles<'a, R, const M: usize> {
    sizes: Sizes,
    a: Matrix<'a, R>,
    b: Matrix<'a, R>,
    c: &'a mut [R],
}

impl<R: Real, const M: usize> WithSimd for Tiles<'_, R, M> {
    type Output = ();

    /// Computes panels of three vectors where `3·M` sums and their operands fit the registers, else narrower ones.
    /// All rows of a panel are computed before the next panel.
    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let n_vectors = self.sizes.n.div_ceil(R::lanes::<S>());
        let (mut at, mut buffer) = (0, None);
        if Tiled::<S, M, 3>::FITS {
            // Four vectors are computed as two and two, not as three and one.
            while at + 3 == n_vectors || at + 5 <= n_vectors {
                self.panel::<S, 3>(simd, at, &mut buffer);
                at += 3;
            }
        }
        if Tiled::<S, M, 2>::FITS {
            while at + 2 <= n_vectors {
                self.panel::<S, 2>(simd, at, &mut buffer);
                at += 2;
            }
        }
        while at < n_vectors {
            self.panel::<S, 1>(simd, at, &mut buffer);
            at += 1;
        }
    }
}

/// Buffer for a packed panel, made when the first panel is packed.
type PanelBuffer<V> = Option<[V; MAX_VECTORS * PACKED_ROWS]>;

impl<R: Real, const M: usize> Tiles<'_, R, M> {
    /// Computes the columns of vectors `at..at + P` for all rows.
    #[inline(always)]
    fn panel<S: Simd, const P: usize>(&mut self, simd: S, at: usize, buffer: &mut PanelBuffer<R::Vector<S>>) {
        let (Sizes { m, k, .. }, Matrix { numbers, strides }) = (self.sizes, self.a);
        let b = Matrix { numbers: &self.b.numbers[at * R::lanes::<S>()..], ..self.b };
        let width = P * R::lanes::<S>();
        let is_contiguous = b.strides[0] == width && b.numbers.len() >= k * width;
        let is_spread = k * b.strides[0] * size_of::<R>() > SPREAD_BYTES && m >= MANY_ROWS && k <= PACKED_ROWS;
        if strides[1] == 1 && (is_contiguous || is_spread) {
            let packed = if is_contiguous {
                &R::vectors::<S>(b.numbers).as_chunks::<P>().0[..k]
            } else {
                if buffer.is_none() {
                    *buffer = Some([R::splat(simd, R::ZERO); MAX_VECTORS * PACKED_ROWS]);
                }
                let Some(buffer) = buffer else { unreachable!("it was just made") };
                let packed = &mut buffer.as_chunks_mut::<P>().0[..k];
                for (p, vectors) in packed.iter_mut().enumerate() {
                    *vectors = R::first_vectors(simd, &b.numbers[p * b.strides[0]..]);
                }
                packed
            };
            for first in (0..m).step_by(M) {
                let mut rows = [&numbers[..0]; M];
                for (i, row) in rows.iter_mut().enumerate() {
                    *row = &numbers[(first + i).min(m - 1) * strides[0]..][..k];
                }
                self.write(simd, first, at, sums_of_packed(simd, rows, packed));
            }
            return;
        }
        for first in (0..m).step_by(M) {
            // An incomplete last tile repeats the last row; repeated rows are not written.
            let (mut starts, mut rows) = ([0; M], [&numbers[..0]; M]);
            for (i, start) in starts.iter_mut().enumerate() {
                *start = (first + i).min(m - 1) * strides[0];
            }
            let sums: [[R::Vector<S>; P]; M] = if strides[1] == 1 {
                for (row, start) in zip(&mut rows[..], starts) {
                    *row = &numbers[start..][..k];
                }
                sums(simd, k, &InRows(rows), b)
            } else if strides[0] == 1 && first + M <= m {
                sums(simd, k, &InColumns { numbers: &numbers[first..], step: strides[1] }, b)
            } else {
                sums(simd, k, &Strided { numbers, starts, step: strides[1] }, b)
            };
            self.write(simd, first, at, sums);
        }
    }

    /// Writes a tile's sums to rows `first..` and the columns of vectors `at..`.
    #[inline(always)]
    fn write<S: Simd, const P: usize>(&mut self, simd: S, first: usize, at: usize, sums: [[R::Vector<S>; P]; M]) {
        let (Sizes { m, n, .. }, lanes) = (self.sizes, R::lanes::<S>());
        let width = (n - at * lanes).min(P * lanes);
        // With a single panel, a whole vector may reach into the following rows, which are written later.
        let whole = width == P * lanes || at == 0;
        if whole && first + M <= m && self.c.len() >= (first + M - 1) * n + (at + P) * lanes {
            // Straight from the registers: the compiler knows how many rows there are.
            let mut i = 0;
            while i < M {
                let to = &mut self.c[(first + i) * n + at * lanes..][..P * lanes];
                R::vectors_mut::<S>(to).copy_from(&sums[i]);
                i += 1;
            }
            return;
        }
        for (i, sums) in sums.into_iter().enumerate().take(m - first) {
            let to = &mut self.c[(first + i) * n + at * lanes..];
            match to.get_mut(..P * lanes).filter(|_| whole) {
                Some(to) => R::vectors_mut::<S>(to).copy_from(&sums),
                None => {
                    for (to, sum) in zip(to[..width].chunks_mut(lanes), sums) {
                        R::store(simd, to, sum);
                    }
                }
            }
        }
    }
}

/// How a tile reads the left side. (A closure might not be inlined, which would cost a call per number.)
trait Left<R, const M: usize> {
    /// The numbers of the tile's rows in column `p`.
    fn column(&self, p: usize) -> [R; M];
}

struct InRows<'a, R, const M: usize>([&'a [R]; M]);

impl<R: Copy, const M: usize> Left<R, M> for InRows<'_, R, M> {
    #[inline(always)]
    fn column(&self, p: usize) -> [R; M] {
        let mut column = [self.0[0][p]; M];
        for (number, row) in zip(&mut column[..], self.0) {
            *number = row[p];
        }
        column
    }
}

struct InColumns<'a, R> {
    numbers: &'a [R],
    step: usize,
}

impl<R: Copy, const M: usize> Left<R, M> for InColumns<'_, R> {
    #[inline(always)]
    fn column(&self, p: usize) -> [R; M] {
        *self.numbers[p * self.step..].first_chunk().expect("the tile's rows are inside")
    }
}

struct Strided<'a, R, const M: usize> {
    numbers: &'a [R],
    starts: [usize; M],
    step: usize,
}

impl<R: Copy, const M: usize> Left<R, M> for Strided<'_, R, M> {
    #[inline(always)]
    fn column(&self, p: usize) -> [R; M] {
        let mut column = [self.numbers[0]; M];
        for (number, start) in zip(&mut column[..], self.starts) {
            *number = self.numbers[start + p * self.step];
        }
        column
    }
}

/// `sums[i, v] = Σ_p left[i, p] · b[p, v]`
#[inline(always)]
fn sums<S: Simd, R: Real, const M: usize, const P: usize>(
    simd: S,
    k: usize,
    left: &impl Left<R, M>,
    b: Matrix<'_, R>,
) -> [[R::Vector<S>; P]; M] {
    let mut sums = [[R::splat(simd, R::ZERO); P]; M];
    for p in 0..k {
        // Vectors may reach into the next row, whose numbers are not used; behind the last row they are filled with
        // zeros.
        let vectors: [_; P] = R::first_vectors(simd, &b.numbers[p * b.strides[0]..]);
        let factors = left.column(p);
        for i in 0..M {
            let factor = R::splat(simd, factors[i]);
            for v in 0..P {
                sums[i][v] = R::mul_add(simd, vectors[v], factor, sums[i][v]);
            }
        }
    }
    sums
}

/// [`sums`] of contiguous rows and a packed right side.
#[inline(always)]
fn sums_of_packed<S: Simd, R: Real, const M: usize, const P: usize>(
    simd: S,
    rows: [&[R]; M],
    packed: &[[R::Vector<S>; P]],
) -> [[R::Vector<S>; P]; M] {
    let mut sums = [[R::splat(simd, R::ZERO); P]; M];
    for (p, vectors) in packed.iter().enumerate() {
        for i in 0..M {
            let factor = R::splat(simd, rows[i][p]);
            for v in 0..P {
                sums[i][v] = R::mul_add(simd, vectors[v], factor, sums[i][v]);
            }
        }
    }
    sums
}
