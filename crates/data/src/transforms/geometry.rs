//! Rotation, translation, shear and perspective of pictures.
//!
//! For each new pixel, the position in the old picture is computed, relative to the centers of pixels, as
//! torchvision's `affine_grid` and `grid_sample` with `align_corners=False` do. A position outside the picture gives
//! the fill.

use std::ops::RangeInclusive;

use pagelock_tensor::{AnyTensor, Generator};

use super::crop::for_pictures;
use super::image::{Pixel, Planes, with_pixels};
use super::resize::Interpolation;
use super::{below, between, wrong};
use crate::Result;

for_pictures! { RandomAffine RandomPerspective RandomRotation }

/// How a picture is rotated, moved, scaled and sheared: the settings of torchvision's `affine`.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{Affine, Interpolation, functional};
/// use pagelock_tensor::Tensor;
///
/// let row = Tensor::new([[[1.0, 2.0, 3.0]]])?;
/// let right = Affine { translate: [1.0, 0.0], ..Affine::default() };
/// assert_eq!(functional::affine(&row, &right, Interpolation::Nearest, None)?.to_vec::<f32>()?, [0.0, 1.0, 2.0]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// In degrees, clockwise.
    pub angle: f64,
    /// By how many pixels to the right and down.
    pub translate: [f64; 2],
    /// The scale factor; not 0.
    pub scale: f64,
    /// The shear along rows and along columns, in degrees.
    pub shear: [f64; 2],
    /// The fixed point, in pixels from the left and from the top; the middle of the picture if `None`.
    pub center: Option<[f64; 2]>,
}

impl Default for Affine {
    fn default() -> Self {
        Self { angle: 0.0, translate: [0.0; 2], scale: 1.0, shear: [0.0; 2], center: None }
    }
}

impl Affine {
    /// The map from positions in the new picture to positions in the old one, both relative to the middle: the
    /// inverse of translation · rotation · shear · scale.
    fn inverse(&self, planes: Planes) -> [f64; 6] {
        let (rotation, [shear_x, shear_y]) = (self.angle.to_radians(), self.shear.map(f64::to_radians));
        let a = (rotation - shear_y).cos() / shear_y.cos();
        let b = -(rotation - shear_y).cos() * shear_x.tan() / shear_y.cos() - rotation.sin();
        let c = (rotation - shear_y).sin() / shear_y.cos();
        let d = -(rotation - shear_y).sin() * shear_x.tan() / shear_y.cos() + rotation.cos();
        let [x0, x1, y0, y1] = [d, -b, -c, a].map(|entry| entry / self.scale);
        let middle = |[x, y]: [f64; 2]| [x - planes.width as f64 * 0.5, y - planes.height as f64 * 0.5];
        let [x, y] = self.center.map_or([0.0; 2], middle);
        let [from_x, from_y] = [-x - self.translate[0], -y - self.translate[1]];
        [x0, x1, x0 * from_x + x1 * from_y + x, y0, y1, y0 * from_x + y1 * from_y + y]
    }
}

pub(super) fn affine(
    image: &AnyTensor,
    affine: &Affine,
    interpolation: Interpolation,
    fill: Option<f64>,
) -> Result<AnyTensor> {
    let planes = Planes::of("affine", image.shape())?;
    let matrix = affine.inverse(planes);
    if !matrix.iter().all(|entry| entry.is_finite()) {
        return Err(wrong(format!(
            "affine: {affine:?} has no inverse; give finite numbers, and a scale that is not 0"
        )));
    }
    warped("affine", image, matrix, [planes.height, planes.width], (interpolation, fill))
}

/// Rotates counterclockwise by `angle` degrees.
pub(super) fn rotate(
    image: &AnyTensor,
    angle: f64,
    interpolation: Interpolation,
    expand: bool,
    fill: Option<f64>,
) -> Result<AnyTensor> {
    let planes = Planes::of("rotate", image.shape())?;
    if !angle.is_finite() {
        return Err(wrong(format!("rotate: the angle is {angle}; give a finite one")));
    }
    let matrix = Affine { angle: -angle, ..Affine::default() }.inverse(planes);
    let size = match (expand, angle % 180.0 == 0.0, angle % 90.0 == 0.0) {
        (true, false, true) => [planes.width, planes.height], // exact, where rounding could add a row
        (true, false, false) => expanded(matrix, planes),
        _ => [planes.height, planes.width],
    };
    warped("rotate", image, matrix, size, (interpolation, fill))
}

