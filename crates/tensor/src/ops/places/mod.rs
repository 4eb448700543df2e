//! Where truth values on a device are true: a running sum says at which place of the result each belongs.

use pagelock_cuda::{Argument, Launch};

use super::{choose, number_like};
use crate::autograd::no_grad;
use crate::cuda::{Code, CudaDevice, count};
use crate::element::{DType, Scalar};
use crate::error::Result;
use crate::inlined::Array;
use crate::kind::Int;
use crate::op::on_cuda;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

static CODE: Code = Code { name: "nonzero", text: include_str!("places.cu") };

const THREADS: usize = 256;

/// The places of what is true in a mask without gaps, in order, as a vector. Waits for the device.
pub(super) fn places(op: &'static str, device: &CudaDevice, mask: &Raw) -> Result<Raw> {
    let (n, ends) = (mask.shape().elements(), ends(mask)?);
    let n_true = if n == 0 { 0 } else { ends.narrow(0, n - 1, 1)?.item::<i64>()? as usize };
    on_cuda(op, device, [Some(mask), Some(ends.raw())], (Shape::new(&[n_true])?, DType::I64), &mut |inputs, mut out| {
        count(op, n.div_ceil(THREADS))?;
        let [mask, ends] = inputs.cuda_views().mapped(|view| view.argument());
        let size = (n as u64).to_ne_bytes();
        let (arguments, launch) =
            ([out.argument(), mask, ends, Argument::Value(&size)], Launch::covering(n, THREADS as u32));
        // SAFETY: the kernel takes these; mask and ends have n elements, and the result one for each that is true.
        unsafe { CODE.launch(device, op, ([DType::I64; 2], "places"), launch, &arguments) }
    })
}

/// How many are true up to each element and with it, of a flat mask.
fn ends(mask: &Raw) -> Result<Tensor<Int>> {
    no_grad(|| mask.reshape(&[-1])?.converted(DType::I64)?.typed::<Int>().cumsum(0))
}

/// The elements of a vector in order where a mask without gaps is true, and zeros elsewhere; unrecorded.
pub(super) fn placed(op: &'static str, x: &Raw, mask: &Raw) -> Result<Raw> {
    let zero = number_like(op, x, Scalar::Int(0))?;
    if x.shape().elements() == 0 {
        return zero.expand(*mask.shape())?.deep_copy(op);
    }
    no_grad(|| {
        let from = ends(mask)?.add_scalar(-1)?.clamp_min(0)?;
        let taken = x.without_node().index_select(0, from.raw())?;
        choose(op, mask, &taken.reshape_to(*mask.shape())?, &zero)
    })
}
