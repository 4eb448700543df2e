//! Softmax and its logarithm. The largest element is subtracted first, so that nothing overflows.

mod cuda;

use super::scan::Lines;
use crate::autocast;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::element::{DType, Real};
use crate::error::{Error, Result};
use crate::op::{CpuKernel, Derivative, Inputs, Op, PerType, Precision, Saves, apply, per_type};
use crate::tensor::Tensor;

impl Tensor {
    /// exp(x) / Σ exp(x) along `dim`.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such dimension.
    pub fn softmax(&self, dim: isize) -> Result<Tensor> {
        let (x, y) = precisions(self)?;
        x.along("softmax", dim, |x, dim| apply(Softmax::<false> { dim, x: x.dtype(), y }, [x]))
    }

    /// log(exp(x) / Σ exp(x)) along `dim`: more exact than the logarithm of [`Tensor::softmax`].
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[1000.0, 1000.0]])?;
    /// assert_eq!(x.log_softmax(-1)?.to_vec::<f32>()?, [-0.6931472, -0.6931472]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such dimension.
    pub fn log_softmax(&self, dim: isize) -> Result<Tensor> {
        let (x, y) = precisions(self)?;
        x.along("log_softmax", dim, |x, dim| apply(Softmax::<true> { dim, x: x.dtype(), y }, [x]))
    }

    /// Calls `f` with the tensor and the dimension, which is moved to the end beforehand, unless many columns lie side
    /// by side, which are then computed together.
    fn along(&self, op: &'static str, dim: isize, f: impl FnOnce(&Tensor, usize) -> Result<Tensor>) -> Result<Tensor> {
        if self.rank() == 0 && matches!(dim, 0 | -1) {
            return f(&self.reshape([1])?, 0)?.reshape(());
        }
        let (dim, last) = (self.shape().dim(op, dim)?, self.rank() - 1);
        let lines = Lines::along(dim, self.shape());
        let are_suitable = match self.device().is_cpu() {
            true => cpu::suits_columns([lines.n, lines.inner], self.dtype()),
            false => cuda::suits(&lines),
        };
        match dim == last || are_suitable {
            true => f(self, dim),
            false => f(&self.transpose(dim as isize, -1)?, last)?.transpose(dim as isize, -1),
        }
    }
}

/// The input, and the precision of the result. Under autocast, kernels of devices read halves and write `f32`; on the CPU the
/// input is converted.
fn precisions(x: &Tensor) -> Result<(Tensor, DType)> {
    let precision = Precision::F32UnderAutocast;
    let y = autocast::wanted(precision, &[x.raw()]).unwrap_or(x.dtype());
    let x = if x.device().is_cpu() { autocast::prepared(precision, x)? } else { x.clone() };
    Ok((x, y))
}

/// The gradient of a result, as the kernels take it.
fn gradient(grad: &Tensor, result: &Tensor) -> Result<Tensor> {
    if grad.device().is_cpu() { grad.to_dtype(result.dtype()) } else { Ok(grad.clone()) }
}

/// Softmax, or its logarithm, along dimension `dim`, from elements of type `x` to elements of type `y`.
struct Softmax<const LOG: bool> {
    dim: usize,
    x: DType,
    y: DType,
}

per_type! { Softmax<false>[1]: Real }
per_type! { Softmax<true>[1]: Real }

impl<const LOG: bool> Op<1> for Softmax<LOG>
where
    Self: PerType<1>,
{
    const NAME: &'static str = if LOG { "log_softmax" } else { "softmax" };
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn cuda_dtype(&self, _: DType) -> DType {
        self.y
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        let lines = Lines::along(self.dim, out.shape());
        cuda::run(device, (<Self as Op<1>>::NAME, <Self as Op<1>>::NAME), lines, inputs, out)
    }
}

