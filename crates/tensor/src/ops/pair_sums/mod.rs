//! Sums of pairs of tensors, several in one launch on a device: for gradients that reach a tensor on several paths.

use arrayvec::ArrayVec;
use pagelock_cuda::{Argument, Launch};

use crate::autograd::is_grad_enabled;
use crate::cuda::{Code, CudaDevice, CudaOut, optional};
use crate::device::Device;
use crate::error::Result;
use crate::inlined::from_fn;
use crate::op::{LockedInputs, on_cuda_in_layout};
use crate::storage::FreshCuda;
use crate::tensor::Raw;

static CODE: Code = Code { name: "pair_sums", text: include_str!("pair_sums.cu") };

const OP: &str = "add";
const THREADS: u32 = 256;
const PACK_BYTES: usize = 16;

/// The most pairs of a launch: `pair_sums.cu` has pointers for this many.
pub(crate) const MAX_PAIRS: usize = 4;

/// The two tensors of each pair, of one shape and precision.
pub(crate) type Pairs = ArrayVec<[Raw; 2], MAX_PAIRS>;

/// The sum of each pair, in their order.
pub(crate) fn pair_sums(pairs: &Pairs) -> Result<ArrayVec<Raw, MAX_PAIRS>> {
    match device_of(pairs) {
        Some(device) if !is_grad_enabled() => on_device(device, pairs),
        _ => pairs.iter().map(|[left, right]| left.add(right)).collect(),
    }
}

/// The device of all tensors, if there are several pairs and the kernel can add them.
fn device_of(pairs: &Pairs) -> Option<&CudaDevice> {
    let [[first, _], _, ..] = pairs.as_slice() else { return None };
    let Device::Cuda(device) = first.storage.device() else { return None };
    let is_like_first = |x: &Raw| x.dtype() == first.dtype() && x.storage.device() == first.storage.device();
    let fits = |x: &Raw| is_like_first(x) && x.layout.is_dense() && x.shape().elements() > 0;
    let is_taken =
        |[left, right]: &[Raw; 2]| fits(left) && fits(right) && left.layout.strides() == right.layout.strides();
    pairs.iter().all(is_taken).then_some(device)
}

fn on_device(device: &CudaDevice, pairs: &Pairs) -> Result<ArrayVec<Raw, MAX_PAIRS>> {
    let layout_and_dtype = |pair: &[Raw; 2]| (pair[0].layout.at_start(), pair[0].dtype());
    let mut others = ArrayVec::<FreshCuda<'_>, MAX_PAIRS>::new();
    for pair in &pairs[1..] {
        let (layout, dtype) = layout_and_dtype(pair);
        let fresh = FreshCuda::allocate(OP, *layout.shape(), dtype, pair[0].storage.device(), device)?;
        others.push(fresh.with_layout(layout));
    }
    let inputs: [Option<&Raw>; 2 * MAX_PAIRS] = from_fn(|i| pairs.get(i / 2).map(|pair| &pair[i % 2]));
    let first = on_cuda_in_layout(OP, device, inputs, layout_and_dtype(&pairs[0]), &mut |inputs, out| {
        launch(device, inputs, out, &mut others)
    })?;
    Ok(std::iter::once(first).chain(others.into_iter().map(FreshCuda::share)).collect())
}

fn launch(
    device: &CudaDevice,
    inputs: &LockedInputs<'_, { 2 * MAX_PAIRS }>,
    out: CudaOut<'_>,
    others: &mut [FreshCuda<'_>],
) -> Result<()> {
    let (dtype, views) = (out.dtype(), inputs.optional_cuda_views());
    let lengths: [u64; MAX_PAIRS] = from_fn(|pair| views[2 * pair].map_or(0, |x| x.shape().elements() as u64));
    let n_pairs = 1 + others.len();
    let outs = std::iter::once(out).chain(others.iter_mut().map(FreshCuda::out)).map(CudaOut::into_argument);
    let outs = outs.chain(std::iter::repeat_with(|| optional(None))).take(MAX_PAIRS);
    let sides = [0, 1].into_iter().flat_map(|side| views.iter().skip(side).step_by(2));
    let sides = sides.map(|&view| optional(view));
    let arguments: ArrayVec<Argument<'_>, { 3 * MAX_PAIRS + 1 }> =
        outs.chain(sides).chain([Argument::Value(bytemuck::bytes_of(&lengths))]).collect();
    let longest = lengths.iter().max().copied().unwrap_or(0) as usize;
    let [blocks, ..] = Launch::covering(longest.div_ceil(PACK_BYTES / dtype.size()), THREADS).grid;
    let launch = Launch { grid: [blocks, n_pairs as u32, 1], ..Launch::covering(1, THREADS) };
    // SAFETY: the kernel takes these arguments. Of each pair and its sum, which have the same strides and no gaps
    // (`device_of`), it touches the elements below their common length, and writes each element of the sum once.
    unsafe { CODE.launch(device, OP, ([dtype; 2], "pair_sums"), launch, &arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Constants;
    use crate::element::DType;

    #[test]
    fn the_kernel_compiles() {
        if let Err(missing) = pagelock_cuda::compiler_version() {
            eprintln!("SKIPPED: {missing}");
            return;
        }
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            CODE.compile([dtype; 2], "pair_sums", Constants::of(&[])).unwrap();
        }
    }
}
