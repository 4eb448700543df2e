//! The steps on a device: for each the product with the state, by cuBLASLt where it is large, and a kernel of `recurrent.cu`.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, DeviceView, DeviceViewMut, Launch};

use super::steps::Step;
use super::{GRADIENT, OP, Recurrence, Recurrent};
use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, count};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::ops::product_on_cuda;
use crate::shape::Shape;

static CODE: Code = Code { name: "recurrent", text: include_str!("recurrent.cu") };

const THREADS: u32 = 256;

/// `Step` of `recurrent.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Numbers {
    rows: u32,
    hidden: u32,
    carried: u32,
    products: u32,
    at: u64,
    before: u64,
    cells: u64,
}

impl Recurrent {
    fn constants(&self) -> Constants {
        let kind = match self.kind {
            Recurrence::Tanh => 0,
            Recurrence::Relu => 1,
            Recurrence::Lstm => 2,
            Recurrence::Gru => 3,
        };
        Constants::of(&[("KIND", kind)])
    }

    fn numbers(&self, op: &'static str, hidden: usize, step: &Step, products: usize) -> Result<(Numbers, Launch)> {
        let threads = count(op, step.rows * hidden)? as usize;
        let numbers = Numbers {
            rows: step.rows as u32, // less than `threads`
            hidden: hidden as u32,
            carried: step.carried as u32,
            products: products as u32,
            at: step.start as u64,
            before: step.before.unwrap_or(0) as u64,
            cells: (self.steps.rows() * hidden) as u64,
        };
        Ok((numbers, Launch::covering(threads, THREADS)))
    }
}

