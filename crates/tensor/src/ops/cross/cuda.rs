//! Cross products on a device: the kernel of `cross.cu`.

use pagelock_cuda::{Argument, Launch};

use super::OP;
use crate::cuda::{Code, CudaDevice, count};
use crate::error::Result;
use crate::op::on_cuda;
use crate::ops::scan::Lines;
use crate::tensor::Raw;

static CODE: Code = Code { name: "cross", text: include_str!("cross.cu") };

const THREADS: usize = 256;

/// The cross products of contiguous tensors of one shape and precision.
pub(super) fn on_device(device: &CudaDevice, [x, y]: [&Raw; 2], lines: Lines) -> Result<Raw> {
    let vectors = lines.outer * lines.inner;
    count(OP, vectors.div_ceil(THREADS))?;
    on_cuda(OP, device, [Some(x), Some(y)], (*x.shape(), x.dtype()), &mut |inputs, mut out| {
        let [x, y] = inputs.cuda_views();
        let sizes = [vectors as u64, lines.inner as u64];
        let sizes = Argument::Value(bytemuck::bytes_of(&sizes));
        let arguments = [out.argument(), x.argument(), y.argument(), sizes];
        let launch = Launch::covering(vectors, THREADS as u32);
        // SAFETY: the kernel takes these; all three tensors have three elements for each vector.
        unsafe { CODE.launch(device, OP, ([x.dtype(); 2], "cross"), launch, &arguments) }
    })
}
