//! [`Accuracy`]: how often the label is among the largest scores.

use pagelock_tensor::{self as tensor, DType, Int, Tensor, add_correct_, no_grad};

use super::{Constants, Labels, check_counts, ignore_text, read, rows_of_scores};
use crate::setters::setters;
use crate::{Buffer, Error, Module, Result};

/// The share of samples whose label has the largest score, or one of the `k` largest.
///
/// Of equal scores the first counts as the largest, as in [`argmax`](Tensor::argmax). A NaN counts as larger than any
/// number. With `k > 1`, a label whose own score is NaN is never among the `k` largest.
///
/// # Examples
/// ```
/// use pagelock_nn::metrics::Accuracy;
/// use pagelock_tensor::Tensor;
///
/// let (scores, labels) = (Tensor::new([[0.1, 0.3, 0.6], [0.5, 0.3, 0.2]])?, Tensor::new([1, 0])?);
/// let (top1, top2) = (Accuracy::new()?, Accuracy::new()?.top_k(2));
/// top1.update(&scores, &labels)?;
/// top2.update(&scores, &labels)?;
/// assert_eq!((top1.compute()?, top2.compute()?), (0.5, 1.0));
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
#[derive(Module)]
#[module(details = Accuracy::details)]
pub struct Accuracy {
    correct: Buffer<Int>,
    total: Buffer<Int>,
    #[module(skip)]
    top_k: usize,
    #[module(skip)]
    ignore_index: Option<i64>,
    #[module(skip)]
    classes: Constants<Int>,
}

setters! { Accuracy,
    /// Counts a sample as correct if its label is among the `top_k` largest scores; 1 by default.
    top_k: usize;
    /// Leaves out samples with this label, such as padding.
    ignore_index: i64 => ignore_index = Some(ignore_index);
}

impl Accuracy {
    /// Counts a sample as correct if its label has the largest score.
    ///
    /// # Errors
    /// [`Error::Tensor`] if two counts do not fit the memory budget.
    pub fn new() -> Result<Self> {
        let zero = || Tensor::full((), 0_i64).map(Buffer::new);
        Ok(Self { correct: zero()?, total: zero()?, top_k: 1, ignore_index: None, classes: Constants::new() })
    }

    /// Counts a batch. `scores`: `[.., classes]`, logits or probabilities; `labels`: `[..]`, each in `0..classes`. On a
    /// GPU, which is not waited for, a label that is no class counts as wrong.
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not match, a label is no class, or there are fewer classes than `top_k`;
    /// [`Error::Tensor`] if the metric is on another device. Nothing is counted on an error.
    pub fn update(&self, scores: &Tensor, labels: &Tensor<Int>) -> Result<()> {
        let scores = rows_of_scores("Accuracy", scores, labels)?;
        let (n_classes, k) = (scores.dims()[1], self.top_k);
        if !(1..=n_classes).contains(&k) {
            return Err(Error::Argument(format!(
                "Accuracy: top_k is {k}; with {n_classes} classes it must be 1 to {n_classes}"
            )));
        }
        if labels.device().is_cpu() {
            self.check_labels(&labels.clone().into_elements()?, n_classes)?;
        }
        if k == 1 && self.ignore_index.is_none() {
            return Ok(add_correct_(&self.correct, &self.total, &scores, &labels.reshape([-1])?)?);
        }
        no_grad(|| {
            let labels = Labels::new(labels, self.ignore_index)?;
            let right = if k == 1 {
                scores.argmax(-1)?.eq(&labels.labels)?.to_int()?
            } else {
                let classes = self.classes.numbers_below(n_classes, &scores.device())?;
                are_among_largest(&scores, &labels.labels, &classes, k)?
            };
            self.correct.add_(&labels.counted(right)?.sum(..)?)?;
            Ok(labels.add_count_to(&self.total)?)
        })
    }

    fn check_labels(&self, labels: &[i64], n_classes: usize) -> Result<()> {
        let is_wrong = |label: i64| !(0..n_classes as i64).contains(&label) && self.ignore_index != Some(label);
        let Some(row) = labels.iter().position(|&label| is_wrong(label)) else { return Ok(()) };
        let (label, fix) = (labels[row], "correct it, or leave it out with `ignore_index`");
        Err(Error::Argument(format!("Accuracy: label {label} in row {row} is not one of {n_classes} classes; {fix}")))
    }

    /// The share of samples counted so far, from 0 to 1. Waits for the device.
    ///
    /// # Errors
    /// [`Error::Argument`] if no sample was counted.
    pub fn compute(&self) -> Result<f64> {
        let (correct, total) = (read(&self.correct)?, read(&self.total)?);
        check_counts("Accuracy", total, total, 0)?;
        Ok(correct as f64 / total as f64)
    }

    /// Sets the counts to 0.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the device failed.
    pub fn reset(&self) -> Result<()> {
        Ok(no_grad(|| self.correct.zero_().and_then(|()| self.total.zero_()))?)
    }

    fn details(&self) -> String {
        format!("top_k={}{}", self.top_k, ignore_text(self.ignore_index))
    }
}

/// 1 for each row of scores in which fewer than `k` scores are larger than the label's, and 0 for the others.
fn are_among_largest(
    scores: &Tensor,
    labels: &Tensor<Int>,
    classes: &Tensor<Int>,
    k: usize,
) -> tensor::Result<Tensor<Int>> {
    let labels = labels.unsqueeze(1)?;
    let own = scores.gather(1, &labels)?;
    let number = |truth: Tensor<_>| truth.to_float_of(DType::F32);
    // Counts scores that are not larger. A comparison with NaN is false, so a NaN counts as larger.
    let smaller = number(scores.lt(&own)?)?;
    let equal_and_not_before = (number(scores.eq(&own)?)? * number(classes.ge(&labels)?)?)?;
    let not_larger = (smaller + equal_and_not_before)?.sum_keepdim(1)?;
    let enough = not_larger.gt(&not_larger.full_like((classes.len() - k) as f64)?)?;
    enough.to_int()?.reshape([-1])
}
