//! Running sums and products on a device: the kernels of `scan.cu`.

use pagelock_cuda::{Argument, Launch};

use super::Lines;
use crate::cuda::{Arguments, Code, CudaDevice, CudaOut, CudaView, count};
use crate::error::Result;
use crate::inlined::Array;

static CODE: Code = Code { name: "scan", text: include_str!("scan.cu") };

const THREADS: usize = 128;
const WARP: usize = 32;

/// Runs a scan of `scan.cu` along lines: the first kernel if they are rows, else the second. No tensor has gaps, and all have one
/// shape.
pub(super) fn run<const N: usize>(
    device: &CudaDevice,
    (op, [rows_kernel, lines_kernel]): (&'static str, [&'static str; 2]),
    inputs: [CudaView<'_>; N],
    Lines { outer, n, inner }: Lines,
    reverse: bool,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let lines = outer * inner;
    if lines * n == 0 {
        return Ok(());
    }
    // A warp for each line of neighbors, else a thread for each line.
    let (kernel, threads) = if inner == 1 { (rows_kernel, lines * WARP) } else { (lines_kernel, lines) };
    count(op, threads.div_ceil(THREADS))?;
    let numbers = [lines, n, inner, usize::from(reverse)].mapped(|number| (number as u64).to_ne_bytes());
    let numbers = numbers.each_ref().mapped(|number| Argument::Value(number));
    let types = [inputs[0].dtype(), out.dtype()];
    let arguments = std::iter::once(out.argument()).chain(inputs.iter().map(CudaView::argument)).chain(numbers);
    let arguments: Arguments<'_> = arguments.collect();
    let launch = Launch::covering(threads, THREADS as u32);
    // SAFETY: the kernels take these; all tensors have lines · n elements.
    unsafe { CODE.launch(device, op, (types, kernel), launch, &arguments) }
}
