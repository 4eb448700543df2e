//! A running mean and variance, which move towards those of a batch.

use super::cuda::Kernel;
use super::groups::{GRAD, Group, GroupTensors, MAX_TENSORS};
use crate::cuda::Code;
use crate::device::Device;
use crate::error::Result;
use crate::inlined::{Array, from_fn};
use crate::tensor::Tensor;

static CODE: Code = Code { name: "running", text: include_str!("running.cu") };

/// One of the two statistics. The first one also has the batch's, which the kernel reads.
#[derive(Clone)]
struct Running<'a> {
    statistic: &'a Tensor,
    of_batch: Option<&'a Tensor>,
}

/// Whether one launch can move both: on a GPU, of one precision, without gaps, in different storages.
pub(crate) fn can_move_at_once(running: [&Tensor; 2], of_batch: &Tensor) -> bool {
    let [mean, variance] = running;
    let distinct = !mean.shares_storage(variance) && !running.iter().any(|running| running.shares_storage(of_batch));
    let are_rows = [mean, variance, of_batch].iter().all(|tensor| tensor.is_contiguous());
    let on_gpu = mean.device() != Device::Cpu && running.iter().all(|running| running.device() == of_batch.device());
    on_gpu && are_rows && distinct && mean.dtype() == variance.dtype() && !mean.is_empty()
}

/// Moves mean and variance by `share` towards rows 0 and 2 of `of_batch`, `[3, channels]`, if [`can_move_at_once`] says so.
pub(crate) fn move_at_once(running: [&Tensor; 2], of_batch: &Tensor, share: f64) -> Result<()> {
    let Device::Cuda(device) = of_batch.device() else { unreachable!("the statistics are on a GPU") };
    let takes = from_fn(|i| i == 0 || i == GRAD);
    let kernel = Kernel { code: &CODE, name: "move", takes };
    let of_batches = [Some(of_batch), None];
    let both = [0, 1].mapped(|i| Some(Running { statistic: running[i], of_batch: of_batches[i] }));
    kernel.launch(&device, &both, &[], None, &[share.to_bits()])
}

impl Group for Running<'_> {
    fn max_groups(&self) -> usize {
        2
    }

    fn tensors(&self) -> GroupTensors<'_> {
        let mut tensors = [None; MAX_TENSORS];
        (tensors[0], tensors[GRAD]) = (Some(self.statistic), self.of_batch);
        tensors
    }

    fn with(&self, _: [Option<Tensor>; MAX_TENSORS]) -> Self {
        self.clone()
    }

    fn fits(&self, _: &Self) -> bool {
        true
    }
}
