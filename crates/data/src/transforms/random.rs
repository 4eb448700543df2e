//! Random changes of colors and sharpness.

use std::ops::RangeInclusive;

use pagelock_tensor::{AnyTensor, Generator};

use super::between;
use super::color::{
    adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation, autocontrast, equalize, invert, posterize,
    rgb_to_grayscale, solarize,
};
use super::crop::for_pictures;
use super::filters::adjust_sharpness;
use super::image::Planes;
use crate::Result;

for_pictures! {
    ColorJitter Grayscale RandomAdjustSharpness RandomAutocontrast RandomEqualize RandomGrayscale RandomInvert RandomPosterize
    RandomSolarize
}

/// Changes brightness, contrast, saturation and hue of `[channels, height, width]` at random, in random order.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{ColorJitter, Transform};
/// use pagelock_tensor::{DType, Generator, Tensor};
///
/// let photo = Tensor::of(DType::U8).full([3, 4, 4], 100)?;
/// let jitter = ColorJitter::new(0.4, 0.4, 0.4, 0.1);
/// let changed = jitter.apply(photo, &Generator::new(3))?;
/// assert_ne!(changed.to_vec::<u8>()?[0], 100);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ColorJitter {
    /// The range of the factor; `None` changes nothing.
    pub brightness: Option<RangeInclusive<f64>>,
    /// The range of the factor.
    pub contrast: Option<RangeInclusive<f64>>,
    /// The range of the factor.
    pub saturation: Option<RangeInclusive<f64>>,
    /// The range of the shift on the color circle, from -0.5 to 0.5.
    pub hue: Option<RangeInclusive<f64>>,
}

impl ColorJitter {
    /// Factors from `1 - b` to `1 + b` for brightness, contrast and saturation, not below 0, and hues from `-h` to `h`; 0 changes
    /// nothing.
    pub fn new(brightness: f64, contrast: f64, saturation: f64, hue: f64) -> Self {
        let factor = |by: f64| (by != 0.0).then(|| (1.0 - by).max(0.0)..=1.0 + by);
        let hue = (hue != 0.0).then(|| -hue..=hue);
        Self { brightness: factor(brightness), contrast: factor(contrast), saturation: factor(saturation), hue }
    }

    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        let mut changes: [(fn(&AnyTensor, f64) -> Result<AnyTensor>, _); 4] = [
            (adjust_brightness, &self.brightness),
            (adjust_contrast, &self.contrast),
            (adjust_saturation, &self.saturation),
            (adjust_hue, &self.hue),
        ];
        random.shuffle(&mut changes);
        changes.into_iter().try_fold(image, |image, (change, range)| match range {
            Some(range) => change(&image, between(random, range)),
            None => Ok(image),
        })
    }
}

/// Converts `[channels, height, width]` to gray.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{Grayscale, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let gray = Grayscale { num_output_channels: 1 }.apply(Tensor::ones([3, 2, 2])?, &Generator::new(0))?;
/// assert_eq!(gray.dims(), [1, 2, 2]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Grayscale {
    /// 1, or 3 equal ones.
    pub num_output_channels: usize,
}

impl Grayscale {
    fn of_any(&self, image: AnyTensor, _random: &Generator) -> Result<AnyTensor> {
        rgb_to_grayscale(&image, self.num_output_channels)
    }
}

