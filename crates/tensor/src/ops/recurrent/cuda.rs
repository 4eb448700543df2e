//! The steps on a device. A step is the product with the state, by cuBLASLt if it is large, and a kernel of
//! `recurrent.cu`. One kernel may do both (`fused.rs`), or all steps at once (`persistent.rs`).

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, DeviceView, DeviceViewMut, Launch};

use super::fused::Fused;
use super::persistent::Plan;
use super::steps::Step;
use super::{GRADIENT, OP, Recurrence, Recurrent};
use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, NULL, count};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::layout::Layout;
use crate::ops::product_on_cuda;
use crate::shape::Shape;

static CODE: Code = Code { name: "recurrent", text: include_str!("recurrent.cu") };

const THREADS: u32 = 256;
/// From this many multiplications on, a product keeps the device busy for longer than two launches take the host.
const LONG: usize = 128 << 20;

/// `Step` of `recurrent.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct StepParameters {
    rows: u32,
    hidden: u32,
    carried: u32,
    products: u32,
    at: u64,
    before: u64,
    cells: u64,
}

impl Recurrence {
    /// `KIND` of the kernels.
    pub(super) fn number(self) -> i32 {
        match self {
            Recurrence::Tanh => 0,
            Recurrence::Relu => 1,
            Recurrence::Lstm => 2,
            Recurrence::Gru => 3,
        }
    }
}

/// What the forward steps saved for the gradient: gates, and b(h)ₙ of a GRU.
#[derive(Clone, Copy)]
pub(super) struct KeptGates<'a> {
    pub(super) gates: Option<DeviceView<'a, u8>>,
    pub(super) inner: Option<DeviceView<'a, u8>>,
}

impl Recurrent {
    fn constants(&self) -> Constants {
        Constants::of(&[("KIND", self.kind.number())])
    }

    /// Launches a kernel of one step.
    ///
    /// # Safety
    /// As [`KernelFunction::launch`](pagelock_cuda::KernelFunction::launch).
    unsafe fn launch(
        &self,
        device: &CudaDevice,
        (op, dtype): (&'static str, DType),
        (kernel, constants, launch): (&'static str, Constants, Launch),
        (step, hidden): (&Step, usize),
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        let is_behind_long_work = step.rows.saturating_mul(self.kind.gates() * hidden * hidden) >= LONG;
        let function = CODE.function(device, op, ([dtype; 2], kernel), constants)?;
        let stream = device.stream();
        let launched = match is_behind_long_work {
            // SAFETY: the caller's promise.
            true => unsafe { function.launch_behind_long_work(&stream, launch, arguments) },
            // SAFETY: the caller's promise.
            false => unsafe { function.launch(&stream, launch, arguments) },
        };
        launched.map_err(|source| Error::cuda(op, source))
    }

    /// The buffers in which steps save gates, and b(h)ₙ.
    pub(super) fn kept_gates_out<'a>(&self, hidden: usize, kept: Option<CudaOut<'a>>) -> [Argument<'a>; 2] {
        let Some(kept) = kept else { return [NULL; 2] };
        let len = self.steps.rows() * self.kind.gates() * hidden * kept.dtype().size();
        let parts = kept.into_bytes().split_at(len);
        let (gates, inner) = parts.unwrap_or_else(|error| unreachable!("there is room for all gates: {error}"));
        [Argument::Write(gates), Argument::Write(inner)]
    }

    fn kept_gates<'a>(&self, hidden: usize, kept: Option<CudaView<'a>>) -> KeptGates<'a> {
        let Some(kept) = kept else { return KeptGates { gates: None, inner: None } };
        let (size, len) = (kept.dtype().size(), self.steps.rows() * self.kind.gates() * hidden);
        let inner = kept.bytes().len() / size - len;
        KeptGates { gates: Some(part(kept.bytes(), 0, len, size)), inner: Some(part(kept.bytes(), len, inner, size)) }
    }

    fn step_parameters(
        &self,
        op: &'static str,
        hidden: usize,
        step: &Step,
        products: usize,
    ) -> Result<(StepParameters, Launch)> {
        let threads = count(op, step.rows * hidden)? as usize;
        let parameters = StepParameters {
            rows: step.rows as u32, // less than `threads`
            hidden: hidden as u32,
            carried: step.carried as u32,
            products: products as u32,
            at: step.start as u64,
            before: step.before.unwrap_or(0) as u64,
            cells: (self.steps.rows() * hidden) as u64,
        };
        Ok((parameters, Launch::covering(threads, THREADS)))
    }
}

