//! Crops, borders and flips: pixels move, and none changes.

use std::ops::RangeInclusive;

use pagelock_tensor::{AnyTensor, Generator, Kind, Tensor};

use super::functional;
use super::image::{OUTSIDE, Planes, moved};
use super::{Transform, below, between, wrong, wrong_shape};
use crate::Result;

/// Implements [`Transform`] of pictures of any kind for types that have a function `of_any`, which is compiled once.
macro_rules! for_pictures {
    ($($type:ty)+) => {$(
        impl<K: pagelock_tensor::Kind> crate::transforms::Transform<pagelock_tensor::Tensor<K>> for $type {
            type Out = pagelock_tensor::Tensor<K>;

            fn apply(
                &self,
                image: pagelock_tensor::Tensor<K>,
                random: &pagelock_tensor::Generator,
            ) -> crate::Result<pagelock_tensor::Tensor<K>> {
                Ok(self.of_any(image.into(), random)?.kind()?)
            }
        }
    )+};
}
pub(super) use for_pictures;

for_pictures! { CenterCrop Pad RandomCrop RandomHorizontalFlip RandomVerticalFlip }

/// A part of a picture, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first row.
    pub top: usize,
    /// The first column.
    pub left: usize,
    /// How many rows.
    pub height: usize,
    /// How many columns.
    pub width: usize,
}

impl Window {
    /// Whether it is inside the picture.
    pub(super) fn is_within(&self, planes: Planes) -> bool {
        let ends_within = |start: usize, len: usize, size: usize| start.checked_add(len).is_some_and(|end| end <= size);
        ends_within(self.top, self.height, planes.height) && ends_within(self.left, self.width, planes.width)
    }
}

/// A random window with a share of the area from `scale` and proportions from `ratio`; `None` if none of ten tries
/// fits. `fit` gets the sides √(area · ratio) and √(area / ratio), and returns the height and the width if they fit.
pub(super) fn random_window(
    planes: Planes,
    [scale, ratio]: [&RangeInclusive<f64>; 2],
    random: &Generator,
    fit: impl Fn(usize, usize) -> Option<[usize; 2]>,
) -> Option<Window> {
    for _ in 0..10 {
        let area = planes.len() as f64 * between(random, scale);
        let ratio = between(random, &(ratio.start().ln()..=ratio.end().ln())).exp();
        let sides = [area * ratio, area / ratio].map(|square| square.sqrt().round_ties_even() as usize);
        if let Some([height, width]) = fit(sides[0], sides[1]) {
            let (top, left) = (below(random, planes.height - height + 1), below(random, planes.width - width + 1));
            return Some(Window { top, left, height, width });
        }
    }
    None
}

/// How the border around a picture is filled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum PaddingMode {
    /// With the fill.
    #[default]
    Constant,
    /// With the pixel at the edge.
    Edge,
    /// With the picture mirrored at its edge pixels: `dcb|abcd|cba`. The border must be narrower than the picture.
    Reflect,
    /// With the picture mirrored at its edges: `cba|abcd|dcb`. The border must be no wider than the picture.
    Symmetric,
}

/// The position `at` as an index into `size` pixels and their border; [`OUTSIDE`] for the fill.
fn source_index(at: isize, size: usize, mode: PaddingMode) -> usize {
    let size = size as isize;
    let (edge, outward) = if at < 0 { (0, -1) } else { (size - 1, 1) }; // the edge near which a border is
    let index = match mode {
        _ if (0..size).contains(&at) => at,
        PaddingMode::Constant => -1,
        PaddingMode::Edge => edge,
        PaddingMode::Reflect => 2 * edge - at,
        PaddingMode::Symmetric => 2 * edge + outward - at,
    };
    usize::try_from(index).unwrap_or(OUTSIDE)
}

/// A window of a picture, which may extend beyond the picture's edges.
fn view(
    op: &'static str,
    image: &AnyTensor,
    [top, left]: [isize; 2],
    [height, width]: [usize; 2],
    (mode, fill): (PaddingMode, f64),
) -> Result<AnyTensor> {
    let planes = Planes::of(op, image.shape())?;
    let most_before = (-top).max(top + height as isize - planes.height as isize);
    let most_beside = (-left).max(left + width as isize - planes.width as isize);
    let is_outside = |most: isize, size: usize| match mode {
        PaddingMode::Constant => false,
        PaddingMode::Edge => most > 0 && size == 0,
        PaddingMode::Reflect => most >= size.max(1) as isize,
        PaddingMode::Symmetric => most > size as isize,
    };
    if is_outside(most_before, planes.height) || is_outside(most_beside, planes.width) {
        return Err(wrong_shape(op, image.shape(), format!("padding of mode {mode:?} cannot exceed it; pad less")));
    }
    let source = |start: isize, size: usize| move |at: usize| source_index(start + at as isize, size, mode);
    moved(op, image, [height, width], [&source(top, planes.height), &source(left, planes.width)], fill)
}

