//! The forward pass over the steps, from the first to the last.

use arrayvec::ArrayVec;
use pagelock_memory::Result;

use super::products::{Parts, Products, Weight};
use super::{
    MAX_TASKS, WIDTH, load, load_gates, load_stored, map, pieces, plus, plus_each, relu, rows_of, sigmoid, store, tanh,
    task_rows, times,
};
use crate::cpu::{Stored, vectorized_widely};
use crate::element::Real;
use crate::inlined::{Array, Slice};
use crate::ops::recurrent::steps::Step;
use crate::ops::recurrent::{Recurrence, Recurrent};
use crate::parallel::try_for_each_chunk_mut;
use crate::scratch;

/// The part of a step that one task computes: some of the sequences.
struct Forward<'a, R> {
    /// The products with the state, if they were computed for all sequences at once; else `buffer` is for them.
    of_h: Option<Products<'a, R>>,
    buffer: &'a mut [R],
    /// a(x), and a buffer for gates, if they are saved for the gradient.
    of_x: Stored<'a, R>,
    gates: &'a mut [R],
    /// A buffer for b(h)ₙ of a GRU, if it is saved for the gradient.
    inner: &'a mut [R],
    /// The states, updated in place.
    h: &'a mut [R],
    c: &'a mut [R],
    out_h: &'a mut [R],
    out_c: &'a mut [R],
}