impl<const LOG: bool> Derivative<1> for Softmax<LOG>
where
    SoftmaxGrad<LOG>: Op<2> + Derivative<2>,
{
    const SAVES: Saves = Saves::Output;
    const TAKES_HALF_GRADIENTS: bool = true;

    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let grad = gradient(grad, saved.output())?;
        Ok([Some(apply(SoftmaxGrad::<LOG> { dim: self.dim, to: self.x }, [&grad, saved.output()])?)])
    }
}

impl<R: Real, const LOG: bool> CpuKernel<R, 1> for Softmax<LOG> {
    type Out = R;

    fn cpu(&self, [x]: [CpuView<'_, R>; 1], out: StoredMut<'_, R>) -> Result<()> {
        let lines = Lines::along(self.dim, x.shape);
        let op = if LOG { "log_softmax" } else { "softmax" };
        cpu::softmax::<R, LOG>(x.data, [lines.n, lines.inner], out).map_err(Error::scratch(op))
    }
}

/// The gradient of [`Softmax`], with elements of type `to`, from the output's gradient `g` and the output `y`: y · (g
/// − Σ g·y), and for the logarithm g − exp(y) · Σ g.
struct SoftmaxGrad<const LOG: bool> {
    dim: usize,
    to: DType,
}

per_type! { SoftmaxGrad<false>[2]: Real }
per_type! { SoftmaxGrad<true>[2]: Real }

impl<const LOG: bool> Op<2> for SoftmaxGrad<LOG>
where
    Self: PerType<2>,
{
    const NAME: &'static str = if LOG { "log_softmax's gradient" } else { "softmax's gradient" };
    const INPUTS: Inputs = Inputs::WithoutGaps;
    const PRECISION: Precision = Precision::Computing;

    fn cuda_dtype(&self, _: DType) -> DType {
        self.to
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 2], out: CudaOut<'_>) -> Result<()> {
        let kernel = if LOG { "log_softmax_grad" } else { "softmax_grad" };
        cuda::run(device, (<Self as Op<2>>::NAME, kernel), Lines::along(self.dim, out.shape()), inputs, out)
    }
}

impl Derivative<2> for SoftmaxGrad<false> {
    const SAVES: Saves = Saves::Inputs;

    /// With `h` the incoming gradient: y · (h − Σ h·y) for `g`, h·(g − Σ g·y) − g · Σ h·y for `y`.
    fn backward(&self, saved: &Saved<'_, 2>, h: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (g, y, dim) = (saved.input(0), saved.input(1), self.dim as isize);
        let for_y = || {
            let direct = h.mul(&g.sub(&g.mul(y)?.sum_keepdim(dim)?)?)?;
            direct.sub(&g.mul(&h.mul(y)?.sum_keepdim(dim)?)?)
        };
        let for_g = || apply(SoftmaxGrad::<false> { to: g.dtype(), ..*self }, [h, y]);
        Ok([saved.grad_of(0, for_g)?, saved.grad_of(1, for_y)?])
    }
}

impl Derivative<2> for SoftmaxGrad<true> {
    const SAVES: Saves = Saves::Inputs;

    /// With `h` the incoming gradient: h − Σ h·exp(y) for `g`, −h · exp(y) · Σ g for `y`.
    fn backward(&self, saved: &Saved<'_, 2>, h: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (weighted, dim) = (h.mul(&saved.input(1).exp()?)?, self.dim as isize);
        let for_y = || weighted.mul(&saved.input(0).sum_keepdim(dim)?)?.neg();
        Ok([saved.grad_of(0, || h.sub(&weighted.sum_keepdim(dim)?))?, saved.grad_of(1, for_y)?])
    }
}

impl<R: Real, const LOG: bool> CpuKernel<R, 2> for SoftmaxGrad<LOG> {
    type Out = R;

    fn cpu(&self, [g, y]: [CpuView<'_, R>; 2], out: StoredMut<'_, R>) -> Result<()> {
        let lines = Lines::along(self.dim, y.shape);
        let op = if LOG { "log_softmax's gradient" } else { "softmax's gradient" };
        cpu::softmax_grad::<R, LOG>(y.data, g.data, [lines.n, lines.inner], out).map_err(Error::scratch(op))
    }
}
