//! Augmentation policies: [`AutoAugment`], [`TrivialAugmentWide`] and [`AugMix`], and the single changes that they
//! and [`RandAugment`](super::RandAugment) apply.

use pagelock_tensor::{AnyTensor, DType, Generator};

use super::color::{
    adjust_brightness, adjust_contrast, adjust_saturation, autocontrast, equalize, invert, posterize, solarize,
};
use super::crop::for_pictures;
use super::filters::adjust_sharpness;
use super::geometry::{Affine, affine, rotate};
use super::image::{Pixel, Pixels, Planes, with_pixels};
use super::mix::shares;
use super::resize::Interpolation;
use super::{below, wrong};
use crate::Result;
use crate::elements::for_each_pair;

for_pictures! { AutoAugment TrivialAugmentWide AugMix }

/// A change of a picture, under torchvision's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Invert,
}

/// The changes of [`RandAugment`](super::RandAugment) and [`TrivialAugmentWide`]. [`AugMix`] leaves out the first, and the
/// last four unless `all_ops`.
pub(super) const CHANGES: [Change; 14] = [
    Change::Identity,
    Change::ShearX,
    Change::ShearY,
    Change::TranslateX,
    Change::TranslateY,
    Change::Rotate,
    Change::Posterize,
    Change::Solarize,
    Change::AutoContrast,
    Change::Equalize,
    Change::Brightness,
    Change::Color,
    Change::Contrast,
    Change::Sharpness,
];

/// The greatest strengths of changes, and how pixels are interpolated and filled.
#[derive(Clone, Copy)]
pub(super) struct Strengths {
    shear: f64,
    /// Pixels to the right and down.
    translate: [f64; 2],
    degrees: f64,
    color: f64,
    /// How many bits stay at the least strength, and how many fewer stay at the greatest.
    bits: [f64; 2],
    sampling: (Interpolation, Option<f64>),
}

impl Strengths {
    /// The strengths of AutoAugment and RandAugment.
    pub(super) fn of_auto_augment(planes: Planes, sampling: (Interpolation, Option<f64>)) -> Self {
        let translate = [planes.width, planes.height].map(|size| 150.0 / 331.0 * size as f64);
        Self { shear: 0.3, translate, degrees: 30.0, color: 0.9, bits: [8.0, 4.0], sampling }
    }

    pub(super) fn of_trivial_augment(sampling: (Interpolation, Option<f64>)) -> Self {
        Self { shear: 0.99, translate: [32.0; 2], degrees: 135.0, color: 0.99, bits: [8.0, 6.0], sampling }
    }

    pub(super) fn of_aug_mix(planes: Planes, sampling: (Interpolation, Option<f64>)) -> Self {
        let translate = [planes.width, planes.height].map(|size| size as f64 / 3.0);
        Self { shear: 0.3, translate, degrees: 30.0, color: 0.9, bits: [4.0, 4.0], sampling }
    }

    /// The picture changed with `part` of the greatest strength, from 0 to 1, in the direction `sign` if a change has
    /// two directions.
    pub(super) fn changed(&self, image: &AnyTensor, change: Change, part: f64, sign: f64) -> Result<AnyTensor> {
        let (interpolation, fill) = self.sampling;
        let moved = |affine_by: Affine| affine(image, &affine_by, interpolation, fill);
        let shear = (sign * self.shear * part).atan().to_degrees();
        let [right, down] = self.translate.map(|most| (sign * most * part).trunc());
        let factor = 1.0 + sign * self.color * part;
        match change {
            Change::Identity => Ok(image.clone()),
            Change::ShearX => moved(Affine { shear: [shear, 0.0], center: Some([0.0; 2]), ..Affine::default() }),
            Change::ShearY => moved(Affine { shear: [0.0, shear], center: Some([0.0; 2]), ..Affine::default() }),
            Change::TranslateX => moved(Affine { translate: [right, 0.0], ..Affine::default() }),
            Change::TranslateY => moved(Affine { translate: [0.0, down], ..Affine::default() }),
            Change::Rotate => rotate(image, sign * self.degrees * part, interpolation, false, fill),
            Change::Brightness => adjust_brightness(image, factor),
            Change::Color => adjust_saturation(image, factor),
            Change::Contrast => adjust_contrast(image, factor),
            Change::Sharpness => adjust_sharpness(image, factor),
            Change::Posterize => posterize(image, (self.bits[0] - self.bits[1] * part).round_ties_even() as u32),
            Change::Solarize => solarize(image, (1.0 - part) * if image.dtype() == DType::U8 { 255.0 } else { 1.0 }),
            Change::AutoContrast => autocontrast(image),
            Change::Equalize => equalize(image),
            Change::Invert => invert(image),
        }
    }
}

