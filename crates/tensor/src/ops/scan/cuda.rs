//! Running sums on a device: the kernels of `scan.cu`.

use pagelock_cuda::{Argument, Launch};

use super::Lines;
use crate::cuda::{Code, CudaDevice, CudaOut, CudaView, count};
use crate::error::Result;

static CODE: Code = Code { name: "scan", text: include_str!("scan.cu") };

const THREADS: usize = 128;
const WARP: usize = 32;

/// Both tensors have no gaps.
pub(super) fn cumsum(
    device: &CudaDevice,
    x: CudaView<'_>,
    Lines { outer, n, inner }: Lines,
    reverse: bool,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let lines = outer * inner;
    if lines * n == 0 {
        return Ok(());
    }
    // A warp for each line of neighbors, else a thread for each line.
    let (kernel, threads) = if inner == 1 { ("cumsum_rows", lines * WARP) } else { ("cumsum_lines", lines) };
    count("cumsum", threads.div_ceil(THREADS))?;
    let numbers = [lines, n, inner, usize::from(reverse)].map(|number| (number as u64).to_ne_bytes());
    let [lines, n, inner, reverse] = numbers.each_ref().map(|number| Argument::Value(number));
    let types = [x.dtype(), out.dtype()];
    let arguments = [out.argument(), x.argument(), lines, n, inner, reverse];
    let launch = Launch::covering(threads, THREADS as u32);
    // SAFETY: the kernels take these; both tensors have lines · n elements.
    unsafe { CODE.launch(device, "cumsum", (types, kernel), launch, &arguments) }
}
