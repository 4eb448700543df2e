//! Running sums and products on a device: the kernels of `scan.cu`.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, DeviceBuffer, DeviceView, DeviceViewMut, Launch};

use super::Lines;
use crate::cuda::{Code, CudaDevice, CudaOut, CudaView, NULL, count};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::Array;

static CODE: Code = Code { name: "scan", text: include_str!("scan.cu") };

const THREADS: usize = 128;
const WARP: usize = 32;
/// Threads that keep any current GPU busy. If there are fewer, long lines are cut into chunks.
const ENOUGH_THREADS: usize = 1 << 17;
/// The fewest elements of a chunk, if a warp takes it, and if a thread takes it.
const MIN_OF_WARP: usize = 512;
const MIN_OF_THREAD: usize = 64;

/// The kernels of a scan along rows, and along other lines.
pub(super) struct Kernels {
    rows: &'static str,
    lines: &'static str,
    /// The kernels for the totals of chunks; without them, lines are not cut.
    totals: Option<[&'static str; 2]>,
}

pub(super) static CUMSUM: Kernels =
    Kernels { rows: "cumsum_rows", lines: "cumsum_lines", totals: Some(["cumsum_rows_totals", "cumsum_lines_totals"]) };

pub(super) static CUMPROD: Kernels = Kernels {
    rows: "cumprod_rows",
    lines: "cumprod_lines",
    totals: Some(["cumprod_rows_totals", "cumprod_lines_totals"]),
};

pub(super) static RECURRENCE: Kernels = Kernels { rows: "recurrence_rows", lines: "recurrence_lines", totals: None };

/// `Scan` of `scan.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Scan {
    lines: u64,
    n: u64,
    inner: u64,
    reverse: u64,
    chunk: u64,
    chunks: u64,
}

impl Scan {
    fn new(lines: Lines, reverse: bool, in_chunks: bool) -> Scan {
        let Lines { outer, n, inner } = lines;
        let chunk = if in_chunks { chunk_of(lines) } else { n };
        let [lines, n, inner, chunk, chunks] =
            [outer * inner, n, inner, chunk, n.div_ceil(chunk)].mapped(|size| size as u64);
        Scan { lines, n, inner, reverse: reverse.into(), chunk, chunks }
    }

    /// A warp for each chunk of a row, a thread for each chunk of another line.
    fn launch(&self, op: &'static str) -> Result<Launch> {
        let threads = (self.lines * self.chunks) as usize * if self.inner == 1 { WARP } else { 1 };
        count(op, threads.div_ceil(THREADS))?;
        Ok(Launch::covering(threads, THREADS as u32))
    }
}

/// Elements per chunk: the whole line, if there are enough lines.
fn chunk_of(Lines { outer, n, inner }: Lines) -> usize {
    let (lines, is_row) = (outer * inner, inner == 1);
    let (threads, least) = if is_row { (lines * WARP, MIN_OF_WARP) } else { (lines, MIN_OF_THREAD) };
    if threads > ENOUGH_THREADS / 2 || n < 2 * least {
        return n;
    }
    let chunks = (ENOUGH_THREADS / threads).min(n / least);
    n.div_ceil(chunks).next_multiple_of(WARP)
}

/// Runs a scan along lines; a recurrence also has factors. No tensor has gaps, and all have one shape.
pub(super) fn run(
    device: &CudaDevice,
    (op, kernels): (&'static str, &'static Kernels),
    (x, factors): (CudaView<'_>, Option<CudaView<'_>>),
    lines: Lines,
    reverse: bool,
    out: CudaOut<'_>,
) -> Result<()> {
    if lines.outer * lines.n * lines.inner == 0 {
        return Ok(());
    }
    let call = Call { device, op, kernels, types: [x.dtype(), out.dtype()] };
    call.scan(x.bytes(), factors.map(|factors| factors.bytes()), lines, reverse, out.into_bytes())
}

/// A scan from elements of one type to elements of another.
struct Call<'a> {
    device: &'a CudaDevice,
    op: &'static str,
    kernels: &'static Kernels,
    types: [DType; 2],
}

impl Call<'_> {
    fn scan(
        &self,
        x: DeviceView<'_, u8>,
        factors: Option<DeviceView<'_, u8>>,
        lines: Lines,
        reverse: bool,
        y: DeviceViewMut<'_, u8>,
    ) -> Result<()> {
        let scan = Scan::new(lines, reverse, self.kernels.totals.is_some());
        let before = if scan.chunks > 1 { Some(self.before(x, lines, &scan)?) } else { None };
        let third = factors.or(before.as_ref().map(DeviceBuffer::view));
        let kernel = if lines.inner == 1 { self.kernels.rows } else { self.kernels.lines };
        self.launch(kernel, y, x, third, &scan)
    }

    /// The totals before each chunk but the first. Chunk i finds its total at place i − 1.
    fn before(&self, x: DeviceView<'_, u8>, lines: Lines, scan: &Scan) -> Result<DeviceBuffer<u8>> {
        let Some([rows, others]) = self.kernels.totals else { unreachable!("only scans with totals have chunks") };
        let dtype = self.types[1].computing();
        let allocate = || {
            let bytes = (scan.lines * scan.chunks) as usize * dtype.size();
            self.device.stream().allocate::<u8>(bytes).map_err(|source| Error::cuda(self.op, source))
        };
        let (mut totals, mut before) = (allocate()?, allocate()?);
        self.launch(if lines.inner == 1 { rows } else { others }, totals.view_mut(), x, None, scan)?;
        let of_totals = Call { types: [dtype; 2], ..*self };
        of_totals.scan(totals.view(), None, Lines { n: scan.chunks as usize, ..lines }, false, before.view_mut())?;
        Ok(before)
    }

    fn launch(
        &self,
        kernel: &'static str,
        y: DeviceViewMut<'_, u8>,
        x: DeviceView<'_, u8>,
        third: Option<DeviceView<'_, u8>>,
        scan: &Scan,
    ) -> Result<()> {
        let third = third.map_or(NULL, Argument::Read);
        let arguments = [Argument::Write(y), Argument::Read(x), third, Argument::Value(bytemuck::bytes_of(scan))];
        // SAFETY: the kernels take these arguments; x, y and factors have lines · n elements, totals and `before`
        // lines · chunks.
        unsafe { CODE.launch(self.device, self.op, (self.types, kernel), scan.launch(self.op)?, &arguments) }
    }
}
