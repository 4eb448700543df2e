//! [`Digits`]: labeled 28 × 28 gray images as bytes. [`DigitSet`]: the parts for training, validation and testing.
//!
//! Images stay at one byte per pixel, a quarter of the size of `f32`. As a [`Dataset`], `Digits` gathers and converts
//! a batch in one pass; [`Digits::flat`] and [`Digits::planes`] convert everything at once.
//!
//! Pixels become floats in [0, 1) by dividing by 256, as in the pickle that PyTorch's tutorial starts from.

use std::fmt;
use std::hint::black_box;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use pagelock_memory::{HostBuffer, default_host, holder};
use pagelock_tensor::{Element, Int, Tensor};

use crate::dataset::{Dataset, check_index, check_range};
use crate::elements::for_each_pair;
use crate::identity::checksum;
use crate::{Error, Result};

/// Pixels along one side of an image.
pub(crate) const SIDE: usize = 28;
/// Pixels, and bytes, of one image.
pub(crate) const PIXELS: usize = SIDE * SIDE;
/// How many different digits there are.
const N_CLASSES: u8 = 10;

/// Gray images of 28 × 28 bytes (0 is paper, 255 is ink) with a label from 0 to 9 each.
///
/// Cloning and slicing are cheap: the bytes are shared.
///
/// # Examples
/// As a dataset, a sample is an image `[1, 28, 28]` in [0, 1) and its label:
/// ```
/// use pagelock_data::{DataLoader, Digits, SyntheticDigits};
///
/// let digits = SyntheticDigits::new(1).train_len(100).test_len(10).generate()?;
/// for batch in &DataLoader::new(digits.train).batch_size(32) {
///     let (images, labels) = batch?;
///     assert_eq!(images.dims()[1..], [1, 28, 28]);
///     assert_eq!(labels.dims(), [images.dims()[0]]);
/// }
///
/// let two = Digits::new(&[200; 2 * 784], &[7, 3])?;
/// assert_eq!((two.len(), two.image_bytes().len(), two.label_bytes()), (2, 2 * 784, &[7, 3][..]));
/// assert_eq!((two.planes()?.dims(), two.labels()?.to_vec::<i64>()?), (&[2, 1, 28, 28][..], vec![7, 3]));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone)]
pub struct Digits {
    images: Arc<HostBuffer>,
    labels: Arc<HostBuffer>,
    /// The images of the buffers that belong to this slice.
    range: Range<usize>,
}

impl Digits {
    /// Copies `images`, row-major and one after another, and one label for each.
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths do not match, a label is above 9, or there are no images; [`Error::Memory`]
    /// if the budget of host memory refuses.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::Digits;
    ///
    /// let two_blank_images = Digits::new(&[0; 2 * 784], &[0, 1])?;
    /// assert_eq!(two_blank_images.len(), 2);
    ///
    /// assert_eq!(
    ///     Digits::new(&[0; 784], &[11]).err().unwrap().to_string(),
    ///     "label 0 is 11, and digits are 0 to 9; check that images and labels are not swapped",
    /// );
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn new(images: &[u8], labels: &[u8]) -> Result<Self> {
        if images.len() != labels.len().saturating_mul(PIXELS) {
            return Err(Error::Argument(format!(
                "{} bytes of images and {} labels do not fit together; give {PIXELS} bytes and one label per image",
                images.len(),
                labels.len()
            )));
        }
        check_labels(labels)?;
        Self::build(labels.len(), |image_bytes, label_bytes| {
            image_bytes.copy_from_slice(images);
            label_bytes.copy_from_slice(labels);
        })
    }

    /// Takes ownership of `images` and `labels`, whose lengths match.
    pub(crate) fn from_buffers(images: HostBuffer, labels: HostBuffer) -> Result<Self> {
        check_labels(labels.bytes())?;
        let range = 0..labels.len_bytes();
        Ok(Self { images: Arc::new(images), labels: Arc::new(labels), range })
    }

    /// `n_images` images and labels, written by `fill` into memory that is charged to the budget of host memory.
    pub(crate) fn build(n_images: usize, fill: impl FnOnce(&mut [u8], &mut [u8])) -> Result<Self> {
        if n_images == 0 {
            return Err(Error::empty_dataset());
        }
        let _charged = holder("digits");
        let mut images = HostBuffer::allocate(default_host(), n_images.saturating_mul(PIXELS))?;
        let mut labels = HostBuffer::allocate(default_host(), n_images)?;
        fill(&mut images.bytes_mut()?[..n_images * PIXELS], &mut labels.bytes_mut()?[..n_images]);
        Ok(Self { images: Arc::new(images), labels: Arc::new(labels), range: 0..n_images })
    }

