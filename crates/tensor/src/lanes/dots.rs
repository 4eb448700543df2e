//! Dot products of the rows of one matrix with the rows of another, in register tiles.

use bytemuck::Zeroable;
use pulp::{Simd, WithSimd};

use super::{Lanes, Multiplier, Registers, SumsOf, Tiled, tile_rows};
use crate::inlined::zip;

/// Adds dot products: `sums[m, n] += Σ_i left[m, i] · right[starts[n] + i]` for `i < len`.
pub(crate) struct Dots<'a, M: Multiplier> {
    pub(crate) multiplier: M,
    pub(crate) left: StridedRows<'a, M::Factor>,
    pub(crate) right: &'a [M::Factor],
    /// The index at which each row of the right side begins.
    pub(crate) starts: &'a [usize],
    pub(crate) len: usize,
    /// `[rows, starts.len()]`; its length says how many rows there are.
    pub(crate) sums: &'a mut [M::Sum],
}

/// Rows at equal distances.
#[derive(Clone, Copy)]
pub(crate) struct StridedRows<'a, F> {
    pub(crate) numbers: &'a [F],
    pub(crate) distance: usize,
}

/// Which vector of a row of the right side is multiplied by vector `i` of a row of the left side.
trait Order: Copy {
    fn at(self, i: usize) -> usize;
    /// The part of a row of the right side that `len` numbers of the left side need.
    fn part<T>(self, row: &[T], len: usize) -> &[T];
}

/// Vector `i`.
#[derive(Clone, Copy)]
struct Adjacent;

impl Order for Adjacent {
    #[inline(always)]
    fn at(self, i: usize) -> usize {
        i
    }
    #[inline(always)]
    fn part<T>(self, row: &[T], len: usize) -> &[T] {
        &row[..len]
    }
}

/// The vector with that index.
#[derive(Clone, Copy)]
struct Indexed<'a>(&'a [usize]);

impl Order for Indexed<'_> {
    #[inline(always)]
    fn at(self, i: usize) -> usize {
        self.0[i]
    }
    #[inline(always)]
    fn part<T>(self, row: &[T], _: usize) -> &[T] {
        row
    }
}

impl<M: Multiplier> Dots<'_, M> {
    pub(crate) fn run(self) {
        self.run_in(Adjacent);
    }

    /// The same, but vector `i` of a row of the left side is multiplied by vector `indices[i]` of each row of the right
    /// side. `len` is a multiple of the lanes.
    pub(crate) fn run_indexed(self, indices: &[usize]) {
        self.run_in(Indexed(indices));
    }

    fn run_in(self, order: impl Order) {
        if self.starts.is_empty() || self.sums.is_empty() {
            return;
        }
        let (multiplier, n_rows) = (self.multiplier, self.sums.len() / self.starts.len());
        match tile_rows::<M::Simd>(n_rows) {
            8 if Registers::<M::Simd>::ARE_MANY => multiplier.vectorize(Tiles::<M, _, 8>(self, order)),
            6 => multiplier.vectorize(Tiles::<M, _, 6>(self, order)),
            5 => multiplier.vectorize(Tiles::<M, _, 5>(self, order)),
            4 => multiplier.vectorize(Tiles::<M, _, 4>(self, order)),
            2 => multiplier.vectorize(Tiles::<M, _, 2>(self, order)),
            1 => multiplier.vectorize(Tiles::<M, _, 1>(self, order)),
            rows => unreachable!("`tile_rows` does not return {rows}"),
        }
    }
}

/// Tiles of `R` rows, known to the compiler.
struct Tiles<'a, M: Multiplier, O, const R: usize>(Dots<'a, M>, O);

impl<M: Multiplier, O: Order, const R: usize> WithSimd for Tiles<'_, M, O, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Dots { multiplier, left, right, starts, len, sums } = self.0;
        for (i, sums) in sums.chunks_mut(R * starts.len()).enumerate() {
            let left = StridedRows { numbers: &left.numbers[i * R * left.distance..], ..left };
            Tile::<M, O, R>(Dots { multiplier, left, right, starts, len, sums }, self.1).run();
        }
    }
}