/// −1 or 1.
pub(super) fn sign(random: &Generator) -> f64 {
    if random.next_f64() <= 0.5 { -1.0 } else { 1.0 }
}

/// Two changes, each with its probability in tenths, and its strength in ninths of the greatest.
pub(super) type Pair = [(Change, u8, u8); 2];

macro_rules! pairs {
    ($($first:ident $p:literal $ninths:literal, $second:ident $q:literal $ninths_of_second:literal;)*) => {
        &[$([(Change::$first, $p, $ninths), (Change::$second, $q, $ninths_of_second)]),*]
    };
}

// The tables of the paper's appendix. A change that has no strength has a 0.

const IMAGENET: &[Pair] = pairs! {
    Posterize 4 8, Rotate 6 9;
    Solarize 6 5, AutoContrast 6 0;
    Equalize 8 0, Equalize 6 0;
    Posterize 6 7, Posterize 6 6;
    Equalize 4 0, Solarize 2 4;
    Equalize 4 0, Rotate 8 8;
    Solarize 6 3, Equalize 6 0;
    Posterize 8 5, Equalize 10 0;
    Rotate 2 3, Solarize 6 8;
    Equalize 6 0, Posterize 4 6;
    Rotate 8 8, Color 4 0;
    Rotate 4 9, Equalize 6 0;
    Equalize 0 0, Equalize 8 0;
    Invert 6 0, Equalize 10 0;
    Color 6 4, Contrast 10 8;
    Rotate 8 8, Color 10 2;
    Color 8 8, Solarize 8 7;
    Sharpness 4 7, Invert 6 0;
    ShearX 6 5, Equalize 10 0;
    Color 4 0, Equalize 6 0;
    Equalize 4 0, Solarize 2 4;
    Solarize 6 5, AutoContrast 6 0;
    Invert 6 0, Equalize 10 0;
    Color 6 4, Contrast 10 8;
    Equalize 8 0, Equalize 6 0;
};

const CIFAR10: &[Pair] = pairs! {
    Invert 1 0, Contrast 2 6;
    Rotate 7 2, TranslateX 3 9;
    Sharpness 8 1, Sharpness 9 3;
    ShearY 5 8, TranslateY 7 9;
    AutoContrast 5 0, Equalize 9 0;
    ShearY 2 7, Posterize 3 7;
    Color 4 3, Brightness 6 7;
    Sharpness 3 9, Brightness 7 9;
    Equalize 6 0, Equalize 5 0;
    Contrast 6 7, Sharpness 6 5;
    Color 7 7, TranslateX 5 8;
    Equalize 3 0, AutoContrast 4 0;
    TranslateY 4 3, Sharpness 2 6;
    Brightness 9 6, Color 2 8;
    Solarize 5 2, Invert 0 0;
    Equalize 2 0, AutoContrast 6 0;
    Equalize 2 0, Equalize 6 0;
    Color 9 9, Equalize 6 0;
    AutoContrast 8 0, Solarize 2 8;
    Brightness 1 3, Color 7 0;
    Solarize 4 5, AutoContrast 9 0;
    TranslateY 9 9, TranslateY 7 9;
    AutoContrast 9 0, Solarize 8 3;
    Equalize 8 0, Invert 1 0;
    TranslateY 7 9, AutoContrast 9 0;
};

const SVHN: &[Pair] = pairs! {
    ShearX 9 4, Invert 2 0;
    ShearY 9 8, Invert 7 0;
    Equalize 6 0, Solarize 6 6;
    Invert 9 0, Equalize 6 0;
    Equalize 6 0, Rotate 9 3;
    ShearX 9 4, AutoContrast 8 0;
    ShearY 9 8, Invert 4 0;
    ShearY 9 5, Solarize 2 6;
    Invert 9 0, AutoContrast 8 0;
    Equalize 6 0, Rotate 9 3;
    ShearX 9 4, Solarize 3 3;
    ShearY 8 8, Invert 7 0;
    Equalize 9 0, TranslateY 6 6;
    Invert 9 0, Equalize 6 0;
    Contrast 3 3, Rotate 8 4;
    Invert 8 0, TranslateY 0 2;
    ShearY 7 6, Solarize 4 8;
    Invert 6 0, Rotate 8 4;
    ShearY 3 7, TranslateX 9 3;
    ShearX 1 6, Invert 6 0;
    Solarize 7 2, TranslateY 6 7;
    ShearY 8 4, Invert 8 0;
    ShearX 7 9, TranslateY 8 3;
    ShearY 8 5, AutoContrast 7 0;
    ShearX 7 2, Invert 1 0;
};

