//! The three convolutions on a device. cuDNN computes most of them (`library.rs`), and the kernels of `small.rs` those
//! of small images. For the others, this file chooses the kernel of `conv2d.cu`, its grid and its arguments.
//!
//! Every choice depends on sizes only, so results repeat bit for bit on one kind of device.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::library::ConvolutionKind;
use pagelock_cuda::{Argument, Launch};

use super::convolution::Fused;
use super::cpu::ConvDims;
use super::{library, small};
use crate::cuda::{Code, CudaDevice, CudaOut, CudaView, MAX_BLOCKS, count};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::Array;

static CODE: Code =
    Code { name: "conv2d", text: concat!(include_str!("../../cuda/sums.cu"), include_str!("conv2d.cu")) };

// The constants of `conv2d.cu`.
const ROWS: usize = 4;
const TAPS: usize = 9;
const THREADS: usize = 256;
const CLUSTER: usize = 8;
const CHUNK: usize = 288;

/// A number of blocks that keeps any current GPU busy. A constant, since results must not depend on the number of
/// multiprocessors.
const ENOUGH_BLOCKS: usize = 1024;

/// `Conv` of `conv2d.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Conv {
    first_image: i64,
    end_image: i64,
    transposed: i32,
    has_bias: i32,
    groups: i32,
    channels: i32,
    rows: i32,
    source: [i32; 2],
    result: [i32; 2],
    kernel: [i32; 2],
    stride: [i32; 2],
    padding: [i32; 2],
    dilation: [i32; 2],
    row_stride: i32,
    channel_stride: i32,
    phases: [i32; 2],
    pixel_blocks: i32,
}

/// `WeightGrad` of `conv2d.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct WeightGrad {
    conv: Conv,
    tap_blocks: i32,
    step: [i32; 3],
}

