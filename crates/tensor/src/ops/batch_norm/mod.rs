//! Batch normalization, which gives channels mean 0 and variance 1, and its gradients.
//!
//! Kernels compute the statistics of the channels, the result, and the gradients. Gradients that are differentiated
//! again are composed of other operations. Channels-last images are not copied: they are computed in their own
//! layout.

mod cuda;

use pagelock_memory as memory;

use crate::autograd::{Saved, is_grad_enabled, no_grad, record};
use crate::cpu::{self, Stored};
use crate::cuda::constant;
use crate::device::{Device, common_device};
use crate::element::Real;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::op::{Derivative, LockedInputs, Precision, Saves, on_cpu, on_cuda, prepared, same_precision};
use crate::optimizer_steps::{can_move_at_once, move_at_once};
use crate::profiler;
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::{Raw, Tensor, by_real};

const OP: &str = "batch_norm";
const GRAD: &str = "batch_norm's gradient";

/// How [`Tensor::batch_norm`] normalizes; the default is PyTorch's for training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNormOptions {
    /// Whether to use the statistics of the batch and update the running ones with them; otherwise the running ones
    /// are used.
    pub training: bool,
    /// The share by which the running statistics move towards those of a batch; 0.1 by default.
    pub momentum: f64,
    /// The number added to variances; 1e-5 by default.
    pub eps: f64,
}

impl Default for BatchNormOptions {
    fn default() -> Self {
        Self { training: true, momentum: 0.1, eps: 1e-5 }
    }
}

impl Tensor {
    /// (x − mean) / √(variance + eps) · weight + bias, with a mean and a variance for each channel.
    ///
    /// - `self`: `[batch, channels, ..]`
    /// - `running`, the running mean and variance; `weight`; `bias`: `[channels]` each
    /// - result: as `self`, whose precision it has. In half precision, weight and bias may be `f32`, and sums are
    ///   `f32` in any case. The running statistics may have any precision
    ///
    /// While training, mean and variance (without Bessel's correction) are those of the batch, and the running ones, if
    /// there are any, move towards the mean and the variance (with Bessel's correction) of the batch, in place. Otherwise
    /// the running ones are used; without them, those of the batch. A call that fails leaves the running ones as they were.
    ///
    /// ```
    /// # use pagelock_tensor::{BatchNormOptions, Tensor};
    /// let x = Tensor::new([[1.0, 10.0], [3.0, 50.0]])?;
    /// let (mean, variance) = (Tensor::zeros(2)?, Tensor::ones(2)?);
    /// let y = x.batch_norm(Some([&mean, &variance]), None, None, BatchNormOptions::default())?;
    /// assert_eq!(format!("{y:.2}"), "tensor([[-1.00, -1.00],\n        [ 1.00,  1.00]])");
    /// assert_eq!(mean.to_vec::<f32>()?, [0.2, 3.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an input without channels, for other tensors that are not `[channels]`, and while
    /// training for one value per channel, which has no variance. [`Error::MixedTypes`] for a weight or a bias of
    /// another precision.
    pub fn batch_norm(
        &self,
        running: Option<[&Tensor; 2]>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        options: BatchNormOptions,
    ) -> Result<Tensor> {
        self.normalized(running, [weight, bias], options, false)
    }

    /// `self.batch_norm(..)?.relu()` with fewer passes over memory.
    ///
    /// # Errors
    /// As [`Tensor::batch_norm`].
    pub fn batch_norm_relu(
        &self,
        running: Option<[&Tensor; 2]>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        options: BatchNormOptions,
    ) -> Result<Tensor> {
        self.normalized(running, [weight, bias], options, true)
    }

    fn normalized(
        &self,
        running: Option<[&Tensor; 2]>,
        [weight, bias]: [Option<&Tensor>; 2],
        options: BatchNormOptions,
        relu: bool,
    ) -> Result<Tensor> {
        if self.rank() < 2 {
            let expected = "it must be [batch, channels, ..]; reshape it".to_owned();
            return Err(Error::wrong_shape(OP, "the input", self.shape(), expected));
        }
        check_channels(self.shape(), running, [weight, bias])?;
        if let (Some(weight), Some(bias)) = (weight, bias) {
            same_precision(OP, &[weight.raw(), bias.raw()])?;
        }
        if let Some(permuted) = self.with_channels_last()? {
            let last = permuted.rank() - 1;
            let y = permuted.normalized_along(last, running, [weight, bias], options, relu)?;
            return channels_second(&y);
        }
        self.normalized_along(1, running, [weight, bias], options, relu)
    }

