//! Dot products of the rows of one matrix with the rows of another, in register tiles.

use pulp::{Simd, WithSimd};

use super::{Lanes, Registers, Tiled, tile_rows};

/// Adds dot products: `sums[m, n] += Σ_i left[m, i] · right[starts[n] + i]` for `i < len`.
pub(crate) struct Dots<'a, R> {
    pub(crate) left: Rows<'a, R>,
    pub(crate) right: &'a [R],
    /// Where each row of the right side begins.
    pub(crate) starts: &'a [usize],
    pub(crate) len: usize,
    /// `[rows, starts.len()]`; its length says how many rows there are.
    pub(crate) sums: &'a mut [R],
}

/// Rows at equal distances.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, R> {
    pub(crate) numbers: &'a [R],
    pub(crate) distance: usize,
}

impl<R: Lanes> Dots<'_, R> {
    pub(crate) fn run<S: Simd>(self, simd: S) {
        if self.starts.is_empty() || self.sums.is_empty() {
            return;
        }
        let n_rows = self.sums.len() / self.starts.len();
        match tile_rows::<S>(n_rows) {
            8 if Registers::<S>::ARE_MANY => simd.vectorize(Tiles::<R, 8>(self)),
            6 if Registers::<S>::ARE_WIDE => simd.vectorize(Tiles::<R, 6>(self)),
            5 if Registers::<S>::ARE_WIDE => simd.vectorize(Tiles::<R, 5>(self)),
            4 => simd.vectorize(Tiles::<R, 4>(self)),
            2 if Registers::<S>::ARE_WIDE => simd.vectorize(Tiles::<R, 2>(self)),
            1 if Registers::<S>::ARE_WIDE => simd.vectorize(Tiles::<R, 1>(self)),
            rows => unreachable!("`tile_rows` does not return {rows}"),
        }
    }
}

/// Tiles of `M` rows, known to the compiler.
struct Tiles<'a, R, const M: usize>(Dots<'a, R>);

impl<R: Lanes, const M: usize> WithSimd for Tiles<'_, R, M> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Dots { left, right, starts, len, sums } = self.0;
        for (i, sums) in sums.chunks_mut(M * starts.len()).enumerate() {
            let left = Rows { numbers: &left.numbers[i * M * left.distance..], ..left };
            Tile::<R, M> { left, right, starts, len, sums }.run(simd);
        }
    }
}

/// One tile; of the last one, there may be fewer rows.
struct Tile<'a, R, const M: usize> {
    left: Rows<'a, R>,
    right: &'a [R],
    starts: &'a [usize],
    len: usize,
    sums: &'a mut [R],
}

impl<R: Lanes, const M: usize> Tile<'_, R, M> {
    /// Three columns at a time where `3·M` sums and what feeds them fit the registers.
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let n = self.starts.len();
        let mut at = 0;
        if Tiled::<S, M, 3>::FITS {
            // Not one column at the end, if two and two do it too.
            while at + 3 == n || at + 5 <= n {
                self.columns::<S, 3>(simd, at);
                at += 3;
            }
        }
        if Tiled::<S, M, 2>::FITS {
            while at + 2 <= n {
                self.columns::<S, 2>(simd, at);
                at += 2;
            }
        }
        while at < n {
            self.columns::<S, 1>(simd, at);
            at += 1;
        }
    }

    /// The columns `at..at + N`.
    #[inline(always)]
    fn columns<S: Simd, const N: usize>(&mut self, simd: S, at: usize) {
        let n = self.starts.len();
        let last_row = self.sums.len() / n - 1;
        // Rows that a tile has too much repeat its last row, and their sums are not used.
        let (mut left, mut right) = ([&self.right[..0]; M], [&self.right[..0]; N]);
        for (m, row) in left.iter_mut().enumerate() {
            *row = &self.left.numbers[m.min(last_row) * self.left.distance..][..self.len];
        }
        for (row, start) in right.iter_mut().zip(&self.starts[at..]) {
            *row = &self.right[*start..][..self.len];
        }
        let sums = products(simd, left, right);
        for (to, from) in self.sums.chunks_exact_mut(n).zip(sums) {
            for (to, from) in to[at..].iter_mut().zip(from) {
                *to = *to + R::sum(simd, from);
            }
        }
    }
}

/// Sums of products, lane by lane; all rows have the same length.
#[inline(always)]
fn products<S: Simd, R: Lanes, const M: usize, const N: usize>(
    simd: S,
    left: [&[R]; M],
    right: [&[R]; N],
) -> [[R::Vector<S>; N]; M] {
    let len = left[0].len();
    let whole = len / R::lanes::<S>();
    let mut sums = [[R::splat(simd, R::zeroed()); N]; M];
    let (lefts, rights) = (vectors::<S, R, M>(&left, whole), vectors::<S, R, N>(&right, whole));
    for i in 0..whole {
        for m in 0..M {
            for n in 0..N {
                sums[m][n] = R::mul_add(simd, rights[n][i], lefts[m][i], sums[m][n]);
            }
        }
    }
    let rest = whole * R::lanes::<S>();
    if rest < len {
        let mut rights = [R::splat(simd, R::zeroed()); N];
        for (vector, row) in rights.iter_mut().zip(right) {
            *vector = R::load(simd, &row[rest..]);
        }
        for m in 0..M {
            let left = R::load(simd, &left[m][rest..]);
            for n in 0..N {
                sums[m][n] = R::mul_add(simd, rights[n], left, sums[m][n]);
            }
        }
    }
    sums
}

/// The first whole vectors of each row. (Not `array::map`, of which each of the many tiles would compile 150 lines.)
#[inline(always)]
fn vectors<'a, S: Simd, R: Lanes, const N: usize>(rows: &[&'a [R]; N], whole: usize) -> [&'a [R::Vector<S>]; N] {
    let mut all = [&[][..]; N];
    for (vectors, row) in all.iter_mut().zip(rows) {
        *vectors = &R::vectors::<S>(row)[..whole];
    }
    all
}