pub(super) fn crop(image: &AnyTensor, window: Window) -> Result<AnyTensor> {
    let planes = Planes::of("crop", image.shape())?;
    let Window { top, left, height, width } = window;
    if !window.is_within(planes) {
        return Err(wrong_shape(
            "crop",
            image.shape(),
            format!("{window:?} is not within it; move it or pad the image"),
        ));
    }
    view("crop", image, [top as isize, left as isize], [height, width], (PaddingMode::Constant, 0.0))
}

/// `padding` is `[left, top, right, bottom]`, as in torchvision.
pub(super) fn pad(image: &AnyTensor, padding: [usize; 4], fill: f64, mode: PaddingMode) -> Result<AnyTensor> {
    let planes = Planes::of("pad", image.shape())?;
    let [left, top, right, bottom] = padding;
    let size = |size: usize, before: usize, after: usize| {
        size.checked_add(before)?.checked_add(after).filter(|&sum| sum <= isize::MAX as usize / 4)
    };
    let (Some(height), Some(width)) = (size(planes.height, top, bottom), size(planes.width, left, right)) else {
        return Err(wrong_shape("pad", image.shape(), format!("a border of {padding:?} is too wide; pad less")));
    };
    view("pad", image, [-(top as isize), -(left as isize)], [height, width], (mode, fill))
}

pub(super) fn center_crop(image: &AnyTensor, size: [usize; 2]) -> Result<AnyTensor> {
    let planes = Planes::of("center_crop", image.shape())?;
    // Python rounds halves to even.
    let start = |whole: usize, part: usize| match whole.checked_sub(part) {
        Some(rest) => (rest as f64 / 2.0).round_ties_even() as isize,
        None => -((part.min(isize::MAX as usize / 4) - whole) as isize / 2),
    };
    let corner = [start(planes.height, size[0]), start(planes.width, size[1])];
    view("center_crop", image, corner, size, (PaddingMode::Constant, 0.0))
}

pub(super) fn horizontal_flip(image: &AnyTensor) -> Result<AnyTensor> {
    let planes = Planes::of("horizontal_flip", image.shape())?;
    let size = [planes.height, planes.width];
    moved("horizontal_flip", image, size, [&|row| row, &|column| planes.width - 1 - column], 0.0)
}

pub(super) fn vertical_flip(image: &AnyTensor) -> Result<AnyTensor> {
    let planes = Planes::of("vertical_flip", image.shape())?;
    let size = [planes.height, planes.width];
    moved("vertical_flip", image, size, [&|row| planes.height - 1 - row, &|column| column], 0.0)
}

/// The middle of `[channels, height, width]`, with a border of zeros where the image is smaller than `size`.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{CenterCrop, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let numbered = Tensor::arange(0.0, 16.0, 1.0)?.reshape([1, 4, 4])?;
/// let middle = CenterCrop { size: [2, 2] }.apply(numbered, &Generator::new(0))?;
/// assert_eq!(middle.to_vec::<f32>()?, [5.0, 6.0, 9.0, 10.0]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CenterCrop {
    /// Height and width.
    pub size: [usize; 2],
}

impl CenterCrop {
    fn of_any(&self, image: AnyTensor, _random: &Generator) -> Result<AnyTensor> {
        center_crop(&image, self.size)
    }
}

/// Adds a border to `[channels, height, width]`.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{Pad, PaddingMode, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let row = Tensor::new([[[1, 2, 3]]])?;
/// let pad = Pad { mode: PaddingMode::Reflect, ..Pad::new([2, 0, 1, 0]) };
/// assert_eq!(pad.apply(row, &Generator::new(0))?.to_vec::<i64>()?, [3, 2, 1, 2, 3, 2]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pad {
    /// The width of the border on the left, top, right and bottom.
    pub padding: [usize; 4],
    /// The fill of [`PaddingMode::Constant`].
    pub fill: f64,
    /// How the border is filled.
    pub mode: PaddingMode,
}

impl Pad {
    /// A border of zeros, with these widths on the left, top, right and bottom.
    pub fn new(padding: [usize; 4]) -> Self {
        Self { padding, fill: 0.0, mode: PaddingMode::Constant }
    }

    fn of_any(&self, image: AnyTensor, _random: &Generator) -> Result<AnyTensor> {
        pad(&image, self.padding, self.fill, self.mode)
    }
}

/// A part of `[channels, height, width]` at a random position, after a border was added.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{RandomCrop, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let numbered = Tensor::arange(0.0, 12.0, 1.0)?.reshape([1, 3, 4])?;
/// let part: Vec<f32> = RandomCrop::new([2, 2]).apply(numbered, &Generator::new(5))?.to_vec()?;
/// assert_eq!([part[1] - part[0], part[2] - part[0]], [1.0, 4.0]); // neighbors are still neighbors
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RandomCrop {
    /// Height and width of the part.
    pub size: [usize; 2],
    /// The width of the border on each side.
    pub padding: usize,
    /// Whether an image that is still smaller than the part gets a wider border, instead of an error.
    pub pad_if_needed: bool,
    /// The fill of [`PaddingMode::Constant`].
    pub fill: f64,
    /// How the border is filled.
    pub padding_mode: PaddingMode,
}

