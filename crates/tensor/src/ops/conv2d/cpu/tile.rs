//! The inner loop of a pass: `M` target channels × a row of pixel vectors, summed over all taps.

use pulp::{Simd, WithSimd};

use crate::lanes::{Lanes, Registers, Tiled};

/// Sums for a tile: `sums[m, v] = start[m] + Σ_t weights[t, m] · source[offsets[t] + v]`.
pub(super) struct Tile<'a, R> {
    /// `[M]`
    pub(super) start: &'a [R],
    /// Where each tap's pixels begin.
    pub(super) offsets: &'a [usize],
    /// `[taps, M]`
    pub(super) weights: &'a [R],
    pub(super) source: &'a [R],
    /// `[M, vectors · lanes]`
    pub(super) sums: &'a mut [R],
}

impl<R: Lanes> Tile<'_, R> {
    pub(super) fn run<S: Simd>(self, simd: S) {
        match self.start.len() {
            8 if Registers::<S>::ARE_MANY => simd.vectorize(Fixed::<R, 8>(self)),
            6 if Registers::<S>::ARE_WIDE => simd.vectorize(Fixed::<R, 6>(self)),
            5 if Registers::<S>::ARE_WIDE => simd.vectorize(Fixed::<R, 5>(self)),
            4 => simd.vectorize(Fixed::<R, 4>(self)),
            2 if Registers::<S>::ARE_WIDE => simd.vectorize(Fixed::<R, 2>(self)),
            1 if Registers::<S>::ARE_WIDE => simd.vectorize(Fixed::<R, 1>(self)),
            rows => unreachable!("`tile_rows` does not return {rows}"),
        }
    }
}

/// The number of rows, known to the compiler.
struct Fixed<'a, R, const M: usize>(Tile<'a, R>);

impl<R: Lanes, const M: usize> WithSimd for Fixed<'_, R, M> {
    type Output = ();

    /// Three vectors at a time where `3·M` sums and what feeds them fit the registers.
    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let n_vectors = self.0.sums.len() / M / R::lanes::<S>();
        let mut at = 0;
        if Tiled::<S, M, 3>::FITS {
            // Not one vector at the end, if two and two do it too.
            while at + 3 == n_vectors || at + 5 <= n_vectors {
                self.columns::<S, 3>(simd, at);
                at += 3;
            }
        }
        if Tiled::<S, M, 2>::FITS {
            while at + 2 <= n_vectors {
                self.columns::<S, 2>(simd, at);
                at += 2;
            }
        }
        while at < n_vectors {
            self.columns::<S, 1>(simd, at);
            at += 1;
        }
    }
}

impl<R: Lanes, const M: usize> Fixed<'_, R, M> {
    /// The sums of vectors `at..at + P`.
    #[inline(always)]
    fn columns<S: Simd, const P: usize>(&mut self, simd: S, at: usize) {
        let lanes = R::lanes::<S>();
        let tile = &mut self.0;
        let mut sums = [[R::splat(simd, R::zeroed()); P]; M];
        for (row, &start) in sums.iter_mut().zip(tile.start) {
            *row = [R::splat(simd, start); P];
        }
        let source = &tile.source[at * lanes..];
        for (&offset, weights) in tile.offsets.iter().zip(tile.weights.as_chunks::<M>().0) {
            let pixels = R::vectors::<S>(&source[offset..][..P * lanes]);
            for (row, &weight) in sums.iter_mut().zip(weights) {
                let weight = R::splat(simd, weight);
                for (sum, &pixels) in row.iter_mut().zip(pixels) {
                    *sum = R::mul_add(simd, pixels, weight, *sum);
                }
            }
        }
        let row_len = tile.sums.len() / M;
        for (row, sums) in tile.sums.chunks_exact_mut(row_len).zip(sums) {
            R::vectors_mut::<S>(&mut row[at * lanes..][..P * lanes]).copy_from_slice(&sums);
        }
    }
}
