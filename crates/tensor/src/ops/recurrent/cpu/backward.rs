//! The backward pass over the steps, from the last to the first.

use arrayvec::ArrayVec;
use pagelock_memory::Result;

use super::products::{Parts, Weight};
use super::{
    MAX_TASKS, WIDTH, clamped_part, load, load_gates, map, pieces, plus, rows_of, sigmoid_grad, split_gates_mut, store,
    tanh, task_rows, times,
};
use crate::cpu::{Stored, vectorized_widely};
use crate::element::Real;
use crate::inlined::{Array, Slice};
use crate::ops::recurrent::{Recurrence, Recurrent};
use crate::parallel::{for_each_chunk_mut, try_for_each_chunk_mut};
use crate::scratch;

/// The outputs of [`backward`]: for all rows, the gradients of a(x) and, for a GRU, of b(h); and the gradients of the
/// states before the first step, of h and, for an LSTM, of c.
pub(in crate::ops::recurrent) struct Outs<'a, R> {
    pub(in crate::ops::recurrent) of_x: &'a mut [R],
    pub(in crate::ops::recurrent) of_h: &'a mut [R],
    pub(in crate::ops::recurrent) h: &'a mut [R],
    pub(in crate::ops::recurrent) c: &'a mut [R],
}

/// The part of a backward step that one task computes: some of the sequences.
struct Back<'a, R> {
    /// The gradients of the results.
    grad: [&'a [R]; 2],
    /// What the forward step saved: gates, and b(h)ₙ of a GRU.
    gates: &'a [R],
    inner: &'a [R],
    /// The states after the step.
    out: [&'a [R]; 2],
    /// The states before the step: of sequences that continue, and of sequences that begin.
    before: &'a [R],
    first: &'a [R],
    of_x: &'a mut [R],
    of_h: &'a mut [R],
    /// The gradients of the states.
    h: &'a mut [R],
    c: &'a mut [R],
    /// For a GRU: the part of the state's gradient that bypasses the product.
    direct: &'a mut [R],
    /// A buffer for products.
    buffer: &'a mut [R],
}

/// The backward pass. The inputs are the gradient of the result, the weight part by part, the result, what the
/// forward pass saved, and the first states.
pub(in crate::ops::recurrent) fn backward<R: Real>(
    op: &Recurrent,
    (hidden, parts): (usize, Parts),
    [grad, weight, out, kept, h0, c0]: [Option<Stored<'_, R>>; 6],
    outs: Outs<'_, R>,
    wants_h0: bool,
) -> Result<()> {
    let Some(weight) = weight else { unreachable!("there is a weight") };
    let inputs = [grad, out, kept, h0, c0].mapped(|data| data.map(|data| data.plain()));
    parts.with_weight(weight, |weight| all_steps(op, (hidden, parts), (inputs, weight), outs, wants_h0))
}

/// [`backward`], with the weight in the form that products take.
fn all_steps<R: Real>(
    op: &Recurrent,
    (hidden, parts): (usize, Parts),
    (inputs, weight): ([Option<&[R]>; 5], Weight<'_, R>),
    outs: Outs<'_, R>,
    wants_h0: bool,
) -> Result<()> {
    let [Some(grad), Some(out), kept, h0, c0] = inputs else { unreachable!("`grad` and `out` are always given") };
    let (batch, all_rows, width) = (op.steps.batch(), op.steps.rows(), op.kind.gates() * hidden);
    let Outs { of_x, of_h, h, c } = outs;
    h.set_to(R::ZERO);
    c.set_to(R::ZERO);
    let (gates, inner) = kept.unwrap_or_default().split_at_checked(all_rows * width).unwrap_or_default();
    // An LSTM needs c before a step, a GRU h.
    let is_lstm = op.kind == Recurrence::Lstm;
    let (states, first) = if is_lstm { (&out[all_rows * hidden..], c0) } else { (out, h0) };
    let direct_len = if op.kind == Recurrence::Gru { batch * hidden } else { 0 };
    scratch::with(direct_len + batch * hidden, |all: &mut [R]| {
        let (direct, buffer) = all.split_at_mut(direct_len);
        op.steps.in_order(op.reverse).rev().try_for_each(|step| {
            let (rows, start) = (step.rows, step.start);
            let both = |of| [start, all_rows + start].mapped(|row| clamped_part(of, row * hidden, rows * hidden));
            let whole = Back {
                grad: both(grad),
                gates: clamped_part(gates, start * width, rows * width),
                inner: clamped_part(inner, start * hidden, rows * hidden),
                out: both(out),
                before: clamped_part(states, step.before.unwrap_or(0) * hidden, step.carried * hidden),
                first: first.unwrap_or_default(),
                of_x: rows_of(of_x, start, rows, width),
                of_h: rows_of(of_h, start, rows, width),
                h: &mut h[..rows * hidden],
                c: rows_of(c, 0, rows, hidden),
                direct: rows_of(direct, 0, rows, hidden),
                buffer: &mut buffer[..rows * hidden],
            };
            let product = (step.before.is_some() || wants_h0).then_some((parts, weight));
            let of_tasks = product.filter(|(parts, _)| !parts.are_many());
            let mut tasks = whole.cut(task_rows(rows), [hidden, width]);
            try_for_each_chunk_mut(&mut tasks, 1, |_, task| task[0].run(op.kind, hidden, of_tasks))?;
            drop(tasks);
            let Some((parts, weight)) = product.filter(|(parts, _)| parts.are_many()) else { return Ok(()) };
            let gates = if of_h.is_empty() { &*of_x } else { &*of_h };
            let gates = &gates[start * width..][..rows * width];
            let products = parts.products_at_once(gates, weight, &mut buffer[..rows * hidden])?;
            for_each_chunk_mut(&mut h[..rows * hidden], task_rows(rows) * hidden, |i, h| {
                let first = i * task_rows(rows);
                products.from(first).add_to(clamped_part(direct, first * hidden, h.len()), h);
            });
            Ok(())
        })
    })
}

impl<'a, R: Real> Back<'a, R> {
    /// Cuts the step into tasks of `rows` sequences.
    fn cut(self, rows: usize, [hidden, width]: [usize; 2]) -> ArrayVec<Back<'a, R>, MAX_TASKS> {
        let (mut of_x, mut of_h) = (pieces(self.of_x, rows * width), pieces(self.of_h, rows * width));
        let (mut c, mut direct) = (pieces(self.c, rows * hidden), pieces(self.direct, rows * hidden));
        let mut buffer = pieces(self.buffer, rows * hidden);
        let mut tasks = ArrayVec::new();
        for (i, h) in self.h.chunks_mut(rows * hidden).enumerate() {
            let part = |of: &'a [R], n: usize| clamped_part(of, i * rows * n, rows * n);
            tasks.push(Back {
                grad: self.grad.mapped(|grad| part(grad, hidden)),
                gates: part(self.gates, width),
                inner: part(self.inner, hidden),
                out: self.out.mapped(|out| part(out, hidden)),
                before: part(self.before, hidden),
                first: part(self.first, hidden),
                of_x: of_x(),
                of_h: of_h(),
                h,
                c: c(),
                direct: direct(),
                buffer: buffer(),
            });
        }
        tasks
    }

    fn run(&mut self, kind: Recurrence, hidden: usize, product: Option<(Parts, Weight<'_, R>)>) -> Result<()> {
        vectorized_widely(inlined!(|| match kind {
            Recurrence::Tanh =>
                self.plain(hidden, inlined!(|y, g| map([y, g], inlined!(|[y, g]: [R; 2]| g * (R::ONE - y * y))))),
            Recurrence::Relu => self.plain(
                hidden,
                inlined!(|y, g| map([y, g], inlined!(|[y, g]: [R; 2]| if y > R::ZERO { g } else { R::ZERO }))),
            ),
            Recurrence::Lstm => self.lstm(hidden),
            Recurrence::Gru => self.gru(hidden),
        }));
        let Some((parts, weight)) = product else { return Ok(()) };
        let gates = if self.of_h.is_empty() { &*self.of_x } else { &*self.of_h };
        parts.products(gates, weight, std::mem::take(&mut self.buffer))?.add_to(self.direct, self.h);
        Ok(())
    }

    #[inline(always)]
    fn plain(&mut self, n: usize, f: impl Fn([R; WIDTH], [R; WIDTH]) -> [R; WIDTH]) {
        for row in 0..self.h.len() / n {
            let of = row * n..(row + 1) * n;
            let (grad, y, h) = (&self.grad[0][of.clone()], &self.out[0][of.clone()], &self.h[of.clone()]);
            let of_x = &mut self.of_x[of];
            for at in (0..n).step_by(WIDTH) {
                store(of_x, at, f(load(y, at), plus(load(grad, at), load(h, at))));
            }
        }
    }

    #[inline(always)]
    fn lstm(&mut self, n: usize) {
        for row in 0..self.h.len() / n {
            let of = row * n..(row + 1) * n;
            let [grad_h, grad_c] = self.grad.mapped(|grad| &grad[of.clone()]);
            let after = &self.out[1][of.clone()];
            let gates = &self.gates[row * 4 * n..][..4 * n];
            let from = if row * n < self.before.len() { self.before } else { self.first };
            let before = from.get(of.clone());
            let (h, c) = (&self.h[of.clone()], &mut self.c[of]);
            let (i_out, f_out, g_out, o_out) = split_gates_mut(&mut self.of_x[row * 4 * n..][..4 * n], n);
            for at in (0..n).step_by(WIDTH) {
                let [i, f, g, o] = load_gates(gates, [n, n], at);
                let old_c = before.map_or([R::ZERO; WIDTH], |before| load(before, at));
                let t = tanh(load(after, at));
                let of_h = plus(load(grad_h, at), load(h, at));
                let of_c = map(
                    [load(grad_c, at), load(c, at), of_h, o, t],
                    inlined!(|[grad, c, h, o, t]| grad + c + h * o * (R::ONE - t * t)),
                );
                store(i_out, at, sigmoid_grad(i, times(of_c, g)));
                store(f_out, at, sigmoid_grad(f, times(of_c, old_c)));
                store(g_out, at, map([of_c, i, g], inlined!(|[of, i, g]| of * i * (R::ONE - g * g))));
                store(o_out, at, sigmoid_grad(o, times(of_h, t)));
                store(c, at, times(of_c, f));
            }
        }
    }

    #[inline(always)]
    fn gru(&mut self, n: usize) {
        for row in 0..self.h.len() / n {
            let of = row * n..(row + 1) * n;
            let (grad, inner) = (&self.grad[0][of.clone()], &self.inner[of.clone()]);
            let gates = &self.gates[row * 3 * n..][..3 * n];
            let from = if row * n < self.before.len() { self.before } else { self.first };
            let before = from.get(of.clone());
            let (h, direct) = (&self.h[of.clone()], &mut self.direct[of]);
            let (of_x, of_h) = (&mut self.of_x[row * 3 * n..][..3 * n], &mut self.of_h[row * 3 * n..][..3 * n]);
            for at in (0..n).step_by(WIDTH) {
                let [r, z, new] = load_gates(gates, [n, n], at);
                let old = before.map_or([R::ZERO; WIDTH], |before| load(before, at));
                let of = plus(load(grad, at), load(h, at));
                let of_n = map([of, z, new], inlined!(|[of, z, n]| of * (R::ONE - z) * (R::ONE - n * n)));
                let change = map([old, new], inlined!(|[h, n]| h - n));
                let of_z = sigmoid_grad(z, times(of, change));
                let of_r = sigmoid_grad(r, times(of_n, load(inner, at)));
                for (gate, [x, h]) in [[of_r; 2], [of_z; 2], [of_n, times(of_n, r)]].into_iter().enumerate() {
                    store(&mut of_x[gate * n..][..n], at, x);
                    store(&mut of_h[gate * n..][..n], at, h);
                }
                store(direct, at, times(of, z));
            }
        }
    }
}
