//! Blurs and sharpens pictures.

use std::ops::RangeInclusive;

use pagelock_tensor::{AnyTensor, Generator};

use super::color::{check_factor, gray_or_color};
use super::crop::for_pictures;
use super::image::{Pixel, Planes, with_pixels};
use super::{between, wrong, wrong_shape};
use crate::Result;
use crate::elements::for_each_pair;

for_pictures! { GaussianBlur }

/// Blurs `[channels, height, width]` by a random amount.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{GaussianBlur, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let image = Tensor::ones([3, 8, 8])?;
/// let blurred = GaussianBlur::new([5, 5]).apply(image, &Generator::new(0))?;
/// assert!(blurred.to_vec::<f32>()?.iter().all(|value| (value - 1.0).abs() < 1e-5)); // nothing to blur
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GaussianBlur {
    /// The height and width of the kernel in pixels; odd numbers.
    pub kernel_size: [usize; 2],
    /// The standard deviation, in pixels.
    pub sigma: RangeInclusive<f64>,
}

impl GaussianBlur {
    /// A kernel of this height and width, with a standard deviation from 0.1 to 2.
    pub fn new(kernel_size: [usize; 2]) -> Self {
        Self { kernel_size, sigma: 0.1..=2.0 }
    }

    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        gaussian_blur(&image, self.kernel_size, between(random, &self.sigma))
    }
}

pub(super) fn gaussian_blur(image: &AnyTensor, kernel_size: [usize; 2], sigma: f64) -> Result<AnyTensor> {
    let planes = Planes::of("gaussian_blur", image.shape())?;
    let fits = |kernel: usize, size: usize| kernel % 2 == 1 && kernel / 2 < size.max(1);
    if !fits(kernel_size[0], planes.height) || !fits(kernel_size[1], planes.width) {
        let wanted = format!("the kernel {kernel_size:?} must have odd sizes below twice the image's");
        return Err(wrong_shape("gaussian_blur", image.shape(), wanted));
    }
    if !(sigma > 0.0 && sigma.is_finite()) {
        return Err(wrong(format!("gaussian_blur: sigma is {sigma}; give one above 0")));
    }
    let (_, _counted) = planes.resized("gaussian_blur", [planes.height, planes.width])?; // for a plane of floats
    let [down, right] = kernel_size.map(|len| gaussian(len, sigma));
    with_pixels!("gaussian_blur", image, planes.shape(), values => blurred(values, planes, &down, &right))
}

/// `len` weights with a sum of 1.
fn gaussian(len: usize, sigma: f64) -> Vec<f32> {
    let middle = (len as f64 - 1.0) / 2.0;
    let weight = |at: usize| (-((at as f64 - middle) / sigma).powi(2) / 2.0).exp();
    let sum: f64 = (0..len).map(weight).sum();
    (0..len).map(|at| (weight(at) / sum) as f32).collect()
}

/// Blurs along rows, then along columns. The picture is mirrored at its edge pixels.
fn blurred<P: Pixel>(mut values: Vec<P>, planes: Planes, down: &[f32], right: &[f32]) -> Vec<P> {
    let Planes { height, width, .. } = planes;
    let (above, before) = (down.len() / 2, right.len() / 2);
    let mirrored = |at: usize, border: usize, size: usize| {
        let at = at.abs_diff(border); // mirrored before the start
        if at < size { at } else { 2 * (size - 1) - at }
    };
    let mut wide = vec![0.0; width + 2 * before];
    let mut along = vec![0.0_f32; planes.len()];
    let mut sums = vec![0.0_f32; width];
    for plane in values.chunks_exact_mut(planes.len().max(1)) {
        for (row, out) in plane.chunks_exact(width).zip(along.chunks_exact_mut(width)) {
            wide.iter_mut().enumerate().for_each(|(at, value)| *value = row[mirrored(at, before, width)].float());
            out.fill(0.0);
            for (shift, weight) in right.iter().enumerate() {
                for_each_pair(out, &wide[shift..], |out, value| *out += weight * value);
            }
        }
        for (at, out) in plane.chunks_exact_mut(width).enumerate() {
            sums.fill(0.0);
            for (shift, weight) in down.iter().enumerate() {
                let row = &along[mirrored(at + shift, above, height) * width..][..width];
                for_each_pair(&mut sums, row, |sum, value| *sum += weight * value);
            }
            for_each_pair(out, &sums, |out, sum| *out = P::rounded(*sum));
        }
    }
    values
}

/// 0 blurs, 1 changes nothing, more is sharper.
pub(super) fn adjust_sharpness(image: &AnyTensor, factor: f64) -> Result<AnyTensor> {
    let planes = gray_or_color("adjust_sharpness", image)?;
    let factor = check_factor("adjust_sharpness", factor)?;
    if planes.height <= 2 || planes.width <= 2 {
        return Ok(image.clone());
    }
    with_pixels!("adjust_sharpness", image, planes.shape(), values => sharpened(&values, planes, factor))
}

/// Blends each pixel with the mean of its neighbors and itself, counted five times. Pixels at the edge stay as they
/// are.
fn sharpened<P: Pixel>(values: &[P], planes: Planes, factor: f32) -> Vec<P> {
    let width = planes.width;
    let mut out: Vec<P> = values.iter().map(|value| P::cut(value.float())).collect();
    for (plane, out) in values.chunks_exact(planes.len()).zip(out.chunks_exact_mut(planes.len())) {
        for row in 1..planes.height - 1 {
            for column in 1..width - 1 {
                let at = row * width + column;
                let sum: f32 = [at - width, at, at + width]
                    .into_iter()
                    .flat_map(|at| [at - 1, at, at + 1])
                    .map(|near| plane[near].float() * if near == at { 5.0 / 13.0 } else { 1.0 / 13.0 })
                    .sum();
                let (value, soft) = (plane[at].float(), P::rounded(sum).float());
                out[at] = P::cut(value + (soft - value) * (1.0 - factor));
            }
        }
    }
    out
}
