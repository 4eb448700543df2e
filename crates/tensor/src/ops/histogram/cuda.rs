//! Histograms on a device: the kernels of `histogram.cu`.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, Launch};

use crate::cuda::{Code, CudaDevice};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::op::on_cuda;
use crate::shape::Shape;
use crate::tensor::Raw;

static CODE: Code = Code { name: "histogram", text: include_str!("histogram.cu") };

const THREADS: usize = 256;
/// Numbers that a thread counts, unless that takes more than `MAX_BLOCKS` blocks.
const PER_THREAD: usize = 16;
const MAX_BLOCKS: usize = 1024;
/// The shared memory that every block can have on every GPU.
const SHARED_BYTES: usize = 48 << 10;

/// `Counts` of `histogram.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Counts {
    n: u64,
    counters: u64,
    in_shared: u64,
    least: f64,
    most: f64,
}

/// Counts the numbers of a tensor. Count `i` is the number of elements equal to `i` or, with bounds, in bin `i` of
/// `counters` equal bins between the bounds.
pub(super) fn counts(
    op: &'static str,
    device: &CudaDevice,
    x: &Raw,
    counters: usize,
    bounds: Option<[f64; 2]>,
) -> Result<Raw> {
    let (x, n, shape) = (x.gap_free()?, x.shape().elements(), Shape::new(&[counters])?);
    shape.check_size()?;
    on_cuda(op, device, [Some(&x)], (shape, DType::I64), &mut |inputs, mut out| {
        device.stream().fill(out.reborrow().into_bytes(), 0).map_err(|source| Error::cuda(op, source))?;
        if n == 0 || counters == 0 {
            return Ok(());
        }
        let in_shared = counters * size_of::<u32>() <= SHARED_BYTES;
        let shared_bytes = if in_shared { counters * size_of::<u32>() } else { 0 };
        let (kernel, [least, most]) = bounds.map_or(("count_numbers", [0.0; 2]), |bounds| ("count_bins", bounds));
        let counts = Counts { n: n as u64, counters: counters as u64, in_shared: in_shared.into(), least, most };
        let threads = n.div_ceil(PER_THREAD).min(MAX_BLOCKS * THREADS);
        let launch = Launch::covering(threads, THREADS as u32).shared_bytes(shared_bytes as u32);
        let counts = Argument::Value(bytemuck::bytes_of(&counts));
        let arguments = [out.argument(), inputs.cuda_view(0).argument(), counts];
        // SAFETY: the kernels take these arguments. `x` is contiguous with `n` elements. `out` has `counters` counters,
        // and so has shared memory if `in_shared` is set.
        unsafe { CODE.launch(device, op, ([x.dtype(); 2], kernel), launch, &arguments) }
    })
}
