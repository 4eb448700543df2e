//! Reductions with two results, sums and means that ignore NaN, and counts.

use super::reduce::{Reduced, SUM_OF_ELEMENTS, max, min, reducing, sum};
use crate::autocast::{no_autocast, prepared};
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaReduction, CudaView};
use crate::element::{DType, Real};
use crate::error::Result;
use crate::kind::{Int, Kind, Numeric};
use crate::op::{CpuKernel, Derivative, Op, Precision, Saves, apply, per_type};
use crate::shape::{Axes, AxisSet, Shape};
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

    /// The sum over `axes` of the elements that are not NaN.
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
        apply(NanSum(Reduced { axes: axes.resolve("nansum", self.shape())?, keepdim: false }), [self])
    }

    /// The mean over `axes` of the elements that are not NaN; NaN where there are none.
    ///
    /// # Errors
    /// As [`Tensor::mean`].
    pub fn nanmean(&self, axes: impl Axes) -> Result<Tensor> {
        let axes = axes.resolve("nanmean", self.shape())?;
        // Sums of halves may exceed the range of half types.
        let x = prepared(Precision::Same, self)?;
        no_autocast(|| {
            let wide = x.to_dtype(x.dtype().computing())?;
            let count = count(wide.isnan()?.logical_not()?.raw(), axes)?.converted(wide.dtype())?;
            wide.nansum(axes)?.div(&count.typed())?.to_dtype(x.dtype())
        })
    }
}

struct NanSum(Reduced);

reducing! { NanSum: Real, "nansum", Same, |op| op.0, [],
&CudaReduction { name: "nansum", lift: "is_nan(x) ? R(0) : x", ..SUM_OF_ELEMENTS },
<R: Real> R::Total, |x, out| cpu::reduce(x, op.0.axes.mask(), out, cpu::SumOfNumbers, |sum| sum) }

impl Derivative<1> for NanSum {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let is_nan = saved.input(0).isnan()?;
        Ok([Some(self.0.expand_to_input(grad, saved.shape(0))?.masked_fill(&is_nan, 0.0)?)])
    }
}

impl<K: Numeric> Tensor<K> {
    /// The smallest and the largest element over `axes`: [`amin`](Tensor::amin) and [`amax`](Tensor::amax).
    ///
    /// # Errors
    /// As [`Tensor::amin`].
    pub fn aminmax(&self, axes: impl Axes) -> Result<(Tensor<K>, Tensor<K>)> {
        let reduced = Reduced { axes: axes.resolve("aminmax", self.shape())?, keepdim: false };
        Ok((min(self.raw(), reduced)?.typed(), max(self.raw(), reduced)?.typed()))
    }
}

impl<K: Kind> Tensor<K> {
    /// The number of elements over `axes` that are not 0, or not `false`.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([[0, 5], [7, 1]])?.count_nonzero(1)?.to_vec::<i64>()?, [1, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for axes that do not exist.
    pub fn count_nonzero(&self, axes: impl Axes) -> Result<Tensor<Int>> {
        let axes = axes.resolve("count_nonzero", self.shape())?;
        count(&self.raw().without_node(), axes).map(Raw::typed)
    }
}

/// The number of elements over `axes` that are not 0.
fn count(x: &Raw, axes: AxisSet) -> Result<Raw> {
    sum(&x.converted(DType::Bool)?.converted(DType::I64)?, Reduced { axes, keepdim: false })
}
