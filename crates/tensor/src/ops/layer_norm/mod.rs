//! Layer normalization: rows with mean 0 and variance 1, and its gradients.
//!
//! The gradients are operations of their own where only their numbers are wanted; where they are differentiated again,
//! they are made of other operations.

mod cuda;

use std::sync::{Arc, OnceLock};

use crate::autocast::autocast_type;
use crate::autograd::{Saved, is_grad_enabled};
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, constant};
use crate::device::Device;
use crate::element::{DType, Real};
use crate::error::{Error, Result};
use crate::op::{CpuKernel, Inputs, Op, Precision, Saves, apply, per_type};
use crate::shape::{IntoShape, MAX_RANK, Shape};
use crate::storage::Fresh;
use crate::tensor::{Raw, Tensor};

const OP: &str = "layer_norm";
const GRADIENT: &str = "layer_norm's gradient";

impl Tensor {
    /// (x − mean) / √(variance + eps) · weight + bias, where mean and variance (of all elements, without Bessel's
    /// correction) are those of the last dimensions, which have the sizes `normalized`.
    ///
    /// - `self`: `[.., normalized]`
    /// - `weight`, `bias`: `normalized`; without them, 1 and 0
    /// - result: as `self`, whose precision it has, but under [`autocast`](crate::autocast). Beside half precision, weight
    ///   and bias may be `f32`
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[1.0, 3.0], [0.0, 100.0]])?;
    /// assert_eq!(x.layer_norm([2], None, None, 0.0)?.to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongShape`] if the last dimensions are not `normalized`, or weight and bias do not have this shape;
    /// [`Error::MixedTypes`] for a weight or a bias of another precision.
    pub fn layer_norm(
        &self,
        normalized: impl IntoShape,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let op = LayerNorm { normalized: normalized.into_shape()?, eps };
        let (own, wide) = (self.dtype(), self.dtype().computing());
        let is_wide = |parameter: &Tensor| parameter.dtype() != own && parameter.dtype() == wide;
        if autocast_type().is_none() && weight.or(bias).is_some_and(is_wide) {
            return self.to_dtype(wide)?.layer_norm(op.normalized, weight, bias, eps)?.to_dtype(own);
        }
        match (weight, bias) {
            (None, None) => apply(op, [self]),
            (Some(weight), None) => apply(op, [self, weight]),
            (Some(weight), Some(bias)) => apply(op, [self, weight, bias]),
            (None, Some(bias)) => {
                op.check(self.shape(), &[&op.normalized, bias.shape()])?;
                apply(op, [self, &bias.ones_like()?, bias])
            }
        }
    }
}

/// Of the input; of input and weight; of input, weight and bias.
#[derive(Clone, Copy)]
struct LayerNorm {
    normalized: Shape,
    eps: f64,
}

impl LayerNorm {
    /// Elements of a row.
    fn row_len(&self) -> usize {
        self.normalized.elements()
    }

    fn eps<R: Real>(&self) -> R {
        R::from_f64(self.eps)
    }

    /// What kernels of a device are told: elements of a row, and the bytes of `eps`.
    fn numbers(&self, dtype: DType) -> (usize, u64) {
        (self.row_len(), constant(dtype, self.eps.into()))
    }

    /// The gradients of weight and bias in one tensor.
    fn parameters_shape(&self) -> Result<Shape> {
        let mut sizes = [2; 1 + MAX_RANK];
        let rank = self.normalized.rank();
        sizes[1..=rank].copy_from_slice(&self.normalized);
        Shape::new(&sizes[..=rank])
    }

    fn check(&self, x: &Shape, parameters: &[&Shape]) -> Result<()> {
        if self.normalized.rank() == 0 || !x.ends_with(&self.normalized) {
            let expected = format!("its last sizes must be those to normalize, {}; reshape it", self.normalized);
            return Err(Error::WrongShape { op: OP, operand: "the input", shape: *x, expected });
        }
        for (operand, shape) in ["the weight", "the bias"].into_iter().zip(parameters) {
            if **shape != self.normalized {
                let expected = format!("it must have the sizes to normalize, {}", self.normalized);
                return Err(Error::WrongShape { op: OP, operand, shape: **shape, expected });
            }
        }
        Ok(())
    }

    /// The gradients of input, weight and bias as results of other operations, in the computing type.
    fn composed(&self, x: &Tensor, weight: Option<&Tensor>, grad: &Tensor) -> Result<[Tensor; 3]> {
        let weight = weight.map(Tensor::widened).transpose()?;
        let [x, weight, bias] = self.composed_of_reals(&x.widened()?, weight.as_ref(), &grad.widened()?)?;
        Ok([x, weight, bias])
    }

