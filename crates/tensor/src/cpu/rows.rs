//! Softmax, its logarithm and their gradients along rows (the last dimension of contiguous tensors).
//!
//! Short rows (class scores) are computed [`LANES`] at a time, one row per lane, so that ten classes fill vectors as
//! well as a thousand do; longer rows one after the other, in passes that find them in the cache. Everything is computed
//! in `R`. The largest element is taken away first, so nothing overflows.

use super::layer_norm::map;
use super::reduce::in_halves;
use super::stored::{nth, with_widened};
use super::{CHUNK, PIECE, Stored, StoredMut, simd};
use crate::element::Real;

/// Rows that are computed together.
const LANES: usize = 16;
/// The longest rows that are.
const SHORT: usize = 32;
/// Elements that are added up without cutting; longer sums are cut in halves.
const BLOCK: usize = 512;

/// `out[i, j] = exp(x[i, j]) / Σ exp(x[i, …])`, where every row has `row_len` elements.
pub(crate) fn softmax<R: Real>(x: Stored<'_, R>, row_len: usize, out: StoredMut<'_, R>) {
    run::<R, Softmax, 1>([x], row_len, out);
}

/// `out[i, j] = x[i, j] − log Σ exp(x[i, …])`.
pub(crate) fn log_softmax<R: Real>(x: Stored<'_, R>, row_len: usize, out: StoredMut<'_, R>) {
    run::<R, LogSoftmax, 1>([x], row_len, out);
}

/// The gradient of [`softmax`]'s input, where `y` is its output: `out[i, j] = y[i, j] · (grad[i, j] − Σ grad[i, …] · y[i, …])`.
pub(crate) fn softmax_grad<R: Real>(y: Stored<'_, R>, grad: Stored<'_, R>, row_len: usize, out: StoredMut<'_, R>) {
    run::<R, SoftmaxGrad, 2>([y, grad], row_len, out);
}

/// The gradient of [`log_softmax`]'s input, where `y` is its output: `out[i, j] = grad[i, j] − exp(y[i, j]) · Σ grad[i, …]`.
pub(crate) fn log_softmax_grad<R: Real>(y: Stored<'_, R>, grad: Stored<'_, R>, row_len: usize, out: StoredMut<'_, R>) {
    run::<R, LogSoftmaxGrad, 2>([y, grad], row_len, out);
}

/// A function of rows of `N` inputs.
trait RowOp<const N: usize> {
    /// Computes up to [`LANES`] rows, in place of the first input. Element `j` of row `lane` is `[j][lane]`.
    fn tile<R: Real>(inputs: [&mut [[R; LANES]]; N], scratch: &mut [[R; LANES]]);
    /// Computes one row.
    fn row<R: Real>(inputs: [Stored<'_, R>; N], out: StoredMut<'_, R>);
}

struct Softmax;

impl RowOp<1> for Softmax {
    #[inline(always)]
    fn tile<R: Real>([x]: [&mut [[R; LANES]]; 1], scratch: &mut [[R; LANES]]) {
        subtract_largest(x, scratch);
        exp_all(x.as_flattened_mut());
        let sum = fold_lanes(x, [R::ZERO; LANES], R::plus);
        with_lanes(x, sum, scratch, |x, sum| x / sum);
    }

    fn row<R: Real>([x]: [Stored<'_, R>; 1], mut out: StoredMut<'_, R>) {
        let largest = largest(x);
        if x.len() > PIECE && matches!(out, StoredMut::Halves(..)) {
            let sum = sum_of_exp(x, largest);
            return map(
                [x],
                out,
                #[inline(always)]
                move |[x]| (x - largest).exp() / sum,
            );
        }
        out.write(0, x.len(), |out| {
            map(
                [x],
                (&mut *out).into(),
                #[inline(always)]
                move |[x]| (x - largest).exp(),
            );
            let sum = fold([(&*out).into()], R::ZERO, |[e]| e, R::plus);
            divide(out, sum);
        });
    }
}

struct LogSoftmax;

impl RowOp<1> for LogSoftmax {
    #[inline(always)]
    fn tile<R: Real>([x]: [&mut [[R; LANES]]; 1], scratch: &mut [[R; LANES]]) {
        subtract_largest(x, scratch);
        scratch.copy_from_slice(x);
        exp_all(scratch.as_flattened_mut());
        let sum = fold_lanes(scratch, [R::ZERO; LANES], R::plus);
        scratch[0] = sum;
        ln_all(scratch[..1].as_flattened_mut());
        let log = scratch[0];
        with_lanes(x, log, scratch, |x, log| x - log);
    }

