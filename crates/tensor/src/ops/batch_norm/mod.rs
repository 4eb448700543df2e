//! Batch normalization: channels with mean 0 and variance 1, and its gradients.
//!
//! The statistics of the channels are an operation of their own; their numbers are a field of those that use them. Images
//! whose channels lie closest in memory are computed as they lie. Where gradients are differentiated again, they are made
//! of other operations.

mod cuda;

use pagelock_memory as memory;

use crate::autograd::{Saved, is_grad_enabled, no_grad};
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, constant};
use crate::element::Real;
use crate::error::{Error, Result};
use crate::op::{CpuKernel, Inputs, Op, Precision, Saves, apply, per_type, same_precision};
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::{Raw, Tensor};

const OP: &str = "batch_norm";
const GRAD: &str = "batch_norm's gradient";

/// How [`Tensor::batch_norm`] normalizes; the default is PyTorch's for training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNormOptions {
    /// Whether to use the statistics of the batch, and to note them; else the running ones are used.
    pub training: bool,
    /// By how much the running statistics move towards those of a batch: 0.1.
    pub momentum: f64,
    /// What is added to variances: 1e-5.
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
    /// - result: as `self`, whose precision it has. Beside half precision, weight and bias may be `f32`; sums are `f32` in
    ///   any case, and the running statistics have any precision
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
    /// [`Error::WrongShape`] for an input without channels, for others that are not `[channels]`, and while training for
    /// one value per channel, which has no variance. [`Error::MixedTypes`] for a weight or a bias of another precision.
    pub fn batch_norm(
        &self,
        running: Option<[&Tensor; 2]>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        options: BatchNormOptions,
    ) -> Result<Tensor> {
        self.normalized(running, [weight, bias], options, false)
    }

    /// `self.batch_norm(..)?.relu()` with fewer walks through memory.
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
            return Err(Error::WrongShape { op: OP, operand: "the input", shape: *self.shape(), expected });
        }
        check_channels(self.shape(), running, [weight, bias])?;
        if let (Some(weight), Some(bias)) = (weight, bias) {
            same_precision(OP, &[weight.raw(), bias.raw()])?;
        }
        if let Some(turned) = self.turned()? {
            let last = turned.rank() - 1;
            let y = turned.normalized_along(last, running, [weight, bias], options, relu)?;
            return channels_second(&y);
        }
        self.normalized_along(1, running, [weight, bias], options, relu)
    }

    /// The tensor with its channels as the last dimension, if it lies in memory that way and no other.
    fn turned(&self) -> Result<Option<Tensor>> {
        if self.is_contiguous() || self.rank() < 3 {
            return Ok(None);
        }
        let last = self.rank() as isize - 1;
        let turned = (1..last).try_fold(self.clone(), |x, dim| x.transpose(dim, dim + 1))?;
        Ok(Some(turned).filter(Tensor::is_contiguous))
    }

    fn normalized_along(
        &self,
        dim: usize,
        running: Option<[&Tensor; 2]>,
        parameters: [Option<&Tensor>; 2],
        options: BatchNormOptions,
        relu: bool,
    ) -> Result<Tensor> {
        let training = options.training || running.is_none();
        let statistics = match (running, training) {
            (Some(running), false) => no_grad(|| Tensor::stack(&running, 0)?.widened())?,
            _ => self.statistics(dim)?,
        };
        let running = running.filter(|_| training && !self.is_empty());
        let moves =
            no_grad(|| running.map(|running| Moves::check(running, &statistics, options.momentum)).transpose())?;
        let op = BatchNorm { dim, training, relu, eps: options.eps, statistics: statistics.into_raw() };
        let y = match parameters {
            [None, None] => apply(op, [self]),
            [Some(weight), None] => apply(op, [self, weight, &weight.zeros_like()?]),
            [None, Some(bias)] => apply(op, [self, &bias.ones_like()?, bias]),
            [Some(weight), Some(bias)] => apply(op, [self, weight, bias]),
        }?;
        no_grad(|| moves.map_or(Ok(()), |moves| moves.run()))?; // last: a call that fails changes nothing
        Ok(y)
    }

    /// `[3, channels]` of this batch: means, variances, unbiased variances.
    fn statistics(&self, dim: usize) -> Result<Tensor> {
        let values = self.len() / self.shape()[dim].max(1);
        if values < 2 && !self.is_empty() {
            let expected = "while training a channel needs at least two values; give a larger batch, or evaluate";
            let (shape, expected) = (*self.shape(), expected.to_owned());
            return Err(Error::WrongShape { op: OP, operand: "the input", shape, expected });
        }
        no_grad(|| apply(Statistics { dim }, [&self.detach()]))
    }
}

