//! Convolutions and transposed convolutions of sequences, images and volumes.
//!
//! A sequence is computed as an image of height 1. A volume is computed by one [`Tensor::conv2d`] of images, each of
//! which holds the channels of all slices that the kernel covers at one depth. These images are a copy of the volume
//! that is `kernel_depth / stride` times as large; the gradients need as much memory.

use pagelock_tensor::{Conv2dOptions, ConvTranspose2dOptions, PadMode, Result, Tensor};

use super::shared::{index, signed, wrong_argument, wrong_shape};

/// How a kernel slides over sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv1dOptions {
    /// The distance between neighboring windows, in elements.
    pub stride: usize,
    /// The number of zeros added at each end.
    pub padding: usize,
    /// The distance between neighboring elements of the kernel.
    pub dilation: usize,
    /// The number of groups of channels, which are convolved independently.
    pub groups: usize,
}

impl Default for Conv1dOptions {
    fn default() -> Self {
        Self { stride: 1, padding: 0, dilation: 1, groups: 1 }
    }
}

/// How a kernel slides over volumes; sizes are `[depth, height, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv3dOptions {
    /// The distance between neighboring windows, in elements.
    pub stride: [usize; 3],
    /// The number of zeros added at each end.
    pub padding: [usize; 3],
    /// The distance between neighboring elements of the kernel.
    pub dilation: [usize; 3],
    /// The number of groups of channels, which are convolved independently.
    pub groups: usize,
}

impl Default for Conv3dOptions {
    fn default() -> Self {
        Self { stride: [1; 3], padding: [0; 3], dilation: [1; 3], groups: 1 }
    }
}

/// The geometry of a transposed convolution of sequences; see [`ConvTranspose2dOptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose1dOptions {
    /// The distance in the result between neighboring elements of the input.
    pub stride: usize,
    /// The number of elements removed at each end of the result.
    pub padding: usize,
    /// The number of elements added at the end of the result; below the stride.
    pub output_padding: usize,
    /// The number of groups of channels, which are convolved independently.
    pub groups: usize,
    /// The distance between neighboring elements of the kernel.
    pub dilation: usize,
}

impl Default for ConvTranspose1dOptions {
    fn default() -> Self {
        Self { stride: 1, padding: 0, output_padding: 0, groups: 1, dilation: 1 }
    }
}

/// The geometry of a transposed convolution of volumes; sizes are `[depth, height, width]`. See
/// [`ConvTranspose2dOptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose3dOptions {
    /// The distance in the result between neighboring elements of the input.
    pub stride: [usize; 3],
    /// The number of elements removed at each end of the result.
    pub padding: [usize; 3],
    /// The number of elements added at the end of each dimension of the result; below the stride.
    pub output_padding: [usize; 3],
    /// The number of groups of channels, which are convolved independently.
    pub groups: usize,
    /// The distance between neighboring elements of the kernel.
    pub dilation: [usize; 3],
}

impl Default for ConvTranspose3dOptions {
    fn default() -> Self {
        Self { stride: [1; 3], padding: [0; 3], output_padding: [0; 3], groups: 1, dilation: [1; 3] }
    }
}

/// Runs `f`, which takes a batch, on a batch or on one sample. `rank` is the rank of a sample.
fn batched(
    op: &str,
    x: &Tensor,
    (rank, dims): (usize, &str),
    f: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    match x.rank() {
        one if one == rank => f(&x.unsqueeze(0)?)?.squeeze(0),
        batch if batch == rank + 1 => f(x),
        _ => {
            Err(wrong_shape(op, "the input", x.shape(), &format!("it must be [batch, {dims}] or [{dims}]; reshape it")))
        }
    }
}

const SEQUENCE: (usize, &str) = (2, "channels, length");
const IMAGE: (usize, &str) = (3, "channels, height, width");
const VOLUME: (usize, &str) = (4, "channels, depth, height, width");

fn check_weight(op: &str, weight: &Tensor, rank: usize, expected: &str) -> Result<()> {
    if weight.rank() == rank { Ok(()) } else { Err(wrong_shape(op, "the weight", weight.shape(), expected)) }
}

