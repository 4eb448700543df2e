//! Layer normalization of rows, and its gradients. Everything is computed in `f32` or `f64`.

use pagelock_memory::Result;

use super::stored::{by_rows, nth};
use super::sums::{column_sums, sums};
use super::{CHUNK, Stored, StoredMut, simd};
use crate::element::Real;
use crate::scratch;

/// The mean of a row, and what its deviations are multiplied by: 1 / √(variance + eps).
#[inline(always)]
fn scale_of<R: Real>(x: &[R], eps: R) -> (R, R) {
    let n = R::from_f64(x.len() as f64);
    let [sum] = sums([x], |[x]| [x]);
    let mean = if sum.magnitude() < R::HIGHEST { sum / n } else { mean_of_large(x) };
    let [squares] = sums(
        [x],
        #[inline(always)]
        |[x]| [(x - mean) * (x - mean)],
    );
    centered(mean, R::ONE / (squares / n + eps).sqrt())
}

/// The mean of numbers whose sum overflows, which is finite if they are.
#[cold]
#[inline(never)]
fn mean_of_large<R: Real>(x: &[R]) -> R {
    let down = R::from_f64(SMALL);
    let [sum] = sums([x], |[x]| [x * down]);
    unscaled(sum / R::from_f64(x.len() as f64))
}

/// A power of two by which numbers are multiplied so that no sum of them overflows.
pub(super) const SMALL: f64 = 1.0 / (1_u64 << 63) as f64;

/// The mean of numbers, given that of what they are multiplied by [`SMALL`]: finite if that is, also if it was rounded up.
pub(super) fn unscaled<R: Real>(mean: R) -> R {
    let scaled = mean / R::from_f64(SMALL);
    match mean.magnitude() < R::HIGHEST {
        true if scaled > R::LARGEST => R::LARGEST,
        true if scaled < -R::LARGEST => -R::LARGEST,
        _ => scaled,
    }
}

/// A mean and a scale such that `(x − mean) · scale` is 0, not NaN, where the variance overflows.
#[inline(always)]
pub(super) fn centered<R: Real>(mean: R, scale: R) -> (R, R) {
    let overflows = scale == R::ZERO && mean.magnitude() < R::HIGHEST;
    (if overflows { R::ZERO } else { mean }, scale)
}

/// `out = (x − mean) · scale · weight + bias`, for rows of `n` elements.
pub(crate) fn layer_norm<R: Real>(
    x: Stored<'_, R>,
    [weight, bias]: [Option<Stored<'_, R>>; 2],
    (n, eps): (usize, R),
    mut out: StoredMut<'_, R>,
) -> Result<()> {
    with_parameter((weight, R::ONE), n, &mut |weight| {
        with_parameter((bias, R::ZERO), n, &mut |bias| {
            by_rows([x], (n, CHUNK), out.all(), &|_, [x], out| {
                simd::vectorized(
                    #[inline(always)]
                    || {
                        for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
                            let (mean, scale) = scale_of(x, eps);
                            map([x, weight, bias], out, |[x, weight, bias]| (x - mean) * scale * weight + bias);
                        }
                    },
                );
            })
        })
    })
}

