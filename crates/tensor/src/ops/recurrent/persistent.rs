//! All forward steps in one launch, and all backward steps in another: the kernels of `persistent.cu`, and when they
//! are used.
//!
//! They keep the weight of the state in registers of the multiprocessors of one cluster, so the state has to be
//! small. Decision 0075 has the measurements.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, Launch};

use super::cuda::{KeptGates, optional};
use super::{GRADIENT, OP, Recurrence, Recurrent};
use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, Kernels, NULL, kernels};
use crate::element::DType;
use crate::error::Result;
use crate::inlined::Array;

static CODE: Code = Code { name: "recurrent layer", text: include_str!("persistent.cu") };

/// Registers of a multiprocessor. They are allocated to `ALLOCATION_THREADS` threads at a time.
const REGISTERS: u32 = 65_536;
const ALLOCATION_THREADS: u32 = 128;
/// What a thread needs beside its part of the weight.
const OTHER_REGISTERS: u32 = 64;
const MAX_THREADS: u32 = 1024;
const MAX_HIDDEN: u32 = 512;
/// If clusters would need more waves than this, one product for all sequences is faster.
const MAX_TURNS: u32 = 8;

/// `Sequences` of `persistent.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Sequences {
    steps: u32,
    batch: u32,
    reverse: u32,
    wants_h0: u32,
    cells: u64,
}

/// How a layer is divided: the blocks and the sequences of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    kind: Recurrence,
    hidden: u32,
    cluster: u32,
    rows: u32,
    batch: u32,
}

impl Plan {
    /// The plan for a layer, if these kernels compute it on the device.
    pub(super) fn of(device: &CudaDevice, op: &Recurrent, hidden: usize, dtype: DType) -> Option<Plan> {
        let properties = device.cuda().properties();
        let (is_even, many) = (op.steps.is_even(), u32::try_from(op.steps.count()).is_ok_and(|steps| steps > 1));
        let has_clusters = properties.compute_capability >= (9, 0);
        let fits = is_even && many && has_clusters && dtype.computing() == DType::F32 && kernels() != Kernels::Library;
        let (hidden, batch) = (u32::try_from(hidden).ok()?, u32::try_from(op.steps.batch()).ok()?);
        if fits { Plan::new(op.kind, hidden, batch, properties.multiprocessors) } else { None }
    }

    /// The plan with the smallest cluster whose registers hold the weight.
    fn new(kind: Recurrence, hidden: u32, batch: u32, multiprocessors: u32) -> Option<Plan> {
        let plans = [2, 4, 8].mapped(|cluster| Plan { kind, hidden, cluster, rows: 1, batch });
        let mut plans = plans.into_iter().filter(|plan| plan.hidden <= MAX_HIDDEN && plan.threads() <= MAX_THREADS);
        let plan = plans.find(|plan| plan.blocks_at_once() > 0)?;
        let rows = if batch <= multiprocessors / plan.cluster { 1 } else { 2 };
        let clusters_at_once = (multiprocessors * plan.blocks_at_once() / plan.cluster).max(1);
        let plan = Plan { rows, ..plan };
        (plan.clusters() <= MAX_TURNS * clusters_at_once).then_some(plan)
    }

    fn padded(&self) -> u32 {
        self.hidden.next_multiple_of(32)
    }

    fn threads(&self) -> u32 {
        self.padded() / self.cluster * 8
    }

    /// Blocks that a multiprocessor has registers for.
    fn blocks_at_once(&self) -> u32 {
        let of_weight = self.kind.gates() as u32 * self.padded() / 8;
        REGISTERS / ((of_weight + OTHER_REGISTERS) * self.threads().next_multiple_of(ALLOCATION_THREADS))
    }

    fn clusters(&self) -> u32 {
        self.batch.div_ceil(self.rows)
    }

    fn constants(&self) -> Constants {
        let sizes = [("HIDDEN", self.hidden), ("CLUSTER", self.cluster), ("ROWS", self.rows)];
        Constants::of(&[("KIND", self.kind.number())]).and(&sizes.mapped(|(name, size)| (name, size as i32)))
    }

    fn launch(&self) -> Launch {
        Launch::covering((self.clusters() * self.cluster * self.threads()) as usize, self.threads())
    }

    fn sequences(&self, op: &Recurrent, wants_h0: bool) -> Sequences {
        Sequences {
            steps: op.steps.count() as u32, // fits: `of` has checked it
            batch: self.batch,
            reverse: op.reverse.into(),
            wants_h0: wants_h0.into(),
            cells: (op.steps.rows() * self.hidden as usize) as u64,
        }
    }