macro_rules! by_chance {
    ($($(#[$doc:meta])* $type:ident { $($(#[$field_doc:meta])* $field:ident: $field_type:ty,)* }, |$self:ident, $image:ident| $change:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $type {
            $($(#[$field_doc])* pub $field: $field_type,)*
            /// From 0, never, to 1, always.
            pub p: f64,
        }

        impl $type {
            fn of_any(&$self, $image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
                if random.next_f64() < $self.p { $change } else { Ok($image) }
            }
        }
    )*};
}

by_chance! {
    /// Converts `[channels, height, width]` to gray, in as many channels as before, with probability `p`.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::transforms::{RandomGrayscale, Transform};
    /// use pagelock_tensor::{Generator, Tensor};
    ///
    /// let gray = RandomGrayscale { p: 1.0 }.apply(Tensor::new([[[1.0]], [[0.0]], [[0.0]]])?, &Generator::new(0))?;
    /// assert_eq!(gray.to_vec::<f32>()?, [0.2989; 3]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    RandomGrayscale {}, |self, image| {
        let planes = Planes::of("random_grayscale", image.shape())?;
        rgb_to_grayscale(&image, planes.channels)
    };

    /// Inverts `[channels, height, width]`, with probability `p`.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::transforms::{RandomInvert, Transform};
    /// use pagelock_tensor::{Generator, Tensor};
    ///
    /// let negative = RandomInvert { p: 1.0 }.apply(Tensor::new([[[0.25]]])?, &Generator::new(0))?;
    /// assert_eq!(negative.item::<f32>()?, 0.75);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    RandomInvert {}, |self, image| invert(&image);

    /// Keeps the highest `bits` bits of each byte of `[channels, height, width]`, with probability `p`.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::transforms::{RandomPosterize, Transform};
    /// use pagelock_tensor::{Generator, Tensor};
    ///
    /// let image = Tensor::from_slice(&[255_u8, 100], [1, 1, 2])?;
    /// let coarse = RandomPosterize { bits: 1, p: 1.0 }.apply(image, &Generator::new(0))?;
    /// assert_eq!(coarse.to_vec::<u8>()?, [128, 0]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    RandomPosterize {
        /// How many bits stay.
        bits: u32,
    }, |self, image| posterize(&image, self.bits);

    /// Inverts the values of `[channels, height, width]` at or above `threshold`, with probability `p`.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::transforms::{RandomSolarize, Transform};
    /// use pagelock_tensor::{Generator, Tensor};
    ///
    /// let image = Tensor::from_slice(&[255_u8, 100], [1, 1, 2])?;
    /// let changed = RandomSolarize { threshold: 192.0, p: 1.0 }.apply(image, &Generator::new(0))?;
    /// assert_eq!(changed.to_vec::<u8>()?, [0, 100]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    RandomSolarize {
        /// From 0 to 255 for bytes, to 1 for floats.
        threshold: f64,
    }, |self, image| solarize(&image, self.threshold);

    /// Sharpens `[channels, height, width]`, or softens it with a factor below 1, with probability `p`.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::transforms::{RandomAdjustSharpness, Transform};
    /// use pagelock_tensor::{Generator, Tensor};
    ///
    /// let sharper = RandomAdjustSharpness { sharpness_factor: 2.0, p: 0.5 };
    /// assert_eq!(sharper.apply(Tensor::ones([3, 8, 8])?, &Generator::new(0))?.dims(), [3, 8, 8]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    RandomAdjustSharpness {
        /// 0 blurs, 1 changes nothing, 2 is twice as sharp.
        sharpness_factor: f64,
    }, |self, image| adjust_sharpness(&image, self.sharpness_factor);

    /// Stretches each channel of `[channels, height, width]` to the full range, with probability `p`.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::transforms::{RandomAutocontrast, Transform};
    /// use pagelock_tensor::{Generator, Tensor};
    ///
    /// let stretched = RandomAutocontrast { p: 1.0 }.apply(Tensor::new([[[0.25, 0.5]]])?, &Generator::new(0))?;
    /// assert_eq!(stretched.to_vec::<f32>()?, [0.0, 1.0]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    RandomAutocontrast {}, |self, image| autocontrast(&image);

    /// Equalizes the histogram of each channel of `[channels, height, width]`, with probability `p`.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::transforms::{RandomEqualize, Transform};
    /// use pagelock_tensor::{Generator, Tensor};
    ///
    /// let equal = RandomEqualize { p: 1.0 }.apply(Tensor::ones([1, 2, 2])?, &Generator::new(0))?;
    /// assert_eq!(equal.dims(), [1, 2, 2]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    RandomEqualize {}, |self, image| equalize(&image);
}