/// The size that holds a whole rotated picture. Less than a thousandth of a pixel counts as a rounding error.
fn expanded([x0, x1, x2, y0, y1, y2]: [f64; 6], planes: Planes) -> [usize; 2] {
    let (half_x, half_y) = (planes.width as f64 * 0.5, planes.height as f64 * 0.5);
    let corners = [[-half_x, -half_y], [-half_x, half_y], [half_x, half_y], [half_x, -half_y]];
    let size = |part: &dyn Fn([f64; 2]) -> f64, half: f64| {
        let coordinates = corners.map(|corner| part(corner) + half);
        let (least, most) =
            coordinates.iter().fold((f64::MAX, f64::MIN), |(least, most), &at| (least.min(at), most.max(at)));
        let thousandths = |at: f64| (at * 1e3).trunc() * 1e-3;
        (thousandths(most).ceil() - thousandths(least).floor()) as usize
    };
    [size(&|[x, y]| y0 * x + y1 * y + y2, half_y), size(&|[x, y]| x0 * x + x1 * y + x2, half_x)]
}

fn warped(
    op: &'static str,
    image: &AnyTensor,
    [x0, x1, x2, y0, y1, y2]: [f64; 6],
    size: [usize; 2],
    sampling: (Interpolation, Option<f64>),
) -> Result<AnyTensor> {
    let planes = Planes::of(op, image.shape())?;
    let middle = |len: usize| (len as f64 - 1.0) * 0.5;
    let (down, right) = (middle(size[0]), middle(size[1]));
    let (old_down, old_right) = (middle(planes.height), middle(planes.width));
    sampled(op, image, size, sampling, &|row, column| {
        let (x, y) = (column as f64 - right, row as f64 - down);
        ((x0 * x + x1 * y + x2 + old_right) as f32, (y0 * x + y1 * y + y2 + old_down) as f32)
    })
}

/// Four points of a picture, each `[x, y]`: top left, top right, bottom right, bottom left.
pub(super) type Corners = [[f64; 2]; 4];

pub(super) fn perspective(
    image: &AnyTensor,
    start: &Corners,
    end: &Corners,
    interpolation: Interpolation,
    fill: Option<f64>,
) -> Result<AnyTensor> {
    let planes = Planes::of("perspective", image.shape())?;
    let Some([a, b, c, d, e, f, g, h]) = coefficients(start, end) else {
        return Err(wrong(format!(
            "perspective: {end:?} do not define a perspective; give four points, no three on a line"
        )));
    };
    sampled("perspective", image, [planes.height, planes.width], (interpolation, fill), &|row, column| {
        let (x, y) = (column as f64 + 0.5, row as f64 + 0.5);
        let depth = g * x + h * y + 1.0;
        (((a * x + b * y + c) / depth - 0.5) as f32, ((d * x + e * y + f) / depth - 0.5) as f32)
    })
}

/// The coefficients of the map from `end` to `start`: eight equations, solved by elimination.
fn coefficients(start: &Corners, end: &Corners) -> Option<[f64; 8]> {
    let mut rows = [[0.0; 9]; 8];
    for (at, ([x, y], [to_x, to_y])) in end.iter().zip(start).enumerate() {
        rows[2 * at] = [*x, *y, 1.0, 0.0, 0.0, 0.0, -to_x * x, -to_x * y, *to_x];
        rows[2 * at + 1] = [0.0, 0.0, 0.0, *x, *y, 1.0, -to_y * x, -to_y * y, *to_y];
    }
    for at in 0..8 {
        let largest = (at..8).max_by(|&i, &j| rows[i][at].abs().total_cmp(&rows[j][at].abs()))?;
        rows.swap(at, largest);
        let pivot = rows[at];
        if pivot[at].abs() < 1e-9 || !pivot[at].is_finite() {
            return None;
        }
        for (_, row) in rows.iter_mut().enumerate().filter(|&(other, _)| other != at) {
            let factor = row[at] / pivot[at];
            row.iter_mut().zip(pivot).for_each(|(entry, pivot)| *entry -= factor * pivot);
        }
    }
    Some(std::array::from_fn(|at| rows[at][8] / rows[at][at]))
}

/// The position in the old picture, `(x, y)`, of a row and column of the new one.
type From<'a> = &'a dyn Fn(usize, usize) -> (f32, f32);