/// Calls `f` with a parameter, or with `n` of its default.
fn with_parameter<R: Real>(
    (parameter, default): (Option<Stored<'_, R>>, R),
    n: usize,
    f: &mut dyn FnMut(&[R]) -> Result<()>,
) -> Result<()> {
    match parameter {
        Some(parameter) => scratch::reals(parameter, f),
        None => scratch::with(n, |defaults: &mut [R]| {
            defaults.fill(default);
            f(defaults)
        }),
    }
}

/// The gradient of the input, from the input and the gradient of the result.
pub(crate) fn layer_norm_grad<R: Real>(
    [x, grad]: [Stored<'_, R>; 2],
    weight: Option<Stored<'_, R>>,
    (n, eps): (usize, R),
    mut out: StoredMut<'_, R>,
) -> Result<()> {
    with_parameter((weight, R::ONE), n, &mut |weight| {
        by_rows([x, grad], (n, CHUNK), out.all(), &|_, [x, grad], out| {
            simd::vectorized(
                #[inline(always)]
                || {
                    for ((x, grad), out) in x.chunks_exact(n).zip(grad.chunks_exact(n)).zip(out.chunks_exact_mut(n)) {
                        grad_row([x, grad, weight], eps, out);
                    }
                },
            );
        })
    })
}

#[inline(always)]
fn grad_row<R: Real>([x, grad, weight]: [&[R]; 3], eps: R, out: &mut [R]) {
    let n = R::from_f64(x.len() as f64);
    let (mean, scale) = scale_of(x, eps);
    let [sum, dot] = sums(
        [x, grad, weight],
        #[inline(always)]
        |[x, grad, weight]| [grad * weight, grad * weight * ((x - mean) * scale)],
    );
    let (sum, dot) = (sum / n, dot / n);
    map(
        [x, grad, weight],
        out,
        #[inline(always)]
        |[x, grad, weight]| scale * (grad * weight - sum - (x - mean) * scale * dot),
    );
}

/// The gradients of weight and bias, one after the other.
pub(crate) fn layer_norm_sums<R: Real>(
    [x, grad]: [Stored<'_, R>; 2],
    (n, eps): (usize, R),
    mut out: StoredMut<'_, R>,
) -> Result<()> {
    let (rows, n_sums) = (x.len() / n, out.len());
    scratch::with(2 * rows, |changes: &mut [R]| {
        by_rows([x], (n, CHUNK), (&mut *changes).into(), &|_, [x], changes| {
            simd::vectorized(
                #[inline(always)]
                || {
                    for (x, change) in x.chunks_exact(n).zip(changes.as_chunks_mut::<2>().0) {
                        *change = scale_of(x, eps).into();
                    }
                },
            );
        })?;
        let changes = changes.as_chunks::<2>().0;
        scratch::with(n_sums, |totals: &mut [f64]| {
            column_sums(
                [x, grad],
                ([], n),
                totals,
                #[inline(always)]
                |row| {
                    let [mean, scale] = changes[row];
                    #[inline(always)]
                    move |[]: [R; 0], [x, grad]: [R; 2]| [grad * ((x - mean) * scale), grad]
                },
            )?;
            out.each_piece(|first, out| {
                out.iter_mut().zip(&totals[first..]).for_each(|(out, total)| *out = R::from_f64(*total));
            });
            Ok(())
        })
    })
}

/// `out[i] = f(inputs[..][i])`, for inputs of one length.
#[inline(always)]
pub(super) fn map<R: Real, const N: usize>(mut inputs: [&[R]; N], out: &mut [R], f: impl Fn([R; N]) -> R) {
    for input in &mut inputs {
        *input = &input[..out.len()];
    }
    for (i, out) in out.iter_mut().enumerate() {
        *out = f(nth(&inputs, i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_largest<R: Real>(row: Vec<R>, is_constant: bool) {
        let n = row.len();
        let (mut out, mut grad) = (vec![R::ONE; n], vec![R::ONE; n]);
        layer_norm(row[..].into(), [None; 2], (n, R::from_f64(1e-5)), (&mut out[..]).into()).unwrap();
        let ones = vec![R::ONE; n];
        let inputs = [row[..].into(), ones[..].into()];
        layer_norm_grad(inputs, None, (n, R::from_f64(1e-5)), (&mut grad[..]).into()).unwrap();
        assert!(out.iter().all(|&y| y == R::ZERO || is_constant && !y.is_nan()), "{out:?}");
        assert!(grad.iter().all(|grad| !grad.is_nan()), "{grad:?}");
    }

    fn check<R: Real>() {
        for n in [4, 70, 3_000] {
            let cycle = |values: &[R]| (0..n).map(|i| values[i % values.len()]).collect::<Vec<R>>();
            check_largest(cycle(&[R::LARGEST, R::LARGEST, R::ONE, R::ZERO]), false);
            check_largest(cycle(&[R::LARGEST, -R::LARGEST]), false);
            check_largest(cycle(&[R::LARGEST]), true);
        }
    }

    #[test]
    fn rows_of_the_largest_numbers_become_zero_and_not_nan() {
        check::<f32>();
        check::<f64>();
    }
}