    /// All steps. `inputs` are a(x), the weight, `bias_hh` of a GRU, and the first states.
    pub(super) fn forward(
        &self,
        device: &CudaDevice,
        op: &Recurrent,
        inputs: [Option<CudaView<'_>>; 5],
        mut out: CudaOut<'_>,
        kept: Option<CudaOut<'_>>,
    ) -> Result<()> {
        let dtype = out.dtype();
        let [of_x, weight, bias, h0, c0] = inputs.mapped(|input| optional(input.map(|input| input.bytes())));
        let [gates, inner] = op.kept_gates_out(self.hidden as usize, kept);
        let sequences = self.sequences(op, false);
        let value = Argument::Value(bytemuck::bytes_of(&sequences));
        let arguments = [out.argument(), gates, inner, of_x, weight, bias, h0, c0, value];
        let kernel = ([dtype; 2], "recurrent_steps");
        // SAFETY: the kernel takes these arguments. `RecurrentLayer::check` has compared their shapes with each other
        // and with the steps. Each number of the result and of what is saved is written once. The device has clusters.
        unsafe { CODE.launch_for(device, OP, kernel, self.constants(), self.launch(), &arguments) }
    }

    /// The backward pass. The inputs are the gradient of the result, the weight, the result, the first states, and
    /// what was saved. The outputs are the gradients of a(x), of b(h) of a GRU, and of the first states.
    pub(super) fn backward(
        &self,
        device: &CudaDevice,
        op: &Recurrent,
        ([grad, weight, out, h0, c0], kept): ([Option<CudaView<'_>>; 5], KeptGates<'_>),
        (mut of_x, outs): (CudaOut<'_>, [Option<CudaOut<'_>>; 3]),
        wants_h0: bool,
    ) -> Result<()> {
        let dtype = of_x.dtype();
        let [grad, weight, out, h0, c0] =
            [grad, weight, out, h0, c0].mapped(|input| optional(input.map(|input| input.bytes())));
        let [of_h, h, c] = outs.mapped(|out| out.map_or(NULL, CudaOut::into_argument));
        let sequences = self.sequences(op, wants_h0);
        let value = Argument::Value(bytemuck::bytes_of(&sequences));
        let KeptGates { gates, inner } = kept;
        let arguments =
            [of_x.argument(), of_h, h, c, grad, weight, optional(gates), optional(inner), out, h0, c0, value];
        let kernel = ([dtype; 2], "recurrent_steps_grad");
        // SAFETY: as in `forward`; the gradients have the shapes of what they are gradients of.
        unsafe { CODE.launch_for(device, GRADIENT, kernel, self.constants(), self.launch(), &arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100: u32 = 132;

    fn plan(kind: Recurrence, hidden: u32, batch: u32) -> Option<(u32, u32)> {
        Plan::new(kind, hidden, batch, H100).map(|plan| (plan.cluster, plan.rows))
    }

    #[test]
    fn small_states_are_computed_by_small_clusters() {
        assert_eq!(plan(Recurrence::Lstm, 128, 64), Some((2, 1)));
        assert_eq!(plan(Recurrence::Gru, 128, 67), Some((2, 2)));
        assert_eq!(plan(Recurrence::Lstm, 256, 64), Some((8, 2)));
        assert_eq!(plan(Recurrence::Tanh, 512, 16), Some((8, 1)));
        assert_eq!(plan(Recurrence::Tanh, 1, 1), Some((2, 1)));
    }

    #[test]
    fn large_states_and_batches_are_not() {
        assert_eq!(plan(Recurrence::Lstm, 257, 1), None);
        assert_eq!(plan(Recurrence::Relu, 513, 1), None);
        assert_eq!(plan(Recurrence::Lstm, 128, 10_000), None);
    }

    #[test]
    fn kernels_of_plans_compile() {
        if let Err(missing) = pagelock_cuda::compiler_version() {
            eprintln!("SKIPPED: {missing}");
            return;
        }
        use Recurrence::{Gru, Lstm, Relu, Tanh};
        for (kind, hidden, dtype) in
            [(Tanh, 512, DType::F32), (Relu, 5, DType::F32), (Lstm, 256, DType::F32), (Gru, 40, DType::F16)]
        {
            let plan = Plan::new(kind, hidden, 64, H100).unwrap();
            for kernel in ["recurrent_steps", "recurrent_steps_grad"] {
                CODE.compile([dtype; 2], kernel, plan.constants()).unwrap();
            }
        }
    }
}
