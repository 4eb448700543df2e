//! Batch normalization: statistics of channels, normalized elements and gradients, in `f32` or `f64`.
//!
//! Tensors are `[outer, channels, inner]`, contiguous. A plane, one channel of one sample, is a row with one set of
//! numbers. If planes are small (`inner` is 1 in channels-last layout), rows are whole samples, and each column has
//! the numbers of its channel. Sums of rows, or of blocks of rows, are added in `f64`, in a fixed order.

use pagelock_memory::Result;

use super::elements::{by_rows, nth, rows_of};
use super::kernel::{RowOfHalves, by_rows_of_halves, map_in_registers};
use super::layer_norm::{self, SMALL, centered, unscaled};
use super::math::half::{BLOCK, Block, Registers};
use super::sums::{column_sums, lane_of, sums, wide};
use super::{CHUNK, Stored, StoredMut, simd};
use crate::element::Real;
use crate::inlined::{Array, Slice, from_fn, zip};
use crate::ops::Channels;
use crate::scratch;

/// The smallest planes that are rows of their own.
const PLANE: usize = 32;
/// Shorter samples are computed [`SAMPLES`] to a row, which fills vectors whatever the number of channels is.
const SHORT: usize = 64;
const SAMPLES: usize = 16;

/// The numbers of a [`Normalizer`], each for all channels: mean, scale, weight, bias.
pub(crate) type Normalizers<'a, R> = [&'a [R]; 4];

/// How a channel's elements are normalized.
#[derive(Clone, Copy)]
struct Normalizer<R> {
    mean: R,
    /// 1 / √(variance + eps)
    scale: R,
    weight: R,
    bias: R,
}

impl<R: Real> Normalizer<R> {
    #[inline(always)]
    fn new([mean, scale, weight, bias]: [R; 4]) -> Self {
        Self { mean, scale, weight, bias }
    }

    #[inline(always)]
    fn normal(self, x: R) -> R {
        (x - self.mean) * self.scale
    }

    #[inline(always)]
    fn out(self, x: R) -> R {
        self.normal(x) * self.weight + self.bias
    }

    /// The gradient of [`out`](Self::out). With `relu` it is 0 where `out` is at most 0, but not where it is NaN.
    #[inline(always)]
    fn grad(self, relu: bool, x: R, grad: R) -> R {
        if relu && self.out(x) <= R::ZERO { R::ZERO } else { grad }
    }
}

