//! Matrix products on a device. cuBLASLt computes large ones (`library.rs`). For the others, this file chooses the
//! tiles of the result and the kernel of `matmul.cu`.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, Launch};

use super::{batch_stride, library};
use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, Formula, MAX_BLOCKS, count};
use crate::element::DType;
use crate::error::Result;
use crate::inlined::Array;
use crate::shape::Shape;

static CODE: Code =
    Code { name: "matmul", text: concat!(include_str!("../../cuda/sums.cu"), include_str!("matmul.cu")) };

// The constants of `matmul.cu`.
const BATCH_RANK: usize = 6;
const SIDE: usize = 4;
const TILE: usize = 64;
const TILE_THREADS: u32 = 256;
const SPLIT_THREADS: u32 = 256;

/// The most threads of a dot product.
const DOT_THREADS: usize = 512;
/// This many large tiles keep a good part of any GPU busy.
const ENOUGH_TILES: usize = 64;
/// With at least this many multiplications and tiles, splitting k between groups of threads pays.
const WORTH_SPLITTING: usize = 1 << 20;
const ENOUGH_SPLIT_TILES: usize = 48;
/// Up to this k, larger tiles with fewer groups of threads are faster.
const SHORT: usize = 128;

/// `Product` of `matmul.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Product {
    sizes: [u32; 3],
    batches: u32,
    batch_rank: u32,
    batch_size: [u32; BATCH_RANK],
    unused: u32,
    bias_stride: u64,
    a_stride: [u64; 2],
    b_stride: [u64; 2],
    a_batch: [u64; BATCH_RANK],
    b_batch: [u64; BATCH_RANK],
}

