//! Places of what is true on a device: the kernel of `places.cu`.

use pagelock_cuda::{Argument, Launch};

use crate::cuda::{Code, CudaDevice, CudaOut, CudaView, count};
use crate::element::DType;
use crate::error::Result;

static CODE: Code = Code { name: "nonzero", text: include_str!("places.cu") };

const THREADS: usize = 256;

/// The places of what is true in a mask without gaps, in order; `ends` says how many are true up to each element and with it.
pub(super) fn places(
    device: &CudaDevice,
    op: &'static str,
    [mask, ends]: [CudaView<'_>; 2],
    mut out: CudaOut<'_>,
) -> Result<()> {
    let n = mask.shape().elements();
    count(op, n.div_ceil(THREADS))?;
    let size = (n as u64).to_ne_bytes();
    let arguments = [out.argument(), mask.argument(), ends.argument(), Argument::Value(&size)];
    let launch = Launch::covering(n, THREADS as u32);
    // SAFETY: the kernel takes these; mask and ends have n elements, and the result one for each that is true.
    unsafe { CODE.launch(device, op, ([DType::I64; 2], "places"), launch, &arguments) }
}
