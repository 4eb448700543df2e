//! Sums of functions of elements, for kernels that need several at once.

use super::reduce::in_halves;
use super::stored::{nth, with_widened};
use super::{Stored, simd};
use crate::element::Real;

/// Accumulators of each sum: independent of each other, so that they fill vectors.
const LANES: usize = 16;
/// Elements that are added up without cutting; longer sums are cut in halves.
const BLOCK: usize = 1024;

/// `Σ f(inputs[..][i])`, each component by itself, for inputs of one length.
pub(super) fn sums<R: Real, const N: usize, const S: usize>(
    inputs: [Stored<'_, R>; N],
    f: impl Fn([R; N]) -> [R; S] + Copy,
) -> [R; S] {
    let n = inputs[0].len();
    if n > BLOCK {
        let half = (n / 2).next_multiple_of(BLOCK);
        let low = sums(inputs.map(|input| input.part(0, half)), f);
        let high = sums(inputs.map(|input| input.part(half, n - half)), f);
        return std::array::from_fn(|s| low[s] + high[s]);
    }
    let mut lanes = with_widened(inputs, |inputs| {
        simd::vectorized(
            #[inline(always)]
            move || of_block(inputs, f),
        )
    });
    let mut all = [R::ZERO; S];
    for (sum, lanes) in all.iter_mut().zip(&mut lanes) {
        *sum = in_halves(lanes, R::plus);
    }
    all
}

#[inline(always)]
fn of_block<R: Real, const N: usize, const S: usize>(
    inputs: [&[R]; N],
    f: impl Fn([R; N]) -> [R; S] + Copy,
) -> [[R; LANES]; S] {
    let mut sums = [[R::ZERO; LANES]; S];
    let n = inputs[0].len();
    let whole = n - n % LANES;
    for start in (0..whole).step_by(LANES) {
        let mut x = [[R::ZERO; LANES]; N];
        for (x, input) in x.iter_mut().zip(inputs) {
            x.copy_from_slice(&input[start..start + LANES]);
        }
        for lane in 0..LANES {
            let mut at = [R::ZERO; N];
            for (at, x) in at.iter_mut().zip(&x) {
                *at = x[lane];
            }
            let values = f(at);
            for (sums, value) in sums.iter_mut().zip(values) {
                sums[lane] = sums[lane] + value;
            }
        }
    }
    for i in whole..n {
        let values = f(nth(&inputs, i));
        for (sums, value) in sums.iter_mut().zip(values) {
            sums[i - whole] = sums[i - whole] + value;
        }
    }
    sums
}

/// The same number as an `f64`, in which a few long sums meet.
pub(super) fn wide<R: Real>(x: R) -> f64 {
    x.cast()
}
