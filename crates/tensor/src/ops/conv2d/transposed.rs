//! The transposed convolution: the image gradient of a convolution, as an operation of its own.
//!
//! The image of the transposed convolution is the result of that convolution, and its result is that convolution's
//! image; the weight is the same.

use pagelock_cuda::library::ConvolutionKind;

use super::convolution::{ConvolutionOp, MemoryFormat};
use super::{Conv2dOptions, PRECISION, geometry_methods};
use crate::autocast::prepared;
use crate::error::{Error, Result};
use crate::op::same_precision;
use crate::shape::Shape;
use crate::tensor::Tensor;

const OP: &str = "conv_transpose2d";

/// The geometry of [`Tensor::conv_transpose2d`]: stride 1, no padding, dilation 1 and one group, unless changed.
///
/// ```
/// # use pagelock_tensor::ConvTranspose2dOptions;
/// let doubling = ConvTranspose2dOptions::new().stride(2).padding(1);
/// assert_eq!(doubling, ConvTranspose2dOptions { stride: [2, 2], padding: [1, 1], ..ConvTranspose2dOptions::new() });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvTranspose2dOptions {
    /// Distance in the result between the kernels of neighboring pixels, `[vertical, horizontal]`.
    pub stride: [usize; 2],
    /// Rows and columns of the result that are left out on each side.
    pub padding: [usize; 2],
    /// Additional rows at the bottom and columns on the right of the result; below the stride.
    pub output_padding: [usize; 2],
    /// The number of groups of channels; each is convolved separately.
    pub groups: usize,
    /// Distance between neighboring taps of the kernel.
    pub dilation: [usize; 2],
}

impl Default for ConvTranspose2dOptions {
    fn default() -> Self {
        ConvTranspose2dOptions { stride: [1, 1], padding: [0, 0], output_padding: [0, 0], groups: 1, dilation: [1, 1] }
    }
}

geometry_methods! { ConvTranspose2dOptions }

impl ConvTranspose2dOptions {
    /// That number of additional rows and columns.
    #[must_use]
    pub fn output_padding(self, output_padding: usize) -> ConvTranspose2dOptions {
        ConvTranspose2dOptions { output_padding: [output_padding; 2], ..self }
    }

    /// The operation. This is the only place that checks its shapes.
    fn op(&self, image: &Shape, weight: &Shape) -> Result<ConvolutionOp> {
        let [batch, in_channels, in_h, in_w] = **image else {
            let expected = "it must be [batch, channels, height, width]; reshape or unsqueeze it";
            return Err(Error::wrong_shape(OP, "the image", image, expected));
        };
        let [weight_in_channels, group_channels, kernel_h, kernel_w] = **weight else {
            let expected = "it must be [in_channels, out_channels / groups, kernel_h, kernel_w]";
            return Err(Error::wrong_shape(OP, "the weight", weight, expected));
        };
        let ConvTranspose2dOptions { stride, padding, output_padding, groups, dilation } = *self;
        if groups == 0 || in_channels != weight_in_channels || !in_channels.is_multiple_of(groups) {
            let expected = format!(
                "for the image {image} in {groups} groups it must begin with {in_channels}, a multiple of groups"
            );
            return Err(Error::wrong_shape(OP, "the weight", weight, expected));
        }
        let axis = |axis: usize, size: usize, kernel: usize| {
            if output_padding[axis] >= stride[axis] {
                let expected = format!("it must be below the stride, which is {}", stride[axis]);
                return Err(Error::bad_argument(OP, "output_padding", output_padding[axis], expected));
            }
            out_size(size, kernel, [stride[axis], padding[axis], output_padding[axis], dilation[axis]]).ok_or_else(
                || {
                    let expected = format!(
                        "the result would be empty with the kernel [{kernel_h}, {kernel_w}] and padding {padding:?}; \
                         pad less"
                    );
                    Error::wrong_shape(OP, "the image", image, expected)
                },
            )
        };
        let size = [axis(0, in_h, kernel_h)?, axis(1, in_w, kernel_w)?];
        let out_channels = group_channels.saturating_mul(groups);
        Ok(ConvolutionOp {
            kind: ConvolutionKind::ImageGrad,
            geometry: Conv2dOptions { stride, padding, dilation, groups },
            image: Shape::new(&[batch, out_channels, size[0], size[1]])?,
            weight: *weight,
            memory: MemoryFormat::ChannelsFirst,
        })
    }
}

/// `(size − 1)·stride − 2·padding + dilation·(kernel − 1) + output_padding + 1`, if that is at least 1.
fn out_size(size: usize, kernel: usize, [stride, padding, output_padding, dilation]: [usize; 4]) -> Option<usize> {
    let reach = dilation.checked_mul(kernel.checked_sub(1)?)?;
    let whole =
        size.checked_sub(1)?.checked_mul(stride)?.checked_add(reach)?.checked_add(output_padding)?.checked_add(1)?;
    whole.checked_sub(padding.checked_mul(2)?).filter(|&out| out > 0 && dilation > 0)
}

impl Tensor {
    /// Adds up copies of `weight`, one for each pixel, multiplied by the pixel and placed `stride` apart. This is the
    /// image gradient of [`conv2d`](Tensor::conv2d) with the same geometry, and as a layer makes images larger.
    ///
    /// - `self`: `[batch, in_channels, height, width]`
    /// - `weight`: `[in_channels, out_channels / groups, kernel_h, kernel_w]`
    /// - `bias`: `[out_channels]`
    /// - result: `[batch, out_channels, out_h, out_w]` with
    ///   `out_h = (height − 1)·stride − 2·padding + dilation·(kernel_h − 1) + output_padding + 1`
    ///
    /// ```
    /// # use pagelock_tensor::{ConvTranspose2dOptions, Tensor};
    /// let image = Tensor::zeros([1, 8, 14, 14])?;
    /// let weight = Tensor::zeros([8, 3, 4, 4])?;
    /// let doubling = ConvTranspose2dOptions::new().stride(2).padding(1);
    /// assert_eq!(image.conv_transpose2d(&weight, None, doubling)?.shape(), &[1, 3, 28, 28]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if channels or sizes do not fit, for a zero in the geometry, or if `output_padding` is not below
    /// the stride.
    pub fn conv_transpose2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        geometry: ConvTranspose2dOptions,
    ) -> Result<Tensor> {
        let (image, weight) = (prepared(PRECISION, self)?, prepared(PRECISION, weight)?);
        let bias = bias.map(|bias| prepared(PRECISION, bias)).transpose()?;
        let operands = [image.raw(), weight.raw(), bias.as_ref().unwrap_or(&weight).raw()];
        same_precision(OP, &operands)?;
        let op = geometry.op(image.shape(), weight.shape())?;
        op.check_bias(OP, bias.as_ref())?;
        let result = op.apply([Some(&weight), Some(&image), None])?;
        match bias {
            Some(bias) => result.add(&bias.reshape([1, -1, 1, 1])?),
            None => Ok(result),
        }
    }
}