/// The bytes of some elements; nothing of nothing.
fn part(bytes: DeviceView<'_, u8>, start: usize, len: usize, size: usize) -> DeviceView<'_, u8> {
    bytes.slice(start * size..(start + len) * size).unwrap_or_else(|error| unreachable!("a step is inside: {error}"))
}

fn optional(bytes: Option<DeviceView<'_, u8>>) -> Argument<'_> {
    bytes.map_or(Argument::Value(&[0; 8]), Argument::Read)
}

/// All steps; `inputs`: a(x), the weight, `bias_hh` of a GRU, and the first states.
pub(super) fn forward(
    device: &CudaDevice,
    op: &Recurrent,
    hidden: usize,
    inputs: [Option<CudaView<'_>>; 5],
    mut out: CudaOut<'_>,
    mut kept: Option<CudaOut<'_>>,
) -> Result<()> {
    let [Some(of_x), Some(weight), bias, h0, c0] = inputs else { unreachable!("there are gates and a weight") };
    let room = op.steps.batch() * op.kind.gates() * hidden * out.dtype().size();
    let mut of_h = device.stream().allocate::<u8>(room).map_err(|source| Error::cuda(OP, source))?;
    let turned = weight.layout().permute(&[1, 0]);
    let weight = weight.with_layout(&turned);
    for step in op.steps.in_order(op.reverse) {
        let begin = if h0.is_some() { step.rows } else { step.carried };
        products(device, (&step, begin), [h0, Some(weight)], &mut out, of_h.view_mut())?;
        let kept = kept.as_mut().map(CudaOut::reborrow);
        forward_step(device, op, (&step, begin), [Some(of_x), bias, h0, c0], of_h.view(), (&mut out, kept))?;
    }
    Ok(())
}

/// What follows the products of one step, of `begin` sequences; `inputs`: a(x), `bias_hh` of a GRU, and the first states.
fn forward_step(
    device: &CudaDevice,
    op: &Recurrent,
    (step, begin): (&Step, usize),
    inputs: [Option<CudaView<'_>>; 4],
    of_h: DeviceView<'_, u8>,
    (out, kept): (&mut CudaOut<'_>, Option<CudaOut<'_>>),
) -> Result<()> {
    let [Some(of_x), bias, h0, c0] = inputs else { unreachable!("there are gates") };
    let (dtype, width) = (out.dtype(), of_x.shape()[1]);
    let (numbers, launch) = op.numbers(OP, width / op.kind.gates(), step, begin)?;
    let (mut gates, mut inner) = (Argument::Value(&[0; 8]), Argument::Value(&[0; 8]));
    if let Some(kept) = kept {
        let parts = kept.into_bytes().split_at(op.steps.rows() * width * dtype.size());
        let (first, rest) = parts.unwrap_or_else(|error| unreachable!("there is room for all gates: {error}"));
        (gates, inner) = (Argument::Write(first), Argument::Write(rest));
    }
    let arguments = [
        out.argument(),
        gates,
        inner,
        of_x.argument(),
        Argument::Read(of_h),
        optional(bias.map(|bias| bias.bytes())),
        optional(h0.map(|h0| h0.bytes())),
        optional(c0.map(|c0| c0.bytes())),
        Argument::Value(bytemuck::bytes_of(&numbers)),
    ];
    let kernel = ([dtype; 2], "recurrent_step");
    // SAFETY: the kernel takes these; the rows of the step and those before it are inside of the tensors, as `steps`
    // says, whose shapes `RecurrentLayer::check` has compared with it.
    unsafe { CODE.launch_for(device, OP, kernel, op.constants(), launch, &arguments) }
}

/// The products of the weight with the states before a step, of `begin` sequences: those that go on, whose states are in `out`, and
/// those that begin, if their states are not zeros.
fn products(
    device: &CudaDevice,
    (step, begin): (&Step, usize),
    [h0, weight]: [Option<CudaView<'_>>; 2],
    out: &mut CudaOut<'_>,
    mut room: DeviceViewMut<'_, u8>,
) -> Result<()> {
    let Some(weight) = weight else { unreachable!("there is a weight") };
    let (hidden, width, size, dtype) = (weight.shape()[0], weight.shape()[1], out.dtype().size(), out.dtype());
    for (from, to) in [(0, step.carried), (step.carried, begin)].into_iter().filter(|(from, to)| from < to) {
        let rows = to - from;
        let states = match h0.filter(|_| from >= step.carried) {
            Some(h0) => part(h0.bytes(), from * hidden, rows * hidden, size),
            None => {
                let at = (step.before.unwrap_or(0) + from) * hidden;
                part(out.reborrow().into_bytes().into(), at, rows * hidden, size)
            }
        };
        let [left, made] = [hidden, width].map(|columns| Shape::new(&[rows, columns]).map(Layout::contiguous));
        let (left, made) = (left?, made?);
        let room = room.reborrow().slice(from * width * size..to * width * size);
        let room = room.unwrap_or_else(|error| unreachable!("there is room for a step: {error}"));
        let factors = [CudaView::new(states, &left, dtype), weight];
        product_on_cuda(device, &Shape::SCALAR, factors, CudaOut::new(room, &made, dtype))?;
    }
    Ok(())
}

/// What [`backward`] writes: the gradient of a(x); of a GRU that of b(h); those of the first states; a GRU's part of the first that
/// went around the product.
pub(super) type Outs<'a> = (CudaOut<'a>, [Option<CudaOut<'a>>; 4]);

/// The way back; `inputs`: the gradient of the result, the weight, the result, what was kept, and the first states.
pub(super) fn backward(
    device: &CudaDevice,
    op: &Recurrent,
    hidden: usize,
    inputs: [Option<CudaView<'_>>; 6],
    (mut of_x, [mut of_h, h, mut c, mut direct]): Outs<'_>,
    wants_h0: bool,
) -> Result<()> {
    let ([Some(grad), Some(weight), Some(out), kept, h0, c0], Some(mut h)) = (inputs, h) else {
        unreachable!("there are these")
    };
    let dtype = of_x.dtype();
    let mut reached = 0; // sequences that have come from a later step
    for step in op.steps.in_order(op.reverse).rev() {
        let outs = [Some(&mut of_x), of_h.as_mut(), c.as_mut(), direct.as_mut()];
        let of_state = h.reborrow().into_bytes().into();
        let goes_on = step.rows.min(reached);
        backward_step(device, op, (&step, goes_on, hidden), [Some(grad), kept, Some(out), h0, c0], of_state, outs)?;
        reached = reached.max(step.rows);
        if step.before.is_none() && !wants_h0 {
            break;
        }
        let gates = of_h.as_mut().unwrap_or(&mut of_x).reborrow();
        product_back(device, (&step, dtype), gates, weight, h.reborrow())?;
    }
    Ok(())
}

/// One step back, where `goes_on` sequences have a gradient from the steps behind it, `of_state`; `inputs`: the gradient of the result,
/// what was kept, the result, and the first states; `outs`: the gradients of a(x) and b(h), of c, and a GRU's around the product.
fn backward_step(
    device: &CudaDevice,
    op: &Recurrent,
    (step, goes_on, hidden): (&Step, usize, usize),
    [grad, kept, out, h0, c0]: [Option<CudaView<'_>>; 5],
    of_state: DeviceView<'_, u8>,
    [of_x, of_h, c, direct]: [Option<&mut CudaOut<'_>>; 4],
) -> Result<()> {
    let Some(of_x) = of_x else { unreachable!("there is a gradient of a(x)") };
    let (dtype, size) = (of_x.dtype(), of_x.dtype().size());
    let (numbers, launch) = op.numbers(GRADIENT, hidden, step, goes_on)?;
    let len = op.steps.rows() * op.kind.gates() * hidden;
    let kept = kept.map(|kept| kept.bytes());
    let gates = kept.map(|kept| part(kept, 0, len, size));
    let inner = kept.map(|kept| part(kept, len, kept.len() / size - len, size));
    let null = || Argument::Value(&[0; 8]);
    let arguments = [
        of_x.argument(),
        of_h.map_or_else(null, CudaOut::argument),
        c.map_or_else(null, CudaOut::argument),
        direct.map_or_else(null, CudaOut::argument),
        optional(grad.map(|grad| grad.bytes())),
        Argument::Read(of_state),
        optional(gates),
        optional(inner),
        optional(out.map(|out| out.bytes())),
        optional(h0.map(|h0| h0.bytes())),
        optional(c0.map(|c0| c0.bytes())),
        Argument::Value(bytemuck::bytes_of(&numbers)),
    ];
    let kernel = ([dtype; 2], "recurrent_step_grad");
    // SAFETY: as in `forward_step`; the gradients have the shapes of what they are gradients of.
    unsafe { CODE.launch_for(device, GRADIENT, kernel, op.constants(), launch, &arguments) }
}

/// The gradient of the states before a step, into `of_state`: of that of b(h), times the weight.
fn product_back(
    device: &CudaDevice,
    (step, dtype): (&Step, DType),
    gates: CudaOut<'_>,
    weight: CudaView<'_>,
    of_state: CudaOut<'_>,
) -> Result<()> {
    let (width, hidden, size) = (weight.shape()[0], weight.shape()[1], dtype.size());
    let [left, made] = [width, hidden].map(|columns| Shape::new(&[step.rows, columns]).map(Layout::contiguous));
    let (left, made) = (left?, made?);
    let gates = part(gates.into_bytes().into(), step.start * width, step.rows * width, size);
    let room = of_state.into_bytes().slice(..step.rows * hidden * size);
    let room = room.unwrap_or_else(|error| unreachable!("there is room for a step: {error}"));
    let factors = [CudaView::new(gates, &left, dtype), weight];
    product_on_cuda(device, &Shape::SCALAR, factors, CudaOut::new(room, &made, dtype))
}