/// The pictures for which a policy of [`AutoAugment`] was learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoAugmentPolicy {
    /// ImageNet.
    #[default]
    ImageNet,
    /// CIFAR-10.
    Cifar10,
    /// Street View House Numbers.
    Svhn,
}

impl AutoAugmentPolicy {
    pub(super) fn pairs(self) -> &'static [Pair] {
        match self {
            Self::ImageNet => IMAGENET,
            Self::Cifar10 => CIFAR10,
            Self::Svhn => SVHN,
        }
    }
}

/// Applies one of 25 learned pairs of changes, drawn at random, each change with its probability and strength: E. D.
/// Cubuk and others, "AutoAugment: Learning augmentation strategies from data", 2019,
/// <https://arxiv.org/abs/1805.09501>.
///
/// - pictures: `[1 or 3, height, width]`, bytes or floats; the result has the same shape
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{AutoAugment, AutoAugmentPolicy, Transform};
/// use pagelock_tensor::{DType, Generator, Tensor};
///
/// let augment = AutoAugment { policy: AutoAugmentPolicy::Cifar10, ..AutoAugment::default() };
/// let photo = Tensor::of(DType::U8).full([3, 32, 32], 100)?;
/// assert_eq!(augment.apply(photo, &Generator::new(3))?.dims(), [3, 32, 32]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AutoAugment {
    /// The learned policy.
    pub policy: AutoAugmentPolicy,
    /// How pixels are interpolated: `Nearest` or `Bilinear`.
    pub interpolation: Interpolation,
    /// The value of pixels from outside the picture; `None` is 0.
    pub fill: Option<f64>,
}

impl Default for AutoAugment {
    fn default() -> Self {
        Self { policy: AutoAugmentPolicy::ImageNet, interpolation: Interpolation::Nearest, fill: None }
    }
}

impl AutoAugment {
    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        let planes = Planes::of("auto_augment", image.shape())?;
        let strengths = Strengths::of_auto_augment(planes, (self.interpolation, self.fill));
        let pairs = self.policy.pairs();
        pairs[below(random, pairs.len())].into_iter().try_fold(image, |image, (change, tenths, ninths)| {
            let (is_applied, sign) = (random.next_f64() < f64::from(tenths) / 10.0, sign(random));
            if is_applied { strengths.changed(&image, change, f64::from(ninths) / 9.0, sign) } else { Ok(image) }
        })
    }
}

/// Applies one of 14 changes, with a strength from a wide range, both drawn at random: S. G. Müller and F. Hutter,
/// "TrivialAugment: Tuning-free yet state-of-the-art data augmentation", 2021, <https://arxiv.org/abs/2103.10158>.
///
/// - pictures: `[1 or 3, height, width]`, bytes or floats; the result has the same shape
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{Transform, TrivialAugmentWide};
/// use pagelock_tensor::{DType, Generator, Tensor};
///
/// let photo = Tensor::of(DType::U8).full([3, 32, 32], 100)?;
/// assert_eq!(TrivialAugmentWide::default().apply(photo, &Generator::new(3))?.dims(), [3, 32, 32]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TrivialAugmentWide {
    /// How many strengths there are, at least 1.
    pub num_magnitude_bins: usize,
    /// How pixels are interpolated: `Nearest` or `Bilinear`.
    pub interpolation: Interpolation,
    /// The value of pixels from outside the picture; `None` is 0.
    pub fill: Option<f64>,
}

impl Default for TrivialAugmentWide {
    fn default() -> Self {
        Self { num_magnitude_bins: 31, interpolation: Interpolation::Nearest, fill: None }
    }
}

impl TrivialAugmentWide {
    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        if self.num_magnitude_bins == 0 {
            return Err(wrong("trivial_augment_wide: num_magnitude_bins is 0; give at least 1".to_owned()));
        }
        let change = CHANGES[below(random, CHANGES.len())];
        let part = below(random, self.num_magnitude_bins) as f64 / (self.num_magnitude_bins - 1).max(1) as f64;
        Strengths::of_trivial_augment((self.interpolation, self.fill)).changed(&image, change, part, sign(random))
    }
}

