//! Softmax, its logarithm and their gradients along rows (the last dimension of contiguous tensors).
//!
//! Short rows (class scores) are computed [`LANES`] at a time, one row per lane, so that ten classes fill vectors as
//! well as a thousand do; longer rows some at a time, in passes that find them in the cache. Everything is computed in
//! `R`. The largest element is taken away first, so nothing overflows.

use std::marker::PhantomData;

use pagelock_memory::Result;

use super::elements::{Pieces, by_long_rows, by_rows, rows_of};
use super::kernel::{RowOfHalves, by_rows_of_halves, map_in_registers};
use super::layer_norm::map;
use super::long_rows::{exp_of_long_row, map_long_row, sums_of_long_row};
use super::math::half::{Block, Registers};
use super::reduce::in_halves;
use super::sums::{sums, sums_in_registers, wide};
use super::{CHUNK, PIECE, Stored, StoredMut, simd};
use crate::element::Real;
use crate::inlined::{Array, Flat, Slice, zip};

/// Rows of a tile, and the most longer rows that are computed together.
const LANES: usize = 16;
/// The longest rows that are computed in tiles.
const SHORT: usize = 32;
/// Exponentials of a row that are added up while they are in the first-level cache.
const BLOCK: usize = 512;
/// Elements of the longer rows that are computed together; a row may have more.
const GROUP: usize = 1024;

/// `out[i, j] = exp(x[i, j]) / Σ exp(x[i, …])`, where every row has `row_len` elements.
pub(crate) fn softmax<R: Real>(x: Stored<'_, R>, row_len: usize, out: StoredMut<'_, R>) -> Result<()> {
    run::<R, Softmax, 1>([x], row_len, out)
}

/// `out[i, j] = x[i, j] − log Σ exp(x[i, …])`.
pub(crate) fn log_softmax<R: Real>(x: Stored<'_, R>, row_len: usize, out: StoredMut<'_, R>) -> Result<()> {
    run::<R, LogSoftmax, 1>([x], row_len, out)
}

/// The gradient of [`softmax`]'s input, where `y` is its output: `out[i, j] = y[i, j] · (grad[i, j] − Σ grad[i, …] · y[i, …])`.
pub(crate) fn softmax_grad<R: Real>(
    y: Stored<'_, R>,
    grad: Stored<'_, R>,
    row_len: usize,
    out: StoredMut<'_, R>,
) -> Result<()> {
    run::<R, SoftmaxGrad, 2>([y, grad], row_len, out)
}

/// The gradient of [`log_softmax`]'s input, where `y` is its output: `out[i, j] = grad[i, j] − exp(y[i, j]) · Σ grad[i, …]`.
pub(crate) fn log_softmax_grad<R: Real>(
    y: Stored<'_, R>,
    grad: Stored<'_, R>,
    row_len: usize,
    out: StoredMut<'_, R>,
) -> Result<()> {
    run::<R, LogSoftmaxGrad, 2>([y, grad], row_len, out)
}

/// A function of rows of `N` inputs.
trait RowOp<const N: usize> {
    /// Computes up to [`LANES`] rows, in place of the first input. Element `j` of row `lane` is `[j][lane]`.
    fn tile<R: Real>(inputs: [&mut [[R; LANES]]; N], scratch: &mut [[R; LANES]]);
    /// Computes [`rows_together`], with room for [`GROUP`] numbers.
    fn rows<R: Real>(inputs: [&[R]; N], row_len: usize, out: &mut [R], room: &mut [R]);
    /// Whether rows of more than a [`PIECE`] are computed by [`long_row`](Self::long_row).
    const IN_PIECES: bool = true;
    /// Whether rows of halves are computed by [`in_registers`](Self::in_registers) where that is possible.
    const IN_REGISTERS: bool = false;
    /// Computes a row of halves.
    fn in_registers<R: Real>(_: impl Registers, _: [&[Block]; N], _: &mut [Block]) {
        unreachable!("its rows are not computed in registers")
    }
    /// Computes a row that is read in pieces.
    fn long_row<R: Real>(_: [Stored<'_, R>; N], _: StoredMut<'_, R>, _: &mut Pieces<R, N>) {
        unreachable!("its rows are not computed in pieces")
    }
}

struct Softmax;

impl RowOp<1> for Softmax {
    #[inline(always)]
    fn tile<R: Real>([x]: [&mut [[R; LANES]]; 1], scratch: &mut [[R; LANES]]) {
        subtract_largest(x, scratch);
        exp_all(x.flattened_mut());
        let sum = fold_lanes(x, [R::ZERO; LANES], R::plus);
        with_lanes(x, sum.mapped(|sum| R::ONE / sum), scratch, |x, factor| x * factor);
    }

