//! Distances between the rows of two matrices.

use pulp::{Simd, WithSimd};

use super::simd;
use crate::element::Real;
use crate::inlined::{Slice, zip};
use crate::lanes::{self, Lanes};
use crate::parallel::for_each_chunk_mut;

/// The number of distances that are accumulated at a time.
const WIDTH: usize = 64;
/// The number of columns whose weights are buffered at a time.
const COLUMNS: usize = 256;
/// The number of differences per task, unless one row has more.
const WORK: usize = 1 << 15;

/// `out[b, i, j]` is the `p`-norm of `x[b, i, :] − y[b, :, j]`.
///
/// - `x`: `[…, n, d]`; `y`: `[…, d, m]`
/// - `p`: above 0
pub(crate) fn distances<R: Real>(x: &[R], y: &[R], [n, d, m]: [usize; 3], p: f64, out: &mut [R]) {
    if out.is_empty() {
        return;
    }
    let rows = (WORK / (d * m)).max(1);
    for_each_chunk_mut(out, rows * m, |i, out| {
        for (row, out) in out.chunks_exact_mut(m).enumerate() {
            let row = i * rows + row;
            let (x, y) = (&x[row * d..][..d], &y[row / n * d * m..][..d * m]);
            match p {
                1.0 => sums(x, y, out, |sum, gap| sum + gap.magnitude(), |sum| sum),
                2.0 => sums(x, y, out, |sum, gap| sum + gap * gap, |sum| sum.sqrt()),
                f64::INFINITY => sums(x, y, out, |most, gap| most.extreme::<true>(gap.magnitude()), |most| most),
                _ => {
                    let (p, root) = (R::from_f64(p), R::from_f64(1.0 / p));
                    sums(x, y, out, |sum, gap| sum + power(gap.magnitude(), p), |sum| power(sum, root));
                }
            }
        }
    });
}

fn power<R: Real>(x: R, exponent: R) -> R {
    if x == R::ZERO { x } else { x.powf(exponent) }
}

/// Computes one row of distances.
#[inline(always)]
fn sums<R: Real>(x: &[R], y: &[R], out: &mut [R], add: impl Fn(R, R) -> R, end: impl Fn(R) -> R) {
    let m = out.len();
    simd::vectorized(inlined!(|| {
        for (block, out) in out.chunks_mut(WIDTH).enumerate() {
            let mut all = [R::ZERO; WIDTH];
            for (k, &x) in x.iter().enumerate() {
                let y = &y[k * m + block * WIDTH..][..out.len()];
                for (sum, &y) in zip(&mut all[..], y) {
                    *sum = add(*sum, x - y);
                }
            }
            for (out, &sum) in zip(&mut out[..], &all) {
                *out = end(sum);
            }
        }
    }));
}

/// `out[b, i, k]` is the derivative of `Σ_j grad[b, i, j] · distance[b, i, j]` with respect to `x[b, i, k]`, for
/// [`distances`] with `p` 1 or 2. The derivative of a distance of 0 is taken to be 0.
pub(crate) fn distances_grad<R: Real>([x, y, grad]: [&[R]; 3], [n, d, m]: [usize; 3], p: f64, out: &mut [R]) {
    if m == 0 {
        return out.set_to(R::ZERO);
    }
    let rows = (WORK / (d * m)).max(1);
    for_each_chunk_mut(out, rows * d, |i, out| {
        for (row, out) in out.chunks_exact_mut(d).enumerate() {
            let row = i * rows + row;
            let (x, y) = (&x[row * d..][..d], &y[row / n * d * m..][..d * m]);
            lanes::dispatch(RowGrad { x, y, grad: &grad[row * m..][..m], is_euclidean: p == 2.0, out });
        }
    });
}

/// [`distances_grad`] for one row, a block of columns of `y` at a time.
struct RowGrad<'a, R> {
    x: &'a [R],
    y: &'a [R],
    grad: &'a [R],
    is_euclidean: bool,
    out: &'a mut [R],
}

impl<R: Real> WithSimd for RowGrad<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let RowGrad { x, y, grad, is_euclidean, out } = self;
        let (m, mut buffer) = (grad.len(), [R::ZERO; COLUMNS]);
        out.set_to(R::ZERO);
        for (block, grad) in grad.chunks(COLUMNS).enumerate() {
            let (weights, y) = (&mut buffer[..grad.len()], &y[block * COLUMNS..]);
            weights.copy_from(grad);
            if is_euclidean {
                divide_by_distances(simd, x, y, m, weights);
            }
            for (k, (out, &x)) in zip(&mut out[..], x).enumerate() {
                let y = &y[k * m..][..weights.len()];
                *out = *out
                    + match is_euclidean {
                        true => sum_of_gaps(simd, x, y, weights),
                        false => sum_of_signs(simd, x, y, weights),
                    };
            }
        }
    }
}

/// Vectors that are computed at a time, to hide the latency of additions.
const VECTORS: usize = 4;

