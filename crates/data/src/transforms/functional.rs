//! The functions behind the transforms, without randomness, with the names of `torchvision.transforms.v2.functional`.
//!
//! Pictures are `[channels, height, width]`. `crop`, `pad`, `center_crop`, flips and `resize` to nearest pixels take
//! elements of any type. The other functions take bytes, which are rounded, and floats, which are computed in `f32`.
//!
//! `affine`, `rotate` and `perspective` use the fill for pixels from outside the picture. A bilinear pixel at the
//! edge is blended with 0 for its part outside, and with a fill it is blended once more with the fill. So `None` and
//! `Some(0.0)` differ there, as in torchvision.
//!
//! # Errors
//! All functions refuse other shapes and element types, settings that are out of range (the text names them), and
//! results for which the budget has no memory.
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

/// Resizes a picture; `antialias` smooths a picture that shrinks.
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
    /// A part, resized to a height and width.
    resized_crop(window: Window, size: [usize; 2], interpolation: Interpolation, antialias: bool) = resize;
    /// The part within a window.
    crop(window: Window) = crop;
    /// The middle, with a border of zeros where the picture is smaller.
    center_crop(size: [usize; 2]) = crop;
    /// With a border of these widths on the left, top, right and bottom.
    pad(padding: [usize; 4], fill: f64, mode: PaddingMode) = crop;
    /// Mirrored, left to right.
    horizontal_flip() = crop;
    /// Mirrored, top to bottom.
    vertical_flip() = crop;
    /// Rotated, moved, scaled and sheared. Example: see [`Affine`].
    affine(by: &Affine, interpolation: Interpolation, fill: Option<f64>) = geometry;
    /// Rotated counterclockwise, by degrees; `expand` enlarges the result to hold the whole picture.
    rotate(angle: f64, interpolation: Interpolation, expand: bool, fill: Option<f64>) = geometry;
    /// Changed in perspective, so that the points `start` move to `end`: top left, top right, bottom right and bottom
    /// left, each `[x, y]` in pixels.
    perspective(start: &[[f64; 2]; 4], end: &[[f64; 2]; 4], interpolation: Interpolation, fill: Option<f64>) = geometry;
    /// 0 is black, 1 as before, 2 twice as bright.
    adjust_brightness(factor: f64) = color;
    /// 0 is gray, 1 as before, 2 twice the contrast.
    adjust_contrast(factor: f64) = color;
    /// 0 is without color, 1 as before, 2 twice as colorful.
    adjust_saturation(factor: f64) = color;
    /// With the hues shifted by -0.5 to 0.5 of the color circle.
    adjust_hue(factor: f64) = color;
    /// Without color, in one channel or three.
    rgb_to_grayscale(n_channels: usize) = color;
    /// The negative.
    invert() = color;
    /// The highest `bits` bits of each byte; floats are rounded down to `2^bits` levels.
    posterize(bits: u32) = color;
    /// The negative of values at or above the threshold.
    solarize(threshold: f64) = color;
    /// Each channel stretched to the full range.
    autocontrast() = color;
    /// Each channel with an equalized histogram.
    equalize() = color;
    /// 0 blurs, 1 is as before, 2 twice as sharp.
    adjust_sharpness(factor: f64) = filters;
    /// Blurred with a Gaussian kernel of this height and width, which are odd numbers, and of standard deviation
    /// `sigma` in pixels.
    gaussian_blur(kernel_size: [usize; 2], sigma: f64) = filters;
    /// With the pixels within a window set to `value`.
    erase(window: Window, value: f64) = augment;
}
