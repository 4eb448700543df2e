//! Softmax and its logarithm, computed with the largest element taken away first, so that nothing overflows.

use crate::autograd::Saved;
use crate::cpu::CpuView;
use crate::element::{Element, Float, Num, Real};
use crate::error::Result;
use crate::op::{Inputs, Op, Saves, apply};
use crate::shape::Shape;
use crate::tensor::Tensor;

impl<T: Float> Tensor<T> {
    /// exp(x) / Σ exp(x) along `dim`.
    ///
    /// # Errors
    /// [`Error::NoSuchDim`](crate::Error::NoSuchDim).
    pub fn softmax(&self, dim: isize) -> Result<Tensor<T>> {
        self.along("softmax", dim, |x| apply(Softmax, [x]))
    }

    /// log(exp(x) / Σ exp(x)) along `dim`: more exact than the logarithm of [`Tensor::softmax`].
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[1000.0, 1000.0]])?;
    /// assert_eq!(x.log_softmax(-1)?.to_vec()?, [-0.6931472, -0.6931472]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchDim`](crate::Error::NoSuchDim).
    pub fn log_softmax(&self, dim: isize) -> Result<Tensor<T>> {
        self.along("log_softmax", dim, |x| apply(LogSoftmax, [x]))
    }

    /// Runs what works on the last dimension on dimension `dim`.
    fn along(
        &self,
        op: &'static str,
        dim: isize,
        f: impl FnOnce(&Tensor<T>) -> Result<Tensor<T>>,
    ) -> Result<Tensor<T>> {
        if self.rank() == 0 && matches!(dim, 0 | -1) {
            return f(&self.reshape([1])?)?.reshape([]);
        }
        let dim = self.shape().dim(op, dim)? as isize;
        match self.rank() as isize - 1 - dim {
            0 => f(self),
            _ => f(&self.transpose(dim, -1)?)?.transpose(dim, -1),
        }
    }
}

/// Along the last dimension.
struct Softmax;

impl<T: Float> Op<T, 1> for Softmax {
    type Out = T;
    const NAME: &'static str = "softmax";
    const SAVES: Saves = Saves::Output;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        Ok(*x)
    }

    fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: &mut [T]) -> Result<()> {
        softmax_rows(x.data, x.shape[x.shape.len() - 1], out);
        Ok(())
    }

    /// y · (g − Σ g·y)
    fn backward(&self, saved: &Saved<'_, T, T, 1>, grad: &Tensor<T>) -> Result<[Option<Tensor<T>>; 1]> {
        let y = saved.output();
        let weighted = grad.mul(y)?;
        let grad = weighted.sub(&y.mul(&weighted.sum_keepdim(-1)?)?)?;
        Ok([Some(grad)])
    }
}

/// Along the last dimension.
struct LogSoftmax;

impl<T: Float> Op<T, 1> for LogSoftmax {
    type Out = T;
    const NAME: &'static str = "log_softmax";
    const SAVES: Saves = Saves::Output;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        Ok(*x)
    }

    fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: &mut [T]) -> Result<()> {
        log_softmax_rows(x.data, x.shape[x.shape.len() - 1], out);
        Ok(())
    }

    /// g − exp(y) · Σ g
    fn backward(&self, saved: &Saved<'_, T, T, 1>, grad: &Tensor<T>) -> Result<[Option<Tensor<T>>; 1]> {
        let grad = grad.sub(&saved.output().exp()?.mul(&grad.sum_keepdim(-1)?)?)?;
        Ok([Some(grad)])
    }
}

fn softmax_rows<T: Float>(x: &[T], len: usize, out: &mut [T]) {
    log_softmax_rows(x, len, out);
    out.iter_mut().for_each(|out| *out = T::from_real(out.to_real().exp()));
}

fn log_softmax_rows<T: Float>(x: &[T], len: usize, out: &mut [T]) {
    for (x, out) in x.chunks(len.max(1)).zip(out.chunks_mut(len.max(1))) {
        let largest =
            x.iter().fold(T::Real::LOWEST, |largest, x| if x.to_real() > largest { x.to_real() } else { largest });
        let sum = x.iter().fold(T::Real::ZERO, |sum, x| sum + (x.to_real() - largest).exp()).ln();
        out.iter_mut().zip(x).for_each(|(out, x)| *out = T::from_real(x.to_real() - largest - sum));
    }
}
