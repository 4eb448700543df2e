//! Softmax and its relatives on a device: one kernel of `softmax.cu`, which reads its inputs once and writes once.

use pagelock_cuda::Argument;

use crate::cuda::{Arguments, Code, CudaDevice, CudaOut, CudaView, RowPlan, count};
use crate::error::Result;
use crate::inlined::Array;

static CODE: Code = Code {
    name: "softmax",
    text: concat!(
        include_str!("../../cuda/sums.cu"),
        include_str!("../../cuda/packs.cu"),
        include_str!("../../cuda/rows.cu"),
        include_str!("softmax.cu")
    ),
};

/// Runs a kernel of `softmax.cu` over the last dimension of tensors of one shape, all without gaps. Halves and `f32`
/// may be mixed: the last input may have the computing type of the first, and the result any type.
pub(super) fn run<const N: usize>(
    device: &CudaDevice,
    (op, kernel): (&'static str, &'static str),
    inputs: [CudaView<'_>; N],
    mut out: CudaOut<'_>,
) -> Result<()> {
    let elements = out.shape().elements();
    let (first, last) = (inputs[0].dtype(), inputs[N - 1].dtype());
    let widest = [first, last]
        .into_iter()
        .fold(out.dtype(), |wide, dtype| if dtype.size() > wide.size() { dtype } else { wide });
    if elements == 0 {
        return Ok(());
    }
    let n = out.shape()[out.shape().rank() - 1];
    let rows = elements / n;
    let plan = RowPlan::new(n, widest, N, |bytes| out.is_aligned(bytes) && inputs.iter().all(|x| x.is_aligned(bytes)));
    let launch = plan.launch(op, rows.div_ceil(plan.of_block()), 0)?;
    let (rows, n) = ((rows as u64).to_ne_bytes(), count(op, n)?.to_ne_bytes());
    let sizes = [&rows[..], &n].mapped(Argument::Value);
    let kernel = ([first, out.dtype()], kernel);
    let arguments = std::iter::once(out.argument()).chain(inputs.iter().map(CudaView::argument)).chain(sizes);
    let arguments: Arguments<'_> = arguments.collect();
    let constants = plan.constants().and(&[("LAST_IS_WIDE", (last != first).into())]);
    // SAFETY: the kernels take these arguments; the tensors have rows · n elements each, and packs are aligned.
    unsafe { CODE.launch_for(device, op, kernel, constants, launch, &arguments) }
}
