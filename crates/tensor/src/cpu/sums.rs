//! Sums of functions of elements, for kernels that need several at once: along rows, and across them.
//!
//! A few rows or a block of a row are added up in the computing type; the sums of blocks are
//! added in `f64`, in the order of the blocks.

use pagelock_memory::Result;

use super::elements::{Pieces, nth, rows_of, widened_block};
use super::kernel::in_blocks_of_halves;
use super::math::half::{self, Block, Registers, by_half};
use super::{CHUNK, Stored, simd};
use crate::element::Real;
use crate::inlined::{Array, Slice, zip};
use crate::parallel::{for_each_chunk_mut, try_for_each_chunk_mut};
use crate::scratch;

/// Accumulators of each sum: independent of each other, so that they fill vectors.
const LANES: usize = 16;
/// Accumulators of [`long_sums`], so that additions do not wait for each other.
const MANY_LANES: usize = 32;
/// The shortest inputs for which [`long_sums`] pays off.
pub(super) const LONG: usize = 256;
/// Elements that are added up in the computing type, before their sums are added in `f64`.
const BLOCK: usize = 1024;

/// `Σ f(inputs[..][i])`, each component by itself, for inputs of one length.
#[inline(always)]
pub(super) fn sums<R: Real, const N: usize, const S: usize>(
    inputs: [&[R]; N],
    f: impl Fn([R; N]) -> [R; S] + Copy,
) -> [R; S] {
    in_blocks::<LANES, R, N, S>(inputs, f)
}

/// [`sums`] with more accumulators, for formulas that do little more than add elements.
#[inline(always)]
pub(super) fn long_sums<R: Real, const N: usize, const S: usize>(
    inputs: [&[R]; N],
    f: impl Fn([R; N]) -> [R; S] + Copy,
) -> [R; S] {
    in_blocks::<MANY_LANES, R, N, S>(inputs, f)
}

#[inline(always)]
fn in_blocks<const L: usize, R: Real, const N: usize, const S: usize>(
    inputs: [&[R]; N],
    f: impl Fn([R; N]) -> [R; S] + Copy,
) -> [R; S] {
    let n = inputs[0].len();
    if n <= BLOCK {
        return across(&in_lanes::<L, R, N, S>(inputs, f));
    }
    let mut totals = [0.0; S];
    for start in (0..n).step_by(BLOCK) {
        let block = rows_of(inputs, start, BLOCK.min(n - start));
        add_to(&mut totals, &in_lanes::<L, R, N, S>(block, f));
    }
    let mut sums = [R::ZERO; S];
    zip(&mut sums[..], totals).for_each(|(sum, total)| *sum = R::from_f64(total));
    sums
}

/// [`sums`] of halves, with the same bits, to be inlined into code that is compiled for these registers.
#[inline(always)]
pub(super) fn sums_in_registers<R: Real, const N: usize, const S: usize>(
    registers: impl Registers,
    inputs: [&[Block]; N],
    f: impl Fn([R; N]) -> [R; S] + Copy,
) -> [R; S] {
    let mut sums = [R::ZERO; S];
    let totals = totals_in_registers(registers, inputs, f);
    zip(&mut sums[..], totals).for_each(|(sum, total)| *sum = R::from_f64(total));
    sums
}

/// The same sums before they are rounded to `R`.
#[inline(always)]
fn totals_in_registers<R: Real, const N: usize, const S: usize>(
    registers: impl Registers,
    inputs: [&[Block]; N],
    f: impl Fn([R; N]) -> [R; S] + Copy,
) -> [f64; S] {
    const TOGETHER: usize = BLOCK / half::BLOCK;
    let (n, mut totals) = (inputs[0].len(), [0.0; S]);
    for start in (0..n).step_by(TOGETHER) {
        let mut lanes = [[R::ZERO; LANES]; S];
        for i in start..n.min(start + TOGETHER) {
            let mut x = [[R::ZERO; half::BLOCK]; N];
            for (x, input) in zip(&mut x[..], inputs) {
                *x = R::widened(registers, &input[i]);
            }
            for first in (0..half::BLOCK).step_by(LANES) {
                for lane in 0..LANES {
                    for (lanes, value) in zip(&mut lanes[..], f(lane_of(&x, first + lane))) {
                        lanes[lane] = lanes[lane] + value;
                    }
                }
            }
        }
        add_to(&mut totals, &through_memory(lanes));
    }
    totals
}

