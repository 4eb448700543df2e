//! Transforms of images for [`Dataset::transform`](crate::Dataset::transform), as PyTorch's guides use them.
//!
//! A transform is a value; a tuple of transforms applies them from first to last, as PyTorch's `Compose` does. Random
//! transforms draw from the generator that they are given, so the result is a function of seed, epoch and index: the
//! same for any number of workers and after a restart. Names, settings and defaults are those of
//! `torchvision.transforms.v2`. If only some settings of a transform have defaults, its `new` takes the others:
//! `RandomCrop { padding: 4, ..RandomCrop::new([32, 32]) }`. The random numbers are not PyTorch's.
//!
//! Pictures are `[channels, height, width]`, of bytes or floats from 0 to 1; crops, flips and padding take any kind
//! of elements. [`functional`] has the same transforms without randomness. Results in bytes are rounded as in
//! torchvision, and differ from its results by at most 1.
//!
//! [`MixUp`] and [`CutMix`] transform batches: give them to [`Loader::transform`](crate::Loader::transform).

// Reading order: this file, `image.rs` (what a picture is), `functional.rs` (the list of functions); then by theme
// `crop.rs`, `resize.rs`, `geometry.rs`, `color.rs`, `filters.rs`; `random.rs` (random changes of colors),
// `augment.rs`, `policies.rs`, `choice.rs`, `mix.rs`.

mod augment;
mod choice;
mod color;
mod crop;
mod filters;
pub mod functional;
mod geometry;
mod image;
mod mix;
mod policies;
mod random;
mod resize;
#[cfg(test)]
mod tests;

use std::ops::{Div, RangeInclusive, Sub};

use pagelock_memory::HeapReservation;
use pagelock_tensor::{DType, Error as TensorError, Generator, Int, Shape, Tensor};

pub use self::augment::{RandAugment, RandomErasing};
pub use self::choice::{Lambda, RandomApply, RandomChoice, RandomOrder};
pub use self::crop::{
    CenterCrop, FiveCrop, Pad, PaddingMode, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip, Window,
};
pub use self::filters::GaussianBlur;
pub use self::geometry::{Affine, RandomAffine, RandomPerspective, RandomRotation};
pub use self::mix::{CutMix, MixUp};
pub use self::policies::{AugMix, AutoAugment, AutoAugmentPolicy, TrivialAugmentWide};
pub use self::random::{
    ColorJitter, Grayscale, RandomAdjustSharpness, RandomAutocontrast, RandomEqualize, RandomGrayscale, RandomInvert,
    RandomPosterize, RandomSolarize,
};
pub use self::resize::{Interpolation, RandomResizedCrop, Resize, Size};

use self::image::Planes;
use crate::elements::{for_each_pair, listed};
use crate::{Error, Result};

/// A function of a value, which may be random.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{Normalize, RandomCrop, RandomHorizontalFlip, ToTensor, Transform};
/// use pagelock_data::{Dataset, TensorDataset};
/// use pagelock_tensor::{DType, Tensor};
///
/// let white = Tensor::of(DType::U8).full([10, 32, 32, 3], 255)?;
/// let images = TensorDataset::new((white, Tensor::full([10], 0)?))?;
/// let train = (
///     ToTensor,
///     RandomCrop { padding: 4, ..RandomCrop::new([32, 32]) },
///     RandomHorizontalFlip { p: 0.5 },
///     Normalize { mean: [0.5; 3], std: [0.25; 3] },
/// );
/// let train_ds = images.transform(42, move |(image, label), random| Ok((train.apply(image, random)?, label)));
/// assert_eq!(train_ds.get(0)?.0.dims(), [3, 32, 32]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub trait Transform<X> {
    /// The type of the result.
    type Out;

    /// Transforms `x`, with random numbers from `random` alone.
    ///
    /// # Errors
    /// If the transform cannot use `x`.
    fn apply(&self, x: X, random: &Generator) -> Result<Self::Out>;
}

macro_rules! chain {
    ($($first:ident $(, $next:ident: $before:ident)* => $last:ident;)*) => {$(
        impl<X, $first: Transform<X> $(, $next: Transform<$before::Out>)*> Transform<X> for ($first, $($next,)*) {
            type Out = $last::Out;

            #[allow(non_snake_case)] // the variable of each transform has the name of its type
            fn apply(&self, x: X, random: &Generator) -> Result<$last::Out> {
                let ($first, $($next,)*) = self;
                let x = $first.apply(x, random)?;
                $(let x = $next.apply(x, random)?;)*
                Ok(x)
            }
        }
    )*};
}