/// Divides `weights[j]` by the distance between `x` and column `j` of `y`; a distance of 0 makes the weight 0.
#[inline(always)]
fn divide_by_distances<S: Simd, R: Real>(simd: S, x: &[R], y: &[R], m: usize, weights: &mut [R]) {
    let (mut squares, lanes) = ([R::ZERO; COLUMNS], R::lanes::<S>());
    let squares = &mut squares[..weights.len().next_multiple_of(VECTORS * lanes)];
    for (block, squares) in R::vectors_mut::<S>(squares).as_chunks_mut::<VECTORS>().0.iter_mut().enumerate() {
        let first = block * VECTORS * lanes;
        for (k, &x) in x.iter().enumerate() {
            // Lanes beyond the last column hold elements of the next row; they are not used.
            let gaps = gaps::<S, R>(simd, x, &y[k * m + first..]);
            for v in 0..VECTORS {
                squares[v] = R::mul_add(simd, gaps[v], gaps[v], squares[v]);
            }
        }
    }
    for (weight, &square) in zip(weights, &*squares) {
        *weight = if square == R::ZERO { R::ZERO } else { *weight / square.sqrt() };
    }
}

/// `x − y` for the first elements of `y`.
#[inline(always)]
fn gaps<S: Simd, R: Real>(simd: S, x: R, y: &[R]) -> [R::Vector<S>; VECTORS] {
    let (x, minus_one) = (R::splat(simd, x), R::splat(simd, R::ZERO - R::ONE));
    let mut gaps: [_; VECTORS] = R::first_vectors(simd, y);
    for gap in gaps.iter_mut() {
        *gap = R::mul_add(simd, *gap, minus_one, x);
    }
    gaps
}

/// `Σ weights · (x − y)`
#[inline(always)]
fn sum_of_gaps<S: Simd, R: Real>(simd: S, x: R, y: &[R], weights: &[R]) -> R {
    sum_over_gaps(simd, (x, y), weights, inlined!(|sum, weight, gap| R::mul_add(simd, gap, weight, sum)))
}

/// `Σ weights · sign(x − y)`, where the sign of 0 and of NaN is 0.
#[inline(always)]
fn sum_of_signs<S: Simd, R: Real>(simd: S, x: R, y: &[R], weights: &[R]) -> R {
    let (zero, minus_one) = (R::splat(simd, R::ZERO), R::splat(simd, R::ZERO - R::ONE));
    sum_over_gaps(
        simd,
        (x, y),
        weights,
        inlined!(|sum, weight, gap| {
            let negative = R::where_positive(simd, weight, R::mul_add(simd, gap, minus_one, zero));
            let sum = <R as Lanes>::add(simd, sum, R::where_positive(simd, weight, gap));
            R::mul_add(simd, negative, minus_one, sum)
        }),
    )
}

/// Starts with 0, calls `add(sum, weight, x − y)` for every column, and returns the sum.
#[inline(always)]
fn sum_over_gaps<S: Simd, R: Real>(
    simd: S,
    (x, y): (R, &[R]),
    weights: &[R],
    add: impl Fn(R::Vector<S>, R::Vector<S>, R::Vector<S>) -> R::Vector<S>,
) -> R {
    let mut sums = [R::splat(simd, R::ZERO); VECTORS];
    let len = VECTORS * R::lanes::<S>();
    for (y, weights) in zip(y.chunks(len), weights.chunks(len)) {
        let (gaps, weights) = (gaps::<S, R>(simd, x, y), R::first_vectors::<S, VECTORS>(simd, weights));
        for v in 0..VECTORS {
            sums[v] = add(sums[v], weights[v], gaps[v]);
        }
    }
    let [a, b, c, d] = sums;
    let (first, second) = (<R as Lanes>::add(simd, a, b), <R as Lanes>::add(simd, c, d));
    R::sum(simd, <R as Lanes>::add(simd, first, second))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two batches, and columns that fill one block and part of another.
    #[test]
    fn gradients_are_sums_over_all_pairs() {
        let [b, n, d, m] = [2, 3, 5, 330];
        let numbers = |len: usize, step: usize| (0..len).map(|i| (i * step % 23) as f64 - 11.0).collect::<Vec<_>>();
        let (mut x, y, grad) = (numbers(b * n * d, 7), numbers(b * d * m, 5), numbers(b * n * m, 3));
        (0..d).for_each(|k| x[k] = y[k * m + 4]); // a distance of 0
        for p in [1.0, 2.0] {
            let mut out = vec![f64::NAN; b * n * d];
            distances_grad([&x, &y, &grad], [n, d, m], p, &mut out);
            for (at, &found) in out.iter().enumerate() {
                let (row, k) = (at / d, at % d);
                let gap = |j: usize, k: usize| x[row * d + k] - y[(row / n * d + k) * m + j];
                let share = |j: usize| {
                    let length = (0..d).map(|k| gap(j, k).powi(2)).sum::<f64>().sqrt();
                    let direction = if p == 1.0 { gap(j, k).signum() } else { gap(j, k) / length };
                    if gap(j, k) == 0.0 { 0.0 } else { grad[row * m + j] * direction }
                };
                let expected: f64 = (0..m).map(share).sum();
                assert!((found - expected).abs() < 1e-10, "p {p}, row {row}, column {k}: {found}, expected {expected}");
            }
        }
    }
}
