//! Flipping on a device: the kernel of `flip.cu`.

use pagelock_cuda::{Argument, Launch};

use crate::cuda::{Code, CudaDevice, CudaOut, CudaView, count};
use crate::error::Result;
use crate::inlined::Array;

static CODE: Code = Code { name: "flip", text: include_str!("flip.cu") };

const THREADS: usize = 128;
/// Elements per thread.
const PER_THREAD: usize = 4;

/// Flips one dimension; both tensors are contiguous and not empty.
pub(super) fn flip(device: &CudaDevice, x: CudaView<'_>, dim: usize, mut out: CudaOut<'_>) -> Result<()> {
    let (shape, elements) = (x.shape(), out.shape().elements());
    let inner: usize = shape[dim + 1..].iter().product();
    let threads = elements.div_ceil(PER_THREAD);
    count("flip", threads.div_ceil(THREADS))?;
    let numbers = [elements, shape[dim], inner].mapped(|number| (number as u64).to_ne_bytes());
    let [elements, n, inner] = numbers.each_ref().mapped(|number| Argument::Value(number));
    let arguments = [out.argument(), x.argument(), elements, n, inner];
    let launch = Launch::covering(threads, THREADS as u32);
    // SAFETY: the kernel takes these; both tensors have that many elements of one type, and `inner` is the stride of
    // the dimension.
    unsafe { CODE.launch(device, "flip", ([x.dtype(); 2], "flip"), launch, &arguments) }
}