/// Mixes a picture with the results of random chains of changes: D. Hendrycks and others, "AugMix: A simple data
/// processing method to improve robustness and uncertainty", 2020, <https://arxiv.org/abs/1912.02781>.
///
/// - pictures: `[1 or 3, height, width]`, bytes or floats; the result has the same shape
///
/// # Examples
/// ```
/// use pagelock_data::transforms::{AugMix, Transform};
/// use pagelock_tensor::{DType, Generator, Tensor};
///
/// let photo = Tensor::of(DType::U8).full([3, 32, 32], 100)?;
/// assert_eq!(AugMix::default().apply(photo, &Generator::new(3))?.dims(), [3, 32, 32]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AugMix {
    /// How strong changes are, from 1 to 10.
    pub severity: usize,
    /// How many chains, from 1 to 100.
    pub mixture_width: usize,
    /// How many changes a chain has, at most 100; `None` draws 1 to 3.
    pub chain_depth: Option<usize>,
    /// The parameter of the distributions of the weights. With 1, all mixtures are equally likely; with less, one of
    /// the pictures dominates.
    pub alpha: f64,
    /// Whether brightness, color, contrast and sharpness are among the changes.
    pub all_ops: bool,
    /// How pixels are interpolated: `Nearest` or `Bilinear`.
    pub interpolation: Interpolation,
    /// The value of pixels from outside the picture; `None` is 0.
    pub fill: Option<f64>,
}

impl Default for AugMix {
    fn default() -> Self {
        Self {
            severity: 3,
            mixture_width: 3,
            chain_depth: None,
            alpha: 1.0,
            all_ops: true,
            interpolation: Interpolation::Bilinear,
            fill: None,
        }
    }
}

impl AugMix {
    fn of_any(&self, image: AnyTensor, random: &Generator) -> Result<AnyTensor> {
        if !(1..=10).contains(&self.severity) {
            return Err(wrong(format!("aug_mix: severity is {}; give one from 1 to 10", self.severity)));
        }
        if !(1..=100).contains(&self.mixture_width) {
            return Err(wrong(format!("aug_mix: mixture_width is {}; give one from 1 to 100", self.mixture_width)));
        }
        if let Some(depth) = self.chain_depth.filter(|&depth| depth > 100) {
            return Err(wrong(format!("aug_mix: chain_depth is {depth}; give one from 0 to 100")));
        }
        let planes = Planes::of("aug_mix", image.shape())?;
        let (_, _counted) = planes.resized("aug_mix", [planes.height, planes.width])?; // for the sum below
        let of_original = shares("aug_mix", random, self.alpha, 2)?[0];
        let mut sum = vec![0.0; planes.channels * planes.len()];
        add(&mut sum, &image, of_original)?;
        for share in shares("aug_mix", random, self.alpha, self.mixture_width)? {
            add(&mut sum, &self.chain(&image, planes, random)?, share * (1.0 - of_original))?;
        }
        with_pixels!("aug_mix", &image, planes.shape(), values => filled(values, &sum))
    }

    fn chain(&self, image: &AnyTensor, planes: Planes, random: &Generator) -> Result<AnyTensor> {
        let strengths = Strengths::of_aug_mix(planes, (self.interpolation, self.fill));
        let changes = if self.all_ops { &CHANGES[1..] } else { &CHANGES[1..10] };
        let depth = self.chain_depth.unwrap_or_else(|| 1 + below(random, 3));
        (0..depth).try_fold(image.clone(), |image, _| {
            let (change, part) = (changes[below(random, changes.len())], below(random, self.severity) as f64 / 9.0);
            strengths.changed(&image, change, part, sign(random))
        })
    }
}

/// Adds a picture to `sum`, weighted.
fn add(sum: &mut [f32], image: &AnyTensor, weight: f64) -> Result<()> {
    let weight = weight as f32;
    let (pixels, _counted) = Pixels::of("aug_mix", image)?;
    match pixels {
        Pixels::Bytes(bytes) => for_each_pair(sum, &bytes, |sum, byte| *sum += weight * byte.float()),
        Pixels::Floats(floats) => for_each_pair(sum, &floats, |sum, float| *sum += weight * float),
    }
    Ok(())
}

fn filled<P: Pixel>(mut values: Vec<P>, sum: &[f32]) -> Vec<P> {
    for_each_pair(&mut values, sum, |value, &sum| *value = P::rounded(sum));
    values
}
