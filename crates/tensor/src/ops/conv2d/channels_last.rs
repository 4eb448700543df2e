//! Convolutions of images whose channels lie next to each other, which cuDNN computes fastest.
//!
//! They are operations on images and results of shape `[batch, height, width, channels]` without gaps, with views around
//! them. Weights that lie so are taken so, others are copied on their way. As in `mod.rs` the three are one family: each is linear in both inputs, and its
//! derivatives are the other two.

use pagelock_cuda::library::ConvolutionKind;

use super::{Conv2dOptions, library};
use crate::autograd::Saved;
use crate::cpu::{CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Kernels, kernels};
use crate::device::Device;
use crate::element::Real;
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::op::{CpuKernel, Inputs, Op, Saves, apply, per_type};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

impl<K: Kind> Tensor<K> {
    /// The same `[batch, channels, height, width]` tensor, with the channels of a pixel next to each other in memory: what
    /// PyTorch calls the memory format `channels_last`. Copies, unless it lies so.
    ///
    /// On a GPU with cuDNN, large convolutions of such images are up to twice as fast, and give such images; elementwise
    /// operations keep the order. Other operations take it as any other order. Weights that lie so as well save the
    /// convolutions copies.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let images = Tensor::rand([2, 3, 4, 5])?;
    /// let last = images.channels_last()?;
    /// assert_eq!((last.shape(), last.is_channels_last()), (images.shape(), true));
    /// assert_eq!(last.strides(), [60, 1, 15, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongShape`] if it has not four dimensions, [`Error::Memory`] if the copy does not fit the budget.
    pub fn channels_last(&self) -> Result<Tensor<K>> {
        self.raw().channels_last().map(Raw::typed)
    }

    /// Whether the channels of a pixel are next to each other, as after [`channels_last`](Self::channels_last).
    pub fn is_channels_last(&self) -> bool {
        self.raw().is_channels_last()
    }
}

impl Raw {
    /// [`Tensor::channels_last`].
    pub(crate) fn channels_last(&self) -> Result<Raw> {
        match self.is_channels_last() {
            true => Ok(self.clone()),
            false => self.permute(&LAST)?.contiguous()?.permute(&BACK),
        }
    }

    /// [`Tensor::is_channels_last`].
    pub(crate) fn is_channels_last(&self) -> bool {
        self.layout.is_channels_last()
    }
}

const LAST: [isize; 4] = [0, 2, 3, 1];
const BACK: [isize; 4] = [0, 3, 1, 2];

/// `[batch, channels, height, width]` as `[batch, height, width, channels]`.
fn last(x: &Tensor) -> Result<Tensor> {
    x.permute(LAST)
}

/// The way back.
fn back(x: &Tensor) -> Result<Tensor> {
    x.permute(BACK)
}

/// Whether results of convolutions of that image lie as it does: on a GPU with cuDNN, where the next ones gain by it.
pub(super) fn is_kept(image: &Tensor) -> bool {
    match image.storage().device() {
        Device::Cuda(device) => {
            image.is_channels_last() && !image.is_contiguous() && library::is_there(device, image.dtype())
        }
        _ => false,
    }
}

/// The convolution in this way, if it suits.
pub(super) fn forward(
    image: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    geometry: Conv2dOptions,
) -> Result<Option<Tensor>> {
    let Device::Cuda(device) = image.storage().device() else { return Ok(None) };
    if !image.is_channels_last() || image.is_contiguous() {
        return Ok(None);
    }
    let dims = geometry.dims(image.shape(), weight.shape())?;
    let bias_fits = bias.is_none_or(|bias| *bias.shape() == [dims.out_channels]);
    if !bias_fits || !library::is_wanted(device, &dims, image.dtype()) {
        return Ok(None);
    }
    let weight_is_last = weight.is_channels_last();
    let (kind, image_shape, weight_shape) = (ConvolutionKind::Forward, *image.shape(), *weight.shape());
    let op = ChannelsLast { kind, geometry, image: image_shape, weight: weight_shape, weight_is_last };
    let laid = if weight_is_last { last(weight)? } else { weight.clone() };
    let result = match apply(op, [&last(image)?, &laid]) {
        Err(Error::Library { .. }) if kernels() != Kernels::Library => return Ok(None),
        result => back(&result?)?,
    };
    match bias {
        Some(bias) => result.add(&bias.reshape([1, -1, 1, 1])?).map(Some),
        None => Ok(Some(result)),
    }
}

/// One of the three, of those two of image, weight and result that it does not make, in this order. Recorded on devices only.
#[derive(Clone, Copy)]
struct ChannelsLast {
    kind: ConvolutionKind,
    geometry: Conv2dOptions,
    /// `[batch, channels, height, width]`
    image: Shape,
    /// `[out_channels, in_channels / groups, kernel_h, kernel_w]`
    weight: Shape,
    /// Whether the weight and its gradient are `[out_channels, kernel_h, kernel_w, in_channels / groups]` here.
    weight_is_last: bool,
}

impl ChannelsLast {
    fn apply_as(&self, kind: ConvolutionKind, inputs: [&Tensor; 2]) -> Result<Tensor> {
        apply(ChannelsLast { kind, ..*self }, inputs)
    }
}

per_type! { ChannelsLast[2]: Real }

impl Op<2> for ChannelsLast {
    const NAME: &'static str = "conv2d_channels_last";
    const SAVES: Saves = Saves::Inputs;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, _: [&Shape; 2]) -> Result<Shape> {
        let made = match self.kind {
            ConvolutionKind::Forward => super::shape_of_result(&self.geometry.dims(&self.image, &self.weight)?)?,
            ConvolutionKind::ImageGrad => self.image,
            ConvolutionKind::WeightGrad if self.weight_is_last => self.weight,
            ConvolutionKind::WeightGrad => return Ok(self.weight),
        };
        Shape::new(&[made[0], made[2], made[3], made[1]])
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 2], out: CudaOut<'_>) -> Result<()> {
        let dims = self.geometry.dims(&self.image, &self.weight)?;
        let name = <Self as Op<2>>::NAME;
        library::convolve_channels_last(device, name, self.kind, &dims, self.weight_is_last, inputs, out)
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
            saved.grad_of(0, || self.apply_as(of_one.0, of_one.1))?,
            saved.grad_of(1, || self.apply_as(of_other.0, of_other.1))?,
        ])
    }
}

impl<R: Real> CpuKernel<R, 2> for ChannelsLast {
    type Out = R;

    fn cpu(&self, _: [CpuView<'_, R>; 2], _: StoredMut<'_, R>) -> Result<()> {
        unreachable!("{} is for devices", <Self as Op<2>>::NAME)
    }
}