/// One tile. The last one may have fewer rows.
struct Tile<'a, M: Multiplier, O, const R: usize>(Dots<'a, M>, O);

impl<M: Multiplier, O: Order, const R: usize> Tile<'_, M, O, R> {
    /// Three columns at a time where `3·R` sums and their operands fit the registers.
    #[inline(always)]
    fn run(mut self) {
        let n = self.0.starts.len();
        let mut at = 0;
        if Tiled::<M::Simd, R, 3>::FITS {
            // Four columns at the end are two and two, not three and one.
            while at + 3 == n || at + 5 <= n {
                self.columns::<3>(at);
                at += 3;
            }
        }
        if Tiled::<M::Simd, R, 2>::FITS {
            while at + 2 <= n {
                self.columns::<2>(at);
                at += 2;
            }
        }
        while at < n {
            self.columns::<1>(at);
            at += 1;
        }
    }

    /// The columns `at..at + N`.
    #[inline(always)]
    fn columns<const N: usize>(&mut self, at: usize) {
        let Dots { multiplier, left: from, right: numbers, starts, len, sums: to } = &mut self.0;
        let n = starts.len();
        let last_row = to.len() / n - 1;
        // The rows that a tile lacks are replaced by its last row, and their sums are not used.
        let (mut left, mut right) = ([&numbers[..0]; R], [&numbers[..0]; N]);
        for (m, row) in left.iter_mut().enumerate() {
            *row = &from.numbers[m.min(last_row) * from.distance..][..*len];
        }
        for (row, start) in zip(&mut right[..], &starts[at..]) {
            *row = self.1.part(&numbers[*start..], *len);
        }
        let sums = products(*multiplier, self.1, left, right);
        for (to, from) in zip(to.chunks_exact_mut(n), sums) {
            for (to, from) in zip(&mut to[at..], from) {
                *to = *to + M::Sum::sum(multiplier.simd(), from);
            }
        }
    }
}

/// Sums of products, lane by lane; all rows of a side have the same length.
#[inline(always)]
fn products<M: Multiplier, O: Order, const R: usize, const N: usize>(
    multiplier: M,
    order: O,
    left: [&[M::Factor]; R],
    right: [&[M::Factor]; N],
) -> [[SumsOf<M>; N]; R] {
    let len = left[0].len();
    let whole = len / M::lanes();
    let mut sums = [[multiplier.sums(M::Sum::zeroed()); N]; R];
    let (lefts, mut rights) = (vectors::<M, R>(&left, whole), [&[][..]; N]);
    for (vectors, row) in zip(&mut rights[..], right) {
        *vectors = order.part(M::vectors(row), whole);
    }
    let mut i = 0;
    while i < whole {
        let at = order.at(i);
        for m in 0..R {
            for n in 0..N {
                sums[m][n] = multiplier.add_products(rights[n][at], lefts[m][i], sums[m][n]);
            }
        }
        i += 1;
    }
    let rest = whole * M::lanes();
    if rest < len {
        let mut rights = [multiplier.load(&[]); N];
        for (vector, row) in zip(&mut rights[..], right) {
            *vector = multiplier.load(&row[rest..]);
        }
        for m in 0..R {
            let left = multiplier.load(&left[m][rest..]);
            for n in 0..N {
                sums[m][n] = multiplier.add_products(rights[n], left, sums[m][n]);
            }
        }
    }
    sums
}

/// The first whole vectors of each row. This is a loop, since `array::map` compiles to 150 lines in each of the many
/// tiles.
#[inline(always)]
fn vectors<'a, M: Multiplier, const N: usize>(rows: &[&'a [M::Factor]; N], whole: usize) -> [&'a [M::Factors]; N] {
    let mut all = [&[][..]; N];
    for (vectors, row) in zip(&mut all[..], rows) {
        *vectors = &M::vectors(row)[..whole];
    }
    all
}