    /// The tensor with its channels as the last dimension, if it is contiguous in that order and not as it is.
    fn with_channels_last(&self) -> Result<Option<Tensor>> {
        if self.is_contiguous() || self.rank() < 3 {
            return Ok(None);
        }
        let last = self.rank() as isize - 1;
        let permuted = (1..last).try_fold(self.clone(), |x, dim| x.transpose(dim, dim + 1))?;
        Ok(Some(permuted).filter(Tensor::is_contiguous))
    }

    fn normalized_along(
        &self,
        dim: usize,
        running: Option<[&Tensor; 2]>,
        parameters: [Option<&Tensor>; 2],
        options: BatchNormOptions,
        relu: bool,
    ) -> Result<Tensor> {
        let event = profiler::op(OP);
        let training = options.training || running.is_none();
        let statistics = match (running, training) {
            (Some(running), false) => no_grad(|| Tensor::stack(&running, 0)?.to_dtype(self.dtype().computing()))?,
            _ => self.statistics(dim)?,
        };
        common_device(OP, &[self.raw(), statistics.raw()])?;
        let running = running.filter(|_| training && !self.is_empty());
        let moves =
            no_grad(|| running.map(|running| Moves::check(running, &statistics, options.momentum)).transpose())?;
        let op = BatchNorm { dim, training, relu, eps: options.eps, statistics: statistics.into_raw() };
        let inputs = [Some(self), parameters[0], parameters[1]].mapped(|input| input.map(Tensor::raw));
        let inputs = prepared(OP, Precision::Computing, inputs)?;
        let y = op.forward(inputs.each_ref().mapped(Option::as_ref))?.typed();
        no_grad(|| moves.map_or(Ok(()), |moves| moves.run()))?; // last: a call that fails changes nothing
        let y: Tensor = y;
        let inputs = [Some(self), parameters[0], parameters[1]].mapped(|input| input.map(Tensor::raw));
        event.note_result(&inputs, y.raw(), OP);
        Ok(y)
    }

    /// `[3, channels]` of this batch: means, variances, unbiased variances.
    fn statistics(&self, dim: usize) -> Result<Tensor> {
        let values = self.len() / self.shape()[dim].max(1);
        if values < 2 && !self.is_empty() {
            let expected = "while training a channel needs at least two values; give a larger batch, or evaluate";
            let (shape, expected) = (*self.shape(), expected.to_owned());
            return Err(Error::wrong_shape(OP, "the input", &shape, expected));
        }
        channel_statistics(self.raw(), dim).map(Raw::typed)
    }
}

