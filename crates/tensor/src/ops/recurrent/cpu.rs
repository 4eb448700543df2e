//! The steps on the CPU. A step is cut into tasks of some sequences each, by sizes only: the product with the state before, then
//! one pass over the gates, which are computed [`WIDTH`] at a time in registers.

use arrayvec::ArrayVec;
use pagelock_memory::Result;

use super::steps::Step;
use super::{Recurrence, Recurrent};
use crate::cpu::vectorized_widely;
use crate::element::Real;
use crate::ops::gemm;
use crate::parallel::try_for_each_chunk_mut;
use crate::scratch;

/// Numbers of a gate that are computed together.
const WIDTH: usize = 16;
/// The most tasks of a step, and the fewest sequences of one.
const MOST_TASKS: usize = 16;
const LEAST_ROWS: usize = 8;

fn task_rows(rows: usize) -> usize {
    rows.div_ceil(MOST_TASKS).max(LEAST_ROWS)
}

/// Some numbers of a row from `at` on; zeros behind its end.
#[inline(always)]
fn load<R: Real>(row: &[R], at: usize) -> [R; WIDTH] {
    match row[at..].first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut some = [R::ZERO; WIDTH];
            some[..row.len() - at].copy_from_slice(&row[at..]);
            some
        }
    }
}

#[inline(always)]
fn store<R: Real>(row: &mut [R], at: usize, numbers: [R; WIDTH]) {
    match row[at..].first_chunk_mut() {
        Some(whole) => *whole = numbers,
        None => {
            let rest = row.len() - at;
            row[at..].copy_from_slice(&numbers[..rest]);
        }
    }
}

/// `f` of each number and those at its place.
#[inline(always)]
fn map<R: Real, const N: usize>(of: [[R; WIDTH]; N], f: impl Fn([R; N]) -> R) -> [R; WIDTH] {
    let mut out = [R::ZERO; WIDTH];
    for (i, out) in out.iter_mut().enumerate() {
        let mut numbers = [R::ZERO; N];
        for (number, from) in numbers.iter_mut().zip(&of) {
            *number = from[i];
        }
        *out = f(numbers);
    }
    out
}

#[inline(always)]
fn plus<R: Real>(a: [R; WIDTH], b: [R; WIDTH]) -> [R; WIDTH] {
    map(
        [a, b],
        #[inline(always)]
        |[a, b]| a + b,
    )
}

#[inline(always)]
fn sigmoid<R: Real>(x: [R; WIDTH]) -> [R; WIDTH] {
    map(
        [x],
        #[inline(always)]
        |[x]| x.sigmoid(),
    )
}

#[inline(always)]
fn tanh<R: Real>(x: [R; WIDTH]) -> [R; WIDTH] {
    map(
        [x],
        #[inline(always)]
        |[x]| x.tanh(),
    )
}

#[inline(always)]
fn relu<R: Real>(x: [R; WIDTH]) -> [R; WIDTH] {
    map(
        [x],
        #[inline(always)]
        |[x]| if x < R::ZERO { R::ZERO } else { x },
    )
}

#[inline(always)]
fn times<R: Real>(a: [R; WIDTH], b: [R; WIDTH]) -> [R; WIDTH] {
    map(
        [a, b],
        #[inline(always)]
        |[a, b]| a * b,
    )
}

/// The gradient before a sigmoid that is `s`.
#[inline(always)]
fn through<R: Real>(s: [R; WIDTH], of: [R; WIDTH]) -> [R; WIDTH] {
    map(
        [s, of],
        #[inline(always)]
        |[s, of]| of * s * (R::ONE - s),
    )
}

/// Consecutive pieces of a slice; empty ones of an empty slice.
fn pieces<'a, R>(of: &'a mut [R], len: usize) -> impl FnMut() -> &'a mut [R] {
    let mut chunks = of.chunks_mut(len.max(1));
    move || chunks.next().unwrap_or_default()
}

/// The sequences of one task of a step.
struct Forward<'a, R> {
    /// a(x); then b(h), and what becomes of both.
    of_x: &'a [R],
    gates: &'a mut [R],
    /// Of a GRU that is recorded: b(h)ₙ.
    inner: &'a mut [R],
    /// The states, which change.
    h: &'a mut [R],
    c: &'a mut [R],
    out_h: &'a mut [R],
    out_c: &'a mut [R],
}

