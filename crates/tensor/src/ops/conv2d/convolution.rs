//! The operation: a convolution or one of its two derivatives, with what is fused to it.
//!
//! The three make image, weight or result of the other two. They are a closed family: each is linear in both operands, and
//! the derivatives of each are the other two, so convolutions can be differentiated any number of times.

use pagelock_cuda::library::ConvolutionKind;

use super::{Conv2dOptions, cpu, cuda, library};
use crate::autograd::{Saved, is_grad_enabled};
use crate::cpu::{CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::device::Device;
use crate::element::Real;
use crate::error::{Error, Result};
use crate::op::{CpuKernel, Inputs, Op, PerType, Saves, apply, per_type};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// One of the three, of those two of image, weight and result that it does not make, in this order.
///
/// What is fused to it: a third input is the bias of the convolution. With `RELU`, the result is followed by `relu`, and the
/// third input of a derivative is that result: the gradient counts as 0 unless the result is above 0.
#[derive(Clone, Copy)]
pub(super) struct Convolution<const RELU: bool> {
    pub(super) kind: ConvolutionKind,
    pub(super) geometry: Conv2dOptions,
    /// `[batch, channels, height, width]`
    pub(super) image: Shape,
    /// `[out_channels, in_channels / groups, kernel_h, kernel_w]`
    pub(super) weight: Shape,
    pub(super) memory: Memory,
    /// Whether the weight's gradient has the bias's behind it, both in one row: never recorded, and where [`is_fused`].
    pub(super) with_bias_grad: bool,
}

/// How the tensors of a convolution lie; their shapes are permuted likewise.
#[derive(Clone, Copy)]
pub(super) enum Memory {
    ChannelsFirst,
    /// Images and results; the weight, too, or not. On devices only.
    ChannelsLast {
        weight_too: bool,
    },
}

/// Whether there are kernels for the convolution of that image with relu, and for its gradients.
pub(super) fn is_fused(geometry: Conv2dOptions, image: &Tensor, weight: Shape) -> bool {
    match image.storage().device() {
        Device::Cpu => true,
        Device::Cuda(device) => {
            geometry.dims(image.shape(), &weight).is_ok_and(|dims| cuda::is_fused(device, &dims, image.dtype()))
        }
    }
}

impl<const RELU: bool> Convolution<RELU> {
    /// The convolution of that image and weight.
    pub(super) fn forward(geometry: Conv2dOptions, image: &Tensor, weight: &Tensor) -> Self {
        let (image, weight) = (*image.shape(), *weight.shape());
        let (kind, memory) = (ConvolutionKind::Forward, Memory::ChannelsFirst);
        Convolution { kind, geometry, image, weight, memory, with_bias_grad: false }
    }

    /// Another one of the three, of the same sizes.
    fn other<const MASKED: bool>(&self, kind: ConvolutionKind) -> Convolution<MASKED> {
        let Convolution { geometry, image, weight, memory, with_bias_grad, .. } = *self;
        Convolution { kind, geometry, image, weight, memory, with_bias_grad }
    }

    fn dims(&self) -> Result<cpu::ConvDims> {
        self.geometry.dims(&self.image, &self.weight)
    }

    fn out_shape(&self) -> Result<Shape> {
        let is_weight = matches!(self.kind, ConvolutionKind::WeightGrad);
        let made = match self.kind {
            ConvolutionKind::Forward => {
                let d = self.dims()?;
                Shape::new(&[d.batch, d.out_channels, d.out_size[0], d.out_size[1]])?
            }
            ConvolutionKind::ImageGrad => self.image,
            ConvolutionKind::WeightGrad if self.with_bias_grad => {
                return Shape::new(&[self.weight.elements() + self.weight[0]]);
            }
            ConvolutionKind::WeightGrad => self.weight,
        };
        match self.memory {
            Memory::ChannelsLast { weight_too } if weight_too || !is_weight => {
                Shape::new(&[made[0], made[2], made[3], made[1]])
            }
            _ => Ok(made),
        }
    }

    fn on_cuda(
        &self,
        device: &CudaDevice,
        [one, other]: [CudaView<'_>; 2],
        third: Option<CudaView<'_>>,
        out: CudaOut<'_>,
    ) -> Result<()> {
        let d = &self.dims()?;
        if let Memory::ChannelsLast { weight_too } = self.memory {
            return library::convolve_channels_last(device, "conv2d", self.kind, d, weight_too, [one, other], out);
        }
        match (self.kind, third) {
            (ConvolutionKind::Forward, Some(bias)) if RELU => cuda::forward_relu(device, d, [one, other], bias, out),
            (ConvolutionKind::Forward, bias) => cuda::forward(device, d, [one, other], bias, out),
            (ConvolutionKind::ImageGrad, mask) => cuda::image_grad(device, d, (other, mask), one, out),
            (ConvolutionKind::WeightGrad, mask) if self.with_bias_grad => {
                cuda::weight_and_bias_grad(device, d, one, (other, mask), out)
            }
            (ConvolutionKind::WeightGrad, _) => cuda::weight_grad(device, d, [one, other], out),
        }
    }

    fn on_cpu<R: Real>(
        &self,
        [one, other]: [CpuView<'_, R>; 2],
        third: Option<CpuView<'_, R>>,
        out: StoredMut<'_, R>,
    ) -> Result<()> {
        let (d, third) = (&self.dims()?, third.map(|third| third.data));
        match self.kind {
            ConvolutionKind::Forward => cpu::forward(d, one.data, other.data, third, RELU, out),
            ConvolutionKind::ImageGrad if third.is_none() => cpu::input_grad(d, other.data, one.data, out),
            ConvolutionKind::ImageGrad => unreachable!("a masked gradient is two operations on the CPU"),
            ConvolutionKind::WeightGrad => {
                let gradient = cpu::Gradient { numbers: other.data, positive: third };
                cpu::weight_and_bias_grad(d, one.data, gradient, out)
            }
        }
        .map_err(Error::scratch("conv2d"))
    }

    /// The gradients of image, weight and bias; those of the last two by one kernel if `together`.
    fn gradients(&self, saved: &Saved<'_, 3>, grad: &Tensor, together: bool) -> Result<[Option<Tensor>; 3]> {
        use ConvolutionKind::{ImageGrad, WeightGrad};
        let (image, weight) = (saved.input(0), saved.input(1));
        let image_grad = saved.grad_of(0, || apply(self.other::<false>(ImageGrad), [weight, grad]))?;
        let of_weight = Convolution { with_bias_grad: together, ..self.other::<false>(WeightGrad) };
        let [weight_grad, bias_grad] = match together {
            true => self.parts(apply(of_weight, [image, grad])?)?,
            false => [saved.grad_of(1, || apply(of_weight, [image, grad]))?, saved.grad_of(2, || grad.sum([0, 2, 3]))?],
        };
        Ok([image_grad, weight_grad, bias_grad])
    }

    /// The gradients of weight and bias, which lie one after the other.
    fn parts(&self, grads: Tensor) -> Result<[Option<Tensor>; 2]> {
        let [weight, bias] = grads.split_behind(self.weight.elements())?;
        Ok([Some(weight.reshape_to(self.weight)?), Some(bias)])
    }
}

per_type! { Convolution<false>[2]: Real }

impl Op<2> for Convolution<false> {
    const NAME: &'static str = "conv2d";
    const SAVES: Saves = Saves::Inputs;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, _: [&Shape; 2]) -> Result<Shape> {
        self.out_shape()
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 2], out: CudaOut<'_>) -> Result<()> {
        self.on_cuda(device, inputs, None, out)
    }

    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        use ConvolutionKind::{Forward, ImageGrad, WeightGrad};
        let (one, other) = (saved.input(0), saved.input(1));
        let [of_one, of_other] = match self.kind {
            // of image and weight; `grad` is the result's
            Forward => [(ImageGrad, [other, grad]), (WeightGrad, [one, grad])],
            // of weight and result; `grad` is shaped like the image
            ImageGrad => [(WeightGrad, [grad, other]), (Forward, [grad, one])],
            // of image and result; `grad` is shaped like the weight
            WeightGrad => [(ImageGrad, [grad, other]), (Forward, [one, grad])],
        };
        Ok([
            saved.grad_of(0, || apply(self.other::<false>(of_one.0), of_one.1))?,
            saved.grad_of(1, || apply(self.other::<false>(of_other.0), of_other.1))?,
        ])
    }
}