/// Checks that a weight `[out_channels, in_channels / groups, ..]` fits the batch `x`.
fn check_channels(op: &str, x: &Tensor, weight: &Tensor, groups: usize) -> Result<()> {
    let (in_channels, out_channels, group_channels) = (x.dims()[1], weight.dims()[0], weight.dims()[1]);
    if groups == 0 {
        return Err(wrong_argument(op, "groups", groups, "at least 1"));
    }
    let weight = weight.shape();
    if !out_channels.is_multiple_of(groups) {
        let expected = format!("with groups {groups} it must begin with a multiple of {groups}");
        return Err(wrong_shape(op, "the weight", weight, &expected));
    }
    if Some(in_channels) == group_channels.checked_mul(groups) {
        return Ok(());
    }
    let (channels, fix) = (group_channels.saturating_mul(groups), "permute it, or change the weight");
    let expected =
        format!("with groups {groups} and the weight {weight} it must have {channels} channels in dimension 1; {fix}");
    Err(wrong_shape(op, "the input", x.shape(), &expected))
}

/// Checks that a weight `[in_channels, out_channels / groups, ..]` of a transposed convolution fits the batch `x`.
fn check_transposed_channels(op: &str, x: &Tensor, weight: &Tensor, groups: usize) -> Result<()> {
    let in_channels = x.dims()[1];
    if groups > 0 && in_channels == weight.dims()[0] && in_channels.is_multiple_of(groups) {
        return Ok(());
    }
    let expected = format!(
        "for an input of {in_channels} channels in {groups} groups it must begin with {in_channels}, \
         a multiple of groups"
    );
    Err(wrong_shape(op, "the weight", weight.shape(), &expected))
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
    check_weight("conv1d", weight, 3, "it must be [out_channels, in_channels / groups, kernel]")?;
    let Conv1dOptions { stride, padding, dilation, groups } = geometry;
    let geometry = Conv2dOptions { stride: [1, stride], padding: [0, padding], dilation: [1, dilation], groups };
    batched("conv1d", x, SEQUENCE, |x| {
        check_channels("conv1d", x, weight, groups)?;
        x.unsqueeze(2)?.conv2d(&weight.unsqueeze(2)?, bias, geometry)?.squeeze(2)
    })
}

/// Cross-correlation of images with kernels; see [`Tensor::conv2d`] for the shapes. One sample may come without `batch`.
///
/// # Errors
/// The numbers of channels do not fit, or the kernel is larger than the padded image.
pub fn conv2d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, geometry: Conv2dOptions) -> Result<Tensor> {
    batched("conv2d", x, IMAGE, |x| x.conv2d(weight, bias, geometry))
}

/// Cross-correlation of volumes with kernels. It runs as one [`conv2d`] over a copy that holds, for each output
/// depth, the slices that the kernel covers. The copy has `kernel_depth / stride_depth` times the elements of the
/// volume.
///
/// - `x`: `[batch, in_channels, depth, height, width]`, or one sample without `batch`
/// - `weight`: `[out_channels, in_channels / groups, kernel_d, kernel_h, kernel_w]`, `bias`: `[out_channels]`
/// - result: `[batch, out_channels, out_d, out_h, out_w]` with
///   `out_d = (depth + 2·padding − dilation·(kernel_d − 1) − 1) / stride + 1`
///
/// ```
/// use pagelock_nn::functional::{self as F, Conv3dOptions};
/// # use pagelock_tensor::Tensor;
/// let (x, weight) = (Tensor::ones([2, 3, 4, 5, 6])?, Tensor::ones([8, 3, 3, 3, 3])?);
/// let y = F::conv3d(&x, &weight, None, Conv3dOptions { padding: [1; 3], ..Conv3dOptions::default() })?;
/// assert_eq!(y.dims(), [2, 8, 4, 5, 6]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes do not fit, or the kernel is larger than the padded volume.
pub fn conv3d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, geometry: Conv3dOptions) -> Result<Tensor> {
    let expected = "it must be [out_channels, in_channels / groups, kernel_d, kernel_h, kernel_w]";
    check_weight("conv3d", weight, 5, expected)?;
    batched("conv3d", x, VOLUME, |x| {
        check_channels("conv3d", x, weight, geometry.groups)?;
        convolve_slices(x, weight, bias, geometry)
    })
}

