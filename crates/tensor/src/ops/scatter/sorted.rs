//! Scattering on a device, for few and long lines: indices are sorted, and elements with one index are combined. The
//! kernels of `sorted.cu`.

use pagelock_cuda::{Argument, Launch};

use super::Combination;
use super::cuda::Call;
use super::lines::Lines;
use crate::cuda::{Code, CudaOut};
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::ops::sort::radix::{Keys, sort};

static CODE: Code = Code {
    name: "scatter",
    text: concat!(include_str!("../../cuda/fault.cu"), include_str!("lines.cu"), include_str!("sorted.cu")),
};

const THREADS: u32 = 128;
const WARP: usize = 32;
/// Places of a line that a warp takes at a time, as in `sorted.cu`.
const PIECE: usize = 1024;

/// Combines the elements of the source with those of `out`. An index is less than `u32::MAX`.
pub(super) fn combine(call: &Call<'_>, combination: Combination, lines: Lines, mut out: CudaOut<'_>) -> Result<()> {
    let Call { device, op, source, index } = *call;
    let [combine, join] = match combination {
        Combination::Sum => ["combine_sum", "join_sum"],
        Combination::Prod => ["combine_prod", "join_prod"],
        Combination::Amax => ["combine_amax", "join_amax"],
        Combination::Amin => ["combine_amin", "join_amin"],
        Combination::Last => unreachable!("the last element is not combined"),
    };
    let types = [source.dtype(); 2];
    let allocate =
        |len: usize, size: usize| device.stream().allocate::<u8>(len * size).map_err(|source| Error::cuda(op, source));
    let of_index = lines.of_index();
    let mut keys = allocate(of_index.elements(), size_of::<u32>())?;
    device.with_fault(call.indexed(&out), |[fault, site]| {
        let index_lines = Argument::Value(bytemuck::bytes_of(&of_index));
        let arguments = [Argument::Write(keys.view_mut()), index.view.argument(), fault, site, index_lines];
        let launch = call.of_elements(&of_index)?.0;
        // SAFETY: the kernel takes these arguments; lines and steps lead to elements of the index, and there is a key
        // for each of these.
        unsafe { CODE.launch(device, op, (types, "keys_of_index"), launch, &arguments) }
    })?;
    let [n_lines, n_sorted, n] = [lines.lines, of_index.lines, lines.x_len].mapped(|size| size as usize);
    // Elements that are not written have the key `y_len`.
    let sorted = sort(device, op, Keys::up_to(lines.y_len, keys, [n_sorted, n]))?;
    let of_lines = || Argument::Value(bytemuck::bytes_of(&lines));
    let (pieces, size) = (n_lines * n.div_ceil(PIECE), source.dtype().computing().size());
    let (mut begun, mut going_on) = (allocate(pieces, size)?, allocate(pieces, size)?);
    let [keys, places] = [&sorted.keys, &sorted.places].mapped(|buffer| Argument::Read(buffer.view()));
    let [begun_, going_on_] = [&mut begun, &mut going_on].mapped(|buffer| Argument::Write(buffer.view_mut()));
    let arguments = [out.argument(), begun_, going_on_, source.argument(), keys, places, of_lines()];
    let launch = call.of_elements(&lines)?.0;
    // SAFETY: the kernels take these arguments; the lines lead to those of the sorted index. Keys below `y_len` are
    // elements of a line of `out`, each written by one thread or warp; places are elements of a line of the source.
    // There are two numbers for each piece.
    unsafe { CODE.launch(device, op, (types, combine), launch, &arguments) }?;
    if n <= PIECE {
        return Ok(());
    }
    let [begun, going_on, keys] = [&begun, &going_on, &sorted.keys].mapped(|buffer| Argument::Read(buffer.view()));
    let arguments = [out.argument(), begun, going_on, keys, of_lines()];
    let launch = Launch::covering(pieces * WARP, THREADS);
    // SAFETY: as above; a key that is in several pieces belongs to the warp of the first of them.
    unsafe { CODE.launch(device, op, (types, join), launch, &arguments) }
}