/// Adds the sums of a block to the totals.
#[inline(always)]
fn add_to<R: Real, const L: usize, const S: usize>(totals: &mut [f64; S], lanes: &[[R; L]; S]) {
    zip(&mut totals[..], across(lanes)).for_each(|(total, found)| *total += wide(found));
}

/// Adds up a block, lane by lane.
#[inline(always)]
fn in_lanes<const L: usize, R: Real, const N: usize, const S: usize>(
    inputs: [&[R]; N],
    f: impl Fn([R; N]) -> [R; S] + Copy,
) -> [[R; L]; S] {
    let mut lanes = [[R::ZERO; L]; S];
    let whole = inputs[0].len() / L * L;
    for start in (0..whole).step_by(L) {
        let x: [[R; L]; N] = lanes_of(&inputs, start);
        for lane in 0..L {
            for (lanes, value) in zip(&mut lanes[..], f(lane_of(&x, lane))) {
                lanes[lane] = lanes[lane] + value;
            }
        }
    }
    let mut lanes = through_memory(lanes);
    if whole < inputs[0].len() {
        add_rest(inputs, whole, &mut lanes, f);
    }
    lanes
}

/// Returns the accumulators unchanged. Otherwise the compiler arranges them for the code that follows, one by one or
/// spilled.
#[inline(always)]
fn through_memory<R: Real, const L: usize, const S: usize>(lanes: [[R; L]; S]) -> [[R; L]; S] {
    std::hint::black_box(lanes)
}

/// Adds the elements from number `start` on, which are fewer than there are lanes. Never inlined: otherwise the
/// accumulators of whole lanes would leave their vector registers.
#[inline(never)]
fn add_rest<const L: usize, R: Real, const N: usize, const S: usize>(
    inputs: [&[R]; N],
    start: usize,
    lanes: &mut [[R; L]; S],
    f: impl Fn([R; N]) -> [R; S],
) {
    for i in start..inputs[0].len() {
        for (lanes, value) in zip(&mut lanes[..], f(nth(&inputs, i))) {
            lanes[i - start] = lanes[i - start] + value;
        }
    }
}

/// The sums over all lanes, 16 or 32, added pair by pair.
#[inline(always)]
fn across<R: Real, const L: usize, const S: usize>(lanes: &[[R; L]; S]) -> [R; S] {
    let mut sums = [R::ZERO; S];
    for (sum, lanes) in zip(&mut sums[..], lanes) {
        let sixteen: [R; 16] = if L == 16 { first_of(lanes) } else { pairs_of(lanes) };
        let eight: [R; 8] = pairs_of(&sixteen);
        let four: [R; 4] = pairs_of(&eight);
        // Otherwise the compiler computes several sums in parallel, and shuffles longer than it adds.
        let [a, b] = pairs_of(&if S > 1 { std::hint::black_box(four) } else { four });
        *sum = a + b;
    }
    sums
}

/// Adds the second half to the first, element by element.
#[inline(always)]
fn pairs_of<R: Real, const L: usize, const H: usize>(lanes: &[R; L]) -> [R; H] {
    let mut pairs = [R::ZERO; H];
    for i in 0..H {
        pairs[i] = lanes[i] + lanes[i + H];
    }
    pairs
}

#[inline(always)]
fn first_of<R: Real, const L: usize, const H: usize>(lanes: &[R; L]) -> [R; H] {
    let mut first = [R::ZERO; H];
    first.copy_from(&lanes[..H]);
    first
}

/// `L` elements of each input, from number `start` on.
#[inline(always)]
fn lanes_of<R: Real, const L: usize, const N: usize>(inputs: &[&[R]; N], start: usize) -> [[R; L]; N] {
    let mut lanes = [[R::ZERO; L]; N];
    for (lanes, input) in zip(&mut lanes[..], inputs) {
        lanes.copy_from(&input[start..start + L]);
    }
    lanes
}