chain! {
    A => A;
    A, B: A => B;
    A, B: A, C: B => C;
    A, B: A, C: B, D: C => D;
    A, B: A, C: B, D: C, E: D => E;
    A, B: A, C: B, D: C, E: D, F: E => F;
    A, B: A, C: B, D: C, E: D, F: E, G: F => G;
    A, B: A, C: B, D: C, E: D, F: E, G: F, H: G => H;
}

/// Converts an image of bytes, `[height, width]` or `[height, width, channels]`, to `f32` from 0 to 1,
/// `[channels, height, width]`. If the channels of images come first already, use [`ToFloat`].
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{ToTensor, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let red_and_blue = Tensor::from_slice(&[255_u8, 0, 0, 0, 0, 255], [1, 2, 3])?; // one row of two pixels
/// let image = ToTensor.apply(red_and_blue, &Generator::new(0))?;
/// assert_eq!(image.dims(), [3, 1, 2]);
/// assert_eq!(image.to_vec::<f32>()?, [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ToTensor;

impl Transform<Tensor<Int>> for ToTensor {
    type Out = Tensor;

    fn apply(&self, image: Tensor<Int>, _random: &Generator) -> Result<Tensor> {
        let [height, width, channels] = match *image.dims() {
            [height, width] => [height, width, 1],
            [first, _, last] if first <= 4 && last > 4 => {
                let expected = "it must be [height, width, channels]; use ToFloat where channels come first";
                return Err(wrong_shape("to_tensor", image.shape(), expected));
            }
            [height, width, channels] => [height, width, channels],
            _ => {
                let expected = "it must be [height, width] or [height, width, channels]";
                return Err(wrong_shape("to_tensor", image.shape(), expected));
            }
        };
        let (bytes, _counted) = bytes_of("to_tensor", &image)?;
        Ok(Tensor::build([channels, height, width], |out: &mut [f32]| {
            for (channel, plane) in out.chunks_exact_mut((height * width).max(1)).enumerate() {
                for (pixel, value) in plane.iter_mut().enumerate() {
                    *value = f32::from(bytes[pixel * channels + channel]) / 255.0;
                }
            }
        })?)
    }
}

/// Converts bytes of any shape to `f32` from 0 to 1: for images whose channels come first, such as those of
/// [`Cifar`](crate::Cifar).
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{Normalize, RandomCrop, RandomHorizontalFlip, ToFloat, Transform};
/// use pagelock_tensor::{DType, Generator, Tensor};
///
/// let train = (
///     RandomCrop { padding: 4, ..RandomCrop::new([32, 32]) }, // crops bytes: a quarter of the size of `f32`
///     RandomHorizontalFlip { p: 0.5 },
///     ToFloat,
///     Normalize { mean: [0.4914, 0.4822, 0.4465], std: [0.2470, 0.2435, 0.2616] },
/// );
/// let image = train.apply(Tensor::of(DType::U8).full([3, 32, 32], 255)?, &Generator::new(0))?;
/// assert_eq!(image.dims(), [3, 32, 32]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ToFloat;

impl Transform<Tensor<Int>> for ToFloat {
    type Out = Tensor;

    fn apply(&self, image: Tensor<Int>, _random: &Generator) -> Result<Tensor> {
        let (bytes, _counted) = bytes_of("to_float", &image)?;
        Ok(Tensor::build(*image.shape(), |out: &mut [f32]| {
            for_each_pair(out, &bytes, |value, &byte| *value = f32::from(byte) / 255.0);
        })?)
    }
}

/// Each channel of `[channels, height, width]` minus its mean, divided by its standard deviation, in the image's
/// precision.
///
/// # Errors
/// An image of another shape or number of channels; a standard deviation that is 0 or not finite.
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{Normalize, Transform};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let image = Tensor::new([[[1.0]], [[3.0]]])?;
/// let normal = Normalize { mean: [0.5, 1.0], std: [0.5, 4.0] }.apply(image, &Generator::new(0))?;
/// assert_eq!(normal.to_vec::<f32>()?, [1.0, 0.5]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Normalize<const CHANNELS: usize> {
    /// The mean of each channel.
    pub mean: [f32; CHANNELS],
    /// The standard deviation of each channel.
    pub std: [f32; CHANNELS],
}

impl<const CHANNELS: usize> Transform<Tensor> for Normalize<CHANNELS> {
    type Out = Tensor;