fn sampled(
    op: &'static str,
    image: &AnyTensor,
    size: [usize; 2],
    (interpolation, fill): (Interpolation, Option<f64>),
    from: From<'_>,
) -> Result<AnyTensor> {
    let planes = Planes::of(op, image.shape())?;
    let (made, _counted) = planes.resized(op, size)?;
    let fill = fill.map(|fill| fill as f32);
    match interpolation {
        Interpolation::Nearest => {
            with_pixels!(op, image, made.shape(), values => nearest(&values, planes, made, fill, from))
        }
        Interpolation::Bilinear => {
            with_pixels!(op, image, made.shape(), values => bilinear(&values, planes, made, fill, from))
        }
        Interpolation::Bicubic => {
            Err(wrong(format!("{op}: only Nearest and Bilinear are supported here, not Bicubic")))
        }
    }
}

fn nearest<P: Pixel>(values: &[P], old: Planes, new: Planes, fill: Option<f32>, from: From<'_>) -> Vec<P> {
    let mut out = vec![P::rounded(fill.unwrap_or(0.0)); new.channels * new.len()];
    for row in 0..new.height {
        for column in 0..new.width {
            let (x, y) = from(row, column);
            let Some(index) = inside(x.round_ties_even(), y.round_ties_even(), old) else { continue };
            for channel in 0..new.channels {
                out[channel * new.len() + row * new.width + column] = values[channel * old.len() + index];
            }
        }
    }
    out
}

/// The index of a pixel, if it is inside the picture.
fn inside(x: f32, y: f32, planes: Planes) -> Option<usize> {
    let is_inside = x >= 0.0 && y >= 0.0 && x < planes.width as f32 && y < planes.height as f32;
    is_inside.then(|| y as usize * planes.width + x as usize)
}

fn bilinear<P: Pixel>(values: &[P], old: Planes, new: Planes, fill: Option<f32>, from: From<'_>) -> Vec<P> {
    let mut out = vec![P::rounded(fill.unwrap_or(0.0)); new.channels * new.len()];
    for row in 0..new.height {
        for column in 0..new.width {
            let (x, y) = from(row, column);
            let (left, top) = (x.floor(), y.floor());
            let (right, down) = (x - left, y - top);
            let corners = [
                (inside(left, top, old), (1.0 - right) * (1.0 - down)),
                (inside(left + 1.0, top, old), right * (1.0 - down)),
                (inside(left, top + 1.0, old), (1.0 - right) * down),
                (inside(left + 1.0, top + 1.0, old), right * down),
            ];
            if corners.iter().all(|(index, _)| index.is_none()) {
                continue;
            }
            let share: f32 = corners.iter().filter(|(index, _)| index.is_some()).map(|(_, weight)| weight).sum();
            for channel in 0..new.channels {
                let value = |index: usize| values[channel * old.len() + index].float();
                let sum: f32 = corners.iter().map(|&(index, weight)| weight * index.map_or(0.0, value)).sum();
                // With a fill, torchvision blends it with pixels that were blended with 0 already.
                let mixed = fill.map_or(sum, |fill| (sum - fill) * share + fill);
                out[channel * new.len() + row * new.width + column] = P::rounded(mixed);
            }
        }
    }
    out
}

/// Rotates `[channels, height, width]` by a random angle, counterclockwise.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{RandomRotation, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let image = Tensor::new([[[1.0, 2.0], [3.0, 4.0]]])?;
/// let quarter = RandomRotation { degrees: 90.0..=90.0, ..RandomRotation::new(0.0) };
/// assert_eq!(quarter.apply(image, &Generator::new(1))?.to_vec::<f32>()?, [2.0, 4.0, 1.0, 3.0]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RandomRotation {
    /// The range of the angle, in degrees.
    pub degrees: RangeInclusive<f64>,
    /// How pixels are interpolated.
    pub interpolation: Interpolation,
    /// Whether the result is enlarged to hold the whole picture.
    pub expand: bool,
    /// The value of pixels from outside. `None` is 0 too, but blends less into pixels at the edge; see the
    /// [module](super::functional).
    pub fill: Option<f64>,
}

impl RandomRotation {
    /// Rotates by up to `degrees` in either direction, with nearest pixels, in the same size.
    pub fn new(degrees: f64) -> Self {
        Self { degrees: -degrees..=degrees, interpolation: Interpolation::Nearest, expand: false, fill: Some(0.0) }
    }

    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        let angle = between(random, &self.degrees);
        rotate(&image, angle, self.interpolation, self.expand, self.fill)
    }
}