/// The elements of one lane.
#[inline(always)]
pub(super) fn lane_of<R: Real, const N: usize, const LEN: usize>(lanes: &[[R; LEN]; N], lane: usize) -> [R; N] {
    let mut one = [R::ZERO; N];
    for (one, lanes) in zip(&mut one[..], lanes) {
        *one = lanes[lane];
    }
    one
}

/// `Σ f(inputs[..][i])`, for inputs of one length, on several threads.
pub(crate) fn total<R: Real, const N: usize>(
    inputs: [Stored<'_, R>; N],
    f: impl Fn([R; N]) -> R + Sync + Copy,
) -> Result<f64> {
    let n = inputs[0].len();
    scratch::with(n.div_ceil(CHUNK), |parts: &mut [f64]| {
        for_each_chunk_mut(parts, 1, |i, part| {
            let inputs = inputs.mapped(|input| input.part(i * CHUNK, CHUNK.min(n - i * CHUNK)));
            [part[0]] = sums_of_pieces(inputs, &mut Pieces::new(), |x| [f(x)]);
        });
        Ok(parts.iter().fold(0.0, |all, part| all + part))
    })
}

/// `Σ f(inputs[..][i])`, each component by itself, for inputs of one length. Halves are widened in registers, or in
/// pieces.
pub(super) fn sums_of_pieces<R: Real, const N: usize, const S: usize>(
    inputs: [Stored<'_, R>; N],
    pieces: &mut Pieces<R, N>,
    f: impl Fn([R; N]) -> [R; S] + Copy,
) -> [f64; S] {
    let mut totals = [0.0; S];
    let all = &mut totals;
    if const { R::HAS_HALVES }
        && let Some((wide, x)) = in_blocks_of_halves(inputs)
    {
        by_half!(wide, registers => registers.vectorized(
            inlined!(move || *all = totals_in_registers(registers, x, f)),
        ));
        return totals;
    }
    pieces.read(inputs, &mut |inputs| {
        let all = &mut *all;
        simd::vectorized(inlined!(move || {
            let found = sums(inputs, f);
            zip(&mut all[..], found).for_each(|(total, found)| *total += wide(found));
        }));
    });
    totals
}

/// The number as an `f64`, in which the sums of blocks are added.
#[inline(always)]
pub(super) fn wide<R: Real>(x: R) -> f64 {
    x.cast()
}

/// The most columns that a task adds up.
const TILE: usize = 1024;
/// The approximate maximum number of tasks.
const TASKS: usize = 32;
/// Rows that are added up in the computing type, before their sums are added in `f64`.
const ROWS: usize = 32;

/// `totals[s, j] = Σ f(i)(numbers[..][j], inputs[..][i, j])[s]` over all rows `i`, for inputs with rows of `width` elements.
pub(super) fn column_sums<R: Real, const K: usize, const N: usize, const S: usize, F>(
    inputs: [Stored<'_, R>; N],
    (numbers, width): ([&[R]; K], usize),
    totals: &mut [f64],
    f: impl Fn(usize) -> F + Sync + Copy,
) -> Result<()>
where
    F: Fn([R; K], [R; N]) -> [R; S],
{
    totals.set_to(0.0);
    if totals.is_empty() {
        return Ok(());
    }
    let (rows, n_tiles, tile) = (inputs[0].len() / width, width.div_ceil(TILE), width.min(TILE));
    let part_rows = rows.div_ceil((TASKS / n_tiles).max(1)).max(CHUNK / tile).max(1);
    let n_parts = rows.div_ceil(part_rows);
    scratch::with(n_parts * n_tiles * S * tile, |parts: &mut [f64]| {
        try_for_each_chunk_mut(parts, S * tile, |i, part| {
            let (first, start) = (i / n_tiles * part_rows, i % n_tiles * tile);
            let rows = first..rows.min(first + part_rows);
            let tile = Tile { rows, start, len: tile.min(width - start), width };
            tile.add_up(inputs, numbers.mapped(|all| &all[start..]), part, f)
        })?;
        for (i, part) in parts.chunks_exact(S * tile).enumerate() {
            let (start, len) = (i % n_tiles * tile, tile.min(width - i % n_tiles * tile));
            for (totals, part) in zip(totals.chunks_exact_mut(width), part.chunks_exact(len)) {
                zip(&mut totals[start..], part).for_each(|(total, part)| *total += part);
            }
        }
        Ok(())
    })
}

/// Some columns of some rows.
struct Tile {
    rows: std::ops::Range<usize>,
    start: usize,
    len: usize,
    /// Elements of a whole row.
    width: usize,
}

impl Tile {
    /// `totals[s, j]` becomes the sum of these rows.
    fn add_up<R: Real, const K: usize, const N: usize, const S: usize, F>(
        self,
        inputs: [Stored<'_, R>; N],
        numbers: [&[R]; K],
        totals: &mut [f64],
        f: impl Fn(usize) -> F + Copy,
    ) -> Result<()>
    where
        F: Fn([R; K], [R; N]) -> [R; S],
    {
        let Tile { rows, start, len, width } = self;
        let totals = &mut totals[..S * len];
        totals.set_to(0.0);
        // A divisor of `ROWS`. The prefetcher follows few rows at a time, and fewer if they are far apart; halves are widened
        // in one go.
        let block_rows = match (len, inputs[0]) {
            (..=64, Stored::Halves(..)) => ROWS,
            (..256, _) => 8,
            _ => 2,
        };
        scratch::with(S * len + N * block_rows * len, |buffer: &mut [R]| {
            let (sums, buffer) = buffer.split_at_mut(S * len);
            for row in rows.clone().step_by(block_rows) {
                let (done, n) = (row - rows.start, block_rows.min(rows.end - row));
                if done % ROWS == 0 {
                    sums.set_to(R::ZERO);
                }
                let (inputs, stride) = widened_block(inputs, row * width + start, (n, len, width), buffer);
                let own = &mut *sums;
                simd::vectorized(inlined!(move || add_rows(inputs, (row, n, stride), numbers, own, f)));
                if (done + n) % ROWS == 0 || row + n == rows.end {
                    zip(&mut totals[..], &*sums).for_each(|(total, sum)| *total += wide(*sum));
                }
            }
            Ok(())
        })
    }
}

/// Adds `n` rows, which begin `stride` elements apart, to `sums[s, j]`. The first of them is number `row`.
#[inline(always)]
pub(super) fn add_rows<R: Real, const K: usize, const N: usize, const S: usize, F>(
    inputs: [&[R]; N],
    (row, n, stride): (usize, usize, usize),
    numbers: [&[R]; K],
    sums: &mut [R],
    f: impl Fn(usize) -> F,
) where
    F: Fn([R; K], [R; N]) -> [R; S],
{
    let len = sums.len() / S;
    let whole = len - len % LANES;
    for start in (0..whole).step_by(LANES) {
        let numbers: [[R; LANES]; K] = lanes_of(&numbers, start);
        let mut own = [[R::ZERO; LANES]; S];
        for (s, own) in own.iter_mut().enumerate() {
            own.copy_from(&sums[s * len + start..][..LANES]);
        }
        for i in 0..n {
            let (f, x): (F, [[R; LANES]; N]) = (f(row + i), lanes_of(&inputs, i * stride + start));
            for lane in 0..LANES {
                let found = f(lane_of(&numbers, lane), lane_of(&x, lane));
                for (own, found) in zip(&mut own[..], found) {
                    own[lane] = own[lane] + found;
                }
            }
        }
        for (s, own) in own.iter().enumerate() {
            sums[s * len + start..][..LANES].copy_from(own);
        }
    }
    for j in whole..len {
        for i in 0..n {
            let found = f(row + i)(nth(&numbers, j), nth(&inputs, i * stride + j));
            for (s, found) in found.into_iter().enumerate() {
                sums[s * len + j] = sums[s * len + j] + found;
            }
        }
    }
}
