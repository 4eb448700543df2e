//! Indexing on a device: launches of the kernels of `index.cu` and `entries.cu`.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, Launch};

use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, Dims, Indexed, count};
use crate::error::Result;
use crate::inlined::{Array, Slice};
use crate::shape::{MAX_RANK, Shape};

static CODE: Code =
    Code { name: "index", text: concat!(include_str!("../../cuda/fault.cu"), include_str!("index.cu")) };

static ENTRIES: Code = Code {
    name: "index",
    text: concat!(include_str!("../../cuda/fault.cu"), include_str!("../../cuda/packs.cu"), include_str!("entries.cu")),
};

const THREADS: u32 = 128;
/// Elements per thread of `gather`.
const PER_THREAD: usize = 4;

/// An index tensor, and its stride along each dimension of the other tensor; 0 along dimensions that share an index.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Index<'a> {
    pub(in crate::ops) view: CudaView<'a>,
    pub(in crate::ops) strides: [usize; MAX_RANK],
    pub(in crate::ops) dim: usize,
}

impl<'a> Index<'a> {
    /// An index tensor with one index for each element.
    pub(in crate::ops) fn of_elements(view: CudaView<'a>, dim: usize) -> Index<'a> {
        let mut strides = [0; MAX_RANK];
        strides[..view.strides().len()].copy_from(view.strides());
        Index { view, strides, dim }
    }

    /// A one-dimensional index tensor, with one index for all elements of an entry.
    pub(in crate::ops) fn of_entries(view: CudaView<'a>, dim: usize) -> Index<'a> {
        let mut strides = [0; MAX_RANK];
        strides[dim] = view.strides()[0];
        Index { view, strides, dim }
    }
}

/// `out[…, j, …] = x[…, index[…, j, …], …]`
pub(super) fn gather(
    device: &CudaDevice,
    op: &'static str,
    x: CudaView<'_>,
    index: Index<'_>,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let elements = out.shape().elements();
    let (dim, rank) = (index.dim, out.shape().rank());
    let mut strides = [0; MAX_RANK];
    strides[..rank].copy_from(x.strides());
    let (size, stride) = if rank == 0 { (1, 0) } else { (x.shape()[dim], strides[dim]) };
    strides[dim] = 0;
    let dims = Dims::in_order(out.shape(), &[out.strides(), &index.strides[..rank], &strides[..rank]], |_| true);
    let (indexing, wide_indexing) = (dims.indexing().filter(|_| x.span() < 1 << 31), dims.wide_indexing());
    let (kernel, indexing) = match &indexing {
        Some(indexing) => ("gather", bytemuck::bytes_of(indexing)),
        None => ("wide_gather", bytemuck::bytes_of(&wide_indexing)),
    };
    let threads = elements.div_ceil(PER_THREAD);
    let launch = Launch::covering(threads, THREADS);
    count(op, threads.div_ceil(THREADS as usize))?;
    let (size, stride) = ((size as u64).to_ne_bytes(), (stride as u64).to_ne_bytes());
    let types = [x.dtype(); 2];
    device.with_fault(Indexed { op, dim, shape: *x.shape() }, |[fault, site]| {
        let [size, stride, indexing] = [&size[..], &stride, indexing].mapped(Argument::Value);
        let arguments = [out.argument(), x.argument(), index.view.argument(), fault, site, size, stride, indexing];
        // SAFETY: the kernels take these; the indexing leads to elements of `out`, of the index and, with an index that
        // they check, of `x`.
        unsafe { CODE.launch(device, op, (types, kernel), launch, &arguments) }
    })
}

/// `Entries` of this folder's and `scatter`'s `entries.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in crate::ops) struct Entries {
    pub(in crate::ops) y_entries: u64,
    pub(in crate::ops) x_entries: u64,
    pub(in crate::ops) inner: u64,
}

impl Entries {
    /// The entries of `out` and `x`, and the product of the sizes before the dimension.
    pub(in crate::ops) fn new(out: &Shape, x: CudaView<'_>, dim: usize) -> (Entries, usize) {
        let [outer, inner] = [&out[..dim], &out[dim + 1..]].mapped(|sizes| sizes.iter().product::<usize>());
        (Entries { y_entries: out[dim] as u64, x_entries: x.shape()[dim] as u64, inner: inner as u64 }, outer)
    }

    /// The number of elements that are copied at once: the most that divide every entry, are aligned, and have at
    /// most `most_bytes`.
    pub(in crate::ops) fn pack(&self, most_bytes: usize, x: CudaView<'_>, out: &CudaOut<'_>) -> usize {
        let size = x.dtype().size();
        let fits = |&pack: &usize| {
            let bytes = pack * size;
            bytes <= most_bytes
                && self.inner.is_multiple_of(pack as u64)
                && x.is_aligned(bytes)
                && out.is_aligned(bytes)
        };
        [16, 8, 4, 2].into_iter().find(fits).unwrap_or(1)
    }
}

/// Entries of at least this many bytes are copied as a whole.
const LONG_ENTRY: usize = 16;
/// Packs that a thread of `select_entries` loads at once.
const AT_ONCE: usize = 4;

/// [`gather`] with one index for each entry of a dimension.
pub(super) fn select_entries(
    device: &CudaDevice,
    op: &'static str,
    x: CudaView<'_>,
    index: Index<'_>,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let (dim, dtype) = (index.dim, x.dtype());
    let (entries, outer) = Entries::new(out.shape(), x, dim);
    let is_long = entries.inner as usize * dtype.size() >= LONG_ENTRY;
    if !is_long || !x.is_contiguous() || !out.is_contiguous() || !index.view.is_contiguous() {
        return gather(device, op, x, index, out);
    }
    let (pack, rows) = (entries.pack(16, x, &out), outer * out.shape()[dim]);
    let lanes = (entries.inner as usize / pack).div_ceil(AT_ONCE).next_power_of_two().min(THREADS as usize);
    let of_block = THREADS as usize / lanes;
    let grid = [count(op, rows.div_ceil(of_block))? as u32, 1, 1];
    let launch = Launch { grid, block: [lanes as u32, of_block as u32, 1], shared_bytes: 0 };
    let kernel = ([dtype; 2], "select_entries");
    device.with_fault(Indexed { op, dim, shape: *x.shape() }, |[fault, site]| {
        let rows = (rows as u64).to_ne_bytes();
        let [entries, rows] = [bytemuck::bytes_of(&entries), &rows].mapped(Argument::Value);
        let arguments = [out.argument(), x.argument(), index.view.argument(), fault, site, entries, rows];
        // SAFETY: the kernel takes these; `x` and `out` are contiguous and of these sizes, packs divide entries and
        // are aligned, and the index, which the kernel checks, has an element for each entry of `out`.
        unsafe { ENTRIES.launch_for(device, op, kernel, Constants::of(&[("V", pack as i32)]), launch, &arguments) }
    })
}
