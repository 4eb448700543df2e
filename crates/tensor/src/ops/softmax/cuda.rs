//! Softmax and its relatives on a device: how many threads a row has, and whether it is kept in shared memory.

use pagelock_cuda::{Argument, Launch};

use crate::cuda::{Arguments, Code, CudaDevice, CudaOut, CudaView, count};
use crate::element::DType;
use crate::error::Result;

static CODE: Code =
    Code { name: "softmax", text: concat!(include_str!("../../cuda/sums.cu"), include_str!("softmax.cu")) };

const MOST_THREADS: usize = 512;
const BLOCK_THREADS: usize = 128;
/// Two blocks of a Hopper multiprocessor have so much shared memory each.
const KEPT_BYTES: usize = 96 << 10;

/// Runs a kernel of `softmax.cu` over the last dimension of tensors of one shape, all without gaps.
pub(super) fn run<const N: usize>(
    device: &CudaDevice,
    (op, kernel): (&'static str, &'static str),
    inputs: [CudaView<'_>; N],
    mut out: CudaOut<'_>,
) -> Result<()> {
    let (elements, dtype) = (out.shape().elements(), out.dtype());
    if elements == 0 {
        return Ok(());
    }
    let n = out.shape()[out.shape().rank() - 1];
    let rows = elements / n;
    let lanes = lanes(n);
    let block_rows = (BLOCK_THREADS / lanes).max(1);
    let computed_bytes = if dtype == DType::F64 { 8 } else { 4 };
    let kept_bytes = block_rows * n * N * computed_bytes;
    let keep = kept_bytes <= KEPT_BYTES;
    let launch = Launch {
        grid: [count(op, rows.div_ceil(block_rows))? as u32, 1, 1],
        block: [lanes as u32, block_rows as u32, 1],
        shared_bytes: if keep { kept_bytes as u32 } else { 0 },
    };
    let (rows, n, keep) = ((rows as u64).to_ne_bytes(), count(op, n)?.to_ne_bytes(), u32::from(keep).to_ne_bytes());
    let [rows, n, keep] = [&rows[..], &n, &keep].map(Argument::Value);
    let arguments = std::iter::once(out.argument()).chain(inputs.iter().map(CudaView::argument)).chain([rows, n, keep]);
    // SAFETY: the kernels take these; the tensors have rows · n elements each, and a block's rows fit into its shared
    // memory, if they are kept.
    unsafe { CODE.launch(device, op, ([dtype; 2], kernel), launch, Arguments::of(arguments).get()) }
}

/// Threads of a row: a power of two, so that each has some elements.
fn lanes(n: usize) -> usize {
    match n {
        0..=512 => n.div_ceil(4).next_power_of_two().min(32),
        _ => n.div_ceil(16).next_power_of_two().min(MOST_THREADS),
    }
}
