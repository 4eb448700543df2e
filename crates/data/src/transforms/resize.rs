//! Resizes pictures.
//!
//! A picture is resized in two passes, along rows and then along columns. [`Taps`] lists, for each new pixel, the old
//! pixels that contribute to it and their weights. The weights are those of `torch.nn.functional.interpolate`, with and
//! without its `antialias`. Bytes are rounded after each pass, as in PyTorch.

use std::ops::RangeInclusive;

use pagelock_memory::HeapReservation;
use pagelock_tensor::{AnyTensor, Generator};

use super::crop::{Window, for_pictures, random_window};
use super::image::{Pixel, Planes, moved, with_pixels};
use super::{check_ratio, wrong};
use crate::Result;
use crate::elements::for_each_pair;

for_pictures! { Resize RandomResizedCrop }

/// The old pixels from which a new pixel is interpolated. If a picture shrinks and is smoothed, `Bilinear` and
/// `Bicubic` use more of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interpolation {
    /// The nearest one.
    Nearest,
    /// The nearest two along each dimension.
    #[default]
    Bilinear,
    /// The nearest four along each dimension. Only resizing supports it.
    Bicubic,
}

/// How large a picture becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Height and width.
    Exact([usize; 2]),
    /// The length of the shorter side; the ratio of height and width stays.
    Shorter(usize),
}

impl From<[usize; 2]> for Size {
    fn from(size: [usize; 2]) -> Self {
        Self::Exact(size)
    }
}

impl From<usize> for Size {
    fn from(size: usize) -> Self {
        Self::Shorter(size)
    }
}

impl Size {
    fn of(self, planes: Planes) -> [usize; 2] {
        match self {
            Self::Exact(size) => size,
            Self::Shorter(size) => {
                let (height, width) = (planes.height, planes.width);
                let (short, long) = (height.min(width), height.max(width));
                let long = usize::try_from(size as u128 * long as u128 / short.max(1) as u128).unwrap_or(usize::MAX);
                if height <= width { [size, long] } else { [long, size] }
            }
        }
    }
}

/// Resizes `[channels, height, width]`.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{Resize, Transform};
/// use pagelock_tensor::{DType, Generator, Tensor};
///
/// let photo = Tensor::of(DType::U8).full([3, 60, 80], 7)?;
/// assert_eq!(Resize::new(30).apply(photo.clone(), &Generator::new(0))?.dims(), [3, 30, 40]); // the shorter side
/// assert_eq!(Resize::new([20, 20]).apply(photo, &Generator::new(0))?.dims(), [3, 20, 20]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Resize {
    /// The new size.
    pub size: Size,
    /// How pixels are interpolated.
    pub interpolation: Interpolation,
    /// Whether a picture that shrinks is smoothed, so that no pixel is left out.
    pub antialias: bool,
}

impl Resize {
    /// To a height and width, or to a length of the shorter side; bilinear, and smoothed.
    pub fn new(size: impl Into<Size>) -> Self {
        Self { size: size.into(), interpolation: Interpolation::Bilinear, antialias: true }
    }

    fn of_any(&self, image: AnyTensor, _random: &Generator) -> Result<AnyTensor> {
        resize(&image, self.size, self.interpolation, self.antialias)
    }
}

pub(super) fn resize(
    image: &AnyTensor,
    size: Size,
    interpolation: Interpolation,
    antialias: bool,
) -> Result<AnyTensor> {
    let planes = Planes::of("resize", image.shape())?;
    let whole = Window { top: 0, left: 0, height: planes.height, width: planes.width };
    resized_crop(image, whole, size.of(planes), interpolation, antialias)
}

pub(super) fn resized_crop(
    image: &AnyTensor,
    window: Window,
    size: [usize; 2],
    interpolation: Interpolation,
    antialias: bool,
) -> Result<AnyTensor> {
    let planes = Planes::of("resize", image.shape())?;
    let Window { top, left, height, width } = window;
    if !window.is_within(planes) || [height, width, size[0], size[1]].contains(&0) {
        let (shape, [to_height, to_width]) = (image.shape(), size);
        return Err(wrong(format!(
            "resize: {window:?} of {shape} cannot become {to_height} x {to_width}; give sizes of at least 1 within the image"
        )));
    }
    if interpolation == Interpolation::Nearest {
        let source = |start: usize, from: usize, to: usize| {
            let scale = from as f32 / to as f32;
            move |at: usize| start + ((at as f32 * scale) as usize).min(from - 1)
        };
        return moved("resize", image, size, [&source(top, height, size[0]), &source(left, width, size[1])], 0.0);
    }
    let (made, _counted) = planes.resized("resize", size)?;
    let (_, _narrow) = Planes { channels: 1, ..planes }.resized("resize", [height, size[1]])?;
    let _block = HeapReservation::new((width * size_of::<[f32; ROWS]>()) as u64)?;
    let taps = |from, to| Taps::new(from, to, interpolation == Interpolation::Bicubic, antialias);
    let (down, right) = (taps(height, size[0])?, taps(width, size[1])?);
    with_pixels!("resize", image, made.shape(), values => resampled(&values, planes, window, &down, &right))
}