/// All steps; `inputs`: a(x), the weight transposed, `bias_hh` of a GRU, and the first states.
pub(super) fn forward<R: Real>(
    op: &Recurrent,
    hidden: usize,
    inputs: [Option<&[R]>; 5],
    out: &mut [R],
    kept: Option<&mut [R]>,
) -> Result<()> {
    let [Some(of_x), Some(weight), bias, h0, c0] = inputs else { unreachable!("there are gates and a weight") };
    let (batch, rows, width) = (op.steps.batch(), op.steps.rows(), op.kind.gates() * hidden);
    let (out_h, out_c) = out.split_at_mut(rows * hidden);
    let (gates, inner) = kept.unwrap_or_default().split_at_mut_checked(rows * width).unwrap_or_default();
    let room = if gates.is_empty() { batch * width } else { 0 };
    scratch::with(2 * batch * hidden + room, |all: &mut [R]| {
        let (h, all) = all.split_at_mut(batch * hidden);
        let (c, room) = all.split_at_mut(batch * hidden);
        for (state, first) in [(&mut *h, h0), (&mut *c, c0)] {
            match first {
                Some(first) => state.copy_from_slice(first),
                None => state.fill(R::ZERO),
            }
        }
        op.steps.in_order(op.reverse).try_for_each(|Step { start, rows, .. }| {
            let gates = if gates.is_empty() { &mut room[..rows * width] } else { rows_of(gates, start, rows, width) };
            let whole = Forward {
                of_x: &of_x[start * width..][..rows * width],
                gates,
                inner: rows_of(inner, start, rows, hidden),
                h: &mut h[..rows * hidden],
                c: &mut c[..rows * hidden],
                out_h: rows_of(out_h, start, rows, hidden),
                out_c: rows_of(out_c, start, rows, hidden),
            };
            let mut tasks = whole.cut(task_rows(rows), [hidden, width]);
            try_for_each_chunk_mut(&mut tasks, 1, |_, task| task[0].run(op.kind, hidden, weight, bias))
        })
    })
}

/// The rows of a step; nothing of nothing.
fn rows_of<R>(of: &mut [R], start: usize, rows: usize, n: usize) -> &mut [R] {
    if of.is_empty() { of } else { &mut of[start * n..][..rows * n] }
}

