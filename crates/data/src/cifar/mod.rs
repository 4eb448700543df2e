//! [`Cifar`]: small color photographs of 10 or 100 classes, from the files of CIFAR's binary version.
//!
//! A. Krizhevsky: Learning multiple layers of features from tiny images, 2009; 50,000 training and 10,000 test images of
//! 32 × 32 pixels. `archive.rs` finds or downloads them. A record is one label (CIFAR-100: two, the coarse one first), then 1,024
//! bytes each of red, green and blue.

mod archive;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagelock_memory::{HostBuffer, default_host, holder, open_regular};
use pagelock_tensor::{Int, Tensor};

pub use self::archive::{CifarArchive, CifarFiles, CifarSet};
use crate::dataset::{Dataset, check_index};
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
    records: Arc<HostBuffer>,
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

    /// What is wrong with the labels of records, if anything is.
    fn wrong_label(self, records: &[u8]) -> Option<String> {
        let Self { n_labels, n_classes } = self;
        let labels = records.chunks_exact(self.record_bytes()).map(|record| record[n_labels - 1]);
        let (index, label) = labels.enumerate().find(|&(_, label)| label >= n_classes)?;
        Some(format!("its record {index} has the label {label}, but there are only {n_classes} classes"))
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
        let record = layout.record_bytes();
        let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
        let mut len_bytes = 0;
        for path in &paths {
            let (_, len) = open_regular(path).map_err(|source| Error::io("open", path, source))?;
            let len = len as usize;
            if len == 0 || !len.is_multiple_of(record) {
                let problem = format!(
                    "it has {len} bytes, but records of CIFAR-{} take {record} bytes each; get the binary version from \
                     https://www.cs.toronto.edu/~kriz/cifar.html again",
                    layout.n_classes
                );
                return Err(Error::content(path, problem));
            }
            len_bytes += len;
        }
        let _charged = holder("cifar");
        let mut records = HostBuffer::allocate(default_host(), len_bytes)?;
        let mut rest = records.bytes_mut()?;
        for path in &paths {
            rest = read_records(path, rest, layout)?;
        }
        Ok(Self { records: Arc::new(records), layout, n_samples: len_bytes / record })
    }

    fn record(&self, index: usize) -> Result<(&[u8], i64)> {
        check_index(index, self.n_samples)?;
        let record = self.layout.record_bytes();
        let bytes = &self.records.bytes()[index * record..][..record];
        let (labels, pixels) = bytes.split_at(self.layout.n_labels);
        Ok((pixels, i64::from(labels[labels.len() - 1])))
    }
}

/// Reads one file into the front of `out`; returns the rest of `out`.
fn read_records<'a>(path: &Path, out: &'a mut [u8], layout: Layout) -> Result<&'a mut [u8]> {
    let failed = |source| Error::io("read", path, source);
    let (mut file, len) = open_regular(path).map_err(failed)?;
    let len = (len as usize).min(out.len());
    let (bytes, rest) = out.split_at_mut(len);
    file.read_exact(bytes).map_err(failed)?;
    match layout.wrong_label(bytes) {
        Some(problem) => Err(Error::content(path, format!("{problem}; get the file again"))),
        None => Ok(rest),
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
        format!("CIFAR-{n_classes} of {} images, {}", self.n_samples, checksum(self.records.bytes()))
    }
}
