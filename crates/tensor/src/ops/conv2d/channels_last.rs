//! Convolutions of images whose channels lie next to each other, which cuDNN computes fastest.
//!
//! The operations take contiguous images and give contiguous results of shape `[batch, height, width, channels]`;
//! views convert to and from the usual shape. Channels-last weights are used as they are, others are copied.

use pagelock_cuda::library::ConvolutionKind;

use super::convolution::{ConvolutionOp, MemoryFormat};
use super::{Conv2dOptions, library};
use crate::cuda::{Kernels, kernels};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::tensor::{Raw, Tensor};

impl<K: Kind> Tensor<K> {
    /// The same `[batch, channels, height, width]` tensor, with the channels of a pixel next to each other in memory:
    /// what PyTorch calls the memory format `channels_last`. Copies, unless the tensor already has that format.
    ///
    /// On a GPU with cuDNN, large convolutions of such images are up to twice as fast, and their results have the
    /// same format. Elementwise operations keep the format, other operations treat it like any strides. If the
    /// weights have it, too, convolutions need not copy them.
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
    /// [`Error::Argument`] if the tensor does not have four dimensions, [`Error::Memory`] if the copy does not fit
    /// the budget.
    pub fn channels_last(&self) -> Result<Tensor<K>> {
        if self.is_channels_last() {
            return Ok(self.clone());
        }
        self.raw().permute(&TO_CHANNELS_LAST)?.contiguous()?.permute(&TO_CHANNELS_FIRST).map(Raw::typed)
    }

    /// Whether the channels of a pixel are next to each other, as after [`channels_last`](Self::channels_last).
    pub fn is_channels_last(&self) -> bool {
        self.raw().layout.is_channels_last()
    }
}

/// `[batch, channels, height, width]` as `[batch, height, width, channels]`.
const TO_CHANNELS_LAST: [isize; 4] = [0, 2, 3, 1];
/// `[batch, height, width, channels]` as `[batch, channels, height, width]`.
const TO_CHANNELS_FIRST: [isize; 4] = [0, 3, 1, 2];

/// Whether convolutions of that image keep its channels-last format: on a GPU with cuDNN, where it makes the next
/// convolution faster.
pub(super) fn is_kept(image: &Tensor) -> bool {
    match image.storage().device() {
        Device::Cuda(device) => {
            image.is_channels_last() && !image.is_contiguous() && library::is_available(device, image.dtype())
        }
        _ => false,
    }
}

/// The convolution in channels-last format, or `None` if image or sizes do not suit.
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
    let is_wanted = |&kind: &ConvolutionKind| library::is_wanted(device, &dims, kind, image.dtype());
    if !bias_fits || !library::KINDS.iter().all(is_wanted) {
        return Ok(None);
    }
    let weight_is_last = weight.is_channels_last();
    let memory = MemoryFormat::ChannelsLast { weight_too: weight_is_last };
    let op = ConvolutionOp { memory, ..ConvolutionOp::forward(geometry, image, weight) };
    let image = image.permute(TO_CHANNELS_LAST)?;
    let weight = if weight_is_last { weight.permute(TO_CHANNELS_LAST)? } else { weight.clone() };
    let result = match op.apply([Some(&image), Some(&weight), None]) {
        Err(Error::Library { .. }) if kernels() != Kernels::Library => return Ok(None),
        result => result?.permute(TO_CHANNELS_FIRST)?,
    };
    match bias {
        Some(bias) => result.add(&bias.reshape([1, -1, 1, 1])?).map(Some),
        None => Ok(Some(result)),
    }
}
