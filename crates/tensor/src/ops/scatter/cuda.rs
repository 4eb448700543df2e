//! Scattering on a device: which kernels of `scatter.cu` and `sorted.cu` run.

use pagelock_cuda::{Argument, Launch};

use super::Combination;
use super::lines::Lines;
use super::sorted;
use crate::cuda::{COPY, Code, Constants, CudaDevice, CudaOut, CudaView, Indexed, count};
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::ops::index::cuda::Index;

static CODE: Code = Code {
    name: "scatter",
    text: concat!(include_str!("../../cuda/fault.cu"), include_str!("lines.cu"), include_str!("scatter.cu")),
};

const THREADS: u32 = 128;
const WARP: usize = 32;
/// The most shared memory for the sums of a line, which every kernel may have; and the fewest elements for which it
/// pays.
const SHARED_BYTES: usize = 48 << 10;
const SHARED_ELEMENTS: u64 = 64;
/// Indices are sorted if a line has more elements than `SORTED_FROM` and one for each `SORTED_EACH` elements of all
/// lines together. Sorting then takes less time than a warp takes for its line in shared memory.
const SORTED_FROM: u64 = 5000;
const SORTED_EACH: u64 = 160;

/// `x` with the elements of `source` combined with those at their indices along `dim`.
pub(super) fn scatter(
    device: &CudaDevice,
    (op, combination, dim): (&'static str, Combination, usize),
    [x, index, source]: [CudaView<'_>; 3],
    mut out: CudaOut<'_>,
) -> Result<()> {
    COPY.run(device, op, &[x], &[], out.reborrow())?;
    let call = Call { device, op, index: Index::of_elements(index, dim), source };
    call.combine(combination, call.lines(&out), out)
}

/// Writes the elements of `source` over those at their indices along `dim`.
pub(super) fn write(
    device: &CudaDevice,
    (op, dim): (&'static str, usize),
    [index, source]: [CudaView<'_>; 2],
    out: CudaOut<'_>,
) -> Result<()> {
    let call = Call { device, op, index: Index::of_elements(index, dim), source };
    call.combine(Combination::Last, call.lines(&out), out)
}

/// Adds up the elements of the source with equal indices, from zeros. `is_once` says that no index occurs twice, so
/// that there is nothing to add.
pub(in crate::ops) fn add(call: &Call<'_>, is_once: bool, mut out: CudaOut<'_>) -> Result<()> {
    let lines = call.lines(&out);
    if let Some(bytes) = shared_bytes(call, &lines, &out) {
        return call.warp_each("scatter_sum_shared", (1, bytes), lines, out);
    }
    call.clear(out.reborrow())?;
    if is_once { call.write_once(lines, out) } else { call.combine(Combination::Sum, lines, out) }
}

/// The bytes of a line's sums, if every line of `out` has elements of the source and adds them up in shared memory.
/// Such lines are rows, and so short that sorting the indices would not be faster.
fn shared_bytes(call: &Call<'_>, lines: &Lines, out: &CudaOut<'_>) -> Option<usize> {
    let bytes = lines.y_len as usize * call.source.dtype().computing().size();
    let is_row = lines.step[0] == 1 && lines.x_len >= SHARED_ELEMENTS;
    let is_whole = lines.lines > 0 && (lines.lines * lines.y_len) as usize == out.shape().elements();
    let is_short = lines.x_len < SORTED_FROM + lines.elements() as u64 / SORTED_EACH;
    (is_row && is_whole && is_short && bytes <= SHARED_BYTES).then_some(bytes)
}

/// What is scattered, and where.
pub(in crate::ops) struct Call<'a> {
    pub(in crate::ops) device: &'a CudaDevice,
    pub(in crate::ops) op: &'static str,
    pub(in crate::ops) index: Index<'a>,
    pub(in crate::ops) source: CudaView<'a>,
}

impl Call<'_> {
    /// What the error for an index out of range refers to.
    pub(super) fn indexed(&self, out: &CudaOut<'_>) -> Indexed {
        Indexed { op: self.op, dim: self.index.dim, shape: *out.shape() }
    }

    pub(super) fn clear(&self, out: CudaOut<'_>) -> Result<()> {
        self.device.stream().fill(out.into_bytes(), 0).map_err(|source| Error::cuda(self.op, source))
    }

    fn lines(&self, out: &CudaOut<'_>) -> Lines {
        Lines::new(out.shape(), self.source, self.index)
    }

    /// Combines the source with the elements of `out`.
    fn combine(&self, combination: Combination, lines: Lines, out: CudaOut<'_>) -> Result<()> {
        let kernel = match combination {
            _ if self.source.shape().elements() == 0 => return Ok(()),
            Combination::Last if lines.x_len == 1 => return self.write_once(lines, out),
            Combination::Last if lines.have_one_index() || lines.are_few_and_long() => {
                return self.write_last(lines, out);
            }
            Combination::Last => "scatter_last",
            _ if lines.are_sorted() => return sorted::combine(self, combination, lines, out),
            Combination::Sum => "scatter_sum",
            Combination::Prod => "scatter_prod",
            Combination::Amax => "scatter_amax",
            Combination::Amin => "scatter_amin",
        };
        self.warp_each(kernel, (THREADS as usize / WARP, 0), lines, out)
    }

    /// A warp for each line.
    fn warp_each(
        &self,
        kernel: &'static str,
        (warps, shared_bytes): (usize, usize),
        lines: Lines,
        mut out: CudaOut<'_>,
    ) -> Result<()> {
        let blocks = count(self.op, (lines.lines as usize).div_ceil(warps))?;
        let block = [(warps * WARP) as u32, 1, 1];
        let launch = Launch { grid: [blocks as u32, 1, 1], block, shared_bytes: shared_bytes as u32 };
        let kernel = ([self.source.dtype(); 2], kernel);
        self.device.with_fault(self.indexed(&out), |[fault, site]| {
            let lines = Argument::Value(bytemuck::bytes_of(&lines));
            let arguments = [out.argument(), self.source.argument(), self.index.view.argument(), fault, site, lines];
            // SAFETY: the kernels take these arguments; lines and steps lead to elements of the source, of the index
            // and, with an index that they check, of `out`; no two lines have the same elements of `out`; shared memory
            // has room for a line.
            unsafe { CODE.launch(self.device, self.op, kernel, launch, &arguments) }
        })
    }

    /// Writes the last of the elements of the source for each index, with a thread for each element. If all lines
    /// have the same index, the element that is last in one line is last in all.
    fn write_last(&self, lines: Lines, mut out: CudaOut<'_>) -> Result<()> {
        let (device, types, is_one) = (self.device, [self.source.dtype(); 2], lines.have_one_index());
        let constants = Constants::of(&[("ONE_INDEX", is_one.into())]);
        let failed = |failure| Error::cuda(self.op, failure);
        let n_last = if is_one { lines.y_len as usize } else { out.shape().elements() };
        let mut last = device.stream().allocate::<u8>(n_last * size_of::<u32>()).map_err(failed)?;
        device.stream().fill(&mut last, 0).map_err(failed)?;
        let noted_lines = if is_one { lines.first() } else { lines };
        let (launch, lines_first) = self.of_elements(&noted_lines)?;
        device.with_fault(self.indexed(&out), |[fault, site]| {
            let [first, all] = [&lines_first[..], bytemuck::bytes_of(&noted_lines)].mapped(Argument::Value);
            let arguments = [Argument::Write(last.view_mut()), self.index.view.argument(), fault, site, first, all];
            // SAFETY: the kernel takes these arguments; lines and steps lead to elements of the index, which is
            // checked, and so to elements of `last`, which has one for each of `out`, or of a line of it.
            unsafe { CODE.launch_for(device, self.op, (types, "note_last"), constants, launch, &arguments) }
        })?;
        let (launch, lines_first) = self.of_elements(&lines)?;
        let [first, all] = [&lines_first[..], bytemuck::bytes_of(&lines)].mapped(Argument::Value);
        let [source, index] = [self.source, self.index.view].mapped(|view| view.argument());
        let arguments = [out.argument(), Argument::Read(last.view()), source, index, first, all];
        // SAFETY: as above, and lines and steps lead to elements of the source; one thread writes each element of
        // `out`.
        unsafe { CODE.launch_for(device, self.op, (types, "write_last"), constants, launch, &arguments) }
    }

    /// Writes each element of the source, for an index that names no element of `out` twice.
    fn write_once(&self, lines: Lines, mut out: CudaOut<'_>) -> Result<()> {
        if lines.elements() == 0 {
            return Ok(());
        }
        let (launch, lines_first) = self.of_elements(&lines)?;
        let kernel = ([self.source.dtype(); 2], "write_once");
        self.device.with_fault(self.indexed(&out), |[fault, site]| {
            let [first, all] = [&lines_first[..], bytemuck::bytes_of(&lines)].mapped(Argument::Value);
            let [source, index] = [self.source, self.index.view].mapped(|view| view.argument());
            let arguments = [out.argument(), source, index, fault, site, first, all];
            // SAFETY: the kernel takes these arguments; lines and steps lead to elements of the source, of the index
            // and, with an index that it checks, of `out`, of which two threads may write one, but only if the index
            // names it twice.
            unsafe { CODE.launch(self.device, self.op, kernel, launch, &arguments) }
        })
    }

    /// A thread for each element of the source, in the order of memory; and whether neighbors in that order are in
    /// different lines.
    pub(super) fn of_elements(&self, lines: &Lines) -> Result<(Launch, [u8; 8])> {
        let threads = lines.elements();
        count(self.op, threads.div_ceil(THREADS as usize))?;
        Ok((Launch::covering(threads, THREADS), u64::from(!lines.is_source_in_rows()).to_ne_bytes()))
    }
}
