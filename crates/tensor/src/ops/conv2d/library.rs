//! Convolutions on a device by cuDNN, where it is faster, except in `f64`, for which it has few kernels.

use pagelock_cuda::library::{Convolution, ConvolutionKind, DataType, Exactness, Layout4};

use super::cpu::ConvDims;
use super::small;
use crate::cuda::{COPY, CudaDevice, CudaOut, CudaView, Formula, Work, choice, data_type};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::{Array, from_fn};
use crate::layout::Layout;
use crate::precision::exactness;
use crate::shape::Shape;

/// The convolution and its two gradients.
pub(super) const KINDS: [ConvolutionKind; 3] =
    [ConvolutionKind::Forward, ConvolutionKind::ImageGrad, ConvolutionKind::WeightGrad];

/// Convolutions of fewer multiplications take little longer than their launch.
const MIN_MULTIPLICATIONS: usize = 1 << 20;
/// The library's gradients of weights are slow for fewer channels of a group, unless there are this many
/// multiplications.
const MIN_CHANNELS: usize = 64;
const MANY_MULTIPLICATIONS: usize = 1 << 31;

/// Whether the library is faster than this project's kernels (`cargo bench --bench large -- --limits`). In exact `f32`,
/// those of its algorithms that have a fixed order of sums are slow for groups and for few channels. `has_kernel` says
/// whether `small.rs` has a kernel.
fn is_faster(d: &ConvDims, kind: ConvolutionKind, dtype: DType, has_kernel: impl FnOnce() -> bool) -> bool {
    let sizes = [d.batch, d.out_size[0], d.out_size[1], d.out_channels, d.in_channels, d.kernel[0], d.kernel[1]];
    let multiplications = sizes.iter().fold(1_usize, |product, &size| product.saturating_mul(size)) / d.groups;
    if multiplications < MIN_MULTIPLICATIONS {
        return false;
    }
    let is_depthwise = d.groups > 1 && d.groups == d.in_channels;
    let has_few_channels = d.in_channels.min(d.out_channels) / d.groups < MIN_CHANNELS;
    let is_exact = dtype == DType::F32 && exactness() == Exactness::Exact;
    let own_is_faster = match kind {
        ConvolutionKind::WeightGrad => {
            has_few_channels && multiplications < MANY_MULTIPLICATIONS && (is_exact || has_kernel())
        }
        _ => is_exact && d.groups > 1 || (is_exact || has_few_channels) && has_kernel(),
    };
    is_depthwise || !own_is_faster
}

/// The library's name of the type, if the library is used for it.
fn library_type(dtype: DType) -> Option<DataType> {
    data_type(dtype).filter(|&data_type| data_type != DataType::F64)
}

/// Whether the library is used for this convolution, unless it then refuses.
pub(super) fn is_wanted(device: &CudaDevice, d: &ConvDims, kind: ConvolutionKind, dtype: DType) -> bool {
    is_for(device, || is_faster(d, kind, dtype, || small::has_kernel(device, d, kind, dtype)), dtype)
}

/// Whether the library is used for this convolution although `small.rs` has a kernel.
pub(super) fn is_wanted_for_small(device: &CudaDevice, d: &ConvDims, kind: ConvolutionKind, dtype: DType) -> bool {
    is_for(device, || is_faster(d, kind, dtype, || true), dtype)
}

/// Whether the library is used for some convolutions of that type.
pub(super) fn is_available(device: &CudaDevice, dtype: DType) -> bool {
    is_for(device, || true, dtype)
}

fn is_for(device: &CudaDevice, is_faster: impl FnOnce() -> bool, dtype: DType) -> bool {
    let work = |is_large| Work { op: "conv2d", is_large, sizes: &String::new };
    library_type(dtype).is_some() && device.dnn_for(&work(is_faster())).is_ok_and(|dnn| dnn.is_some())
}

