//! [`Auroc`]: the area under the curve of true positives over false positives.

use pagelock_tensor::{self as tensor, DType, Float, Int, Tensor, no_autocast, no_grad};

use super::{Constants, Labels, check_counts, ignore_text, narrowed, one_hot, pieces, read, rows_of_scores, sum};
use crate::setters::setters;
use crate::{Buffer, Error, Module, Result};

/// The area under the receiver operating characteristic: how likely it is that a sample of a class gets a higher
/// probability of that class than a sample of another class. For several classes, the mean over the classes that have
/// some samples, but not all.
///
/// Probabilities are compared with evenly spaced thresholds from 0 to 1, as in torchmetrics with `thresholds`, so the
/// memory does not grow with the number of samples. Two probabilities between the same thresholds count as equal.
/// With 200 thresholds the area is right to about 0.005.
///
/// T. Fawcett, "An introduction to ROC analysis", 2006, <https://doi.org/10.1016/j.patrec.2005.10.010>.
///
/// # Examples
/// ```
/// use pagelock_nn::metrics::Auroc;
/// use pagelock_tensor::Tensor;
///
/// let auroc = Auroc::binary(200)?;
/// auroc.update(&Tensor::new([0.1, 0.4, 0.35, 0.8])?, &Tensor::new([0, 0, 1, 1])?)?;
/// assert_eq!(auroc.compute()?, 0.75);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
#[derive(Module)]
#[module(details = Auroc::details)]
pub struct Auroc {
    /// `[2, n_curves, n_thresholds]`: samples of the class whose probability reaches the threshold, and samples of
    /// others.
    at_least: Buffer<Int>,
    /// `[n_curves, 2]`: samples of the class, and samples of others.
    samples: Buffer<Int>,
    total: Buffer<Int>,
    #[module(skip)]
    ignore_index: Option<i64>,
    #[module(skip)]
    classes: Constants<Int>,
    #[module(skip)]
    thresholds: Constants<Float>,
}

impl Auroc {
    /// For labels 0 and 1, with the probability of label 1.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are fewer than 2 thresholds; [`Error::Tensor`] if the counts do not fit the memory budget.
    pub fn binary(n_thresholds: usize) -> Result<Self> {
        Self::of(1, n_thresholds)
    }

    /// For labels in `0..n_classes` with a probability of each class.
    ///
    /// # Errors
    /// As [`binary`](Self::binary); [`Error::Argument`] if there are fewer than 2 classes.
    pub fn multiclass(n_classes: usize, n_thresholds: usize) -> Result<Self> {
        if n_classes < 2 {
            return Err(Error::Argument(format!(
                "Auroc: there are {n_classes} classes; give at least 2, or use `binary`"
            )));
        }
        Self::of(n_classes, n_thresholds)
    }

    fn of(n_curves: usize, n_thresholds: usize) -> Result<Self> {
        if n_thresholds < 2 {
            return Err(Error::Argument(format!("Auroc: there are {n_thresholds} thresholds; give at least 2")));
        }
        Ok(Self {
            at_least: Buffer::new(Tensor::full([2, n_curves, n_thresholds], 0_i64)?),
            samples: Buffer::new(Tensor::full([n_curves, 2], 0_i64)?),
            total: Buffer::new(Tensor::full((), 0_i64)?),
            ignore_index: None,
            classes: Constants::new(),
            thresholds: Constants::new(),
        })
    }

    /// Counts a batch. `probabilities`: `[..]` of label 1, or `[.., n_classes]`, each from 0 to 1, not logits; `labels`: `[..]`.
    /// A NaN counts as smaller than every threshold.
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not match; [`Error::Tensor`] if the metric is on another device, or
    /// temporaries do not fit the budget. Nothing is counted on an error.
    pub fn update(&self, probabilities: &Tensor, labels: &Tensor<Int>) -> Result<()> {
        let n_curves = self.n_curves();
        let rows = if n_curves == 1 { probabilities.unsqueeze(-1)? } else { probabilities.clone() };
        let rows = rows_of_scores("Auroc", &rows, labels)?;
        if rows.dims()[1] != n_curves {
            let problem = format!("probabilities are of {} classes, but the metric is of {n_curves}", rows.dims()[1]);
            return Err(Error::Argument(format!("Auroc: {problem}; give one for each class")));
        }
        no_grad(|| {
            no_autocast(|| {
                let labels = Labels::new(labels, self.ignore_index)?;
                let (at_least, samples) = self.count(&rows, &labels)?;
                self.at_least.add_(&at_least)?;
                self.samples.add_(&samples)?;
                Ok(labels.add_count_to(&self.total)?)
            })
        })
    }

