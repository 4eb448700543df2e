//! Batch normalization: statistics of channels, and what elements become. Everything is computed in
//! `f32` or `f64`.
//!
//! Tensors are `[outer, channels, inner]`, contiguous. Where `inner` is 1, rows of channels are added up side by side, else
//! each plane by itself. Samples are cut into parts by sizes alone; what parts found meets in `f64`, in their order.

use pagelock_memory::Result;

use super::layer_norm::{SMALL, centered, unscaled};
use super::stored::{nth, with_widened};
use super::sums::{sums, wide};
use super::{CHUNK, PIECE, Stored, StoredMut, layer_norm, simd};
use crate::element::Real;
use crate::ops::Channels;
use crate::parallel::try_for_each_chunk_mut;
use crate::scratch;

/// The most parts of the samples.
const PARTS: usize = 64;
/// Rows of channels that are added up before they meet others.
const ROWS: usize = 32;

/// The numbers of all [`Change`]s, each for all channels: mean, scale, weight, bias.
pub(crate) type Numbers<'a, R> = [&'a [R]; 4];

/// How a channel's elements are normalized.
#[derive(Clone, Copy)]
struct Change<R> {
    mean: R,
    /// 1 / √(variance + eps)
    scale: R,
    weight: R,
    bias: R,
}

impl<R: Real> Change<R> {
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

    /// The gradient of what [`out`](Self::out) gives; with `relu` it is 0 where that is at most 0, but not where it is NaN.
    #[inline(always)]
    fn grad(self, relu: bool, x: R, grad: R) -> R {
        if relu && self.out(x) <= R::ZERO { R::ZERO } else { grad }
    }
}

