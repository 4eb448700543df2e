//! Pooling on a device: one kernel of `pool2d.cu` per kind of pooling, compiled for the sizes of windows and a few
//! classes of planes. Sizes of planes are arguments, so that a kernel serves images of many sizes.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, Launch};

use super::cpu::Windows;
use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, Divisor, count};
use crate::error::Result;
use crate::inlined::Array;

static CODE: Code = Code { name: "pool2d", text: include_str!("pool2d.cu") };

const THREADS: u32 = 128;
/// The most threads per window.
const LANES: usize = 32;

/// What is computed from planes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooling {
    Largest,
    PlaceOfLargest,
    Mean,
    /// The transpose of the mean.
    Spread,
}

/// `Plane` of `pool2d.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Plane {
    size: [i32; 2],
    pixels: i32,
    by_pixels: Divisor,
    by_width: Divisor,
}

impl Plane {
    /// A plane of that height and width.
    fn new(op: &'static str, [height, width]: [usize; 2]) -> Result<Plane> {
        let pixels = count(op, height.saturating_mul(width))?;
        let [by_pixels, by_width] = [pixels, width as i32].mapped(|size| Divisor::new(size as u32));
        Ok(Plane { size: [height as i32, width as i32], pixels, by_pixels, by_width })
    }
}

impl Windows {
    /// The constants that `pool2d.cu` needs for both axes.
    fn constants(&self, op: &'static str) -> Result<Constants> {
        let (ins, outs) = (self.plane(), self.counts());
        let mut windows = [[0; 3]; 2];
        for (axis, window) in windows.iter_mut().enumerate() {
            if let Windows::Sliding(dims) = self {
                let stride = if outs[axis] == 1 { 1 } else { dims.stride[axis] };
                count(op, ins[axis] + 4 * dims.padding[axis] + dims.kernel[axis] + stride)?; // bounds all indices
                *window = [dims.kernel[axis], stride, dims.padding[axis]].mapped(|size| size as i32);
            }
        }
        let [[kernel_h, stride_h, padding_h], [kernel_w, stride_w, padding_w]] = windows;
        let area = count(op, self.area().unwrap_or(0))?; // 0: windows have areas of their own
        let vertical = [("KERNEL_H", kernel_h), ("STRIDE_H", stride_h), ("PADDING_H", padding_h)];
        let horizontal = [("KERNEL_W", kernel_w), ("STRIDE_W", stride_w), ("PADDING_W", padding_w)];
        let whole = ("WHOLE", self.are_whole_planes().into());
        Ok(Constants::of(&[("AREA", area), whole]).and(&vertical).and(&horizontal))
    }

    /// Whether the only window of each plane is the plane itself.
    fn are_whole_planes(&self) -> bool {
        let covers = match self {
            Windows::Sliding(dims) => dims.padding == [0, 0] && dims.kernel == dims.in_size,
            Windows::Adaptive(..) => true,
        };
        covers && self.counts() == [1, 1]
    }

    fn plane(&self) -> [usize; 2] {
        match self {
            Windows::Sliding(dims) => dims.in_size,
            Windows::Adaptive(from, _) => *from,
        }
    }

    /// How many windows a plane has, vertically and horizontally.
    fn counts(&self) -> [usize; 2] {
        match self {
            Windows::Sliding(dims) => dims.out_size,
            Windows::Adaptive(_, to) => *to,
        }
    }

    /// About how many pixels a window has.
    fn pixels(&self) -> usize {
        match self {
            Windows::Sliding(dims) => dims.kernel[0].saturating_mul(dims.kernel[1]),
            Windows::Adaptive(from, to) => from[0].div_ceil(to[0]) * from[1].div_ceil(to[1]),
        }
    }
}

/// Computes every element of `out`. Neither tensor has gaps.
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
    let launch = Launch::covering(results * lanes, THREADS);
    count(op, results.saturating_mul(lanes).div_ceil(THREADS as usize))?;
    // Numbers of 32 bits must reach all threads, those behind the last result too, and all elements.
    let threads = (results * lanes).next_multiple_of(THREADS as usize);
    let is_wide = i32::try_from(threads.max(x.shape().elements())).is_err();
    let planes = [Plane::new(op, windows.plane())?, Plane::new(op, windows.counts())?];
    let constants = windows.constants(op)?.and(&[("LANES", lanes as i32), ("WIDE", is_wide.into())]);
    let results = (results as u64).to_ne_bytes(); // the first half of these bytes is the number in 32 bits
    let results = if is_wide { &results[..] } else { &results[..4] };
    let planes = bytemuck::bytes_of(&planes);
    let arguments = [out.argument(), x.argument(), Argument::Value(results), Argument::Value(planes)];
    // SAFETY: the kernels take these arguments. The sizes fit each other, as `PoolDims` says, so the kernels read
    // only inside the planes of `x`; they write each result once.
    unsafe { CODE.launch_for(device, op, ([x.dtype(); 2], kernel), constants, launch, &arguments) }
}

/// The number of threads per window, a power of two. One thread is enough for a small window, and if a plane has many.
fn lanes(windows: &Windows) -> usize {
    let n_windows: usize = windows.counts().iter().product();
    match windows.pixels() {
        pixels if pixels <= 9 || n_windows >= 64 => 1,
        pixels => pixels.next_power_of_two().min(LANES),
    }
}