impl RandomCrop {
    /// Parts of this height and width, without a border.
    pub fn new(size: [usize; 2]) -> Self {
        Self { size, padding: 0, pad_if_needed: false, fill: 0.0, padding_mode: PaddingMode::Constant }
    }

    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        let planes = Planes::of("random_crop", image.shape())?;
        let [height, width] = self.size;
        // The last possible start of the part in the image with its border, and the width of the border.
        let last_start = |size: usize, whole: usize| -> Option<(usize, usize)> {
            let whole =
                whole.checked_add(self.padding.checked_mul(2)?).filter(|&whole| whole <= isize::MAX as usize / 4)?;
            match whole.checked_sub(size) {
                Some(last) => Some((last, self.padding)),
                None if self.pad_if_needed && size <= isize::MAX as usize / 4 => {
                    Some((size - whole, self.padding + size - whole))
                }
                None => None,
            }
        };
        let (Some(down), Some(right)) = (last_start(height, planes.height), last_start(width, planes.width)) else {
            let padding = self.padding;
            let wanted =
                format!("with a border of {padding} it must be {height} x {width} or larger; crop less or pad more");
            return Err(wrong_shape("random_crop", image.shape(), wanted));
        };
        // The start of the part in the image without its border, which may be negative.
        let start = |(last, border): (usize, usize)| below(random, last + 1) as isize - border as isize;
        let corner = [start(down), start(right)];
        view("random_crop", &image, corner, self.size, (self.padding_mode, self.fill))
    }
}

/// Mirrors `[channels, height, width]` left to right, with probability `p`.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{RandomHorizontalFlip, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let image = Tensor::new([[[1.0, 2.0, 3.0]]])?;
/// let always = RandomHorizontalFlip { p: 1.0 }.apply(image, &Generator::new(0))?;
/// assert_eq!(always.to_vec::<f32>()?, [3.0, 2.0, 1.0]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RandomHorizontalFlip {
    /// From 0, never, to 1, always.
    pub p: f64,
}

impl RandomHorizontalFlip {
    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        Planes::of("random_horizontal_flip", image.shape())?;
        if random.next_f64() < self.p { horizontal_flip(&image) } else { Ok(image) }
    }
}

/// Mirrors `[channels, height, width]` top to bottom, with probability `p`.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{RandomVerticalFlip, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let image = Tensor::new([[[1.0], [2.0]]])?;
/// let always = RandomVerticalFlip { p: 1.0 }.apply(image, &Generator::new(0))?;
/// assert_eq!(always.to_vec::<f32>()?, [2.0, 1.0]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RandomVerticalFlip {
    /// From 0, never, to 1, always.
    pub p: f64,
}

impl RandomVerticalFlip {
    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        Planes::of("random_vertical_flip", image.shape())?;
        if random.next_f64() < self.p { vertical_flip(&image) } else { Ok(image) }
    }
}

/// The four corners and the middle of `[channels, height, width]`: top left, top right, bottom left, bottom right, center.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{FiveCrop, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let numbered = Tensor::arange(0.0, 9.0, 1.0)?.reshape([1, 3, 3])?;
/// let crops = FiveCrop { size: [1, 1] }.apply(numbered, &Generator::new(0))?;
/// let pixels: Vec<f32> = crops.iter().map(|crop| crop.item()).collect::<Result<_, _>>()?;
/// assert_eq!(pixels, [0.0, 2.0, 6.0, 8.0, 4.0]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FiveCrop {
    /// Height and width of each.
    pub size: [usize; 2],
}

impl<K: Kind> Transform<Tensor<K>> for FiveCrop {
    type Out = [Tensor<K>; 5];

    fn apply(&self, image: Tensor<K>, _random: &Generator) -> Result<[Tensor<K>; 5]> {
        let [a, b, c, d] = self.corners(&(&image).into())?;
        Ok([a.kind()?, b.kind()?, c.kind()?, d.kind()?, functional::center_crop(&image, self.size)?])
    }
}

impl FiveCrop {
    fn corners(&self, image: &AnyTensor) -> Result<[AnyTensor; 4]> {
        let planes = Planes::of("five_crop", image.shape())?;
        let [height, width] = self.size;
        let (Some(bottom), Some(right)) = (planes.height.checked_sub(height), planes.width.checked_sub(width)) else {
            return Err(wrong(format!(
                "five_crop: the image is {}, smaller than {height} x {width}; crop less",
                image.shape()
            )));
        };
        let corner = |top, left| crop(image, Window { top, left, height, width });
        Ok([corner(0, 0)?, corner(0, right)?, corner(bottom, 0)?, corner(bottom, right)?])
    }
}