    fn composed_of_reals(&self, x: &Tensor, weight: Option<&Tensor>, grad: &Tensor) -> Result<[Tensor; 3]> {
        let (rows, n) = (x.len() / self.row_len().max(1), self.row_len());
        let [flat_x, flat_grad] = [x.reshape_to(Shape::new(&[rows, n])?)?, grad.reshape_to(Shape::new(&[rows, n])?)?];
        let centered = flat_x.sub(&flat_x.mean_keepdim(1)?)?;
        let variance = centered.mul(&centered)?.mean_keepdim(1)?;
        let factor = variance.add_scalar(self.eps)?.pow(-0.5)?;
        let normal = centered.mul(&factor)?;
        let weighted = match weight {
            Some(weight) => flat_grad.mul(&weight.reshape_to(Shape::new(&[n])?)?)?,
            None => flat_grad.clone(),
        };
        let of_mean = weighted.sub(&weighted.mean_keepdim(1)?)?;
        let of_scale = normal.mul(&weighted.mul(&normal)?.mean_keepdim(1)?)?;
        let x_grad = of_mean.sub(&of_scale)?.mul(&factor)?.reshape_to(*x.shape())?;
        let weight_grad = flat_grad.mul(&normal)?.sum(0)?.reshape_to(self.normalized)?;
        Ok([x_grad, weight_grad, flat_grad.sum(0)?.reshape_to(self.normalized)?])
    }

    /// The gradients of weight and bias in operations, for rows that no kernel adds up.
    fn are_summed_by_kernel(&self, x: &Tensor) -> bool {
        match x.storage().device() {
            Device::Cpu => true,
            Device::Cuda(_) => cuda::can_sum(self.row_len(), x.dtype()),
        }
    }

    /// The gradients of `N` inputs: input, weight, bias.
    fn gradients<const N: usize>(&self, saved: &Saved<'_, N>, grad: &Tensor) -> Result<[Option<Tensor>; N]> {
        let (x, weight) = (saved.input(0), (N > 1).then(|| saved.input(1)));
        let wants_parameters = (1..N).any(|i| saved.needs(i));
        if is_grad_enabled() || x.is_empty() || (wants_parameters && !self.are_summed_by_kernel(x)) {
            let mut grads = self.composed(x, weight, grad)?.map(Some).into_iter();
            return Ok(std::array::from_fn(|i| grads.next().flatten().filter(|_| saved.needs(i))));
        }
        let sums = Arc::new(OnceLock::new());
        let x_grad = || {
            let sums = (wants_parameters && x.device().is_cpu()).then(|| (x.dtype(), sums.clone()));
            let op = InputGrad { op: *self, sums };
            match weight {
                Some(weight) => apply(op, [x, grad, weight]),
                None => apply(op, [x, grad]),
            }
        };
        let x_grad = match x.device() {
            Device::Cpu => Some(x_grad()?).filter(|_| saved.needs(0)),
            Device::Cuda(_) => saved.grad_of(0, x_grad)?,
        };
        let sums: Option<Tensor> = match sums.get() {
            Some(sums) => Some(sums.clone().typed()),
            None => wants_parameters.then(|| apply(ParameterGrads(*self), [x, grad])).transpose()?,
        };
        let mut grads = [x_grad, None, None];
        for (i, grad) in grads.iter_mut().enumerate().take(N).skip(1) {
            if let (true, Some(sums)) = (saved.needs(i), &sums) {
                *grad = Some(sums.select(0, i as isize - 1)?);
            }
        }
        let mut grads = grads.into_iter();
        Ok(std::array::from_fn(|_| grads.next().flatten()))
    }
}