/// Running statistics, what they will move towards, and by how much: all the way without a number.
struct Moves<'a>([(&'a Tensor, Tensor, Option<f64>); 2]);

impl<'a> Moves<'a> {
    /// All that can fail of the moves, without them. Those of half types are computed, and rounded once: a batch's variance
    /// may be more than they hold.
    fn check([mean, variance]: [&'a Tensor; 2], statistics: &Tensor, momentum: f64) -> Result<Self> {
        let to = |running: &'a Tensor, row: isize| -> Result<_> {
            let of_batch = statistics.select(0, row)?;
            let (target, share) = if running.dtype() == of_batch.dtype() {
                (of_batch, Some(momentum))
            } else {
                let moved = running.to_dtype(of_batch.dtype())?;
                moved.lerp_(&of_batch, momentum)?;
                (moved.to_dtype(running.dtype())?, None)
            };
            running.raw().check_writable("lerp_", [target.raw()])?;
            Ok((running, target, share))
        };
        Ok(Self([to(mean, 0)?, to(variance, 2)?]))
    }

    fn run(self) -> Result<()> {
        self.0.iter().try_for_each(|(running, target, share)| match share {
            Some(share) => running.lerp_(target, *share),
            None => running.copy_(target),
        })
    }
}

/// Moves the last dimension back to the second place.
fn channels_second(y: &Tensor) -> Result<Tensor> {
    let last = y.rank() as isize - 1;
    (1..last).rev().try_fold(y.clone(), |y, dim| y.transpose(dim, dim + 1))
}

fn check_channels(x: &Shape, running: Option<[&Tensor; 2]>, [weight, bias]: [Option<&Tensor>; 2]) -> Result<()> {
    let [mean, variance] = running.map_or([None; 2], |running| running.map(Some));
    let all =
        [("the running mean", mean), ("the running variance", variance), ("the weight", weight), ("the bias", bias)];
    for (operand, tensor) in all {
        if let Some(tensor) = tensor
            && *tensor.shape() != [x[1]]
        {
            let expected = format!("with the input {x} it must be [{}]", x[1]);
            return Err(Error::WrongShape { op: OP, operand, shape: *tensor.shape(), expected });
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
        let [outer, inner] = [&shape[..dim], &shape[dim + 1..]].map(|sizes| sizes.iter().product());
        Channels { outer, channels: shape[dim], inner }
    }
}

/// What kernels of a device are told.
#[derive(Clone, Copy)]
struct Normalization {
    channels: Channels,
    training: bool,
    relu: bool,
    /// The bytes of the number.
    eps: u64,
}

/// Means, variances and unbiased variances of channels, `[3, channels]`; never recorded.
struct Statistics {
    dim: usize,
}

per_type! { Statistics[1]: Real }

impl Op<1> for Statistics {
    const NAME: &'static str = OP;
    const SAVES: Saves = Saves::Nothing;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        Shape::new(&[3, x[self.dim]])
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        match out.shape().elements() {
            0 => Ok(()),
            _ => cuda::statistics(device, Channels::of(x.shape(), self.dim), x, out),
        }
    }

    fn backward(&self, _: &Saved<'_, 1>, _: &Tensor) -> Result<[Option<Tensor>; 1]> {
        unreachable!("statistics are never recorded")
    }
}

