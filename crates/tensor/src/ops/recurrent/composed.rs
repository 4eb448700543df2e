//! Recurrent layers composed of other operations, step by step: for layers with projections, and for gradients that
//! are themselves differentiated.

use super::{BIAS_HH, BIAS_IH, C0, H0, Recurrence, Recurrent, WEIGHT_HH, WEIGHT_IH, X};
use crate::autograd::{Backward, Saved, grad};
use crate::error::Result;
use crate::inlined::Array;
use crate::tensor::Tensor;

impl Recurrent {
    /// h and c of all rows.
    pub(super) fn composed(
        &self,
        inputs: [Option<&Tensor>; 7],
        weight_hr: Option<&Tensor>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let (Some(x), Some(weight_ih), Some(weight_hh)) = (inputs[X], inputs[WEIGHT_IH], inputs[WEIGHT_HH]) else {
            unreachable!("there are input and weights")
        };
        let zeros = |columns: usize| Tensor::on(&x.device()).of(x.dtype()).zeros([self.steps.batch(), columns]);
        let gates = x.linear(weight_ih, inputs[BIAS_IH])?;
        let hidden = gates.shape()[1] / self.kind.gates();
        let mut h = inputs[H0].cloned().map_or_else(|| zeros(weight_hh.shape()[1]), Ok)?;
        let mut c = inputs[C0].cloned().map_or_else(|| zeros(hidden), Ok)?;
        let (mut all_h, mut all_c) = (Vec::new(), Vec::new());
        for step in self.steps.in_order(self.reverse) {
            let of_x = gates.narrow(0, step.start, step.rows)?;
            let now = [h.narrow(0, 0, step.rows)?, c.narrow(0, 0, step.rows)?];
            let of_h = now[0].linear(weight_hh, inputs[BIAS_HH])?;
            let (new_h, new_c) = self.cell(&of_x, &of_h, &now, hidden)?;
            let new_h = weight_hr.map_or(Ok(new_h.clone()), |weight| new_h.linear(weight, None))?;
            h = with_the_rest(&new_h, &h)?;
            c = new_c.as_ref().map_or(Ok(c.clone()), |new_c| with_the_rest(new_c, &c))?;
            all_h.push(new_h);
            all_c.extend(new_c);
        }
        if self.reverse {
            all_h.reverse();
            all_c.reverse();
        }
        let joined = |all: &[Tensor]| Tensor::cat(all, 0);
        Ok((joined(&all_h)?, if all_c.is_empty() { None } else { Some(joined(&all_c)?) }))
    }

    /// One step: h and, of an LSTM, c.
    fn cell(
        &self,
        of_x: &Tensor,
        of_h: &Tensor,
        [h, c]: &[Tensor; 2],
        hidden: usize,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let part = |gates: &Tensor, i: usize| gates.narrow(1, i * hidden, hidden);
        match self.kind {
            Recurrence::Tanh => Ok((of_x.add(of_h)?.tanh()?, None)),
            Recurrence::Relu => Ok((of_x.add(of_h)?.relu()?, None)),
            Recurrence::Lstm => {
                let sum = of_x.add(of_h)?;
                let [i, f, o] = [0, 1, 3].mapped(|gate| part(&sum, gate)?.sigmoid());
                let c = f?.mul(c)?.add(&i?.mul(&part(&sum, 2)?.tanh()?)?)?;
                Ok((o?.mul(&c.tanh()?)?, Some(c)))
            }
            Recurrence::Gru => {
                let gate = |i: usize| part(of_x, i)?.add(&part(of_h, i)?)?.sigmoid();
                let (r, z) = (gate(0)?, gate(1)?);
                let n = part(of_x, 2)?.add(&r.mul(&part(of_h, 2)?)?)?.tanh()?;
                Ok((n.add(&z.mul(&h.sub(&n)?)?)?, None))
            }
        }
    }

    /// The gradients as results of recorded operations, so that they can be differentiated again.
    pub(super) fn composed_gradients(&self, saved: &Saved<'_, 7>, gradient: &Tensor) -> Result<[Option<Tensor>; 7]> {
        // Each input gets a node of its own, so that gradients stop there even if one input was computed from another.
        let mut inputs = [const { None }; 7];
        for (i, input) in inputs.iter_mut().enumerate() {
            *input = saved.optional(i).map(|tensor| tensor.unsqueeze(0)?.squeeze(0)).transpose()?;
        }
        let mut widened = [const { None }; 7];
        for (widened, input) in widened.iter_mut().zip(&inputs) {
            *widened = input.as_ref().map(|input| input.to_dtype(gradient.dtype())).transpose()?;
        }
        let (h, c) = self.composed(widened.each_ref().mapped(Option::as_ref), None)?;
        let out = match &c {
            Some(c) => Tensor::stack(&[&h, c], 0)?,
            None => h,
        };
        let wanted: Vec<usize> = (0..7).filter(|&i| saved.needs(i)).collect();
        let targets: Vec<&Tensor> = wanted.iter().filter_map(|&i| inputs[i].as_ref()).collect();
        let options = Backward { gradient: Some(gradient.clone()), create_graph: true, ..Backward::default() };
        let found = grad(&[&out], &targets, options)?;
        let mut gradients = [const { None }; 7];
        for (i, gradient) in wanted.into_iter().zip(found) {
            gradients[i] = gradient;
        }
        Ok(gradients)
    }
}

/// New rows, and behind them the old ones that they do not replace.
fn with_the_rest(new: &Tensor, old: &Tensor) -> Result<Tensor> {
    let (rows, all) = (new.shape()[0], old.shape()[0]);
    if rows == all { Ok(new.clone()) } else { Tensor::cat(&[new, &old.narrow(0, rows, all - rows)?], 0) }
}