    #[inline(always)]
    fn rows<R: Real>([x]: [&[R]; 1], row_len: usize, out: &mut [R], _: &mut [R]) {
        let [_, sums] = exp_of_rows(x, row_len, out, true);
        for (out, sum) in zip(out.chunks_exact_mut(row_len), sums) {
            let factor = R::ONE / sum;
            out.iter_mut().for_each(|x| *x = *x * factor);
        }
    }

    /// Exponentials stay where they were computed: computing them again takes longer than room for the row.
    const IN_PIECES: bool = false;
}

struct LogSoftmax;

impl RowOp<1> for LogSoftmax {
    #[inline(always)]
    fn tile<R: Real>([x]: [&mut [[R; LANES]]; 1], scratch: &mut [[R; LANES]]) {
        subtract_largest(x, scratch);
        scratch.copy_from(x);
        exp_all(scratch.flattened_mut());
        let sum = fold_lanes(scratch, [R::ZERO; LANES], R::plus);
        scratch[0] = sum;
        ln_all(scratch[..1].flattened_mut());
        let log = scratch[0];
        with_lanes(x, log, scratch, |x, log| x - log);
    }

    #[inline(always)]
    fn rows<R: Real>([x]: [&[R]; 1], row_len: usize, out: &mut [R], room: &mut [R]) {
        let [largest, mut logs] = exp_of_rows(x, row_len, room, false);
        ln_all(&mut logs[..out.len() / row_len]);
        for (i, out) in out.chunks_exact_mut(row_len).enumerate() {
            let (largest, log) = (largest[i], logs[i]);
            map([&x[i * row_len..]], out, |[x]| x - largest - log);
        }
    }

    fn long_row<R: Real>([x]: [Stored<'_, R>; 1], out: StoredMut<'_, R>, pieces: &mut Pieces<R, 1>) {
        let [largest, sum] = exp_of_long_row(x, pieces);
        let log = sum.ln();
        map_long_row(
            [x],
            out,
            pieces,
            #[inline(always)]
            |[x]| x - largest - log,
        );
    }
}

struct SoftmaxGrad;

impl RowOp<2> for SoftmaxGrad {
    #[inline(always)]
    fn tile<R: Real>([y, grad]: [&mut [[R; LANES]]; 2], scratch: &mut [[R; LANES]]) {
        let products = zip(y.flattened(), grad.flattened());
        for (out, (&y, &grad)) in zip(scratch.flattened_mut(), products) {
            *out = y * grad;
        }
        let sum = fold_lanes(scratch, [R::ZERO; LANES], R::plus);
        with_lanes(grad, sum, scratch, |grad, sum| grad - sum);
        for (y, &grad) in zip(y.flattened_mut(), grad.flattened()) {
            *y = *y * grad;
        }
    }

    #[inline(always)]
    fn rows<R: Real>(inputs: [&[R]; 2], row_len: usize, out: &mut [R], _: &mut [R]) {
        let sums = sums_of_rows(inputs, row_len, |[y, grad]| y * grad);
        for (i, out) in out.chunks_exact_mut(row_len).enumerate() {
            let sum = sums[i];
            map(rows_of(inputs, i * row_len, row_len), out, |[y, grad]| y * (grad - sum));
        }
    }

    const IN_REGISTERS: bool = true;

    #[inline(always)]
    fn in_registers<R: Real>(registers: impl Registers, inputs: [&[Block]; 2], out: &mut [Block]) {
        let [sum] = sums_in_registers(registers, inputs, |[y, grad]: [R; 2]| [y * grad]);
        map_in_registers(registers, inputs, out, |[y, grad]: [R; 2]| y * (grad - sum));
    }

