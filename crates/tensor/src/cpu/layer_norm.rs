//! Layer normalization of rows, and its gradients. Everything is computed in `f32` or `f64`.

use pagelock_memory::Result;

use super::stored::by_rows;
use super::sums::{LONG, column_sums, long_sums, sums};
use super::{CHUNK, Stored, StoredMut, simd};
use crate::element::Real;
use crate::scratch;

/// The most rows that are computed together, step by step, so that the steps of one row do not wait for each other.
const LANES: usize = 16;
/// Their elements; a row may have more.
const GROUP: usize = 2048;

fn rows_together(n: usize) -> usize {
    (GROUP / n).clamp(1, LANES)
}

/// The means of some rows, and what their deviations are multiplied by: 1 / √(variance + eps).
#[inline(always)]
fn scales_of<R: Real>(x: &[R], n: usize, eps: R) -> [[R; LANES]; 2] {
    let count = R::from_f64(n as f64);
    let mut means = [R::ZERO; LANES];
    for (mean, x) in means.iter_mut().zip(x.chunks_exact(n)) {
        let [sum] = sum_of(x, |x| x);
        *mean = if sum.magnitude() < R::HIGHEST { sum / count } else { mean_of_large(x) };
    }
    let mut scales = [R::ZERO; LANES];
    for ((scale, mean), x) in scales.iter_mut().zip(means).zip(x.chunks_exact(n)) {
        [*scale] = sum_of(
            x,
            #[inline(always)]
            move |x| (x - mean) * (x - mean),
        );
    }
    for (mean, scale) in means.iter_mut().zip(&mut scales) {
        (*mean, *scale) = centered(*mean, R::ONE / (*scale / count + eps).sqrt());
    }
    [means, scales]
}