    fn apply(&self, image: Tensor, _random: &Generator) -> Result<Tensor> {
        let planes = Planes::of("normalize", image.shape())?;
        if planes.channels != CHANNELS {
            return Err(wrong_shape(
                "normalize",
                image.shape(),
                format!("the means are of {CHANNELS} channels; give one for each"),
            ));
        }
        if self.std.iter().any(|&std| std == 0.0 || !std.is_finite()) {
            let std = self.std;
            return Err(wrong(format!(
                "normalize: the standard deviations are {std:?}, but each must be finite and not 0"
            )));
        }
        let (shape, dtype) = (*image.shape(), image.dtype());
        if dtype == DType::F64 {
            let (values, _counted) = listed::<f64>(&image)?;
            return Ok(Tensor::from_vec(self.normal(values, planes.len()), shape)?);
        }
        let (values, _counted) = listed::<f32>(&image)?;
        Ok(Tensor::from_vec(self.normal(values, planes.len()), shape)?.to_dtype(dtype)?)
    }
}

impl<const CHANNELS: usize> Normalize<CHANNELS> {
    /// The normalized values of an image whose planes have `plane_len` values.
    fn normal<R>(&self, mut values: Vec<R>, plane_len: usize) -> Vec<R>
    where
        R: Copy + From<f32> + Sub<Output = R> + Div<Output = R>,
    {
        let statistics = self.mean.into_iter().zip(self.std);
        for (plane, (mean, std)) in values.chunks_exact_mut(plane_len.max(1)).zip(statistics) {
            plane.iter_mut().for_each(|value| *value = (*value - R::from(mean)) / R::from(std));
        }
        values
    }
}

/// The elements of an image of bytes; other whole numbers are refused.
fn bytes_of(op: &'static str, image: &Tensor<Int>) -> Result<(Vec<u8>, HeapReservation)> {
    match image.dtype() {
        DType::U8 => listed(image),
        dtype => Err(wrong(format!("{op}: the image is {dtype}, but pixels must be uint8; use to_dtype(DType::U8)"))),
    }
}

/// A random number in the range.
fn between(random: &Generator, range: &RangeInclusive<f64>) -> f64 {
    range.start() + random.next_f64() * (range.end() - range.start())
}

/// Returns an error unless all ratios in the range, which are those of width to height, are above 0 and finite.
fn check_ratio(op: &'static str, ratio: &RangeInclusive<f64>) -> Result<()> {
    let (least, most) = (*ratio.start(), *ratio.end());
    if 0.0 < least && least <= most && most.is_finite() {
        return Ok(());
    }
    Err(wrong(format!("{op}: the ratio is from {least} to {most}; give a range of finite numbers above 0")))
}

/// A random whole number below `n`. `n` must be at least 1.
fn below(random: &Generator, n: usize) -> usize {
    ((random.next_f64() * n as f64) as usize).min(n - 1)
}

fn wrong(text: String) -> Error {
    TensorError::Argument(text).into()
}

