//! Pooling on a device: one kernel of `pool2d.cu` each, told what the two sides of a plane are like.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, Launch};

use super::cpu::PoolDims;
use crate::cuda::{Code, CudaDevice, CudaOut, CudaView, count};
use crate::error::Result;

static CODE: Code = Code { name: "pool2d", text: include_str!("pool2d.cu") };

const THREADS: u32 = 128;
/// Threads of a window, at most.
const LANES: usize = 32;

/// What is made of planes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooling {
    Largest,
    PlaceOfLargest,
    Mean,
    /// The transpose of the mean.
    Spread,
}

/// Windows: sliding ones, or those that cover planes of the first size in as many as the second says.
pub(super) enum Windows {
    Sliding(PoolDims),
    Adaptive([usize; 2], [usize; 2]),
}

/// `Side` of `pool2d.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Side {
    len: i32,
    windows: i32,
    kernel: i32,
    stride: i32,
    padding: i32,
}

/// `Pool` of `pool2d.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Pool {
    results: i64,
    area: i64,
    sides: [Side; 2],
    lanes: u32,
    unused: u32,
}

impl Windows {
    fn sides(&self, op: &'static str) -> Result<[Side; 2]> {
        let (ins, outs) = match self {
            Windows::Sliding(dims) => (dims.in_size, dims.out_size),
            Windows::Adaptive(from, to) => (*from, *to),
        };
        count(op, ins[0].saturating_mul(ins[1]))?;
        count(op, outs[0].saturating_mul(outs[1]))?;
        let mut sides = [Side::zeroed(); 2];
        for (axis, side) in sides.iter_mut().enumerate() {
            (side.len, side.windows) = (count(op, ins[axis])?, count(op, outs[axis])?);
            if let Windows::Sliding(dims) = self {
                let stride = if outs[axis] == 1 { 1 } else { dims.stride[axis] };
                count(op, ins[axis] + 4 * dims.padding[axis] + dims.kernel[axis] + stride)?; // all places are below
                (side.kernel, side.stride) = (dims.kernel[axis] as i32, stride as i32);
                side.padding = dims.padding[axis] as i32;
            }
        }
        Ok(sides)
    }

    /// Pixels by which sums are divided, if that is the same for all windows.
    fn area(&self) -> i64 {
        match self {
            Windows::Sliding(dims) => (dims.kernel[0] * dims.kernel[1]) as i64,
            Windows::Adaptive(..) => 0,
        }
    }

    /// About how many pixels a window has.
    fn pixels(&self) -> usize {
        match self {
            Windows::Sliding(dims) => dims.kernel[0] * dims.kernel[1],
            Windows::Adaptive(from, to) => from[0].div_ceil(to[0]) * from[1].div_ceil(to[1]),
        }
    }
}

/// Computes every element of `out`, both tensors without gaps.
pub(super) fn run(
    device: &CudaDevice,
    op: &'static str,
    pooling: Pooling,
    windows: &Windows,
    x: CudaView<'_>,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let results = out.shape().elements();
    if results == 0 {
        return Ok(());
    }
    let (kernel, lanes) = match pooling {
        Pooling::Largest => ("largest", lanes(windows)),
        Pooling::PlaceOfLargest => ("place_of_largest", lanes(windows)),
        Pooling::Mean => ("mean", lanes(windows)),
        Pooling::Spread => ("spread", 1),
    };
    let pool = Pool {
        results: results as i64,
        area: windows.area(),
        sides: windows.sides(op)?,
        lanes: lanes as u32,
        unused: 0,
    };
    let launch = Launch::covering(results * lanes, THREADS);
    count(op, results.saturating_mul(lanes).div_ceil(THREADS as usize))?;
    let arguments = [out.argument(), x.argument(), Argument::Value(bytemuck::bytes_of(&pool))];
    // SAFETY: the kernels take these; with sizes that belong together, as `PoolDims` says, they read inside of the planes
    // of `x` only, and write each result once.
    unsafe { CODE.launch(device, op, ([x.dtype(); 2], kernel), launch, &arguments) }
}

/// Threads of a window: a power of two.
fn lanes(windows: &Windows) -> usize {
    windows.pixels().next_power_of_two().min(LANES)
}
