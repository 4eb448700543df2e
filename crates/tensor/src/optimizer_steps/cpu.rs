//! Steps on the CPU: one pass over the elements of a group, as in `steps.cu`.

use arrayvec::ArrayVec;

use super::groups::{GRAD, Group, HALF_COPY, Lock, MAX_TENSORS, OP, lock_one};
use super::step::Now;
use crate::cpu::math::half::Half;
use crate::cpu::{PIECE, Stored, StoredMut, vectorized};
use crate::element::Real;
use crate::error::Result;
use crate::inlined::{Array, from_fn, zip};
use crate::parallel::for_each_chunk_mut;

/// The minimum number of elements of a part.
const CHUNK: usize = 16 * 1024;
/// The maximum number of parts, which are listed on the stack.
const PARTS: usize = 64;

/// The elements of a group, or of a part of it, as they are stored.
struct Elements<'a, R, const N: usize> {
    parameter: StoredMut<'a, R>,
    /// The state tensors.
    state: [StoredMut<'a, R>; N],
    /// The bits of the half-precision copy, and their type.
    half_copy: Option<(&'a mut [u16], Half)>,
    grad: Stored<'a, R>,
}

/// The numbers of a [`Prelude`], in the computing type.
#[derive(Clone, Copy)]
struct PreludeNumbers<R> {
    decays: bool,
    sign: R,
    decay: R,
    shrink: R,
}

impl<R: Real> PreludeNumbers<R> {
    #[inline(always)]
    fn apply(&self, x: R, grad: R) -> (R, R) {
        let (x, grad) = (x * self.shrink, grad * self.sign);
        (x, if self.decays { grad + x * self.decay } else { grad })
    }
}

impl<R: Real, const N: usize> Elements<'_, R, N> {
    /// Changes each element of the parameter and of the state tensors: applies `prelude`, then `f`, to these elements
    /// and the element of the gradient.
    fn change(&mut self, prelude: PreludeNumbers<R>, f: impl Fn(R, [R; N], R) -> (R, [R; N]) + Copy) {
        let (mut x, mut state, mut grad) = ([R::ZERO; PIECE], [[R::ZERO; PIECE]; N], [R::ZERO; PIECE]);
        for start in (0..self.parameter.len()).step_by(PIECE) {
            let len = PIECE.min(self.parameter.len() - start);
            let buffer = &mut x[..len];
            let parameter = load(&mut self.parameter, start, buffer);
            if let Some((bits, half)) = &mut self.half_copy {
                merge_half(R::f32s(parameter), &bits[start..][..len], *half);
            }
            let mut buffers =
                zip(&mut state[..], &mut self.state).map(|(buffer, state)| load(state, start, &mut buffer[..len]));
            let mut loaded: [&mut [R]; N] = from_fn(|_| buffers.next().unwrap_or_default());
            let grad = self.grad.part(start, len).widened(&mut grad);
            each(parameter, &mut loaded, grad, prelude, f);
            if let Some((bits, half)) = &mut self.half_copy {
                half.narrow(R::f32s(parameter), &mut bits[start..][..len]);
            }
            store(&mut self.parameter, start, &mut x[..len]);
            zip(&mut state[..], &mut self.state).for_each(|(buffer, state)| store(state, start, &mut buffer[..len]));
        }
    }
}

/// Changes the elements one by one. The compiler vectorizes the loop only if it sees that the loop owns its slices and
/// that all have the same length.
fn each<R: Real, const N: usize>(
    parameter: &mut [R],
    state: &mut [&mut [R]; N],
    grad: &[R],
    prelude: PreludeNumbers<R>,
    f: impl Fn(R, [R; N], R) -> (R, [R; N]) + Copy,
) {
    let len = parameter.len();
    let (state, grad) = (state.each_mut().mapped(|state| &mut state[..len]), &grad[..len]);
    vectorized(inlined!(move || {
        for i in 0..len {
            let (x, grad) = prelude.apply(parameter[i], grad[i]);
            let (x, new) = f(x, from_fn(|k| state[k][i]), grad);
            parameter[i] = x;
            for k in 0..N {
                state[k][i] = new[k];
            }
        }
    }));
}

/// The elements from index `start` on, as many as `buffer` holds: in place, or widened into `buffer`.
fn load<'r, R: Real>(stored: &'r mut StoredMut<'_, R>, start: usize, buffer: &'r mut [R]) -> &'r mut [R] {
    match stored.part(start, buffer.len()) {
        StoredMut::Plain(elements) => elements,
        StoredMut::Halves(bits, half) => {
            half.widen(bits, R::f32s(buffer));
            buffer
        }
    }
}

