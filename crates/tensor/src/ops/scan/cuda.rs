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

/// The kernels of a scan along rows and along other lines, and those for the totals of chunks.
pub(super) struct Kernels {
    rows: [&'static str; 2],
    lines: [&'static str; 2],
}

macro_rules! kernels {
    ($name:literal) => {
        Kernels {
            rows: [concat!($name, "_rows"), concat!($name, "_rows_totals")],
            lines: [concat!($name, "_lines"), concat!($name, "_lines_totals")],
        }
    };
}

pub(super) static CUMSUM: Kernels = kernels!("cumsum");
pub(super) static CUMPROD: Kernels = kernels!("cumprod");
pub(super) static RECURRENCE: Kernels = kernels!("recurrence");

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
    fn new(lines: Lines, reverse: bool) -> Scan {
        let Lines { outer, n, inner } = lines;
        let chunk = chunk_of(lines);
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
        let scan = Scan::new(lines, reverse);
        let [kernel, totals] = if lines.inner == 1 { self.kernels.rows } else { self.kernels.lines };
        let before = match scan.chunks {
            ..2 => None,
            _ => Some(self.before(totals, [Some(x), factors], lines, &scan)?),
        };
        let [factors, before] = [factors, before.as_ref().map(DeviceBuffer::view)].mapped(read);
        self.launch(kernel, [Argument::Write(y), Argument::Read(x), factors, before], &scan)
    }

    /// The results before each chunk but the first. Chunk i finds its result at place i − 1.
    fn before(
        &self,
        kernel: &'static str,
        inputs: [Option<DeviceView<'_, u8>>; 2],
        lines: Lines,
        scan: &Scan,
    ) -> Result<DeviceBuffer<u8>> {
        let dtype = self.types[1].computing();
        let allocate = || {
            let bytes = (scan.lines * scan.chunks) as usize * dtype.size();
            self.device.stream().allocate::<u8>(bytes).map_err(|source| Error::cuda(self.op, source))
        };
        let (mut totals, mut before) = (allocate()?, allocate()?);
        let mut factors = inputs[1].map(|_| allocate()).transpose()?;
        let outputs = [Some(&mut totals), factors.as_mut()];
        let [totals_out, factors_out] =
            outputs.mapped(|buffer| buffer.map_or(NULL, |buffer| Argument::Write(buffer.view_mut())));
        let [x, a] = inputs.mapped(read);
        self.launch(kernel, [totals_out, factors_out, x, a], scan)?;
        let of_totals = Call { types: [dtype; 2], ..*self };
        let (factors, lines) = (factors.as_ref().map(DeviceBuffer::view), Lines { n: scan.chunks as usize, ..lines });
        of_totals.scan(totals.view(), factors, lines, false, before.view_mut())?;
        Ok(before)
    }

    fn launch(&self, kernel: &'static str, [a, b, c, d]: [Argument<'_>; 4], scan: &Scan) -> Result<()> {
        let arguments = [a, b, c, d, Argument::Value(bytemuck::bytes_of(scan))];
        // SAFETY: the kernels take these arguments; x, y and factors have lines · n elements; totals, the factors of
        // chunks and `before` have lines · chunks.
        unsafe { CODE.launch(self.device, self.op, (self.types, kernel), scan.launch(self.op)?, &arguments) }
    }
}

fn read(view: Option<DeviceView<'_, u8>>) -> Argument<'_> {
    view.map_or(NULL, Argument::Read)
}
