//! [`ConfusionMatrix`]: how often each class was predicted for samples of each class; precision, recall and F1.

use pagelock_tensor::{self as tensor, Int, Tensor, no_autocast, no_grad};

use super::{Constants, Labels, check_counts, ignore_text, narrowed, one_hot, pieces, read, rows_of_scores, sum};
use crate::setters::setters;
use crate::{Buffer, Error, Module, Result};

/// How often each class was predicted for samples of each class.
///
/// # Examples
/// ```
/// use pagelock_nn::metrics::{Averaging, ConfusionMatrix};
/// use pagelock_tensor::Tensor;
///
/// let confusion = ConfusionMatrix::new(3)?;
/// confusion.update_predictions(&Tensor::new([0, 1, 1, 2])?, &Tensor::new([0, 1, 2, 2])?)?;
/// assert_eq!(confusion.counts().to_vec::<i64>()?, [1, 0, 0, 0, 1, 0, 0, 1, 1]); // a row for each label
/// assert_eq!(confusion.accuracy()?, 0.75);
/// assert_eq!(confusion.precision(Averaging::Macro)?, (1.0 + 0.5 + 1.0) / 3.0);
/// assert_eq!(confusion.per_class()?[2].recall, 0.5);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
#[derive(Module)]
#[module(details = ConfusionMatrix::details)]
pub struct ConfusionMatrix {
    counts: Buffer<Int>,
    total: Buffer<Int>,
    #[module(skip)]
    ignore_index: Option<i64>,
    #[module(skip)]
    classes: Constants<Int>,
}

/// How the scores of the classes are averaged, like the argument `average` of scikit-learn and torchmetrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Averaging {
    /// The score of all samples together, which equals the accuracy.
    Micro,
    /// The mean over classes that are among the labels or the predictions.
    Macro,
    /// The mean over classes, weighted by how many samples have each label.
    Weighted,
}

/// How well one class was predicted. A ratio of 0 to 0 counts as 0.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ClassScores {
    /// The share of the samples predicted as this class that have its label.
    pub precision: f64,
    /// The share of the samples with this label that were predicted as this class.
    pub recall: f64,
    /// The harmonic mean of precision and recall.
    pub f1: f64,
    /// How many samples have this label.
    pub support: u64,
}

impl ConfusionMatrix {
    /// A matrix of zeros, for labels in `0..n_classes`.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are no classes; [`Error::Tensor`] if the counts do not fit the memory budget.
    pub fn new(n_classes: usize) -> Result<Self> {
        if n_classes == 0 {
            return Err(Error::Argument("ConfusionMatrix: there are 0 classes; give at least 1".to_owned()));
        }
        let counts = Buffer::new(Tensor::full([n_classes, n_classes], 0_i64)?);
        let total = Buffer::new(Tensor::full((), 0_i64)?);
        Ok(Self { counts, total, ignore_index: None, classes: Constants::new() })
    }

    /// Counts a batch. `scores`: `[.., n_classes]`, the largest of which is the prediction; `labels`: `[..]`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not match; [`Error::Tensor`] if the metric is on another device, or
    /// temporaries do not fit the budget. Nothing is counted on an error.
    pub fn update(&self, scores: &Tensor, labels: &Tensor<Int>) -> Result<()> {
        let scores = rows_of_scores("ConfusionMatrix", scores, labels)?;
        let (found, n_classes) = (scores.dims()[1], self.n_classes());
        if found != n_classes {
            let problem = format!("scores have {found} classes, but the matrix has {n_classes}");
            return Err(Error::Argument(format!("ConfusionMatrix: {problem}; make the matrix for {found}")));
        }
        self.update_predictions(&no_grad(|| scores.argmax(-1))?, &labels.reshape([-1])?)
    }

