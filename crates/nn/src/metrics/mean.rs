//! [`MeanMetric`]: the mean of values, such as losses.

use pagelock_tensor::{DType, Float, Tensor, no_grad};

use crate::{Buffer, Error, Module, Result};

/// The weighted mean of all values given so far, such as losses of batches. It sums in `f64`.
///
/// # Examples
/// ```
/// use pagelock_nn::metrics::MeanMetric;
/// use pagelock_tensor::Tensor;
///
/// let loss = MeanMetric::new()?;
/// loss.update_weighted(&Tensor::new(2.0)?, 64.0)?; // the mean of 64 samples
/// loss.update_weighted(&Tensor::new(5.0)?, 32.0)?;
/// assert_eq!(loss.compute()?, 3.0);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
#[derive(Module)]
pub struct MeanMetric {
    sum: Buffer<Float>,
    weight: Buffer<Float>,
}

impl MeanMetric {
    /// A metric without values.
    ///
    /// # Errors
    /// [`Error::Tensor`] if two numbers do not fit the memory budget.
    pub fn new() -> Result<Self> {
        let zero = || Tensor::of(DType::F64).zeros(()).map(Buffer::new);
        Ok(Self { sum: zero()?, weight: zero()? })
    }

    /// Adds every element of `values`, a tensor of any shape.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the metric is on another device. Nothing is added on an error.
    pub fn update(&self, values: &Tensor) -> Result<()> {
        self.update_weighted(values, 1.0)
    }

    /// Adds every element of `values` with a weight.
    ///
    /// # Errors
    /// As [`update`](Self::update); [`Error::Argument`] if the weight is negative or not finite.
    pub fn update_weighted(&self, values: &Tensor, weight: f64) -> Result<()> {
        if !(weight >= 0.0 && weight.is_finite()) {
            return Err(Error::Argument(format!("MeanMetric: a weight is {weight}; give a finite one of at least 0")));
        }
        no_grad(|| {
            let sum = values.detach().to_dtype(DType::F64)?.sum(..)?;
            self.sum.add_scaled_(&sum, weight)?;
            Ok(self.weight.add_scalar_(weight * values.len() as f64)?)
        })
    }

    /// The mean so far. Waits for the device.
    ///
    /// # Errors
    /// [`Error::Argument`] if there were no values, or all had weight 0.
    pub fn compute(&self) -> Result<f64> {
        let (sum, weight) = (self.sum.item::<f64>()?, self.weight.item::<f64>()?);
        if weight == 0.0 {
            return Err(Error::Argument("MeanMetric has seen no values; call `update` first".to_owned()));
        }
        Ok(sum / weight)
    }

    /// Forgets all values.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the device failed.
    pub fn reset(&self) -> Result<()> {
        Ok(no_grad(|| self.sum.zero_().and_then(|()| self.weight.zero_()))?)
    }
}
