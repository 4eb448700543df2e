//! The steps on the CPU. A step is a product with the state before it, which is cut into parts by columns
//! (`products.rs`), and one pass over the gates. That pass is cut into tasks of some sequences each, which compute
//! [`WIDTH`] numbers at a time in registers, forward (`forward.rs`) or backward (`backward.rs`). If there are
//! sequences for all threads and the weight is small, there is one part, and each task multiplies its own sequences.

mod backward;
mod forward;
mod products;

use bytemuck::Pod;
use half::bf16;

pub(super) use self::backward::{Outs, backward};
pub(super) use self::forward::forward;
pub(super) use self::products::Parts;
use crate::cpu::Stored;
use crate::cpu::math::half::bf16_to_f32;
use crate::element::Real;
use crate::inlined::{Slice, zip};

/// Numbers of a gate that are computed together.
const WIDTH: usize = 16;
/// The most tasks of a step, and the fewest sequences of a task.
const MAX_TASKS: usize = 16;
const MIN_ROWS: usize = 8;

fn task_rows(rows: usize) -> usize {
    rows.div_ceil(MAX_TASKS).max(MIN_ROWS)
}

/// [`WIDTH`] numbers of a row from `at` on, with zeros behind its end.
#[inline(always)]
fn load<T: Pod>(row: &[T], at: usize) -> [T; WIDTH] {
    match row[at..].first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut padded = [T::zeroed(); WIDTH];
            padded[..row.len() - at].copy_from(&row[at..]);
            padded
        }
    }
}

/// [`load`] of gates, `len` numbers each, that begin `distance` numbers apart. (Not by `array::map`, which is not inlined.)
#[inline(always)]
fn load_gates<R: Real, const N: usize>(row: &[R], [distance, len]: [usize; 2], at: usize) -> [[R; WIDTH]; N] {
    let mut gates = [[R::ZERO; WIDTH]; N];
    for (gate, numbers) in gates.iter_mut().enumerate() {
        *numbers = load(&row[gate * distance..][..len], at);
    }
    gates
}

/// [`load_gates`] for numbers that may be stored as the bits of `bf16`.
#[inline(always)]
fn load_stored<R: Real, const N: usize>(row: Stored<'_, R>, [distance, len]: [usize; 2], at: usize) -> [[R; WIDTH]; N] {
    let bits = match row {
        Stored::Plain(row) => return load_gates(row, [distance, len], at),
        Stored::Halves(bits, _) => bits,
    };
    let mut gates = [[R::ZERO; WIDTH]; N];
    for (gate, numbers) in gates.iter_mut().enumerate() {
        let bits = load(&bits[gate * distance..][..len], at);
        zip(R::f32s(numbers), bits).for_each(|(number, bits)| *number = bf16_to_f32(bf16::from_bits(bits)));
    }
    gates
}

#[inline(always)]
fn store<R: Real>(row: &mut [R], at: usize, numbers: [R; WIDTH]) {
    match row[at..].first_chunk_mut() {
        Some(whole) => *whole = numbers,
        None => {
            let rest = row.len() - at;
            row[at..].copy_from(&numbers[..rest]);
        }
    }
}

/// Calls `f` with the numbers at each index, one of every array.
#[inline(always)]
fn map<R: Real, const N: usize>(of: [[R; WIDTH]; N], f: impl Fn([R; N]) -> R) -> [R; WIDTH] {
    let mut out = [R::ZERO; WIDTH];
    for (i, out) in out.iter_mut().enumerate() {
        let mut numbers = [R::ZERO; N];
        for (number, from) in zip(&mut numbers[..], &of) {
            *number = from[i];
        }
        *out = f(numbers);
    }
    out
}

#[inline(always)]
fn plus<R: Real>(a: [R; WIDTH], b: [R; WIDTH]) -> [R; WIDTH] {
    map([a, b], inlined!(|[a, b]| a + b))
}

#[inline(always)]
fn plus_each<R: Real, const N: usize>(mut a: [[R; WIDTH]; N], b: [[R; WIDTH]; N]) -> [[R; WIDTH]; N] {
    for (a, b) in zip(&mut a[..], b) {
        *a = plus(*a, b);
    }
    a
}

#[inline(always)]
fn sigmoid<R: Real>(x: [R; WIDTH]) -> [R; WIDTH] {
    map([x], inlined!(|[x]| x.sigmoid()))
}

#[inline(always)]
fn tanh<R: Real>(x: [R; WIDTH]) -> [R; WIDTH] {
    map([x], inlined!(|[x]| x.tanh()))
}

#[inline(always)]
fn relu<R: Real>(x: [R; WIDTH]) -> [R; WIDTH] {
    map([x], inlined!(|[x]| if x < R::ZERO { R::ZERO } else { x }))
}

#[inline(always)]
fn times<R: Real>(a: [R; WIDTH], b: [R; WIDTH]) -> [R; WIDTH] {
    map([a, b], inlined!(|[a, b]| a * b))
}

/// The gradient of a sigmoid's input, given the sigmoid `s` and its gradient.
#[inline(always)]
fn sigmoid_grad<R: Real>(s: [R; WIDTH], of: [R; WIDTH]) -> [R; WIDTH] {
    map([s, of], inlined!(|[s, of]| of * s * (R::ONE - s)))
}

/// Consecutive pieces of a slice, and behind its end empty ones.
fn pieces<'a, R>(of: &'a mut [R], len: usize) -> impl FnMut() -> &'a mut [R] {
    let mut chunks = of.chunks_mut(len.max(1));
    move || chunks.next().unwrap_or_default()
}

/// The rows of a step, or an empty slice of an empty one.
fn rows_of<R>(of: &mut [R], start: usize, rows: usize, n: usize) -> &mut [R] {
    if of.is_empty() { of } else { &mut of[start * n..][..rows * n] }
}

/// At most `len` numbers from `start` on, as many as there are.
fn clamped_part<R>(of: &[R], start: usize, len: usize) -> &[R] {
    let start = start.min(of.len());
    &of[start..(start + len).min(of.len())]
}

/// The four gates of a row.
#[inline(always)]
fn split_gates_mut<R>(row: &mut [R], n: usize) -> (&mut [R], &mut [R], &mut [R], &mut [R]) {
    let (a, b) = row.split_at_mut(2 * n);
    let ((i, f), (g, o)) = (a.split_at_mut(n), b.split_at_mut(n));
    (i, f, g, o)
}
