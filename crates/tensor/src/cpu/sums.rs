//! Sums of functions of elements, for kernels that need several at once.

use super::reduce::in_halves;
use super::simd;
use crate::element::{Element, Floating, Real};

/// Accumulators of each sum: independent of each other, so that they fill vectors.
const LANES: usize = 16;
/// Elements that are added up without cutting; longer sums are cut in halves.
const BLOCK: usize = 1024;

/// `Σ f(inputs[..][i])`, each component by itself, for inputs of one length.
pub(super) fn sums<T: Floating, const N: usize, const S: usize>(
    inputs: [&[T]; N],
    f: impl Fn([T::Real; N]) -> [T::Real; S] + Copy,
) -> [T::Real; S] {
    let n = inputs[0].len();
    if n > BLOCK {
        let half = (n / 2).next_multiple_of(BLOCK);
        let [low, high] = [inputs.map(|input| &input[..half]), inputs.map(|input| &input[half..n])];
        let (low, high) = (sums(low, f), sums(high, f));
        return std::array::from_fn(|s| low[s] + high[s]);
    }
    let mut lanes = simd::vectorized(
        #[inline(always)]
        move || of_block(inputs, f),
    );
    lanes.each_mut().map(|lanes| in_halves(lanes, T::Real::plus))
}

#[inline(always)]
fn of_block<T: Floating, const N: usize, const S: usize>(
    inputs: [&[T]; N],
    f: impl Fn([T::Real; N]) -> [T::Real; S] + Copy,
) -> [[T::Real; LANES]; S] {
    let mut sums = [[T::Real::ZERO; LANES]; S];
    let n = inputs[0].len();
    let whole = n - n % LANES;
    for start in (0..whole).step_by(LANES) {
        let mut x = [[T::Real::ZERO; LANES]; N];
        for (x, input) in x.iter_mut().zip(inputs) {
            x.iter_mut().zip(&input[start..start + LANES]).for_each(|(x, input)| *x = input.to_real());
        }
        for lane in 0..LANES {
            let values = f(std::array::from_fn(|k| x[k][lane]));
            for (sums, value) in sums.iter_mut().zip(values) {
                sums[lane] = sums[lane] + value;
            }
        }
    }
    for i in whole..n {
        let values = f(std::array::from_fn(|k| inputs[k][i].to_real()));
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
