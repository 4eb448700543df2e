//! The functions behind transforms, without chance: names of `torchvision.transforms.v2.functional`.
//!
//! Pictures are `[channels, height, width]`. `crop`, `pad`, `center_crop`, flips and nearest pixels take any elements, the others bytes,
//! which are rounded, and floats, which are computed with in `f32`.
//!
//! The fill of `affine`, `rotate` and `perspective` is what comes from outside. A bilinear pixel at the edge is mixed with 0 for the part of it
//! that is outside, and where a fill is given, once more with that: so `None` and `Some(0.0)` differ there, as in torchvision.
//!
//! # Errors
//! All refuse other shapes and other elements, settings that are out of range (the text says which), and results for which the budget
//! has no room.
//!
//! # Examples
//! ```
//! use pagelock_data::transforms::{Interpolation, functional};
//! use pagelock_tensor::{DType, Tensor};
//!
//! let photo = Tensor::of(DType::U8).full([3, 60, 80], 100)?;
//! let small = functional::resize(&photo, 30, Interpolation::Bilinear, true)?;
//! let bright = functional::adjust_brightness(&small, 1.5)?;
//! assert_eq!((bright.dims(), bright.to_vec::<u8>()?[0]), (&[3, 30, 40][..], 150));
//! # Ok::<(), pagelock_data::Error>(())
//! ```

use pagelock_tensor::{Kind, Tensor};

use super::{Affine, Interpolation, PaddingMode, Size, Window, augment, color, crop, filters, geometry, resize};
use crate::Result;

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) = $module:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// See [the module](self).
        pub fn $name<K: Kind>(image: &Tensor<K>, $($arg: $type),*) -> Result<Tensor<K>> {
            Ok($module::$name(&image.into(), $($arg),*)?.kind()?)
        }
    )*};
}

/// In another size; `antialias` smooths what shrinks.
///
/// # Errors
/// See [the module](self).
///
/// # Examples
/// See [the module](self).
pub fn resize<K: Kind>(
    image: &Tensor<K>,
    size: impl Into<Size>,
    interpolation: Interpolation,
    antialias: bool,
) -> Result<Tensor<K>> {
    Ok(resize::resize(&image.into(), size.into(), interpolation, antialias)?.kind()?)
}

functions! {
    /// A part, brought to a height and width.
    resized_crop(window: Window, size: [usize; 2], interpolation: Interpolation, antialias: bool) = resize;
    /// A part.
    crop(window: Window) = crop;
    /// The middle, with zeros around it where the picture is smaller.
    center_crop(size: [usize; 2]) = crop;
    /// With a border of so many pixels on the left, top, right and bottom.
    pad(padding: [usize; 4], fill: f64, mode: PaddingMode) = crop;
    /// Mirrored, left to right.
    horizontal_flip() = crop;
    /// Mirrored, top to bottom.
    vertical_flip() = crop;
    /// Turned, moved, scaled and sheared. Example: see [`Affine`].
    affine(by: &Affine, interpolation: Interpolation, fill: Option<f64>) = geometry;
    /// Turned counterclockwise, by degrees; `expand` makes room for all of it.
    rotate(angle: f64, interpolation: Interpolation, expand: bool, fill: Option<f64>) = geometry;
    /// Seen from aside, so that the places `start` come to be at `end`: top left, top right, bottom right and bottom left, each
    /// `[x, y]` in pixels.
    perspective(start: &[[f64; 2]; 4], end: &[[f64; 2]; 4], interpolation: Interpolation, fill: Option<f64>) = geometry;
    /// 0 is black, 1 as before, 2 twice as bright.
    adjust_brightness(factor: f64) = color;
    /// 0 is gray, 1 as before, 2 twice the contrast.
    adjust_contrast(factor: f64) = color;
    /// 0 is without color, 1 as before, 2 twice as colorful.
    adjust_saturation(factor: f64) = color;
    /// Colors turned around their circle, by -0.5 to 0.5 of it.
    adjust_hue(factor: f64) = color;
    /// Without color, in one channel or three.
    rgb_to_grayscale(n_channels: usize) = color;
    /// The negative.
    invert() = color;
    /// The highest bits of each byte; of floats, as many levels.
    posterize(bits: u32) = color;
    /// The negative of what is as bright as the threshold, or brighter.
    solarize(threshold: f64) = color;
    /// Each channel from the darkest to the brightest.
    autocontrast() = color;
    /// Each brightness as often as the others, in each channel.
    equalize() = color;
    /// 0 blurs, 1 is as before, 2 twice as sharp.
    adjust_sharpness(factor: f64) = filters;
    /// Blurred with a normal distribution over so many pixels down and right, odd numbers, of that deviation in pixels.
    gaussian_blur(kernel_size: [usize; 2], sigma: f64) = filters;
    /// A part in one color.
    erase(window: Window, value: f64) = augment;
}
