//! [`RandAugment`]: a few random changes out of many. [`RandomErasing`]: erases a part of a picture.

use std::ops::RangeInclusive;

use pagelock_tensor::{AnyTensor, Generator};

use super::crop::{Window, for_pictures, random_window};
use super::image::{Pixel, Planes, with_pixels};
use super::policies::{CHANGES, Strengths, sign};
use super::resize::Interpolation;
use super::{below, check_ratio, wrong};
use crate::Result;

for_pictures! { RandAugment RandomErasing }

/// Applies `num_ops` of 14 changes, drawn at random, with the strength `magnitude`: E. D. Cubuk and others,
/// "RandAugment: Practical automated data augmentation with a reduced search space", 2020,
/// <https://arxiv.org/abs/1909.13719>.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{RandAugment, Transform};
/// use pagelock_tensor::{DType, Generator, Tensor};
///
/// let photo = Tensor::of(DType::U8).full([3, 32, 32], 100)?;
/// assert_eq!(RandAugment::default().apply(photo, &Generator::new(3))?.dims(), [3, 32, 32]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RandAugment {
    /// How many changes, one after the other; at most 100.
    pub num_ops: usize,
    /// How strong, from 0 to below `num_magnitude_bins`.
    pub magnitude: usize,
    /// How many strengths there are.
    pub num_magnitude_bins: usize,
    /// How pixels are interpolated.
    pub interpolation: Interpolation,
    /// The value of pixels from outside the picture; `None` is 0.
    pub fill: Option<f64>,
}

impl Default for RandAugment {
    fn default() -> Self {
        Self { num_ops: 2, magnitude: 9, num_magnitude_bins: 31, interpolation: Interpolation::Nearest, fill: None }
    }
}

impl RandAugment {
    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        let (magnitude, n_bins) = (self.magnitude, self.num_magnitude_bins);
        if magnitude >= n_bins {
            return Err(wrong(format!(
                "rand_augment: the magnitude is {magnitude} of {n_bins}; give one below {n_bins}"
            )));
        }
        if self.num_ops > 100 {
            return Err(wrong(format!("rand_augment: num_ops is {}; give one from 0 to 100", self.num_ops)));
        }
        let part = magnitude as f64 / (n_bins - 1).max(1) as f64; // of the greatest strength
        let planes = Planes::of("rand_augment", image.shape())?;
        let strengths = Strengths::of_auto_augment(planes, (self.interpolation, self.fill));
        (0..self.num_ops).try_fold(image, |image, _| {
            let (change, sign) = (CHANGES[below(random, CHANGES.len())], sign(random));
            strengths.changed(&image, change, part, sign)
        })
    }
}

/// Fills a random part of `[channels, height, width]` with one value, with probability `p`: Z. Zhong and others,
/// "Random Erasing Data Augmentation", 2017, <https://arxiv.org/abs/1708.04896>.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{RandomErasing, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let always = RandomErasing { p: 1.0, ..RandomErasing::default() };
/// let erased: Vec<f32> = always.apply(Tensor::ones([1, 32, 32])?, &Generator::new(0))?.to_vec()?;
/// assert!(erased.contains(&0.0) && erased.contains(&1.0));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RandomErasing {
    /// From 0, never, to 1, always.
    pub p: f64,
    /// The range of the erased share of the image's area.
    pub scale: RangeInclusive<f64>,
    /// The range of the erased part's height divided by its width.
    pub ratio: RangeInclusive<f64>,
    /// The value that fills the erased part.
    pub value: f64,
}

impl Default for RandomErasing {
    fn default() -> Self {
        Self { p: 0.5, scale: 0.02..=0.33, ratio: 0.3..=3.3, value: 0.0 }
    }
}

impl RandomErasing {
    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        let planes = Planes::of("random_erasing", image.shape())?;
        check_ratio("random_erasing", &self.ratio)?;
        if random.next_f64() >= self.p {
            return Ok(image);
        }
        match self.window(planes, random) {
            Some(window) => erase(&image, window, self.value),
            None => Ok(image),
        }
    }

    /// A random window; `None` if none of ten tries fits.
    fn window(&self, planes: Planes, random: &Generator) -> Option<Window> {
        random_window(planes, [&self.scale, &self.ratio], random, |height, width| {
            (height < planes.height && width < planes.width).then_some([height, width])
        })
    }
}

/// Sets the pixels within the window to `value`. The part of the window outside the picture is ignored.
pub(super) fn erase(image: &AnyTensor, window: Window, value: f64) -> Result<AnyTensor> {
    let planes = Planes::of("erase", image.shape())?;
    with_pixels!("erase", image, planes.shape(), values => erased(values, planes, window, value as f32))
}

fn erased<P: Pixel>(mut values: Vec<P>, planes: Planes, window: Window, value: f32) -> Vec<P> {
    let end = |start: usize, len: usize, size: usize| start.saturating_add(len).min(size);
    let rows = window.top.min(planes.height)..end(window.top, window.height, planes.height);
    let columns = window.left.min(planes.width)..end(window.left, window.width, planes.width);
    for plane in values.chunks_exact_mut(planes.len().max(1)) {
        for row in rows.clone() {
            plane[row * planes.width..][columns.clone()].fill(P::rounded(value));
        }
    }
    values
}
