//! Layer normalization, which gives rows mean 0 and variance 1, or a mean square of 1 (`rms_norm`), and its
//! gradients.
//!
//! The gradients have their own kernels. They are composed of other operations instead if they are differentiated
//! again, or if a GPU has no kernel that sums the gradients of weight and bias for rows of that length.

mod cuda;

use crate::autocast::autocast_type;
use crate::autograd::{Saved, is_grad_enabled, record};
use crate::cpu;
use crate::device::Device;
use crate::element::{DType, Real};
use crate::error::{Error, Result};
use crate::inlined::{Array, Slice};
use crate::op::{Derivative, Precision, Saves, keeps_for_gradient, on_cpu, on_cuda, prepared};
use crate::shape::{IntoShape, MAX_RANK, Shape};
use crate::storage::{Fresh, FreshCuda};
use crate::tensor::{Raw, Tensor, by_real};

impl Tensor {
    /// (x − mean) / √(variance + eps) · weight + bias, where mean and variance (without Bessel's correction) are
    /// those over the last dimensions, which have the sizes `normalized`.
    ///
    /// - `self`: `[.., normalized]`
    /// - `weight`, `bias`: `normalized`; without them, 1 and 0
    /// - result: the shape of `self`, and its precision except under [`autocast`](crate::autocast). If `self` has half
    ///   precision, weight and bias may be `f32`
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[1.0, 3.0], [0.0, 100.0]])?;
    /// assert_eq!(x.layer_norm([2], None, None, 0.0)?.to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the last dimensions are not `normalized`, or weight and bias do not have this shape;
    /// [`Error::MixedTypes`] for a weight or a bias of another precision.
    pub fn layer_norm(
        &self,
        normalized: impl IntoShape,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        LayerNorm { normalized: normalized.into_shape()?, eps, is_centered: true, statistics: None }
            .run(self, [weight, bias])
    }

    /// x / √(mean of x² + eps) · weight, where the mean is that over the last dimensions, which have the sizes
    /// `normalized`. If `eps` is `None`, it is the machine epsilon of the computing precision: that of `f32` for half
    /// types.
    ///
    /// - `self`: `[.., normalized]`
    /// - `weight`: `normalized`; without it, 1
    /// - result: the shape of `self`, and its precision except under [`autocast`](crate::autocast). If `self` has half
    ///   precision, the weight may be `f32`
    ///
    /// Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", <https://arxiv.org/abs/1910.07467>.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[3.0, -3.0], [0.0, 0.0]])?;
    /// assert_eq!(x.rms_norm([2], None, None)?.to_vec::<f32>()?, [1.0, -1.0, 0.0, 0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::layer_norm`].
    pub fn rms_norm(&self, normalized: impl IntoShape, weight: Option<&Tensor>, eps: Option<f64>) -> Result<Tensor> {
        let eps = eps.unwrap_or(if self.dtype() == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() });
        LayerNorm { normalized: normalized.into_shape()?, eps, is_centered: false, statistics: None }
            .run(self, [weight, None])
    }
}

/// The operation on the input and, if there are any, weight and bias.
#[derive(Clone)]
struct LayerNorm {
    normalized: Shape,
    eps: f64,
    /// Whether the mean is subtracted; otherwise it is `rms_norm`.
    is_centered: bool,
    /// Saved for the gradient on the CPU: the mean of each row, and the factor of its deviations.
    statistics: Option<Raw>,
}

impl LayerNorm {
    fn run(self, x: &Tensor, [weight, bias]: [Option<&Tensor>; 2]) -> Result<Tensor> {
        let (own, wide) = (x.dtype(), x.dtype().computing());
        let is_wide = |parameter: &Tensor| parameter.dtype() != own && parameter.dtype() == wide;
        if autocast_type().is_none() && weight.or(bias).is_some_and(is_wide) {
            return self.run(&x.to_dtype(wide)?, [weight, bias])?.to_dtype(own);
        }
        self.check(x.shape(), [weight, bias])?;
        let inputs = [Some(x), weight, bias].mapped(|input| input.map(Tensor::raw));
        let inputs = prepared(self.name(), Precision::F32UnderAutocast, inputs)?;
        self.forward(inputs.each_ref().mapped(Option::as_ref)).map(Raw::typed)
    }