    fn row<R: Real>([x]: [Stored<'_, R>; 1], out: StoredMut<'_, R>) {
        let largest = largest(x);
        let log = sum_of_exp(x, largest).ln();
        map([x], out, |[x]| x - largest - log);
    }
}

struct SoftmaxGrad;

impl RowOp<2> for SoftmaxGrad {
    #[inline(always)]
    fn tile<R: Real>([y, grad]: [&mut [[R; LANES]]; 2], scratch: &mut [[R; LANES]]) {
        let products = y.as_flattened().iter().zip(grad.as_flattened());
        for (out, (&y, &grad)) in scratch.as_flattened_mut().iter_mut().zip(products) {
            *out = y * grad;
        }
        let sum = fold_lanes(scratch, [R::ZERO; LANES], R::plus);
        with_lanes(grad, sum, scratch, |grad, sum| grad - sum);
        for (y, &grad) in y.as_flattened_mut().iter_mut().zip(grad.as_flattened()) {
            *y = *y * grad;
        }
    }

    fn row<R: Real>([y, grad]: [Stored<'_, R>; 2], out: StoredMut<'_, R>) {
        let sum = fold([y, grad], R::ZERO, |[y, grad]| y * grad, R::plus);
        map([y, grad], out, |[y, grad]| y * (grad - sum));
    }
}

struct LogSoftmaxGrad;

impl RowOp<2> for LogSoftmaxGrad {
    #[inline(always)]
    fn tile<R: Real>([y, grad]: [&mut [[R; LANES]]; 2], scratch: &mut [[R; LANES]]) {
        let sum = fold_lanes(grad, [R::ZERO; LANES], R::plus);
        exp_all(y.as_flattened_mut());
        with_lanes(y, sum, scratch, |y, sum| y * sum);
        for (y, &grad) in y.as_flattened_mut().iter_mut().zip(grad.as_flattened()) {
            *y = grad - *y;
        }
    }

