//! Places in sorted sequences on a device: the kernel of `searchsorted.cu`.

use pagelock_cuda::{Argument, Launch};

use crate::cuda::{Code, Constants, CudaDevice, count};
use crate::element::DType;
use crate::error::Result;
use crate::inlined::Array;
use crate::op::on_cuda;
use crate::tensor::Raw;

static CODE: Code = Code { name: "searchsorted", text: include_str!("searchsorted.cu") };

const THREADS: usize = 256;

/// The number of elements of a sorted sequence before each value. The sequence is a vector, or has a row for each row
/// of the values. Neither is empty.
pub(super) fn searched(op: &'static str, device: &CudaDevice, [sorted, values]: [&Raw; 2], right: bool) -> Result<Raw> {
    let (sorted, values) = (sorted.gap_free()?, values.gap_free()?);
    let (n, m) = (sorted.shape()[sorted.rank() - 1], values.shape()[values.rank() - 1]);
    let (total, step) = (values.shape().elements(), if sorted.rank() == 1 { 0 } else { n });
    on_cuda(op, device, [Some(&values), Some(&sorted)], (*values.shape(), DType::I64), &mut |inputs, mut out| {
        count(op, total.div_ceil(THREADS))?;
        let types = [values.dtype(); 2];
        let [values, sorted] = inputs.cuda_views().mapped(|view| view.argument());
        let sizes = [n, m, total, step].mapped(|size| (size as u64).to_ne_bytes());
        let [n, m, total_, step] = sizes.each_ref().mapped(|size| Argument::Value(size));
        let arguments = [out.argument(), sorted, values, n, m, total_, step];
        let (constants, launch) = (Constants::of(&[("RIGHT", right.into())]), Launch::covering(total, THREADS as u32));
        // SAFETY: the kernel takes these arguments; the result has an element for each value, and each row of values
        // has a sorted one.
        unsafe { CODE.launch_for(device, op, (types, "search"), constants, launch, &arguments) }
    })
}
