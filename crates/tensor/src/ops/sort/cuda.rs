//! Orders on a device: `sort.cu` sorts lines that fit into shared memory, `radix.rs` longer ones, and `select.cu` finds the
//! first few of a line.

use pagelock_cuda::{Argument, Launch};

use super::radix;
use crate::cuda::{Code, CudaDevice, CudaOut, CudaView, count};
use crate::element::DType;
use crate::error::Result;
use crate::inlined::Array;
use crate::ops::scan::Lines;

static CODE: Code = Code { name: "sort", text: concat!(include_str!("keys.cu"), include_str!("sort.cu")) };
static SELECT: Code = Code {
    name: "select",
    text: concat!(include_str!("keys.cu"), include_str!("../../cuda/block.cu"), include_str!("select.cu")),
};

const OP: &str = "argsort";
/// Elements that a thread of `sort_tiles` sorts by itself.
const ITEMS: usize = 8;

/// Bytes of a tile's keys, which leave two bytes of shared memory for each place.
const KEY_BYTES: usize = 32 << 10;

/// Places are selected if they are at most `MAX_SELECTED` and at most a `SELECTED_SHARE`-th of the line, and if the
/// line is long enough. It may have up to `MAX_SELECTED_FROM` elements for each line that there is: a line is one
/// block, so a few longer lines are sorted faster as a whole.
const MAX_SELECTED: usize = 512;
const SELECTED_SHARE: usize = 4;
const MIN_SELECTED_FROM: usize = 1024;
const MAX_SELECTED_FROM: usize = 1 << 16;
/// Threads of a block of `select_first`.
const SELECTING_THREADS: u32 = 512;

/// Both tensors have no gaps; `out` holds the first `k` places of each line.
pub(super) fn order(
    device: &CudaDevice,
    x: CudaView<'_>,
    lines: Lines,
    k: usize,
    descending: bool,
    out: CudaOut<'_>,
) -> Result<()> {
    let elements = lines.outer * lines.n * lines.inner;
    if elements == 0 || k == 0 {
        return Ok(());
    }
    let sort = Sort { device, x, lines, k, descending };
    let most = MAX_SELECTED_FROM.saturating_mul(lines.outer * lines.inner).min(i32::MAX as usize);
    if k <= MAX_SELECTED.min(lines.n / SELECTED_SHARE) && (MIN_SELECTED_FROM..=most).contains(&lines.n) {
        return sort.select(out);
    }
    let tile = sort.tile();
    if lines.n <= tile {
        return sort.whole(tile, out);
    }
    radix::order(device, OP, x, lines, (k, descending), out)
}

/// What is sorted, and how.
struct Sort<'a> {
    device: &'a CudaDevice,
    x: CudaView<'a>,
    lines: Lines,
    k: usize,
    descending: bool,
}

impl Sort<'_> {
    /// Elements of a tile: no more than a line needs, shared memory holds and the threads of a block sort.
    fn tile(&self) -> usize {
        let most = KEY_BYTES / self.key_bytes();
        self.lines.n.next_power_of_two().clamp(32 * ITEMS, most)
    }

    fn key_bytes(&self) -> usize {
        self.x.dtype().computing().size().max(4)
    }

    /// Launches a kernel with a block for each line.
    ///
    /// # Safety
    /// A line and `out` suit the kernel, and it takes that many threads and that much shared memory.
    unsafe fn launch(
        &self,
        (code, kernel): (&'static Code, &'static str),
        (threads, shared_bytes): (u32, u32),
        mut out: CudaOut<'_>,
    ) -> Result<()> {
        let Lines { outer, n, inner } = self.lines;
        let blocks = count(OP, outer * inner)?;
        let launch = Launch { grid: [blocks as u32, 1, 1], ..Launch::covering(1, threads) }.shared_bytes(shared_bytes);
        let numbers = [n, inner, self.k, usize::from(self.descending)].mapped(|number| (number as u64).to_ne_bytes());
        let [n, inner, k, descending] = numbers.each_ref().mapped(|number| Argument::Value(number));
        let arguments = [out.argument(), self.x.argument(), n, inner, k, descending];
        let types = [self.x.dtype(), DType::I64];
        // SAFETY: the kernel takes these arguments; the rest is the caller's promise.
        unsafe { code.launch(self.device, OP, (types, kernel), launch, &arguments) }
    }

    /// The first places of each line, found by the digits of keys.
    fn select(&self, out: CudaOut<'_>) -> Result<()> {
        // SAFETY: a line has more than `k` elements, and `out` has `k` for each.
        unsafe { self.launch((&SELECT, "select_first"), (SELECTING_THREADS, 0), out) }
    }

    /// The first places of each line, all of which is sorted; a line fits into a tile.
    fn whole(&self, tile: usize, out: CudaOut<'_>) -> Result<()> {
        let shared_bytes = tile * (self.key_bytes() + size_of::<u16>());
        // SAFETY: a block has the shared memory of its line, and writes `k` places of its own.
        unsafe { self.launch((&CODE, "sort_lines"), ((tile / ITEMS) as u32, shared_bytes as u32), out) }
    }
}
