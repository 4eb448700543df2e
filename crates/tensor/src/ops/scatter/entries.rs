//! Adds up whole entries of a dimension on a device, each named by one index: the kernels of `entries.cu`.

use pagelock_cuda::{Argument, Launch};

use super::cuda::{Call, add};
use crate::cuda::{Code, Constants, CudaOut, count};
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::ops::index::cuda::Entries;
use crate::ops::sort::radix::{Keys, sort};

static CODE: Code = Code {
    name: "index_add",
    text: concat!(include_str!("../../cuda/fault.cu"), include_str!("../../cuda/packs.cu"), include_str!("entries.cu")),
};

const WARP: usize = 32;
const WARPS: usize = 8;
/// The fewest elements of an entry that is added as a whole.
const MIN_INNER: usize = 8;
/// The most elements of a pack; a thread loads several packs at once.
const MAX_ADDED: usize = 4;

/// Adds up the entries with equal indices, from zeros.
pub(in crate::ops) fn add_entries(call: &Call<'_>, mut out: CudaOut<'_>) -> Result<()> {
    let Call { device, op, source, index } = *call;
    let (entries, outer) = Entries::new(out.shape(), source, index.dim);
    let [x_entries, inner] = [entries.x_entries, entries.inner].mapped(|size| size as usize);
    let are_short = inner < MIN_INNER || entries.y_entries >= u32::MAX.into();
    if are_short || !source.is_contiguous() || !index.view.is_contiguous() {
        return add(call, false, out);
    }
    call.clear(out.reborrow())?;
    if outer * x_entries == 0 {
        return Ok(());
    }
    let pack = entries.pack(MAX_ADDED * source.dtype().size().min(4), source, &out);
    let (constants, types) = (Constants::of(&[("V", pack as i32)]), [source.dtype(); 2]);
    let of_entries = || Argument::Value(bytemuck::bytes_of(&entries));
    let launch = Launch::covering(x_entries, (WARP * WARPS) as u32);
    let bytes = x_entries * size_of::<u32>();
    let mut keys = device.stream().allocate::<u8>(bytes).map_err(|source| Error::cuda(op, source))?;
    device.with_fault(call.indexed(&out), |[fault, site]| {
        let arguments = [Argument::Write(keys.view_mut()), index.view.argument(), fault, site, of_entries()];
        // SAFETY: the kernel takes these arguments; there is a key for each index.
        unsafe { CODE.launch_for(device, op, (types, "keys_of_entries"), constants, launch, &arguments) }
    })?;
    // Entries that are not added have the key `y_entries`.
    let sorted = sort(device, op, Keys::up_to(entries.y_entries, keys, [1, x_entries]))?;
    let blocks = count(op, outer * x_entries.div_ceil(WARPS) * inner.div_ceil(WARP * pack))?;
    let launch = Launch { grid: [blocks as u32, 1, 1], block: [WARP as u32, WARPS as u32, 1], shared_bytes: 0 };
    let [keys, places] = [&sorted.keys, &sorted.places].mapped(|buffer| Argument::Read(buffer.view()));
    let arguments = [out.argument(), source.argument(), keys, places, of_entries()];
    // SAFETY: the kernel takes these arguments. Source and `out` are contiguous and have these sizes; packs divide
    // entries and are aligned. Keys below `y_entries` are entries of `out`, each pack of which is written by one
    // warp; places are entries of the source.
    unsafe { CODE.launch_for(device, op, (types, "add_entries"), constants, launch, &arguments) }
}