    fn row<R: Real>([y, grad]: [Stored<'_, R>; 2], out: StoredMut<'_, R>) {
        let sum = fold([grad], R::ZERO, |[grad]| grad, R::plus);
        map(
            [y, grad],
            out,
            #[inline(always)]
            move |[y, grad]| grad - y.exp() * sum,
        );
    }
}

/// Applies `O` to all rows, on several threads if there is enough to do.
fn run<R: Real, O: RowOp<N>, const N: usize>(inputs: [Stored<'_, R>; N], row_len: usize, out: StoredMut<'_, R>) {
    if out.len() == 0 {
        return;
    }
    // An exponential per element: a quarter of the usual work is enough for a thread.
    let chunk_len = (CHUNK / 4 / row_len).next_multiple_of(LANES).max(1) * row_len;
    out.for_each_chunk(chunk_len, &|i, mut out| {
        let inputs = inputs.map(|input| input.part(i * chunk_len, out.len()));
        if row_len <= SHORT {
            return short_rows::<R, O, N>(inputs, row_len, out);
        }
        for start in (0..out.len()).step_by(row_len) {
            O::row(inputs.map(|input| input.part(start, row_len)), out.part(start, row_len));
        }
    });
}

fn short_rows<R: Real, O: RowOp<N>, const N: usize>(
    inputs: [Stored<'_, R>; N],
    row_len: usize,
    mut out: StoredMut<'_, R>,
) {
    simd::vectorized_widely(
        #[inline(always)]
        move || {
            let mut tiles = [[[R::ZERO; LANES]; SHORT]; N];
            let mut scratch = [[R::ZERO; LANES]; SHORT];
            let mut room = [R::ZERO; LANES * SHORT];
            for start in (0..out.len()).step_by(LANES * row_len) {
                let len = (LANES * row_len).min(out.len() - start);
                for (tile, input) in tiles.iter_mut().zip(inputs) {
                    load(input.part(start, len).widened(&mut room), &mut tile[..row_len]);
                }
                O::tile(tiles.each_mut().map(|tile| &mut tile[..row_len]), &mut scratch[..row_len]);
                out.write(
                    start,
                    len,
                    #[inline(always)]
                    |rows| store(&tiles[0][..row_len], rows),
                );
            }
        },
    );
}

/// Up to sixteen rows into a tile; lanes without a row keep what they have.
#[inline(always)]
fn load<R: Real>(rows: &[R], tile: &mut [[R; LANES]]) {
    for (lane, row) in rows.chunks_exact(tile.len()).enumerate().take(LANES) {
        for (values, x) in tile.iter_mut().zip(row) {
            values[lane] = *x;
        }
    }
}

/// A tile into up to sixteen rows.
#[inline(always)]
fn store<R: Real>(tile: &[[R; LANES]], rows: &mut [R]) {
    for (lane, row) in rows.chunks_exact_mut(tile.len()).enumerate().take(LANES) {
        for (out, values) in row.iter_mut().zip(tile) {
            *out = values[lane];
        }
    }
}

// Long functions go over slices, whose length the compiler does not know: it would unroll a loop over the lanes.

#[inline(always)]
fn exp_all<R: Real>(x: &mut [R]) {
    for x in x {
        *x = x.exp();
    }
}

#[inline(always)]
fn ln_all<R: Real>(x: &mut [R]) {
    for x in x {
        *x = x.ln();
    }
}

#[inline(always)]
fn greater<R: Real>(a: R, b: R) -> R {
    if a > b { a } else { b }
}

#[inline(always)]
fn subtract_largest<R: Real>(tile: &mut [[R; LANES]], scratch: &mut [[R; LANES]]) {
    let largest = fold_lanes(tile, [R::LOWEST; LANES], greater);
    with_lanes(tile, largest, scratch, |x, largest| x - largest);
}

/// Folds every lane.
#[inline(always)]
fn fold_lanes<R: Real>(tile: &[[R; LANES]], start: [R; LANES], combine: impl Fn(R, R) -> R) -> [R; LANES] {
    let mut folded = start;
    for values in tile {
        for (folded, &x) in folded.iter_mut().zip(values) {
            *folded = combine(*folded, x);
        }
    }
    folded
}

/// Replaces every element `x` of a tile by `f(x, lanes[lane])`. The lanes are repeated in `scratch` first: compilers
/// vectorise one loop over everything well, and sixteen short ones badly.
#[inline(always)]
fn with_lanes<R: Real>(tile: &mut [[R; LANES]], lanes: [R; LANES], scratch: &mut [[R; LANES]], f: impl Fn(R, R) -> R) {
    scratch.fill(lanes);
    for (x, &lane) in tile.as_flattened_mut().iter_mut().zip(scratch.as_flattened()) {
        *x = f(*x, lane);
    }
}

fn largest<R: Real>(x: Stored<'_, R>) -> R {
    let mut lanes = [R::LOWEST; LANES];
    x.each_piece::<PIECE>(PIECE, |x| {
        simd::vectorized(
            #[inline(always)]
            || {
                let (full, rest) = x.as_chunks::<LANES>();
                lanes = fold_lanes(full, lanes, greater);
                lanes.iter_mut().zip(rest).for_each(|(lane, &x)| *lane = greater(*lane, x));
            },
        );
    });
    in_halves(&mut lanes, greater)
}

fn divide<R: Real>(numbers: &mut [R], by: R) {
    simd::vectorized(
        #[inline(always)]
        || numbers.iter_mut().for_each(|x| *x = *x / by),
    );
}

fn sum_of_exp<R: Real>(x: Stored<'_, R>, largest: R) -> R {
    fold(
        [x],
        R::ZERO,
        #[inline(always)]
        move |[x]| (x - largest).exp(),
        R::plus,
    )
}

/// Combines `lift(inputs[..][i])` over a long row, beginning with `start`, which is neutral.
fn fold<R: Real, const N: usize>(
    inputs: [Stored<'_, R>; N],
    start: R,
    lift: impl Fn([R; N]) -> R + Copy,
    combine: impl Fn(R, R) -> R + Copy,
) -> R {
    let len = inputs[0].len();
    if len > BLOCK {
        let half = (len / 2).next_multiple_of(BLOCK);
        let low = fold(inputs.map(|input| input.part(0, half)), start, lift, combine);
        let high = fold(inputs.map(|input| input.part(half, len - half)), start, lift, combine);
        return combine(low, high);
    }
    let mut lanes = with_widened(inputs, |inputs| {
        simd::vectorized_widely(
            #[inline(always)]
            move || {
                let mut lifted = [start; BLOCK];
                let inputs = inputs.map(|input| &input[..len]);
                for (i, out) in lifted[..len].iter_mut().enumerate() {
                    *out = lift(nth(&inputs, i));
                }
                fold_lanes(lifted[..len.next_multiple_of(LANES)].as_chunks().0, [start; LANES], combine)
            },
        )
    });
    in_halves(&mut lanes, combine)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::super::testing::{Stores, stored, stored_mut};
    use super::*;
    use crate::element::Element;

    /// Row lengths of both kinds, and counts that do not fill tiles or chunks.
    const SIZES: [(usize, usize); 7] = [(1, 1), (3, 10), (64, 10), (17, 32), (3, 33), (2_000, 7), (3, 5_003)];

    fn numbers(n: usize, seed: u32) -> Vec<f64> {
        let random = |i: usize| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8;
        (0..n).map(|i| f64::from(random(i)) / f64::from(1 << 23) - 1.0).collect()
    }

    fn naive_log_softmax(x: &[f64]) -> Vec<f64> {
        let sum: f64 = x.iter().map(|x| x.exp()).sum();
        x.iter().map(|x| x - sum.ln()).collect()
    }

    /// Checks `f` on rows against `model`, for which the inputs are exact. Errors are relative to the result plus
    /// `scale` (the size of what cancels).
    fn check<T: Stores>(
        f: impl Fn([Stored<'_, T::C>; 2], usize, StoredMut<'_, T::C>),
        model: impl Fn(&[f64], &[f64]) -> Vec<f64>,
        scale: impl Fn(usize) -> f64,
        tolerance: f64,
    ) {
        let to_f64 = |x: &[T]| x.iter().map(|&x| x.cast()).collect::<Vec<f64>>();
        for (rows, len) in SIZES {
            let inputs =
                [1, 77].map(|seed| numbers(rows * len, seed).iter().map(|&x| f64::cast::<T>(x)).collect::<Vec<T>>());
            let mut out = vec![T::ZERO; rows * len];
            f([stored(&inputs[0]), stored(&inputs[1])], len, stored_mut(&mut out));
            for (i, out) in out.chunks(len).enumerate() {
                let [a, b] = inputs.each_ref().map(|input| to_f64(&input[i * len..][..len]));
                for (j, (out, expected)) in to_f64(out).into_iter().zip(model(&a, &b)).enumerate() {
                    let error = (out - expected).abs() / (expected.abs() + scale(len));
                    assert!(error < tolerance, "row {i} of {rows}, {j} of {len}: {out} instead of {expected}");
                }
            }
        }
    }

    fn check_all<T: Stores<C: Real>>(tolerance: f64) {
        let exp = |x: Vec<f64>| x.iter().map(|x| x.exp()).collect::<Vec<f64>>();
        check::<T>(|[x, _], len, out| softmax(x, len, out), |x, _| exp(naive_log_softmax(x)), |_| 1e-3, tolerance);
        check::<T>(|[x, _], len, out| log_softmax(x, len, out), |x, _| naive_log_softmax(x), |_| 1.0, tolerance);
        check::<T>(
            |[y, grad], len, out| softmax_grad(y, grad, len, out),
            |y, grad| {
                let sum: f64 = y.iter().zip(grad).map(|(y, grad)| y * grad).sum();
                y.iter().zip(grad).map(|(y, grad)| y * (grad - sum)).collect()
            },
            |len| len as f64,
            tolerance,
        );
        check::<T>(
            |[y, grad], len, out| log_softmax_grad(y, grad, len, out),
            |y, grad| y.iter().zip(grad).map(|(y, g)| g - y.exp() * grad.iter().sum::<f64>()).collect(),
            |len| 10.0 * len as f64,
            tolerance,
        );
    }

    #[test]
    fn rows_match_the_formulas_in_every_precision() {
        check_all::<f64>(1e-13);
        check_all::<f32>(1e-6);
        check_all::<f16>(1e-3);
    }

    #[test]
    fn rows_do_not_overflow_and_keep_what_is_not_a_number() {
        for len in [10, 100] {
            let mut x = vec![1e30_f32; 2 * len];
            x[len + 1] = f32::NAN;
            let mut out = vec![0.0; 2 * len];
            softmax(stored(&x), len, stored_mut(&mut out));
            assert!(out[..len].iter().all(|&y| (y * len as f32 - 1.0).abs() < 1e-6));
            assert!(out[len..].iter().all(|y| y.is_nan()));
        }
    }
}
