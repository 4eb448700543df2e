//! The training loop: [`fit`], built on [`loss_batch`], as in PyTorch's "What is torch.nn really?".
//!
//! Batches come from any value for which `&batches` can be iterated over, once per epoch. This crate does not depend
//! on a loader.

use crate::optim::Optimizer;
use crate::{Error, Forward, Module, Result};
use pagelock_tensor::{self as tensor, Tensor, no_grad};
use std::fmt;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The results of an epoch. Losses are means over samples.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Epoch {
    /// The index of the epoch, from 0.
    pub epoch: usize,
    /// The mean of the training losses, each computed before its step.
    pub train_loss: f64,
    /// The loss on the validation batches, after the epoch.
    pub valid_loss: f64,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}: training loss {:.4}, validation loss {:.4}", self.epoch, self.train_loss, self.valid_loss)
    }
}

/// Returns the loss of one batch and its size. With an optimizer, it also takes a step.
///
/// # Errors
/// The errors of the model, the loss and [`Optimizer::step`].
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, Module, functional as F, loss_batch, optim::Sgd};
/// use pagelock_tensor::Tensor;
///
/// let model = Linear::new(784, 10)?;
/// let mut opt = Sgd::new(model.parameters(), 0.5);
/// let (xb, yb) = (Tensor::rand([64, 784])?, Tensor::full(64, 0)?);
/// let (before, size) = loss_batch(&model, F::cross_entropy, &xb, &yb, Some(&mut opt))?;
/// let (after, _) = loss_batch(&model, F::cross_entropy, &xb, &yb, None)?;
/// assert!(after < before);
/// assert_eq!(size, 64);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
pub fn loss_batch<Y, M, L>(
    model: &M,
    loss: L,
    xb: &Tensor,
    yb: &Y,
    opt: Option<&mut dyn Optimizer>,
) -> Result<(f64, usize)>
where
    M: Forward + ?Sized,
    L: Fn(&Tensor, &Y) -> tensor::Result<Tensor>,
{
    let loss = loss(&model.forward(xb)?, yb)?;
    if let Some(opt) = opt {
        loss.backward()?;
        opt.step()?;
        opt.zero_grad();
    }
    Ok((loss.item()?, xb.dims().first().copied().unwrap_or(1)))
}

/// Trains for `epochs` epochs, and validates after each.
///
/// `loss` computes one number from predictions and labels, for example `functional::cross_entropy`. `train` and
/// `valid` are loaders: types for which iterating over `&loader` yields `Result<(Tensor, labels), E>`.
///
/// # Errors
/// [`Error::Batch`] if a loader fails, [`Error::Argument`] if one yields nothing; the errors of [`loss_batch`].
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, Module, fit, functional as F, optim::Sgd};
/// use pagelock_tensor::{Int, Result, Tensor};
///
/// struct Loader(Tensor, Tensor<Int>);
/// impl<'a> IntoIterator for &'a Loader {
///     type Item = Result<(Tensor, Tensor<Int>)>;
///     type IntoIter = std::iter::Once<Self::Item>;
///     fn into_iter(self) -> Self::IntoIter {
///         std::iter::once(Ok((self.0.clone(), self.1.clone())))
///     }
/// }
///
/// let batches = Loader(Tensor::rand([64, 784])?, Tensor::full(64, 0)?);
/// let model = Linear::new(784, 10)?;
/// let mut opt = Sgd::new(model.parameters(), 0.01);
/// let epochs = fit(3, &model, F::cross_entropy, &mut opt, &batches, &batches)?;
/// assert!(epochs[2].valid_loss < epochs[0].valid_loss);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
pub fn fit<Y, M, L, D, V, E, F>(
    epochs: usize,
    model: &M,
    loss: L,
    opt: &mut dyn Optimizer,
    train: &D,
    valid: &V,
) -> Result<Vec<Epoch>>
where
    M: Module + Forward + ?Sized,
    L: Fn(&Tensor, &Y) -> tensor::Result<Tensor>,
    for<'a> &'a D: IntoIterator<Item = Result<(Tensor, Y), E>>,
    for<'a> &'a V: IntoIterator<Item = Result<(Tensor, Y), F>>,
    E: Into<BoxError>,
    F: Into<BoxError>,
{
    fit_with(epochs, model, loss, opt, train, valid, |_| {})
}

/// As [`fit`], and calls `on_epoch` after each epoch, for example to print or plot it.
///
/// # Errors
/// As [`fit`].
pub fn fit_with<Y, M, L, D, V, E, F>(
    epochs: usize,
    model: &M,
    loss: L,
    opt: &mut dyn Optimizer,
    train: &D,
    valid: &V,
    mut on_epoch: impl FnMut(&Epoch),
) -> Result<Vec<Epoch>>
where
    M: Module + Forward + ?Sized,
    L: Fn(&Tensor, &Y) -> tensor::Result<Tensor>,
    for<'a> &'a D: IntoIterator<Item = Result<(Tensor, Y), E>>,
    for<'a> &'a V: IntoIterator<Item = Result<(Tensor, Y), F>>,
    E: Into<BoxError>,
    F: Into<BoxError>,
{
    let mut records = Vec::new();
    for epoch in 0..epochs {
        model.train();
        let train_loss = mean("training", epoch, train, |xb, yb| loss_batch(model, &loss, xb, yb, Some(&mut *opt)))?;
        let valid_loss = validate(model, &loss, valid, epoch)?;
        let record = Epoch { epoch, train_loss, valid_loss };
        on_epoch(&record);
        records.push(record);
    }
    Ok(records)
}

/// The mean loss over all batches, in evaluation mode and without recording a graph. The model stays in evaluation
/// mode.
///
/// # Errors
/// As [`fit`].
pub fn evaluate<Y, M, L, V, E>(model: &M, loss: L, valid: &V) -> Result<f64>
where
    M: Module + Forward + ?Sized,
    L: Fn(&Tensor, &Y) -> tensor::Result<Tensor>,
    for<'a> &'a V: IntoIterator<Item = Result<(Tensor, Y), E>>,
    E: Into<BoxError>,
{
    validate(model, &loss, valid, 0)
}

fn validate<Y, M, L, V, E>(model: &M, loss: &L, valid: &V, epoch: usize) -> Result<f64>
where
    M: Module + Forward + ?Sized,
    L: Fn(&Tensor, &Y) -> tensor::Result<Tensor>,
    for<'a> &'a V: IntoIterator<Item = Result<(Tensor, Y), E>>,
    E: Into<BoxError>,
{
    model.eval();
    no_grad(|| mean("validation", epoch, valid, |xb, yb| loss_batch(model, loss, xb, yb, None)))
}

/// The mean of the losses of all batches, weighted by their sizes.
fn mean<Y, D, E>(
    which: &'static str,
    epoch: usize,
    batches: &D,
    mut batch_loss: impl FnMut(&Tensor, &Y) -> Result<(f64, usize)>,
) -> Result<f64>
where
    for<'a> &'a D: IntoIterator<Item = Result<(Tensor, Y), E>>,
    E: Into<BoxError>,
{
    let (mut total, mut samples) = (0.0, 0);
    for (index, batch) in batches.into_iter().enumerate() {
        let (xb, yb) = batch.map_err(|source| Error::Batch { which, index, epoch, source: source.into() })?;
        let (loss, size) = batch_loss(&xb, &yb)?;
        total += loss * size as f64;
        samples += size;
    }
    if samples == 0 {
        let fix = "check the dataset's length, and `drop_last` against the batch size";
        return Err(Error::Argument(format!("the {which} batches are empty; {fix}")));
    }
    Ok(total / samples as f64)
}