macro_rules! layer_norm {
    ($($n:literal)+) => {$(
        per_type! { LayerNorm[$n]: Real }

        impl Op<$n> for LayerNorm {
            const NAME: &'static str = OP;
            const SAVES: Saves = Saves::Inputs;
            const INPUTS: Inputs = Inputs::WithoutGaps;
            const PRECISION: Precision = Precision::F32UnderAutocast;

            fn out_shape(&self, inputs: [&Shape; $n]) -> Result<Shape> {
                self.check(inputs[0], &inputs[1..])?;
                Ok(*inputs[0])
            }

            fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; $n], out: CudaOut<'_>) -> Result<()> {
                match out.shape().elements() {
                    0 => Ok(()),
                    _ => cuda::forward(device, self.numbers(inputs[0].dtype()), inputs[0], &inputs[1..], out),
                }
            }

            fn backward(&self, saved: &Saved<'_, $n>, grad: &Tensor) -> Result<[Option<Tensor>; $n]> {
                self.gradients(saved, grad)
            }
        }

        impl<R: Real> CpuKernel<R, $n> for LayerNorm {
            type Out = R;

            fn cpu(&self, inputs: [CpuView<'_, R>; $n], out: StoredMut<'_, R>) -> Result<()> {
                let parameter = |i: usize| inputs.get(i).map(|parameter| parameter.data);
                let row = (self.row_len(), self.eps());
                cpu::layer_norm(inputs[0].data, [parameter(1), parameter(2)], row, out).map_err(Error::scratch(OP))
            }
        }
    )+};
}

layer_norm!(1 2 3);

/// The gradient of the input: of `[input, gradient of the result]`, or of these and the weight; never recorded.
struct InputGrad {
    op: LayerNorm,
    /// Where the CPU puts the gradients of weight and bias, `[2, normalized]`, which it computes along, if they are wanted.
    sums: Option<(DType, Arc<OnceLock<Raw>>)>,
}

impl InputGrad {
    fn cpu<R: Real>(
        &self,
        inputs: [CpuView<'_, R>; 2],
        weight: Option<CpuView<'_, R>>,
        out: StoredMut<'_, R>,
    ) -> Result<()> {
        let (inputs, weight) = (inputs.map(|input| input.data), weight.map(|weight| weight.data));
        let row = (self.op.row_len(), self.op.eps());
        let Some((dtype, slot)) = &self.sums else {
            return cpu::layer_norm_grad(inputs, weight, row, out, None).map_err(Error::scratch(GRADIENT));
        };
        let mut sums = Fresh::allocate(GRADIENT, self.op.parameters_shape()?, *dtype)?;
        cpu::layer_norm_grad(inputs, weight, row, out, Some(sums.stored())).map_err(Error::scratch(GRADIENT))?;
        let kept = slot.set(sums.share());
        debug_assert!(kept.is_ok(), "an operation runs once");
        Ok(())
    }
}

macro_rules! input_grad {
    ($($n:literal)+) => {$(
        per_type! { InputGrad[$n]: Real }

        impl Op<$n> for InputGrad {
            const NAME: &'static str = GRADIENT;
            const SAVES: Saves = Saves::Nothing;
            const INPUTS: Inputs = Inputs::WithoutGaps;

            fn out_shape(&self, inputs: [&Shape; $n]) -> Result<Shape> {
                Ok(*inputs[0])
            }

            fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; $n], out: CudaOut<'_>) -> Result<()> {
                let weight = inputs.get(2).copied();
                cuda::grad(device, self.op.numbers(inputs[0].dtype()), [inputs[0], inputs[1]], weight, out)
            }

            fn backward(&self, _: &Saved<'_, $n>, _: &Tensor) -> Result<[Option<Tensor>; $n]> {
                unreachable!("a recorded derivative is made of other operations")
            }
        }

        impl<R: Real> CpuKernel<R, $n> for InputGrad {
            type Out = R;

            fn cpu(&self, inputs: [CpuView<'_, R>; $n], out: StoredMut<'_, R>) -> Result<()> {
                self.cpu([inputs[0], inputs[1]], inputs.get(2).copied(), out)
            }
        }
    )+};
}

input_grad!(2 3);

/// The gradients of weight and bias on a device, `[2, normalized]`: of `[input, gradient of the result]`; never recorded.
struct ParameterGrads(LayerNorm);

per_type! { ParameterGrads[2]: Real }

impl Op<2> for ParameterGrads {
    const NAME: &'static str = GRADIENT;
    const SAVES: Saves = Saves::Nothing;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, _: [&Shape; 2]) -> Result<Shape> {
        self.0.parameters_shape()
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 2], out: CudaOut<'_>) -> Result<()> {
        cuda::parameter_grads(device, self.0.numbers(inputs[0].dtype()), inputs, out)
    }

    fn backward(&self, _: &Saved<'_, 2>, _: &Tensor) -> Result<[Option<Tensor>; 2]> {
        unreachable!("a recorded derivative is made of other operations")
    }
}

impl<R: Real> CpuKernel<R, 2> for ParameterGrads {
    type Out = R;

    fn cpu(&self, _: [CpuView<'_, R>; 2], _: StoredMut<'_, R>) -> Result<()> {
        unreachable!("the CPU computes them along with the gradient of the input")
    }
}