/// Computes every element of `out`, `[batches…, m, n]`, from matrices with any strides; `batches` is the shape of the
/// batches.
pub(crate) fn run(device: &CudaDevice, batches: &Shape, [a, b]: [CudaView<'_>; 2], mut out: CudaOut<'_>) -> Result<()> {
    if out.shape().elements() == 0 || library::product(device, OP, batches, [a, b], None, &mut out)? {
        return Ok(());
    }
    by_own_kernels(device, batches, [a, b], out)
}

const OP: &str = "matmul";

/// [`run`] by this crate's kernels.
fn by_own_kernels(device: &CudaDevice, batches: &Shape, [a, b]: [CudaView<'_>; 2], mut out: CudaOut<'_>) -> Result<()> {
    let product = Product::new(OP, batches, a, b)?;
    let [m, n, _] = product.sizes.mapped(|size| size as usize);
    if tiles_of(m, n).saturating_mul(product.batches as usize) <= ENOUGH_TILES {
        return dots(device, OP, &product, Bias::None, [a, b], out);
    }
    let grid = [m.div_ceil(TILE), n.div_ceil(TILE).min(MAX_BLOCKS), (product.batches as usize).min(MAX_BLOCKS)];
    let launch = Launch { grid: grid.mapped(|blocks| blocks as u32), block: [TILE_THREADS, 1, 1], shared_bytes: 0 };
    let arguments = [out.argument(), a.argument(), b.argument(), Argument::Value(bytemuck::bytes_of(&product))];
    // SAFETY: the kernel takes these arguments. `product` has the sizes and strides of the views, so all offsets are
    // inside them; each element of `out` is written once.
    unsafe { CODE.launch(device, OP, ([a.dtype(); 2], "tiles"), launch, &arguments) }
}

/// Whether `m · n` results are few enough for [`linear`].
pub(super) fn has_few_results(m: usize, n: usize) -> bool {
    tiles_of(m, n) <= ENOUGH_TILES
}

fn tiles_of(m: usize, n: usize) -> usize {
    m.div_ceil(TILE).saturating_mul(n.div_ceil(TILE))
}

/// The side of the tiles of `split_tiles`, if that kernel computes a product of these sizes, `[m, n, k, batches]`.
pub(super) fn split_side([m, n, k, batches]: [usize; 4], dtype: DType) -> Option<usize> {
    let side = if k <= SHORT { 32 } else { 16 };
    let total = |sizes: &[usize]| sizes.iter().fold(1_usize, |total, &size| total.saturating_mul(size));
    let (tiles, results) = (total(&[m.div_ceil(16), n.div_ceil(16), batches]), total(&[tiles_of(m, n), batches]));
    let is_worth_it = total(&[m, n, k, batches]) >= WORTH_SPLITTING && tiles >= ENOUGH_SPLIT_TILES && m.min(n) >= side;
    (dtype.computing() == DType::F32 && is_worth_it && results <= ENOUGH_TILES).then_some(side)
}

/// `x · weightᵀ + bias` of matrices.
pub(super) fn linear(
    device: &CudaDevice,
    x: CudaView<'_>,
    weight: CudaView<'_>,
    bias: CudaView<'_>,
    mut out: CudaOut<'_>,
) -> Result<()> {
    static ADD: Formula =
        Formula { name: "bias", inputs: &["y", "bias"], constants: &[], text: "plus(y, bias)", changes: true };
    let op = "linear";
    let transposed = weight.layout().permute(&[1, 0]);
    let factors = [x, weight.with_layout(&transposed)];
    if bias.is_contiguous() && library::product(device, op, &Shape::SCALAR, factors, Some(bias), &mut out)? {
        return Ok(());
    }
    if !has_few_results(x.shape()[0], weight.shape()[0]) {
        by_own_kernels(device, &Shape::SCALAR, factors, out.reborrow())?;
        let expanded = bias.layout().expand(op, out.shape())?;
        return ADD.run(device, op, &[bias.with_layout(&expanded)], &[], out);
    }
    let weight_strides = [1, 0].mapped(|dim| weight.strides()[dim] as u64); // transposed
    let sizes = [x.shape()[0], weight.shape()[0], x.shape()[1]];
    let product =
        Product::of_matrices(op, sizes, [x.strides()[0], x.strides()[1]].mapped(|s| s as u64), weight_strides)?;
    let step = bias.strides()[0] as u64;
    dots(device, op, &Product { bias_stride: step, ..product }, Bias::Added(bias), [x, weight], out)
}

/// Writes `gradᵀ · x` to `out`, and behind it the sums of `grad` over the batch.
pub(super) fn weight_and_bias_grad(
    device: &CudaDevice,
    grad: CudaView<'_>,
    x: CudaView<'_>,
    out: CudaOut<'_>,
) -> Result<()> {
    let op = "linear's gradient";
    let sizes = [grad.shape()[1], x.shape()[1], x.shape()[0]];
    let grad_strides = [1, 0].mapped(|dim| grad.strides()[dim] as u64); // transposed
    let product = Product::of_matrices(op, sizes, grad_strides, [x.strides()[0], x.strides()[1]].mapped(|s| s as u64))?;
    dots(device, op, &product, Bias::Summed, [grad, x], out)
}

/// How a kernel treats a bias.
enum Bias<'a> {
    None,
    /// Added to each row of the result.
    Added(CudaView<'a>),
    /// Its gradient, the sums of the left factor's rows, is written behind the result.
    Summed,
}

/// Launches the kernel for few results.
fn dots(
    device: &CudaDevice,
    op: &'static str,
    product: &Product,
    bias: Bias<'_>,
    [a, b]: [CudaView<'_>; 2],
    mut out: CudaOut<'_>,
) -> Result<()> {
    if out.shape().elements() == 0 {
        return Ok(());
    }
    let [m, n, k] = product.sizes.mapped(|size| size as usize);
    let bias_constants = Constants::of(&[
        ("ADDS_BIAS", matches!(bias, Bias::Added(_)).into()),
        ("SUMS_ROWS", matches!(bias, Bias::Summed).into()),
    ]);
    let (kernel, side, threads, constants) = match split_side([m, n, k, product.batches as usize], a.dtype()) {
        Some(side) => ("split_tiles", side, SPLIT_THREADS, bias_constants.and(&[("TILE", side as i32)])),
        None => ("dots", SIDE, k.next_multiple_of(32).clamp(32, DOT_THREADS) as u32, bias_constants),
    };
    let columns = (n + usize::from(matches!(bias, Bias::Summed))).div_ceil(side);
    let grid = [m.div_ceil(side), count(op, columns)? as usize, (product.batches as usize).min(MAX_BLOCKS)];
    let launch = Launch { grid: grid.mapped(|blocks| blocks as u32), block: [threads, 1, 1], shared_bytes: 0 };
    let added = if let Bias::Added(bias) = bias { bias } else { b };
    let product = Argument::Value(bytemuck::bytes_of(product));
    let arguments = [out.argument(), a.argument(), b.argument(), added.argument(), product];
    // SAFETY: the kernel takes these arguments. `product` has the sizes and strides of the views, so all offsets are
    // inside them; each element of `out` is written once.
    unsafe { CODE.launch_for(device, op, ([a.dtype(); 2], kernel), constants, launch, &arguments) }
}

impl Product {
    /// The product of one pair of matrices, `[m, k]` and `[k, n]`, with these strides.
    fn of_matrices(op: &'static str, [m, n, k]: [usize; 3], a_stride: [u64; 2], b_stride: [u64; 2]) -> Result<Product> {
        let int = |size: usize| count(op, size).map(|size| size as u32);
        let sizes = [int(m)?, int(n)?, int(k)?];
        Ok(Product { sizes, batches: 1, a_stride, b_stride, ..Product::zeroed() })
    }

    fn new(op: &'static str, batches: &Shape, a: CudaView<'_>, b: CudaView<'_>) -> Result<Product> {
        let int = |size: usize| count(op, size).map(|size| size as u32);
        let (rank_a, rank_b) = (a.shape().rank(), b.shape().rank());
        let mut product = Product {
            sizes: [int(a.shape()[rank_a - 2])?, int(b.shape()[rank_b - 1])?, int(a.shape()[rank_a - 1])?],
            batches: int(batches.elements())?,
            batch_rank: batches.rank() as u32,
            a_stride: [rank_a - 2, rank_a - 1].mapped(|dim| a.strides()[dim] as u64),
            b_stride: [rank_b - 2, rank_b - 1].mapped(|dim| b.strides()[dim] as u64),
            ..Product::zeroed()
        };
        for back in 0..batches.rank() {
            product.batch_size[back] = int(batches[batches.rank() - 1 - back])?;
            product.a_batch[back] = batch_stride(a.shape(), a.strides(), back) as u64;
            product.b_batch[back] = batch_stride(b.shape(), b.strides(), back) as u64;
        }
        Ok(product)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_compile() {
        if let Err(missing) = pagelock_cuda::compiler_version() {
            eprintln!("SKIPPED: {missing}");
            return;
        }
        let bias = |adds, sums| Constants::of(&[("ADDS_BIAS", adds), ("SUMS_ROWS", sums)]);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            CODE.compile([dtype; 2], "tiles", Constants::of(&[])).unwrap();
            for bias in [bias(0, 0), bias(1, 0), bias(0, 1)] {
                CODE.compile([dtype; 2], "dots", bias).unwrap();
                for side in [16, 32] {
                    CODE.compile([dtype; 2], "split_tiles", bias.and(&[("TILE", side)])).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_shared_k_is_for_more_than_a_few_results() {
        let side = |sizes| split_side(sizes, DType::F32);
        assert_eq!(side([64, 1024, 256, 1]), Some(16));
        assert_eq!(side([1024, 256, 64, 1]), Some(32));
        assert_eq!(side([64, 10, 784, 1]), None);
        assert_eq!(side([64, 128, 784, 1]), None);
        assert_eq!(side([4096, 4096, 64, 1]), None);
        assert_eq!(side([usize::MAX / 2, usize::MAX / 2, usize::MAX, usize::MAX]), None);
        assert_eq!(split_side([64, 1024, 256, 1], DType::F64), None);
    }
}
