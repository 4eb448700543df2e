//! Batch normalization: statistics of channels, and what elements become. Everything is computed in `T::Real`.
//!
//! Tensors are `[outer, channels, inner]`, contiguous. Where `inner` is 1, rows of channels are added up side by side, else
//! each plane by itself. Samples are cut into parts by sizes alone; what parts found meets in `f64`, in their order.

use pagelock_memory::Result;

use super::sums::{sums, wide};
use super::{CHUNK, simd};
use crate::element::{Element, Floating, Real};
use crate::ops::Channels;
use crate::parallel::{for_each_chunk_mut, try_for_each_chunk_mut};
use crate::scratch;

/// The most parts of the samples.
const PARTS: usize = 64;
/// Rows of channels that are added up before they meet others.
const ROWS: usize = 32;

/// The numbers of a [`Change`], as scratch space has them: mean, scale, weight, bias.
pub(crate) type Numbers<R> = [R; 4];

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
    fn new([mean, scale, weight, bias]: Numbers<R>) -> Self {
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
pub(crate) fn with_changes<T: Floating, U>(
    statistics: &[T::Real],
    [weight, bias]: [Option<&[T]>; 2],
    eps: T::Real,
    n_channels: usize,
    f: impl FnOnce(&[Numbers<T::Real>]) -> Result<U>,
) -> Result<U> {
    let of = |parameter: Option<&[T]>, i: usize, otherwise| parameter.map_or(otherwise, |all| all[i].to_real());
    let (means, variances) = statistics[..2 * n_channels].split_at(n_channels);
    scratch::with(n_channels, |changes: &mut [Numbers<T::Real>]| {
        for (i, (change, (&mean, &variance))) in changes.iter_mut().zip(means.iter().zip(variances)).enumerate() {
            let scale = T::Real::ONE / (variance + eps).sqrt();
            let (weight, bias) = (of(weight, i, T::Real::ONE), of(bias, i, T::Real::ZERO));
            *change = [mean, scale, weight, bias];
        }
        f(changes)
    })
}

/// `out` gets, for each channel, the mean, then the variance, then the variance with Bessel's correction.
pub(crate) fn channel_statistics<T: Floating>(geometry: Channels, x: &[T], out: &mut [T::Real]) -> Result<()> {
    let Channels { outer, channels, inner } = geometry;
    let count = (outer * inner) as f64;
    scratch::with(channels, |totals: &mut [f64]| {
        fold(geometry, [x], totals, |_, [x]| [x])?;
        for (mean, total) in out.iter_mut().zip(&*totals) {
            *mean = T::Real::from_f64(total / count);
        }
        let (means, variances) = out.split_at_mut(channels);
        let means = &*means;
        fold(
            geometry,
            [x],
            totals,
            #[inline(always)]
            |channel, [x]| [(x - means[channel]) * (x - means[channel])],
        )?;
        for (i, total) in totals.iter().enumerate() {
            variances[i] = T::Real::from_f64(total / count);
            variances[channels + i] = T::Real::from_f64(total / (count - 1.0));
        }
        Ok(())
    })
}

/// Normalizes `x`; with `relu`, what is below 0 becomes 0.
pub(crate) fn batch_norm<T: Floating>(
    geometry: Channels,
    changes: &[Numbers<T::Real>],
    relu: bool,
    x: &[T],
    out: &mut [T],
) {
    let zero = T::Real::ZERO;
    match relu {
        false => map(
            geometry,
            [x],
            out,
            #[inline(always)]
            |channel, [x]| Change::new(changes[channel]).out(x),
        ),
        true => map(
            geometry,
            [x],
            out,
            #[inline(always)]
            |channel, [x]| {
                let y = Change::new(changes[channel]).out(x);
                if y < zero { zero } else { y }
            },
        ),
    }
}

/// `Σ g·x̂` of each channel, then `Σ g` of each, where the inputs are `x` and the gradient `g` of the result.
pub(crate) fn batch_norm_sums<T: Floating>(
    geometry: Channels,
    changes: &[Numbers<T::Real>],
    relu: bool,
    inputs: [&[T]; 2],
    out: &mut [T::Real],
) -> Result<()> {
    scratch::with(out.len(), |totals: &mut [f64]| {
        fold(
            geometry,
            inputs,
            totals,
            #[inline(always)]
            |channel, [x, grad]| {
                let change = Change::new(changes[channel]);
                let grad = change.grad(relu, x, grad);
                [grad * change.normal(x), grad]
            },
        )?;
        out.iter_mut().zip(totals).for_each(|(out, total)| *out = T::Real::from_f64(*total));
        Ok(())
    })
}

/// The gradient of `x`; `sums` are those of [`batch_norm_sums`] if the statistics depended on `x`.
pub(crate) fn batch_norm_grad<T: Floating>(
    geometry: Channels,
    changes: &[Numbers<T::Real>],
    (relu, sums): (bool, Option<&[T::Real]>),
    inputs: [&[T]; 2],
    out: &mut [T],
) {
    let Some(sums) = sums else {
        return map(
            geometry,
            inputs,
            out,
            #[inline(always)]
            |channel, [x, grad]| {
                let change = Change::new(changes[channel]);
                change.scale * change.weight * change.grad(relu, x, grad)
            },
        );
    };
    let (dots, sums) = sums.split_at(geometry.channels);
    let part = T::Real::from_f64(1.0 / (geometry.outer * geometry.inner) as f64);
    map(
        geometry,
        inputs,
        out,
        #[inline(always)]
        |channel, [x, grad]| {
            let change = Change::new(changes[channel]);
            let of_mean = change.grad(relu, x, grad) - sums[channel] * part;
            change.scale * change.weight * (of_mean - change.normal(x) * (dots[channel] * part))
        },
    );
}

/// `totals` gets `S` sums of `f(channel, elements)` for each channel: the first of all channels, then the second.
fn fold<T: Floating, const N: usize, const S: usize>(
    geometry: Channels,
    inputs: [&[T]; N],
    totals: &mut [f64],
    f: impl Fn(usize, [T::Real; N]) -> [T::Real; S] + Sync + Copy,
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
            let inputs = inputs.map(|input| &input[start..end]);
            match inner {
                1 => fold_rows(channels, inputs, part, f),
                _ => {
                    fold_planes(geometry, inputs, part, f);
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
fn fold_planes<T: Floating, const N: usize, const S: usize>(
    Channels { channels, inner, .. }: Channels,
    inputs: [&[T]; N],
    totals: &mut [f64],
    f: impl Fn(usize, [T::Real; N]) -> [T::Real; S] + Copy,
) {
    for plane in 0..inputs[0].len() / inner {
        let channel = plane % channels;
        let found = sums(
            inputs.map(|input| &input[plane * inner..][..inner]),
            #[inline(always)]
            move |x| f(channel, x),
        );
        for (s, sum) in found.into_iter().enumerate() {
            totals[s * channels + channel] += wide(sum);
        }
    }
}

/// Adds up rows of channels, side by side.
fn fold_rows<T: Floating, const N: usize, const S: usize>(
    channels: usize,
    inputs: [&[T]; N],
    totals: &mut [f64],
    f: impl Fn(usize, [T::Real; N]) -> [T::Real; S] + Copy,
) -> Result<()> {
    scratch::with(S * channels, |sums: &mut [T::Real]| {
        for start in (0..inputs[0].len()).step_by(ROWS * channels) {
            sums.fill(T::Real::ZERO);
            let end = (start + ROWS * channels).min(inputs[0].len());
            simd::vectorized(
                #[inline(always)]
                || {
                    for row in (start..end).step_by(channels) {
                        let inputs = inputs.map(|input| &input[row..row + channels]);
                        for channel in 0..channels {
                            let found = f(channel, std::array::from_fn(|k| inputs[k][channel].to_real()));
                            for (s, sum) in found.into_iter().enumerate() {
                                sums[s * channels + channel] = sums[s * channels + channel].plus(sum);
                            }
                        }
                    }
                },
            );
            totals.iter_mut().zip(&*sums).for_each(|(total, sum)| *total += wide(*sum));
        }
        Ok(())
    })
}

/// `out = f(channel, elements)`.
fn map<T: Floating, const N: usize>(
    Channels { channels, inner, .. }: Channels,
    inputs: [&[T]; N],
    out: &mut [T],
    f: impl Fn(usize, [T::Real; N]) -> T::Real + Sync + Copy,
) {
    if out.is_empty() {
        return;
    }
    // Runs of one channel, or rows of all of them.
    let run = if inner > 1 { inner } else { channels };
    let runs = (CHUNK / run).max(1);
    for_each_chunk_mut(out, runs * run, |i, out| {
        for (j, out) in out.chunks_exact_mut(run).enumerate() {
            let place = i * runs + j;
            let inputs = inputs.map(|input| &input[place * run..][..run]);
            let channel = place % channels;
            simd::vectorized(
                #[inline(always)]
                || {
                    for (k, out) in out.iter_mut().enumerate() {
                        let x = std::array::from_fn(|input| inputs[input][k].to_real());
                        *out = T::from_real(f(if inner > 1 { channel } else { k }, x));
                    }
                },
            );
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[outer, channels, inner]` numbers around `center`.
    fn numbers(n: usize, center: f64) -> Vec<f64> {
        (0..n).map(|i| center + ((i * 7_919) % 1_009) as f64 / 1_009.0).collect()
    }

    #[test]
    fn statistics_are_those_of_each_channel_however_it_lies_and_wherever_its_center_is() {
        for (outer, channels, inner) in [(3, 2, 5), (4, 3, 1), (2_000, 5, 1), (40, 3, 1_100), (1, 2, 70_000), (2, 1, 1)]
        {
            let x = numbers(outer * channels * inner, 1e4);
            let mut out = vec![0.0; 3 * channels];
            channel_statistics(Channels { outer, channels, inner }, &x, &mut out).unwrap();
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