/// Computes one of the three convolutions. `inputs` are the two of image, weight and result that it does not compute, in
/// this order; [`Fused`] explains the third. Anything but `Fused::Nothing` requires [`is_fused`].
pub(super) fn convolve(
    device: &CudaDevice,
    kind: ConvolutionKind,
    d: &ConvDims,
    inputs: [CudaView<'_>; 2],
    (third, fused): (Option<CudaView<'_>>, Fused),
    mut out: CudaOut<'_>,
) -> Result<()> {
    let op = match kind {
        ConvolutionKind::Forward => "conv2d",
        ConvolutionKind::ImageGrad => "conv2d_image_grad",
        ConvolutionKind::WeightGrad => "conv2d_weight_grad",
    };
    if fused == Fused::Nothing && library::convolve(device, op, kind, d, inputs, &mut out)? {
        return third.map_or(Ok(()), |bias| library::add_bias(device, bias, out));
    }
    if small::convolve(device, op, kind, d, inputs, (third, fused), &mut out)? {
        return Ok(());
    }
    if fused != Fused::Nothing {
        unreachable!("`is_fused` accepted {d:?}");
    }
    let [first, second] = inputs;
    match kind {
        ConvolutionKind::Forward => correlate(device, op, Conv::new(d, false)?, d.batch, inputs, third, out),
        ConvolutionKind::ImageGrad => correlate(device, op, Conv::new(d, true)?, d.batch, [second, first], None, out),
        ConvolutionKind::WeightGrad => weight_grad(device, op, d, inputs, out),
    }
}

impl Conv {
    fn new(d: &ConvDims, transposed: bool) -> Result<Conv> {
        let int = |size: usize| count("conv2d", size);
        let both = |sizes: [usize; 2]| Ok::<_, Error>([int(sizes[0])?, int(sizes[1])?]);
        let area = d.kernel[0] * d.kernel[1];
        let [ins, outs] = [d.in_channels, d.out_channels].mapped(|channels| channels / d.groups);
        let ([channels, rows], [source, result], [row_stride, channel_stride]) = match transposed {
            false => ([ins, outs], [d.in_size, d.out_size], [ins * area, area]),
            true => ([outs, ins], [d.out_size, d.in_size], [area, ins * area]),
        };
        // With a single window or tap, stride or dilation does not matter, and 1 always fits.
        let stride = [0, 1].mapped(|axis| if d.out_size[axis] == 1 { 1 } else { d.stride[axis] });
        let dilation = [0, 1].mapped(|axis| if d.kernel[axis] == 1 { 1 } else { d.dilation[axis] });
        let phases = [0, 1].mapped(|axis| if transposed { stride[axis].min(result[axis]) } else { 1 });
        for (axis, stride) in stride.into_iter().enumerate() {
            // All positions and distances between taps are below this number.
            let positions = d.in_size[axis].saturating_add(2 * d.padding[axis]).saturating_add(stride);
            int(positions.saturating_mul(2))?;
        }
        Ok(Conv {
            transposed: transposed.into(),
            groups: int(d.groups)?,
            channels: int(channels)?,
            rows: int(rows)?,
            source: both(source)?,
            result: both(result)?,
            kernel: both(d.kernel)?,
            stride: both(stride)?,
            padding: both(d.padding)?,
            dilation: both(dilation)?,
            row_stride: int(row_stride)?,
            channel_stride: int(channel_stride)?,
            phases: both(phases)?,
            ..Conv::zeroed()
        })
    }

    /// Pixels of the largest phase.
    fn phase_pixels(&self) -> usize {
        [0, 1].iter().map(|&axis| (self.result[axis] as usize).div_ceil(self.phases[axis] as usize)).product()
    }

    /// Blocks for the result channels of a group.
    fn row_blocks(&self) -> usize {
        (self.rows as usize).div_ceil(ROWS)
    }

    fn n_phases(&self) -> usize {
        self.phases[0] as usize * self.phases[1] as usize
    }

    fn kernel_area(&self) -> usize {
        self.kernel[0] as usize * self.kernel[1] as usize
    }
}

/// An error unless 32 bits can count the taps of a result pixel, in whole chunks.
fn check_taps(op: &'static str, conv: &Conv) -> Result<()> {
    count(op, conv.channels as usize * conv.kernel_area() + CHUNK).map(drop)
}

/// Where the loop over images in `add_up` ends. An error if the 32-bit number of an image could overflow: the last step of
/// a thread goes up to THREADS · CLUSTER images beyond the end.
fn end_image(op: &'static str, batch: usize) -> Result<i64> {
    count(op, batch + THREADS * CLUSTER)?;
    Ok(batch as i64)
}

/// Launches as many images at a time as 32-bit pixel numbers allow.
fn correlate(
    device: &CudaDevice,
    op: &'static str,
    conv: Conv,
    batch: usize,
    [source, weight]: [CudaView<'_>; 2],
    bias: Option<CudaView<'_>>,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let conv = Conv { has_bias: bias.is_some().into(), ..conv };
    let (pixels, n_phases, rows) = (conv.phase_pixels(), conv.n_phases(), conv.row_blocks());
    check_taps(op, &conv)?;
    let others = count(op, rows * conv.groups as usize * n_phases)? as usize;
    count(op, 2 * pixels.max(others * pixels.div_ceil(32)))?;
    let images = (1 << 30) / pixels.max(others * pixels.div_ceil(32));
    for first in (0..batch).step_by(images) {
        let end = (first + images).min(batch);
        let per_phase = (end - first) * pixels;
        let taps = conv.channels as usize * conv.kernel_area().div_ceil(n_phases);
        let is_busy = |parts: usize| per_phase.div_ceil(32) * others * parts >= 2 * ENOUGH_BLOCKS;
        let mut parts = 1;
        while parts < 4 && taps >= 4 * TAPS * parts && !is_busy(parts) {
            parts *= 2;
        }
        let block_pixels = if parts > 1 { 32 } else { 64 };
        let pixel_blocks = per_phase.div_ceil(block_pixels);
        let conv = Conv { first_image: first as i64, end_image: end as i64, pixel_blocks: pixel_blocks as i32, ..conv };
        let launch = Launch {
            grid: [(pixel_blocks * others) as u32, 1, 1],
            block: [block_pixels as u32, parts as u32, 1],
            shared_bytes: 0,
        };
        let [source_argument, weight, bias] = [source, weight, bias.unwrap_or(weight)].mapped(|view| view.argument());
        let conv = Argument::Value(bytemuck::bytes_of(&conv));
        let arguments = [out.argument(), source_argument, weight, bias, conv];
        // SAFETY: the kernel takes these; since the sizes of `ConvDims` fit together, it reads only inside source,
        // weight and, if there is one, bias, and writes each result pixel of these images once.
        unsafe { CODE.launch(device, op, ([source.dtype(); 2], "correlate"), launch, &arguments)? };
    }
    Ok(())
}

/// Whether there are fused kernels with `relu`, masks and a bias' gradient, and they are the fastest way.
pub(super) fn is_fused(device: &CudaDevice, d: &ConvDims, dtype: DType) -> bool {
    library::KINDS
        .into_iter()
        .all(|kind| small::has_kernel(device, d, kind, dtype) && !library::is_wanted_for_small(device, d, kind, dtype))
}

/// The gradient of the weight, from the image and the gradient of the result.
fn weight_grad(
    device: &CudaDevice,
    op: &'static str,
    d: &ConvDims,
    [image, grad]: [CudaView<'_>; 2],
    mut out: CudaOut<'_>,
) -> Result<()> {
    let conv = Conv { end_image: end_image(op, d.batch)?, ..Conv::new(d, false)? };
    let tap_blocks = conv.kernel_area().div_ceil(TAPS);
    let pixels = d.out_size[0] * d.out_size[1];
    let grid = [1, conv.row_blocks() * tap_blocks, d.in_channels];
    let tiles = grid[1] * grid[2];
    if grid[1] > MAX_BLOCKS || grid[2] > MAX_BLOCKS {
        let (blocks, limit) =
            (format!("{} × {} blocks", grid[1], grid[2]), format!("at most {MAX_BLOCKS} each; use the CPU"));
        return Err(Error::bad_argument(op, "the weight", blocks, limit));
    }
    let has_clusters = device.cuda().properties().compute_capability >= (9, 0);
    let in_clusters = has_clusters && tiles < ENOUGH_BLOCKS && d.batch * pixels >= 2 * THREADS;
    let (kernel, parts) = if in_clusters { ("weight_grad_cluster", CLUSTER) } else { ("weight_grad", 1) };
    let threads = if in_clusters && tiles * CLUSTER > 128 { 64 } else { THREADS };
    let step = threads * parts;
    let [height, width] = d.out_size;
    let step = [step / width / height, step / width % height, step % width].mapped(|distance| distance as i32);
    let weight_grad = WeightGrad { conv, tap_blocks: tap_blocks as i32, step };
    let launch =
        Launch { grid: [parts as u32, grid[1] as u32, grid[2] as u32], block: [threads as u32, 1, 1], shared_bytes: 0 };
    let arguments =
        [out.argument(), image.argument(), grad.argument(), Argument::Value(bytemuck::bytes_of(&weight_grad))];
    // SAFETY: the kernel takes these; since the sizes of `ConvDims` fit together, it reads only inside image and
    // gradient, and writes each weight once.
    unsafe { CODE.launch(device, op, ([image.dtype(); 2], kernel), launch, &arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before the fix, the kernel's number of the image overflowed, and it read before the first image.
    #[test]
    fn images_that_a_step_overruns_are_refused() {
        assert_eq!(end_image("conv2d_weight_grad", (1 << 31) - 2049).unwrap(), (1 << 31) - 2049);
        let refused = end_image("conv2d_weight_grad", (1 << 31) - 2048).unwrap_err().to_string();
        assert!(refused.contains("GPU kernels count to at most 2147483647"), "{refused}");
    }

    #[test]
    fn taps_that_a_chunk_overruns_are_refused() {
        let conv = |channels| Conv { channels, kernel: [1, 2], ..Conv::zeroed() };
        check_taps("conv2d", &conv((1 << 30) - 145)).unwrap();
        assert!(check_taps("conv2d", &conv((1 << 30) - 144)).is_err());
    }
}