/// Running statistics, and how they will move.
#[expect(clippy::large_enum_variant, reason = "it lives on the stack of one call")]
enum Moves<'a> {
    /// Both in one kernel, by `share`, towards rows 0 and 2 of the batch's statistics.
    AtOnce { running: [&'a Tensor; 2], of_batch: Tensor, share: f64 },
    /// Each towards its own tensor: by a share, or all the way if that is `None`.
    OneByOne([(&'a Tensor, Tensor, Option<f64>); 2]),
}

impl<'a> Moves<'a> {
    /// Does everything that can fail, and moves nothing. Statistics of another precision than the batch's are moved
    /// in the batch's precision and rounded once, since a batch's variance may exceed the range of half types.
    fn check(running: [&'a Tensor; 2], statistics: &Tensor, share: f64) -> Result<Self> {
        let to = |running: &'a Tensor, row: isize| -> Result<_> {
            let of_batch = statistics.select(0, row)?;
            running.raw().check_writable("lerp_", [of_batch.raw()])?;
            if running.dtype() == of_batch.dtype() {
                return Ok((running, of_batch, Some(share)));
            }
            let moved = running.to_dtype(of_batch.dtype())?;
            moved.lerp_(&of_batch, share)?;
            Ok((running, moved.to_dtype(running.dtype())?, None))
        };
        if can_move_at_once(running, statistics) {
            running.iter().try_for_each(|running| running.raw().check_writable("lerp_", [statistics.raw()]))?;
            return Ok(Self::AtOnce { running, of_batch: statistics.clone(), share });
        }
        let [mean, variance] = running;
        Ok(Self::OneByOne([to(mean, 0)?, to(variance, 2)?]))
    }

    fn run(self) -> Result<()> {
        match self {
            Self::AtOnce { running, of_batch, share } => move_at_once(running, &of_batch, share),
            Self::OneByOne(each) => each.iter().try_for_each(|(running, target, share)| match share {
                Some(share) => running.lerp_(target, *share),
                None => running.copy_(target),
            }),
        }
    }
}

/// Moves the last dimension back to dimension 1.
fn channels_second(y: &Tensor) -> Result<Tensor> {
    let last = y.rank() as isize - 1;
    (1..last).rev().try_fold(y.clone(), |y, dim| y.transpose(dim, dim + 1))
}

fn check_channels(x: &Shape, running: Option<[&Tensor; 2]>, [weight, bias]: [Option<&Tensor>; 2]) -> Result<()> {
    let [mean, variance] = running.map_or([None; 2], |running| running.mapped(Some));
    let all =
        [("the running mean", mean), ("the running variance", variance), ("the weight", weight), ("the bias", bias)];
    for (operand, tensor) in all {
        if let Some(tensor) = tensor
            && *tensor.shape() != [x[1]]
        {
            let fix = "permute the input, or change the layer's number of features";
            let expected = format!("with the input {x} it must be [{}], the size of dimension 1; {fix}", x[1]);
            return Err(Error::wrong_shape(OP, operand, tensor.shape(), expected));
        }
    }
    Ok(())
}

/// A contiguous tensor as channels: `[outer, channels, inner]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Channels {
    pub(crate) outer: usize,
    pub(crate) channels: usize,
    pub(crate) inner: usize,
}

impl Channels {
    fn of(shape: &[usize], dim: usize) -> Channels {
        let [outer, inner] = [&shape[..dim], &shape[dim + 1..]].mapped(|sizes| sizes.iter().product());
        Channels { outer, channels: shape[dim], inner }
    }
}

/// The settings of the kernels on a device.
#[derive(Clone, Copy)]
struct Normalization {
    channels: Channels,
    training: bool,
    relu: bool,
    /// The bits of `eps` in the computing type.
    eps: u64,
}

/// Means, variances and unbiased variances of channels, `[3, channels]`, in the computing type; not recorded.
fn channel_statistics(x: &Raw, dim: usize) -> Result<Raw> {
    let (x, channels) = (&x.gap_free()?, Channels::of(x.shape(), dim));
    let (inputs, shape_and_dtype) = ([Some(x)], (Shape::new(&[3, x.shape()[dim]])?, x.dtype().computing()));
    match x.storage.device() {
        Device::Cpu => on_cpu(OP, inputs, shape_and_dtype, &mut |inputs, out| {
            by_real!(inputs.dtype(), R => {
                let x = inputs.view::<R>(0).data;
                cpu::channel_statistics(channels, x, out.stored().plain()).map_err(Error::scratch(OP))
            })
        }),
        Device::Cuda(device) => on_cuda(OP, device, inputs, shape_and_dtype, &mut |inputs, out| {
            let [x] = inputs.cuda_views();
            cuda::statistics(device, channels, x, out)
        }),
    }
}

/// The operation on the input and, if there are any, weight and bias. `statistics` are those to normalize with, in
/// the computing type: means, variances and, while training, unbiased variances. While training they depend on the
/// input.
#[derive(Clone)]
struct BatchNorm {
    dim: usize,
    training: bool,
    relu: bool,
    eps: f64,
    statistics: Raw,
}

impl BatchNorm {
    fn channels(&self, x: &Raw) -> Channels {
        Channels::of(x.shape(), self.dim)
    }

    /// The settings of the kernels on a device.
    fn on_cuda(&self, x: &Raw) -> Normalization {
        let (training, relu, eps) = (self.training, self.relu, constant(x.dtype(), self.eps.into()));
        Normalization { channels: self.channels(x), training, relu, eps }
    }

    /// Calls `f` with the numbers that each channel is normalized with, on the CPU. Input 0 is the statistics, and
    /// `parameters` are the numbers of the inputs weight and bias.
    fn with_normalizers<R: Real, U, const N: usize>(
        &self,
        inputs: &LockedInputs<'_, N>,
        parameters: [usize; 2],
        f: impl FnOnce(cpu::Normalizers<'_, R>) -> memory::Result<U>,
    ) -> Result<U> {
        let n_channels = self.statistics.shape()[1];
        let statistics = inputs.view::<R>(0).data.plain();
        let parameters = parameters.mapped(|i| inputs.data(i));
        cpu::with_normalizers(statistics, parameters, R::from_f64(self.eps), n_channels, f).map_err(Error::scratch(OP))
    }

    fn forward(self, [x, weight, bias]: [Option<&Raw>; 3]) -> Result<Raw> {
        let Some(input) = x else { unreachable!("there is an input") };
        let inputs = [Some(&self.statistics), x, weight, bias];
        let (channels, shape_and_dtype) = (self.channels(input), (*input.shape(), input.dtype()));
        let out = match input.storage.device() {
            Device::Cpu => on_cpu(OP, inputs, shape_and_dtype, &mut |inputs, out| {
                by_real!(inputs.dtype(), R => {
                    let x = inputs.view::<R>(1).data;
                    self.with_normalizers(inputs, [2, 3], |normalizers| {
                        cpu::batch_norm(channels, normalizers, self.relu, x, out.stored())
                    })
                })
            }),
            Device::Cuda(device) => on_cuda(OP, device, inputs, shape_and_dtype, &mut |inputs, out| {
                let [.., weight, bias] = inputs.optional_cuda_views();
                let views = [inputs.cuda_view(0), inputs.cuda_view(1)];
                cuda::forward(device, self.on_cuda(input), views, [weight, bias], out)
            }),
        }?;
        Ok(record(OP, self, [x, weight, bias], out))
    }

    /// Σ g·x̂ and Σ g, `[2, channels]`, in the computing type, from input, gradient of the result, weight and bias.
    fn sums(&self, [x, grad]: [&Raw; 2], [weight, bias]: [Option<&Raw>; 2]) -> Result<Raw> {
        let (inputs, channels) = ([Some(&self.statistics), Some(x), Some(grad), weight, bias], self.channels(x));
        let shape_and_dtype = (Shape::new(&[2, channels.channels])?, x.dtype().computing());
        match x.storage.device() {
            Device::Cpu => on_cpu(GRAD, inputs, shape_and_dtype, &mut |inputs, out| {
                by_real!(inputs.dtype(), R => {
                    let both = [inputs.view::<R>(1).data, inputs.view(2).data];
                    self.with_normalizers(inputs, [3, 4], |normalizers| {
                        cpu::batch_norm_sums(channels, normalizers, self.relu, both, out.stored().plain())
                    })
                })
            }),
            Device::Cuda(device) => on_cuda(GRAD, device, inputs, shape_and_dtype, &mut |inputs, out| {
                let [.., weight, bias] = inputs.optional_cuda_views();
                let views = [0, 1, 2].mapped(|i| inputs.cuda_view(i));
                cuda::sums(device, self.on_cuda(x), views, [weight, bias], out)
            }),
        }
    }

    /// The gradient of the input, from the same tensors and, while training, the result of [`sums`](Self::sums).
    fn input_grad(&self, [x, grad]: [&Raw; 2], [weight, bias]: [Option<&Raw>; 2], sums: Option<&Raw>) -> Result<Raw> {
        let inputs = [Some(&self.statistics), Some(x), Some(grad), weight, bias, sums];
        let (channels, shape_and_dtype) = (self.channels(x), (*x.shape(), x.dtype()));
        match x.storage.device() {
            Device::Cpu => on_cpu(GRAD, inputs, shape_and_dtype, &mut |inputs, out| {
                by_real!(inputs.dtype(), R => {
                    let both = [inputs.view::<R>(1).data, inputs.view(2).data];
                    let sums = inputs.data(5).map(Stored::plain);
                    self.with_normalizers(inputs, [3, 4], |normalizers| {
                        cpu::batch_norm_grad(channels, normalizers, (self.relu, sums), both, out.stored())
                    })
                })
            }),
            Device::Cuda(device) => on_cuda(GRAD, device, inputs, shape_and_dtype, &mut |inputs, out| {
                let [.., weight, bias, sums] = inputs.optional_cuda_views();
                let views = [0, 1, 2].mapped(|i| inputs.cuda_view(i));
                cuda::grad(device, self.on_cuda(x), views, [weight, bias, sums], out)
            }),
        }
    }

    fn statistics(&self) -> Tensor {
        self.statistics.clone().typed()
    }

    /// The gradients of input, weight and bias composed of other operations, in the computing type.
    fn composed(&self, x: &Tensor, parameters: [Option<&Tensor>; 2], grad: &Tensor) -> Result<[Tensor; 3]> {
        let (x, grad) = (&x.widened()?, &grad.widened()?);
        let mut per_channel = [1; MAX_RANK];
        per_channel[self.dim] = x.shape()[self.dim];
        let per_channel = Shape::new(&per_channel[..x.rank()])?;
        let spread = |parameter: Option<&Tensor>| parameter.map(|it| it.widened()?.reshape_to(per_channel)).transpose();
        let (weight, bias) = (spread(parameters[0])?, spread(parameters[1])?);
        let mean = |x: &Tensor| x.sum_to(&per_channel)?.mul_scalar(per_channel.elements() as f64 / x.len() as f64);
        let (center, variance) = if self.training {
            let center = mean(x)?;
            let centered = x.sub(&center)?;
            (center, mean(&centered.mul(&centered)?)?)
        } else {
            let part = |i: isize| self.statistics().select(0, i)?.reshape_to(per_channel);
            (part(0)?, part(1)?)
        };
        let factor = variance.add_scalar(self.eps)?.pow(-0.5)?;
        let normal = x.sub(&center)?.mul(&factor)?;
        let times = |x: &Tensor, weight: &Option<Tensor>| weight.as_ref().map_or(Ok(x.clone()), |weight| x.mul(weight));
        let grad = match self.relu {
            false => grad.clone(),
            true => {
                let y = times(&normal.detach(), &weight.as_ref().map(Tensor::detach))?;
                grad.where_positive(&bias.as_ref().map_or(Ok(y.clone()), |bias| y.add(&bias.detach()))?)?
            }
        };
        let scale = times(&factor, &weight)?;
        let dot = grad.mul(&normal)?;
        let x_grad = match self.training {
            true => grad.sub(&mean(&grad)?)?.sub(&normal.mul(&mean(&dot)?)?)?.mul(&scale)?,
            false => grad.mul(&scale)?,
        };
        let channels = Shape::new(&[per_channel.elements()])?;
        Ok([x_grad, dot.sum_to(&per_channel)?.reshape_to(channels)?, grad.sum_to(&per_channel)?.reshape_to(channels)?])
    }
}

impl Derivative<3> for BatchNorm {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let (x, parameters) = (saved.input(0), [saved.optional(1), saved.optional(2)]);
        if is_grad_enabled() || x.is_empty() {
            return Ok(saved.wanted(self.composed(x, parameters, grad)?));
        }
        let (grad, parameters) = (grad.raw().gap_free()?, parameters.mapped(|parameter| parameter.map(Tensor::raw)));
        let both = [x.raw(), &grad];
        let needs_sums = self.training || saved.needs(1) || saved.needs(2);
        let sums = needs_sums.then(|| self.sums(both, parameters)).transpose()?;
        let while_training = sums.as_ref().filter(|_| self.training);
        let x_grad = saved.grad_of(0, || self.input_grad(both, parameters, while_training).map(Raw::typed))?;
        let row = |i: usize| sums.as_ref().filter(|_| saved.needs(i)).map(|sums| sums.select(0, i as isize - 1));
        let [weight, bias] = [row(1), row(2)].mapped(Option::transpose);
        Ok([x_grad, weight?.map(Raw::typed), bias?.map(Raw::typed)])
    }
}
