//! The inner loop of a pass: `R` target channels × a row of pixel vectors, summed over all taps.

use pulp::{Simd, WithSimd};

use crate::inlined::zip;
use crate::lanes::{Lanes, Multiplier, Registers, Tiled};

/// Sums for a tile: `sums[m, v] = start[m] + Σ_t weights[t, m] · source[offsets[t] + v]`, for vectors `v` of pixels.
/// Pixels of taps in one group of `depth` begin `distance` entries apart.
pub(super) struct Tile<'a, M: Multiplier> {
    pub(super) multiplier: M,
    /// `[R]`
    pub(super) start: &'a [M::Sum],
    /// Where each tap's pixels begin.
    pub(super) offsets: &'a [usize],
    /// `[taps / depth, R, depth]`
    pub(super) weights: &'a [M::Factor],
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "matrix units alone add up several taps"))]
    pub(super) depth: usize,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "matrix units alone add up several taps"))]
    pub(super) distance: usize,
    pub(super) source: &'a [M::Factor],
    /// Where each vector's pixels and sums begin, relative to the first vector's.
    pub(super) vectors: &'a [[usize; 2]],
    /// `[R, targets]`
    pub(super) sums: &'a mut [M::Sum],
}

impl<M: Multiplier> Tile<'_, M> {
    pub(super) fn run(self) {
        let multiplier = self.multiplier;
        match self.start.len() {
            8 if Registers::<M::Simd>::ARE_MANY => multiplier.vectorize(Fixed::<M, 8>(self)),
            6 => multiplier.vectorize(Fixed::<M, 6>(self)),
            5 => multiplier.vectorize(Fixed::<M, 5>(self)),
            4 => multiplier.vectorize(Fixed::<M, 4>(self)),
            2 => multiplier.vectorize(Fixed::<M, 2>(self)),
            1 => multiplier.vectorize(Fixed::<M, 1>(self)),
            rows => unreachable!("`tile_rows` does not return {rows}"),
        }
    }
}

/// [`Tile`] with the number of rows known to the compiler.
struct Fixed<'a, M: Multiplier, const R: usize>(Tile<'a, M>);

impl<M: Multiplier, const R: usize> WithSimd for Fixed<'_, M, R> {
    type Output = ();

    /// Three vectors at a time where `3·R` sums and their operands fit in the registers; six of a single row, to hide
    /// the latency of multiply-adds.
    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        let n_vectors = self.0.vectors.len();
        let mut at = 0;
        if const { R == 1 && Tiled::<M::Simd, R, 6>::FITS } {
            while at + 6 <= n_vectors {
                self.sum_vectors::<6>(at);
                at += 6;
            }
        }
        if Tiled::<M::Simd, R, 3>::FITS {
            // Four vectors at the end are taken as two and two, not as three and one.
            while at + 3 == n_vectors || at + 5 <= n_vectors {
                self.sum_vectors::<3>(at);
                at += 3;
            }
        }
        if Tiled::<M::Simd, R, 2>::FITS {
            while at + 2 <= n_vectors {
                self.sum_vectors::<2>(at);
                at += 2;
            }
        }
        while at < n_vectors {
            self.sum_vectors::<1>(at);
            at += 1;
        }
    }
}

impl<M: Multiplier, const R: usize> Fixed<'_, M, R> {
    /// Computes the sums of vectors `at..at + P`.
    #[inline(always)]
    fn sum_vectors<const P: usize>(&mut self, at: usize) {
        let Tile { multiplier, start, offsets, weights, source, vectors, sums: to, .. } = &mut self.0;
        let lanes = M::lanes();
        let mut sums = [[multiplier.sums(start[0]); P]; R];
        for (row, &start) in zip(&mut sums[..], *start) {
            *row = [multiplier.sums(start); P];
        }
        let vectors: &[[usize; 2]; P] = vectors[at..].first_chunk().expect("there are `P` vectors from `at` on");
        for (&offset, weights) in zip(&offsets[..], weights.as_chunks::<R>().0) {
            let source = &source[offset..];
            let mut pixels = [M::vectors(&source[vectors[0][0]..][..lanes])[0]; P];
            let mut v = 1;
            while v < P {
                pixels[v] = M::vectors(&source[vectors[v][0]..][..lanes])[0];
                v += 1;
            }
            let mut r = 0;
            while r < R {
                let (weight, mut v) = (multiplier.splat(weights[r]), 0);
                while v < P {
                    sums[r][v] = multiplier.add_products(pixels[v], weight, sums[r][v]);
                    v += 1;
                }
                r += 1;
            }
        }
        let row_len = to.len() / R;
        for (row, sums) in zip(to.chunks_exact_mut(row_len), sums) {
            for (&[_, at], sum) in zip(&vectors[..], sums) {
                M::Sum::vectors_mut::<M::Simd>(&mut row[at..][..lanes])[0] = sum;
            }
        }
    }
}