#[inline(always)]
fn sum_of<R: Real>(x: &[R], f: impl Fn(R) -> R + Copy) -> [R; 1] {
    let f = |[x]: [R; 1]| [f(x)];
    if x.len() >= LONG { long_sums([x], f) } else { sums([x], f) }
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
                    move || {
                        let group = rows_together(n) * n;
                        for (x, out) in x.chunks(group).zip(out.chunks_mut(group)) {
                            let [means, scales] = scales_of(x, n, eps);
                            for (i, out) in out.chunks_exact_mut(n).enumerate() {
                                let (mean, scale) = (means[i], scales[i]);
                                map(
                                    [&x[i * n..], weight, bias],
                                    out,
                                    #[inline(always)]
                                    move |[x, weight, bias]| (x - mean) * scale * weight + bias,
                                );
                            }
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

/// `out[i] = [mean, scale]` of each row: both gradients need them.
pub(crate) fn layer_norm_statistics<R: Real>(x: Stored<'_, R>, (n, eps): (usize, R), out: &mut [R]) -> Result<()> {
    by_rows([x], (n, CHUNK), out.into(), &|_, [x], out| {
        simd::vectorized(
            #[inline(always)]
            move || {
                let group = rows_together(n);
                for (x, out) in x.chunks(group * n).zip(out.as_chunks_mut::<2>().0.chunks_mut(group)) {
                    let [means, scales] = scales_of(x, n, eps);
                    out.iter_mut().zip(means).zip(scales).for_each(|((out, mean), scale)| *out = [mean, scale]);
                }
            },
        );
    })
}

/// The gradient of the input, from the input, the gradient of the result, and the rows' statistics.
pub(crate) fn layer_norm_grad<R: Real>(
    [x, grad]: [Stored<'_, R>; 2],
    weight: Option<Stored<'_, R>>,
    (n, statistics): (usize, &[R]),
    mut out: StoredMut<'_, R>,
) -> Result<()> {
    let statistics = statistics.as_chunks::<2>().0;
    with_parameter((weight, R::ONE), n, &mut |weight| {
        by_rows([x, grad], (n, CHUNK), out.all(), &|first, [x, grad], out| {
            let statistics = &statistics[first..];
            simd::vectorized(
                #[inline(always)]
                move || {
                    let group = rows_together(n);
                    let rows = x.chunks(group * n).zip(grad.chunks(group * n)).zip(out.chunks_mut(group * n));
                    for (((x, grad), out), statistics) in rows.zip(statistics.chunks(group)) {
                        grad_of_rows([x, grad], weight, statistics, out);
                    }
                },
            );
        })
    })
}

/// The same for [`rows_together`].
#[inline(always)]
fn grad_of_rows<R: Real>([x, grad]: [&[R]; 2], weight: &[R], statistics: &[[R; 2]], out: &mut [R]) {
    let (n, count) = (weight.len(), R::from_f64(weight.len() as f64));
    let mut found = [[R::ZERO; 2]; LANES];
    for (i, found) in found.iter_mut().enumerate().take(x.len() / n) {
        let [mean, scale] = statistics[i];
        *found = sums(
            [&x[i * n..][..n], &grad[i * n..][..n], weight],
            #[inline(always)]
            move |[x, grad, weight]| [grad * weight, grad * weight * ((x - mean) * scale)],
        );
    }
    for (i, out) in out.chunks_exact_mut(n).enumerate() {
        let ([mean, scale], [sum, dot]) = (statistics[i], found[i].map(|sum| sum / count));
        map(
            [&x[i * n..], &grad[i * n..], weight],
            out,
            #[inline(always)]
            move |[x, grad, weight]| scale * (grad * weight - sum - (x - mean) * scale * dot),
        );
    }
}

/// The gradients of weight and bias, one after the other.
pub(crate) fn layer_norm_sums<R: Real>(
    [x, grad]: [Stored<'_, R>; 2],
    (n, statistics): (usize, &[R]),
    mut out: StoredMut<'_, R>,
) -> Result<()> {
    let statistics = statistics.as_chunks::<2>().0;
    scratch::with(out.len(), |totals: &mut [f64]| {
        column_sums(
            [x, grad],
            ([], n),
            totals,
            #[inline(always)]
            |row| {
                let [mean, scale] = statistics[row];
                #[inline(always)]
                move |[]: [R; 0], [x, grad]: [R; 2]| [grad * ((x - mean) * scale), grad]
            },
        )?;
        out.each_piece(|first, out| {
            out.iter_mut().zip(&totals[first..]).for_each(|(out, total)| *out = R::from_f64(*total));
        });
        Ok(())
    })
}

/// `out[i] = f(inputs[..][i])`, for up to three inputs. Iterators, not indices: where a check of bounds is left in a loop,
/// its last vector is computed element by element.
#[inline(always)]
pub(super) fn map<R: Real, const N: usize>(inputs: [&[R]; N], out: &mut [R], f: impl Fn([R; N]) -> R) {
    let f = |x: &[R]| {
        let mut all = [R::ZERO; N];
        all.copy_from_slice(x);
        f(all)
    };
    match inputs[..] {
        [a] => out.iter_mut().zip(a).for_each(|(out, &a)| *out = f(&[a])),
        [a, b] => out.iter_mut().zip(a).zip(b).for_each(|((out, &a), &b)| *out = f(&[a, b])),
        [a, b, c] => out.iter_mut().zip(a).zip(b).zip(c).for_each(|(((out, &a), &b), &c)| *out = f(&[a, b, c])),
        _ => unreachable!("no kernel has {N} inputs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_largest<R: Real>(row: Vec<R>, is_constant: bool) {
        let n = row.len();
        let (mut out, mut grad) = (vec![R::ONE; n], vec![R::ONE; n]);
        layer_norm(row[..].into(), [None; 2], (n, R::from_f64(1e-5)), (&mut out[..]).into()).unwrap();
        let (ones, mut statistics) = (vec![R::ONE; n], [R::ZERO; 2]);
        let inputs = [row[..].into(), ones[..].into()];
        layer_norm_statistics(inputs[0], (n, R::from_f64(1e-5)), &mut statistics).unwrap();
        layer_norm_grad(inputs, None, (n, &statistics), (&mut grad[..]).into()).unwrap();
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