/// The bytes of `len` elements from element `start` on.
fn part(bytes: DeviceView<'_, u8>, start: usize, len: usize, size: usize) -> DeviceView<'_, u8> {
    bytes.slice(start * size..(start + len) * size).unwrap_or_else(|error| unreachable!("a step is inside: {error}"))
}

pub(super) fn optional(bytes: Option<DeviceView<'_, u8>>) -> Argument<'_> {
    bytes.map_or(NULL, Argument::Read)
}

/// All steps. `inputs` are a(x), the weight, `bias_hh` if a(x) does not include it, and the first states.
pub(super) fn forward(
    device: &CudaDevice,
    op: &Recurrent,
    hidden: usize,
    inputs: [Option<CudaView<'_>>; 5],
    mut out: CudaOut<'_>,
    mut kept: Option<CudaOut<'_>>,
) -> Result<()> {
    if let Some(plan) = Plan::of(device, op, hidden, out.dtype()) {
        return plan.forward(device, op, inputs, out, kept);
    }
    let [Some(of_x), Some(weight), bias, h0, c0] = inputs else { unreachable!("there are gates and a weight") };
    let bytes = op.steps.batch() * op.kind.gates() * hidden * out.dtype().size();
    let allocate = || device.stream().allocate::<u8>(bytes).map_err(|source| Error::cuda(OP, source));
    let mut of_h = None; // allocated for the first step that is not fused
    let transposed = weight.layout().permute(&[1, 0]);
    let factors = [h0, Some(weight.with_layout(&transposed))];
    let of_inputs = [Some(of_x), bias, h0, c0];
    for step in op.steps.in_order(op.reverse) {
        let n_started = if h0.is_some() { step.rows } else { step.carried };
        let kept = kept.as_mut().map(CudaOut::reborrow);
        let term = match Fused::of(device, op.kind, (step.rows, n_started), (weight, h0), &out) {
            Some(fused) => StateTerm::Weight(weight.bytes(), fused),
            None => {
                let of_h = match &mut of_h {
                    Some(of_h) => of_h,
                    empty => empty.insert(allocate()?),
                };
                products(device, (&step, n_started), factors, &mut out, of_h.view_mut())?;
                StateTerm::Products(of_h.view())
            }
        };
        forward_step(device, op, (&step, n_started), of_inputs, term, (&mut out, kept))?;
    }
    Ok(())
}

/// What a step's kernel adds to a(x).
enum StateTerm<'a> {
    /// The products of states and weight, computed before.
    Products(DeviceView<'a, u8>),
    /// The weight: the kernel computes the products itself.
    Weight(DeviceView<'a, u8>, Fused),
}

/// One step, before which `n_started` sequences have a state. `inputs` are a(x), `bias_hh` if a(x) does not include it,
/// and the first states.
fn forward_step(
    device: &CudaDevice,
    op: &Recurrent,
    (step, n_started): (&Step, usize),
    inputs: [Option<CudaView<'_>>; 4],
    term: StateTerm<'_>,
    (out, kept): (&mut CudaOut<'_>, Option<CudaOut<'_>>),
) -> Result<()> {
    let [Some(of_x), bias, h0, c0] = inputs else { unreachable!("there are gates") };
    let (dtype, width) = (out.dtype(), of_x.shape()[1]);
    let hidden = width / op.kind.gates();
    let (parameters, launch) = op.step_parameters(OP, hidden, step, n_started)?;
    let constants = op.constants();
    let (kernel, term) = match term {
        StateTerm::Products(products) => (("recurrent_step", constants, launch), products),
        StateTerm::Weight(weight, Fused { stages, launch }) => {
            (("recurrent_step_with_product", constants.and(&[("STAGES", stages as i32)]), launch), weight)
        }
    };
    let [gates, inner] = op.kept_gates_out(hidden, kept);
    let arguments = [
        out.argument(),
        gates,
        inner,
        of_x.argument(),
        Argument::Read(term),
        optional(bias.map(|bias| bias.bytes())),
        optional(h0.map(|h0| h0.bytes())),
        optional(c0.map(|c0| c0.bytes())),
        Argument::Value(bytemuck::bytes_of(&parameters)),
    ];
    // SAFETY: the kernels take these arguments. The rows of the step and those before it are inside the tensors:
    // `RecurrentLayer::check` has compared their shapes with `steps`. `Fused` has checked the alignment of rows.
    unsafe { op.launch(device, (OP, dtype), kernel, (step, hidden), &arguments) }
}

/// Multiplies the states of `n_started` sequences before a step by the weight. Sequences that continue have their
/// states in `out`, those that begin have them in `h0`.
fn products(
    device: &CudaDevice,
    (step, n_started): (&Step, usize),
    [h0, weight]: [Option<CudaView<'_>>; 2],
    out: &mut CudaOut<'_>,
    mut buffer: DeviceViewMut<'_, u8>,
) -> Result<()> {
    let Some(weight) = weight else { unreachable!("there is a weight") };
    let (hidden, width, size, dtype) = (weight.shape()[0], weight.shape()[1], out.dtype().size(), out.dtype());
    for (from, to) in [(0, step.carried), (step.carried, n_started)].into_iter().filter(|(from, to)| from < to) {
        let rows = to - from;
        let states = match h0.filter(|_| from >= step.carried) {
            Some(h0) => part(h0.bytes(), from * hidden, rows * hidden, size),
            None => {
                let at = (step.before.unwrap_or(0) + from) * hidden;
                part(out.reborrow().into_bytes().into(), at, rows * hidden, size)
            }
        };
        let [left, result] = [hidden, width].mapped(|columns| Shape::new(&[rows, columns]).map(Layout::contiguous));
        let (left, result) = (left?, result?);
        let product = buffer.reborrow().slice(from * width * size..to * width * size);
        let product = product.unwrap_or_else(|error| unreachable!("there is room for a step: {error}"));
        let factors = [CudaView::new(states, &left, dtype), weight];
        product_on_cuda(device, &Shape::SCALAR, factors, CudaOut::new(product, &result, dtype))?;
    }
    Ok(())
}

/// The outputs of [`backward`]: the gradient of a(x); for a GRU that of b(h); the gradients of the first states; and
/// for a GRU the part of the gradient of h that bypasses the product.
pub(super) type Outs<'a> = (CudaOut<'a>, [Option<CudaOut<'a>>; 4]);

/// The backward pass. `inputs` are the gradient of the result, the weight, the result, what was saved, and the first
/// states.
pub(super) fn backward(
    device: &CudaDevice,
    op: &Recurrent,
    hidden: usize,
    inputs: [Option<CudaView<'_>>; 6],
    (mut of_x, [mut of_h, h, mut c, mut direct]): Outs<'_>,
    (plan, wants_h0): (Option<Plan>, bool),
) -> Result<()> {
    let ([Some(grad), Some(weight), Some(out), kept, h0, c0], Some(mut h)) = (inputs, h) else {
        unreachable!("these inputs are always given")
    };
    let (dtype, kept_gates) = (of_x.dtype(), op.kept_gates(hidden, kept));
    if let Some(plan) = plan {
        let inputs = [Some(grad), Some(weight), Some(out), h0, c0];
        return plan.backward(device, op, (inputs, kept_gates), (of_x, [of_h, Some(h), c]), wants_h0);
    }
    let mut max_with_grad = 0; // sequences with a gradient from a later step
    for step in op.steps.in_order(op.reverse).rev() {
        let outs = [Some(&mut of_x), of_h.as_mut(), c.as_mut(), direct.as_mut()];
        let of_state = h.reborrow().into_bytes().into();
        let n_with_grad = step.rows.min(max_with_grad);
        let inputs = ([Some(grad), Some(out), h0, c0], kept_gates);
        backward_step(device, op, (&step, n_with_grad, hidden), inputs, of_state, outs)?;
        max_with_grad = max_with_grad.max(step.rows);
        if step.before.is_none() && !wants_h0 {
            break;
        }
        let gates = of_h.as_mut().unwrap_or(&mut of_x).reborrow();
        write_state_grad(device, (&step, dtype), gates, weight, h.reborrow())?;
    }
    Ok(())
}

/// One backward step. `of_state` is the gradient of the state from later steps; the first `n_with_grad` sequences have
/// one. The inputs are the gradient of the result, the result, and the first states. The outputs are the gradients of
/// a(x), of b(h), of c, and the part of a GRU's that bypasses the product.
fn backward_step(
    device: &CudaDevice,
    op: &Recurrent,
    (step, n_with_grad, hidden): (&Step, usize, usize),
    ([grad, out, h0, c0], kept): ([Option<CudaView<'_>>; 4], KeptGates<'_>),
    of_state: DeviceView<'_, u8>,
    [of_x, of_h, c, direct]: [Option<&mut CudaOut<'_>>; 4],
) -> Result<()> {
    let Some(of_x) = of_x else { unreachable!("there is a gradient of a(x)") };
    let dtype = of_x.dtype();
    let (parameters, launch) = op.step_parameters(GRADIENT, hidden, step, n_with_grad)?;
    let kernel = ("recurrent_step_grad", op.constants(), launch);
    let arguments = [
        of_x.argument(),
        of_h.map_or(NULL, CudaOut::argument),
        c.map_or(NULL, CudaOut::argument),
        direct.map_or(NULL, CudaOut::argument),
        optional(grad.map(|grad| grad.bytes())),
        Argument::Read(of_state),
        optional(kept.gates),
        optional(kept.inner),
        optional(out.map(|out| out.bytes())),
        optional(h0.map(|h0| h0.bytes())),
        optional(c0.map(|c0| c0.bytes())),
        Argument::Value(bytemuck::bytes_of(&parameters)),
    ];
    // SAFETY: as in `forward_step`; the gradients have the shapes of what they are gradients of.
    unsafe { op.launch(device, (GRADIENT, dtype), kernel, (step, hidden), &arguments) }
}

/// Computes into `of_state` the gradient of the states before a step: the gradient of b(h) times the weight.
fn write_state_grad(
    device: &CudaDevice,
    (step, dtype): (&Step, DType),
    gates: CudaOut<'_>,
    weight: CudaView<'_>,
    of_state: CudaOut<'_>,
) -> Result<()> {
    let (width, hidden, size) = (weight.shape()[0], weight.shape()[1], dtype.size());
    let [left, result] = [width, hidden].mapped(|columns| Shape::new(&[step.rows, columns]).map(Layout::contiguous));
    let (left, result) = (left?, result?);
    let gates = part(gates.into_bytes().into(), step.start * width, step.rows * width, size);
    let out = of_state.into_bytes().slice(..step.rows * hidden * size);
    let out = out.unwrap_or_else(|error| unreachable!("there is room for a step: {error}"));
    let factors = [CudaView::new(gates, &left, dtype), weight];
    product_on_cuda(device, &Shape::SCALAR, factors, CudaOut::new(out, &result, dtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_steps_compile() {
        if let Err(missing) = pagelock_cuda::compiler_version() {
            eprintln!("SKIPPED: {missing}");
            return;
        }
        for kind in [Recurrence::Tanh, Recurrence::Relu, Recurrence::Lstm, Recurrence::Gru] {
            for dtype in [DType::F32, DType::F64, DType::BF16] {
                let constants = Constants::of(&[("KIND", kind.number())]);
                let constants = constants.and(&[("STAGES", 2)]);
                let fused = Some("recurrent_step_with_product").filter(|_| dtype != DType::F64);
                for kernel in ["recurrent_step", "recurrent_step_grad"].into_iter().chain(fused) {
                    CODE.compile([dtype; 2], kernel, constants).unwrap();
                }
            }
        }
    }
}
