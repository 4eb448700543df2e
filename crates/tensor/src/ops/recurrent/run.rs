//! Prepares the inputs of steps and allocates their results, on the CPU and on a device.

use super::persistent::Plan;
use super::{C0, GRADIENT, H0, OP, Recurrence, Recurrent, WEIGHT_HH, cpu, cuda};
use crate::autograd::Saved;
use crate::cuda::{CudaDevice, CudaOut};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::{Array, from_fn};
use crate::layout::Layout;
use crate::op::{on_cpu, on_cuda};
use crate::shape::Shape;
use crate::storage::{Fresh, FreshCuda};
use crate::tensor::{Raw, Tensor, by_real};

/// The gradients of a(x) and b(h), and of the first states.
pub(super) struct Gradients {
    /// `[1, rows, gates · hidden]`, of both a(x) and b(h); for a GRU, where they differ, `[2, rows, gates · hidden]`.
    pub(super) of_gates: Tensor,
    pub(super) h0: Option<Tensor>,
    pub(super) c0: Option<Tensor>,
}

/// The inputs of a backward pass, and the sizes of its results.
struct BackwardInputs<'a> {
    inputs: [Option<&'a Raw>; 6],
    hidden: usize,
    dtype: DType,
    /// The shapes of the gradients of gates, and of a state.
    gates_shape: Shape,
    state: Shape,
}

impl Recurrent {
    /// The size of a state, and the shapes of the result (h and c of an LSTM, else h) and of what is saved.
    fn sizes(&self, gates: &Raw) -> Result<(usize, Shape, Shape)> {
        let (hidden, rows) = (gates.shape()[1] / self.kind.gates(), self.steps.rows());
        let out = if self.is_lstm() { Shape::new(&[2, rows, hidden])? } else { Shape::new(&[rows, hidden])? };
        Ok((hidden, out, Shape::new(&[rows, self.kind.kept() * hidden])?))
    }

    /// Runs all steps, and returns the result and what they save for the gradient. `inputs` are a(x), the weight,
    /// `bias_hh` of a GRU, and the first states. The weight is cut into parts once for all steps.
    pub(super) fn on_cpu(&self, inputs: [Option<&Raw>; 5], keeps: bool) -> Result<(Raw, Option<Raw>)> {
        let [Some(gates), ..] = inputs else { unreachable!("there are gates") };
        let ((hidden, shape, kept_shape), dtype) = (self.sizes(gates)?, gates.dtype().computing());
        let keeps = keeps && kept_shape.elements() > 0;
        let mut kept = keeps.then(|| Fresh::allocate(OP, kept_shape, dtype)).transpose()?;
        let parts = cpu::Parts::forward(self.steps.batch(), hidden, self.kind.gates(), self.is_bf16);
        let weight = inputs[1].map(|weight| parts.of_state(&weight.without_node().typed())).transpose()?;
        let inputs = [inputs[0], weight.as_ref().map(Tensor::raw), inputs[2], inputs[3], inputs[4]];
        let out = on_cpu(OP, inputs, (shape, dtype), &mut |inputs, out| {
            by_real!(dtype, R => {
                let kept = kept.as_mut().map(|kept| kept.stored::<R>().plain());
                let inputs: [_; 5] = from_fn(|i| inputs.data::<R>(i));
                cpu::forward(self, (hidden, parts), inputs, out.stored::<R>().plain(), kept).map_err(Error::scratch(OP))
            })
        })?;
        Ok((out, kept.map(Fresh::share)))
    }

    /// [`on_cpu`](Self::on_cpu), on a device.
    pub(super) fn on_cuda(
        &self,
        device: &CudaDevice,
        inputs: [Option<&Raw>; 5],
        keeps: bool,
    ) -> Result<(Raw, Option<Raw>)> {
        let [Some(gates), ..] = inputs else { unreachable!("there are gates") };
        let ((hidden, shape, kept_shape), dtype) = (self.sizes(gates)?, gates.dtype());
        let keeps = keeps && kept_shape.elements() > 0;
        let on = gates.storage.device();
        let mut kept = keeps.then(|| FreshCuda::allocate(OP, kept_shape, dtype, on, device)).transpose()?;
        let out = on_cuda(OP, device, inputs, (shape, dtype), &mut |inputs, out| {
            cuda::forward(device, self, hidden, inputs.optional_cuda_views(), out, kept.as_mut().map(FreshCuda::out))
        })?;
        Ok((out, kept.map(FreshCuda::share)))
    }

