//! A layer's product: `x · weightᵀ + bias` in one operation, and the gradients of weight and bias in another.

use super::{MatMul, cpu, cuda, library};
use crate::autocast::prepared;
use crate::autograd::{Saved, is_grad_enabled};
use crate::cpu::{self as cpu_loops, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::device::Device;
use crate::element::Real;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::op::{CpuKernel, Derivative, Op, Precision, Saves, apply, on_cuda, per_type, same_precision};
use crate::profiler;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

impl Tensor {
    /// `self · weightᵀ + bias`, PyTorch's `linear`.
    ///
    /// - `self`: `[.., in_features]`
    /// - `weight`: `[out_features, in_features]`, `bias`: `[out_features]`
    /// - the result: `[.., out_features]`
    ///
    /// # Errors
    /// [`Error::Argument`] if the numbers of features differ, or the bias does not fit.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let weight = Tensor::new([[1.0, 10.0], [0.0, 1.0]])?;
    /// let y = Tensor::new([1.0, 2.0])?.linear(&weight, Some(&Tensor::new([0.5, 0.0])?))?;
    /// assert_eq!(y.to_vec::<f32>()?, [21.5, 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        if let ([.., features], &[_, expected]) = (self.dims(), weight.dims())
            && *features != expected
        {
            let fix = format!(
                "its last size must be {expected}, that of the weight {}; flatten or reshape it",
                weight.shape()
            );
            return Err(Error::wrong_shape("linear", "the input", self.shape(), fix));
        }
        let [x, weight] = [prepared(Self::LINEAR, self)?, prepared(Self::LINEAR, weight)?];
        let Some(bias) = bias else { return x.matmul(&weight.t()?) };
        x.with_bias(&weight, &prepared(Self::LINEAR, bias)?)
    }

    const LINEAR: Precision = Precision::HalfUnderAutocast;

    /// [`linear`](Self::linear) in the precision of the operands.
    fn with_bias(&self, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let fits = weight.rank() == 2 && **bias.shape() == weight.shape()[..1];
        match self.rank() {
            2 if fits => apply(Linear, [self, weight, bias]),
            3.. if fits => {
                let rows = self.flatten(0, -2)?.with_bias(weight, bias)?;
                rows.reshape_to(self.shape().with(self.rank() - 1, weight.shape()[0]))
            }
            _ => {
                same_precision("linear", &[self.raw(), weight.raw(), bias.raw()])?;
                self.matmul(&weight.t()?)?.add(bias)
            }
        }
    }
}

/// The product of matrices, with a bias.
struct Linear;

per_type! { Linear[3]: Real }

impl Op<3> for Linear {
    const NAME: &'static str = "linear";

    fn out_shape(&self, [x, weight, _]: [&Shape; 3]) -> Result<Shape> {
        match x[1] == weight[1] {
            true => Shape::new(&[x[0], weight[0]]),
            false => Err(Error::inner_sizes(x, &Shape::new(&[weight[1], weight[0]])?)),
        }
    }

    fn flops(&self, [x, weight, _]: [&Shape; 3]) -> u64 {
        [x[0], x[1], weight[0]].into_iter().fold(2, |product, size| product * size as u64)
    }

    fn cuda(&self, device: &CudaDevice, [x, weight, bias]: [CudaView<'_>; 3], out: CudaOut<'_>) -> Result<()> {
        cuda::linear(device, x, weight, bias, out)
    }
}

impl Derivative<3> for Linear {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let (x, weight) = (saved.input(0), saved.input(1));
        let x_grad = saved.grad_of(0, || apply(MatMul, [grad, weight]))?;
        let few = || {
            let [m, n, k] = [weight.shape()[0], weight.shape()[1], x.shape()[0]];
            cuda::has_few_results(m, n) && !library::is_large([m, n, k, 1], x.dtype())
        };
        if let Device::Cuda(device) = grad.storage().device()
            && saved.needs(1)
            && saved.needs(2)
            && !is_grad_enabled()
            && few()
        {
            let both = weight_and_bias_grad(device, grad.raw(), x.raw())?;
            let [weight_grad, bias_grad] = both.split_after(weight.len())?;
            return Ok([x_grad, Some(weight_grad.reshape_to(*weight.shape())?), Some(bias_grad)]);
        }
        let weight_grad = saved.grad_of(1, || apply(MatMul, [&grad.mt()?, x]))?;
        Ok([x_grad, weight_grad, saved.grad_of(2, || grad.sum([0]))?])
    }
}

impl<R: Real> CpuKernel<R, 3> for Linear {
    type Out = R;

    fn cpu(&self, [x, weight, bias]: [CpuView<'_, R>; 3], mut out: StoredMut<'_, R>) -> Result<()> {
        let (m, k, n) = (x.shape[0], x.shape[1], weight.shape[0]);
        let [x_strides, weight_strides] = [x.strides, weight.strides].mapped(|strides| [strides[0], strides[1]]);
        cpu::gemm(m, k, n, x.data, x_strides, weight.data, [weight_strides[1], weight_strides[0]], out.all())
            .map_err(Error::scratch("linear"))?;
        let bias = CpuView { shape: &[m, n], strides: &[0, bias.strides[0]], ..bias };
        cpu_loops::update(out, &[m, n], &[n, 1], [bias], inlined!(|y, [bias]| *y = *y + bias));
        Ok(())
    }
}

const GRADIENT: &str = "linear's gradient";

/// The gradients of weight and bias, one after the other in one tensor on a device.
fn weight_and_bias_grad(device: &CudaDevice, grad: &Raw, x: &Raw) -> Result<Tensor> {
    let shape_and_dtype = (Shape::new(&[grad.shape()[1] * (x.shape()[1] + 1)])?, x.dtype());
    let _running = profiler::op(GRADIENT);
    profiler::count_flops(|| 2 * (grad.shape().elements() * x.shape()[1]) as u64);
    let out = on_cuda(GRADIENT, device, [Some(grad), Some(x)], shape_and_dtype, &mut |inputs, out| {
        let [grad, x] = inputs.cuda_views();
        cuda::weight_and_bias_grad(device, grad, x, out)
    })?;
    Ok(out.typed())
}