    /// How many images there are.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The images in `range`, sharing the bytes.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range does not lie within the images.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::Digits;
    /// let digits = Digits::new(&[0; 3 * 784], &[7, 8, 9])?;
    /// assert_eq!(digits.slice(1..3)?.label_bytes(), [8, 9]);
    /// assert!(digits.slice(1..1)?.is_empty());
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        check_range(&range, self.len())?;
        let range = self.range.start + range.start..self.range.start + range.end;
        Ok(Self { range, ..self.clone() })
    }

    /// All pixels: 784 bytes per image.
    pub fn image_bytes(&self) -> &[u8] {
        &self.images.bytes()[self.range.start * PIXELS..self.range.end * PIXELS]
    }

    /// All labels, from 0 to 9.
    pub fn label_bytes(&self) -> &[u8] {
        &self.labels.bytes()[self.range.clone()]
    }

    /// The same digits as a dataset of bytes, which the device converts to floats: a quarter of the bytes to copy.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{DataLoader, Digits};
    ///
    /// let digits = Digits::new(&[128; 3 * 784], &[7, 3, 1])?;
    /// for batch in &DataLoader::new(digits.bytes()).batch_size(2) {
    ///     let (images, labels) = batch?; // of u8 and i64
    ///     let images = images.scaled(1.0 / 256.0)?;
    ///     assert!(images.to_vec::<f32>()?.iter().all(|&pixel| pixel == 0.5));
    /// }
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn bytes(&self) -> DigitBytes {
        DigitBytes { digits: self.clone() }
    }

    /// All images as rows of floats in [0, 1): `[n, 784]`.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the budget of host memory refuses.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::Digits;
    /// let rows = Digits::new(&[128; 2 * 784], &[7, 3])?.flat()?;
    /// assert_eq!(rows.dims(), [2, 784]);
    /// assert!(rows.to_vec::<f32>()?.iter().all(|&pixel| pixel == 0.5));
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn flat(&self) -> Result<Tensor> {
        Ok(Tensor::build([self.len(), PIXELS], |out| to_unit(self.image_bytes(), out))?)
    }

    /// All images as one plane of floats in [0, 1) each: `[n, 1, 28, 28]`.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the budget of host memory refuses.
    pub fn planes(&self) -> Result<Tensor> {
        Ok(Tensor::build([self.len(), 1, SIDE, SIDE], |out| to_unit(self.image_bytes(), out))?)
    }

    /// All labels as class indices: `[n]`.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the budget of host memory refuses.
    pub fn labels(&self) -> Result<Tensor<Int>> {
        Ok(Tensor::build(self.len(), |out: &mut [i64]| {
            for (out, &label) in out.iter_mut().zip(self.label_bytes()) {
                *out = label.into();
            }
        })?)
    }
}

impl Digits {
    /// The images of these indices, each written by `write`, and their labels.
    fn pick<E: Element>(
        &self,
        indices: &[usize],
        write: impl Fn(&[u8], &mut [E]),
    ) -> Result<(Tensor<E::Kind>, Tensor<Int>)> {
        for &index in indices {
            check_index(index, self.len())?;
        }
        let (images, labels) = (self.image_bytes(), self.label_bytes());
        let row = |index: usize| &images[index * PIXELS..][..PIXELS];
        touch(indices.iter().map(|&index| row(index)));
        let batch = Tensor::build([indices.len(), 1, SIDE, SIDE], |out: &mut [E]| {
            for (out, &index) in out.chunks_exact_mut(PIXELS).zip(indices) {
                write(row(index), out);
            }
        })?;
        let targets = Tensor::build(indices.len(), |out: &mut [i64]| {
            for (out, &index) in out.iter_mut().zip(indices) {
                *out = labels[index].into();
            }
        })?;
        Ok((batch, targets))
    }
}

impl fmt::Debug for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digits({} images)", self.len())
    }
}

impl Dataset for Digits {
    type Sample = (Tensor, Tensor<Int>);

    fn len(&self) -> usize {
        self.range.len()
    }

    fn get(&self, index: usize) -> Result<Self::Sample> {
        check_index(index, self.len())?;
        let digit = self.slice(index..index + 1)?;
        Ok((digit.planes()?.select(0, 0)?, digit.labels()?.select(0, 0)?))
    }

    fn gather(&self, indices: &[usize]) -> Result<Option<Self::Sample>> {
        self.pick(indices, to_unit).map(Some)
    }

    fn identity(&self) -> String {
        format!("digits, {} of images, {} of labels", checksum([self.image_bytes()]), checksum([self.label_bytes()]))
    }
}

/// Digits whose images stay bytes; see [`Digits::bytes`].
///
/// A sample is an image `[1, 28, 28]` of bytes and its label.
#[derive(Clone, Debug)]
pub struct DigitBytes {
    digits: Digits,
}

impl Dataset for DigitBytes {
    type Sample = (Tensor<Int>, Tensor<Int>);

