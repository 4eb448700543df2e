//! [`Cifar`]: small color photographs of 10 or 100 classes, from the files of CIFAR's binary version.
//!
//! A. Krizhevsky: Learning multiple layers of features from tiny images, 2009; 50,000 training and 10,000 test images of
//! 32 × 32 pixels. `archive.rs` finds or downloads them. A record is one label (CIFAR-100: two, the coarse one first), then 1,024
//! bytes each of red, green and blue.

mod archive;

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use pagelock_memory::{HostBuffer, default_host, holder, open_regular};
use pagelock_tensor::{Int, Tensor};

pub use self::archive::{CifarArchive, CifarFiles, CifarSet};
use crate::dataset::{Dataset, check_index};
use crate::error::Problem;
use crate::identity::checksum;
use crate::{Error, Result};

const SIDE: usize = 32;
const PIXELS: usize = 3 * SIDE * SIDE;
const TRAIN_10: [&str; 5] =
    ["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"];

/// CIFAR-10 or CIFAR-100 in memory, as bytes. A sample is an image `[3, 32, 32]` of `u8` and its label.
///
/// # Examples
/// ```no_run
/// use pagelock_data::{Cifar, DataLoader};
///
/// let train = Cifar::cifar10_train("cifar-10-batches-bin")?; // the folder that the archive unpacks to
/// for batch in &DataLoader::new(train).batch_size(128).shuffle(0).num_workers(4).pin_memory(true) {
///     let (images, labels) = batch?; // [128, 3, 32, 32] of u8, [128] of i64
///     let images = images.scaled(1.0 / 255.0)?;
/// }
/// # Ok::<(), pagelock_data::Error>(())
/// ```
///
/// [`ToFloat`](crate::transforms::ToFloat) shows how to add random changes that differ from epoch to epoch. The
/// identity in a loader's state is the checksum of all images and labels.
#[derive(Clone, Debug)]
pub struct Cifar {
    /// The records of each file.
    files: Arc<[HostBuffer]>,
    layout: Layout,
    n_samples: usize,
}

/// The layout of a record: labels, of which the last is used, then pixels.
#[derive(Clone, Copy, Debug)]
struct Layout {
    n_labels: usize,
    n_classes: u8,
}

impl Layout {
    const CIFAR_10: Self = Self { n_labels: 1, n_classes: 10 };
    const CIFAR_100: Self = Self { n_labels: 2, n_classes: 100 };

    fn record_bytes(self) -> usize {
        self.n_labels + PIXELS
    }

    /// Whether a file of this length consists of whole records.
    fn fits(self, len_bytes: u64) -> bool {
        len_bytes > 0 && len_bytes.is_multiple_of(self.record_bytes() as u64)
    }

    /// Reads `len_bytes` of records, and checks their labels. A failed read is the error that `unreadable` makes.
    fn read(
        self,
        file: &mut impl Read,
        len_bytes: u64,
        unreadable: impl FnOnce(io::Error) -> Error,
    ) -> Result<HostBuffer, Problem> {
        let Self { n_labels, n_classes } = self;
        let mut records = HostBuffer::allocate(default_host(), len_bytes as usize)?;
        file.read_exact(records.bytes_mut()?).map_err(|error| Problem::Other(unreadable(error)))?;
        let labels = records.bytes().chunks_exact(self.record_bytes()).map(|record| record[n_labels - 1]);
        match labels.enumerate().find(|&(_, label)| label >= n_classes) {
            None => Ok(records),
            Some((index, label)) => {
                let problem =
                    format!("its record {index} has the label {label}, but there are only {n_classes} classes");
                Err(problem.into())
            }
        }
    }

    /// Reads a file of the binary version.
    fn open(self, path: &Path) -> Result<HostBuffer> {
        let (mut file, len_bytes) = open_regular(path).map_err(|source| Error::io("open", path, source))?;
        if !self.fits(len_bytes) {
            let problem = format!(
                "it has {len_bytes} bytes, but records of CIFAR-{} take {} bytes each; get the binary version from \
                 https://www.cs.toronto.edu/~kriz/cifar.html again",
                self.n_classes,
                self.record_bytes()
            );
            return Err(Error::content(path, problem));
        }
        let records = self.read(&mut file, len_bytes, |source| Error::io("read", path, source));
        records.map_err(|problem| problem.explained(|what| format!("{what}; get the file again")).at(path))
    }
}