    fn long_row<R: Real>(inputs: [Stored<'_, R>; 2], out: StoredMut<'_, R>, pieces: &mut Pieces<R, 2>) {
        let [sum] = sums_of_long_row(
            inputs,
            pieces,
            #[inline(always)]
            |[y, grad]| [y * grad],
        );
        map_long_row(
            inputs,
            out,
            pieces,
            #[inline(always)]
            |[y, grad]| y * (grad - sum),
        );
    }
}

struct LogSoftmaxGrad;

impl RowOp<2> for LogSoftmaxGrad {
    #[inline(always)]
    fn tile<R: Real>([y, grad]: [&mut [[R; LANES]]; 2], scratch: &mut [[R; LANES]]) {
        let sum = fold_lanes(grad, [R::ZERO; LANES], R::plus);
        exp_all(y.flattened_mut());
        with_lanes(y, sum, scratch, |y, sum| y * sum);
        for (y, &grad) in zip(y.flattened_mut(), grad.flattened()) {
            *y = grad - *y;
        }
    }

    #[inline(always)]
    fn rows<R: Real>(inputs: [&[R]; 2], row_len: usize, out: &mut [R], _: &mut [R]) {
        let sums = sums_of_rows([inputs[1]], row_len, |[grad]| grad);
        for (i, out) in out.chunks_exact_mut(row_len).enumerate() {
            let sum = sums[i];
            map(
                rows_of(inputs, i * row_len, row_len),
                out,
                #[inline(always)]
                move |[y, grad]| grad - y.exp_below() * sum,
            );
        }
    }

    const IN_REGISTERS: bool = true;

    #[inline(always)]
    fn in_registers<R: Real>(registers: impl Registers, [y, grad]: [&[Block]; 2], out: &mut [Block]) {
        let [sum] = sums_in_registers(registers, [grad], |[grad]: [R; 1]| [grad]);
        map_in_registers(
            registers,
            [y, grad],
            out,
            #[inline(always)]
            |[y, grad]: [R; 2]| grad - y.exp_below() * sum,
        );
    }