    fn backward_inputs<'a>(
        &self,
        saved: &'a Saved<'_, 7>,
        [grad, weight, out]: [&'a Raw; 3],
        kept: Option<&'a Raw>,
    ) -> Result<BackwardInputs<'a>> {
        let (width, hidden) = (saved.input(WEIGHT_HH).shape()[0], saved.input(WEIGHT_HH).shape()[1]);
        let [h0, c0] = [H0, C0].mapped(|i| saved.optional(i).map(Tensor::raw));
        let inputs = [Some(grad), Some(weight), Some(out), kept, h0, c0];
        let gates_shape = Shape::new(&[if self.kind == Recurrence::Gru { 2 } else { 1 }, self.steps.rows(), width])?;
        let state = Shape::new(&[self.steps.batch(), hidden])?;
        Ok(BackwardInputs { inputs, hidden, dtype: out.dtype(), gates_shape, state })
    }

    /// The backward pass through all steps.
    pub(super) fn backward_on_cpu(&self, saved: &Saved<'_, 7>, grad: &Raw) -> Result<Gradients> {
        let (out, kept) = self.result_and_kept()?;
        let hidden = saved.input(WEIGHT_HH).shape()[1];
        let parts = cpu::Parts::backward(self.steps.batch(), hidden, self.kind.gates(), self.is_bf16);
        let weight = parts.of_gates(saved.input(WEIGHT_HH))?;
        let BackwardInputs { inputs, hidden, dtype, gates_shape, state } =
            self.backward_inputs(saved, [grad, weight.raw(), &out], kept)?;
        let fresh = |is_needed: bool, shape| is_needed.then(|| Fresh::allocate(GRADIENT, shape, dtype)).transpose();
        let (mut h, mut c) = (fresh(true, state)?, fresh(self.is_lstm(), state)?);
        let of_one = gates_shape.elements() / gates_shape[0];
        let of_gates = on_cpu(GRADIENT, inputs, (gates_shape, dtype), &mut |inputs, of_gates| {
            by_real!(dtype, R => {
                let inputs: [_; 6] = from_fn(|i| inputs.data::<R>(i));
                let [h, c] = [&mut h, &mut c].mapped(|out| match out {
                    Some(out) => out.stored::<R>().plain(),
                    None => &mut [],
                });
                let (of_x, of_h) = of_gates.stored::<R>().plain().split_at_mut(of_one);
                let outs = cpu::Outs { of_x, of_h, h, c };
                cpu::backward(self, (hidden, parts), inputs, outs, saved.needs(H0))
                    .map_err(Error::scratch(GRADIENT))
            })
        })?;
        let share = |state: Option<Fresh>| state.map(|state| state.share().typed());
        Ok(Gradients { of_gates: of_gates.typed(), h0: share(h), c0: share(c) })
    }

    /// [`backward_on_cpu`](Self::backward_on_cpu), on a device.
    pub(super) fn backward_on_cuda(&self, device: &CudaDevice, saved: &Saved<'_, 7>, grad: &Raw) -> Result<Gradients> {
        let (out, kept) = self.result_and_kept()?;
        let weight = saved.input(WEIGHT_HH).contiguous()?;
        let BackwardInputs { inputs, hidden, dtype, gates_shape, state } =
            self.backward_inputs(saved, [grad, weight.raw(), &out], kept)?;
        let on = out.storage.device();
        let fresh = |is_needed: bool, shape: Shape| {
            is_needed.then(|| FreshCuda::allocate(GRADIENT, shape, dtype, on, device)).transpose()
        };
        let (plan, is_gru) = (Plan::of(device, self, hidden, dtype), self.kind == Recurrence::Gru);
        let mut direct = fresh(is_gru && plan.is_none(), state)?;
        let (mut h, mut c) = (fresh(true, state)?, fresh(self.is_lstm(), state)?);
        let of_one = Layout::contiguous(Shape::new(&gates_shape[1..])?);
        let of_gates = on_cuda(GRADIENT, device, inputs, (gates_shape, dtype), &mut |inputs, of_gates| {
            let (of_x, of_h) = of_gates
                .into_bytes()
                .split_at(of_one.span() * dtype.size())
                .map_err(|source| Error::cuda(GRADIENT, source))?;
            let of = |bytes| CudaOut::new(bytes, &of_one, dtype);
            let [h, c, direct] = [h.as_mut(), c.as_mut(), direct.as_mut()].mapped(|out| out.map(FreshCuda::out));
            let outs = (of(of_x), [is_gru.then(|| of(of_h)), h, c, direct]);
            cuda::backward(device, self, hidden, inputs.optional_cuda_views(), outs, (plan, saved.needs(H0)))
        })?;
        let share = |fresh: Option<FreshCuda<'_>>| fresh.map(|fresh| fresh.share().typed());
        let (mut h0, direct): (Option<Tensor>, Option<Tensor>) = (share(h), share(direct));
        if let (Some(h), Some(direct), true) = (&mut h0, &direct, saved.needs(H0)) {
            *h = h.add(direct)?;
        }
        Ok(Gradients { of_gates: of_gates.typed(), h0, c0: share(c) })
    }
}
