//! Layer normalization of rows, with or without subtracting their means, and its gradients. Everything is computed in
//! `f32` or `f64`.

use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;
use pagelock_memory::Result;

use super::elements::{Pieces, by_long_rows, by_rows, rows_of, rows_per_group};
use super::kernel::loop_over;
use super::long_rows::{map_long_row, sums_of_long_row};
use super::moments::{Moments, sum_of};
use super::sums::{add_rows, column_sums, sums, wide};
use super::{CHUNK, PIECE, Stored, StoredMut, simd};
use crate::element::Real;
use crate::inlined::{Array, Slice, zip};
use crate::parallel::for_each_chunk_mut;
use crate::scratch;

/// How rows are normalized.
#[derive(Clone, Copy)]
pub(crate) struct Normalized<R> {
    /// Elements of a row.
    pub(crate) n: usize,
    pub(crate) eps: R,
    /// Whether means are subtracted; otherwise they count as 0.
    pub(crate) is_centered: bool,
}

/// The most rows that are computed together, step by step, so that a step of one row overlaps with those of others.
const LANES: usize = 16;
/// The most elements of rows that are computed together. A single row may have more.
const GROUP: usize = 2048;

/// The means and the scales of some rows. A scale is 1 / √(variance + eps).
#[inline(always)]
fn scales_of<R: Real>(x: &[R], Normalized { n, eps, is_centered }: Normalized<R>) -> [[R; LANES]; 2] {
    let count = R::from_f64(n as f64);
    let mut means = [R::ZERO; LANES];
    for (mean, x) in zip(&mut means[..], x.chunks_exact(n)).filter(|_| is_centered) {
        let [sum] = sum_of(x, |x| [x]);
        *mean = if sum.magnitude() < R::HIGHEST { sum / count } else { mean_of_large(x) };
    }
    let mut scales = [R::ZERO; LANES];
    for ((scale, mean), x) in zip(zip(&mut scales[..], means), x.chunks_exact(n)) {
        [*scale] = sum_of(x, inlined!(move |x| [(x - mean) * (x - mean)]));
    }
    for (mean, scale) in zip(&mut means[..], &mut scales) {
        (*mean, *scale) = centered(*mean, R::ONE / (*scale / count + eps).sqrt());
    }
    [means, scales]
}

/// The mean and the scale of one row of any length.
fn scale_of_row<R: Real>(x: Stored<'_, R>, Normalized { n, eps, is_centered }: Normalized<R>) -> (R, R) {
    if matches!(x, Stored::Halves(..)) || !is_centered {
        let (mut pieces, count) = (Pieces::new(), R::from_f64(n as f64));
        let mean = match is_centered {
            true => {
                let [sum] = sums_of_long_row([x], &mut pieces, |[x]| [x]);
                sum / count
            }
            false => R::ZERO,
        };
        let [squares] = sums_of_long_row([x], &mut pieces, inlined!(|[x]| [(x - mean) * (x - mean)]));
        if squares.magnitude() < R::HIGHEST || !is_centered {
            return centered(mean, R::ONE / (squares / count + eps).sqrt());
        }
    }
    let all = Moments::of_row(x);
    centered(R::from_f64(all.mean), R::ONE / (R::from_f64(all.squares / all.n) + eps).sqrt())
}

/// The mean of numbers whose sum overflows. It is finite if the numbers are.
#[cold]
#[inline(never)]
fn mean_of_large<R: Real>(x: &[R]) -> R {
    let down = R::from_f64(SMALL);
    let [sum] = sums([x], |[x]| [x * down]);
    unscaled(sum / R::from_f64(x.len() as f64))
}

/// A power of two by which numbers are multiplied so that no sum of them overflows.
pub(super) const SMALL: f64 = 1.0 / (1_u64 << 63) as f64;

/// The mean of numbers, given the mean of their products with [`SMALL`]. It is finite if that one is, even if that
/// was rounded up.
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

/// Whether the statistics of rows are saved for the gradient. For longer rows, computing them again takes no longer.
pub(crate) fn keeps_statistics(n: usize) -> bool {
    n <= PIECE
}

