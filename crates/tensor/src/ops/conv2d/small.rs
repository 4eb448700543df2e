//! Convolutions of small images on a device: how `small.cu` is compiled for a geometry, and launched.
//!
//! How much a thread and a block compute depends on the geometry and the element type alone. Batch and device do not
//! matter, so results repeat bit for bit, and a last, smaller batch needs no other kernel.

use pagelock_cuda::library::ConvolutionKind;
use pagelock_cuda::{Argument, Launch};

use super::convolution::Fused;
use super::cpu::{ConvDims, Gradient};
use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, MAX_BLOCKS};
use crate::element::DType;
use crate::error::Result;
use crate::inlined::Array;

static CODE: Code =
    Code { name: "small conv2d", text: concat!(include_str!("../../cuda/sums.cu"), include_str!("small.cu")) };

const WARP: usize = 32;
const MAX_THREADS: usize = 512;
/// Shared memory that every block can have, less a reserve for the compiler.
const SHARED_BYTES: usize = (48 << 10) - 512;
/// The most elements that a thread loads before it uses the first.
const MAX_LOADS: usize = 48;
/// The most sums of a thread.
const MAX_SUMS: usize = 64;
/// Blocks that share the images of a weight's gradient; any GPU with clusters allows this many.
const CLUSTER: usize = 8;
/// Clusters that compute the weight's gradient at the same time: their blocks are as many as a large GPU's
/// multiprocessors.
const TILES: usize = 16;

/// Sizes of a correlation without groups and dilation, each pair vertical and horizontal.
#[derive(Clone, Copy)]
struct Geometry {
    transposed: bool,
    channels: usize,
    rows: usize,
    source: [usize; 2],
    result: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
}

impl Geometry {
    /// `None` if `small.cu` has no kernels for the geometry.
    fn new(d: &ConvDims, transposed: bool) -> Option<Geometry> {
        let undilated = [0, 1].iter().all(|&axis| d.dilation[axis] == 1 || d.kernel[axis] == 1);
        let padded_less = [0, 1].iter().all(|&axis| d.padding[axis] < d.kernel[axis]);
        let sizes = [d.in_channels, d.out_channels, d.in_size[0], d.in_size[1]];
        let sizes_fit = sizes.iter().all(|size| (1..=512).contains(size)) && d.kernel[0] * d.kernel[1] <= 49;
        if d.groups != 1 || !undilated || !padded_less || !sizes_fit || d.stride[0].max(d.stride[1]) > 4 {
            return None;
        }
        let [kernel, stride, padding] = [d.kernel, d.stride, d.padding];
        let geometry = |channels, rows, source, result| Geometry {
            transposed,
            channels,
            rows,
            source,
            result,
            kernel,
            stride,
            padding,
        };
        Some(match transposed {
            false => geometry(d.in_channels, d.out_channels, d.in_size, d.out_size),
            true => geometry(d.out_channels, d.in_channels, d.out_size, d.in_size),
        })
    }

