//! `layer_norm` and `rms_norm` on a device: the kernels of `layer_norm.cu`, one for the result and one for each gradient.

use pagelock_cuda::{Argument, Launch};

use super::LayerNorm;
use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, RowPlan, constant, count, optional};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::Array;

static CODE: Code = Code {
    name: "layer_norm",
    text: concat!(
        include_str!("../../cuda/sums.cu"),
        include_str!("../../cuda/packs.cu"),
        include_str!("../../cuda/rows.cu"),
        include_str!("layer_norm.cu")
    ),
};

/// The most blocks that add up gradients of parameters, or the most threads if blocks are small. Constants, since
/// sums must not depend on the device.
const SUMMING_BLOCKS: usize = 256;
const SUMMING_THREADS: usize = 64 << 10;
/// Columns of a block of `layer_norm_parameters`.
const BLOCK_COLUMNS: usize = 32;

/// The result. The inputs are `x`, and weight and bias if there are any.
pub(super) fn forward(
    device: &CudaDevice,
    norm: &LayerNorm,
    inputs: [Option<CudaView<'_>>; 3],
    out: CudaOut<'_>,
) -> Result<()> {
    run(device, (norm.name(), "layer_norm"), 1, norm, inputs, out)
}

/// The gradient of `x`; the inputs are `x`, the gradient of the result and, if there is one, the weight.
pub(super) fn grad(
    device: &CudaDevice,
    norm: &LayerNorm,
    inputs: [Option<CudaView<'_>>; 3],
    out: CudaOut<'_>,
) -> Result<()> {
    run(device, (norm.name_of_gradient(), "layer_norm_grad"), 2, norm, inputs, out)
}

/// Launches a kernel that keeps `arrays` numbers for each element of a row in registers.
fn run(
    device: &CudaDevice,
    (op, kernel): (&'static str, &'static str),
    arrays: usize,
    norm: &LayerNorm,
    inputs: [Option<CudaView<'_>>; 3],
    mut out: CudaOut<'_>,
) -> Result<()> {
    let (n, dtype) = (norm.row_len(), out.dtype());
    let rows = out.shape().elements() / n;
    let are_aligned = |bytes| out.is_aligned(bytes) && inputs.iter().flatten().all(|x| x.is_aligned(bytes));
    let plan = RowPlan::new(n, dtype, arrays, are_aligned);
    let launch = plan.launch(op, rows.div_ceil(plan.of_block()), 0)?;
    let (rows, n, eps) = ((rows as u64).to_ne_bytes(), count(op, n)?.to_ne_bytes(), eps_of(norm, dtype));
    let [rows, n, eps] = [&rows[..], &n, &eps].mapped(Argument::Value);
    let [a, b, c] = inputs.mapped(optional);
    let arguments = [out.argument(), a, b, c, rows, n, eps];
    // SAFETY: the kernels take these; `out`, `x` and its gradient have rows · n elements, weight and bias n, and all
    // are aligned to packs.
    unsafe { CODE.launch_for(device, op, ([dtype; 2], kernel), constants(plan, norm), launch, &arguments) }
}

fn constants(plan: RowPlan, norm: &LayerNorm) -> Constants {
    plan.constants().and(&[("CENTERED", i32::from(norm.is_centered))])
}

fn eps_of(norm: &LayerNorm, dtype: DType) -> [u8; 8] {
    constant(dtype, norm.eps.into()).to_ne_bytes()
}

/// The plan for adding up rows, if they are short enough for threads to keep in registers.
fn summing(n: usize, dtype: DType, is_aligned: impl Fn(usize) -> bool) -> Option<RowPlan> {
    Some(RowPlan::new(n, dtype, 4, is_aligned)).filter(RowPlan::is_kept)
}

/// Whether [`parameter_grads`] takes rows of `n` elements.
pub(super) fn can_sum(n: usize, dtype: DType) -> bool {
    summing(n, dtype, |bytes| bytes <= dtype.size()).is_some()
}

/// The gradients of weight and bias, one after the other (for `rms_norm`, of the weight alone), and that of `x` if it
/// is wanted, all in one pass over the rows. The inputs are those of [`grad`].
pub(super) fn grads(
    device: &CudaDevice,
    norm: &LayerNorm,
    inputs: [Option<CudaView<'_>>; 3],
    mut x_grad: Option<CudaOut<'_>>,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let (op, dtype, n, columns) = (norm.name_of_gradient(), out.dtype(), norm.row_len(), out.shape().elements());
    let rows = inputs[0].map_or(0, |x| x.shape().elements() / n);
    let are_aligned =
        |bytes| inputs.iter().flatten().all(|x| x.is_aligned(bytes)) && x_grad.iter().all(|out| out.is_aligned(bytes));
    let plan = summing(n, dtype, are_aligned).unwrap_or_else(|| unreachable!("`can_sum` returned true"));
    let failed = |source| Error::cuda(op, source);
    let most_blocks = SUMMING_BLOCKS.max(SUMMING_THREADS / plan.threads());
    let (blocks, real_bytes) = (rows.div_ceil(plan.of_block()).min(most_blocks), dtype.computing().size());
    let mut partial = device.stream().allocate::<u8>(blocks * columns * real_bytes).map_err(failed)?;
    let launch = plan.launch(op, blocks, if plan.of_block() > 1 { columns * real_bytes } else { 0 })?;
    let (rows, row_len, eps) = ((rows as u64).to_ne_bytes(), count(op, n)?.to_ne_bytes(), eps_of(norm, dtype));
    let [rows, row_len, eps] = [&rows[..], &row_len, &eps].mapped(Argument::Value);
    let ([x, grad, weight], x_grad) = (inputs.mapped(optional), x_grad.as_mut().map(CudaOut::argument));
    let x_grad = x_grad.unwrap_or_else(|| optional(None));
    let arguments = [x_grad, Argument::Write(partial.view_mut()), x, grad, weight, rows, row_len, eps];
    let kernel = ([dtype; 2], "layer_norm_grads");
    // SAFETY: as in `run`; `partial` has `columns` numbers for each block, and so has its shared memory if the block
    // has several rows.
    unsafe { CODE.launch_for(device, op, kernel, constants(plan, norm), launch, &arguments) }?;

    let grid = [columns.div_ceil(BLOCK_COLUMNS) as u32, 1, 1];
    let numbers = [blocks as u32, count(op, columns)? as u32].mapped(u32::to_ne_bytes);
    let [blocks, columns] = numbers.each_ref().mapped(|number| Argument::Value(number));
    let arguments = [out.argument(), Argument::Read(partial.view()), blocks, columns];
    let launch = Launch { grid, ..Launch::covering(1, 256) };
    let kernel = ([dtype; 2], "layer_norm_parameters");
    // SAFETY: the kernel takes these; `out` has `columns` elements.
    unsafe { CODE.launch_for(device, op, kernel, constants(plan, norm), launch, &arguments) }
}