/// `out = (x − mean) · scale · weight + bias`, for rows of `n` elements. `statistics` gets mean and scale of each
/// row, if they [are kept](keeps_statistics).
pub(crate) fn layer_norm<R: Real>(
    x: Stored<'_, R>,
    [weight, bias]: [Option<Stored<'_, R>>; 2],
    rows: Normalized<R>,
    mut out: StoredMut<'_, R>,
    mut statistics: Option<&mut [[R; 2]]>,
) -> Result<()> {
    let n = rows.n;
    if let (Stored::Halves(..), true) = (x, n > PIECE) {
        return with_default((weight, R::ONE), n, &mut |weight| {
            with_default((bias, R::ZERO), n, &mut |bias| {
                long_rows(x, [weight, bias], rows, out.all());
                Ok(())
            })
        });
    }
    with_parameter((weight, R::ONE), n, &mut |weight| {
        with_parameter((bias, R::ZERO), n, &mut |bias| {
            let normalize = |x: &[R], out: &mut [R], mut statistics: Option<&mut [[R; 2]]>| {
                simd::vectorized(inlined!(move || {
                    let group_rows = rows_per_group::<LANES>(n, GROUP);
                    for (k, (x, out)) in zip(x.chunks(group_rows * n), out.chunks_mut(group_rows * n)).enumerate() {
                        let [means, scales] = scales_of(x, rows);
                        for (i, out) in out.chunks_exact_mut(n).enumerate() {
                            let (mean, scale) = (means[i], scales[i]);
                            map(
                                [&x[i * n..], weight, bias],
                                out,
                                inlined!(move |[x, weight, bias]| (x - mean) * scale * weight + bias),
                            );
                        }
                        if let Some(statistics) = &mut statistics {
                            let of_group = zip(&mut statistics[k * group_rows..], zip(&means[..], &scales));
                            for (kept, (&mean, &scale)) in of_group.take(x.len() / n) {
                                *kept = [mean, scale];
                            }
                        }
                    }
                }));
            };
            let Some(statistics) = statistics.as_deref_mut() else {
                return by_rows([x], (n, CHUNK), out.all(), &|_, [x], out| normalize(x, out, None));
            };
            let chunk = rows_of_part(statistics.len(), n);
            // Only one task locks each part.
            let parts: ArrayVec<_, PARTS> = statistics.chunks_mut(chunk).map(Mutex::new).collect();
            by_rows([x], (n, chunk * n), out.all(), &|first, [x], out| {
                let mut part = parts[first / chunk].lock().unwrap_or_else(PoisonError::into_inner);
                normalize(x, out, Some(&mut part[first % chunk..]));
            })
        })
    })
}

/// The number of rows of each of at most [`PARTS`] parts, rounded as `by_rows` rounds it.
fn rows_of_part(n_rows: usize, n: usize) -> usize {
    let chunk = n_rows.div_ceil(PARTS).max(CHUNK / n).max(1);
    if chunk > 16 { chunk.next_multiple_of(16) } else { chunk } // else `by_rows` would round it down
}

/// [`layer_norm`] for long rows of halves.
fn long_rows<R: Real>(
    x: Stored<'_, R>,
    [weight, bias]: [Stored<'_, R>; 2],
    rows: Normalized<R>,
    out: StoredMut<'_, R>,
) {
    let n = rows.n;
    by_long_rows(out, (n, CHUNK), &|i, out, pieces| {
        let x = x.part(i * n, n);
        let (mean, scale) = scale_of_row(x, rows);
        map_long_row([x, weight, bias], out, pieces, inlined!(|[x, weight, bias]| (x - mean) * scale * weight + bias));
    });
}

/// Calls `f` with a parameter, or with `n` copies of its default.
fn with_default<R: Real>(
    (parameter, default): (Option<Stored<'_, R>>, R),
    n: usize,
    f: &mut dyn FnMut(Stored<'_, R>) -> Result<()>,
) -> Result<()> {
    match parameter {
        Some(parameter) => f(parameter),
        None => scratch::with(n, |defaults: &mut [R]| {
            defaults.set_to(default);
            f((&*defaults).into())
        }),
    }
}

/// `with_default`, where `f` gets numbers instead of halves.
fn with_parameter<R: Real>(
    parameter: (Option<Stored<'_, R>>, R),
    n: usize,
    f: &mut dyn FnMut(&[R]) -> Result<()>,
) -> Result<()> {
    with_default(parameter, n, &mut |parameter| scratch::reals(parameter, &mut *f))
}

/// The gradient of the input, from the input and the gradient of the result. If `sums` is given, it gets the
/// gradients of weight and bias, one after the other, or, if it has no space for that of the bias, that of the weight
/// alone. `statistics` are those that [`layer_norm`] saved.
pub(crate) fn layer_norm_grad<R: Real>(
    inputs: [Stored<'_, R>; 2],
    (weight, statistics): (Option<Stored<'_, R>>, Option<&[[R; 2]]>),
    rows: Normalized<R>,
    mut out: StoredMut<'_, R>,
    mut sums: Option<StoredMut<'_, R>>,
) -> Result<()> {
    let (weight, n) = ((weight, R::ONE), rows.n);
    match n > PIECE {
        true => {
            with_default(weight, n, &mut |weight| grad_of_long_rows(inputs, weight, rows, out.all(), sums.as_mut()))
        }
        false => with_parameter(weight, n, &mut |weight| {
            grad_of_rows(inputs, (weight, statistics), rows, out.all(), sums.as_mut())
        }),
    }
}

/// The most parts whose sums for weight and bias are computed separately.
const PARTS: usize = 32;
/// Rows that are summed in the computing type before their sums are added in `f64`.
const SUMMED: usize = 32;

/// Sums over the rows of a part, for the gradients of weight and bias. `sums` has the last `rows` rows, `totals`
/// those before.
struct Part<'a, R> {
    totals: &'a mut [f64],
    sums: &'a mut [R],
    rows: usize,
}

impl<R: Real> Part<'_, R> {
    /// Adds `sums` to `totals` and clears them.
    fn settle(&mut self) {
        zip(&mut self.totals[..], &*self.sums).for_each(|(total, sum)| *total += wide(*sum));
        self.sums.set_to(R::ZERO);
        self.rows = 0;
    }
}

/// The gradients for rows of which several fit in the L1 cache, where statistics, gradient and sums read them.
fn grad_of_rows<R: Real>(
    inputs: [Stored<'_, R>; 2],
    (weight, statistics): (&[R], Option<&[[R; 2]]>),
    rows: Normalized<R>,
    out: StoredMut<'_, R>,
    sums: Option<&mut StoredMut<'_, R>>,
) -> Result<()> {
    let n = rows.n;
    let from = |first: usize| statistics.map(|statistics| &statistics[first..]);
    let Some(sums) = sums else {
        return by_rows(inputs, (n, CHUNK), out, &|first, inputs, out| {
            grad_of_group(inputs, (weight, from(first)), rows, out, None);
        });
    };
    let n_rows = inputs[0].len() / n;
    let chunk = rows_of_part(n_rows, n);
    let n_parts = n_rows.div_ceil(chunk);
    scratch::with(n_parts * 2 * n, |totals: &mut [f64]| {
        scratch::with(n_parts * 2 * n, |buffer: &mut [R]| {
            totals.set_to(0.0);
            buffer.set_to(R::ZERO);
            let parts = zip(totals.chunks_mut(2 * n), buffer.chunks_mut(2 * n));
            // Only one task locks each part.
            let parts: ArrayVec<_, PARTS> =
                parts.map(|(totals, sums)| Mutex::new(Part { totals, sums, rows: 0 })).collect();
            by_rows(inputs, (n, chunk * n), out, &|first, inputs, out| {
                let mut part = parts[first / chunk].lock().unwrap_or_else(PoisonError::into_inner);
                grad_of_group(inputs, (weight, from(first)), rows, out, Some(&mut part));
            })?;
            for part in parts {
                part.into_inner().unwrap_or_else(PoisonError::into_inner).settle();
            }
            Ok(())
        })?;
        let (all, others) = totals.split_at_mut(2 * n);
        others.chunks_exact(2 * n).for_each(|part| zip(&mut all[..], part).for_each(|(all, part)| *all += part));
        write_totals(all, sums);
        Ok(())
    })
}

fn write_totals<R: Real>(totals: &[f64], sums: &mut StoredMut<'_, R>) {
    sums.each_piece(|first, sums| {
        zip(&mut sums[..], &totals[first..]).for_each(|(sum, total)| *sum = R::from_f64(*total));
    });
}

/// The gradient for some rows, whose sums are added to the part.
fn grad_of_group<R: Real>(
    inputs: [&[R]; 2],
    (weight, statistics): (&[R], Option<&[[R; 2]]>),
    rows: Normalized<R>,
    out: &mut [R],
    mut part: Option<&mut Part<'_, R>>,
) {
    let (n, group) = (rows.n, rows_per_group::<LANES>(rows.n, GROUP) * rows.n);
    for (i, out) in out.chunks_mut(group).enumerate() {
        let statistics = statistics.map(|statistics| &statistics[i * (group / n)..][..out.len() / n]);
        let [x, grad] = rows_of(inputs, i * group, out.len());
        let part = part.as_deref_mut();
        simd::vectorized(inlined!(move || {
            let [means, scales] = match statistics {
                Some(statistics) => {
                    let mut both = [[R::ZERO; LANES]; 2];
                    for (i, &[mean, scale]) in statistics.iter().enumerate() {
                        (both[0][i], both[1][i]) = (mean, scale);
                    }
                    both
                }
                None => scales_of(x, rows),
            };
            let mut found = [[R::ZERO; 2]; LANES];
            for (i, found) in found.iter_mut().enumerate().take(x.len() / n) {
                *found = sums(
                    [&x[i * n..][..n], &grad[i * n..][..n], weight],
                    inlined!(move |inputs| dots(inputs, [means[i], scales[i]])),
                );
            }
            let count = R::from_f64(n as f64);
            for (i, out) in out.chunks_exact_mut(n).enumerate() {
                let ([mean, scale], [sum, dot]) = ([means[i], scales[i]], found[i].mapped(|sum| sum / count));
                let sum = if rows.is_centered { sum } else { R::ZERO };
                map(
                    [&x[i * n..], &grad[i * n..], weight],
                    out,
                    inlined!(move |inputs| spread(inputs, [mean, scale, sum, dot])),
                );
            }
            if let Some(part) = part {
                let n_rows = x.len() / n;
                add_rows([x, grad], (0, n_rows, n), [], part.sums, move |i| parameters([means[i], scales[i]]));
                part.rows += n_rows;
                if part.rows >= SUMMED {
                    part.settle();
                }
            }
        }));
    }
}

/// What an element adds to the gradients of weight and bias.
#[inline(always)]
fn parameters<R: Real>([mean, scale]: [R; 2]) -> impl Fn([R; 0], [R; 2]) -> [R; 2] {
    inlined!(move |[], [x, grad]| [grad * ((x - mean) * scale), grad])
}

/// The gradients for long rows.
fn grad_of_long_rows<R: Real>(
    inputs: [Stored<'_, R>; 2],
    weight: Stored<'_, R>,
    rows: Normalized<R>,
    out: StoredMut<'_, R>,
    sums: Option<&mut StoredMut<'_, R>>,
) -> Result<()> {
    let n = rows.n;
    scratch::with(2 * (inputs[0].len() / n), |statistics: &mut [R]| {
        let (statistics, n_rows) = (statistics.as_chunks_mut::<2>().0, (CHUNK / n).max(1));
        for_each_chunk_mut(statistics, n_rows, |i, statistics| {
            for (j, statistics) in statistics.iter_mut().enumerate() {
                *statistics = scale_of_row(inputs[0].part((i * n_rows + j) * n, n), rows).into();
            }
        });
        spread_long_rows(inputs, weight, (rows, statistics), out);
        let Some(sums) = sums else { return Ok(()) };
        scratch::with(2 * n, |totals: &mut [f64]| {
            column_sums(inputs, ([], n), totals, |row| parameters(statistics[row]))?;
            write_totals(totals, sums);
            Ok(())
        })
    })
}

/// The gradient of the input, given mean and scale of each row.
fn spread_long_rows<R: Real>(
    inputs: [Stored<'_, R>; 2],
    weight: Stored<'_, R>,
    (Normalized { n, is_centered, .. }, statistics): (Normalized<R>, &[[R; 2]]),
    out: StoredMut<'_, R>,
) {
    let count = R::from_f64(n as f64);
    by_long_rows(out, (n, CHUNK), &|i, out, pieces| {
        let ([x, grad], [mean, scale]) = (inputs.mapped(|input| input.part(i * n, n)), statistics[i]);
        let sums = sums_of_long_row([x, grad, weight], pieces, inlined!(|inputs| dots(inputs, [mean, scale])));
        let [sum, dot] = sums.mapped(|sum| sum / count);
        let sum = if is_centered { sum } else { R::ZERO };
        map_long_row([x, grad, weight], out, pieces, inlined!(|inputs| spread(inputs, [mean, scale, sum, dot])));
    });
}

/// The terms of two sums over a row: its sum, and its dot product with the normalized row.
#[inline(always)]
fn dots<R: Real>([x, grad, weight]: [R; 3], [mean, scale]: [R; 2]) -> [R; 2] {
    [grad * weight, grad * weight * ((x - mean) * scale)]
}

/// An element of the gradient, given the means of the terms of [`dots`].
#[inline(always)]
fn spread<R: Real>([x, grad, weight]: [R; 3], [mean, scale, sum, dot]: [R; 4]) -> R {
    scale * (grad * weight - sum - (x - mean) * scale * dot)
}

/// `out[i] = f(inputs[..][i])`.
#[inline(always)]
pub(super) fn map<R: Real, const N: usize>(inputs: [&[R]; N], out: &mut [R], f: impl Fn([R; N]) -> R) {
    loop_over(out, &inputs, inlined!(|out, x| *out = f(x)))();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_largest<R: Real>(row: Vec<R>, is_constant: bool) {
        let n = row.len();
        let (mut out, mut grad) = (vec![R::ONE; n], vec![R::ONE; n]);
        let rows = Normalized { n, eps: R::from_f64(1e-5), is_centered: true };
        layer_norm(row[..].into(), [None; 2], rows, (&mut out[..]).into(), None).unwrap();
        let ones = vec![R::ONE; n];
        let inputs = [row[..].into(), ones[..].into()];
        layer_norm_grad(inputs, (None, None), rows, (&mut grad[..]).into(), None).unwrap();
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