    fn kernel_area(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    fn constants(&self) -> Constants {
        let pair = |names: [&'static str; 2], sizes: [usize; 2]| [(names[0], sizes[0]), (names[1], sizes[1])];
        numbers(&[("CHANNELS", self.channels), ("ROWS", self.rows)])
            .and(&ints(pair(["SOURCE_H", "SOURCE_W"], self.source)))
            .and(&ints(pair(["RESULT_H", "RESULT_W"], self.result)))
            .and(&ints(pair(["KERNEL_H", "KERNEL_W"], self.kernel)))
            .and(&ints(pair(["STRIDE_H", "STRIDE_W"], self.stride)))
            .and(&ints(pair(["PADDING_H", "PADDING_W"], self.padding)))
    }

    /// `Axis` of `small.cu`: results per cell, cells, strips of `at_once` cells, and source elements that all strips
    /// read.
    fn axis(&self, side: usize, at_once: usize) -> Axis {
        let [stride, padding, kernel] = [self.stride, self.padding, self.kernel].mapped(|both| both[side]);
        let (cell, scale, reach) = match self.transposed {
            // The distance from the first to the last source element of a cell; the padding is less than the kernel.
            true => (stride, 1, padding.div_ceil(stride) + (kernel - 1 - padding) / stride),
            false => (1, stride, kernel - 1),
        };
        let cells = self.result[side].div_ceil(cell);
        let strips = cells.div_ceil(at_once);
        Axis { cell, cells, strips, places: (strips * at_once - 1) * scale + reach + 1 }
    }
}

/// One side of a correlation.
struct Axis {
    cell: usize,
    cells: usize,
    strips: usize,
    places: usize,
}

fn ints<const N: usize>(sizes: [(&'static str, usize); N]) -> [(&'static str, i32); N] {
    sizes.mapped(|(name, size)| (name, size as i32)) // all are checked to be small
}

fn numbers<const N: usize>(sizes: &[(&'static str, usize); N]) -> Constants {
    Constants::of(&ints(*sizes))
}

/// The largest power of two that is at most `n`, which is not 0.
fn power_of_two(n: usize) -> usize {
    (n / 2 + 1).next_power_of_two()
}

/// Rows of a thread: 4 or 2 if at most a ninth of them is then unused, otherwise 1.
fn tile_rows(rows: usize, most: usize) -> usize {
    [4, 2].into_iter().find(|&tile| tile <= most && rows.next_multiple_of(tile) * 8 <= rows * 9).unwrap_or(1)
}

/// How `correlate_small` is compiled.
#[derive(Clone, Copy)]
struct Correlation {
    geometry: Geometry,
    pixels: usize,
    tile_rows: usize,
    block_rows: usize,
    parts: usize,
    threads: usize,
}

impl Correlation {
    /// `None` if the geometry is not small. `size` is that of the computing type.
    fn new(geometry: Geometry, size: usize, masked: bool) -> Option<Correlation> {
        let Geometry { channels, rows, .. } = geometry;
        let most_parts = if geometry.transposed { 8 } else { 16 };
        let parts = power_of_two(channels).min(most_parts);
        let [y, x] = [0, 1].mapped(|side| geometry.axis(side, 1));
        let pixels = x.cells.next_power_of_two().min(if parts == 1 { 2 } else { 4 });
        let cell = y.cell * x.cell;
        let tile_rows = tile_rows(rows, (32 / (pixels * cell)).max(1));
        let blocks = (rows * cell.min(2) / 8).max(1);
        let whole = rows.div_ceil(blocks).next_multiple_of(tile_rows);
        // As many threads per result as fit, then as many rows per block.
        let halves = |n: usize| std::iter::successors(Some(n), |n| (*n > 1).then_some(n / 2));
        let candidates =
            halves(parts).flat_map(|parts| halves(whole / tile_rows).map(move |tiles| (parts, tiles * tile_rows)));
        let plans = candidates.map(|(parts, block_rows)| {
            let plan = Correlation { geometry, pixels, tile_rows, block_rows, parts, threads: 0 };
            Correlation { threads: (plan.items() * parts).next_multiple_of(WARP), ..plan }
        });
        plans.into_iter().find(|plan| plan.fits(size, masked))
    }

    fn items(&self) -> usize {
        let [y, x] = [self.geometry.axis(0, 1), self.geometry.axis(1, self.pixels)];
        y.strips * x.strips * (self.block_rows / self.tile_rows)
    }

    fn fits(&self, size: usize, masked: bool) -> bool {
        let g = &self.geometry;
        let [y, x] = [g.axis(0, 1), g.axis(1, self.pixels)];
        let plane = (y.places * x.places.next_multiple_of(4)).next_multiple_of(8) + 4;
        let weights = (g.kernel_area() * self.block_rows).next_multiple_of(8) + 4;
        let loads = (g.channels * g.source[0] * g.source[1]).div_ceil(self.threads) * (1 + usize::from(masked))
            + (g.channels * g.kernel_area() * self.block_rows).div_ceil(self.threads);
        self.threads <= MAX_THREADS
            && loads <= MAX_LOADS
            && self.tile_rows * self.pixels * y.cell * x.cell <= MAX_SUMS
            && g.channels * (plane + weights) * size <= SHARED_BYTES
    }

    fn launch(&self, batch: usize) -> Option<Launch> {
        let rows = self.geometry.rows.div_ceil(self.block_rows);
        let grid = [u32::try_from(batch).ok().filter(|&batch| batch <= i32::MAX as u32)?, rows as u32, 1];
        (rows <= MAX_BLOCKS).then_some(Launch { grid, block: [self.threads as u32, 1, 1], shared_bytes: 0 })
    }

    fn constants(&self) -> Constants {
        self.geometry.constants().and(&ints([
            ("TRANSPOSED", self.geometry.transposed.into()),
            ("PIXELS", self.pixels),
            ("TILE_ROWS", self.tile_rows),
            ("BLOCK_ROWS", self.block_rows),
            ("PARTS", self.parts),
        ]))
    }
}

/// How `weight_grad_small` is compiled.
#[derive(Clone, Copy)]
struct WeightGrad {
    geometry: Geometry,
    pixels: usize,
    tile_rows: usize,
    block_rows: usize,
    block_channels: usize,
    images: usize,
    splits: usize,
}

impl WeightGrad {
    /// `None` if the geometry is not small. `size` is that of the computing type.
    fn new(geometry: Geometry, size: usize) -> Option<WeightGrad> {
        [8, 4, 2, 1].into_iter().find_map(|images| {
            WeightGrad::all(geometry, size, images).min_by_key(|plan| {
                let time = plan.loads() * plan.tiles().div_ceil(TILES); // about
                (!geometry.rows.is_multiple_of(plan.block_rows), time, plan.block_channels)
            })
        })
    }

    /// The plans that fit, in which a block computes that many images at a time.
    fn all(geometry: Geometry, size: usize, images: usize) -> impl Iterator<Item = WeightGrad> {
        let Geometry { channels, rows, .. } = geometry;
        let width = geometry.result[1];
        let pixels = width.div_ceil(width.div_ceil(8));
        let most = (40 / (geometry.kernel_area() + 1)).max(1);
        // Fewer rows per thread are better than too few blocks.
        let is_too_few_blocks = |tile: usize| rows.div_ceil(tile) * channels < CLUSTER;
        let fits = |tile: usize| tile <= tile_rows(rows, most) && !is_too_few_blocks(tile);
        let tile_rows = [4, 2].into_iter().find(|&tile| fits(tile)).unwrap_or(1);
        let plan = move |block_rows, block_channels| {
            WeightGrad { geometry, pixels, tile_rows, block_rows, block_channels, images, splits: 1 }.with_splits()
        };
        let sizes = |most: usize| (0..).map(|i| 1 << i).take_while(move |&size| size < most).chain([most]);
        sizes(rows.div_ceil(tile_rows))
            .flat_map(move |tiles| sizes(channels).map(move |channels| plan(tiles * tile_rows, channels)))
            .filter(move |plan| plan.fits(size))
    }

    /// With several warps for each combination if there are few combinations, but none without positions.
    fn with_splits(self) -> WeightGrad {
        let positions = self.images * self.geometry.result[0] * self.geometry.result[1].div_ceil(self.pixels);
        let splits = if self.combinations() < 4 { 8 / self.combinations() } else { 1 };
        WeightGrad { splits: splits.min(positions.div_ceil(WARP)), ..self }
    }

    /// Warps with sums of their own.
    fn combinations(&self) -> usize {
        self.block_rows / self.tile_rows * self.block_channels
    }

    fn threads(&self) -> usize {
        self.combinations() * self.splits * WARP
    }

    fn tiles(&self) -> usize {
        self.geometry.rows.div_ceil(self.block_rows) * self.geometry.channels.div_ceil(self.block_channels)
    }

    /// Elements that a block reads for that number of images.
    fn loads(&self) -> usize {
        let area = |size: [usize; 2]| size[0] * size[1];
        let of_image =
            2 * self.block_rows * area(self.geometry.result) + self.block_channels * area(self.geometry.source);
        self.images * of_image
    }

    fn fits(&self, size: usize) -> bool {
        let g = &self.geometry;
        let width = g.result[1].div_ceil(self.pixels) * self.pixels;
        let grads = self.block_rows * g.result[0] * (width + 1) + 2 * WARP;
        let places = ((g.result[0] - 1) * g.stride[0] + g.kernel[0]).next_multiple_of(g.stride[0]);
        let source = self.block_channels * places * ((width - 1) * g.stride[1] + g.kernel[1] + 1) + 2 * WARP;
        let sums = self.tile_rows * (g.kernel_area() + 1);
        let received = (self.combinations() * sums).div_ceil(CLUSTER) * (self.splits * CLUSTER + 1);
        self.threads() <= MAX_THREADS
            && self.loads().div_ceil(self.threads()) <= 2 * MAX_LOADS
            && sums <= MAX_SUMS
            && (self.images * (grads + source) + received) * size <= SHARED_BYTES
    }

    fn launch(&self) -> Launch {
        let rows = self.geometry.rows.div_ceil(self.block_rows);
        let channels = self.geometry.channels.div_ceil(self.block_channels);
        let grid = [CLUSTER as u32, rows as u32, channels as u32]; // rows and channels are few
        Launch { grid, block: [self.threads() as u32, 1, 1], shared_bytes: 0 }
    }

    fn constants(&self) -> Constants {
        self.geometry.constants().and(&ints([
            ("CLUSTER", CLUSTER),
            ("IMAGES", self.images),
            ("PIXELS", self.pixels),
            ("SPLITS", self.splits),
            ("TILE_ROWS", self.tile_rows),
            ("BLOCK_ROWS", self.block_rows),
            ("BLOCK_CHANNELS", self.block_channels),
        ]))
    }
}

/// The size of the computing type.
fn computing_bytes(dtype: DType) -> usize {
    dtype.computing().size()
}

/// Whether the tensor is aligned to packs of four elements.
fn is_aligned(view: &CudaView<'_>) -> bool {
    view.is_aligned(4 * view.dtype().size())
}

/// The convolution, or with `transposed` its gradient of the image, from a source and the weight.
fn correlate(
    device: &CudaDevice,
    op: &'static str,
    (d, transposed): (&ConvDims, bool),
    (source, weight, bias): (Gradient<CudaView<'_>>, CudaView<'_>, Option<CudaView<'_>>),
    relu: bool,
    out: &mut CudaOut<'_>,
) -> Result<bool> {
    let Gradient { numbers: x, positive: mask } = source;
    let size = computing_bytes(x.dtype());
    let plan = Geometry::new(d, transposed).and_then(|g| Correlation::new(g, size, mask.is_some()));
    let launch = plan.and_then(|plan| plan.launch(d.batch));
    let (Some(plan), Some(launch)) = (plan, launch) else { return Ok(false) };
    let aligned = is_aligned(&x) && mask.as_ref().is_none_or(is_aligned) && out.is_aligned(4 * x.dtype().size());
    let constants = plan.constants().and(&[
        ("HAS_BIAS", bias.is_some().into()),
        ("RELU", relu.into()),
        ("HAS_MASK", mask.is_some().into()),
        ("ALIGNED", aligned.into()),
    ]);
    let [x_argument, weight, bias, mask] =
        [x, weight, bias.unwrap_or(weight), mask.unwrap_or(x)].mapped(|view| view.argument());
    let arguments = [out.argument(), x_argument, weight, bias, mask];
    // SAFETY: the kernel takes these. The sizes of `ConvDims`, for which it is compiled, fit together: it reads only
    // inside source, weight and, if there are any, bias and mask, aligned as ALIGNED says, and writes each result
    // pixel of the images once.
    unsafe { CODE.launch_for(device, op, ([x.dtype(); 2], "correlate_small"), constants, launch, &arguments)? };
    Ok(true)
}

/// The same as `cuda::convolve`. Returns false, without launching anything, if the geometry is not small.
pub(super) fn convolve(
    device: &CudaDevice,
    op: &'static str,
    kind: ConvolutionKind,
    d: &ConvDims,
    [first, second]: [CudaView<'_>; 2],
    (third, fused): (Option<CudaView<'_>>, Fused),
    out: &mut CudaOut<'_>,
) -> Result<bool> {
    let grad = Gradient { numbers: second, positive: third };
    match kind {
        ConvolutionKind::Forward => {
            let image = Gradient { numbers: first, positive: None };
            correlate(device, op, (d, false), (image, second, third), fused == Fused::Relu, out)
        }
        ConvolutionKind::ImageGrad => correlate(device, op, (d, true), (grad, first, None), false, out),
        ConvolutionKind::WeightGrad => weight_grad(device, op, d, (first, grad), fused == Fused::BiasGrad, out),
    }
}

/// The gradient of the weight, followed by that of the bias if `with_bias`, from the image and the gradient of the
/// result.
fn weight_grad(
    device: &CudaDevice,
    op: &'static str,
    d: &ConvDims,
    (image, grad): (CudaView<'_>, Gradient<CudaView<'_>>),
    with_bias: bool,
    out: &mut CudaOut<'_>,
) -> Result<bool> {
    let Gradient { numbers, positive: mask } = grad;
    let plan = Geometry::new(d, false).and_then(|g| WeightGrad::new(g, computing_bytes(image.dtype())));
    let (Some(plan), true) = (plan, has_clusters(device)) else { return Ok(false) };
    let aligned = is_aligned(&image) && is_aligned(&numbers) && mask.as_ref().is_none_or(is_aligned);
    let constants = plan.constants().and(&[
        ("HAS_BIAS", with_bias.into()),
        ("HAS_MASK", mask.is_some().into()),
        ("ALIGNED", aligned.into()),
    ]);
    let batch = (d.batch as u64).to_ne_bytes();
    let [x, grad, mask] = [image, numbers, mask.unwrap_or(numbers)].mapped(|view| view.argument());
    let arguments = [out.argument(), x, grad, mask, Argument::Value(&batch)];
    let kernel = ([image.dtype(); 2], "weight_grad_small");
    // SAFETY: as in `correlate`; `out` has an element for each weight and, with a bias, for each result channel. The
    // device has clusters.
    unsafe { CODE.launch_for(device, op, kernel, constants, plan.launch(), &arguments)? };
    Ok(true)
}

fn has_clusters(device: &CudaDevice) -> bool {
    device.cuda().properties().compute_capability >= (9, 0)
}

/// Whether this file has a kernel for that convolution of elements of that type, with bias, relu or mask.
pub(super) fn has_kernel(device: &CudaDevice, d: &ConvDims, kind: ConvolutionKind, dtype: DType) -> bool {
    let size = computing_bytes(dtype);
    let geometry = |transposed| Geometry::new(d, transposed);
    let correlates = |transposed| {
        let plan = geometry(transposed).and_then(|g| Correlation::new(g, size, transposed));
        plan.is_some_and(|plan| plan.launch(d.batch).is_some())
    };
    match kind {
        ConvolutionKind::Forward => correlates(false),
        ConvolutionKind::ImageGrad => correlates(true),
        ConvolutionKind::WeightGrad => {
            // A plan with several images fits only if one with a single image does.
            has_clusters(device) && geometry(false).is_some_and(|g| WeightGrad::all(g, size, 1).next().is_some())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The geometries of a small network, and unusual ones.
    fn all_dims() -> Vec<ConvDims> {
        let dims = |[in_channels, out_channels]: [usize; 2],
                    in_size: [usize; 2],
                    kernel,
                    stride: [usize; 2],
                    padding: [usize; 2]| {
            let kernel: [usize; 2] = kernel;
            let out = |axis: usize| (in_size[axis] + 2 * padding[axis] - kernel[axis]) / stride[axis] + 1;
            let (out_size, dilation) = ([out(0), out(1)], [1, 1]);
            ConvDims {
                batch: 3,
                in_channels,
                out_channels,
                groups: 1,
                in_size,
                kernel,
                out_size,
                stride,
                padding,
                dilation,
            }
        };
        vec![
            dims([1, 16], [28, 28], [3, 3], [2, 2], [1, 1]),
            dims([16, 16], [14, 14], [3, 3], [2, 2], [1, 1]),
            dims([16, 10], [7, 7], [3, 3], [2, 2], [1, 1]),
            dims([1, 16], [28, 28], [5, 5], [1, 1], [2, 2]),
            dims([16, 32], [14, 14], [5, 5], [1, 1], [0, 0]),
            dims([3, 5], [9, 11], [3, 2], [2, 1], [1, 0]),
            dims([7, 3], [5, 6], [1, 4], [3, 4], [0, 3]),
            dims([2, 1], [1, 1], [1, 1], [1, 1], [0, 0]),
            dims([32, 32], [14, 14], [3, 3], [1, 1], [1, 1]),
            dims([64, 64], [8, 8], [3, 3], [1, 1], [1, 1]),
            dims([3, 32], [32, 32], [3, 3], [1, 1], [1, 1]),
            dims([64, 10], [5, 5], [5, 5], [1, 1], [2, 2]),
            dims([24, 40], [9, 9], [7, 7], [4, 3], [3, 5]),
        ]
    }

    #[test]
    fn blocks_and_threads_cover_all_results_once() {
        for d in all_dims() {
            for transposed in [false, true] {
                let geometry = Geometry::new(&d, transposed).unwrap();
                let Some(plan) = Correlation::new(geometry, 4, true) else { continue };
                let [y, x] = [geometry.axis(0, 1), geometry.axis(1, plan.pixels)];
                assert!(
                    y.strips * y.cell >= geometry.result[0] && x.strips * x.cell * plan.pixels >= geometry.result[1]
                );
                assert_eq!(plan.block_rows % plan.tile_rows, 0);
                assert!(plan.parts.is_power_of_two() && plan.items() * plan.parts <= plan.threads);
                assert!(plan.launch(d.batch).unwrap().grid[1] as usize * plan.block_rows >= geometry.rows);
            }
            let geometry = Geometry::new(&d, false).unwrap();
            let plan = WeightGrad::new(geometry, 4).unwrap();
            assert!(WeightGrad::all(geometry, 4, 1).next().is_some());
            let [_, rows, channels] = plan.launch().grid.map(|blocks| blocks as usize);
            assert!(rows * plan.block_rows >= d.out_channels && channels * plan.block_channels >= d.in_channels);
            assert!(plan.threads() >= WARP && plan.images > 0);
        }
    }

    #[test]
    fn what_is_not_small_has_other_kernels() {
        let small = all_dims()[1];
        for other in [
            ConvDims { groups: 2, ..small },
            ConvDims { dilation: [2, 1], ..small },
            ConvDims { padding: [3, 1], ..small },
            ConvDims { in_channels: 1000, ..small },
            ConvDims { in_channels: 0, ..small },
        ] {
            assert!(Geometry::new(&other, false).is_none());
        }
        let large = ConvDims { in_size: [200, 200], out_size: [100, 100], ..small };
        assert!(Correlation::new(Geometry::new(&large, false).unwrap(), 4, false).is_none());
        let geometry = Geometry::new(&large, false).unwrap();
        assert!(WeightGrad::new(geometry, 4).is_none());
        assert!(WeightGrad::all(geometry, 4, 1).next().is_none());
    }

    #[test]
    fn every_plan_compiles() {
        if let Err(missing) = pagelock_cuda::compiler_version() {
            eprintln!("SKIPPED: {missing}");
            return;
        }
        for (i, d) in all_dims().iter().enumerate() {
            let dtype = [DType::F32, DType::F64, DType::F16][i % 3];
            let extra = [("HAS_BIAS", 1), ("HAS_MASK", 1), ("ALIGNED", 1), ("RELU", 1)];
            for transposed in [false, true] {
                let geometry = Geometry::new(d, transposed).unwrap();
                if let Some(plan) = Correlation::new(geometry, computing_bytes(dtype), true) {
                    CODE.compile([dtype; 2], "correlate_small", plan.constants().and(&extra)).unwrap();
                }
            }
            if let Some(plan) = WeightGrad::new(Geometry::new(d, false).unwrap(), computing_bytes(dtype)) {
                CODE.compile([dtype; 2], "weight_grad_small", plan.constants().and(&extra[..3])).unwrap();
            }
        }
    }
}