/// Computes one of the three convolutions; false if the library is missing or not used for it. `inputs` are two of
/// image, weight and result, those that the convolution does not compute, in this order.
pub(super) fn convolve(
    device: &CudaDevice,
    op: &'static str,
    kind: ConvolutionKind,
    d: &ConvDims,
    inputs: [CudaView<'_>; 2],
    out: &mut CudaOut<'_>,
) -> Result<bool> {
    let dtype = out.dtype();
    let Some(data_type) = library_type(dtype) else { return Ok(false) };
    let inputs_exist = inputs.iter().all(|input| input.shape().elements() > 0);
    if !inputs_exist || out.shape().elements() == 0 {
        return Ok(false);
    }
    let sizes = || sizes_of(d, dtype);
    let has_kernel = || small::has_kernel(device, d, kind, dtype);
    let work = Work { op, is_large: is_faster(d, kind, dtype, has_kernel), sizes: &sizes };
    let Some(dnn) = device.dnn_for(&work)? else { return Ok(false) };
    let convolution =
        describe(d, kind, data_type, in_order(kind, inputs.mapped(|x| strides(x.layout())), strides(out.layout())));
    let (stream, inputs) = (device.stream(), inputs.mapped(|input| input.bytes()));
    work.is_done(dnn.convolve(&stream, &convolution, inputs, out.reborrow().into_bytes()))
}

/// The same for images and results whose channels are innermost: contiguous `[batch, height, width, channels]`.
/// Weights in another order are copied for the library and back.
pub(super) fn convolve_channels_last(
    device: &CudaDevice,
    op: &'static str,
    kind: ConvolutionKind,
    d: &ConvDims,
    weight_is_last: bool,
    inputs: [CudaView<'_>; 2],
    mut out: CudaOut<'_>,
) -> Result<()> {
    let dtype = out.dtype();
    let sizes = || sizes_of(d, dtype);
    let work = Work { op, is_large: true, sizes: &sizes };
    let Some(data_type) = library_type(dtype) else { unreachable!("`is_wanted` refuses {dtype}") };
    let layouts = shapes(d).mapped(|sizes| Shape::new(&sizes).map(Layout::channels_last));
    let [image, weight, result] = layouts;
    let (image, weight, result) = (image?, weight?, result?);
    let strides = [image, weight, result].mapped(|layout| strides(&layout));
    let convolution = describe(d, kind, data_type, strides);
    let stream = device.stream();
    let convolve = |inputs, out| {
        let launched = device.require_dnn(&work)?.convolve(&stream, &convolution, inputs, out);
        launched.map_err(|source| work.error(source))
    };
    let mut bytes = inputs.mapped(|input| input.bytes());
    if weight_is_last {
        return convolve(bytes, out.into_bytes());
    }
    let error = |source| Error::cuda(op, source);
    let mut weight_copy = stream.allocate::<u8>(weight.shape().elements() * dtype.size()).map_err(error)?;
    let weight_input = match kind {
        ConvolutionKind::Forward => Some(1),
        ConvolutionKind::ImageGrad => Some(0),
        ConvolutionKind::WeightGrad => None,
    };
    let Some(at) = weight_input else {
        convolve(bytes, weight_copy.view_mut())?;
        return COPY.run(device, op, &[CudaView::new(weight_copy.view(), &weight, dtype)], &[], out);
    };
    COPY.run(device, op, &[inputs[at]], &[], CudaOut::new(weight_copy.view_mut(), &weight, dtype))?;
    bytes[at] = weight_copy.view();
    convolve(bytes, out.reborrow().into_bytes())
}

/// The sizes of image, weight and result.
fn shapes(d: &ConvDims) -> [[usize; 4]; 3] {
    [
        [d.batch, d.in_channels, d.in_size[0], d.in_size[1]],
        [d.out_channels, d.in_channels / d.groups, d.kernel[0], d.kernel[1]],
        [d.batch, d.out_channels, d.out_size[0], d.out_size[1]],
    ]
}

fn sizes_of(d: &ConvDims, dtype: DType) -> String {
    let [image, weight, _] = shapes(d);
    format!("an image {image:?} and a weight {weight:?} of {dtype}")
}

/// The values in the order of image, weight and result.
fn in_order<X>(kind: ConvolutionKind, [first, second]: [X; 2], out: X) -> [X; 3] {
    match kind {
        ConvolutionKind::Forward => [first, second, out],
        ConvolutionKind::ImageGrad => [out, first, second],
        ConvolutionKind::WeightGrad => [first, out, second],
    }
}

/// The library's description of the convolution; strides are those of image, weight and result.
fn describe(d: &ConvDims, kind: ConvolutionKind, data_type: DataType, strides: [[usize; 4]; 3]) -> Convolution {
    let shapes = shapes(d);
    let [image, weight, result] = [0, 1, 2].mapped(|i| Layout4 { sizes: shapes[i], strides: strides[i] });
    let (stride, padding, dilation) = (d.stride, d.padding, d.dilation);
    let exactness = exactness();
    let choice = choice();
    Convolution { kind, data_type, exactness, choice, image, weight, result, stride, padding, dilation }
}

/// The strides of the four dimensions. In a contiguous tensor, dimensions of size 1 get the canonical strides.
fn strides(layout: &Layout) -> [usize; 4] {
    let contiguous = Layout::contiguous(*layout.shape());
    let layout = if layout.is_contiguous() { &contiguous } else { layout };
    from_fn(|dim| layout.strides()[dim])
}

/// Adds the bias to each channel of a result.
pub(super) fn add_bias(device: &CudaDevice, bias: CudaView<'_>, out: CudaOut<'_>) -> Result<()> {
    static ADD: Formula =
        Formula { name: "add bias", inputs: &["y", "bias"], constants: &[], text: "y + bias", changes: true };
    let per_channel = Shape::new(&[1, bias.shape().elements(), 1, 1])?;
    let layout = Layout::contiguous(per_channel).expand("conv2d", out.shape())?;
    let bias = CudaView::new(bias.bytes(), &layout, bias.dtype());
    ADD.run(device, "conv2d", &[bias], &[], out)
}