/// For each new pixel along one dimension, the index of the first of its old pixels, and the weights of all of them.
struct Taps {
    starts: Vec<usize>,
    weights: Vec<f32>,
    ends: Vec<usize>, // where the weights of a pixel end
    _counted: HeapReservation,
}

impl Taps {
    fn new(from: usize, to: usize, is_cubic: bool, antialias: bool) -> Result<Self> {
        let scale = from as f64 / to as f64;
        let wide = if antialias { scale.max(1.0) } else { 1.0 };
        let n_most = from.min((if is_cubic { 4.0 } else { 2.0 } * wide) as usize + 1);
        let _counted = HeapReservation::new((to * (n_most * size_of::<f32>() + 2 * size_of::<usize>())) as u64)?;
        let (mut starts, mut ends) = (Vec::with_capacity(to), Vec::with_capacity(to));
        let mut weights = Vec::with_capacity(to * n_most);
        for at in 0..to {
            starts.push(match antialias {
                true => smoothed(at, scale, from, is_cubic, &mut weights),
                false => interpolated(at, scale, from, is_cubic, &mut weights),
            });
            ends.push(weights.len());
        }
        Ok(Self { starts, weights, ends, _counted })
    }

    fn of(&self, at: usize) -> (usize, &[f32]) {
        let first = if at == 0 { 0 } else { self.ends[at - 1] };
        (self.starts[at], &self.weights[first..self.ends[at]])
    }
}

/// Appends the weights of all pixels under the filter, which is stretched by `scale` if the picture shrinks. Returns
/// the index of the first of these pixels.
fn smoothed(at: usize, scale: f64, from: usize, is_cubic: bool, weights: &mut Vec<f32>) -> usize {
    let wide = scale.max(1.0);
    let support = if is_cubic { 2.0 * wide } else { wide };
    let center = scale * (at as f64 + 0.5);
    let first = ((center - support + 0.5) as usize).min(from - 1);
    let end = ((center + support + 0.5) as usize).clamp(first + 1, from);
    let filter = |x: f64| if is_cubic { cubic(x, -0.5) } else { (1.0 - x.abs()).max(0.0) };
    let weight = |j: usize| filter((j as f64 - center + 0.5) / wide);
    let sum: f64 = (first..end).map(weight).sum();
    let sum = if sum == 0.0 { 1.0 } else { sum };
    weights.extend((first..end).map(|j| (weight(j) / sum) as f32));
    first
}

/// Appends the weights of the nearest two or four pixels; returns the first of them. A pixel beyond an edge counts as
/// the pixel at the edge.
fn interpolated(at: usize, scale: f64, from: usize, is_cubic: bool, weights: &mut Vec<f32>) -> usize {
    let center = scale * (at as f64 + 0.5) - 0.5;
    let center = if is_cubic { center } else { center.max(0.0) };
    let near = center.floor();
    let last = from as isize - 1;
    let positions = if is_cubic { near as isize - 1..=near as isize + 2 } else { near as isize..=near as isize + 1 };
    let first = (*positions.start()).clamp(0, last);
    let len = ((*positions.end()).clamp(0, last) - first) as usize + 1;
    let mut sums = [0.0; 4];
    for position in positions {
        let x = position as f64 - center;
        let weight = if is_cubic { cubic(x, -0.75) } else { (1.0 - x.abs()).max(0.0) };
        sums[(position.clamp(0, last) - first) as usize] += weight;
    }
    weights.extend(sums[..len].iter().map(|&sum| sum as f32));
    first as usize
}

/// The weight of a pixel at the distance `x`, with the parameter `a`: R. Keys, "Cubic convolution interpolation for
/// digital image processing", 1981, <https://doi.org/10.1109/TASSP.1981.1163711>.
fn cubic(x: f64, a: f64) -> f64 {
    match x.abs() {
        x if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * a,
        _ => 0.0,
    }
}

/// How many rows go through a pass together, so that one instruction computes pixels of several rows.
const ROWS: usize = 8;