impl<'a, R: Real> Forward<'a, R> {
    /// Tasks of so many sequences.
    fn cut(self, rows: usize, [hidden, width]: [usize; 2]) -> ArrayVec<Forward<'a, R>, MOST_TASKS> {
        let (mut gates, mut inner) = (pieces(self.gates, rows * width), pieces(self.inner, rows * hidden));
        let (mut h, mut c) = (pieces(self.h, rows * hidden), pieces(self.c, rows * hidden));
        let (mut out_h, mut out_c) = (pieces(self.out_h, rows * hidden), pieces(self.out_c, rows * hidden));
        let mut tasks = ArrayVec::new();
        for of_x in self.of_x.chunks(rows * width) {
            let (gates, inner, h, c, out_h, out_c) = (gates(), inner(), h(), c(), out_h(), out_c());
            tasks.push(Forward { of_x, gates, inner, h, c, out_h, out_c });
        }
        tasks
    }

    fn run(&mut self, kind: Recurrence, hidden: usize, weight: &[R], bias: Option<&[R]>) -> Result<()> {
        let (rows, width) = (self.h.len() / hidden, kind.gates() * hidden);
        let (h, weight) = ((&*self.h).into(), weight.into());
        gemm(rows, hidden, width, h, [hidden, 1], weight, [width, 1], (&mut *self.gates).into())?;
        vectorized_widely(
            #[inline(always)]
            || match kind {
                Recurrence::Tanh => self.plain(
                    hidden,
                    #[inline(always)]
                    |x| tanh(x),
                ),
                Recurrence::Relu => self.plain(
                    hidden,
                    #[inline(always)]
                    |x| relu(x),
                ),
                Recurrence::Lstm => self.lstm(hidden),
                Recurrence::Gru => self.gru(hidden, bias),
            },
        );
        Ok(())
    }

    #[inline(always)]
    fn plain(&mut self, n: usize, f: impl Fn([R; WIDTH]) -> [R; WIDTH]) {
        for row in 0..self.h.len() / n {
            let of = row * n..(row + 1) * n;
            let (x, b, h, out) =
                (&self.of_x[of.clone()], &self.gates[of.clone()], &mut self.h[of.clone()], &mut self.out_h[of]);
            for at in (0..n).step_by(WIDTH) {
                let new = f(plus(load(x, at), load(b, at)));
                store(h, at, new);
                store(out, at, new);
            }
        }
    }

    #[inline(always)]
    fn lstm(&mut self, n: usize) {
        for row in 0..self.h.len() / n {
            let of = row * n..(row + 1) * n;
            let (x, gates) = (&self.of_x[row * 4 * n..][..4 * n], &mut self.gates[row * 4 * n..][..4 * n]);
            let (h, c) = (&mut self.h[of.clone()], &mut self.c[of.clone()]);
            let (out_h, out_c) = (&mut self.out_h[of.clone()], &mut self.out_c[of]);
            let (i, f, g, o) = four_mut(gates, n);
            let [xi, xf, xg, xo] = [0, 1, 2, 3].map(|gate| &x[gate * n..][..n]);
            for at in (0..n).step_by(WIDTH) {
                let in_gate = sigmoid(plus(load(xi, at), load(i, at)));
                let forget = sigmoid(plus(load(xf, at), load(f, at)));
                let cell = tanh(plus(load(xg, at), load(g, at)));
                let out_gate = sigmoid(plus(load(xo, at), load(o, at)));
                let new_c = map(
                    [forget, load(c, at), in_gate, cell],
                    #[inline(always)]
                    |[f, c, i, g]| f * c + i * g,
                );
                let new_h = map(
                    [out_gate, tanh(new_c)],
                    #[inline(always)]
                    |[o, t]| o * t,
                );
                store(i, at, in_gate);
                store(f, at, forget);
                store(g, at, cell);
                store(o, at, out_gate);
                store(c, at, new_c);
                store(out_c, at, new_c);
                store(h, at, new_h);
                store(out_h, at, new_h);
            }
        }
    }

    #[inline(always)]
    fn gru(&mut self, n: usize, bias: Option<&[R]>) {
        let bias_of = |gate: usize, at: usize| bias.map_or([R::ZERO; WIDTH], |bias| load(&bias[gate * n..][..n], at));
        for row in 0..self.h.len() / n {
            let of = row * n..(row + 1) * n;
            let (x, gates) = (&self.of_x[row * 3 * n..][..3 * n], &mut self.gates[row * 3 * n..][..3 * n]);
            let (h, out) = (&mut self.h[of.clone()], &mut self.out_h[of.clone()]);
            let inner = if self.inner.is_empty() { &mut [][..] } else { &mut self.inner[of] };
            let (r, rest) = gates.split_at_mut(n);
            let (z, m) = rest.split_at_mut(n);
            for at in (0..n).step_by(WIDTH) {
                let gate = |i: usize, b: &[R]| plus(load(&x[i * n..][..n], at), plus(load(b, at), bias_of(i, at)));
                let (reset, update) = (sigmoid(gate(0, r)), sigmoid(gate(1, z)));
                let of_h = plus(load(m, at), bias_of(2, at));
                let new = tanh(map(
                    [load(&x[2 * n..][..n], at), reset, of_h],
                    #[inline(always)]
                    |[x, r, b]| x + r * b,
                ));
                let state = map(
                    [new, update, load(h, at)],
                    #[inline(always)]
                    |[n, z, h]| n + z * (h - n),
                );
                store(r, at, reset);
                store(z, at, update);
                store(m, at, new);
                if !inner.is_empty() {
                    store(inner, at, of_h);
                }
                store(h, at, state);
                store(out, at, state);
            }
        }
    }
}

/// What [`backward`] writes: the gradients of a(x) and, of a GRU, of b(h), of all rows; and those of the states before the first step,
/// of an LSTM of c too.
pub(super) struct Outs<'a, R> {
    pub(super) of_x: &'a mut [R],
    pub(super) of_h: &'a mut [R],
    pub(super) h: &'a mut [R],
    pub(super) c: &'a mut [R],
}

