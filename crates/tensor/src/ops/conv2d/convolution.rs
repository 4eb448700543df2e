//! The operation: a convolution or one of its two derivatives, with bias and `relu` fused where there are kernels.
//!
//! Each of the three computes one of image, weight and result from the other two. Each is linear in both operands,
//! and its derivatives are the other two operations, so convolutions can be differentiated any number of times.

use pagelock_cuda::library::ConvolutionKind;

use super::{Conv2dOptions, cpu, cuda, library};
use crate::autograd::{Saved, is_grad_enabled, record};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::op::{Derivative, Precision, Saves, on_cpu, on_cuda, prepared};
use crate::profiler;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor, by_real};

const OP: &str = "conv2d";

/// One of the three operations. Its inputs are the two of image, weight and result that it does not compute, in this
/// order. The convolution itself may have a bias as its third input.
#[derive(Clone, Copy)]
pub(super) struct ConvolutionOp {
    pub(super) kind: ConvolutionKind,
    pub(super) geometry: Conv2dOptions,
    /// `[batch, channels, height, width]`
    pub(super) image: Shape,
    /// `[out_channels, in_channels / groups, kernel_h, kernel_w]`
    pub(super) weight: Shape,
    pub(super) memory: MemoryFormat,
}

/// The order of the dimensions in memory, and in the shapes that the operation uses.
#[derive(Clone, Copy)]
pub(super) enum MemoryFormat {
    ChannelsFirst,
    /// Images and results are channels-last, and with `weight_too` the weight. On devices only.
    ChannelsLast {
        weight_too: bool,
    },
}

/// What a kernel computes beside the operation. The third input of the convolution is a bias. That of a gradient is a
/// mask: the gradient of the result counts as 0 where the mask is at most 0.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Fused {
    Nothing,
    /// `relu` of the result.
    Relu,
    /// The masking of the gradient.
    Mask,
    /// The bias' gradient, which follows the weight's, and the masking if there is a mask.
    BiasGrad,
}

/// Whether there are fused kernels for the convolution of that image with `relu`, and for its gradients.
pub(super) fn is_fused(geometry: Conv2dOptions, image: &Tensor, weight: Shape) -> bool {
    match image.storage().device() {
        Device::Cpu => true,
        Device::Cuda(device) => {
            geometry.dims(image.shape(), &weight).is_ok_and(|dims| cuda::is_fused(device, &dims, image.dtype()))
        }
    }
}

impl ConvolutionOp {
    /// The convolution of that image and weight.
    pub(super) fn forward(geometry: Conv2dOptions, image: &Tensor, weight: &Tensor) -> Self {
        let (image, weight) = (*image.shape(), *weight.shape());
        ConvolutionOp { kind: ConvolutionKind::Forward, geometry, image, weight, memory: MemoryFormat::ChannelsFirst }
    }

    fn dims(&self) -> Result<cpu::ConvDims> {
        self.geometry.dims(&self.image, &self.weight)
    }

    fn out_shape(&self) -> Result<Shape> {
        let is_weight = matches!(self.kind, ConvolutionKind::WeightGrad);
        let shape = match self.kind {
            ConvolutionKind::Forward => {
                let d = self.dims()?;
                Shape::new(&[d.batch, d.out_channels, d.out_size[0], d.out_size[1]])?
            }
            ConvolutionKind::ImageGrad => self.image,
            ConvolutionKind::WeightGrad => self.weight,
        };
        match self.memory {
            MemoryFormat::ChannelsLast { weight_too } if weight_too || !is_weight => {
                Shape::new(&[shape[0], shape[2], shape[3], shape[1]])
            }
            _ => Ok(shape),
        }
    }

    /// The result, recorded.
    pub(super) fn apply(self, inputs: [Option<&Tensor>; 3]) -> Result<Tensor> {
        self.check_bias(OP, inputs[2])?;
        let inputs = prepared(OP, Precision::Same, inputs.mapped(|input| input.map(Tensor::raw)))?;
        let inputs = inputs.each_ref().mapped(Option::as_ref);
        let out = self.run(OP, inputs, Fused::Nothing)?;
        Ok(record(OP, self, inputs, out).typed())
    }

    /// The convolution followed by `relu`, recorded. Only if [`is_fused`].
    pub(super) fn apply_with_relu(self, image: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let op = "conv2d_relu";
        self.check_bias(OP, Some(bias))?;
        let inputs = prepared(op, Precision::Same, [image, weight, bias].mapped(|input| Some(input.raw())))?;
        let inputs = inputs.each_ref().mapped(Option::as_ref);
        let out = self.run(op, inputs, Fused::Relu)?;
        Ok(record(op, ConvolutionRelu(self), inputs, out).typed())
    }

    /// Checks that the bias has a number for each channel of the result.
    pub(super) fn check_bias(&self, op: &'static str, bias: Option<&Tensor>) -> Result<()> {
        let Some(bias) = bias else { return Ok(()) };
        let out_channels = self.out_shape()?[1];
        if *bias.shape() == [out_channels] {
            return Ok(());
        }
        let expected = format!("with the weight {} it must be [{out_channels}]", self.weight);
        Err(Error::wrong_shape(op, "the bias", bias.shape(), expected))
    }