impl<R: Real> CpuKernel<R, 1> for Statistics {
    type Out = R;
    const IS_WIDE: bool = true;

    fn cpu(&self, [x]: [CpuView<'_, R>; 1], out: StoredMut<'_, R>) -> Result<()> {
        cpu::channel_statistics(Channels::of(x.shape, self.dim), x.data, out.plain()).map_err(Error::scratch(OP))
    }
}

/// Of the input, or of input, weight and bias. `statistics` are those to normalize with, of the computing type: means
/// and variances, and perhaps more. While training they depend on the input.
#[derive(Clone)]
struct BatchNorm {
    dim: usize,
    training: bool,
    relu: bool,
    eps: f64,
    statistics: Raw,
}

impl BatchNorm {
    fn on_cuda(&self, x: &CudaView<'_>) -> Normalization {
        let (training, relu, eps) = (self.training, self.relu, constant(x.dtype(), self.eps.into()));
        let shape = x.shape();
        Normalization { channels: Channels::of(shape, self.dim), training, relu, eps }
    }

    /// What each channel is changed by, on the CPU.
    fn changes<R: Real, U>(
        &self,
        parameters: &[CpuView<'_, R>],
        f: impl FnOnce(cpu::Numbers<'_, R>) -> memory::Result<U>,
    ) -> Result<U> {
        let reading = self.statistics.read::<R>(OP)?;
        let parameters = [0, 1].map(|i| parameters.get(i).map(|parameter| parameter.data));
        let n_channels = self.statistics.shape()[1];
        let statistics = reading.of(&self.statistics.layout);
        cpu::with_changes(statistics, parameters, R::from_f64(self.eps), n_channels, f).map_err(Error::scratch(OP))
    }

    /// The statistics on a device.
    fn with_view<R>(&self, f: impl FnOnce(CudaView<'_>) -> R) -> R {
        f(self.statistics.storage.lock().cuda(&self.statistics.layout, self.statistics.dtype()))
    }

    /// The gradients of `N` inputs.
    fn gradients<const N: usize>(&self, saved: &Saved<'_, N>, grad: &Tensor) -> Result<[Option<Tensor>; N]> {
        let x = saved.input(0);
        let parameters = (N > 1).then(|| [saved.input(1), saved.input(2)]);
        if is_grad_enabled() || x.is_empty() {
            let mut grads = self.composed(x, parameters, grad)?.map(Some).into_iter();
            return Ok(std::array::from_fn(|i| grads.next().flatten().filter(|_| saved.needs(i))));
        }
        let sums = match parameters {
            _ if !self.training && !(1..N).any(|i| saved.needs(i)) => None,
            Some([weight, bias]) => Some(apply(ChannelSums(self.clone()), [x, grad, weight, bias])?),
            None => Some(apply(ChannelSums(self.clone()), [x, grad])?),
        };
        let x_grad = saved.grad_of(0, || {
            let sums = sums.as_ref().filter(|_| self.training).map(|sums| sums.raw().clone());
            let op = InputGrad { rule: self.clone(), sums };
            match parameters {
                Some([weight, bias]) => apply(op, [x, grad, weight, bias]),
                None => apply(op, [x, grad]),
            }
        })?;
        let mut grads = [x_grad, None, None];
        for (i, grad) in grads.iter_mut().enumerate().take(N).skip(1) {
            if let (true, Some(sums)) = (saved.needs(i), &sums) {
                *grad = Some(sums.select(0, i as isize - 1)?);
            }
        }
        let mut grads = grads.into_iter();
        Ok(std::array::from_fn(|_| grads.next().flatten()))
    }

    fn statistics(&self) -> Tensor {
        self.statistics.clone().typed()
    }

    /// The gradients of input, weight and bias as results of other operations, in the computing type.
    fn composed(&self, x: &Tensor, parameters: Option<[&Tensor; 2]>, grad: &Tensor) -> Result<[Tensor; 3]> {
        let parameters = match parameters {
            Some([weight, bias]) => Some([weight.widened()?, bias.widened()?]),
            None => None,
        };
        let parameters = parameters.as_ref().map(<[_; 2]>::each_ref);
        let [x, weight, bias] = self.composed_of_reals(&x.widened()?, parameters, &grad.widened()?)?;
        Ok([x, weight, bias])
    }

    fn composed_of_reals(&self, x: &Tensor, parameters: Option<[&Tensor; 2]>, grad: &Tensor) -> Result<[Tensor; 3]> {
        let mut kept = [1; MAX_RANK];
        kept[self.dim] = x.shape()[self.dim];
        let kept = Shape::new(&kept[..x.rank()])?;
        let mean = |x: &Tensor| x.sum_to(&kept)?.mul_scalar(kept.elements() as f64 / x.len() as f64);
        let (center, variance) = if self.training {
            let center = mean(x)?;
            let centered = x.sub(&center)?;
            (center, mean(&centered.mul(&centered)?)?)
        } else {
            let part = |i: isize| self.statistics().select(0, i)?.reshape_to(kept);
            (part(0)?, part(1)?)
        };
        let factor = variance.add_scalar(self.eps)?.pow(-0.5)?;
        let normal = x.sub(&center)?.mul(&factor)?;
        let weight = parameters.map(|[weight, _]| weight.reshape_to(kept)).transpose()?;
        let grad = match (self.relu, parameters) {
            (false, _) => grad.clone(),
            (true, Some([weight, bias])) => {
                let y = normal.detach().mul(&weight.detach().reshape_to(kept)?)?;
                grad.where_positive(&y.add(&bias.detach().reshape_to(kept)?)?)?
            }
            (true, None) => grad.where_positive(&normal.detach())?,
        };
        let scale = match &weight {
            Some(weight) => weight.mul(&factor)?,
            None => factor,
        };
        let dot = grad.mul(&normal)?;
        let x_grad = match self.training {
            true => grad.sub(&mean(&grad)?)?.sub(&normal.mul(&mean(&dot)?)?)?.mul(&scale)?,
            false => grad.mul(&scale)?,
        };
        let channels = Shape::new(&[kept.elements()])?;
        Ok([x_grad, dot.sum_to(&kept)?.reshape_to(channels)?, grad.sum_to(&kept)?.reshape_to(channels)?])
    }
}

macro_rules! batch_norm {
    ($($n:literal)+) => {$(
        per_type! { BatchNorm[$n]: Real }

        impl Op<$n> for BatchNorm {
            const NAME: &'static str = OP;
            const SAVES: Saves = Saves::Inputs;
            const INPUTS: Inputs = Inputs::WithoutGaps;
            const PRECISION: Precision = Precision::Computing;

            fn out_shape(&self, inputs: [&Shape; $n]) -> Result<Shape> {
                Ok(*inputs[0]) // checked with the running statistics
            }

            fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; $n], out: CudaOut<'_>) -> Result<()> {
                let rule = self.on_cuda(&inputs[0]);
                match out.shape().elements() {
                    0 => Ok(()),
                    _ => self.with_view(|statistics| cuda::forward(device, rule, statistics, &inputs, out)),
                }
            }

            fn backward(&self, saved: &Saved<'_, $n>, grad: &Tensor) -> Result<[Option<Tensor>; $n]> {
                self.gradients(saved, grad)
            }
        }

        impl<R: Real> CpuKernel<R, $n> for BatchNorm {
            type Out = R;

            fn cpu(&self, inputs: [CpuView<'_, R>; $n], out: StoredMut<'_, R>) -> Result<()> {
                let (x, channels) = (inputs[0].data, Channels::of(inputs[0].shape, self.dim));
                self.changes(&inputs[1..], |changes| cpu::batch_norm(channels, changes, self.relu, x, out))
            }
        }
    )+};
}

batch_norm!(1 3);

/// Σ g·x̂ and Σ g, `[2, channels]`, of `[input, gradient of the result]`, or of these, weight and bias; never recorded.
struct ChannelSums(BatchNorm);

/// The gradient of the input, of the same; while training, `sums` are what `ChannelSums` found.
struct InputGrad {
    rule: BatchNorm,
    sums: Option<Raw>,
}

macro_rules! gradients {
    ($($n:literal)+) => {$(
        per_type! { ChannelSums[$n]: Real }

        impl Op<$n> for ChannelSums {
            const NAME: &'static str = GRAD;
            const SAVES: Saves = Saves::Nothing;
            const INPUTS: Inputs = Inputs::WithoutGaps;
            const PRECISION: Precision = Precision::Computing;

            fn out_shape(&self, inputs: [&Shape; $n]) -> Result<Shape> {
                Shape::new(&[2, inputs[0][self.0.dim]])
            }

            fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; $n], out: CudaOut<'_>) -> Result<()> {
                let rule = self.0.on_cuda(&inputs[0]);
                self.0.with_view(|statistics| cuda::sums(device, rule, statistics, &inputs, out))
            }

            fn backward(&self, _: &Saved<'_, $n>, _: &Tensor) -> Result<[Option<Tensor>; $n]> {
                unreachable!("a recorded derivative is made of other operations")
            }
        }

        impl<R: Real> CpuKernel<R, $n> for ChannelSums {
            type Out = R;
    const IS_WIDE: bool = true;

            fn cpu(&self, inputs: [CpuView<'_, R>; $n], out: StoredMut<'_, R>) -> Result<()> {
                let channels = Channels::of(inputs[0].shape, self.0.dim);
                let data = [inputs[0].data, inputs[1].data];
                self.0.changes(&inputs[2..], |changes| {
                    cpu::batch_norm_sums(channels, changes, self.0.relu, data, out.plain())
                })
            }
        }

        per_type! { InputGrad[$n]: Real }

        impl Op<$n> for InputGrad {
            const NAME: &'static str = GRAD;
            const SAVES: Saves = Saves::Nothing;
            const INPUTS: Inputs = Inputs::WithoutGaps;
            const PRECISION: Precision = Precision::Computing;

            fn out_shape(&self, inputs: [&Shape; $n]) -> Result<Shape> {
                Ok(*inputs[0])
            }

            fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; $n], out: CudaOut<'_>) -> Result<()> {
                let rule = self.rule.on_cuda(&inputs[0]);
                self.rule.with_view(|statistics| match &self.sums {
                    None => cuda::grad(device, rule, [statistics; 2], &inputs, out),
                    Some(sums) => {
                        let locked = sums.storage.lock();
                        let sums = locked.cuda(&sums.layout, sums.dtype());
                        cuda::grad(device, rule, [statistics, sums], &inputs, out)
                    }
                })
            }

            fn backward(&self, _: &Saved<'_, $n>, _: &Tensor) -> Result<[Option<Tensor>; $n]> {
                unreachable!("a recorded derivative is made of other operations")
            }
        }

        impl<R: Real> CpuKernel<R, $n> for InputGrad {
            type Out = R;

            fn cpu(&self, inputs: [CpuView<'_, R>; $n], out: StoredMut<'_, R>) -> Result<()> {
                let (rule, channels) = (&self.rule, Channels::of(inputs[0].shape, self.rule.dim));
                let data = [inputs[0].data, inputs[1].data];
                let reading = self.sums.as_ref().map(|sums| sums.read::<R>(OP)).transpose()?;
                let sums = reading.as_ref().zip(self.sums.as_ref()).map(|(reading, sums)| reading.of(&sums.layout));
                rule.changes(&inputs[2..], |changes| {
                    cpu::batch_norm_grad(channels, changes, (rule.relu, sums), data, out)
                })
            }
        }
    )+};
}

gradients!(2 4);