    fn len(&self) -> usize {
        self.digits.len()
    }

    fn get(&self, index: usize) -> Result<Self::Sample> {
        let (image, label) = self.digits.pick(&[index], |image, out: &mut [u8]| out.copy_from_slice(image))?;
        Ok((image.select(0, 0)?, label.select(0, 0)?))
    }

    fn gather(&self, indices: &[usize]) -> Result<Option<Self::Sample>> {
        self.digits.pick(indices, |image, out: &mut [u8]| out.copy_from_slice(image)).map(Some)
    }

    fn identity(&self) -> String {
        self.digits.identity()
    }
}

/// A digit data set in three parts, and where it comes from.
///
/// It prints as one line with the origin and the sizes of the parts. `{:#}` adds why MNIST could not be used, if it
/// was requested.
///
/// # Examples
/// ```
/// use pagelock_data::SyntheticDigits;
///
/// let digits = SyntheticDigits::new(1).train_len(600).test_len(100).generate()?;
/// assert_eq!((digits.train.len(), digits.valid.len(), digits.test.len()), (500, 100, 100));
/// assert_eq!(
///     digits.to_string(),
///     "generated digits (seed 1): 500 images to train, 100 to validate, 100 to test",
/// );
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DigitSet {
    /// For training: the first five sixths of the training file (MNIST: the first 50,000 images), as in the tutorial.
    pub train: Digits,
    /// For validation: the rest of the training file (MNIST: the last 10,000 images).
    pub valid: Digits,
    /// For testing: the test file.
    pub test: Digits,
    /// Where the images come from.
    pub origin: Origin,
}

/// Where a [`DigitSet`] comes from.
///
/// # Examples
/// ```
/// use pagelock_data::{Origin, SyntheticDigits};
///
/// let digits = SyntheticDigits::new(3).train_len(60).test_len(10).generate()?;
/// assert_eq!(digits.origin, Origin::Generated { seed: 3, instead: None });
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Read from the files of a folder.
    Mnist {
        /// The folder.
        folder: PathBuf,
    },
    /// Fashion-MNIST, read from the files of a folder.
    Fashion {
        /// The folder.
        folder: PathBuf,
    },
    /// Drawn by [`SyntheticDigits`](crate::SyntheticDigits).
    Generated {
        /// The seed.
        seed: u64,
        /// Why MNIST was not used, if it was requested.
        instead: Option<String>,
    },
}

impl DigitSet {
    /// Cuts the validation part off `training`, which needs at least six images for that.
    pub(crate) fn split(training: Digits, test: Digits, origin: Origin) -> Result<Self> {
        let n_valid = training.len() / 6;
        if n_valid == 0 {
            let n_images = training.len();
            return Err(Error::Argument(format!(
                "{n_images} training images are too few to keep a sixth for validation; use at least 6"
            )));
        }
        let n_train = training.len() - n_valid;
        let (train, valid) = (training.slice(0..n_train)?, training.slice(n_train..training.len())?);
        Ok(Self { train, valid, test, origin })
    }
}

impl fmt::Display for DigitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Mnist { folder } => write!(f, "MNIST from {}", folder.display())?,
            Origin::Fashion { folder } => write!(f, "Fashion-MNIST from {}", folder.display())?,
            Origin::Generated { seed, .. } => write!(f, "generated digits (seed {seed})")?,
        }
        let (train, valid, test) = (self.train.len(), self.valid.len(), self.test.len());
        write!(f, ": {train} images to train, {valid} to validate, {test} to test")?;
        match &self.origin {
            Origin::Generated { instead: Some(why), .. } if f.alternate() => {
                write!(f, "\n  MNIST could not be used: {}", why.replace("; ", ";\n  "))
            }
            _ => Ok(()),
        }
    }
}

fn check_labels(labels: &[u8]) -> Result<()> {
    match labels.iter().position(|&label| label >= N_CLASSES) {
        Some(position) => Err(Error::Argument(format!(
            "label {position} is {}, and digits are 0 to 9; check that images and labels are not swapped",
            labels[position]
        ))),
        None => Ok(()),
    }
}

/// Reads one byte of every cache line, so that the cache misses overlap. Without it, the first miss of each row would
/// come after those of the row before. `benches/loader.rs` measures the gain.
fn touch<'a>(rows: impl Iterator<Item = &'a [u8]>) {
    let touched = rows.flat_map(|row| row.iter().step_by(64)).fold(0, |sum, byte| sum ^ byte);
    black_box(touched);
}

/// Bytes to floats in [0, 1).
fn to_unit(pixels: &[u8], out: &mut [f32]) {
    for_each_pair(out, pixels, |out, &pixel| *out = f32::from(pixel) * (1.0 / 256.0)); // exact: a power of two
}
