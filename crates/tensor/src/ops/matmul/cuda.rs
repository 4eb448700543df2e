//! Matrix products on a device: large ones are in `library.rs`; for the others, how the result is cut into tiles, and
//! which kernel of `matmul.cu` computes them.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, Launch};

use super::library;
use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, Formula, MOST_BLOCKS, count};
use crate::error::Result;
use crate::shape::Shape;

static CODE: Code =
    Code { name: "matmul", text: concat!(include_str!("../../cuda/sums.cu"), include_str!("matmul.cu")) };

// The constants of `matmul.cu`.
const BATCH_RANK: usize = 6;
const SIDE: usize = 4;
const TILE: usize = 64;
const TILE_THREADS: u32 = 256;

/// The most threads of a dot product.
const DOT_THREADS: usize = 512;
/// As many large tiles keep a good part of any GPU busy.
const ENOUGH_TILES: usize = 64;

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

/// Every element of `out`, `[batches…, m, n]`, from matrices with any strides; `batches` is the shape of the batches.
pub(crate) fn run(device: &CudaDevice, batches: &Shape, [a, b]: [CudaView<'_>; 2], mut out: CudaOut<'_>) -> Result<()> {
    if out.shape().elements() == 0 || library::product(device, OP, batches, [a, b], None, &mut out)? {
        return Ok(());
    }
    own(device, batches, [a, b], out)
}

const OP: &str = "matmul";

/// The same by this crate's kernels.
fn own(device: &CudaDevice, batches: &Shape, [a, b]: [CudaView<'_>; 2], mut out: CudaOut<'_>) -> Result<()> {
    let op = OP;
    let product = Product::new(op, batches, a, b)?;
    let [m, n, _] = product.sizes.map(|size| size as usize);
    if tiles_of(m, n) * product.batches as usize <= ENOUGH_TILES && n.div_ceil(SIDE) <= MOST_BLOCKS {
        return dots(device, op, &product, Bias::None, [a, b], out);
    }
    let (tile, threads) = (TILE, TILE_THREADS);
    let columns = n.div_ceil(tile);
    if columns > MOST_BLOCKS {
        count(op, usize::MAX)?; // refused
    }
    let grid = [m.div_ceil(tile), columns, (product.batches as usize).min(MOST_BLOCKS)];
    let launch = Launch { grid: grid.map(|blocks| blocks as u32), block: [threads, 1, 1], shared_bytes: 0 };
    let arguments = [out.argument(), a.argument(), b.argument(), Argument::Value(bytemuck::bytes_of(&product))];
    // SAFETY: the kernels take these; places are inside of the views, whose sizes and strides these are, and each element
    // of `out` is written once.
    unsafe { CODE.launch(device, op, ([a.dtype(); 2], "tiles"), launch, &arguments) }
}

/// Whether `m · n` results are few enough for [`linear`].
pub(super) fn has_few_results(m: usize, n: usize) -> bool {
    tiles_of(m, n) <= ENOUGH_TILES && n.div_ceil(SIDE) <= MOST_BLOCKS
}

fn tiles_of(m: usize, n: usize) -> usize {
    m.div_ceil(TILE) * n.div_ceil(TILE)
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
    let turned = weight.layout().permute(&[1, 0]);
    let factors = [x, weight.with_layout(&turned)];
    if bias.is_contiguous() && library::product(device, op, &Shape::SCALAR, factors, Some(bias), &mut out)? {
        return Ok(());
    }
    if !has_few_results(x.shape()[0], weight.shape()[0]) {
        own(device, &Shape::SCALAR, factors, out.reborrow())?;
        let repeated = bias.layout().expand(op, out.shape())?;
        return ADD.run(device, op, &[bias.with_layout(&repeated)], &[], out);
    }
    let weight_strides = [1, 0].map(|dim| weight.strides()[dim] as u64); // transposed
    let sizes = [x.shape()[0], weight.shape()[0], x.shape()[1]];
    let product = Product::of_matrices(op, sizes, [x.strides()[0], x.strides()[1]].map(|s| s as u64), weight_strides)?;
    let step = bias.strides()[0] as u64;
    dots(device, op, &Product { bias_stride: step, ..product }, Bias::Added(bias), [x, weight], out)
}

/// `gradᵀ · x` and behind it, in `out`, the sums of `grad` over the batch.
pub(super) fn weight_and_bias_grad(
    device: &CudaDevice,
    grad: CudaView<'_>,
    x: CudaView<'_>,
    out: CudaOut<'_>,
) -> Result<()> {
    let op = "linear's gradient";
    let sizes = [grad.shape()[1], x.shape()[1], x.shape()[0]];
    let grad_strides = [1, 0].map(|dim| grad.strides()[dim] as u64); // transposed
    let product = Product::of_matrices(op, sizes, grad_strides, [x.strides()[0], x.strides()[1]].map(|s| s as u64))?;
    dots(device, op, &product, Bias::Summed, [grad, x], out)
}

/// What becomes of a bias in a product.
enum Bias<'a> {
    None,
    /// Added to each row of the result.
    Added(CudaView<'a>),
    /// Its gradient comes behind the result: the sums of the left factor's rows.
    Summed,
}

/// The kernel for few results.
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
    let [m, n, k] = product.sizes.map(|size| size as usize);
    let columns = (n + usize::from(matches!(bias, Bias::Summed))).div_ceil(SIDE);
    let grid = [m.div_ceil(SIDE), count(op, columns)? as usize, (product.batches as usize).min(MOST_BLOCKS)];
    let threads = k.next_multiple_of(32).clamp(32, DOT_THREADS) as u32;
    let launch = Launch { grid: grid.map(|blocks| blocks as u32), block: [threads, 1, 1], shared_bytes: 0 };
    let constants = Constants::of(&[
        ("ADDS_BIAS", matches!(bias, Bias::Added(_)).into()),
        ("SUMS_ROWS", matches!(bias, Bias::Summed).into()),
    ]);
    let added = if let Bias::Added(bias) = bias { bias } else { b };
    let product = Argument::Value(bytemuck::bytes_of(product));
    let arguments = [out.argument(), a.argument(), b.argument(), added.argument(), product];
    // SAFETY: the kernel takes these; places are inside of the views, whose sizes and strides these are, and each element
    // of `out` is written once.
    unsafe { CODE.launch_for(device, op, ([a.dtype(); 2], "dots"), constants, launch, &arguments) }
}

impl Product {
    /// Of one pair of matrices, `[m, k]` and `[k, n]`, with these strides.
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
            a_stride: [rank_a - 2, rank_a - 1].map(|dim| a.strides()[dim] as u64),
            b_stride: [rank_b - 2, rank_b - 1].map(|dim| b.strides()[dim] as u64),
            ..Product::zeroed()
        };
        for back in 0..batches.rank() {
            product.batch_size[back] = int(batches[batches.rank() - 1 - back])?;
            product.a_batch[back] = batch_stride(a, back);
            product.b_batch[back] = batch_stride(b, back);
        }
        Ok(product)
    }
}

/// From one matrix to the next along a dimension of the batches, counted from the last; 0 where the operand repeats.
fn batch_stride(operand: CudaView<'_>, back: usize) -> u64 {
    match (operand.shape().rank() - 2).checked_sub(back + 1) {
        Some(dim) if operand.shape()[dim] != 1 => operand.strides()[dim] as u64,
        _ => 0,
    }
}
