//! Sorting long lines on a device, by the digits of their keys: the kernels of `radix.cu`.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, DeviceBuffer, Launch};

use crate::cuda::{Code, CudaDevice, CudaOut, CudaView, count};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::ops::scan::Lines;

static CODE: Code = Code {
    name: "radix_sort",
    text: concat!(include_str!("keys.cu"), include_str!("../../cuda/block.cu"), include_str!("radix.cu")),
};

/// As in `radix.cu`.
const DIGIT: u32 = 8;
const BINS: usize = 1 << DIGIT;
const THREADS: usize = BINS;
const WARP: usize = 32;

/// `Radix` of `radix.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Radix {
    lines: u64,
    n: u64,
    inner: u64,
    tiles: u64,
    shift: u64,
    first_pass: u64,
    descending: u64,
    kept: u64,
}

/// The keys by which lines are sorted: unsigned numbers, `[lines, n]`.
pub(in crate::ops) struct Keys {
    keys: DeviceBuffer<u8>,
    lines: usize,
    n: usize,
    /// The integer with the size of a key: `I32` or `I64`.
    dtype: DType,
    /// The bits in which keys may differ.
    bits: Range<u32>,
}

impl Keys {
    /// Keys of 32 bits that are at most `most`.
    pub(in crate::ops) fn up_to(most: u64, keys: DeviceBuffer<u8>, [lines, n]: [usize; 2]) -> Keys {
        Keys { keys, lines, n, dtype: DType::I32, bits: 0..u64::BITS - most.leading_zeros() }
    }
}

/// Keys in order, and the place of each in its line, a `u32`; both `[lines, n]`.
pub(in crate::ops) struct Sorted {
    pub(in crate::ops) keys: DeviceBuffer<u8>,
    pub(in crate::ops) places: DeviceBuffer<u8>,
}

/// The places of the first `kept` of each line in order. Neither tensor has gaps.
pub(super) fn order(
    device: &CudaDevice,
    op: &'static str,
    x: CudaView<'_>,
    Lines { outer, n, inner }: Lines,
    (kept, descending): (usize, bool),
    mut out: CudaOut<'_>,
) -> Result<()> {
    let (lines, dtype) = (outer * inner, key_type(x.dtype()));
    let of_elements =
        |elements: usize| count(op, elements.div_ceil(THREADS)).map(|_| Launch::covering(elements, THREADS as u32));
    let mut keys = allocate(device, op, lines * n * dtype.size())?;
    let radix =
        Radix { inner: inner as u64, descending: descending.into(), kept: kept as u64, ..Radix::of(lines, n, dtype) };
    let radix = || Argument::Value(bytemuck::bytes_of(&radix));
    let (kernel, arguments) = ([x.dtype(), DType::I64], [Argument::Write(keys.view_mut()), x.argument(), radix()]);
    // SAFETY: the kernel takes these arguments; `keys` has one for each element of `x`, which has no gaps.
    unsafe { CODE.launch(device, op, (kernel, "keys_of"), of_elements(lines * n)?, &arguments) }?;
    let sorted = sort(device, op, Keys { keys, lines, n, dtype, bits: bits_of(x.dtype()) })?;
    let (kernel, arguments) = ([dtype, DType::I64], [out.argument(), Argument::Read(sorted.places.view()), radix()]);
    // SAFETY: the kernel takes these arguments; `out` has `kept` elements for each line and no gaps, and no line has
    // fewer places.
    unsafe { CODE.launch(device, op, (kernel, "write_places"), of_elements(lines * kept)?, &arguments) }
}

/// Sorts keys, stably.
pub(in crate::ops) fn sort(device: &CudaDevice, op: &'static str, keys: Keys) -> Result<Sorted> {
    let Keys { keys, lines, n, dtype, bits } = keys;
    let radix = Radix::of(lines, n, dtype);
    let (elements, rows, tiles) = (lines * n, lines * BINS, radix.tiles as usize);
    let (_, blocks, _) = (count(op, n)?, count(op, lines * tiles)?, count(op, rows.div_ceil(THREADS / WARP))?);
    let of_tiles = Launch { grid: [blocks as u32, 1, 1], ..Launch::covering(1, THREADS as u32) };
    let of_rows = Launch::covering(rows * WARP, THREADS as u32);
    let numbers = |len: usize| allocate(device, op, len * size_of::<u32>());
    let mut from = Sorted { keys, places: numbers(elements)? };
    let mut to = Sorted { keys: allocate(device, op, elements * dtype.size())?, places: numbers(elements)? };
    let (mut counts, mut before, mut totals) = (numbers(rows * tiles)?, numbers(rows * tiles)?, numbers(rows)?);
    for shift in bits.clone().step_by(DIGIT as usize) {
        let radix = Radix { shift: shift.into(), first_pass: (shift == bits.start).into(), ..radix };
        let radix = || Argument::Value(bytemuck::bytes_of(&radix));
        let arguments = [Argument::Write(counts.view_mut()), Argument::Read(from.keys.view()), radix()];
        // SAFETY: the kernel takes these arguments; there are keys for all lines, and counts for all tiles.
        unsafe { CODE.launch(device, op, ([dtype; 2], "count_digits"), of_tiles, &arguments) }?;
        let [sums, all, counts] =
            [Argument::Write(before.view_mut()), Argument::Write(totals.view_mut()), Argument::Read(counts.view())];
        // SAFETY: the kernel takes these arguments; there are as many sums as counts, and a total for each row of them.
        unsafe { CODE.launch(device, op, ([dtype; 2], "sum_counts"), of_rows, &[sums, all, counts, radix()]) }?;
        let moved = [&mut to.keys, &mut to.places].mapped(|buffer| Argument::Write(buffer.view_mut()));
        let read = [&from.keys, &from.places, &before, &totals].mapped(|buffer| Argument::Read(buffer.view()));
        let ([moved_keys, moved_places], [keys, places, before, totals]) = (moved, read);
        let arguments = [moved_keys, moved_places, keys, places, before, totals, radix()];
        // SAFETY: the kernel takes these arguments; the sums are those of the same keys, so they lead each key to a
        // place of its own in its line.
        unsafe { CODE.launch(device, op, ([dtype; 2], "move_by_digit"), of_tiles, &arguments) }?;
        std::mem::swap(&mut from, &mut to);
    }
    Ok(from)
}

fn allocate(device: &CudaDevice, op: &'static str, bytes: usize) -> Result<DeviceBuffer<u8>> {
    device.stream().allocate(bytes).map_err(|source| Error::cuda(op, source))
}

/// The integer with the size of an element's key.
fn key_type(dtype: DType) -> DType {
    if dtype.computing().size() == 8 { DType::I64 } else { DType::I32 }
}

/// The bits in which keys may differ. Bytes have the lowest bits; halves become `f32`s that end in zeros, or in ones
/// if negative.
fn bits_of(dtype: DType) -> Range<u32> {
    match dtype {
        DType::U8 | DType::Bool => 0..8,
        DType::BF16 => 16..32,
        DType::F16 => 8..32,
        DType::F32 | DType::I32 => 0..32,
        DType::F64 | DType::I64 => 0..64,
    }
}

impl Radix {
    fn of(lines: usize, n: usize, dtype: DType) -> Radix {
        let tile = THREADS * if dtype.size() == 4 { 16 } else { 8 };
        let [lines, n, tiles] = [lines, n, n.div_ceil(tile)].mapped(|size| size as u64);
        Radix { lines, n, inner: 1, tiles, shift: 0, first_pass: 0, descending: 0, kept: n }
    }
}