impl Cifar {
    /// The 50,000 training images of CIFAR-10, from the folder that has `data_batch_1.bin` to `data_batch_5.bin`.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be read; [`Error::Content`] if a file is not a whole number of records, or has
    /// a label that is out of range; [`Error::Memory`].
    pub fn cifar10_train(folder: impl AsRef<Path>) -> Result<Self> {
        Self::open(folder.as_ref(), &TRAIN_10, Layout::CIFAR_10)
    }

    /// The 10,000 test images of CIFAR-10, from the folder that has `test_batch.bin`.
    ///
    /// # Errors
    /// As [`cifar10_train`](Self::cifar10_train).
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::Cifar;
    ///
    /// let error = Cifar::cifar10_test("/nowhere").unwrap_err().to_string();
    /// assert!(error.starts_with("cannot open `/nowhere/test_batch.bin`: "), "{error}");
    /// ```
    pub fn cifar10_test(folder: impl AsRef<Path>) -> Result<Self> {
        Self::open(folder.as_ref(), &["test_batch.bin"], Layout::CIFAR_10)
    }

    /// The 50,000 training images of CIFAR-100 with their fine labels, from the folder that has `train.bin`.
    ///
    /// # Errors
    /// As [`cifar10_train`](Self::cifar10_train).
    pub fn cifar100_train(folder: impl AsRef<Path>) -> Result<Self> {
        Self::open(folder.as_ref(), &["train.bin"], Layout::CIFAR_100)
    }

    /// The 10,000 test images of CIFAR-100 with their fine labels, from the folder that has `test.bin`.
    ///
    /// # Errors
    /// As [`cifar10_train`](Self::cifar10_train).
    pub fn cifar100_test(folder: impl AsRef<Path>) -> Result<Self> {
        Self::open(folder.as_ref(), &["test.bin"], Layout::CIFAR_100)
    }

    fn open(folder: &Path, names: &[&str], layout: Layout) -> Result<Self> {
        let _charged = holder("cifar");
        let files = names.iter().map(|name| layout.open(&folder.join(name)));
        Ok(Self::of(files.collect::<Result<_>>()?, layout))
    }

    fn of(files: Vec<HostBuffer>, layout: Layout) -> Self {
        let len_bytes: usize = files.iter().map(HostBuffer::len_bytes).sum();
        Self { files: files.into(), layout, n_samples: len_bytes / layout.record_bytes() }
    }

    fn record(&self, index: usize) -> Result<(&[u8], i64)> {
        check_index(index, self.n_samples)?;
        let mut start = index * self.layout.record_bytes();
        for file in self.files.iter().map(HostBuffer::bytes) {
            if let Some(record) = file.get(start..start + self.layout.record_bytes()) {
                let (labels, pixels) = record.split_at(self.layout.n_labels);
                return Ok((pixels, i64::from(labels[labels.len() - 1])));
            }
            start -= file.len();
        }
        unreachable!("`of` counted {} records", self.n_samples)
    }
}

impl Dataset for Cifar {
    type Sample = (Tensor<Int>, i64);

    fn len(&self) -> usize {
        self.n_samples
    }

    fn get(&self, index: usize) -> Result<(Tensor<Int>, i64)> {
        let (pixels, label) = self.record(index)?;
        Ok((Tensor::from_slice(pixels, [3, SIDE, SIDE])?, label))
    }

    fn gather(&self, indices: &[usize]) -> Result<Option<(Tensor<Int>, Tensor<Int>)>> {
        for &index in indices {
            check_index(index, self.n_samples)?;
        }
        let mut labels = Vec::with_capacity(indices.len());
        let images = Tensor::build([indices.len(), 3, SIDE, SIDE], |out: &mut [u8]| {
            for (image, &index) in out.chunks_exact_mut(PIXELS).zip(indices) {
                if let Ok((pixels, label)) = self.record(index) {
                    image.copy_from_slice(pixels);
                    labels.push(label);
                }
            }
        })?;
        Ok(Some((images, Tensor::from_vec(labels, indices.len())?)))
    }

    fn identity(&self) -> String {
        let n_classes = self.layout.n_classes;
        let checksum = checksum(self.files.iter().map(HostBuffer::bytes));
        format!("CIFAR-{n_classes} of {} images, {checksum}", self.n_samples)
    }
}