/// The sequences of one task of a step back.
struct Back<'a, R> {
    /// The gradients of the results.
    grad: [&'a [R]; 2],
    /// What the step left: gates, and b(h)ₙ of a GRU.
    gates: &'a [R],
    inner: &'a [R],
    /// The states after it.
    out: [&'a [R]; 2],
    /// Those before it: of the sequences that go on, and of those that begin.
    before: &'a [R],
    first: &'a [R],
    of_x: &'a mut [R],
    of_h: &'a mut [R],
    /// The gradients of the states.
    h: &'a mut [R],
    c: &'a mut [R],
    /// Room for a GRU.
    direct: &'a mut [R],
}

/// The way back; `inputs`: the gradient of the result, the weight, the result, what was kept, and the first states.
pub(super) fn backward<R: Real>(
    op: &Recurrent,
    hidden: usize,
    inputs: [Option<&[R]>; 6],
    outs: Outs<'_, R>,
    wants_h0: bool,
) -> Result<()> {
    let [Some(grad), Some(weight), Some(out), kept, h0, c0] = inputs else { unreachable!("there are these") };
    let (batch, all_rows, width) = (op.steps.batch(), op.steps.rows(), op.kind.gates() * hidden);
    let Outs { of_x, of_h, h, c } = outs;
    h.fill(R::ZERO);
    c.fill(R::ZERO);
    let (gates, inner) = kept.unwrap_or_default().split_at_checked(all_rows * width).unwrap_or_default();
    // An LSTM needs c before a step, a GRU h.
    let is_lstm = op.kind == Recurrence::Lstm;
    let (states, first) = if is_lstm { (&out[all_rows * hidden..], c0) } else { (out, h0) };
    let direct_len = if op.kind == Recurrence::Gru { batch * hidden } else { 0 };
    scratch::with(direct_len, |direct: &mut [R]| {
        op.steps.in_order(op.reverse).rev().try_for_each(|step| {
            let (rows, start) = (step.rows, step.start);
            let both = |of| [start, all_rows + start].map(|row| some(of, row * hidden, rows * hidden));
            let whole = Back {
                grad: both(grad),
                gates: some(gates, start * width, rows * width),
                inner: some(inner, start * hidden, rows * hidden),
                out: both(out),
                before: some(states, step.before.unwrap_or(0) * hidden, step.carried * hidden),
                first: first.unwrap_or_default(),
                of_x: rows_of(of_x, start, rows, width),
                of_h: rows_of(of_h, start, rows, width),
                h: &mut h[..rows * hidden],
                c: rows_of(c, 0, rows, hidden),
                direct: rows_of(direct, 0, rows, hidden),
            };
            let mut tasks = whole.cut(task_rows(rows), [hidden, width]);
            let product = (step.before.is_some() || wants_h0).then_some(weight);
            try_for_each_chunk_mut(&mut tasks, 1, |_, task| task[0].run(op.kind, hidden, product))
        })
    })
}

/// At most `len` numbers from `start` on, as many as there are.
fn some<R>(of: &[R], start: usize, len: usize) -> &[R] {
    let start = start.min(of.len());
    &of[start..(start + len).min(of.len())]
}

impl<'a, R: Real> Back<'a, R> {
    /// Tasks of so many sequences.
    fn cut(self, rows: usize, [hidden, width]: [usize; 2]) -> ArrayVec<Back<'a, R>, MOST_TASKS> {
        let (mut of_x, mut of_h) = (pieces(self.of_x, rows * width), pieces(self.of_h, rows * width));
        let (mut c, mut direct) = (pieces(self.c, rows * hidden), pieces(self.direct, rows * hidden));
        let mut tasks = ArrayVec::new();
        for (i, h) in self.h.chunks_mut(rows * hidden).enumerate() {
            let part = |of: &'a [R], n: usize| some(of, i * rows * n, rows * n);
            tasks.push(Back {
                grad: self.grad.map(|grad| part(grad, hidden)),
                gates: part(self.gates, width),
                inner: part(self.inner, hidden),
                out: self.out.map(|out| part(out, hidden)),
                before: part(self.before, hidden),
                first: part(self.first, hidden),
                of_x: of_x(),
                of_h: of_h(),
                h,
                c: c(),
                direct: direct(),
            });
        }
        tasks
    }

    fn run(&mut self, kind: Recurrence, hidden: usize, weight: Option<&[R]>) -> Result<()> {
        vectorized_widely(
            #[inline(always)]
            || match kind {
                Recurrence::Tanh => self.plain(
                    hidden,
                    #[inline(always)]
                    |y, g| {
                        map(
                            [y, g],
                            #[inline(always)]
                            |[y, g]: [R; 2]| g * (R::ONE - y * y),
                        )
                    },
                ),
                Recurrence::Relu => self.plain(
                    hidden,
                    #[inline(always)]
                    |y, g| {
                        map(
                            [y, g],
                            #[inline(always)]
                            |[y, g]: [R; 2]| if y > R::ZERO { g } else { R::ZERO },
                        )
                    },
                ),
                Recurrence::Lstm => self.lstm(hidden),
                Recurrence::Gru => self.gru(hidden),
            },
        );
        let Some(weight) = weight else { return Ok(()) };
        let (rows, width) = (self.h.len() / hidden, kind.gates() * hidden);
        let gates = if self.of_h.is_empty() { &*self.of_x } else { &*self.of_h };
        gemm(rows, width, hidden, gates.into(), [width, 1], weight.into(), [hidden, 1], (&mut *self.h).into())?;
        self.h.iter_mut().zip(&*self.direct).for_each(|(h, direct)| *h = *h + *direct);
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
            let [grad_h, grad_c] = self.grad.map(|grad| &grad[of.clone()]);
            let after = &self.out[1][of.clone()];
            let gates = &self.gates[row * 4 * n..][..4 * n];
            let from = if row * n < self.before.len() { self.before } else { self.first };
            let before = from.get(of.clone());
            let (h, c) = (&self.h[of.clone()], &mut self.c[of]);
            let (i_out, f_out, g_out, o_out) = four_mut(&mut self.of_x[row * 4 * n..][..4 * n], n);
            for at in (0..n).step_by(WIDTH) {
                let [i, f, g, o] = [0, 1, 2, 3].map(|gate| load(&gates[gate * n..][..n], at));
                let old_c = before.map_or([R::ZERO; WIDTH], |before| load(before, at));
                let t = tanh(load(after, at));
                let of_h = plus(load(grad_h, at), load(h, at));
                let of_c = map(
                    [load(grad_c, at), load(c, at), of_h, o, t],
                    #[inline(always)]
                    |[grad, c, h, o, t]| grad + c + h * o * (R::ONE - t * t),
                );
                store(i_out, at, through(i, times(of_c, g)));
                store(f_out, at, through(f, times(of_c, old_c)));
                store(
                    g_out,
                    at,
                    map(
                        [of_c, i, g],
                        #[inline(always)]
                        |[of, i, g]| of * i * (R::ONE - g * g),
                    ),
                );
                store(o_out, at, through(o, times(of_h, t)));
                store(c, at, times(of_c, f));
            }
        }
    }

    #[inline(always)]
    fn gru(&mut self, n: usize) {
        for row in 0..self.h.len() / n {
            let of = row * n..(row + 1) * n;
            let grad = &self.grad[0][of.clone()];
            let gates = &self.gates[row * 3 * n..][..3 * n];
            let inner = &self.inner[of.clone()];
            let from = if row * n < self.before.len() { self.before } else { self.first };
            let before = from.get(of.clone());
            let (h, direct) = (&self.h[of.clone()], &mut self.direct[of]);
            let (of_x, of_h) = (&mut self.of_x[row * 3 * n..][..3 * n], &mut self.of_h[row * 3 * n..][..3 * n]);
            for at in (0..n).step_by(WIDTH) {
                let [r, z, new] = [0, 1, 2].map(|gate| load(&gates[gate * n..][..n], at));
                let of_h_n = load(inner, at);
                let old = before.map_or([R::ZERO; WIDTH], |before| load(before, at));
                let of = plus(load(grad, at), load(h, at));
                let of_n = map(
                    [of, z, new],
                    #[inline(always)]
                    |[of, z, n]| of * (R::ONE - z) * (R::ONE - n * n),
                );
                let of_z = map(
                    [of, old, new, z],
                    #[inline(always)]
                    |[of, h, n, z]| of * (h - n) * z * (R::ONE - z),
                );
                let of_r = map(
                    [of_n, of_h_n, r],
                    #[inline(always)]
                    |[of, b, r]| of * b * r * (R::ONE - r),
                );
                let inner = map(
                    [of_n, r],
                    #[inline(always)]
                    |[of, r]| of * r,
                );
                for (gate, [x, h]) in [[of_r; 2], [of_z; 2], [of_n, inner]].into_iter().enumerate() {
                    store(&mut of_x[gate * n..][..n], at, x);
                    store(&mut of_h[gate * n..][..n], at, h);
                }
                store(
                    direct,
                    at,
                    map(
                        [of, z],
                        #[inline(always)]
                        |[of, z]| of * z,
                    ),
                );
            }
        }
    }
}

/// The four parts of a row.
#[inline(always)]
fn four_mut<R>(row: &mut [R], n: usize) -> (&mut [R], &mut [R], &mut [R], &mut [R]) {
    let (a, b) = row.split_at_mut(2 * n);
    let ((i, f), (g, o)) = (a.split_at_mut(n), b.split_at_mut(n));
    (i, f, g, o)
}
