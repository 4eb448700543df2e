//! Triangles of matrices on a device: the kernel of `triangle.cu`.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, Launch};

use super::Side;
use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, count};
use crate::error::Result;
use crate::inlined::Array;

static CODE: Code = Code { name: "triangle", text: include_str!("triangle.cu") };

const THREADS: usize = 256;
const PACK_BYTES: usize = 16;

/// `Triangle` of `triangle.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Triangle {
    elements: u64,
    rows: u64,
    columns: u64,
    diagonal: i64,
    is_lower: u64,
}

/// Both tensors have no gaps, two dimensions or more, and elements.
pub(super) fn triangle(
    device: &CudaDevice,
    x: CudaView<'_>,
    (side, diagonal): (Side, isize),
    mut out: CudaOut<'_>,
) -> Result<()> {
    let (shape, elements) = (x.shape(), out.shape().elements());
    let [rows, columns] = [2, 1].mapped(|from_end| shape[shape.len() - from_end]);
    let pack = PACK_BYTES / x.dtype().size();
    let in_packs = columns.is_multiple_of(pack) && x.is_aligned(PACK_BYTES) && out.is_aligned(PACK_BYTES);
    let pack = if in_packs { pack } else { 1 };
    let threads = elements / pack;
    count(side.name(), threads.div_ceil(THREADS))?;
    // Larger than any diagonal of the matrices, and small enough that sums with it do not overflow.
    let beyond = rows.max(columns) as i64;
    let triangle = Triangle {
        elements: elements as u64,
        rows: rows as u64,
        columns: columns as u64,
        diagonal: (diagonal as i64).clamp(-beyond, beyond),
        is_lower: (side == Side::Lower).into(),
    };
    let arguments = [out.argument(), x.argument(), Argument::Value(bytemuck::bytes_of(&triangle))];
    let (constants, launch) = (Constants::of(&[("V", pack as i32)]), Launch::covering(threads, THREADS as u32));
    // SAFETY: the kernel takes these arguments; both tensors have that many elements of one type, in whole packs, which
    // are aligned.
    unsafe { CODE.launch_for(device, side.name(), ([x.dtype(); 2], "triangle"), constants, launch, &arguments) }
}