/// Rounds and stores the elements that [`load`] widened. Elements that were changed in place need no store.
fn store<R: Real>(stored: &mut StoredMut<'_, R>, start: usize, buffer: &mut [R]) {
    if let StoredMut::Halves(bits, half) = stored.part(start, buffer.len()) {
        half.narrow(R::f32s(buffer), bits);
    }
}

/// Copies an element of the half-precision copy to the parameter if the program has changed it: if it differs from the
/// rounded parameter.
fn merge_half(parameter: &mut [f32], bits: &[u16], half: Half) {
    let (mut rounded, mut expected, mut actual) = ([0; PIECE], [0.0; PIECE], [0.0; PIECE]);
    let len = parameter.len();
    half.narrow(parameter, &mut rounded[..len]);
    half.widen(&rounded[..len], &mut expected[..len]);
    half.widen(bits, &mut actual[..len]);
    for (x, (expected, actual)) in zip(&mut parameter[..], zip(expected, actual)) {
        *x = if expected == actual { *x } else { actual };
    }
}

impl Now<'_> {
    /// Changes the parameter and the first `N` state tensors that are present: applies the prelude, then `f`, to an
    /// element of each tensor and of the gradient.
    pub(super) fn change<R: Real, const N: usize>(
        self,
        f: impl Fn(R, [R; N], R) -> (R, [R; N]) + Sync + Copy,
    ) -> Result<()> {
        let [sign, decay, shrink] = self.prelude.numbers();
        let numbers = PreludeNumbers::<R> {
            decays: decay != 0.0,
            sign: R::from_f64(sign),
            decay: R::from_f64(decay),
            shrink: R::from_f64(1.0 - self.lr * shrink),
        };
        let mut locks = lock_one(self.tensors);
        let mut parts = parts(elements::<_, R, N>(self.tensors, &mut locks)?);
        for_each_chunk_mut(&mut parts, 1, |_, parts| parts.iter_mut().for_each(|part| part.change(numbers, f)));
        Ok(())
    }
}

/// Cuts the elements into parts. The number of elements alone decides where.
fn parts<R: Real, const N: usize>(whole: Elements<'_, R, N>) -> ArrayVec<Elements<'_, R, N>, PARTS> {
    let n = whole.parameter.len();
    let len = n.div_ceil(PARTS).max(CHUNK);
    let Elements { parameter, state, half_copy, grad } = whole;
    let (mut parameters, mut state) = (parameter.chunks(len), state.mapped(|state| state.chunks(len)));
    let mut halves = half_copy.map(|(bits, half)| (bits.chunks_mut(len), half));
    let starts = (0..n).step_by(len);
    starts
        .map(|start| Elements {
            parameter: parameters.next().unwrap_or(StoredMut::Plain(&mut [])),
            state: state.each_mut().mapped(|state| state.next().unwrap_or(StoredMut::Plain(&mut []))),
            half_copy: halves.as_mut().map(|(bits, half)| (bits.next().unwrap_or_default(), *half)),
            grad: grad.part(start, len.min(n - start)),
        })
        .collect()
}

/// The elements of a group's tensors, which are locked.
fn elements<'a, G: Group, R: Real, const N: usize>(
    group: &'a G,
    locks: &'a mut [Lock<'_>; MAX_TENSORS],
) -> Result<Elements<'a, R, N>> {
    let tensors = group.tensors();
    let (mut written, mut grad) = (ArrayVec::<_, MAX_TENSORS>::new(), None);
    let mut half_copy = None;
    for (i, (lock, tensor)) in zip(&mut locks[..], tensors).enumerate() {
        let Some(tensor) = tensor else { continue };
        let (layout, dtype) = (tensor.layout(), tensor.dtype());
        match lock {
            Lock::Read(locked) if i == GRAD => grad = Some(locked.stored(layout, dtype).data),
            Lock::Write(locked) => match StoredMut::of_bytes(locked.span(OP, layout, dtype.size())?, dtype) {
                StoredMut::Halves(bits, kind) if i == HALF_COPY => half_copy = Some((bits, kind)),
                stored => written.push(stored),
            },
            _ => unreachable!("all are locked as they are used"),
        }
    }
    let Some(grad) = grad else { unreachable!("every group has a gradient") };
    let mut written = written.into_iter();
    let mut next = || written.next().unwrap_or(StoredMut::Plain(&mut []));
    Ok(Elements { parameter: next(), state: from_fn(|_| next()), half_copy, grad })
}
