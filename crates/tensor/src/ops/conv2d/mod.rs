//! Two-dimensional convolution (cross-correlation, zero padding), and its two derivatives.
//!
//! Read `convolution.rs` next, the operation, then `cpu.rs` or `cuda.rs`.

mod channels_last;
mod convolution;
mod cpu;
mod cuda;
mod library;
mod small;
mod transposed;

use self::convolution::{ConvolutionOp, is_fused};
pub use self::transposed::ConvTranspose2dOptions;
use crate::autocast::prepared;
use crate::error::{Error, Result};
use crate::op::{Precision, same_precision};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The constructor and the builder methods that the options of both convolutions have.
macro_rules! geometry_methods {
    ($options:ident) => {
        impl $options {
            /// The defaults.
            pub fn new() -> $options {
                $options::default()
            }

            /// The same stride both ways.
            #[must_use]
            pub fn stride(self, stride: usize) -> $options {
                $options { stride: [stride; 2], ..self }
            }

            /// The same padding on all sides.
            #[must_use]
            pub fn padding(self, padding: usize) -> $options {
                $options { padding: [padding; 2], ..self }
            }

            /// The same dilation both ways.
            #[must_use]
            pub fn dilation(self, dilation: usize) -> $options {
                $options { dilation: [dilation; 2], ..self }
            }

            /// That number of groups of channels.
            #[must_use]
            pub fn groups(self, groups: usize) -> $options {
                $options { groups, ..self }
            }
        }
    };
}
use geometry_methods;

/// The geometry of [`Tensor::conv2d`]: stride 1, no padding, dilation 1 and one group, unless changed.
///
/// ```
/// # use pagelock_tensor::Conv2dOptions;
/// let halving = Conv2dOptions::new().stride(2).padding(1);
/// assert_eq!(halving, Conv2dOptions { stride: [2, 2], padding: [1, 1], ..Conv2dOptions::new() });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// Distance between neighboring windows, `[vertical, horizontal]`, in pixels.
    pub stride: [usize; 2],
    /// Rows and columns of zeros added on each side.
    pub padding: [usize; 2],
    /// Distance between neighboring taps of the kernel.
    pub dilation: [usize; 2],
    /// The number of groups of channels; each is convolved separately.
    pub groups: usize,
}

impl Default for Conv2dOptions {
    fn default() -> Self {
        Conv2dOptions { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 1 }
    }
}

geometry_methods! { Conv2dOptions }

impl Conv2dOptions {
    /// All sizes, from the shapes of image and weight. This is the only place that checks them.
    fn dims(&self, image: &Shape, weight: &Shape) -> Result<cpu::ConvDims> {
        let wrong =
            |operand, shape: &Shape, expected: String| Err(Error::wrong_shape("conv2d", operand, shape, expected));
        let [batch, in_channels, in_h, in_w] = **image else {
            return wrong(
                "the image",
                image,
                "it must be [batch, channels, height, width]; reshape or unsqueeze it".into(),
            );
        };
        let [out_channels, group_channels, kernel_h, kernel_w] = **weight else {
            return wrong(
                "the weight",
                weight,
                "it must be [out_channels, in_channels / groups, kernel_h, kernel_w]".into(),
            );
        };
        for (argument, values) in [("stride", self.stride), ("dilation", self.dilation), ("groups", [self.groups; 2])] {
            if values.contains(&0) {
                return Err(Error::bad_argument("conv2d", argument, "0", "it must be at least 1"));
            }
        }
        let groups = self.groups;
        if !out_channels.is_multiple_of(groups) {
            return wrong(
                "the weight",
                weight,
                format!("with groups {groups} it must begin with a multiple of {groups}"),
            );
        }
        if Some(in_channels) != group_channels.checked_mul(groups) {
            let (channels, fix) = (group_channels.saturating_mul(groups), "permute it, or change the weight");
            let expected = format!(
                "with groups {groups} and the weight {weight} it must have {channels} channels in dimension 1; {fix}"
            );
            return wrong("the image", image, expected);
        }
        let axis = |size: usize, kernel: usize, axis: usize| {
            let reach = self.dilation[axis].checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
            let padded = size.checked_add(self.padding[axis].checked_mul(2)?)?;
            Some(padded.checked_sub(reach)? / self.stride[axis] + 1)
        };
        let (Some(out_h), Some(out_w)) = (axis(in_h, kernel_h, 0), axis(in_w, kernel_w, 1)) else {
            let expected = format!(
                "its kernel (dilated by {:?}) must not be empty and must fit the image {image} padded by {:?}",
                self.dilation, self.padding
            );
            return wrong("the weight", weight, expected);
        };
        Ok(cpu::ConvDims {
            batch,
            in_channels,
            out_channels,
            groups: self.groups,
            in_size: [in_h, in_w],
            kernel: [kernel_h, kernel_w],
            out_size: [out_h, out_w],
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
        })
    }
}

