//! Convolution and pooling of sequences: those of images that are one pixel high.

use pagelock_tensor::{Conv2dOptions, Pool2dOptions, Result, Tensor};

use super::pieces::wrong_shape;

/// How a kernel slides over sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv1dOptions {
    /// By how many elements the kernel moves.
    pub stride: usize,
    /// How many zeros are at each end.
    pub padding: usize,
    /// How far the kernel's elements lie apart.
    pub dilation: usize,
    /// In how many groups the channels are, which do not see each other.
    pub groups: usize,
}

impl Default for Conv1dOptions {
    fn default() -> Self {
        Self { stride: 1, padding: 0, dilation: 1, groups: 1 }
    }
}

/// How a window slides over sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool1dOptions {
    /// How long the window is.
    pub kernel: usize,
    /// By how many elements it moves.
    pub stride: usize,
    /// How far it may reach beyond each end.
    pub padding: usize,
}

impl Pool1dOptions {
    /// Windows side by side.
    pub fn new(kernel: usize) -> Self {
        Self { kernel, stride: kernel, padding: 0 }
    }

    fn as_images(self) -> Pool2dOptions {
        Pool2dOptions { kernel: [1, self.kernel], stride: [1, self.stride], padding: [0, self.padding] }
    }
}

/// Cross-correlation of sequences with kernels.
///
/// - `x`: `[batch, in_channels, length]`, or one sample without `batch`
/// - `weight`: `[out_channels, in_channels / groups, kernel]`, `bias`: `[out_channels]`
/// - result: `[batch, out_channels, out]` with `out = (length + 2·padding − dilation·(kernel − 1) − 1) / stride + 1`
///
/// ```
/// use pagelock_nn::functional::{self as F, Conv1dOptions};
/// # use pagelock_tensor::Tensor;
/// let (x, difference) = (Tensor::new([[[1.0, 4.0, 9.0]]])?, Tensor::new([[[-1.0, 1.0]]])?);
/// assert_eq!(F::conv1d(&x, &difference, None, Conv1dOptions::default())?.to_vec::<f32>()?, [3.0, 5.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes do not fit, or the kernel is longer than the padded
/// sequence.
pub fn conv1d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, geometry: Conv1dOptions) -> Result<Tensor> {
    if weight.rank() != 3 {
        let expected = "it must be [out_channels, in_channels / groups, kernel]";
        return Err(wrong_shape("conv1d", "the weight", weight.shape(), expected));
    }
    let Conv1dOptions { stride, padding, dilation, groups } = geometry;
    let geometry = Conv2dOptions { stride: [1, stride], padding: [0, padding], dilation: [1, dilation], groups };
    let weight = weight.unsqueeze(2)?;
    as_images("conv1d", x, |x| x.conv2d(&weight, bias, geometry))
}

/// Runs what takes images on sequences.
fn as_images(op: &str, x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match x.rank() {
        2 => f(&x.unsqueeze(1)?.unsqueeze(0)?)?.squeeze(2)?.squeeze(0),
        3 => f(&x.unsqueeze(2)?)?.squeeze(2),
        _ => {
            let expected = "it must be [batch, channels, length] or [channels, length]; reshape it";
            Err(wrong_shape(op, "the input", x.shape(), expected))
        }
    }
}

/// The largest of each window.
///
/// - `x`: `[batch, channels, length]`, or one sample without `batch`
/// - result: `[batch, channels, out]` with `out = (length + 2·padding − kernel) / stride + 1`
///
/// # Errors
/// As [`max_pool2d`](super::max_pool2d).
pub fn max_pool1d(x: &Tensor, geometry: Pool1dOptions) -> Result<Tensor> {
    as_images("max_pool1d", x, |x| x.max_pool2d(geometry.as_images()))
}

/// The mean of each window; what is beyond the ends counts as 0.
///
/// Shapes as for [`max_pool1d`].
///
/// # Errors
/// As [`avg_pool2d`](super::avg_pool2d).
pub fn avg_pool1d(x: &Tensor, geometry: Pool1dOptions) -> Result<Tensor> {
    as_images("avg_pool1d", x, |x| x.avg_pool2d(geometry.as_images()))
}

/// The means of `size` windows that cover the sequence evenly.
///
/// - `x`: `[batch, channels, length]`, or one sample without `batch`
/// - result: `[batch, channels, size]`
///
/// # Errors
/// As [`adaptive_avg_pool2d`](super::adaptive_avg_pool2d).
pub fn adaptive_avg_pool1d(x: &Tensor, size: usize) -> Result<Tensor> {
    as_images("adaptive_avg_pool1d", x, |x| x.adaptive_avg_pool2d([1, size]))
}
