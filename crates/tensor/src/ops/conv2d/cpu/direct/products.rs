//! The inner loop of the weight's gradient: vectors of output channels × some taps, summed over target pixels.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use crate::inlined::{Slice, zip};
use crate::lanes::{Lanes, Registers};

/// Adds products: `sums[t] += Σ gradient[target] · source[target's entry + tap t's offset]`.
///
/// Taps come in runs of neighbors in a row of the kernel.
pub(super) struct Products<'a, R> {
    pub(super) source: &'a [R],
    /// The first tap of each run.
    pub(super) runs: &'a [usize],
    /// Taps per run.
    pub(super) run_len: usize,
    /// `[images, rows, columns, lanes]`
    pub(super) gradient: &'a [R],
    /// The number of targets and the distance between their entries in `source`, for images,
    /// rows and columns.
    pub(super) targets: [(usize, usize); 3],
    /// Numbers of the gradient per image.
    pub(super) image_len: usize,
    /// `[runs, run_len, lanes]`
    pub(super) sums: &'a mut [R],
}

/// The length of runs for kernels of that width: a row of taps if it is short and not dilated, otherwise a single
/// tap.
pub(super) fn run_len(width: usize, dilation: usize) -> usize {
    if dilation == 1 && width <= 5 { width } else { 1 }
}

impl<R: Lanes> Products<'_, R> {
    pub(super) fn run<S: Simd>(self, simd: S) {
        match self.run_len {
            1 => simd.vectorize(Fixed::<R, 1>(self)),
            2 => simd.vectorize(Fixed::<R, 2>(self)),
            3 => simd.vectorize(Fixed::<R, 3>(self)),
            4 => simd.vectorize(Fixed::<R, 4>(self)),
            5 => simd.vectorize(Fixed::<R, 5>(self)),
            n => unreachable!("`run_len` does not return {n}"),
        }
    }
}

/// [`Products`] with the length of runs known to the compiler.
struct Fixed<'a, R, const LEN: usize>(Products<'a, R>);

impl<R: Lanes, const LEN: usize> WithSimd for Fixed<'_, R, LEN> {
    type Output = ();

    /// Sums as many runs at a time as fit in the registers.
    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let n = self.0.runs.len();
        let mut at = 0;
        macro_rules! while_there_are {
            ($($n:literal)+) => { $(
                if RunsAtOnce::<S, LEN, $n>::FIT {
                    while n - at >= $n {
                        at += self.runs::<S, $n>(simd, at);
                    }
                }
            )+ };
        }
        while_there_are!(8 5 4 3 2 1);
    }
}

/// Whether the sums of `N` runs of `LEN` taps and their operands fit in the registers. It is a constant, so that
/// loops that do not fit are not compiled.
struct RunsAtOnce<S, const LEN: usize, const N: usize>(PhantomData<S>);

impl<S: Simd, const LEN: usize, const N: usize> RunsAtOnce<S, LEN, N> {
    const FIT: bool = N == 1 || N <= if Registers::<S>::ARE_MANY { 26 / LEN } else { 13 / LEN };
}

impl<R: Lanes, const LEN: usize> Fixed<'_, R, LEN> {
    /// Adds to the sums of the `N` runs from `at` on; returns `N`.
    #[inline(always)]
    fn runs<S: Simd, const N: usize>(&mut self, simd: S, at: usize) -> usize {
        let Products { source, runs, gradient, targets: [images, rows, columns], image_len, .. } = self.0;
        let (runs, _) = runs[at..].split_first_chunk::<N>().expect("there are `N` runs from `at` on");
        let to = &mut R::vectors_mut::<S>(self.0.sums)[at * LEN..][..N * LEN];
        let mut sums = [[R::splat(simd, R::zeroed()); LEN]; N];
        for (sums, to) in zip(&mut sums[..], to.chunks_exact(LEN)) {
            sums.copy_from(to);
        }
        let (n_columns, step) = columns;
        let row_len = (n_columns - 1) * step + LEN;
        for image in 0..images.0 {
            let gradient = R::vectors::<S>(&gradient[image * image_len..]);
            for (row, gradient) in gradient.chunks_exact(n_columns).take(rows.0).enumerate() {
                let entry = image * images.1 + row * rows.1;
                let mut sources = [&source[..0]; N];
                for (row, run) in zip(&mut sources[..], runs) {
                    *row = &source[entry + run..][..row_len];
                }
                for (column, &gradient) in gradient.iter().enumerate() {
                    let mut n = 0;
                    while n < N {
                        let (pixels, mut i) = (&sources[n][column * step..][..LEN], 0);
                        while i < LEN {
                            sums[n][i] = R::mul_add(simd, R::splat(simd, pixels[i]), gradient, sums[n][i]);
                            i += 1;
                        }
                        n += 1;
                    }
                }
            }
        }
        for (to, sums) in zip(to.chunks_exact_mut(LEN), &sums) {
            to.copy_from(sums);
        }
        N
    }
}