fn wrong_shape(op: &'static str, shape: &Shape, expected: impl Into<String>) -> Error {
    wrong(format!("{op}: the image is {shape}, but {}", expected.into()))
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn numbered() -> Tensor {
        Tensor::arange(0.0, 24.0, 1.0).unwrap().reshape([2, 3, 4]).unwrap()
    }

    #[test]
    fn a_crop_is_a_part_of_the_image_with_its_border_and_every_part_comes() {
        let crop = RandomCrop { padding: 1, ..RandomCrop::new([3, 4]) };
        let mut firsts: Vec<f32> = Vec::new();
        for seed in 0..200 {
            let part = crop.apply(numbered(), &Generator::new(seed)).unwrap();
            assert_eq!(part.dims(), [2, 3, 4]);
            // This pixel of a crop is never in the border.
            let middle = part.to_vec::<f32>().unwrap()[5];
            firsts.push(middle);
        }
        firsts.sort_by(f32::total_cmp);
        firsts.dedup();
        assert_eq!(firsts, [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 9.0, 10.0]);
    }

    #[test]
    fn bytes_become_floats_in_either_order_of_channels() {
        let random = Generator::new(0);
        let last = Tensor::from_slice(&[255_u8, 0, 51], [1, 1, 3]).unwrap(); // one pixel
        let first = last.reshape([3, 1, 1]).unwrap();
        for image in [ToTensor.apply(last, &random), ToFloat.apply(first, &random)] {
            let image = image.unwrap();
            assert_eq!((image.dims(), image.to_vec::<f32>().unwrap()), (&[3, 1, 1][..], vec![1.0, 0.0, 0.2]));
        }
    }

    #[test]
    fn a_flip_comes_as_often_as_it_should_and_undoes_itself() {
        let flip = RandomHorizontalFlip { p: 0.25 };
        let whole: Vec<f32> = numbered().to_vec().unwrap();
        let flipped = (0..1_000)
            .filter(|&seed| flip.apply(numbered(), &Generator::new(seed)).unwrap().to_vec::<f32>().unwrap() != whole);
        assert!((200..300).contains(&flipped.count()));
        let always = (RandomHorizontalFlip { p: 1.0 }, RandomHorizontalFlip { p: 1.0 });
        assert_eq!(always.apply(numbered(), &Generator::new(0)).unwrap().to_vec::<f32>().unwrap(), whole);
    }

    #[test]
    fn an_affine_that_always_moves_fills_with_zeros() {
        let image = Tensor::ones([1, 10, 10]).unwrap();
        let far = RandomAffine { scale: 0.5..=0.5, ..RandomAffine::new(0.0) };
        let small: Vec<f32> = far.apply(image, &Generator::new(0)).unwrap().to_vec().unwrap();
        assert_eq!(small.iter().sum::<f32>(), 25.0, "10 x 10 at half the size");
        assert_eq!((small[0], small[55]), (0.0, 1.0));
    }

    #[test]
    fn bytes_flip_too_and_other_shapes_are_refused_with_what_is_wanted() {
        let bytes = Tensor::from_slice(&[1_u8, 2], [1, 1, 2]).unwrap();
        let flipped = RandomHorizontalFlip { p: 1.0 }.apply(bytes.clone(), &Generator::new(0)).unwrap();
        assert_eq!((flipped.to_vec::<u8>().unwrap(), flipped.dtype()), (vec![2, 1], DType::U8));
        let flat = bytes.reshape([2]).unwrap();
        let text = |error: Error| error.to_string();
        let two = Normalize { mean: [0.0; 2], std: [1.0; 2] };
        assert_eq!(
            text(ToTensor.apply(flat.clone(), &Generator::new(0)).unwrap_err()),
            "to_tensor: the image is [2], but it must be [height, width] or [height, width, channels]"
        );
        let channels_first = Tensor::of(DType::U8).full([3, 32, 32], 0).unwrap();
        assert_eq!(
            text(ToTensor.apply(channels_first, &Generator::new(0)).unwrap_err()),
            "to_tensor: the image is [3, 32, 32], but it must be [height, width, channels]; use ToFloat where channels \
             come first"
        );
        assert_eq!(
            text(RandomHorizontalFlip { p: 1.0 }.apply(flat, &Generator::new(0)).unwrap_err()),
            "random_horizontal_flip: the image is [2], but it must be [channels, height, width]"
        );
        assert_eq!(
            text(two.apply(Tensor::ones([3, 2, 2]).unwrap(), &Generator::new(0)).unwrap_err()),
            "normalize: the image is [3, 2, 2], but the means are of 2 channels; give one for each"
        );
        let crop = RandomCrop { padding: 2, ..RandomCrop::new([9, 9]) };
        assert_eq!(
            text(crop.apply(numbered(), &Generator::new(0)).unwrap_err()),
            "random_crop: the image is [2, 3, 4], but with a border of 2 it must be 9 x 9 or larger; crop less or pad \
             more"
        );
        let crop = RandomCrop { padding: usize::MAX, ..RandomCrop::new([1, 1]) };
        assert!(crop.apply(numbered(), &Generator::new(0)).is_err(), "no border is that wide");
    }

    #[test]
    fn numbers_that_are_no_bytes_are_refused_as_pixels() {
        let random = Generator::new(0);
        let longs = Tensor::new([[0, 255]]).unwrap();
        assert_eq!(
            ToTensor.apply(longs.clone(), &random).unwrap_err().to_string(),
            "to_tensor: the image is int64, but pixels must be uint8; use to_dtype(DType::U8)"
        );
        assert!(ToFloat.apply(longs, &random).unwrap_err().to_string().starts_with("to_float: the image is int64"));
    }

    #[test]
    fn images_keep_their_precision() {
        let random = Generator::new(3);
        let third = Normalize { mean: [0.5; 2], std: [3.0; 2] };
        let crop = RandomCrop::new([2, 2]);
        let turn = RandomAffine { translate: [0.1, 0.1], scale: 0.9..=1.1, ..RandomAffine::new(10.0) };
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let image = numbered().to_dtype(dtype).unwrap();
            let normal = third.apply(image.clone(), &random).unwrap();
            assert_eq!(normal.dtype(), dtype);
            let exact = Tensor::of(dtype).new([(7.0 - 0.5) / 3.0]).unwrap().item::<f64>().unwrap();
            assert_eq!(normal.to_vec::<f64>().unwrap()[7], exact, "{dtype}");
            for made in [crop.apply(image.clone(), &random), turn.apply(image, &random)] {
                assert_eq!(made.unwrap().dtype(), dtype);
            }
        }
    }
}