/// Calls `f` with the normalizers of all channels; `statistics` are their means, then their variances.
pub(crate) fn with_normalizers<R: Real, U>(
    statistics: &[R],
    [weight, bias]: [Option<Stored<'_, R>>; 2],
    eps: R,
    n_channels: usize,
    f: impl FnOnce(Normalizers<'_, R>) -> Result<U>,
) -> Result<U> {
    let of = |parameter: Option<Stored<'_, R>>, i: usize, otherwise| parameter.map_or(otherwise, |all| all.get(i));
    let (means, variances) = statistics[..2 * n_channels].split_at(n_channels);
    scratch::with(4 * n_channels, |numbers: &mut [R]| {
        for i in 0..n_channels {
            let (mean, scale) = centered(means[i], R::ONE / (variances[i] + eps).sqrt());
            let normalizer = [mean, scale, of(weight, i, R::ONE), of(bias, i, R::ZERO)];
            (0..4).for_each(|k| numbers[k * n_channels + i] = normalizer[k]);
        }
        f(from_fn(|k| &numbers[k * n_channels..][..n_channels]))
    })
}

/// How many elements of a channel, and how many samples, are enough to estimate its mean.
const FEW: (usize, usize) = (16, 4);

/// `out` gets, for each channel, the mean, then the variance, then the variance with Bessel's correction.
///
/// One pass adds up the distances from the mean of a few elements, and the squares of the distances. If the mean of a
/// channel is far from the mean of its few elements, another pass starts from the means of all elements: otherwise
/// cancellation would leave few digits of the variance.
pub(crate) fn channel_statistics<R: Real>(geometry: Channels, x: Stored<'_, R>, out: &mut [R]) -> Result<()> {
    let Channels { outer, channels, inner } = geometry;
    let count = (outer * inner) as f64;
    let few = Channels { outer: outer.min(FEW.0.div_ceil(inner.max(1)).max(FEW.1)), ..geometry };
    scratch::with(2 * channels, |totals: &mut [f64]| {
        let (means, variances) = out.split_at_mut(channels);
        means_of(few, x.part(0, few.outer * channels * inner), totals, means)?;
        spread_around(geometry, means, x, totals)?;
        let is_near = |(&distance, &squares): (&f64, &f64)| {
            distance.is_finite() && squares_of(distance, squares, count) * 8.0 >= squares
        };
        let (distances, squares) = totals.split_at(channels);
        if !zip(distances, squares).all(is_near) {
            means_of(geometry, x, totals, means)?;
            spread_around(geometry, means, x, totals)?;
        }
        let (distances, squares) = totals.split_at(channels);
        for (i, (&distance, &squares)) in zip(distances, squares).enumerate() {
            let squares = squares_of(distance, squares, count);
            if distance.is_finite() {
                means[i] = R::from_f64(wide(means[i]) + distance / count);
            }
            variances[i] = R::from_f64(squares / count);
            variances[channels + i] = R::from_f64(squares / (count - 1.0));
        }
        Ok(())
    })
}

/// The sum of the squared distances of `count` elements from their mean, given the sums of their distances from
/// another center and of the squares of these distances.
fn squares_of(distance: f64, squares: f64, count: f64) -> f64 {
    let shift = distance * (distance / count);
    match distance.is_finite() && squares.is_finite() {
        true if shift > squares => 0.0,
        true => squares - shift,
        false => squares,
    }
}

/// `totals` gets the sum of the distances from `centers` for each channel, then that of their squares.
fn spread_around<R: Real>(geometry: Channels, centers: &[R], x: Stored<'_, R>, totals: &mut [f64]) -> Result<()> {
    fold(geometry, [centers], [x], totals, inlined!(move |[center], [x]| [x - center, (x - center) * (x - center)]))
}

/// The mean of each channel, finite if the elements are.
fn means_of<R: Real>(geometry: Channels, x: Stored<'_, R>, totals: &mut [f64], means: &mut [R]) -> Result<()> {
    let count = (geometry.outer * geometry.inner) as f64;
    let totals = &mut totals[..geometry.channels];
    fold(geometry, [], [x], totals, |[], [x]| [x])?;
    for (mean, total) in zip(&mut means[..], &*totals) {
        *mean = R::from_f64(total / count);
    }
    if !totals.iter().all(|total| total.is_finite()) {
        let down = R::from_f64(SMALL);
        fold(geometry, [], [x], totals, move |[], [x]| [x * down])?;
        let overflowed = zip(&mut means[..], &*totals).filter(|(mean, _)| mean.magnitude() == R::HIGHEST);
        overflowed.for_each(|(mean, total)| *mean = unscaled(R::from_f64(total / count)));
    }
    Ok(())
}

/// Normalizes `x`. With `relu`, negative results become 0.
pub(crate) fn batch_norm<R: Real>(
    geometry: Channels,
    normalizers: Normalizers<'_, R>,
    relu: bool,
    x: Stored<'_, R>,
    out: StoredMut<'_, R>,
) -> Result<()> {
    let zero = R::ZERO;
    match relu {
        false => {
            map(geometry, normalizers, [x], out, inlined!(move |normalizer, [x]| Normalizer::new(normalizer).out(x)))
        }
        true => map(
            geometry,
            normalizers,
            [x],
            out,
            inlined!(move |normalizer, [x]| {
                let y = Normalizer::new(normalizer).out(x);
                if y < zero { zero } else { y }
            }),
        ),
    }
}

/// `Σ g·x̂` of each channel, then `Σ g` of each, where the inputs are `x` and the gradient `g` of the result.
pub(crate) fn batch_norm_sums<R: Real>(
    geometry: Channels,
    normalizers: Normalizers<'_, R>,
    relu: bool,
    inputs: [Stored<'_, R>; 2],
    out: &mut [R],
) -> Result<()> {
    scratch::with(out.len(), |totals: &mut [f64]| {
        let [mean, scale, ..] = normalizers;
        match relu {
            false => fold(
                geometry,
                [mean, scale],
                inputs,
                totals,
                inlined!(move |[mean, scale], [x, grad]| [grad * ((x - mean) * scale), grad]),
            ),
            true => fold(
                geometry,
                normalizers,
                inputs,
                totals,
                inlined!(move |normalizer, [x, grad]| {
                    let normalizer = Normalizer::new(normalizer);
                    let grad = normalizer.grad(true, x, grad);
                    [grad * normalizer.normal(x), grad]
                }),
            ),
        }?;
        zip(&mut out[..], totals).for_each(|(out, total)| *out = R::from_f64(*total));
        Ok(())
    })
}

/// `out = factor · (x − mean)`, with the means and factors of channels.
pub(crate) fn scaled_deviations<R: Real>(
    geometry: Channels,
    means_and_factors: [&[R]; 2],
    x: Stored<'_, R>,
    out: StoredMut<'_, R>,
) -> Result<()> {
    map(geometry, means_and_factors, [x], out, inlined!(|[mean, factor], [x]| factor * (x - mean)))
}

/// The gradient of `x`; `sums` are those of [`batch_norm_sums`] if the statistics depended on `x`.
pub(crate) fn batch_norm_grad<R: Real>(
    geometry: Channels,
    normalizers: Normalizers<'_, R>,
    (relu, sums): (bool, Option<&[R]>),
    inputs: [Stored<'_, R>; 2],
    out: StoredMut<'_, R>,
) -> Result<()> {
    let Some(sums) = sums else {
        return map(
            geometry,
            normalizers,
            inputs,
            out,
            inlined!(move |normalizer, [x, grad]| {
                let normalizer = Normalizer::new(normalizer);
                normalizer.scale * normalizer.weight * normalizer.grad(relu, x, grad)
            }),
        );
    };
    let (channels, part) = (geometry.channels, R::from_f64(1.0 / (geometry.outer * geometry.inner) as f64));
    let [mean, scale, weight, bias] = normalizers;
    scratch::with(3 * channels, |products: &mut [R]| {
        for (i, factor) in products[..channels].iter_mut().enumerate() {
            *factor = scale[i] * weight[i];
        }
        zip(&mut products[channels..], sums).for_each(|(product, &sum)| *product = sum * part);
        let (factors, of_means) = products.split_at(channels);
        let (dots, sums) = of_means.split_at(channels);
        match relu {
            false => map(
                geometry,
                [mean, scale, factors, dots, sums],
                inputs,
                out,
                inlined!(
                    move |[mean, scale, factor, dot, sum], [x, grad]| factor * (grad - sum - (x - mean) * scale * dot)
                ),
            ),
            true => map(
                geometry,
                [mean, scale, weight, bias, factors, dots, sums],
                inputs,
                out,
                inlined!(move |[mean, scale, weight, bias, factor, dot, sum], [x, grad]| {
                    let normalizer = Normalizer::new([mean, scale, weight, bias]);
                    factor * (normalizer.grad(true, x, grad) - sum - normalizer.normal(x) * dot)
                }),
            ),
        }
    })
}

/// `totals` gets `S` sums of `f(numbers of the channel, elements)` for each channel: the first sum of all channels,
/// then the second.
fn fold<R: Real, const K: usize, const N: usize, const S: usize>(
    geometry: Channels,
    numbers: [&[R]; K],
    inputs: [Stored<'_, R>; N],
    totals: &mut [f64],
    f: impl Fn([R; K], [R; N]) -> [R; S] + Sync + Copy,
) -> Result<()> {
    let Channels { channels, inner, .. } = geometry;
    totals.set_to(0.0);
    if inner >= PLANE {
        return fold_planes(geometry, numbers, inputs, totals, f);
    }
    by_columns(geometry, numbers, &mut |numbers, (start, len, width)| {
        scratch::with(S * width, |sums: &mut [f64]| {
            column_sums(inputs.mapped(|input| input.part(start, len)), (numbers, width), sums, |_| f)?;
            for (totals, sums) in zip(totals.chunks_exact_mut(channels), sums.chunks_exact(width)) {
                for sample in sums.chunks_exact(channels * inner) {
                    let planes = sample.chunks_exact(inner);
                    zip(&mut totals[..], planes).for_each(|(total, plane)| *total += plane.iter().sum::<f64>());
                }
            }
            Ok(())
        })
    })
}

/// Adds up planes, one after the other.
fn fold_planes<R: Real, const K: usize, const N: usize, const S: usize>(
    Channels { outer, channels, inner }: Channels,
    numbers: [&[R]; K],
    inputs: [Stored<'_, R>; N],
    totals: &mut [f64],
    f: impl Fn([R; K], [R; N]) -> [R; S] + Sync + Copy,
) -> Result<()> {
    scratch::with(outer * channels * S, |found: &mut [R]| {
        by_rows(inputs, (inner, CHUNK), (&mut *found).into(), &|first, inputs, found| {
            simd::vectorized(inlined!(move || {
                for (i, found) in found.as_chunks_mut::<S>().0.iter_mut().enumerate() {
                    let numbers = nth(&numbers, (first + i) % channels);
                    let rows = rows_of(inputs, i * inner, inner);
                    *found = sums(rows, inlined!(move |x| f(numbers, x)));
                }
            }));
        })?;
        for (plane, found) in found.as_chunks::<S>().0.iter().enumerate() {
            for (s, &sum) in found.iter().enumerate() {
                totals[s * channels + plane % channels] += wide(sum);
            }
        }
        Ok(())
    })
}

/// `out = f(numbers of the channel, elements)`.
fn map<R: Real, const K: usize, const N: usize>(
    geometry: Channels,
    numbers: [&[R]; K],
    inputs: [Stored<'_, R>; N],
    mut out: StoredMut<'_, R>,
    f: impl Fn([R; K], [R; N]) -> R + Sync + Copy,
) -> Result<()> {
    let Channels { channels, inner, .. } = geometry;
    if inner >= PLANE {
        if by_rows_of_halves(inputs, (inner, CHUNK), &mut out, &Planes { channels, numbers, f: &f }) {
            return Ok(());
        }
        return by_rows(inputs, (inner, CHUNK), out, &|first, inputs, out| {
            simd::vectorized(inlined!(move || {
                for (i, out) in out.chunks_exact_mut(inner).enumerate() {
                    let numbers = nth(&numbers, (first + i) % channels);
                    layer_norm::map(rows_of(inputs, i * inner, inner), out, inlined!(move |x| f(numbers, x)));
                }
            }));
        });
    }
    by_columns(geometry, numbers, &mut |numbers, (start, len, width)| {
        let (inputs, mut out) = (inputs.mapped(|input| input.part(start, len)), out.part(start, len));
        if by_rows_of_halves(inputs, (width, CHUNK), &mut out, &Columns { numbers, f: &f }) {
            return Ok(());
        }
        by_rows(inputs, (width, CHUNK), out, &|_, inputs, out| {
            simd::vectorized(inlined!(move || map_columns(numbers, inputs, out, f)));
        })
    })
}

/// `map` for planes of halves.
struct Planes<'a, R, F, const K: usize> {
    channels: usize,
    numbers: [&'a [R]; K],
    f: &'a F,
}

impl<R: Real, F: Fn([R; K], [R; N]) -> R + Sync, const K: usize, const N: usize> RowOfHalves<N>
    for Planes<'_, R, F, K>
{
    #[inline(always)]
    fn compute(&self, registers: impl Registers, i: usize, inputs: [&[Block]; N], out: &mut [Block]) {
        let numbers = nth(&self.numbers, i % self.channels);
        map_in_registers(registers, inputs, out, inlined!(|x| (self.f)(numbers, x)));
    }
}

/// [`map_columns`] for halves.
struct Columns<'a, R, F, const K: usize> {
    numbers: [&'a [R]; K],
    f: &'a F,
}

impl<R: Real, F: Fn([R; K], [R; N]) -> R + Sync, const K: usize, const N: usize> RowOfHalves<N>
    for Columns<'_, R, F, K>
{
    #[inline(always)]
    fn compute(&self, registers: impl Registers, _: usize, inputs: [&[Block]; N], out: &mut [Block]) {
        let (mut numbers, mut widened) = ([[R::ZERO; BLOCK]; K], [[R::ZERO; BLOCK]; N]);
        for (i, out) in out.iter_mut().enumerate() {
            zip(&mut numbers[..], self.numbers).for_each(|(numbers, all)| *numbers = all.as_chunks().0[i]);
            zip(&mut widened[..], inputs).for_each(|(widened, input)| *widened = R::widened(registers, &input[i]));
            let mut results = [R::ZERO; BLOCK];
            for (lane, result) in results.iter_mut().enumerate() {
                *result = (self.f)(lane_of(&numbers, lane), lane_of(&widened, lane));
            }
            *out = R::narrowed(registers, &results);
        }
    }
}

/// Calls `f(numbers, (start, len, width))` for parts of the samples as rows of `width` elements, with the numbers of each
/// column.
fn by_columns<R: Real, const K: usize>(
    Channels { outer, channels, inner }: Channels,
    numbers: [&[R]; K],
    f: &mut dyn FnMut([&[R]; K], (usize, usize, usize)) -> Result<()>,
) -> Result<()> {
    let sample = channels * inner;
    let width = if sample < SHORT { SAMPLES * sample } else { sample };
    if outer * sample == 0 {
        return Ok(());
    }
    scratch::with(K * width, |columns: &mut [R]| {
        for (columns, numbers) in zip(columns.chunks_exact_mut(width), numbers) {
            for sample in columns.chunks_exact_mut(sample) {
                zip(sample.chunks_exact_mut(inner), numbers).for_each(|(plane, number)| plane.set_to(*number));
            }
        }
        let rest = outer * sample % width;
        let whole = outer * sample - rest;
        for (start, len, row_len) in [(0, whole, width), (whole, rest, rest)] {
            if len > 0 {
                f(from_fn(|k| &columns[k * width..][..row_len]), (start, len, row_len))?;
            }
        }
        Ok(())
    })
}

/// Columns computed together. Their numbers are copied, so that the compiler knows that no write changes them.
const COLUMNS: usize = 64;

/// `out[i, j] = f(numbers[..][j], inputs[..][i, j])`
#[inline(always)]
fn map_columns<R: Real, const K: usize, const N: usize>(
    numbers: [&[R]; K],
    inputs: [&[R]; N],
    out: &mut [R],
    f: impl Fn([R; K], [R; N]) -> R,
) {
    let width = numbers[0].len();
    let mut buffer = [[R::ZERO; COLUMNS]; N];
    for start in (0..width).step_by(COLUMNS) {
        let n = COLUMNS.min(width - start);
        let numbers = columns_of(numbers, start, n);
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let x = windows(inputs, i * width + start, &mut buffer);
            let mut results = [R::ZERO; COLUMNS];
            for (j, result) in results.iter_mut().enumerate() {
                let mut at = [R::ZERO; N];
                zip(&mut at[..], x).for_each(|(at, x)| *at = x[j]);
                *result = f(lane_of(&numbers, j), at);
            }
            match out[start..].first_chunk_mut() {
                Some(out) if n == COLUMNS => *out = results,
                _ => out[start..][..n].copy_from(&results[..n]),
            }
        }
    }
}

/// [`COLUMNS`] elements of each input from `start` on. Where an input ends earlier, the rest is not used.
#[inline(always)]
fn windows<'a, R: Real, const N: usize>(
    inputs: [&'a [R]; N],
    start: usize,
    buffer: &'a mut [[R; COLUMNS]; N],
) -> [&'a [R; COLUMNS]; N] {
    for (buffer, input) in zip(&mut buffer[..], inputs) {
        let rest = &input[start..];
        if rest.len() < COLUMNS {
            buffer[..rest.len()].copy_from(rest);
        }
    }
    let mut windows = buffer.each_ref();
    for (window, input) in zip(&mut windows[..], inputs) {
        *window = input[start..].first_chunk().unwrap_or(*window);
    }
    windows
}

/// The numbers of `n` columns from `start` on.
#[inline(always)]
fn columns_of<R: Real, const K: usize>(numbers: [&[R]; K], start: usize, n: usize) -> [[R; COLUMNS]; K] {
    let mut columns = [[R::ZERO; COLUMNS]; K];
    for (columns, numbers) in zip(&mut columns[..], numbers) {
        columns[..n].copy_from(&numbers[start..][..n]);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `n` numbers around `center`.
    fn numbers(n: usize, center: f64) -> Vec<f64> {
        (0..n).map(|i| center + ((i * 7_919) % 1_009) as f64 / 1_009.0).collect()
    }

    /// Checks the statistics and the normalized elements of two channels, of which the second has the largest
    /// numbers.
    fn check_largest<R: Real>(geometry: Channels) {
        let Channels { outer, channels, inner } = geometry;
        let signs = [R::LARGEST, R::LARGEST, -R::LARGEST, R::LARGEST];
        let value = |i: usize| {
            if (i / inner).is_multiple_of(channels) { R::from_f64((i / 2 % 2) as f64) } else { signs[i * 7 / 3 % 4] }
        };
        let x: Vec<R> = (0..outer * channels * inner).map(value).collect();
        let (mut statistics, mut out) = (vec![R::ZERO; 3 * channels], vec![R::ONE; x.len()]);
        channel_statistics(geometry, x[..].into(), &mut statistics).unwrap();
        with_normalizers(&statistics, [None; 2], R::from_f64(1e-5), channels, |normalizers| {
            batch_norm(geometry, normalizers, false, x[..].into(), (&mut out[..]).into())
        })
        .unwrap();
        assert!(statistics[..channels].iter().all(|mean| mean.magnitude() <= R::LARGEST), "{:?}", &statistics);
        assert!((0..x.len()).all(|i| if i / inner % channels == 0 { out[i] != R::ZERO } else { out[i] == R::ZERO }));
    }

    #[test]
    fn channels_of_the_largest_numbers_become_zero_and_others_are_normalized() {
        for (outer, inner) in [(5, 1), (2, 4), (3_000, 1), (2, 5_000)] {
            check_largest::<f32>(Channels { outer, channels: 2, inner });
            check_largest::<f64>(Channels { outer, channels: 2, inner });
        }
    }

    #[test]
    fn statistics_are_those_of_each_channel_however_it_lies_and_wherever_its_center_is() {
        for (outer, channels, inner) in [(3, 2, 5), (4, 3, 1), (2_000, 5, 1), (40, 3, 1_100), (1, 2, 70_000), (2, 1, 1)]
        {
            let x = numbers(outer * channels * inner, 1e4);
            let mut out = vec![0.0; 3 * channels];
            channel_statistics(Channels { outer, channels, inner }, x[..].into(), &mut out).unwrap();
            for channel in 0..channels {
                let of_channel = |i: usize| i / inner % channels == channel;
                let own: Vec<f64> = (0..x.len()).filter(|&i| of_channel(i)).map(|i| x[i]).collect();
                let n = own.len() as f64;
                let mean = own.iter().sum::<f64>() / n;
                let squares: f64 = own.iter().map(|x| (x - mean) * (x - mean)).sum();
                let found = [out[channel], out[channels + channel], out[2 * channels + channel]];
                for (found, expected) in found.into_iter().zip([mean, squares / n, squares / (n - 1.0)]) {
                    assert!((found - expected).abs() < 1e-9 * expected.abs(), "{found} instead of {expected}");
                }
            }
        }
    }
}