/// Calls `f` with the changes of all channels; `statistics` are their means, then their variances.
pub(crate) fn with_changes<R: Real, U>(
    statistics: &[R],
    [weight, bias]: [Option<Stored<'_, R>>; 2],
    eps: R,
    n_channels: usize,
    f: impl FnOnce(Numbers<'_, R>) -> Result<U>,
) -> Result<U> {
    let of = |parameter: Option<Stored<'_, R>>, i: usize, otherwise| parameter.map_or(otherwise, |all| all.get(i));
    let (means, variances) = statistics[..2 * n_channels].split_at(n_channels);
    scratch::with(4 * n_channels, |numbers: &mut [R]| {
        for i in 0..n_channels {
            let (mean, scale) = centered(means[i], R::ONE / (variances[i] + eps).sqrt());
            let change = [mean, scale, of(weight, i, R::ONE), of(bias, i, R::ZERO)];
            (0..4).for_each(|k| numbers[k * n_channels + i] = change[k]);
        }
        f(std::array::from_fn(|k| &numbers[k * n_channels..][..n_channels]))
    })
}

/// `out` gets, for each channel, the mean, then the variance, then the variance with Bessel's correction.
pub(crate) fn channel_statistics<R: Real>(geometry: Channels, x: Stored<'_, R>, out: &mut [R]) -> Result<()> {
    let Channels { outer, channels, inner } = geometry;
    let count = (outer * inner) as f64;
    scratch::with(channels, |totals: &mut [f64]| {
        fold(geometry, [], [x], totals, |[], [x]| [x])?;
        for (mean, total) in out.iter_mut().zip(&*totals) {
            *mean = R::from_f64(total / count);
        }
        if !totals.iter().all(|total| total.is_finite()) {
            let down = R::from_f64(SMALL);
            fold(geometry, [], [x], totals, |[], [x]| [x * down])?;
            let overflowed = out.iter_mut().zip(&*totals).filter(|(mean, _)| mean.magnitude() == R::HIGHEST);
            overflowed.for_each(|(mean, total)| *mean = unscaled(R::from_f64(total / count)));
        }
        let (means, variances) = out.split_at_mut(channels);
        let means = &*means;
        fold(
            geometry,
            [means],
            [x],
            totals,
            #[inline(always)]
            |[mean], [x]| [(x - mean) * (x - mean)],
        )?;
        for (i, total) in totals.iter().enumerate() {
            variances[i] = R::from_f64(total / count);
            variances[channels + i] = R::from_f64(total / (count - 1.0));
        }
        Ok(())
    })
}

/// Normalizes `x`; with `relu`, what is below 0 becomes 0.
pub(crate) fn batch_norm<R: Real>(
    geometry: Channels,
    changes: Numbers<'_, R>,
    relu: bool,
    x: Stored<'_, R>,
    out: StoredMut<'_, R>,
) {
    let zero = R::ZERO;
    match relu {
        false => map(
            geometry,
            changes,
            [x],
            out,
            #[inline(always)]
            |change, [x]| Change::new(change).out(x),
        ),
        true => map(
            geometry,
            changes,
            [x],
            out,
            #[inline(always)]
            |change, [x]| {
                let y = Change::new(change).out(x);
                if y < zero { zero } else { y }
            },
        ),
    }
}

/// `Σ g·x̂` of each channel, then `Σ g` of each, where the inputs are `x` and the gradient `g` of the result.
pub(crate) fn batch_norm_sums<R: Real>(
    geometry: Channels,
    changes: Numbers<'_, R>,
    relu: bool,
    inputs: [Stored<'_, R>; 2],
    out: &mut [R],
) -> Result<()> {
    scratch::with(out.len(), |totals: &mut [f64]| {
        fold(
            geometry,
            changes,
            inputs,
            totals,
            #[inline(always)]
            |change, [x, grad]| {
                let change = Change::new(change);
                let grad = change.grad(relu, x, grad);
                [grad * change.normal(x), grad]
            },
        )?;
        out.iter_mut().zip(totals).for_each(|(out, total)| *out = R::from_f64(*total));
        Ok(())
    })
}

/// The gradient of `x`; `sums` are those of [`batch_norm_sums`] if the statistics depended on `x`.
pub(crate) fn batch_norm_grad<R: Real>(
    geometry: Channels,
    changes: Numbers<'_, R>,
    (relu, sums): (bool, Option<&[R]>),
    inputs: [Stored<'_, R>; 2],
    out: StoredMut<'_, R>,
) {
    let Some(sums) = sums else {
        return map(
            geometry,
            changes,
            inputs,
            out,
            #[inline(always)]
            |change, [x, grad]| {
                let change = Change::new(change);
                change.scale * change.weight * change.grad(relu, x, grad)
            },
        );
    };
    let (dots, sums) = sums.split_at(geometry.channels);
    let part = R::from_f64(1.0 / (geometry.outer * geometry.inner) as f64);
    let [mean, scale, weight, bias] = changes;
    map(
        geometry,
        [mean, scale, weight, bias, dots, sums],
        inputs,
        out,
        #[inline(always)]
        |[mean, scale, weight, bias, dot, sum], [x, grad]| {
            let change = Change::new([mean, scale, weight, bias]);
            let of_mean = change.grad(relu, x, grad) - sum * part;
            change.scale * change.weight * (of_mean - change.normal(x) * (dot * part))
        },
    );
}

/// `totals` gets `S` sums of `f(numbers of the channel, elements)` for each channel: the first of all channels, then the
/// second.
fn fold<R: Real, const K: usize, const N: usize, const S: usize>(
    geometry: Channels,
    numbers: [&[R]; K],
    inputs: [Stored<'_, R>; N],
    totals: &mut [f64],
    f: impl Fn([R; K], [R; N]) -> [R; S] + Sync + Copy,
) -> Result<()> {
    let Channels { outer, channels, inner } = geometry;
    let sample = channels * inner;
    totals.fill(0.0);
    if outer * sample == 0 {
        return Ok(());
    }
    let part_samples = outer.div_ceil(PARTS).max(CHUNK / sample).max(1);
    scratch::with(outer.div_ceil(part_samples) * totals.len(), |parts: &mut [f64]| {
        try_for_each_chunk_mut(parts, totals.len(), |i, part| {
            part.fill(0.0);
            let (start, end) = (i * part_samples * sample, ((i + 1) * part_samples).min(outer) * sample);
            let inputs = inputs.map(|input| input.part(start, end - start));
            match inner {
                1 => fold_rows(numbers, inputs, part, f),
                _ => {
                    fold_planes(geometry, numbers, inputs, part, f);
                    Ok(())
                }
            }
        })?;
        for part in parts.chunks_exact(totals.len()) {
            totals.iter_mut().zip(part).for_each(|(total, part)| *total += part);
        }
        Ok(())
    })
}

/// Adds up planes, one after the other.
fn fold_planes<R: Real, const K: usize, const N: usize, const S: usize>(
    Channels { channels, inner, .. }: Channels,
    numbers: [&[R]; K],
    inputs: [Stored<'_, R>; N],
    totals: &mut [f64],
    f: impl Fn([R; K], [R; N]) -> [R; S] + Copy,
) {
    for plane in 0..inputs[0].len() / inner {
        let channel = plane % channels;
        let numbers = numbers.map(|all| all[channel]);
        let found = sums(
            inputs.map(|input| input.part(plane * inner, inner)),
            #[inline(always)]
            move |x| f(numbers, x),
        );
        for (s, sum) in found.into_iter().enumerate() {
            totals[s * channels + channel] += wide(sum);
        }
    }
}

/// Adds up rows of channels, side by side.
fn fold_rows<R: Real, const K: usize, const N: usize, const S: usize>(
    numbers: [&[R]; K],
    inputs: [Stored<'_, R>; N],
    totals: &mut [f64],
    f: impl Fn([R; K], [R; N]) -> [R; S] + Copy,
) -> Result<()> {
    let channels = totals.len() / S;
    let rows = inputs[0].len() / channels;
    scratch::with(S * channels, |sums: &mut [R]| {
        for first in (0..rows).step_by(ROWS) {
            sums.fill(R::ZERO);
            let n = ROWS.min(rows - first);
            each_block(channels, n, inputs.map(|input| input.part(first * channels, n * channels)), |start, block| {
                let numbers = numbers.map(|all| &all[start..][..block.width]);
                add_rows(numbers, block, (&mut *sums, start), f);
            });
            totals.iter_mut().zip(&*sums).for_each(|(total, sum)| *total += wide(*sum));
        }
        Ok(())
    })
}

/// Some rows of all channels, or one row of some of them.
struct Block<'a, R, const N: usize> {
    inputs: [&'a [R]; N],
    width: usize,
}

/// Calls `work(first channel, block)` for some rows: for all at once, or for as many at a time as are widened together.
fn each_block<R: Real, const N: usize>(
    channels: usize,
    rows: usize,
    inputs: [Stored<'_, R>; N],
    mut work: impl FnMut(usize, Block<'_, R, N>),
) {
    let is_plain = inputs.iter().all(|input| matches!(input, Stored::Plain(_)));
    let width = if is_plain { channels } else { channels.min(PIECE) };
    let together = if is_plain { rows } else { (PIECE / channels).max(1) };
    for row in (0..rows).step_by(together) {
        for start in (0..channels).step_by(width) {
            let width = width.min(channels - start);
            let len = if width == channels { together.min(rows - row) * channels } else { width };
            let parts = inputs.map(|input| input.part(row * channels + start, len));
            with_widened(parts, |inputs| work(start, Block { inputs, width }));
        }
    }
}

/// Channels whose numbers and sums are copied, so that the compiler knows that writing one leaves the others.
const TOGETHER: usize = 64;

/// Adds the rows of a block to the sums of the channels, of which its first is number `start`.
fn add_rows<R: Real, const K: usize, const N: usize, const S: usize>(
    numbers: [&[R]; K],
    Block { inputs, width }: Block<'_, R, N>,
    (sums, start): (&mut [R], usize),
    f: impl Fn([R; K], [R; N]) -> [R; S] + Copy,
) {
    let channels = sums.len() / S;
    for first in (0..width).step_by(TOGETHER) {
        let n = TOGETHER.min(width - first);
        let numbers = copied(numbers, first, n);
        let mut own = [[R::ZERO; TOGETHER]; S];
        let places = (0..S).map(|s| s * channels + start + first);
        own.iter_mut().zip(places.clone()).for_each(|(own, at)| own[..n].copy_from_slice(&sums[at..][..n]));
        simd::vectorized(
            #[inline(always)]
            || {
                for row in (first..inputs[0].len()).step_by(width) {
                    let inputs = inputs.map(|input| &input[row..][..n]);
                    for i in 0..n {
                        let found = f(nth(&numbers.each_ref().map(|all| &all[..]), i), nth(&inputs, i));
                        own.iter_mut().zip(found).for_each(|(own, found)| own[i] = own[i] + found);
                    }
                }
            },
        );
        own.iter().zip(places).for_each(|(own, at)| sums[at..][..n].copy_from_slice(&own[..n]));
    }
}

/// The numbers of `n` channels from `first` on.
fn copied<R: Real, const K: usize>(numbers: [&[R]; K], first: usize, n: usize) -> [[R; TOGETHER]; K] {
    let mut copies = [[R::ZERO; TOGETHER]; K];
    copies.iter_mut().zip(numbers).for_each(|(copy, all)| copy[..n].copy_from_slice(&all[first..][..n]));
    copies
}

/// `out = f(numbers of the channel, elements)`.
fn map<R: Real, const K: usize, const N: usize>(
    Channels { channels, inner, .. }: Channels,
    numbers: [&[R]; K],
    inputs: [Stored<'_, R>; N],
    out: StoredMut<'_, R>,
    f: impl Fn([R; K], [R; N]) -> R + Sync + Copy,
) {
    if out.len() == 0 {
        return;
    }
    // Runs of one channel, or rows of all of them.
    let run = if inner > 1 { inner } else { channels };
    let runs = (CHUNK / run).max(1);
    out.for_each_chunk(runs * run, &|i, mut out| {
        for start in (0..out.len()).step_by(run) {
            let place = i * runs * run + start;
            let (inputs, out) = (inputs.map(|input| input.part(place, run)), out.part(start, run));
            if inner > 1 {
                let numbers = numbers.map(|all| all[place / run % channels]);
                layer_norm::map(
                    inputs,
                    out,
                    #[inline(always)]
                    move |x| f(numbers, x),
                );
            } else {
                map_row(numbers, inputs, out, f);
            }
        }
    });
}

/// The same for a row of all channels.
fn map_row<R: Real, const K: usize, const N: usize>(
    numbers: [&[R]; K],
    inputs: [Stored<'_, R>; N],
    mut out: StoredMut<'_, R>,
    f: impl Fn([R; K], [R; N]) -> R + Copy,
) {
    for first in (0..out.len()).step_by(TOGETHER) {
        let n = TOGETHER.min(out.len() - first);
        let numbers = copied(numbers, first, n);
        out.write(first, n, |out| {
            with_widened(inputs.map(|input| input.part(first, n)), |inputs| {
                let mut results = [R::ZERO; TOGETHER];
                simd::vectorized(
                    #[inline(always)]
                    || {
                        let inputs = inputs.map(|input| &input[..n]);
                        for (i, result) in results[..n].iter_mut().enumerate() {
                            *result = f(nth(&numbers.each_ref().map(|all| &all[..]), i), nth(&inputs, i));
                        }
                    },
                );
                results
            })
            .iter()
            .zip(out)
            .for_each(|(result, out)| *out = *result);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[outer, channels, inner]` numbers around `center`.
    fn numbers(n: usize, center: f64) -> Vec<f64> {
        (0..n).map(|i| center + ((i * 7_919) % 1_009) as f64 / 1_009.0).collect()
    }

    /// The statistics and the normalized elements of two channels, of which the second has the largest numbers.
    fn check_largest<R: Real>(geometry: Channels) {
        let Channels { outer, channels, inner } = geometry;
        let signs = [R::LARGEST, R::LARGEST, -R::LARGEST, R::LARGEST];
        let value = |i: usize| {
            if (i / inner).is_multiple_of(channels) { R::from_f64((i / 2 % 2) as f64) } else { signs[i * 7 / 3 % 4] }
        };
        let x: Vec<R> = (0..outer * channels * inner).map(value).collect();
        let (mut statistics, mut out) = (vec![R::ZERO; 3 * channels], vec![R::ONE; x.len()]);
        channel_statistics(geometry, x[..].into(), &mut statistics).unwrap();
        with_changes(&statistics, [None; 2], R::from_f64(1e-5), channels, |changes| {
            batch_norm(geometry, changes, false, x[..].into(), (&mut out[..]).into());
            Ok(())
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
