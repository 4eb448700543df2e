//! Metrics that accumulate over batches on the device of the tensors, without waiting for a GPU.
//!
//! Each metric is a module: [`Module::to`](crate::Module::to) moves it, its counts are in its state dict and so in
//! checkpoints, and `update` may be part of a [`CapturedStep`](pagelock_tensor::CapturedStep). Only reading a result
//! waits for the device. Names and definitions are those of torchmetrics and scikit-learn.
//!
//! ```
//! use pagelock_nn::{functional as F, metrics::{Accuracy, MeanMetric}};
//! use pagelock_tensor::Tensor;
//!
//! let (accuracy, loss) = (Accuracy::new()?, MeanMetric::new()?);
//! for labels in [[0, 1], [1, 1]] {
//!     let (scores, labels) = (Tensor::new([[2.0, 1.0], [0.0, 3.0]])?, Tensor::new(labels)?);
//!     accuracy.update(&scores, &labels)?;
//!     loss.update(&F::cross_entropy(&scores, &labels)?)?;
//! }
//! assert_eq!(accuracy.compute()?, 0.75);
//! println!("accuracy {:.2}, loss {:.4}", accuracy.compute()?, loss.compute()?);
//! accuracy.reset()?;
//! # Ok::<(), pagelock_nn::Error>(())
//! ```

// Shared by the metrics: constants to compare with, the preparation of labels, and pieces of a batch.

mod accuracy;
mod auroc;
mod confusion_matrix;
mod mean;

pub use accuracy::Accuracy;
pub use auroc::Auroc;
pub use confusion_matrix::{Averaging, ClassScores, ConfusionMatrix};
pub use mean::MeanMetric;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use pagelock_tensor::{self as tensor, DType, Device, Int, Kind, Tensor};

use crate::{Error, Result};

/// Numbers that a metric compares with, cached on the device of the last call. The first run of a captured step fills
/// the cache.
struct Constants<K: Kind>(Mutex<Option<Tensor<K>>>);

impl<K: Kind> Constants<K> {
    fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// `n` numbers on `device`: those of the last call if it had the same `n` and `device`, else those that `make`
    /// returns.
    fn get(
        &self,
        n: usize,
        device: &Device,
        make: impl FnOnce() -> tensor::Result<Tensor<K>>,
    ) -> tensor::Result<Tensor<K>> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(numbers) = cached.as_ref().filter(|numbers| numbers.len() == n && numbers.device() == *device) {
            return Ok(numbers.clone());
        }
        let numbers = make()?.to(device)?;
        *cached = Some(numbers.clone());
        Ok(numbers)
    }
}

impl Constants<Int> {
    /// `0, 1, .., n - 1` on `device`.
    fn numbers_below(&self, n: usize, device: &Device) -> tensor::Result<Tensor<Int>> {
        self.get(n, device, || Tensor::arange(0_i64, n as i64, 1))
    }
}

/// Labels in one dimension, and which of them are counted.
struct Labels {
    labels: Tensor<Int>,          // [n], i64
    counted: Option<Tensor<Int>>, // [n], 1 where a label is counted, else 0; `None` if all are
}

impl Labels {
    /// Labels equal to `ignored` are not counted. They are replaced by 0, which is a valid class.
    fn new(labels: &Tensor<Int>, ignored: Option<i64>) -> tensor::Result<Self> {
        let labels = labels.to_dtype(DType::I64)?.reshape([-1])?;
        let Some(ignored) = ignored else { return Ok(Self { labels, counted: None }) };
        let counted = labels.ne(&labels.full_like(ignored)?)?.to_int()?;
        Ok(Self { labels: (&labels * &counted)?, counted: Some(counted) })
    }

    /// Adds the number of counted labels to `total`.
    fn add_count_to(&self, total: &Tensor<Int>) -> tensor::Result<()> {
        match &self.counted {
            None => total.add_scalar_(self.labels.len() as i64),
            Some(counted) => total.add_(&counted.sum(..)?),
        }
    }

    /// Sets the values of labels that are not counted to 0.
    fn counted(&self, values: Tensor<Int>) -> tensor::Result<Tensor<Int>> {
        match &self.counted {
            None => Ok(values),
            Some(counted) => values * counted,
        }
    }
}

/// Scores as `[n, classes]`. They must have the labels' dimensions, and the classes as one more at the end.
fn rows_of_scores(metric: &str, scores: &Tensor, labels: &Tensor<Int>) -> Result<Tensor> {
    match scores.dims().split_last() {
        Some((&n_classes, front)) if front == labels.dims() => {
            Ok(scores.detach().reshape([labels.len() as isize, n_classes as isize])?)
        }
        _ => {
            let (found, of_labels) = (scores.shape(), labels.shape());
            let fix = "give scores with the labels' dimensions and a last one for the classes";
            Err(Error::Argument(format!("{metric}: scores are {found}, and labels {of_labels}; {fix}")))
        }
    }
}

/// The most elements of a temporary that compares each sample with each class: 4 MiB of `f32`.
const MAX_ELEMENTS: usize = 1 << 20;

/// Cuts the samples, of `width` elements each, into ranges of at most [`MAX_ELEMENTS`] elements.
fn pieces(n_samples: usize, width: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (MAX_ELEMENTS / width.max(1)).max(1);
    (0..n_samples).step_by(step).map(move |start| start..n_samples.min(start + step))
}

/// The range `piece` along a dimension.
fn narrowed<K: Kind>(tensor: &Tensor<K>, dim: isize, piece: &Range<usize>) -> tensor::Result<Tensor<K>> {
    tensor.narrow(dim, piece.start, piece.len())
}

/// 1 at `[i, labels[i]]` and 0 elsewhere, `[n, classes]` of `f32`; no 1 in the row of a label that is not a class.
fn one_hot(labels: &Tensor<Int>, classes: &Tensor<Int>) -> tensor::Result<Tensor> {
    labels.unsqueeze(1)?.eq(classes)?.to_float_of(DType::F32)
}

/// The ignored label as the metric prints it, if there is one.
fn ignore_text(ignore_index: Option<i64>) -> String {
    ignore_index.map_or_else(String::new, |label| format!(", ignore_index={label}"))
}

/// Reads a count, which waits for the device.
fn read(count: &Tensor<Int>) -> Result<u64> {
    Ok(count.item::<i64>()?.max(0) as u64)
}

/// The sum of counts, of which a checkpoint may have any.
fn sum<'a>(counts: impl Iterator<Item = &'a i64>) -> u64 {
    counts.fold(0, |sum: u64, &count| sum.saturating_add(count.max(0) as u64))
}

/// Returns an error if nothing was counted, or some labels are not classes.
fn check_counts(metric: &str, total: u64, counted: u64, n_classes: usize) -> Result<()> {
    if total == 0 {
        return Err(Error::Argument(format!("{metric} has seen no samples; call `update` first")));
    }
    if counted != total {
        let outside = total.saturating_sub(counted);
        let fix = "check the labels, or leave them out with `ignore_index`";
        let problem = format!("{outside} of {total} samples have a label or a prediction outside 0..{n_classes}");
        return Err(Error::Argument(format!("{metric}: {problem}; {fix}")));
    }
    Ok(())
}
