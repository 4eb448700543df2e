//! Orders on a device: the kernels of `sort.cu`, and that of `select.cu`, which finds the first few of long lines.

use pagelock_cuda::{Argument, Launch};

use crate::cuda::{Code, CudaDevice, CudaOut, CudaView, count};
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::ops::scan::Lines;

static CODE: Code = Code { name: "sort", text: concat!(include_str!("keys.cu"), include_str!("sort.cu")) };
static SELECT: Code = Code { name: "select", text: concat!(include_str!("keys.cu"), include_str!("select.cu")) };

const OP: &str = "argsort";
const THREADS: usize = 128;

/// Elements that a thread of `sort_tiles` sorts by itself.
const ITEMS: usize = 8;

/// Bytes of a tile's keys, which leave shared memory for two bytes of each place.
const KEY_BYTES: usize = 32 << 10;

/// The most places of a line that are selected, the share of a line that they are at most, and the shortest line.
const MOST_SELECTED: usize = 512;
const SELECTED_SHARE: usize = 4;
const LEAST_SELECTED_FROM: usize = 1024;
/// Threads of a block of `select_first`.
const SELECTING_THREADS: u32 = 512;

/// Both tensors have no gaps; `out` holds the first `k` places of each line.
pub(super) fn order(
    device: &CudaDevice,
    x: CudaView<'_>,
    lines: Lines,
    k: usize,
    descending: bool,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let elements = lines.outer * lines.n * lines.inner;
    if elements == 0 || k == 0 {
        return Ok(());
    }
    let sort = Sort { device, x, lines, k, descending };
    if k <= MOST_SELECTED.min(lines.n / SELECTED_SHARE) && (LEAST_SELECTED_FROM..1 << 31).contains(&lines.n) {
        return sort.select(out);
    }
    let tile = sort.tile();
    if lines.n <= tile {
        return sort.tiles(tile, out.argument(), (k, lines.inner));
    }
    // Runs are merged in turns from one list into another, at last into `out`.
    let list = || device.stream().allocate::<u8>(elements * size_of::<i64>()).map_err(|source| Error::cuda(OP, source));
    let mut from = list()?;
    sort.tiles(tile, Argument::Write(from.view_mut()), (lines.n, 1))?;
    let mut width = tile;
    if 2 * width < lines.n {
        let mut to = list()?;
        while 2 * width < lines.n {
            sort.merge(width, Argument::Read(from.view()), Argument::Write(to.view_mut()), (lines.n, 1))?;
            std::mem::swap(&mut from, &mut to);
            width *= 2;
        }
    }
    sort.merge(width, Argument::Read(from.view()), out.argument(), (k, lines.inner))
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
    /// Elements of a tile: no more than a line needs, a block holds and its threads sort.
    fn tile(&self) -> usize {
        let most = KEY_BYTES / self.key_bytes();
        self.lines.n.next_power_of_two().clamp(32 * ITEMS, most)
    }

    fn key_bytes(&self) -> usize {
        self.x.dtype().computing().size().max(4)
    }

    /// The first of each line, found by their digits.
    fn select(&self, mut out: CudaOut<'_>) -> Result<()> {
        let Lines { outer, n, inner } = self.lines;
        let blocks = count(OP, outer * inner)?;
        let launch = Launch { grid: [blocks as u32, 1, 1], ..Launch::covering(1, SELECTING_THREADS) };
        let numbers = [n, inner, self.k, usize::from(self.descending)].mapped(|number| (number as u64).to_ne_bytes());
        let [n, inner, k, descending] = numbers.each_ref().mapped(|number| Argument::Value(number));
        let arguments = [out.argument(), self.x.argument(), n, inner, k, descending];
        let types = [self.x.dtype(), crate::element::DType::I64];
        // SAFETY: the kernel takes these; a line has more than `k` elements, and `out` has `k` for each.
        unsafe { SELECT.launch(self.device, OP, (types, "select_first"), launch, &arguments) }
    }

    /// The order in each tile, into lines of `to` with that length, whose elements are that far apart.
    fn tiles(&self, tile: usize, to: Argument<'_>, (length, apart): (usize, usize)) -> Result<()> {
        let Lines { outer, n, inner } = self.lines;
        let tiles = n.div_ceil(tile);
        let blocks = count(OP, outer * inner * tiles)?;
        let shared = tile * (self.key_bytes() + size_of::<u16>());
        let launch = Launch { grid: [blocks as u32, 1, 1], ..Launch::covering(1, (tile / ITEMS) as u32) };
        let numbers = [n, inner, tiles, self.k, length, apart, usize::from(self.descending)];
        let numbers = numbers.mapped(|number| (number as u64).to_ne_bytes());
        let [n, inner, tiles, k, length, apart, descending] =
            numbers.each_ref().mapped(|number| Argument::Value(number));
        let arguments = [to, self.x.argument(), n, inner, tiles, k, length, apart, descending];
        // SAFETY: the kernel takes these; a block has the shared memory of its tile, and writes places of its own.
        unsafe { self.launch("sort_tiles", launch.shared_bytes(shared as u32), &arguments) }
    }

    /// Two runs of `width` made one each, of the order in `from`; `to` as in [`Sort::tiles`].
    fn merge(&self, width: usize, from: Argument<'_>, to: Argument<'_>, (length, apart): (usize, usize)) -> Result<()> {
        let Lines { outer, n, inner } = self.lines;
        let elements = outer * n * inner;
        count(OP, elements.div_ceil(THREADS))?;
        let numbers = [elements, n, inner, width, self.k, length, apart, usize::from(self.descending)];
        let numbers = numbers.mapped(|number| (number as u64).to_ne_bytes());
        let [elements_, n, inner, width, k, length, apart, descending] =
            numbers.each_ref().mapped(|number| Argument::Value(number));
        let arguments = [to, self.x.argument(), from, elements_, n, inner, width, k, length, apart, descending];
        // SAFETY: the kernel takes these; `from` has the numbers of all elements of each line, in runs of `width`, and what is
        // merged goes to places of its own.
        unsafe { self.launch("merge_runs", Launch::covering(elements, THREADS as u32), &arguments) }
    }

    /// # Safety
    /// As [`Code::launch`].
    unsafe fn launch(&self, kernel: &'static str, launch: Launch, arguments: &[Argument<'_>]) -> Result<()> {
        let types = [self.x.dtype(), crate::element::DType::I64];
        // SAFETY: the caller's.
        unsafe { CODE.launch(self.device, OP, (types, kernel), launch, arguments) }
    }
}
