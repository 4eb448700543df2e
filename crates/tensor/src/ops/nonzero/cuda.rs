//! The indices of true elements on a device: the kernels of `nonzero.cu`.

use pagelock_cuda::{Argument, Launch};

use crate::cuda::{Code, CudaDevice, Indexed, count};
use crate::element::DType;
use crate::error::Result;
use crate::inlined::Array;
use crate::kind::Int;
use crate::op::on_cuda;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

static CODE: Code = Code {
    name: "nonzero",
    text: concat!(include_str!("../../cuda/fault.cu"), include_str!("../../cuda/block.cu"), include_str!("nonzero.cu")),
};

const THREADS: usize = 256;
/// Elements per block.
const TILE: usize = THREADS * 16;

/// The number of true elements up to the end of each tile. The mask is contiguous and not empty.
fn ends(op: &'static str, device: &CudaDevice, mask: &Raw) -> Result<Tensor<Int>> {
    let (n, launch) = (mask.shape().elements(), launch(op, mask)?);
    let shape_and_dtype = (Shape::new(&[n.div_ceil(TILE)])?, DType::I64);
    let counts = on_cuda(op, device, [Some(mask)], shape_and_dtype, &mut |inputs, mut out| {
        let size = (n as u64).to_ne_bytes();
        let arguments = [out.argument(), inputs.cuda_view(0).argument(), Argument::Value(&size)];
        // SAFETY: the kernel takes these arguments; the mask has n elements, and there is a count for each tile.
        unsafe { CODE.launch(device, op, ([DType::I64; 2], "count_true"), launch, &arguments) }
    })?;
    counts.typed::<Int>().cumsum(0)
}

/// A launch with a block for each tile.
fn launch(op: &'static str, mask: &Raw) -> Result<Launch> {
    let blocks = count(op, mask.shape().elements().div_ceil(TILE))?;
    Ok(Launch { grid: [blocks as u32, 1, 1], ..Launch::covering(1, THREADS as u32) })
}

/// The flat indices of the true elements of a contiguous mask, in order. Waits for the device.
///
/// If another thread changes the mask between the two kernels, some places are outdated or 0, but all lie inside the
/// mask.
pub(super) fn places(op: &'static str, device: &CudaDevice, mask: &Raw) -> Result<Raw> {
    let n = mask.shape().elements();
    if n == 0 {
        return on_cuda(op, device, [Some(mask)], (Shape::new(&[0])?, DType::I64), &mut |_, _| Ok(()));
    }
    let (ends, launch) = (ends(op, device, mask)?, launch(op, mask)?);
    let shape_and_dtype = (Shape::new(&[ends.narrow(0, ends.len() - 1, 1)?.item::<i64>()? as usize])?, DType::I64);
    on_cuda(op, device, [Some(mask), Some(ends.raw())], shape_and_dtype, &mut |inputs, mut out| {
        let ([mask, ends], size) = (inputs.cuda_views(), (n as u64).to_ne_bytes());
        let arguments = [out.argument(), mask.argument(), ends.argument(), Argument::Value(&size)];
        // SAFETY: the kernel takes these arguments; there are n elements and an end for each tile. The kernel writes only
        // below the ends, whatever the mask is now, and the last of them is the result's length; the ends ascend from 0,
        // since they are sums of counts in a tensor that no other thread has.
        unsafe { CODE.launch(device, op, ([DType::I64; 2], "places"), launch, &arguments) }
    })
}

/// The elements of `source`, in order, where a mask is true; elsewhere those of `x`, or zeros. All tensors are
/// contiguous. A source with too few elements is reported as an index out of range.
pub(in crate::ops) fn spread(
    op: &'static str,
    device: &CudaDevice,
    x: Option<&Raw>,
    mask: &Raw,
    source: &Raw,
) -> Result<Raw> {
    let (shape_and_dtype, types) = ((*mask.shape(), source.dtype()), [source.dtype(); 2]);
    let (n, n_source) = (mask.shape().elements(), source.shape().elements());
    if n == 0 {
        return on_cuda(op, device, [Some(mask)], shape_and_dtype, &mut |_, _| Ok(()));
    }
    let (ends, launch) = (ends(op, device, mask)?, launch(op, mask)?);
    let inputs = [Some(x.unwrap_or(source)), Some(source), Some(mask), Some(ends.raw())];
    on_cuda(op, device, inputs, shape_and_dtype, &mut |inputs, mut out| {
        device.with_fault(Indexed { op, dim: 0, shape: *source.shape() }, |[fault, site]| {
            let sizes = [usize::from(x.is_some()), n, n_source].mapped(|size| (size as u64).to_ne_bytes());
            let [has_x, n, n_source] = sizes.each_ref().mapped(|size| Argument::Value(size));
            let [x, source, mask, ends] = inputs.cuda_views().mapped(|view| view.argument());
            let arguments = [out.argument(), x, has_x, source, mask, ends, fault, site, n, n_source];
            // SAFETY: the kernel takes these arguments. The mask, the result and, if `has_x`, `x` have n elements;
            // there is an end for each tile, and `source` has `n_source` elements.
            unsafe { CODE.launch(device, op, (types, "spread"), launch, &arguments) }
        })
    })
}