    fn run(&self, op: &'static str, inputs: [Option<&Raw>; 3], fused: Fused) -> Result<Raw> {
        let [Some(first), ..] = inputs else { unreachable!("only the third may be missing") };
        let d = &self.dims()?;
        let shape = match fused {
            Fused::BiasGrad => Shape::new(&[self.weight.elements() + self.weight[0]])?,
            _ => self.out_shape()?,
        };
        let running = profiler::op(op);
        profiler::count_flops(|| d.flops());
        let out = match first.storage.device() {
            Device::Cpu => on_cpu(op, inputs, (shape, first.dtype()), &mut |inputs, out| {
                by_real!(inputs.dtype(), R => {
                    let (first, second, third) = (inputs.view::<R>(0).data, inputs.view(1).data, inputs.data(2));
                    match self.kind {
                        ConvolutionKind::Forward => {
                            cpu::forward(d, first, second, third, fused == Fused::Relu, out.stored())
                        }
                        ConvolutionKind::ImageGrad => cpu::input_grad(d, second, first, out.stored()),
                        ConvolutionKind::WeightGrad => {
                            let grad = cpu::Gradient { numbers: second, positive: third };
                            cpu::weight_and_bias_grad(d, first, grad, out.stored())
                        }
                    }
                    .map_err(Error::scratch(OP))
                })
            }),
            Device::Cuda(device) => on_cuda(op, device, inputs, (shape, first.dtype()), &mut |inputs, out| {
                let [.., third] = inputs.optional_cuda_views();
                let views = [inputs.cuda_view(0), inputs.cuda_view(1)];
                match self.memory {
                    MemoryFormat::ChannelsFirst => cuda::convolve(device, self.kind, d, views, (third, fused), out),
                    MemoryFormat::ChannelsLast { weight_too } => {
                        library::convolve_channels_last(device, OP, self.kind, d, weight_too, views, out)
                    }
                }
            }),
        }?;
        if matches!(fused, Fused::Nothing | Fused::Relu) {
            running.note_result(&inputs, &out, op);
        }
        Ok(out)
    }

    /// Another one of the three operations, with the same sizes.
    fn apply_other_kind(&self, kind: ConvolutionKind, inputs: [&Tensor; 2]) -> Result<Tensor> {
        let [first, second] = inputs.mapped(Some);
        ConvolutionOp { kind, ..*self }.apply([first, second, None])
    }

    /// The gradients of weight and bias by one kernel.
    fn weight_and_bias_grads(&self, image: &Raw, grad: &Raw, mask: Option<&Raw>) -> Result<[Option<Tensor>; 2]> {
        let op = ConvolutionOp { kind: ConvolutionKind::WeightGrad, ..*self };
        let both: Tensor = op.run(OP, [Some(image), Some(grad), mask], Fused::BiasGrad)?.typed();
        let [weight, bias] = both.split_after(self.weight.elements())?;
        Ok([Some(weight.reshape_to(self.weight)?), Some(bias)])
    }
}

impl Derivative<3> for ConvolutionOp {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        use ConvolutionKind::{Forward, ImageGrad, WeightGrad};
        let (first, second) = (saved.input(0), saved.input(1));
        let [of_first, of_second] = match self.kind {
            // of image and weight; `grad` is the result's
            Forward => [(ImageGrad, [second, grad]), (WeightGrad, [first, grad])],
            // of weight and result; `grad` is shaped like the image
            ImageGrad => [(WeightGrad, [grad, second]), (Forward, [grad, first])],
            // of image and result; `grad` is shaped like the weight
            WeightGrad => [(ImageGrad, [grad, second]), (Forward, [first, grad])],
        };
        let first_grad = saved.grad_of(0, || self.apply_other_kind(of_first.0, of_first.1))?;
        let is_fused = allows_fused_grads(saved) && is_fused(self.geometry, saved.input(0), self.weight);
        let [second_grad, bias_grad] = match is_fused {
            true => self.weight_and_bias_grads(first.raw(), &grad.raw().gap_free()?, None)?,
            false => [
                saved.grad_of(1, || self.apply_other_kind(of_second.0, of_second.1))?,
                saved.grad_of(2, || grad.sum([0, 2, 3]))?,
            ],
        };
        Ok([first_grad, second_grad, bias_grad])
    }
}

/// Whether one kernel may compute the gradients of weight and bias together.
fn allows_fused_grads(saved: &Saved<'_, 3>) -> bool {
    saved.needs(1) && saved.needs(2) && !is_grad_enabled()
}

/// The derivative of a convolution with a bias and `relu`: where the result is 0, its gradient counts as 0.
struct ConvolutionRelu(ConvolutionOp);

impl Derivative<3> for ConvolutionRelu {
    const SAVES: Saves = Saves::OutputForLast;

    /// On a device, kernels mask the gradient by the result as they read it. So does the CPU if it reads the gradient
    /// once; if it also needs the image's gradient, it writes a masked copy first.
    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let (op, image, weight, out) = (&self.0, saved.input(0), saved.input(1), saved.output());
        let masks_itself = !saved.needs(0) || !grad.device().is_cpu();
        if !allows_fused_grads(saved) || !masks_itself {
            return op.backward(saved, &grad.where_positive(out)?);
        }
        let (grad, out) = (grad.raw().gap_free()?, out.raw().gap_free()?);
        let [weight_grad, bias_grad] = op.weight_and_bias_grads(image.raw(), &grad, Some(&out))?;
        let image_grad = ConvolutionOp { kind: ConvolutionKind::ImageGrad, ..*op };
        let masked = || Ok(image_grad.run(OP, [weight.raw(), &grad, &out].mapped(Some), Fused::Mask)?.typed());
        Ok([saved.grad_of(0, masked)?, weight_grad, bias_grad])
    }
}
