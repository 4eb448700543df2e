//! Orders on a device: the kernel of `sort.cu`.

use pagelock_cuda::{Argument, Launch};

use crate::cuda::{Code, CudaDevice, CudaOut, CudaView, count};
use crate::error::Result;
use crate::ops::scan::Lines;

static CODE: Code = Code { name: "sort", text: include_str!("sort.cu") };

const THREADS: usize = 128;

/// Both tensors have no gaps; `out` holds the first `k` places of each line.
pub(super) fn order(
    device: &CudaDevice,
    x: CudaView<'_>,
    Lines { outer, n, inner }: Lines,
    k: usize,
    descending: bool,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let elements = outer * n * inner;
    if elements == 0 || k == 0 {
        return Ok(());
    }
    count("argsort", elements.div_ceil(THREADS))?;
    let numbers = [elements, n, inner, k, usize::from(descending)].map(|number| (number as u64).to_ne_bytes());
    let [elements_, n, inner, k, descending] = numbers.each_ref().map(|number| Argument::Value(number));
    let types = [x.dtype(), out.dtype()];
    let arguments = [out.argument(), x.argument(), elements_, n, inner, k, descending];
    let launch = Launch::covering(elements, THREADS as u32);
    // SAFETY: the kernel takes these; `x` has so many elements, `out` k of each n, and the ranks of a line are all different.
    unsafe { CODE.launch(device, "argsort", (types, "argsort"), launch, &arguments) }
}
