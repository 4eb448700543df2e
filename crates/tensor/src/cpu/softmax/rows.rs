//! Formulas along rows (the last dimension of contiguous tensors), and the losses of class scores.
//!
//! Short rows (class scores) are computed [`LANES`] at a time, one row per lane, so that ten classes fill vectors as
//! well as a thousand do. Longer rows are computed a few at a time, in several passes while they are in the cache.

use std::marker::PhantomData;

use pagelock_memory::Result;

use super::super::elements::{Pieces, by_long_rows, by_rows, rows_of, rows_per_group};
use super::super::kernel::{RowOfHalves, by_rows_of_halves, map_in_registers};
use super::super::layer_norm::map;
use super::super::long_rows::{exp_of_long_row, map_long_row, sums_of_long_row};
use super::super::math::half::{Block, Registers};
use super::super::reduce::in_halves;
use super::super::sums::{sums, sums_in_registers, wide};
use super::super::{CHUNK, PIECE, Stored, StoredMut, simd};
use super::{Formula, LogSoftmax, Softmax};
use crate::element::Real;
use crate::inlined::{Array, Flat, Slice, zip, zip_all};

/// Rows per tile. Also the maximum number of longer rows that are computed together.
const LANES: usize = 16;
/// The longest rows that are computed in tiles.
const SHORT: usize = 32;
/// Exponentials of a row that are added up while they are in the L1 cache.
const BLOCK: usize = 512;
/// The most elements of longer rows that are computed together. A single row may have more.
const GROUP: usize = 1024;

/// The loss of each row: `losses[i] = log Σ exp(x[i, …]) − x[i, target[i]]`.
pub(crate) fn cross_entropy<R: Real>(x: Stored<'_, R>, target: &[i64], row_len: usize, losses: &mut [R]) -> Result<()> {
    by_rows([x], (row_len, CHUNK / 4), losses.into(), &|first, [x], losses| {
        simd::vectorized_widely(inlined!(move || {
            let mut buffer = [R::ZERO; GROUP];
            let target = &target[first..][..losses.len()];
            if row_len <= SHORT {
                let tiles = zip(zip(x.chunks(LANES * row_len), losses.chunks_mut(LANES)), target.chunks(LANES));
                for ((x, losses), target) in tiles {
                    let log = &mut buffer[..x.len()];
                    short_rows::<R, LogSoftmax, 1>([x], row_len, log);
                    for ((loss, log), class) in zip(zip(&mut losses[..], log.chunks_exact(row_len)), target) {
                        *loss = -log[*class as usize];
                    }
                }
                return;
            }
            let group = rows_per_group::<LANES>(row_len, GROUP);
            let groups = zip(zip(x.chunks(group * row_len), losses.chunks_mut(group)), target.chunks(group));
            for ((x, losses), target) in groups {
                let [largest, mut logs] = exp_of_rows(x, row_len, &mut buffer, false);
                apply_of_sum::<R, LogSoftmax, 1>(&mut logs[..losses.len()]);
                for (i, loss) in losses.iter_mut().enumerate() {
                    *loss = -(x[i * row_len + target[i] as usize] - largest[i] - logs[i]);
                }
            }
        }));
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
        simd::vectorized_widely(inlined!(move || {
            if row_len <= SHORT {
                short_rows::<R, Softmax, 1>([x], row_len, out);
            }
            let group = rows_per_group::<LANES>(row_len, GROUP) * row_len;
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
        }));
    })
}