fn convolve_slices(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, geometry: Conv3dOptions) -> Result<Tensor> {
    let Conv3dOptions { stride: [stride_d, stride @ ..], padding: [padding_d, padding @ ..], .. } = geometry;
    let [dilation_d, dilation @ ..] = geometry.dilation;
    let kernel = weight.dims()[2];
    let span = kernel.checked_sub(1).and_then(|last| last.checked_mul(dilation_d)?.checked_add(1));
    let ends = isize::try_from(padding_d).unwrap_or(isize::MAX);
    let padded = if ends == 0 { x.clone() } else { x.pad(&[0, 0, 0, 0, ends, ends], PadMode::Constant(0.0))? };
    let depth = padded.dims()[2];
    let Some(span) = span.filter(|&span| span <= depth && stride_d > 0 && dilation_d > 0) else {
        let expected = format!(
            "its kernel (dilated by {dilation_d}) must fit the depth {depth} of the padded input, with a stride and a \
             dilation of at least 1"
        );
        return Err(wrong_shape("conv3d", "the weight", weight.shape(), &expected));
    };
    let [batch, channels, _, height, width] = volume_dims(x);
    // [batch, channels, slices, height, width, kernel] as [batch · slices, channels · kernel, height, width]
    let windows = padded.unfold(2, span, stride_d)?.slice(-1, 0..signed(span), dilation_d)?;
    let slices = windows.dims()[2];
    let windows = windows.permute([0, 2, 1, 5, 3, 4])?;
    let images = windows.reshape([batch * slices, channels * kernel, height, width].map(signed))?;
    let geometry = Conv2dOptions { stride, padding, dilation, groups: geometry.groups };
    let y = images.conv2d(&weight.flatten(1, 2)?, bias, geometry)?;
    y.unflatten(0, [batch, slices])?.transpose(1, 2)
}

/// The five sizes of a batch of volumes, whose rank [`batched`] has checked.
fn volume_dims(x: &Tensor) -> [usize; 5] {
    let &[batch, channels, depth, height, width] = x.dims() else { unreachable!("`batched` accepted {}", x.shape()) };
    [batch, channels, depth, height, width]
}

/// The transposed convolution of sequences: the sum of copies of the kernel, each shifted to the position of an input
/// element and multiplied by it.
///
/// - `x`: `[batch, in_channels, length]`, or one sample without `batch`
/// - `weight`: `[in_channels, out_channels / groups, kernel]`, `bias`: `[out_channels]`
/// - result: `[batch, out_channels, out]` with
///   `out = (length − 1)·stride − 2·padding + dilation·(kernel − 1) + output_padding + 1`
///
/// ```
/// use pagelock_nn::functional::{self as F, ConvTranspose1dOptions};
/// # use pagelock_tensor::Tensor;
/// let (x, weight) = (Tensor::new([[[1.0, 10.0]]])?, Tensor::new([[[1.0, 2.0, 3.0]]])?);
/// let doubling = ConvTranspose1dOptions { stride: 2, ..ConvTranspose1dOptions::default() };
/// assert_eq!(F::conv_transpose1d(&x, &weight, None, doubling)?.to_vec::<f32>()?, [1.0, 2.0, 13.0, 20.0, 30.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`Tensor::conv_transpose2d`].
pub fn conv_transpose1d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    geometry: ConvTranspose1dOptions,
) -> Result<Tensor> {
    check_weight("conv_transpose1d", weight, 3, "it must be [in_channels, out_channels / groups, kernel]")?;
    let ConvTranspose1dOptions { stride, padding, output_padding, groups, dilation } = geometry;
    let geometry = ConvTranspose2dOptions {
        stride: [1, stride],
        padding: [0, padding],
        output_padding: [0, output_padding],
        groups,
        dilation: [1, dilation],
    };
    batched("conv_transpose1d", x, SEQUENCE, |x| {
        check_transposed_channels("conv_transpose1d", x, weight, groups)?;
        x.unsqueeze(2)?.conv_transpose2d(&weight.unsqueeze(2)?, bias, geometry)?.squeeze(2)
    })
}

/// The transposed convolution of images; see [`Tensor::conv_transpose2d`] for the shapes. One sample may come without `batch`.
///
/// # Errors
/// As [`Tensor::conv_transpose2d`].
pub fn conv_transpose2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    geometry: ConvTranspose2dOptions,
) -> Result<Tensor> {
    batched("conv_transpose2d", x, IMAGE, |x| x.conv_transpose2d(weight, bias, geometry))
}