    fn long_row<R: Real>(inputs: [Stored<'_, R>; 2], out: StoredMut<'_, R>, pieces: &mut Pieces<R, 2>) {
        let [sum] = sums_of_long_row(inputs, pieces, |[_, grad]| [grad]);
        map_long_row(
            inputs,
            out,
            pieces,
            #[inline(always)]
            |[y, grad]| grad - y.exp_below() * sum,
        );
    }
}

/// The loss of each row: `losses[i] = log Σ exp(x[i, …]) − x[i, target[i]]`.
pub(crate) fn cross_entropy<R: Real>(x: Stored<'_, R>, target: &[i64], row_len: usize, losses: &mut [R]) -> Result<()> {
    by_rows([x], (row_len, CHUNK / 4), losses.into(), &|first, [x], losses| {
        simd::vectorized_widely(
            #[inline(always)]
            move || {
                let mut room = [R::ZERO; GROUP];
                let target = &target[first..][..losses.len()];
                if row_len <= SHORT {
                    let tiles = zip(zip(x.chunks(LANES * row_len), losses.chunks_mut(LANES)), target.chunks(LANES));
                    for ((x, losses), target) in tiles {
                        let log = &mut room[..x.len()];
                        short_rows::<R, LogSoftmax, 1>([x], row_len, log);
                        for ((loss, log), class) in zip(zip(&mut losses[..], log.chunks_exact(row_len)), target) {
                            *loss = -log[*class as usize];
                        }
                    }
                    return;
                }
                let group = rows_together(row_len);
                let groups = zip(zip(x.chunks(group * row_len), losses.chunks_mut(group)), target.chunks(group));
                for ((x, losses), target) in groups {
                    let [largest, mut logs] = exp_of_rows(x, row_len, &mut room, false);
                    ln_all(&mut logs[..losses.len()]);
                    for (i, loss) in losses.iter_mut().enumerate() {
                        *loss = -(x[i * row_len + target[i] as usize] - largest[i] - logs[i]);
                    }
                }
            },
        );
    })
}

/// The gradient of [`cross_entropy`]'s input: `out[i, j] = (softmax(x)[i, j] − [j = target[i]]) · grad(i)`.
pub(crate) fn cross_entropy_grad<R: Real>(
    x: Stored<'_, R>,
    target: &[i64],
    grad: impl Fn(usize) -> R + Sync,
    row_len: usize,
    out: StoredMut<'_, R>,
) -> Result<()> {
    let grad = &grad;
    by_rows([x], (row_len, CHUNK / 4), out, &|first, [x], out| {
        simd::vectorized_widely(
            #[inline(always)]
            move || {
                if row_len <= SHORT {
                    short_rows::<R, Softmax, 1>([x], row_len, out);
                }
                let group = rows_together(row_len) * row_len;
                for (i, out) in out.chunks_mut(group).enumerate() {
                    let [_, sums] = match row_len <= SHORT {
                        true => [[R::ONE; LANES]; 2],
                        false => exp_of_rows(&x[i * group..][..out.len()], row_len, out, true),
                    };
                    let rows = first + i * group / row_len..;
                    for ((row, out), sum) in zip(zip(rows, out.chunks_exact_mut(row_len)), sums) {
                        let (class, grad) = (target[row] as usize, grad(row));
                        let (probability, factor) = (out[class] / sum, grad / sum);
                        out.iter_mut().for_each(|x| *x = *x * factor);
                        out[class] = (probability - R::ONE) * grad;
                    }
                }
            },
        );
    })
}

/// Applies `O` to all rows, on several threads if there is enough to do.
fn run<R: Real, O: RowOp<N>, const N: usize>(
    inputs: [Stored<'_, R>; N],
    row_len: usize,
    mut out: StoredMut<'_, R>,
) -> Result<()> {
    // An exponential per element: a quarter of the usual work is enough for a thread.
    if row_len > SHORT
        && O::IN_REGISTERS
        && by_rows_of_halves(inputs, (row_len, CHUNK / 4), &mut out, &OfHalves::<R, O>(PhantomData))
    {
        return Ok(());
    }
    if row_len > PIECE && O::IN_PIECES {
        by_long_rows(out, (row_len, CHUNK / 4), &|row, out, pieces| {
            O::long_row(inputs.mapped(|input| input.part(row * row_len, row_len)), out, pieces);
        });
        return Ok(());
    }
    by_rows(inputs, (row_len, CHUNK / 4), out, &|_, inputs, out| {
        simd::vectorized_widely(
            #[inline(always)]
            move || {
                if row_len <= SHORT {
                    return short_rows::<R, O, N>(inputs, row_len, out);
                }
                let mut room = [R::ZERO; GROUP];
                let group = rows_together(row_len) * row_len;
                for (i, out) in out.chunks_mut(group).enumerate() {
                    O::rows(rows_of(inputs, i * group, out.len()), row_len, out, &mut room);
                }
            },
        );
    })
}

/// A [`RowOp`] on rows of halves.
struct OfHalves<R, O>(PhantomData<fn() -> (R, O)>);

impl<R: Real, O: RowOp<N>, const N: usize> RowOfHalves<N> for OfHalves<R, O> {
    #[inline(always)]
    fn compute(&self, registers: impl Registers, _: usize, inputs: [&[Block]; N], out: &mut [Block]) {
        O::in_registers::<R>(registers, inputs, out);
    }
}

#[inline(always)]
fn short_rows<R: Real, O: RowOp<N>, const N: usize>(inputs: [&[R]; N], row_len: usize, out: &mut [R]) {
    let mut tiles = [[[R::ZERO; LANES]; SHORT]; N];
    let mut scratch = [[R::ZERO; LANES]; SHORT];
    for (i, out) in out.chunks_mut(LANES * row_len).enumerate() {
        for (tile, input) in zip(&mut tiles[..], inputs) {
            load(&input[i * LANES * row_len..][..out.len()], &mut tile[..row_len]);
        }
        O::tile(tiles.each_mut().mapped(|tile| &mut tile[..row_len]), &mut scratch[..row_len]);
        store(&tiles[0][..row_len], out);
    }
}

/// Up to sixteen rows into a tile; lanes without a row keep what they have. Compiled once: inlined, both this and [`store`]
/// become sixteen loops, and take most of the time that this file is compiled in.
#[inline(never)]
fn load<R: Real>(rows: &[R], tile: &mut [[R; LANES]]) {
    for (lane, row) in rows.chunks_exact(tile.len()).enumerate().take(LANES) {
        for (values, x) in zip(&mut tile[..], row) {
            values[lane] = *x;
        }
    }
}

/// A tile into up to sixteen rows.
#[inline(never)]
fn store<R: Real>(tile: &[[R; LANES]], rows: &mut [R]) {
    for (lane, row) in rows.chunks_exact_mut(tile.len()).enumerate().take(LANES) {
        for (out, values) in zip(&mut row[..], tile) {
            *out = values[lane];
        }
    }
}

// Long functions go over slices, whose length the compiler does not know: it would unroll a loop over the lanes.

#[inline(always)]
fn exp_all<R: Real>(x: &mut [R]) {
    for x in x {
        *x = x.exp_below();
    }
}

#[inline(always)]
fn ln_all<R: Real>(x: &mut [R]) {
    for x in x {
        *x = x.ln();
    }
}

#[inline(always)]
pub(super) fn greater<R: Real>(a: R, b: R) -> R {
    if a > b { a } else { b }
}

#[inline(always)]
fn subtract_largest<R: Real>(tile: &mut [[R; LANES]], scratch: &mut [[R; LANES]]) {
    let largest = fold_lanes(tile, [R::LOWEST; LANES], greater);
    with_lanes(tile, largest, scratch, |x, largest| x - largest);
}

/// Folds every lane.
#[inline(always)]
fn fold_lanes<R: Real>(tile: &[[R; LANES]], start: [R; LANES], combine: impl Fn(R, R) -> R) -> [R; LANES] {
    let mut folded = start;
    for values in tile {
        for (folded, &x) in zip(&mut folded[..], values) {
            *folded = combine(*folded, x);
        }
    }
    folded
}

/// Replaces every element `x` of a tile by `f(x, lanes[lane])`. The lanes are repeated in `scratch` first: compilers
/// vectorise one loop over everything well, and sixteen short ones badly.
#[inline(always)]
fn with_lanes<R: Real>(tile: &mut [[R; LANES]], lanes: [R; LANES], scratch: &mut [[R; LANES]], f: impl Fn(R, R) -> R) {
    scratch.set_to(lanes);
    for (x, &lane) in zip(tile.flattened_mut(), scratch.flattened()) {
        *x = f(*x, lane);
    }
}

#[inline(always)]
pub(super) fn largest<R: Real>(x: &[R]) -> R {
    let (full, rest) = x.as_chunks::<LANES>();
    let mut lanes = fold_lanes(full, [R::LOWEST; LANES], greater);
    zip(&mut lanes[..], rest).for_each(|(lane, &x)| *lane = greater(*lane, x));
    in_halves(&mut lanes, greater)
}

/// How many longer rows are computed together, step by step, so that the steps of one do not wait for each other.
#[inline(always)]
fn rows_together(row_len: usize) -> usize {
    (GROUP / row_len).clamp(1, LANES)
}

/// The largest elements of some rows, and the sums of `exp(x − largest)`, which are in `out` if it `keeps` them: else it is
/// only room for a block of each row.
#[inline(always)]
fn exp_of_rows<R: Real>(x: &[R], row_len: usize, out: &mut [R], keeps: bool) -> [[R; LANES]; 2] {
    let mut largest_of = [R::ZERO; LANES];
    for (largest_of, x) in zip(&mut largest_of[..], x.chunks_exact(row_len)) {
        *largest_of = largest(x);
    }
    let mut totals = [0.0; LANES];
    for start in (0..row_len).step_by(BLOCK) {
        let len = BLOCK.min(row_len - start);
        let place = |i: usize| i * row_len + if keeps { start } else { 0 };
        for (i, x) in x.chunks_exact(row_len).enumerate() {
            let largest = largest_of[i];
            map(
                [&x[start..][..len]],
                &mut out[place(i)..][..len],
                #[inline(always)]
                move |[x]| (x - largest).exp_below(),
            );
        }
        for (i, total) in totals.iter_mut().enumerate().take(x.len() / row_len) {
            let [sum] = sums([&out[place(i)..][..len]], |[x]| [x]);
            *total += wide(sum);
        }
    }
    let mut sums = [R::ZERO; LANES];
    zip(&mut sums[..], totals).for_each(|(sum, total)| *sum = R::from_f64(total));
    [largest_of, sums]
}

/// `Σ f(inputs[..][i, …])` of some rows.
#[inline(always)]
fn sums_of_rows<R: Real, const N: usize>(
    inputs: [&[R]; N],
    row_len: usize,
    f: impl Fn([R; N]) -> R + Copy,
) -> [R; LANES] {
    let mut found = [R::ZERO; LANES];
    for (i, found) in found.iter_mut().enumerate().take(inputs[0].len() / row_len) {
        [*found] = sums(rows_of(inputs, i * row_len, row_len), |x| [f(x)]);
    }
    found
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::super::testing::{Stores, stored, stored_mut};
    use super::*;
    use crate::element::Element;

    /// Row lengths of both kinds, and counts that do not fill tiles or chunks.
    const SIZES: [(usize, usize); 8] = [(1, 1), (3, 10), (64, 10), (17, 32), (3, 33), (5, 96), (2_000, 7), (3, 5_003)];

    fn numbers(n: usize, seed: u32) -> Vec<f64> {
        let random = |i: usize| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8;
        (0..n).map(|i| f64::from(random(i)) / f64::from(1 << 23) - 1.0).collect()
    }

    fn naive_log_softmax(x: &[f64]) -> Vec<f64> {
        let sum: f64 = x.iter().map(|x| x.exp()).sum();
        x.iter().map(|x| x - sum.ln()).collect()
    }

    /// Checks `f` on rows against `model`, for which the inputs are exact. Errors are relative to the result plus
    /// `scale` (the size of what cancels).
    fn check<T: Stores>(
        f: impl Fn([Stored<'_, T::C>; 2], usize, StoredMut<'_, T::C>) -> Result<()>,
        model: impl Fn(&[f64], &[f64]) -> Vec<f64>,
        scale: impl Fn(usize) -> f64,
        tolerance: f64,
    ) {
        let to_f64 = |x: &[T]| x.iter().map(|&x| x.cast()).collect::<Vec<f64>>();
        for (rows, len) in SIZES {
            let inputs =
                [1, 77].map(|seed| numbers(rows * len, seed).iter().map(|&x| f64::cast::<T>(x)).collect::<Vec<T>>());
            let mut out = vec![T::ZERO; rows * len];
            f([stored(&inputs[0]), stored(&inputs[1])], len, stored_mut(&mut out)).unwrap();
            for (i, out) in out.chunks(len).enumerate() {
                let [a, b] = inputs.each_ref().map(|input| to_f64(&input[i * len..][..len]));
                for (j, (out, expected)) in to_f64(out).into_iter().zip(model(&a, &b)).enumerate() {
                    let error = (out - expected).abs() / (expected.abs() + scale(len));
                    assert!(error < tolerance, "row {i} of {rows}, {j} of {len}: {out} instead of {expected}");
                }
            }
        }
    }

    fn check_all<T: Stores<C: Real>>(tolerance: f64) {
        let exp = |x: Vec<f64>| x.iter().map(|x| x.exp()).collect::<Vec<f64>>();
        check::<T>(|[x, _], len, out| softmax(x, len, out), |x, _| exp(naive_log_softmax(x)), |_| 1e-3, tolerance);
        check::<T>(|[x, _], len, out| log_softmax(x, len, out), |x, _| naive_log_softmax(x), |_| 1.0, tolerance);
        check::<T>(
            |[y, grad], len, out| softmax_grad(y, grad, len, out),
            |y, grad| {
                let sum: f64 = y.iter().zip(grad).map(|(y, grad)| y * grad).sum();
                y.iter().zip(grad).map(|(y, grad)| y * (grad - sum)).collect()
            },
            |len| len as f64,
            tolerance,
        );
        check::<T>(
            |[y, grad], len, out| log_softmax_grad(y, grad, len, out),
            |y, grad| y.iter().zip(grad).map(|(y, g)| g - y.exp() * grad.iter().sum::<f64>()).collect(),
            |len| 10.0 * len as f64,
            tolerance,
        );
    }

    #[test]
    fn rows_match_the_formulas_in_every_precision() {
        check_all::<f64>(1e-13);
        check_all::<f32>(1e-6);
        check_all::<f16>(1e-3);
    }

    #[test]
    fn rows_do_not_overflow_and_keep_what_is_not_a_number() {
        for len in [10, 100] {
            let mut x = vec![1e30_f32; 2 * len];
            x[len + 1] = f32::NAN;
            let mut out = vec![0.0; 2 * len];
            softmax(stored(&x), len, stored_mut(&mut out)).unwrap();
            assert!(out[..len].iter().all(|&y| (y * len as f32 - 1.0).abs() < 1e-6));
            assert!(out[len..].iter().all(|y| y.is_nan()));
        }
    }
}
