//! Scattering on a device: the kernels of `scatter.cu`.

use pagelock_cuda::{Argument, Launch};

use super::How;
use crate::cuda::{COPY, Code, CudaDevice, CudaOut, CudaView, Indexed, count};
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::ops::index::cuda::{Index, Lines};

static CODE: Code =
    Code { name: "scatter", text: concat!(include_str!("../../cuda/fault.cu"), include_str!("scatter.cu")) };

const THREADS: u32 = 128;
const WARP: usize = 32;

/// `x` with the elements of `source` combined with those at their indices along `dim`.
pub(super) fn scatter(
    device: &CudaDevice,
    (op, how, dim): (&'static str, How, usize),
    [x, index, source]: [CudaView<'_>; 3],
    mut out: CudaOut<'_>,
) -> Result<()> {
    COPY.run(device, op, &[x], &[], out.reborrow())?;
    let shape = *out.shape();
    if source.shape().elements() == 0 {
        return Ok(());
    }
    let lines = Lines::new(&shape, source, Index::of_elements(index, dim));
    if how == How::Last && lines.are_few_and_long() {
        return write_last(device, (op, dim), lines, [index, source], out);
    }
    let blocks = count(op, (lines.lines as usize).div_ceil(THREADS as usize / WARP))?;
    let launch = Launch { grid: [blocks as u32, 1, 1], ..Launch::covering(1, THREADS) };
    let types = [source.dtype(); 2];
    let kernel = match how {
        How::Last => "scatter_last",
        How::Prod => "scatter_prod",
        How::Amax => "scatter_amax",
        How::Amin => "scatter_amin",
    };
    device.with_fault(Indexed { op, dim, shape }, |[fault, site]| {
        let lines = Argument::Value(bytemuck::bytes_of(&lines));
        let arguments = [out.argument(), source.argument(), index.argument(), fault, site, lines];
        // SAFETY: the kernels take these; lines and steps lead to elements of the source, of the index and, with an index that
        // they check, of `out`; no two lines have the same elements of `out`.
        unsafe { CODE.launch(device, op, (types, kernel), launch, &arguments) }
    })
}

/// The last of the elements of the source for each index, where lines are [few and long](Lines::are_few_and_long).
fn write_last(
    device: &CudaDevice,
    (op, dim): (&'static str, usize),
    lines: Lines,
    [index, source]: [CudaView<'_>; 2],
    mut out: CudaOut<'_>,
) -> Result<()> {
    let failed = |failure| Error::cuda(op, failure);
    let (shape, types) = (*out.shape(), [source.dtype(); 2]);
    let mut last = device.stream().allocate::<u8>(shape.elements() * size_of::<u32>()).map_err(failed)?;
    device.stream().fill(&mut last, 0).map_err(failed)?;
    let threads = lines.elements();
    count(op, threads.div_ceil(THREADS as usize))?;
    let (launch, lines_first) =
        (Launch::covering(threads, THREADS), u64::from(!lines.is_source_in_rows()).to_ne_bytes());
    let (lines, lines_first) = (bytemuck::bytes_of(&lines), &lines_first[..]);
    device.with_fault(Indexed { op, dim, shape }, |[fault, site]| {
        let [first, all] = [lines_first, lines].mapped(Argument::Value);
        let arguments = [Argument::Write(last.view_mut()), index.argument(), fault, site, first, all];
        // SAFETY: the kernel takes these; lines and steps lead to elements of the index, which is checked, and so to elements of
        // `last`, which has one for each of `out`.
        unsafe { CODE.launch(device, op, (types, "note_last"), launch, &arguments) }
    })?;
    let [first, all] = [lines_first, lines].mapped(Argument::Value);
    let arguments = [out.argument(), Argument::Read(last.view()), source.argument(), index.argument(), first, all];
    // SAFETY: the same, and to elements of the source; one thread writes each element of `out`.
    unsafe { CODE.launch(device, op, (types, "write_last"), launch, &arguments) }
}