fn resampled<P: Pixel>(values: &[P], planes: Planes, window: Window, down: &Taps, right: &Taps) -> Vec<P> {
    let (height, width) = (down.starts.len(), right.starts.len());
    let mut out = vec![P::default(); planes.channels * height * width];
    let mut narrow = vec![P::default(); window.height * width];
    let mut block = vec![[0.0; ROWS]; window.width];
    for (plane, out) in values.chunks_exact(planes.len().max(1)).zip(out.chunks_exact_mut(height * width)) {
        for (first, narrow) in narrow.chunks_mut(ROWS * width).enumerate() {
            for row in 0..narrow.len() / width {
                let from = &plane[(window.top + first * ROWS + row) * planes.width + window.left..][..window.width];
                for_each_pair(&mut block, from, |column, value| column[row] = value.float());
            }
            along_rows(&block, right, narrow, width);
        }
        along_columns(&narrow, down, out, width);
    }
    out
}

/// `out`: up to `ROWS` rows of `width` pixels. `block` has the old pixels of these rows, column by column.
fn along_rows<P: Pixel>(block: &[[f32; ROWS]], taps: &Taps, out: &mut [P], width: usize) {
    for at in 0..width {
        let (start, weights) = taps.of(at);
        let mut sums = [0.0; ROWS];
        for (column, weight) in block[start..].iter().zip(weights) {
            for_each_pair(&mut sums, column, |sum, value| *sum += weight * value);
        }
        out.chunks_exact_mut(width).zip(sums).for_each(|(row, sum)| row[at] = P::rounded(sum));
    }
}

fn along_columns<P: Pixel>(rows: &[P], taps: &Taps, out: &mut [P], width: usize) {
    let mut sums = vec![0.0; width];
    for (at, out) in out.chunks_exact_mut(width).enumerate() {
        let (start, weights) = taps.of(at);
        sums.fill(0.0);
        for (row, weight) in rows[start * width..].chunks_exact(width).zip(weights) {
            for_each_pair(&mut sums, row, |sum, value| *sum += weight * value.float());
        }
        for_each_pair(out, &sums, |out, sum| *out = P::rounded(*sum));
    }
}

/// A random part of `[channels, height, width]`, of random size and proportions, resized to one size: the usual
/// augmentation for ImageNet.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{RandomResizedCrop, Transform};
/// use pagelock_tensor::{DType, Generator, Tensor};
///
/// let photo = Tensor::of(DType::U8).full([3, 60, 80], 7)?;
/// assert_eq!(RandomResizedCrop::new([32, 32]).apply(photo, &Generator::new(3))?.dims(), [3, 32, 32]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RandomResizedCrop {
    /// Height and width of the result.
    pub size: [usize; 2],
    /// The range from which the share of the image's area that the part covers is drawn.
    pub scale: RangeInclusive<f64>,
    /// The range from which the part's ratio of width to height is drawn.
    pub ratio: RangeInclusive<f64>,
    /// How pixels are interpolated.
    pub interpolation: Interpolation,
    /// Whether a part that shrinks is smoothed.
    pub antialias: bool,
}

impl RandomResizedCrop {
    /// Results of this height and width, from parts with 8 to 100 % of the image's area and proportions from 3:4 to
    /// 4:3.
    pub fn new(size: [usize; 2]) -> Self {
        let (scale, ratio) = (0.08..=1.0, 3.0 / 4.0..=4.0 / 3.0);
        Self { size, scale, ratio, interpolation: Interpolation::Bilinear, antialias: true }
    }

    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        let planes = Planes::of("random_resized_crop", image.shape())?;
        check_ratio("random_resized_crop", &self.ratio)?;
        resized_crop(&image, self.window(planes, random), self.size, self.interpolation, self.antialias)
    }

    fn window(&self, planes: Planes, random: &Generator) -> Window {
        let (all_height, all_width) = (planes.height, planes.width);
        let window = random_window(planes, [&self.scale, &self.ratio], random, |width, height| {
            let fits = (1..=all_width).contains(&width) && (1..=all_height).contains(&height);
            fits.then_some([height, width])
        });
        if let Some(window) = window {
            return window;
        }
        // No window fits: take the largest one in the middle that has the allowed ratio nearest to that of the image.
        let ratio = (all_width as f64 / all_height.max(1) as f64).max(*self.ratio.start()).min(*self.ratio.end());
        let width = ((all_height as f64 * ratio).round_ties_even() as usize).min(all_width);
        let height = ((all_width as f64 / ratio).round_ties_even() as usize).min(all_height);
        Window { top: (all_height - height) / 2, left: (all_width - width) / 2, height, width }
    }
}
