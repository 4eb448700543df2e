//! Distances between the rows of two matrices.

use super::simd;
use crate::element::Real;
use crate::inlined::{Slice, zip};
use crate::parallel::for_each_chunk_mut;

/// Distances whose sums are kept at a time.
const WIDTH: usize = 64;
/// Differences that are worth handing to another thread.
const WORK: usize = 1 << 15;

/// `out[b, i, j]` is the `p`-norm of `x[b, i, :] − y[b, :, j]`, for `x` of `[…, n, d]`, `y` of `[…, d, m]`, and `p` above 0.
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

/// One row of distances.
#[inline(always)]
fn sums<R: Real>(x: &[R], y: &[R], out: &mut [R], add: impl Fn(R, R) -> R, end: impl Fn(R) -> R) {
    let m = out.len();
    simd::vectorized(
        #[inline(always)]
        || {
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
        },
    );
}

/// `out[b, i, k]` is the derivative of `Σ_j grad[b, i, j] · distance[b, i, j]` by `x[b, i, k]`, for [`distances`] with `p` 1
/// or 2. Of a distance of 0 it is 0.
pub(crate) fn distances_grad<R: Real>([x, y, grad]: [&[R]; 3], [n, d, m]: [usize; 3], p: f64, out: &mut [R]) {
    if m == 0 {
        return out.set_to(R::ZERO);
    }
    let rows = (WORK / (d * m)).max(1);
    for_each_chunk_mut(out, rows * d, |i, out| {
        for (row, out) in out.chunks_exact_mut(d).enumerate() {
            let row = i * rows + row;
            let (x, y) = (&x[row * d..][..d], &y[row / n * d * m..][..d * m]);
            row_grad(x, y, &grad[row * m..][..m], p == 2.0, out);
        }
    });
}

/// [`distances_grad`] of one row, for some columns of `y` at a time.
fn row_grad<R: Real>(x: &[R], y: &[R], grad: &[R], is_euclidean: bool, out: &mut [R]) {
    let m = grad.len();
    simd::vectorized_widely(
        #[inline(always)]
        || {
            out.set_to(R::ZERO);
            for (block, grad) in grad.chunks(WIDTH).enumerate() {
                let (mut weights, n) = (whole(grad), grad.len());
                if is_euclidean {
                    let mut squares = [R::ZERO; WIDTH];
                    for (k, &x) in x.iter().enumerate() {
                        let y = whole(&y[k * m + block * WIDTH..][..n]);
                        for (square, y) in zip(&mut squares[..], y) {
                            *square = *square + (x - y) * (x - y);
                        }
                    }
                    for (weight, &square) in zip(&mut weights[..], &squares) {
                        *weight = if square == R::ZERO { R::ZERO } else { *weight / square.sqrt() };
                    }
                }
                for (k, (out, &x)) in zip(&mut out[..], x).enumerate() {
                    let (y, mut shares) = (whole(&y[k * m + block * WIDTH..][..n]), [R::ZERO; WIDTH]);
                    for ((share, y), &weight) in zip(zip(&mut shares[..], y), &weights) {
                        *share = if is_euclidean { weight * (x - y) } else { signed(weight, x - y) };
                    }
                    if n < WIDTH {
                        shares[n..].set_to(R::ZERO); // they may be NaN
                    }
                    *out = *out + total(shares);
                }
            }
        },
    );
}

/// Some numbers, and zeros behind them: of a known length, so that sums of them stay in registers.
#[inline(always)]
fn whole<R: Real>(numbers: &[R]) -> [R; WIDTH] {
    match numbers.first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut whole = [R::ZERO; WIDTH];
            whole[..numbers.len()].copy_from(numbers);
            whole
        }
    }
}

/// `weight` with the sign of `gap` for its own: 0 where that is 0.
#[inline(always)]
fn signed<R: Real>(weight: R, gap: R) -> R {
    let negative = if gap < R::ZERO { R::ZERO - weight } else { R::ZERO };
    if gap > R::ZERO { weight } else { negative }
}

/// The sum, by halves.
#[inline(always)]
fn total<R: Real>(mut numbers: [R; WIDTH]) -> R {
    let mut width = WIDTH;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            numbers[i] = numbers[i] + numbers[i + width];
        }
    }
    numbers[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two batches, and columns that fill one block and part of another.
    #[test]
    fn gradients_are_sums_over_all_pairs() {
        let [b, n, d, m] = [2, 3, 5, 70];
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
                assert!((found - expected).abs() < 1e-10, "p {p}, row {row}, column {k}: {found} and not {expected}");
            }
        }
    }
}