/// The forward pass. `inputs` are a(x), the weight part by part, `bias_hh` of a GRU, and the first states.
pub(in crate::ops::recurrent) fn forward<R: Real>(
    op: &Recurrent,
    (hidden, parts): (usize, Parts),
    inputs: [Option<Stored<'_, R>>; 5],
    out: &mut [R],
    kept: Option<&mut [R]>,
) -> Result<()> {
    let [Some(of_x), Some(weight), others @ ..] = inputs else { unreachable!("there are gates and a weight") };
    let [bias, h0, c0] = others.mapped(|data| data.map(|data| data.plain()));
    parts.with_weight(weight, |weight| all_steps(op, (hidden, parts), (of_x, weight, bias), [h0, c0], out, kept))
}

/// [`forward`], with the weight in the form that products take.
fn all_steps<R: Real>(
    op: &Recurrent,
    (hidden, parts): (usize, Parts),
    (of_x, weight, bias): (Stored<'_, R>, Weight<'_, R>, Option<&[R]>),
    [h0, c0]: [Option<&[R]>; 2],
    out: &mut [R],
    kept: Option<&mut [R]>,
) -> Result<()> {
    let (batch, rows, width) = (op.steps.batch(), op.steps.rows(), op.kind.gates() * hidden);
    let (out_h, out_c) = out.split_at_mut(rows * hidden);
    let (gates, inner) = kept.unwrap_or_default().split_at_mut_checked(rows * width).unwrap_or_default();
    scratch::with((2 * hidden + width) * batch, |all: &mut [R]| {
        let (h, all) = all.split_at_mut(batch * hidden);
        let (c, buffer) = all.split_at_mut(batch * hidden);
        for (state, first) in [(&mut *h, h0), (&mut *c, c0)] {
            match first {
                Some(first) => state.copy_from(first),
                None => state.set_to(R::ZERO),
            }
        }
        op.steps.in_order(op.reverse).try_for_each(|Step { start, rows, .. }| {
            let buffer = &mut buffer[..rows * width];
            let (of_h, buffer) = if parts.are_many() {
                (Some(parts.products_at_once(&h[..rows * hidden], weight, buffer)?), Default::default())
            } else {
                (None, buffer)
            };
            let whole = Forward {
                of_h,
                buffer,
                of_x: of_x.part(start * width, rows * width),
                gates: rows_of(gates, start, rows, width),
                inner: rows_of(inner, start, rows, hidden),
                h: &mut h[..rows * hidden],
                c: &mut c[..rows * hidden],
                out_h: rows_of(out_h, start, rows, hidden),
                out_c: rows_of(out_c, start, rows, hidden),
            };
            let mut tasks = whole.cut(task_rows(rows), [hidden, width]);
            try_for_each_chunk_mut(&mut tasks, 1, |_, task| task[0].run(op.kind, (hidden, parts), weight, bias))
        })
    })
}

impl<'a, R: Real> Forward<'a, R> {
    /// Cuts the step into tasks of `rows` sequences.
    fn cut(self, rows: usize, [hidden, width]: [usize; 2]) -> ArrayVec<Forward<'a, R>, MAX_TASKS> {
        let mut buffer = pieces(self.buffer, rows * width);
        let (mut gates, mut inner) = (pieces(self.gates, rows * width), pieces(self.inner, rows * hidden));
        let (mut h, mut c) = (pieces(self.h, rows * hidden), pieces(self.c, rows * hidden));
        let (mut out_h, mut out_c) = (pieces(self.out_h, rows * hidden), pieces(self.out_c, rows * hidden));
        let mut tasks = ArrayVec::new();
        let all = self.of_x.len();
        for (i, start) in (0..all).step_by(rows * width).enumerate() {
            let of_x = self.of_x.part(start, (rows * width).min(all - start));
            let of_h = self.of_h.map(|of_h| of_h.from(i * rows));
            let (gates, inner, h, c, out_h, out_c) = (gates(), inner(), h(), c(), out_h(), out_c());
            tasks.push(Forward { of_h, buffer: buffer(), of_x, gates, inner, h, c, out_h, out_c });
        }
        tasks
    }

    fn run(
        &mut self,
        kind: Recurrence,
        (hidden, parts): (usize, Parts),
        weight: Weight<'_, R>,
        bias: Option<&[R]>,
    ) -> Result<()> {
        let of_h = match self.of_h {
            Some(of_h) => of_h,
            None => parts.products(self.h, weight, std::mem::take(&mut self.buffer))?,
        };
        vectorized_widely(inlined!(|| match kind {
            Recurrence::Tanh => self.plain(hidden, of_h, inlined!(|x| tanh(x))),
            Recurrence::Relu => self.plain(hidden, of_h, inlined!(|x| relu(x))),
            Recurrence::Lstm => self.lstm(hidden, of_h),
            Recurrence::Gru => self.gru(hidden, of_h, bias),
        }));
        Ok(())
    }

    #[inline(always)]
    fn plain(&mut self, n: usize, of_h: Products<'_, R>, f: impl Fn([R; WIDTH]) -> [R; WIDTH]) {
        let units = of_h.parts.units();
        for (row, part) in rows_and_parts(self.h.len() / n, of_h) {
            let of = row * n + part * units..row * n + (part + 1) * units;
            let (of_x, b) = (self.of_x.part(of.start, units), of_h.of(row, part));
            let (h, out) = (&mut self.h[of.clone()], &mut self.out_h[of]);
            for at in (0..units).step_by(WIDTH) {
                let [x] = load_stored(of_x, [n, units], at);
                let new = f(plus(x, load(b, at)));
                store(h, at, new);
                store(out, at, new);
            }
        }
    }

    #[inline(always)]
    fn lstm(&mut self, n: usize, of_h: Products<'_, R>) {
        let units = of_h.parts.units();
        for (row, part) in rows_and_parts(self.h.len() / n, of_h) {
            let of = row * n + part * units..row * n + (part + 1) * units;
            let part_of = |gate: usize| (4 * row + gate) * n + part * units;
            let (b, of_x) = (of_h.of(row, part), self.of_x.from(part_of(0)));
            let (h, c) = (&mut self.h[of.clone()], &mut self.c[of.clone()]);
            let (out_h, out_c) = (&mut self.out_h[of.clone()], &mut self.out_c[of]);
            for at in (0..units).step_by(WIDTH) {
                let [i, f, g, o] = plus_each(load_stored(of_x, [n, units], at), load_gates(b, [units, units], at));
                let (in_gate, forget, cell, out_gate) = (sigmoid(i), sigmoid(f), tanh(g), sigmoid(o));
                let new_c = map([forget, load(c, at), in_gate, cell], inlined!(|[f, c, i, g]| f * c + i * g));
                let new_h = times(out_gate, tanh(new_c));
                if !self.gates.is_empty() {
                    for (gate, numbers) in [in_gate, forget, cell, out_gate].into_iter().enumerate() {
                        store(&mut self.gates[part_of(gate)..][..units], at, numbers);
                    }
                }
                store(c, at, new_c);
                store(out_c, at, new_c);
                store(h, at, new_h);
                store(out_h, at, new_h);
            }
        }
    }

    #[inline(always)]
    fn gru(&mut self, n: usize, of_h: Products<'_, R>, bias: Option<&[R]>) {
        let units = of_h.parts.units();
        for (row, part) in rows_and_parts(self.h.len() / n, of_h) {
            let of = row * n + part * units..row * n + (part + 1) * units;
            let part_of = |gate: usize| (3 * row + gate) * n + part * units;
            let (b, of_x) = (of_h.of(row, part), self.of_x.from(part_of(0)));
            let (h, out) = (&mut self.h[of.clone()], &mut self.out_h[of.clone()]);
            for at in (0..units).step_by(WIDTH) {
                let [r, z, of_x_n] = load_stored(of_x, [n, units], at);
                let mut products = load_gates(b, [units, units], at);
                if let Some(bias) = bias {
                    products = plus_each(products, load_gates(&bias[part * units..], [n, units], at));
                }
                let [r_h, z_h, of_h_n] = products;
                let (reset, update) = (sigmoid(plus(r, r_h)), sigmoid(plus(z, z_h)));
                let new = tanh(plus(of_x_n, times(reset, of_h_n)));
                let state = map([new, update, load(h, at)], inlined!(|[n, z, h]| n + z * (h - n)));
                if !self.gates.is_empty() {
                    for (gate, numbers) in [reset, update, new].into_iter().enumerate() {
                        store(&mut self.gates[part_of(gate)..][..units], at, numbers);
                    }
                    store(&mut self.inner[of.clone()], at, of_h_n);
                }
                store(h, at, state);
                store(out, at, state);
            }
        }
    }
}

/// All pairs of a row and a part of products.
#[inline(always)]
fn rows_and_parts<R: Real>(rows: usize, of_h: Products<'_, R>) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(move |row| (0..of_h.parts.count()).map(move |part| (row, part)))
}
