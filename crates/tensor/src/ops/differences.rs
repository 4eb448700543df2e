//! Differences of neighbors, integrals by trapezoids, covariances, distances between whole tensors, bounded norms.

use super::number_like;
use super::rearrange::own_copy;
use super::reduce::{Reduced, sum};
use crate::autocast::{no_autocast, prepared};
use crate::element::Scalar;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::kind::Numeric;
use crate::op::Precision;
use crate::shape::AxisSet;
use crate::tensor::{Raw, Tensor};

impl<K: Numeric> Tensor<K> {
    /// The differences of neighbors along a dimension, taken `n` times; each time the dimension has one entry less.
    /// PyTorch's defaults are 1 and −1.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([1, 4, 9])?.diff(1, -1)?.to_vec::<i64>()?, [3, 5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension.
    pub fn diff(&self, n: usize, dim: isize) -> Result<Tensor<K>> {
        own_copy(self.raw(), diff(self.raw(), n, dim)?)
    }
}

fn diff(x: &Raw, n: usize, dim: isize) -> Result<Raw> {
    let at = x.shape().dim("diff", dim)?;
    // After as many steps as there are entries, none is left.
    (0..n.min(x.shape()[at])).try_fold(x.clone(), |x, _| neighbors(&x, at, Raw::sub))
}

/// `f` of each entry of a dimension and the entry before it.
fn neighbors(x: &Raw, at: usize, f: fn(&Raw, &Raw) -> Result<Raw>) -> Result<Raw> {
    let (dim, rest) = (at as isize, x.shape()[at].saturating_sub(1));
    f(&x.narrow(dim, x.shape()[at] - rest, rest)?, &x.narrow(dim, 0, rest)?)
}

impl Tensor {
    /// The integral of the elements along a dimension, which is removed, by trapezoids of width `dx`. PyTorch's
    /// defaults are 1 and −1.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([1.0, 5.0, 10.0])?.trapezoid(1.0, -1)?.item::<f32>()?, 10.5);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension.
    pub fn trapezoid(&self, dx: f64, dim: isize) -> Result<Tensor> {
        let at = self.shape().dim("trapezoid", dim)?;
        let x = prepared(Precision::F32UnderAutocast, self)?;
        let (x, n, dim) = (x.raw(), x.dims()[at], at as isize);
        let total = |x: &Raw| sum(x, Reduced { axes: AxisSet::one(at), keepdim: false });
        if n < 2 {
            return total(&x.narrow(dim, 0, 0)?).map(Raw::typed);
        }
        // The ends belong to one trapezoid each, all others to two.
        let ends = x.select(dim, 0)?.add(&x.select(dim, -1)?)?.times_scalar(Scalar::Float(0.5))?;
        total(x)?.sub(&ends)?.typed().mul_scalar(dx)
    }

    /// The integrals of [`trapezoid`](Tensor::trapezoid) up to each entry except the first.
    ///
    /// # Errors
    /// As [`Tensor::trapezoid`].
    pub fn cumulative_trapezoid(&self, dx: f64, dim: isize) -> Result<Tensor> {
        let at = self.shape().dim("cumulative_trapezoid", dim)?;
        let x = prepared(Precision::F32UnderAutocast, self)?;
        let pairs: Tensor = neighbors(x.raw(), at, Raw::add)?.typed();
        let areas = pairs.cumsum(at as isize)?;
        if areas.requires_grad() {
            return areas.mul_scalar(dx / 2.0);
        }
        areas.mul_scalar_(dx / 2.0)?; // half the time of a new tensor
        Ok(areas)
    }

    /// The covariances of the rows, which are variables with an observation in each column; for a vector or a single
    /// row, its variance, `[]`. The denominator is n − `correction`, but at least 0; PyTorch's default is 1.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])?;
    /// assert_eq!(x.cov(1.0)?.to_vec::<f32>()?, [1.0, -1.0, -1.0, 1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for more than two dimensions.
    pub fn cov(&self, correction: f64) -> Result<Tensor> {
        if self.rank() > 2 {
            let expected = "it must be a matrix of variables and observations";
            return Err(Error::wrong_shape("cov", "the tensor", self.shape(), expected));
        }
        let x = if self.rank() == 2 { self.clone() } else { self.reshape((1, -1))? };
        let n = x.size(1)? as f64;
        let centered = x.sub(&x.mean_keepdim(1)?)?;
        let cov = no_autocast(|| centered.matmul(&centered.t()?))?.div_scalar((n - correction).max(0.0))?;
        if cov.len() == 1 { cov.reshape(()) } else { Ok(cov) }
    }

    /// The correlations of the rows: [`cov`](Tensor::cov) divided by both standard deviations, clamped to [−1, 1].
    ///
    /// # Errors
    /// As [`Tensor::cov`].
    pub fn corrcoef(&self) -> Result<Tensor> {
        let cov = self.cov(1.0)?;
        if cov.rank() == 0 {
            return cov.div(&cov);
        }
        let deviations = cov.diagonal(0, 0, 1)?.sqrt()?;
        cov.div(&deviations.unsqueeze(1)?)?.div(&deviations)?.clamp(-1.0, 1.0)
    }

    /// The `p`-norm of the difference of two tensors, which broadcast. PyTorch's default is 2.
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not fit.
    pub fn dist(&self, other: &Tensor, p: f64) -> Result<Tensor> {
        let [x, other] = [self, other].mapped(|x| prepared(Precision::F32UnderAutocast, x));
        x?.sub(&other?)?.norm(p, ..)
    }

    /// The tensor, in which entries of a dimension with a `p`-norm above `max_norm` are scaled down to `max_norm`.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or for a bound that is negative or not finite.
    pub fn renorm(&self, p: f64, dim: isize, max_norm: f64) -> Result<Tensor> {
        let at = self.shape().dim("renorm", dim)?;
        if !(0.0..f64::INFINITY).contains(&max_norm) {
            return Err(Error::bad_argument("renorm", "max_norm", max_norm, "it must be finite, and 0 or more"));
        }
        let others: Vec<isize> = (0..self.rank()).filter(|&dim| dim != at).map(|dim| dim as isize).collect();
        no_autocast(|| {
            let norm = self.norm_keepdim(p, &others[..])?;
            // PyTorch's guard against a norm of 0.
            let factor = norm.add_scalar(1e-7)?.scalar_over(Scalar::Float(max_norm))?;
            let one = number_like("renorm", norm.raw(), Scalar::Int(1))?.typed();
            self.mul(&factor.where_cond(&norm.gt_scalar(max_norm)?, &one)?)
        })
    }
}