/// Applies `F` to all rows, on several threads if there is enough to do.
pub(super) fn run<R: Real, F: Formula<N>, const N: usize>(
    inputs: [Stored<'_, R>; N],
    row_len: usize,
    mut out: StoredMut<'_, R>,
) -> Result<()> {
    // An exponential per element: a quarter of the usual work is enough for a thread.
    let chunk = (row_len, CHUNK / 4);
    if row_len > SHORT && !F::SHIFTED && by_rows_of_halves(inputs, chunk, &mut out, &OfHalves::<R, F>(PhantomData)) {
        return Ok(());
    }
    // Terms that are scaled are not computed in pieces: computing them again would take longer than storing the row.
    if row_len > PIECE && !F::SCALES_TERMS {
        by_long_rows(out, chunk, &|row, out, pieces| {
            long_row::<R, F, N>(inputs.mapped(|input| input.part(row * row_len, row_len)), out, pieces);
        });
        return Ok(());
    }
    by_rows(inputs, chunk, out, &|_, inputs, out| {
        simd::vectorized_widely(inlined!(move || {
            if row_len <= SHORT {
                return short_rows::<R, F, N>(inputs, row_len, out);
            }
            let mut buffer = [R::ZERO; GROUP];
            let group = rows_per_group::<LANES>(row_len, GROUP) * row_len;
            for (i, out) in out.chunks_mut(group).enumerate() {
                longer_rows::<R, F, N>(rows_of(inputs, i * group, out.len()), row_len, out, &mut buffer);
            }
        }));
    })
}

/// A formula of rows of halves.
struct OfHalves<R, F>(PhantomData<fn() -> (R, F)>);

impl<R: Real, F: Formula<N>, const N: usize> RowOfHalves<N> for OfHalves<R, F> {
    #[inline(always)]
    fn compute(&self, registers: impl Registers, _: usize, inputs: [&[Block]; N], out: &mut [Block]) {
        let [sum] = sums_in_registers(registers, inputs, inlined!(|x: [R; N]| [F::term(x, R::ZERO)]));
        let of_sum = F::of_sum(sum);
        map_in_registers(registers, inputs, out, inlined!(|x: [R; N]| F::result(x, R::ZERO, of_sum)));
    }
}

/// Computes a row that is read in pieces.
fn long_row<R: Real, F: Formula<N>, const N: usize>(
    inputs: [Stored<'_, R>; N],
    out: StoredMut<'_, R>,
    pieces: &mut Pieces<R, N>,
) {
    let [largest, sum] = match F::SHIFTED {
        true => exp_of_long_row(inputs, pieces),
        false => {
            let [sum] = sums_of_long_row(inputs, pieces, inlined!(|x| [F::term(x, R::ZERO)]));
            [R::ZERO, sum]
        }
    };
    let of_sum = F::of_sum(sum);
    map_long_row(inputs, out, pieces, inlined!(|x| F::result(x, largest, of_sum)));
}

/// Computes the rows of a group. `buffer` has space for [`GROUP`] numbers.
#[inline(always)]
fn longer_rows<R: Real, F: Formula<N>, const N: usize>(
    inputs: [&[R]; N],
    row_len: usize,
    out: &mut [R],
    buffer: &mut [R],
) {
    let rows = out.len() / row_len;
    let [largest, mut of_sums] = match F::SHIFTED {
        true => exp_of_rows(inputs[0], row_len, if F::SCALES_TERMS { &mut *out } else { buffer }, F::SCALES_TERMS),
        false => [[R::ZERO; LANES], sums_of_rows(inputs, row_len, inlined!(|x| F::term(x, R::ZERO)))],
    };
    apply_of_sum::<R, F, N>(&mut of_sums[..rows]);
    for (i, out) in out.chunks_exact_mut(row_len).enumerate() {
        let (largest, of_sum) = (largest[i], of_sums[i]);
        match F::SCALES_TERMS {
            true => out.iter_mut().for_each(|x| *x = *x * of_sum),
            false => map(rows_of(inputs, i * row_len, row_len), out, inlined!(move |x| F::result(x, largest, of_sum))),
        }
    }
}

#[inline(always)]
fn short_rows<R: Real, F: Formula<N>, const N: usize>(inputs: [&[R]; N], row_len: usize, out: &mut [R]) {
    let mut tiles = [[[R::ZERO; LANES]; SHORT]; N];
    let mut scratch = [[R::ZERO; LANES]; SHORT];
    for (i, out) in out.chunks_mut(LANES * row_len).enumerate() {
        for (tile, input) in zip(&mut tiles[..], inputs) {
            load(&input[i * LANES * row_len..][..out.len()], &mut tile[..row_len]);
        }
        tile::<R, F, N>(tiles.each_mut().mapped(|tile| &mut tile[..row_len]), &mut scratch[..row_len]);
        store(&scratch[..row_len], out);
    }
}

/// Computes up to [`LANES`] rows into `out`, and overwrites the inputs. Element `j` of row `lane` is `[j][lane]`.
///
/// A value for a whole row is first repeated in a tile: the compiler vectorizes one loop over everything well, and
/// sixteen short loops badly.
#[inline(always)]
fn tile<R: Real, F: Formula<N>, const N: usize>(inputs: [&mut [[R; LANES]]; N], out: &mut [[R; LANES]]) {
    if F::SHIFTED {
        subtract_largest(inputs[0], out);
    }
    for (term, x) in zip(out.flattened_mut(), zip_all(&flat(&inputs))) {
        *term = F::term(x, R::ZERO);
    }
    let mut of_sums = fold_lanes(out, [R::ZERO; LANES], R::plus);
    apply_of_sum::<R, F, N>(&mut of_sums);
    if F::SCALES_TERMS {
        inputs[0].set_to(of_sums);
        for (term, &factor) in zip(out.flattened_mut(), inputs[0].flattened()) {
            *term = *term * factor;
        }
        return;
    }
    out.set_to(of_sums);
    for (out, x) in zip(out.flattened_mut(), zip_all(&flat(&inputs))) {
        *out = F::result(x, R::ZERO, *out);
    }
}

#[inline(always)]
fn flat<'a, R, const N: usize>(tiles: &'a [&mut [[R; LANES]]; N]) -> [&'a [R]; N] {
    let mut all = [&[][..]; N];
    for (all, tile) in zip(&mut all[..], tiles) {
        *all = tile.flattened();
    }
    all
}

/// Replaces each sum by `F::of_sum` of it. Takes a slice: with a known length, the compiler would unroll the loop.
#[inline(always)]
fn apply_of_sum<R: Real, F: Formula<N>, const N: usize>(sums: &mut [R]) {
    for sum in sums {
        *sum = F::of_sum(*sum);
    }
}

/// Copies up to sixteen rows into a tile; lanes without a row keep their values. Compiled once: inlined, both this
/// and [`store`] become sixteen loops, which take most of this file's compile time.
#[inline(never)]
fn load<R: Real>(rows: &[R], tile: &mut [[R; LANES]]) {
    for (lane, row) in rows.chunks_exact(tile.len()).enumerate().take(LANES) {
        for (values, x) in zip(&mut tile[..], row) {
            values[lane] = *x;
        }
    }
}

/// Copies a tile into up to sixteen rows.
#[inline(never)]
fn store<R: Real>(tile: &[[R; LANES]], rows: &mut [R]) {
    for (lane, row) in rows.chunks_exact_mut(tile.len()).enumerate().take(LANES) {
        for (out, values) in zip(&mut row[..], tile) {
            *out = values[lane];
        }
    }
}

#[inline(always)]
pub(in super::super) fn greater<R: Real>(a: R, b: R) -> R {
    if a > b { a } else { b }
}

#[inline(always)]
fn subtract_largest<R: Real>(tile: &mut [[R; LANES]], buffer: &mut [[R; LANES]]) {
    buffer.set_to(fold_lanes(tile, [R::LOWEST; LANES], greater));
    for (x, &largest) in zip(tile.flattened_mut(), buffer.flattened()) {
        *x = *x - largest;
    }
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

#[inline(always)]
pub(in super::super) fn largest<R: Real>(x: &[R]) -> R {
    let (full, rest) = x.as_chunks::<LANES>();
    let mut lanes = fold_lanes(full, [R::LOWEST; LANES], greater);
    zip(&mut lanes[..], rest).for_each(|(lane, &x)| *lane = greater(*lane, x));
    in_halves(&mut lanes, greater)
}

/// The largest elements of some rows, and the sums of `exp(x − largest)`. With `keep_all`, `out` gets all exponentials;
/// otherwise it is a buffer for a block of each row.
#[inline(always)]
fn exp_of_rows<R: Real>(x: &[R], row_len: usize, out: &mut [R], keep_all: bool) -> [[R; LANES]; 2] {
    let mut largest_of = [R::ZERO; LANES];
    for (largest_of, x) in zip(&mut largest_of[..], x.chunks_exact(row_len)) {
        *largest_of = largest(x);
    }
    let mut totals = [0.0; LANES];
    for start in (0..row_len).step_by(BLOCK) {
        let len = BLOCK.min(row_len - start);
        let offset = |i: usize| i * row_len + if keep_all { start } else { 0 };
        for (i, x) in x.chunks_exact(row_len).enumerate() {
            let largest = largest_of[i];
            map([&x[start..][..len]], &mut out[offset(i)..][..len], inlined!(move |[x]| (x - largest).exp_below()));
        }
        for (i, total) in totals.iter_mut().enumerate().take(x.len() / row_len) {
            let [sum] = sums([&out[offset(i)..][..len]], |[x]| [x]);
            *total += wide(sum);
        }
    }
    let mut sums = [R::ZERO; LANES];
    zip(&mut sums[..], totals).for_each(|(sum, total)| *sum = R::from_f64(total));
    [largest_of, sums]
}

/// `Σ f(inputs[..][i, …])` for each of some rows.
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
