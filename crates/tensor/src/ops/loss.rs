//! Losses. They are composed of other operations, except the cross entropy of a batch and squared differences on the
//! CPU, whose kernels are in other files.

use crate::autocast::prepared;
use crate::error::{Error, Result};
use crate::kind::Int;
use crate::op::{Precision, apply, widest};
use crate::ops::cross_entropy::cross_entropy;
use crate::ops::huber::Huber;
use crate::ops::mse_loss::squared_distance;
use crate::tensor::Tensor;

/// How the losses of the samples are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// One loss for each sample.
    None,
}

impl Reduction {
    fn apply(self, op: &'static str, losses: Tensor) -> Result<Tensor> {
        match self {
            Reduction::Mean if losses.is_empty() => {
                Err(Error::empty(op, "the batch", "skip empty batches, or use Reduction::Sum"))
            }
            Reduction::Mean => losses.mean(..),
            Reduction::Sum => losses.sum(..),
            Reduction::None => Ok(losses),
        }
    }
}

impl Tensor {
    /// The negative log-likelihood of the right classes.
    ///
    /// - `self`: log-probabilities `[batch, classes]` or `[batch, classes, d1, …]`
    /// - `target`: classes, `[batch]` or `[batch, d1, …]`
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not fit, or for the mean over an empty batch; [`Error::IndexOutOfRange`]
    /// for a class that does not exist.
    pub fn nll_loss(&self, target: &Tensor<Int>, reduction: Reduction) -> Result<Tensor> {
        prepared(Precision::F32UnderAutocast, self)?.nll("nll_loss", target, reduction)
    }

    /// Checks that `target` has this tensor's shape without the classes.
    fn check_target(&self, op: &'static str, target: &Tensor<Int>) -> Result<()> {
        let [_, _, ..] = **self.shape() else {
            let expected = "it must be [batch, classes, …]; unsqueeze a batch dimension".to_string();
            return Err(Error::wrong_shape(op, "the prediction", self.shape(), expected));
        };
        let mut classless = *self.shape();
        classless.remove(1);
        if *target.shape() != classless {
            let expected =
                format!("for predictions {} it must be {classless}, without the class dimension", self.shape());
            return Err(Error::wrong_shape(op, "the target", target.shape(), expected));
        }
        Ok(())
    }

    fn nll(&self, op: &'static str, target: &Tensor<Int>, reduction: Reduction) -> Result<Tensor> {
        self.check_target(op, target)?;
        let picked = self.gather(1, &target.unsqueeze(1)?).map_err(|error| error.of_index_in(op))?;
        reduction.apply(op, picked.squeeze(1)?.neg()?)
    }

    /// Log-softmax over the classes and the negative log-likelihood in one: the loss of classification.
    ///
    /// Shapes as for [`Tensor::nll_loss`], with raw scores (logits) instead of log-probabilities.
    ///
    /// ```
    /// # use pagelock_tensor::{Reduction, Tensor};
    /// let scores = Tensor::new([[0.0, 0.0], [0.0, 0.0]])?;
    /// let labels = Tensor::new([0, 1])?;
    /// assert_eq!(scores.cross_entropy(&labels, Reduction::Mean)?.item::<f32>()?, 2f32.ln());
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::nll_loss`].
    pub fn cross_entropy(&self, target: &Tensor<Int>, reduction: Reduction) -> Result<Tensor> {
        let op = "cross_entropy";
        self.check_target(op, target)?;
        match self.dims() {
            &[batch, classes] if batch * classes > 0 => cross_entropy(self, target, reduction),
            _ => self.log_softmax(1)?.nll(op, target, reduction),
        }
    }

    /// The squared differences to `target`, which has the same shape.
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes differ, or for the mean over no elements.
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let [x, target] = self.with_target("mse_loss", target)?;
        let dtype = widest("mse_loss", &[x.raw(), target.raw()])?;
        let factor = match reduction {
            Reduction::Mean if !x.is_empty() => Some(1.0 / x.len() as f64),
            Reduction::Sum => Some(1.0),
            _ => None,
        };
        if let (Some(factor), true) = (factor, x.device().is_cpu() && target.device().is_cpu()) {
            return squared_distance(&x.to_dtype(dtype)?, &target.to_dtype(dtype)?, factor);
        }
        // In the computing type: squares of halves overflow early, and would be rounded before they are added.
        let difference = x.widened()?.sub(&target.widened()?)?;
        reduction.apply("mse_loss", difference.mul(&difference)?)?.to_dtype(dtype)
    }

    /// `d² / 2` for a difference d to `target` with a magnitude below `delta`, else `delta · (|d| − delta / 2)`. PyTorch's
    /// default for `delta` is 1. The shapes are the same.
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes differ, if `delta` is not above 0, or for the mean over no elements.
    pub fn huber_loss(&self, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
        let op = "huber_loss";
        if delta.is_nan() || delta <= 0.0 {
            return Err(Error::bad_argument(op, "delta", delta, "it must be above 0"));
        }
        let [x, target] = self.with_target(op, target)?;
        reduction.apply(op, apply(Huber::new(delta, 1.0), [&x, &target])?)
    }

    /// `d² / (2 · beta)` for a difference d to `target` with a magnitude below `beta`, else `|d| − beta / 2`. PyTorch's
    /// default for `beta` is 1; 0 gives |d|. The shapes are the same.
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes differ, if `beta` is below 0, or for the mean over no elements.
    pub fn smooth_l1_loss(&self, target: &Tensor, beta: f64, reduction: Reduction) -> Result<Tensor> {
        let op = "smooth_l1_loss";
        if beta.is_nan() || beta < 0.0 {
            return Err(Error::bad_argument(op, "beta", beta, "it must be at least 0"));
        }
        let [x, target] = self.with_target(op, target)?;
        let losses = if beta == 0.0 { x.sub(&target)?.abs()? } else { apply(Huber::new(beta, beta), [&x, &target])? };
        reduction.apply(op, losses)
    }

    /// This prediction and its target, of the same shape, in the precision of losses.
    fn with_target(&self, op: &'static str, target: &Tensor) -> Result<[Tensor; 2]> {
        if self.shape() != target.shape() {
            let expected = format!("it must have the prediction's shape {}; reshape one of them", self.shape());
            return Err(Error::wrong_shape(op, "the target", target.shape(), expected));
        }
        Ok([prepared(Precision::F32UnderAutocast, self)?, prepared(Precision::F32UnderAutocast, target)?])
    }
}