/// The transposed convolution of volumes: one [`conv_transpose2d`] of all slices, whose results are then added up at
/// their output depths. For each input slice, the intermediate tensor has `kernel_depth` times the elements of one
/// output slice.
///
/// - `x`: `[batch, in_channels, depth, height, width]`, or one sample without `batch`
/// - `weight`: `[in_channels, out_channels / groups, kernel_d, kernel_h, kernel_w]`, `bias`: `[out_channels]`
/// - result: `[batch, out_channels, out_d, out_h, out_w]` with
///   `out_d = (depth − 1)·stride − 2·padding + dilation·(kernel_d − 1) + output_padding + 1`
///
/// # Errors
/// As [`Tensor::conv_transpose2d`].
pub fn conv_transpose3d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    geometry: ConvTranspose3dOptions,
) -> Result<Tensor> {
    let expected = "it must be [in_channels, out_channels / groups, kernel_d, kernel_h, kernel_w]";
    check_weight("conv_transpose3d", weight, 5, expected)?;
    batched("conv_transpose3d", x, VOLUME, |x| {
        check_transposed_channels("conv_transpose3d", x, weight, geometry.groups)?;
        let y = spread_slices(x, weight, geometry)?;
        match bias {
            Some(bias) if *bias.dims() == [y.dims()[1]] => y.add(&bias.to_dtype(y.dtype())?.reshape([-1, 1, 1, 1])?),
            Some(bias) => {
                let expected = format!("with the weight {} it must be [{}]", weight.shape(), y.dims()[1]);
                Err(wrong_shape("conv_transpose3d", "the bias", bias.shape(), &expected))
            }
            None => Ok(y),
        }
    })
}

fn spread_slices(x: &Tensor, weight: &Tensor, geometry: ConvTranspose3dOptions) -> Result<Tensor> {
    let op = "conv_transpose3d";
    let ConvTranspose3dOptions { stride: [stride_d, stride @ ..], padding: [padding_d, padding @ ..], .. } = geometry;
    let [more_d, output_padding @ ..] = geometry.output_padding;
    let [dilation_d, dilation @ ..] = geometry.dilation;
    if more_d >= stride_d {
        return Err(wrong_argument(op, "output_padding", more_d, &format!("below the stride, which is {stride_d}")));
    }
    let ([batch, _, depth, ..], kernel) = (volume_dims(x), weight.dims()[2]);
    let span = kernel.checked_sub(1).and_then(|last| last.checked_mul(dilation_d));
    let spread = depth.checked_sub(1).and_then(|last| last.checked_mul(stride_d));
    let full = span.zip(spread).and_then(|(span, spread)| span.checked_add(spread)?.checked_add(more_d + 1));
    let out_d = full.and_then(|full| full.checked_sub(padding_d.checked_mul(2)?));
    let Some((full, out_d)) = full.zip(out_d).filter(|&(_, out_d)| out_d > 0 && dilation_d > 0) else {
        let expected = format!(
            "the result would have no depth with a kernel of depth {kernel} and padding {padding_d}; reduce the padding"
        );
        return Err(wrong_shape(op, "the input", x.shape(), &expected));
    };
    let slices = x.transpose(1, 2)?.flatten(0, 1)?;
    let geometry = ConvTranspose2dOptions { stride, padding, output_padding, groups: geometry.groups, dilation };
    let images = slices.conv_transpose2d(&weight.flatten(1, 2)?, None, geometry)?;
    let &[_, channels, height, width] = images.dims() else { unreachable!("images are {}", images.shape()) };
    let channels = channels / kernel;
    // [batch · depth, channels · kernel, height, width] as [batch, channels, depth · kernel, height, width]
    let by_slice = images.reshape([batch, depth, channels, kernel, height * width].map(signed))?;
    let contributions = by_slice.transpose(1, 2)?.flatten(2, 3)?;
    let depths = (0..depth).flat_map(|slice| (0..kernel).map(move |tap| slice * stride_d + tap * dilation_d));
    let depths = index(depth.saturating_mul(kernel), depths, &x.device())?;
    let zeros = Tensor::on(&x.device()).of(images.dtype()).zeros([batch, channels, full, height * width])?;
    let added = zeros.index_add(2, &depths, &contributions)?.narrow(2, padding_d, out_d)?;
    added.unflatten(3, [height, width])
}
