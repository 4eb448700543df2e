//! Choosing on a device: the kernel of `where_cond.cu`.

use pagelock_cuda::{Argument, Launch};

use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, count};
use crate::error::Result;
use crate::inlined::Array;

static CODE: Code = Code { name: "where", text: include_str!("where_cond.cu") };

const THREADS: usize = 256;
const PACK_BYTES: usize = 16;

/// Launches the kernel. The condition is contiguous; each side is a single number, or contiguous with the condition's
/// shape.
pub(super) fn where_cond(
    device: &CudaDevice,
    op: &'static str,
    [yes, condition, no]: [CudaView<'_>; 3],
    mut out: CudaOut<'_>,
) -> Result<()> {
    let (elements, pack) = (out.shape().elements(), PACK_BYTES / yes.dtype().size());
    let is_whole = |side: &CudaView<'_>| side.shape().elements() == elements;
    let begins_well = |side: &CudaView<'_>| !is_whole(side) || side.is_aligned(PACK_BYTES);
    let in_packs = out.is_aligned(PACK_BYTES) && condition.is_aligned(pack) && begins_well(&yes) && begins_well(&no);
    let pack = if in_packs { pack } else { 1 };
    let threads = elements.div_ceil(pack);
    count(op, threads.div_ceil(THREADS))?;
    let [yes_step, no_step] = [&yes, &no].mapped(is_whole).mapped(usize::from);
    let numbers = [elements, yes_step, no_step].mapped(|number| (number as u64).to_ne_bytes());
    let [elements, yes_step, no_step] = numbers.each_ref().mapped(|number| Argument::Value(number));
    let tensors = [&condition, &yes, &no].mapped(CudaView::argument);
    let [condition, yes_side, no_side] = tensors;
    let arguments = [out.argument(), condition, yes_side, no_side, elements, yes_step, no_step];
    let (constants, launch) = (Constants::of(&[("V", pack as i32)]), Launch::covering(threads, THREADS as u32));
    // SAFETY: the kernel takes these; the result, the condition, and sides with step 1 have that many elements, and
    // are aligned to packs.
    unsafe { CODE.launch_for(device, op, ([yes.dtype(); 2], "where_cond"), constants, launch, &arguments) }
}
