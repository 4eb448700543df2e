//! Reductions in pairs, and of what is there: means with deviations, both extremes, sums without NaN, counts.

use super::reduce::{Reduced, extreme_of, sum};
use crate::autocast::{no_autocast, prepared};
use crate::element::DType;
use crate::error::Result;
use crate::kind::{Int, Kind, Numeric};
use crate::op::Precision;
use crate::shape::{Axes, AxisSet};
use crate::tensor::{Raw, Tensor};

impl Tensor {
    /// [`std`](Tensor::std) and [`mean`](Tensor::mean) over `axes`.
    ///
    /// # Errors
    /// As [`Tensor::std`].
    pub fn std_mean(&self, axes: impl Axes) -> Result<(Tensor, Tensor)> {
        let axes = axes.resolve("std_mean", self.shape())?;
        Ok((self.std(axes)?, self.mean(axes)?))
    }

    /// [`var`](Tensor::var) and [`mean`](Tensor::mean) over `axes`.
    ///
    /// # Errors
    /// As [`Tensor::var`].
    pub fn var_mean(&self, axes: impl Axes) -> Result<(Tensor, Tensor)> {
        let axes = axes.resolve("var_mean", self.shape())?;
        Ok((self.var(axes)?, self.mean(axes)?))
    }

    /// The sum over `axes` of what is not NaN.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([1.0, f32::NAN, 3.0])?;
    /// assert_eq!((x.nansum(..)?.item::<f32>()?, x.nanmean(..)?.item::<f32>()?), (4.0, 2.0));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn nansum(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.resolve("nansum", self.shape())?;
        no_autocast(|| self.without_nan()?.sum(axes))
    }

    /// The mean over `axes` of what is not NaN; NaN where there is nothing.
    ///
    /// # Errors
    /// As [`Tensor::mean`].
    pub fn nanmean(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.resolve("nanmean", self.shape())?;
        // Sums of halves may be larger than halves are.
        let x = prepared(Precision::Same, self)?;
        no_autocast(|| {
            let wide = x.to_dtype(x.dtype().computing())?;
            let count = count(wide.isnan()?.logical_not()?.raw(), axes)?.converted(wide.dtype())?;
            wide.without_nan()?.sum(axes)?.div(&count.typed())?.to_dtype(x.dtype())
        })
    }
}

impl<K: Numeric> Tensor<K> {
    /// The smallest and the largest element over `axes`: [`amin`](Tensor::amin) and [`amax`](Tensor::amax).
    ///
    /// # Errors
    /// As [`Tensor::amin`].
    pub fn aminmax(&self, axes: impl Axes) -> Result<(Tensor<K>, Tensor<K>)> {
        let reduced = Reduced { axes: axes.resolve("aminmax", self.shape())?, keepdim: false };
        let [least, most] = [false, true].map(|is_max| extreme_of(self.raw(), reduced, is_max).map(Raw::typed));
        Ok((least?, most?))
    }
}

impl<K: Kind> Tensor<K> {
    /// How many elements over `axes` are not 0 (of truth values: true).
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([[0, 5], [7, 1]])?.count_nonzero(1)?.to_vec::<i64>()?, [1, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for axes that there are not.
    pub fn count_nonzero(&self, axes: impl Axes) -> Result<Tensor<Int>> {
        let axes = axes.resolve("count_nonzero", self.shape())?;
        count(&self.raw().without_node(), axes).map(Raw::typed)
    }
}

/// How many elements are not 0.
fn count(x: &Raw, axes: AxisSet) -> Result<Raw> {
    sum(&x.converted(DType::Bool)?.converted(DType::I64)?, Reduced { axes, keepdim: false })
}