impl Tensor {
    /// Slides `weight` over `self` (cross-correlation, zero padding).
    ///
    /// - `self`: `[batch, in_channels, height, width]`
    /// - `weight`: `[out_channels, in_channels / groups, kernel_h, kernel_w]`
    /// - `bias`: `[out_channels]`
    /// - result: `[batch, out_channels, out_h, out_w]` with
    ///   `out_h = (height + 2·padding − dilation·(kernel_h − 1) − 1) / stride + 1`
    ///
    /// ```
    /// # use pagelock_tensor::{Conv2dOptions, Tensor};
    /// let image = Tensor::zeros([1, 1, 28, 28])?;
    /// let weight = Tensor::zeros([16, 1, 3, 3])?;
    /// assert_eq!(image.conv2d(&weight, None, Conv2dOptions::new().stride(2).padding(1))?.shape(), &[1, 16, 14, 14]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if channels or sizes do not fit, or for a zero in the geometry.
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, geometry: Conv2dOptions) -> Result<Tensor> {
        let (image, weight) = (prepared(PRECISION, self)?, prepared(PRECISION, weight)?);
        let bias = bias.map(|bias| prepared(PRECISION, bias)).transpose()?;
        image.convolved(&weight, bias.as_ref(), geometry)
    }

    /// [`conv2d`](Self::conv2d) in the precision of the operands.
    fn convolved(&self, weight: &Tensor, bias: Option<&Tensor>, geometry: Conv2dOptions) -> Result<Tensor> {
        same_precision("conv2d", &[self.raw(), weight.raw(), bias.unwrap_or(weight).raw()])?;
        if let Some(result) = channels_last::forward(self, weight, bias, geometry)? {
            return Ok(result);
        }
        let result = ConvolutionOp::forward(geometry, self, weight).apply([Some(self), Some(weight), bias])?;
        if channels_last::is_kept(self) { result.channels_last() } else { Ok(result) }
    }

    /// `self.conv2d(weight, bias, geometry)?.relu()` with fewer passes over memory where that is possible: with a
    /// bias, on the CPU or for small images on a GPU.
    ///
    /// ```
    /// # use pagelock_tensor::{Conv2dOptions, Tensor};
    /// let (image, weight) = (Tensor::new([[[[1.0, -2.0]]]])?, Tensor::ones([1, 1, 1, 1])?);
    /// let bias = Tensor::new([0.5])?;
    /// assert_eq!(image.conv2d_relu(&weight, Some(&bias), Conv2dOptions::new())?.to_vec::<f32>()?, [1.5, 0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::conv2d`].
    pub fn conv2d_relu(&self, weight: &Tensor, bias: Option<&Tensor>, geometry: Conv2dOptions) -> Result<Tensor> {
        let (image, weight) = (prepared(PRECISION, self)?, prepared(PRECISION, weight)?);
        let bias = bias.map(|bias| prepared(PRECISION, bias)).transpose()?;
        match &bias {
            Some(bias) if is_fused(geometry, &image, *weight.shape()) => {
                ConvolutionOp::forward(geometry, &image, &weight).apply_with_relu(&image, &weight, bias)
            }
            bias => image.convolved(&weight, bias.as_ref(), geometry)?.relu(),
        }
    }
}

const PRECISION: Precision = Precision::HalfUnderAutocast;