impl<R: Real> CpuKernel<R, 2> for Convolution<false> {
    type Out = R;

    fn cpu(&self, inputs: [CpuView<'_, R>; 2], out: StoredMut<'_, R>) -> Result<()> {
        self.on_cpu(inputs, None, out)
    }
}

per_type! { Convolution<false>[3]: Real }
per_type! { Convolution<true>[3]: Real }

impl<const RELU: bool> Op<3> for Convolution<RELU>
where
    Self: PerType<3>,
{
    const NAME: &'static str = if RELU { "conv2d_relu" } else { "conv2d" };
    const SAVES: Saves = if RELU { Saves::OutputForLast } else { Saves::Inputs };
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, [.., third]: [&Shape; 3]) -> Result<Shape> {
        let shape = self.out_shape()?;
        if matches!(self.kind, ConvolutionKind::Forward) && *third != [shape[1]] {
            let expected = format!("with the weight {} it must be [{}]", self.weight, shape[1]);
            return Err(Error::WrongShape { op: "conv2d", operand: "the bias", shape: *third, expected });
        }
        Ok(shape)
    }

    fn cuda(&self, device: &CudaDevice, [one, other, third]: [CudaView<'_>; 3], out: CudaOut<'_>) -> Result<()> {
        self.on_cuda(device, [one, other], Some(third), out)
    }

    /// Of the convolution: derivatives with a third input are not recorded.
    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let (image, weight) = (saved.input(0), saved.input(1));
        let wanted = saved.needs(1) && saved.needs(2) && !is_grad_enabled();
        let together = wanted && is_fused(self.geometry, image, self.weight);
        if !RELU {
            return self.gradients(saved, grad, together);
        }
        // Where the result is 0, the gradient counts as 0. It is read as such on a device, or if it is needed once; else made
        // so first.
        let out = saved.output();
        let reads_twice = !matches!(grad.storage().device(), Device::Cpu);
        if !together || (saved.needs(0) && !reads_twice) {
            return self.gradients(saved, &grad.where_positive(out)?, together);
        }
        let of_image = self.other::<true>(ConvolutionKind::ImageGrad);
        let of_weight = Convolution { with_bias_grad: true, ..self.other::<true>(ConvolutionKind::WeightGrad) };
        let image_grad = saved.grad_of(0, || apply(of_image, [weight, grad, out]))?;
        let [weight_grad, bias_grad] = self.parts(apply(of_weight, [image, grad, out])?)?;
        Ok([image_grad, weight_grad, bias_grad])
    }
}

impl<R: Real, const RELU: bool> CpuKernel<R, 3> for Convolution<RELU> {
    type Out = R;

    fn cpu(&self, [one, other, third]: [CpuView<'_, R>; 3], out: StoredMut<'_, R>) -> Result<()> {
        self.on_cpu([one, other], Some(third), out)
    }
}