    /// The counts of a batch: matrix products of ones and zeros, whose sums are exact in `f32`.
    fn count(&self, rows: &Tensor, labels: &Labels) -> tensor::Result<(Tensor<Int>, Tensor<Int>)> {
        let (thresholds, members) = (self.thresholds(rows)?, self.members(labels)?);
        let (n_curves, n_thresholds) = (rows.dims()[1], thresholds.len());
        let (mut at_least, mut samples) = (self.at_least.full_like(0_i64)?, self.samples.full_like(0_i64)?);
        for piece in pieces(rows.dims()[0], n_curves * n_thresholds) {
            let column = narrowed(rows, 0, &piece)?.t()?.unsqueeze(2)?; // [curves, n, 1]
            let reached = column.ge(&thresholds)?.to_float_of(DType::F32)?; // [curves, n, thresholds]
            let members = narrowed(&members, 2, &piece)?; // [curves, 2, n]: of the class, of others
            let counts = members.matmul(&reached)?.to_int()?; // [curves, 2, thresholds]
            at_least = (at_least + counts.transpose(0, 1)?)?;
            samples = (samples + members.sum(-1)?.to_int()?)?;
        }
        Ok((at_least, samples))
    }

    /// `[curves, 2, n]` of `f32`: first 1 where a sample is of the class, then 1 where it is of another class. Both
    /// are 0 for a sample that is left out.
    fn members(&self, labels: &Labels) -> tensor::Result<Tensor> {
        let n_curves = self.n_curves();
        let device = labels.labels.device();
        let classes = self.classes.numbers_below(n_curves.max(2), &device)?; // 0 and 1 for a binary metric
        let classes_of_samples = one_hot(&labels.labels, &classes)?.t()?; // [classes, n]
        let of_class = classes_of_samples.narrow(0, classes.len() - n_curves, n_curves)?; // [curves, n]
        let mut known = classes_of_samples.sum_keepdim(0)?; // 0 for a label that is no class
        if let Some(counted) = &labels.counted {
            known = (known * counted.to_float_of(DType::F32)?)?;
        }
        let of_class = (of_class * &known)?;
        let of_others = (known - &of_class)?;
        Tensor::stack(&[&of_class, &of_others], 1)
    }

    /// `[thresholds]` of `f32`: `0, 1 / (n - 1), .., 1`.
    fn thresholds(&self, rows: &Tensor) -> tensor::Result<Tensor> {
        let n = self.at_least.dims()[2];
        self.thresholds.get(n, &rows.device(), || {
            let thresholds = (0..n).map(|i| i as f32 / (n - 1) as f32).collect();
            Tensor::from_vec::<f32>(thresholds, [n])
        })
    }

    /// The area, from 0 to 1; for several classes the mean over the classes that have some samples, but not all.
    /// Waits for the device.
    ///
    /// # Errors
    /// [`Error::Argument`] if no sample was counted, some had labels that are no classes, or all have the same label.
    pub fn compute(&self) -> Result<f64> {
        let areas: Vec<f64> = self.per_class()?.into_iter().flatten().collect();
        if areas.is_empty() {
            let fix = "the area needs samples with two labels";
            return Err(Error::Argument(format!("Auroc: all samples have one label; {fix}")));
        }
        Ok(areas.iter().sum::<f64>() / areas.len() as f64)
    }

    /// The area of each class; `None` for a class that has no samples, or all of them. A binary metric has one area.
    ///
    /// # Errors
    /// [`Error::Argument`] if no sample was counted, or some had labels that are no classes.
    pub fn per_class(&self) -> Result<Vec<Option<f64>>> {
        let counts = self.at_least.clone().into_elements::<i64>()?;
        let samples = self.samples.clone().into_elements::<i64>()?;
        let classes = self.n_curves().max(2);
        let with_class = sum(samples.iter().step_by(if classes == samples.len() { 1 } else { 2 }));
        check_counts("Auroc", read(&self.total)?, with_class, classes)?;
        let n_thresholds = self.at_least.dims()[2];
        let (of_class, of_others) = counts.split_at(counts.len() / 2);
        let curves = of_class.chunks(n_thresholds).zip(of_others.chunks(n_thresholds));
        let areas = curves.zip(samples.chunks(2)).map(|((of_class, of_others), samples)| {
            let pairs = samples[0] as f64 * samples[1] as f64;
            (pairs > 0.0).then(|| area(of_class, of_others) / pairs)
        });
        Ok(areas.collect())
    }

    fn n_curves(&self) -> usize {
        self.samples.dims()[0]
    }

    /// Sets the counts to 0.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the device failed.
    pub fn reset(&self) -> Result<()> {
        let counts = [&self.at_least, &self.samples, &self.total];
        Ok(no_grad(|| counts.into_iter().try_for_each(|count| count.zero_()))?)
    }

    fn details(&self) -> String {
        let (n_curves, n_thresholds) = (self.n_curves(), self.at_least.dims()[2]);
        let classes = if n_curves == 1 { String::new() } else { format!("n_classes={n_curves}, ") };
        format!("{classes}n_thresholds={n_thresholds}{}", ignore_text(self.ignore_index))
    }
}

setters! { Auroc,
    /// Leaves out samples with this label, such as padding.
    ignore_index: i64 => ignore_index = Some(ignore_index);
}

/// The area under the line through (0, 0) and the points of all thresholds, by the trapezoidal rule. Both axes count
/// samples.
fn area(of_class: &[i64], of_others: &[i64]) -> f64 {
    let points = of_others.iter().zip(of_class).map(|(&x, &y)| (x as f64, y as f64));
    let mut area = 0.0;
    let (mut right, mut top) = (0.0, 0.0);
    for (x, y) in points.rev() {
        area += (x - right) * (y + top) / 2.0;
        (right, top) = (x, y);
    }
    area
}