    /// Counts a batch of predicted classes, in the labels' shape.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub fn update_predictions(&self, predictions: &Tensor<Int>, labels: &Tensor<Int>) -> Result<()> {
        if predictions.dims() != labels.dims() {
            let (found, of_labels) = (predictions.shape(), labels.shape());
            return Err(Error::Argument(format!(
                "ConfusionMatrix: predictions are {found}, and labels {of_labels}; give a prediction for each label"
            )));
        }
        no_grad(|| {
            no_autocast(|| {
                let predictions = predictions.reshape([-1])?;
                let labels = Labels::new(labels, self.ignore_index)?;
                self.counts.add_(&self.count(&predictions, &labels)?)?;
                Ok(labels.add_count_to(&self.total)?)
            })
        })
    }

    /// A batch's matrix: products of one-hot rows, exact in `f32` since a piece has at most 2²⁰ samples.
    fn count(&self, predictions: &Tensor<Int>, labels: &Labels) -> tensor::Result<Tensor<Int>> {
        let classes = self.classes.numbers_below(self.n_classes(), &predictions.device())?;
        let counted =
            labels.counted.as_ref().map(|counted| counted.to_float().and_then(|c| c.unsqueeze(1))).transpose()?;
        let mut counts = self.counts.full_like(0_i64)?;
        for piece in pieces(labels.labels.len(), classes.len()) {
            let mut rows = one_hot(&narrowed(&labels.labels, 0, &piece)?, &classes)?;
            if let Some(counted) = &counted {
                rows = (rows * narrowed(counted, 0, &piece)?)?;
            }
            let columns = one_hot(&narrowed(predictions, 0, &piece)?, &classes)?;
            counts = (counts + rows.t()?.matmul(&columns)?.to_int()?)?;
        }
        Ok(counts)
    }

    /// `[n_classes, n_classes]`: in row `i` and column `j`, how many samples with label `i` were predicted as `j`.
    pub fn counts(&self) -> &Tensor<Int> {
        &self.counts
    }

    /// The share of samples whose prediction is right. Waits for the device, as do all results below.
    ///
    /// # Errors
    /// [`Error::Argument`] if no sample was counted, or some had labels or predictions that are no classes.
    pub fn accuracy(&self) -> Result<f64> {
        let classes = self.read()?;
        let right: u64 = classes.iter().map(|class| class.right).sum();
        Ok(ratio(right, support(&classes)))
    }

    /// The share of the samples predicted as a class that have its label, averaged over classes.
    ///
    /// # Errors
    /// As [`accuracy`](Self::accuracy).
    pub fn precision(&self, averaging: Averaging) -> Result<f64> {
        Ok(average(&self.read()?, averaging, |scores| scores.precision))
    }

    /// The share of the samples of a class that were predicted as that class, averaged over classes.
    ///
    /// # Errors
    /// As [`accuracy`](Self::accuracy).
    pub fn recall(&self, averaging: Averaging) -> Result<f64> {
        Ok(average(&self.read()?, averaging, |scores| scores.recall))
    }

    /// The harmonic mean of precision and recall of each class, averaged over classes.
    ///
    /// # Errors
    /// As [`accuracy`](Self::accuracy).
    pub fn f1(&self, averaging: Averaging) -> Result<f64> {
        Ok(average(&self.read()?, averaging, |scores| scores.f1))
    }

    /// The scores of each class.
    ///
    /// # Errors
    /// As [`accuracy`](Self::accuracy).
    pub fn per_class(&self) -> Result<Vec<ClassScores>> {
        Ok(self.read()?.iter().map(ClassCounts::scores).collect())
    }

    /// Sets the counts to 0.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the device failed.
    pub fn reset(&self) -> Result<()> {
        Ok(no_grad(|| self.counts.zero_().and_then(|()| self.total.zero_()))?)
    }

    fn n_classes(&self) -> usize {
        self.counts.dims()[0]
    }

    fn read(&self) -> Result<Vec<ClassCounts>> {
        let n = self.n_classes();
        let counts = self.counts.clone().into_elements::<i64>()?;
        check_counts("ConfusionMatrix", read(&self.total)?, sum(counts.iter()), n)?;
        let class = |class: usize| ClassCounts {
            right: sum(counts[class * n + class..][..1].iter()),
            labels: sum(counts[class * n..][..n].iter()),
            predictions: sum(counts.iter().skip(class).step_by(n)),
        };
        Ok((0..n).map(class).collect())
    }

    fn details(&self) -> String {
        format!("n_classes={}{}", self.n_classes(), ignore_text(self.ignore_index))
    }
}

setters! { ConfusionMatrix,
    /// Leaves out samples with this label, such as padding.
    ignore_index: i64 => ignore_index = Some(ignore_index);
}

/// How many samples of a class there are, by labels and by predictions.
struct ClassCounts {
    right: u64,
    labels: u64,
    predictions: u64,
}

impl ClassCounts {
    fn scores(&self) -> ClassScores {
        let &Self { right, labels, predictions } = self;
        let (precision, recall) = (ratio(right, predictions), ratio(right, labels));
        ClassScores { precision, recall, f1: ratio(2 * right, labels + predictions), support: labels }
    }
}

/// `part / whole`; 0 if the whole is 0.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn support(classes: &[ClassCounts]) -> u64 {
    classes.iter().map(|class| class.labels).sum()
}

fn average(classes: &[ClassCounts], averaging: Averaging, score: fn(&ClassScores) -> f64) -> f64 {
    let scores = |class: &ClassCounts| score(&class.scores());
    match averaging {
        Averaging::Micro => ratio(classes.iter().map(|class| class.right).sum(), support(classes)),
        Averaging::Macro => {
            let present = classes.iter().filter(|class| class.labels + class.predictions > 0);
            present.clone().map(scores).sum::<f64>() / present.count() as f64
        }
        Averaging::Weighted => {
            let weighted: f64 = classes.iter().map(|class| class.labels as f64 * scores(class)).sum();
            weighted / support(classes) as f64
        }
    }
}
