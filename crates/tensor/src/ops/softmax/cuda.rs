//! Softmax, its logarithm and their gradients on a device: a kernel of `softmax.cu` each.

use pagelock_cuda::Argument;

use crate::cuda::{Arguments, Code, CudaDevice, CudaOut, CudaView, RowPlan, count};
use crate::error::Result;
use crate::inlined::Array;
use crate::ops::scan::Lines;

static CODE: Code = Code {
    name: "softmax",
    text: concat!(
        include_str!("../../cuda/sums.cu"),
        include_str!("../../cuda/packs.cu"),
        include_str!("../../cuda/rows.cu"),
        include_str!("softmax.cu")
    ),
};

/// The fewest columns that keep a GPU busy with a thread for each. Columns of at most `SHORT` elements may be fewer,
/// since a copy would take longer.
const MANY_COLUMNS: usize = 1 << 14;
const SHORT: usize = 64;

/// Whether the kernels are fast without a copy that makes each line contiguous.
pub(super) fn suits(lines: &Lines) -> bool {
    let columns = lines.outer.saturating_mul(lines.inner);
    i32::try_from(columns).is_ok() && (columns >= MANY_COLUMNS || lines.n <= SHORT)
}

/// Runs a kernel of `softmax.cu` along lines of tensors of one shape, all without gaps. Halves and `f32` may be mixed:
/// the last input may have the computing type of the first, and the result any type.
pub(super) fn run<const N: usize>(
    device: &CudaDevice,
    (op, kernel): (&'static str, &'static str),
    Lines { outer, n, inner }: Lines,
    inputs: [CudaView<'_>; N],
    mut out: CudaOut<'_>,
) -> Result<()> {
    let (first, last) = (inputs[0].dtype(), inputs[N - 1].dtype());
    let widest = [first, last]
        .into_iter()
        .fold(out.dtype(), |wide, dtype| if dtype.size() > wide.size() { dtype } else { wide });
    if out.shape().elements() == 0 {
        return Ok(());
    }
    let rows = outer * inner;
    let are_aligned = |bytes| out.is_aligned(bytes) && inputs.iter().all(|x| x.is_aligned(bytes));
    let plan = match inner {
        1 => RowPlan::new(n, widest, N, are_aligned),
        _ => RowPlan::of_columns(n, widest, N),
    };
    let launch = plan.launch(op, rows.div_ceil(plan.of_block()), 0)?;
    let [rows, stride] = [rows as u64, inner as u64].mapped(u64::to_ne_bytes);
    let n = count(op, n)?.to_ne_bytes();
    let sizes = [&rows[..], &n, &stride].mapped(Argument::Value);
    let kernel = ([first, out.dtype()], kernel);
    let arguments = std::iter::once(out.argument()).chain(inputs.iter().map(CudaView::argument)).chain(sizes);
    let arguments: Arguments<'_> = arguments.collect();
    let constants = plan.constants().and(&[("LAST_IS_WIDE", (last != first).into()), ("COLUMNS", (inner > 1).into())]);
    // SAFETY: the kernels take these arguments; the tensors have outer · n · inner elements each, packs are aligned,
    // and the numbers of columns fit 32 bits (`suits`).
    unsafe { CODE.launch_for(device, op, kernel, constants, launch, &arguments) }
}