/// Rotates, moves, scales and shears `[channels, height, width]` about its center, each at random.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{RandomAffine, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let image = Tensor::ones([1, 28, 28])?;
/// let affine = RandomAffine { translate: [0.1, 0.1], scale: 0.9..=1.1, ..RandomAffine::new(15.0) };
/// assert_eq!(affine.apply(image.clone(), &Generator::new(3))?.dims(), [1, 28, 28]);
///
/// let nothing = RandomAffine::new(0.0);
/// assert_eq!(nothing.apply(image.clone(), &Generator::new(3))?.to_vec::<f32>()?, image.to_vec::<f32>()?);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RandomAffine {
    /// The range of the angle, in degrees, clockwise.
    pub degrees: RangeInclusive<f64>,
    /// The largest shift in either direction, as a fraction of the width and of the height.
    pub translate: [f64; 2],
    /// The range of the scale factor.
    pub scale: RangeInclusive<f64>,
    /// The ranges of the shear along rows and along columns, in degrees.
    pub shear: [RangeInclusive<f64>; 2],
    /// How pixels are interpolated.
    pub interpolation: Interpolation,
    /// The value of pixels from outside. `None` is 0 too, but blends less into pixels at the edge; see the
    /// [module](super::functional).
    pub fill: Option<f64>,
}

impl RandomAffine {
    /// Rotates by up to `degrees` in either direction, with nearest pixels, and changes nothing else.
    pub fn new(degrees: f64) -> Self {
        let (scale, shear) = (1.0..=1.0, [0.0..=0.0, 0.0..=0.0]);
        let interpolation = Interpolation::Nearest;
        Self { degrees: -degrees..=degrees, translate: [0.0; 2], scale, shear, interpolation, fill: Some(0.0) }
    }

    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        let planes = Planes::of("random_affine", image.shape())?;
        let draw = |range| between(random, range);
        let angle = draw(&self.degrees);
        let move_by = |part: f64, size: usize| {
            let most = part * size as f64;
            between(random, &(-most..=most)).round_ties_even()
        };
        let translate = [move_by(self.translate[0], planes.width), move_by(self.translate[1], planes.height)];
        let (scale, shear) = (draw(&self.scale), [draw(&self.shear[0]), draw(&self.shear[1])]);
        affine(&image, &Affine { angle, translate, scale, shear, center: None }, self.interpolation, self.fill)
    }
}

/// A random perspective of `[channels, height, width]`, with probability `p`.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{RandomPerspective, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let image = Tensor::ones([1, 28, 28])?;
/// let always = RandomPerspective { p: 1.0, ..RandomPerspective::default() };
/// assert_eq!(always.apply(image, &Generator::new(3))?.dims(), [1, 28, 28]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RandomPerspective {
    /// From 0, no distortion, to 1.
    pub distortion_scale: f64,
    /// From 0, never, to 1, always.
    pub p: f64,
    /// How pixels are interpolated.
    pub interpolation: Interpolation,
    /// The value of pixels from outside. `None` is 0 too, but blends less into pixels at the edge; see the
    /// [module](super::functional).
    pub fill: Option<f64>,
}

impl Default for RandomPerspective {
    fn default() -> Self {
        Self { distortion_scale: 0.5, p: 0.5, interpolation: Interpolation::Bilinear, fill: Some(0.0) }
    }
}

impl RandomPerspective {
    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        let planes = Planes::of("random_perspective", image.shape())?;
        if !(0.0..=1.0).contains(&self.distortion_scale) {
            let scale = self.distortion_scale;
            return Err(wrong(format!("random_perspective: the distortion scale is {scale}, but must be from 0 to 1")));
        }
        if random.next_f64() >= self.p || planes.len() == 0 {
            return Ok(image);
        }
        let (right, bottom) = (planes.width as f64 - 1.0, planes.height as f64 - 1.0);
        let inward = |size: usize| below(random, (self.distortion_scale * (size / 2) as f64) as usize + 1) as f64;
        let corner = |x: f64, y: f64| {
            let (by_x, by_y) = (inward(planes.width), inward(planes.height));
            [if x == 0.0 { by_x } else { x - by_x }, if y == 0.0 { by_y } else { y - by_y }]
        };
        let start = [[0.0, 0.0], [right, 0.0], [right, bottom], [0.0, bottom]];
        let end = [corner(0.0, 0.0), corner(right, 0.0), corner(right, bottom), corner(0.0, bottom)];
        match coefficients(&start, &end) {
            Some(_) => perspective(&image, &start, &end, self.interpolation, self.fill),
            None => Ok(image), // too small for a perspective
        }
    }
}
