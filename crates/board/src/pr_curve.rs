//! Precision and recall at each threshold.

use crate::array::{Array, ToArray};
use crate::error::{Result, ensure};
use crate::proto::{FLOAT, PrCurvePlugin, Tensor, TensorShape, Value};
use crate::step::Step;
use crate::writer::SummaryWriter;

/// TensorBoard's maximum, and PyTorch's default.
const MAX_THRESHOLDS: usize = 127;

/// The least divisor of precision and recall, to avoid a division by zero.
const MINIMUM_COUNT: f64 = 1e-7;

impl SummaryWriter {
    /// Adds the precision and recall of a binary classifier at 127 thresholds. `labels` are 1 for positives and 0 for
    /// negatives; `predictions` are the predicted probabilities of a positive, from 0 to 1.
    ///
    /// # Errors
    /// As [`add_scalar`](Self::add_scalar); [`Error::Argument`](crate::Error::Argument) if there are no predictions,
    /// their number is not that of the labels, a label is neither 0 nor 1, or a prediction is not between 0 and 1.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_board::SummaryWriter;
    /// # let folder = tempfile::tempdir()?;
    /// # let writer = SummaryWriter::new(folder.path())?;
    /// writer.add_pr_curve("is a cat", &[1u8, 0, 1, 1], &[0.9f32, 0.4, 0.6, 0.2], 0)?;
    /// # writer.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_pr_curve(
        &self,
        tag: &str,
        labels: &(impl ToArray + ?Sized),
        predictions: &(impl ToArray + ?Sized),
        step: impl Into<Step>,
    ) -> Result<()> {
        self.add_pr_curve_at(tag, labels, predictions, MAX_THRESHOLDS, step)
    }

    /// [`add_pr_curve`](Self::add_pr_curve) with another number of thresholds, from 2 to 127.
    ///
    /// # Errors
    /// As [`add_pr_curve`](Self::add_pr_curve); also for any other number of thresholds.
    pub fn add_pr_curve_at(
        &self,
        tag: &str,
        labels: &(impl ToArray + ?Sized),
        predictions: &(impl ToArray + ?Sized),
        num_thresholds: usize,
        step: impl Into<Step>,
    ) -> Result<()> {
        let curve = pr_curve(tag, &labels.to_array()?, &predictions.to_array()?, num_thresholds)?;
        let plugin = PrCurvePlugin { num_thresholds: num_thresholds as u32 };
        self.add_value(self.main, Value::of_plugin(tag, "pr_curves", &plugin, Some(curve)), step.into())
    }
}

/// Rows: true positives, false positives, true negatives, false negatives, precision, recall. Columns: thresholds.
fn pr_curve(tag: &str, labels: &Array<'_>, predictions: &Array<'_>, n: usize) -> Result<Tensor> {
    ensure!(
        (2..=MAX_THRESHOLDS).contains(&n),
        "the curve `{tag}` cannot have {n} thresholds, only 2 to {MAX_THRESHOLDS}"
    );
    let (n_labels, n_predictions) = (labels.len(), predictions.len());
    ensure!(n_labels == n_predictions, "the curve `{tag}` has {n_labels} labels for {n_predictions} predictions");
    ensure!(n_labels > 0, "the curve `{tag}` has no predictions");

    let (mut positives, mut negatives) = (vec![0.0; n], vec![0.0; n]);
    for (label, prediction) in (0..n_labels).map(|at| (labels.f64(at), predictions.f32(at))) {
        ensure!(label == 0.0 || label == 1.0, "a label of the curve `{tag}` is {label}, neither 0 nor 1");
        let bucket = (prediction * (n - 1) as f32).floor();
        ensure!(
            (0.0..=1.0).contains(&prediction),
            "a prediction of the curve `{tag}` is {prediction}, not between 0 and 1; use softmax or sigmoid"
        );
        positives[bucket as usize] += label;
        negatives[bucket as usize] += 1.0 - label;
    }
    let (tp, fp) = (suffix_sums(&positives), suffix_sums(&negatives));
    let rest = |sums: &[f64]| sums.iter().map(|sum| sums[0] - sum).collect::<Vec<f64>>();
    let (tn, r#fn) = (rest(&fp), rest(&tp));
    let share = |of: &[f64]| tp.iter().zip(of).map(|(tp, of)| tp / (tp + of).max(MINIMUM_COUNT)).collect::<Vec<f64>>();
    let (precision, recall) = (share(&fp), share(&r#fn));
    let rows = [tp, fp, tn, r#fn, precision, recall];
    let floats = rows.concat().into_iter().map(|value| value as f32).collect();
    Ok(Tensor { dtype: FLOAT, shape: Some(TensorShape::new(&[rows.len(), n])), floats, strings: Vec::new() })
}

/// For each index, the sum of the values from there on.
fn suffix_sums(values: &[f64]) -> Vec<f64> {
    let mut sums = values.to_vec();
    for at in (0..sums.len() - 1).rev() {
        sums[at] += sums[at + 1];
    }
    sums
}