    fn name(&self) -> &'static str {
        if self.is_centered { "layer_norm" } else { "rms_norm" }
    }

    fn name_of_gradient(&self) -> &'static str {
        if self.is_centered { "layer_norm's gradient" } else { "rms_norm's gradient" }
    }

    /// Elements of a row.
    fn row_len(&self) -> usize {
        self.normalized.elements()
    }

    /// The settings of the kernels on the CPU.
    fn rows<R: Real>(&self) -> cpu::Normalized<R> {
        cpu::Normalized { n: self.row_len(), eps: R::from_f64(self.eps), is_centered: self.is_centered }
    }

    /// The shape of a tensor that has the gradients of weight and bias; for `rms_norm`, that of the weight alone.
    fn parameters_shape(&self) -> Result<Shape> {
        let mut sizes = [if self.is_centered { 2 } else { 1 }; 1 + MAX_RANK];
        let rank = self.normalized.rank();
        sizes[1..=rank].copy_from(&self.normalized);
        Shape::new(&sizes[..=rank])
    }

    fn check(&self, x: &Shape, [weight, bias]: [Option<&Tensor>; 2]) -> Result<()> {
        if self.normalized.rank() == 0 || !x.ends_with(&self.normalized) {
            let expected = format!("its last sizes must be those to normalize, {}; reshape it", self.normalized);
            return Err(Error::wrong_shape(self.name(), "the input", x, expected));
        }
        for (operand, parameter) in [("the weight", weight), ("the bias", bias)] {
            if let Some(parameter) = parameter.filter(|parameter| *parameter.shape() != self.normalized) {
                let expected = format!("it must have the sizes to normalize, {}", self.normalized);
                return Err(Error::wrong_shape(self.name(), operand, parameter.shape(), expected));
            }
        }
        Ok(())
    }

    fn forward(mut self, inputs: [Option<&Raw>; 3]) -> Result<Raw> {
        let [Some(x), ..] = inputs else { unreachable!("there is an input") };
        let (op, shape_and_dtype) = (self.name(), (*x.shape(), x.dtype()));
        let keeps = keeps_for_gradient(&inputs)
            && x.storage.device().is_cpu()
            && cpu::keeps_statistics(self.row_len())
            && !x.shape().contains(&0);
        let kept_shape = Shape::new(&[x.shape().elements() / self.row_len().max(1), 2])?;
        let mut kept = keeps.then(|| Fresh::allocate(op, kept_shape, x.dtype().computing())).transpose()?;
        let out = match x.storage.device() {
            Device::Cpu => on_cpu(op, inputs, shape_and_dtype, &mut |inputs, out| {
                by_real!(inputs.dtype(), R => {
                    let (x, parameters) = (inputs.view::<R>(0).data, [inputs.data(1), inputs.data(2)]);
                    let kept = kept.as_mut().map(|kept| kept.stored::<R>().plain().as_chunks_mut().0);
                    cpu::layer_norm(x, parameters, self.rows(), out.stored(), kept).map_err(Error::scratch(op))
                })
            }),
            Device::Cuda(device) => on_cuda(op, device, inputs, shape_and_dtype, &mut |inputs, out| {
                cuda::forward(device, &self, inputs.optional_cuda_views(), out)
            }),
        }?;
        self.statistics = kept.map(Fresh::share);
        Ok(record(op, self, inputs, out))
    }

    /// The gradients of input, weight and bias composed of other operations, in the computing type.
    fn composed(&self, x: &Tensor, weight: Option<&Tensor>, grad: &Tensor) -> Result<[Tensor; 3]> {
        let (n, shape) = (self.row_len(), *x.shape());
        let rows = Shape::new(&[x.len() / n.max(1), n])?;
        let [flat_x, flat_grad] = [x.widened()?.reshape_to(rows)?, grad.widened()?.reshape_to(rows)?];
        let centered_if = |x: Tensor| if self.is_centered { x.sub(&x.mean_keepdim(1)?) } else { Ok(x) };
        let centered = centered_if(flat_x)?;
        let variance = centered.mul(&centered)?.mean_keepdim(1)?;
        let factor = variance.add_scalar(self.eps)?.pow(-0.5)?;
        let normal = centered.mul(&factor)?;
        let weighted = match weight {
            Some(weight) => flat_grad.mul(&weight.widened()?.reshape_to(Shape::new(&[n])?)?)?,
            None => flat_grad.clone(),
        };
        let of_scale = normal.mul(&weighted.mul(&normal)?.mean_keepdim(1)?)?;
        let x_grad = centered_if(weighted)?.sub(&of_scale)?.mul(&factor)?.reshape_to(shape)?;
        let weight_grad = flat_grad.mul(&normal)?.sum(0)?.reshape_to(self.normalized)?;
        Ok([x_grad, weight_grad, flat_grad.sum(0)?.reshape_to(self.normalized)?])
    }

    /// The gradient of the input, and those of weight and bias one after the other, in one pass over the rows.
    /// `wanted` says which of the two results are needed.
    fn gradients(&self, [x, grad]: [&Raw; 2], weight: Option<&Raw>, wanted: [bool; 2]) -> Result<[Option<Raw>; 2]> {
        let (op, shape_and_dtype) = (self.name_of_gradient(), (*x.shape(), x.dtype()));
        let inputs = [Some(x), Some(grad), weight];
        let parameters = (self.parameters_shape()?, x.dtype());
        let Device::Cuda(device) = x.storage.device() else {
            let allocate = || Fresh::allocate(op, parameters.0, parameters.1);
            let mut sums = wanted[1].then(allocate).transpose()?;
            let inputs = [Some(x), Some(grad), weight, self.statistics.as_ref()];
            let x_grad = on_cpu(op, inputs, shape_and_dtype, &mut |inputs, out| {
                by_real!(inputs.dtype(), R => {
                    let both = [inputs.view::<R>(0).data, inputs.view(1).data];
                    let sums = sums.as_mut().map(Fresh::stored);
                    let statistics = inputs.data::<R>(3).map(|statistics| statistics.plain().as_chunks().0);
                    cpu::layer_norm_grad(both, (inputs.data(2), statistics), self.rows(), out.stored(), sums)
                        .map_err(Error::scratch(op))
                })
            })?;
            return Ok([Some(x_grad), sums.map(Fresh::share)]);
        };
        match wanted {
            [true, true] => {
                let (shape, dtype) = parameters;
                let mut sums = FreshCuda::allocate(op, shape, dtype, x.storage.device(), device)?;
                let x_grad = on_cuda(op, device, inputs, shape_and_dtype, &mut |inputs, out| {
                    cuda::grads(device, self, inputs.optional_cuda_views(), Some(out), sums.out())
                })?;
                Ok([Some(x_grad), Some(sums.share())])
            }
            [false, true] => {
                let sums = on_cuda(op, device, inputs, parameters, &mut |inputs, out| {
                    cuda::grads(device, self, inputs.optional_cuda_views(), None, out)
                })?;
                Ok([None, Some(sums)])
            }
            _ => {
                let x_grad = on_cuda(op, device, inputs, shape_and_dtype, &mut |inputs, out| {
                    cuda::grad(device, self, inputs.optional_cuda_views(), out)
                })?;
                Ok([Some(x_grad), None])
            }
        }
    }

    /// Whether there are kernels that add up the gradients of weight and bias.
    fn are_summed_by_kernel(&self, x: &Tensor) -> bool {
        x.device().is_cpu() || cuda::can_sum(self.row_len(), x.dtype())
    }
}

impl Derivative<3> for LayerNorm {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let (x, weight) = (saved.input(0), saved.optional(1));
        let wants_parameters = saved.needs(1) || saved.needs(2);
        if is_grad_enabled() || x.is_empty() || (wants_parameters && !self.are_summed_by_kernel(x)) {
            return Ok(saved.wanted(self.composed(x, weight, grad)?));
        }
        let grad = grad.raw().gap_free()?;
        let [x_grad, sums] =
            self.gradients([x.raw(), &grad], weight.map(Tensor::raw), [saved.needs(0), wants_parameters])?;
        let sums: Option<Tensor> = sums.map(Raw::typed);
        let row = |i: usize| sums.as_ref().filter(|_| saved.needs(i)).map(|sums| sums.select(0, i as isize - 1));
        Ok([x_grad.filter(|_| saved.needs(0)).map(Raw::typed), row(1).transpose()?, row(2).transpose()?])
    }
}
