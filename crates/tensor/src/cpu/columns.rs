//! Reductions across lines, such as sums of columns: neighbors in memory belong to neighboring results.
//!
//! A row of accumulators takes one row of the input after another. Long columns are split in halves, as in
//! `reduce.rs`.

use std::ops::Range;

use super::kernel::shorten;
use super::math::half::{self, Registers, Wide, by_half};
use super::reduce::{Fold, in_halves};
use super::walk::{Dims, Walk, read_line_widened};
use super::{CHUNK, Stored, StoredMut, simd};
use crate::element::Computing;
use crate::inlined::{Slice, zip};
use crate::parallel::for_each_chunk_mut;

/// The most columns that are reduced together.
const WIDTH: usize = 2048;
/// The same limit where there are few columns: fewer accumulators are cleared and combined.
const NARROW: usize = 128;
/// The most rows that are folded without splitting.
const ROWS: usize = 64;
/// The most parts of tall columns that run in parallel.
const PARTS: usize = 16;

/// A reduction in which the innermost kept dimension has the smallest stride.
pub(super) struct Columns<'a, T, F> {
    pub(super) data: Stored<'a, T>,
    pub(super) kept: Dims,
    pub(super) reduced: Dims,
    pub(super) fold: F,
}

/// Some neighboring columns: the offset of the first, and their number.
#[derive(Clone, Copy)]
struct Tile {
    offset: usize,
    width: usize,
}

impl<T: Computing, F: Fold<T>> Columns<'_, T, F> {
    pub(super) fn reduce<U: Computing>(&self, out: StoredMut<'_, U>, finish: impl Fn(F::Value) -> U + Sync + Copy) {
        let (n_rows, n_columns) = (self.reduced.len(), out.len());
        if n_rows.saturating_mul(n_columns) <= CHUNK {
            return self.reduce_chunk(0, out, finish);
        }
        if n_columns <= WIDTH && self.kept.shape().len() == 1 {
            return if n_columns <= NARROW {
                self.in_parts::<NARROW, U>(out, finish)
            } else {
                self.in_parts::<WIDTH, U>(out, finish)
            };
        }
        // A power of two, so that two or four threads get equally many.
        let n_chunks = n_columns.div_ceil(WIDTH).next_power_of_two();
        let even = n_columns.div_ceil(n_chunks).next_multiple_of(64);
        let chunk_len = (CHUNK / n_rows).max(even);
        out.for_each_chunk(chunk_len, &|i, chunk| self.reduce_chunk(i * chunk_len, chunk, finish));
    }

    /// Computes the results from number `start` on.
    #[inline(never)] // it would be compiled into each of its callers
    pub(super) fn reduce_chunk<U: Computing>(
        &self,
        start: usize,
        mut out: StoredMut<'_, U>,
        finish: impl Fn(F::Value) -> U + Sync + Copy,
    ) {
        let mut kept = Walk::starting_at(self.kept, start);
        let mut at = 0;
        while at < out.len() {
            let tile = Tile { offset: kept.offset(), width: kept.run().min(out.len() - at).min(WIDTH) };
            let some = out.part(at, tile.width);
            if tile.width <= NARROW {
                self.columns::<NARROW, U>(tile, some, finish);
            } else {
                self.columns::<WIDTH, U>(tile, some, finish);
            }
            kept.advance(tile.width);
            at += tile.width;
        }
    }

    fn columns<const W: usize, U: Computing>(
        &self,
        tile: Tile,
        mut out: StoredMut<'_, U>,
        finish: impl Fn(F::Value) -> U,
    ) {
        let mut sums = [F::IDENTITY; W];
        self.rows::<W>(tile, 0, self.reduced.len(), &mut sums);
        out.each_piece(|start, out| {
            zip(&mut out[..], &sums[start..]).for_each(|(out, &sum)| *out = finish(sum));
        });
    }

    /// Reduces a few tall columns in parts of a fixed number of rows, which may run in parallel.
    fn in_parts<const W: usize, U: Computing>(&self, mut out: StoredMut<'_, U>, finish: impl Fn(F::Value) -> U) {
        let n_rows = self.reduced.len();
        let part_rows = n_rows.div_ceil(PARTS).max(CHUNK / out.len()).next_multiple_of(ROWS);
        let mut parts = [[F::IDENTITY; W]; PARTS];
        let parts = &mut parts[..n_rows.div_ceil(part_rows)];
        let tile = Tile { offset: 0, width: out.len() };
        for_each_chunk_mut(parts, 1, |i, part| {
            let start = i * part_rows;
            self.rows::<W>(tile, start, part_rows.min(n_rows - start), &mut part[0]);
        });
        out.each_piece(|start, out| {
            for (column, out) in zip(start.., out) {
                *out = finish(self.whole_column(parts, column));
            }
        });
    }

    #[inline(never)] // vectorized over columns, it would take seconds to compile
    fn whole_column<const W: usize>(&self, parts: &[[F::Value; W]], column: usize) -> F::Value {
        let mut sums = [F::IDENTITY; PARTS];
        zip(&mut sums[..], parts).for_each(|(sum, part)| *sum = part[column]);
        in_halves(&mut sums, |a, b| self.fold.combine(a, b))
    }

    /// Folds `n` rows, from number `start` on, into `sums`.
    fn rows<const W: usize>(&self, tile: Tile, start: usize, n: usize, sums: &mut [F::Value; W]) {
        let fold = self.fold;
        if n > ROWS {
            let half = (n / 2).next_multiple_of(ROWS);
            let mut others = [F::IDENTITY; W];
            self.rows(tile, start, half, sums);
            self.rows(tile, start + half, n - half, &mut others);
            let pairs = zip(&mut sums[..tile.width], &others);
            return pairs.for_each(|(sum, &other)| *sum = fold.combine(*sum, other));
        }
        self.few_rows(tile, start, n, &mut sums[..tile.width]);
    }

    /// Folds at most [`ROWS`] rows into `sums`, without splitting.
    fn few_rows(&self, tile: Tile, start: usize, n: usize, sums: &mut [F::Value]) {
        let fold = self.fold;
        let mut rows = Walk::starting_at(self.reduced, start);
        let (_, stride) = self.kept.inner();
        let is_folded_in_place = match self.data {
            Stored::Plain(_) => stride == 1,
            Stored::Halves(_, half) => stride == 1 && F::AS_WIDENED && tile.width >= BLOCK && Wide::new(half).is_some(),
        };
        if is_folded_in_place {
            let mut left = n;
            while left > 0 {
                let run = rows.run().min(left);
                add_run(fold, self.data.from(tile.offset + rows.offset()), self.reduced.inner().1, run, sums);
                rows.advance(run);
                left -= run;
            }
            return;
        }
        // Widens as many rows as fit in `buffer`, one after another.
        let mut buffer = [T::ZERO; WIDTH];
        let buffer_rows = (buffer.len() / tile.width).min(ROWS);
        let mut left = n;
        while left > 0 {
            let run = rows.run().min(left).min(buffer_rows);
            let from = self.data.from(tile.offset + rows.offset());
            if stride == 1 && self.reduced.inner().1 == tile.width {
                read_line_widened(from, 1, &mut buffer[..run * tile.width]);
            } else {
                for (i, row) in buffer.chunks_exact_mut(tile.width).take(run).enumerate() {
                    read_line_widened(from.from(i * self.reduced.inner().1), stride, row);
                }
            }
            add_run(fold, buffer[..].into(), tile.width, run, sums);
            rows.advance(run);
            left -= run;
        }
    }
}

/// Columns whose accumulators stay in registers. Equals the number of halves that are widened together.
const BLOCK: usize = half::BLOCK;

/// Folds `n` rows that begin `distance` elements apart. The last block of a row may extend beyond the last column;
/// the sums there are discarded.
fn add_run<T: Computing, F: Fold<T>>(fold: F, data: Stored<'_, T>, distance: usize, n: usize, sums: &mut [F::Value]) {
    let (bits, half) = match data {
        Stored::Plain(data) => return add_numbers(fold, data, distance, n, sums),
        Stored::Halves(bits, half) => (bits, half),
    };
    let Some(wide) = Wide::new(half) else { unreachable!("they are widened before") };
    by_half!(if T::HAS_HALVES && F::AS_WIDENED, wide, registers => add_halves(fold, registers, bits, distance, n, sums));
}

#[inline(never)] // it would be compiled into each of its callers
fn add_halves<T: Computing, F: Fold<T>>(
    fold: F,
    registers: impl Registers,
    bits: &[u16],
    distance: usize,
    n: usize,
    sums: &mut [F::Value],
) {
    registers.vectorized(inlined!(move || {
        // Rows that are far apart are read a few at a time.
        let group_rows = if distance <= WIDTH { n } else { 4 };
        for first in (0..n).step_by(group_rows) {
            let rows = first..n.min(first + group_rows);
            let (blocks, rest) = sums.as_chunks_mut::<BLOCK>();
            for (block, sums) in blocks.iter_mut().enumerate() {
                add_block_of_halves(fold, registers, &bits[block * BLOCK..], distance, rows.clone(), sums);
            }
            if !rest.is_empty() {
                let mut sums = [F::IDENTITY; BLOCK];
                sums[..rest.len()].copy_from(rest);
                add_block_of_halves(fold, registers, &bits[blocks.len() * BLOCK..], distance, rows, &mut sums);
                rest.copy_from(&sums[..rest.len()]);
            }
        }
    }));
}

/// `add_halves` for one block of columns.
#[inline(always)]
fn add_block_of_halves<T: Computing, F: Fold<T>>(
    fold: F,
    registers: impl Registers,
    bits: &[u16],
    distance: usize,
    rows: Range<usize>,
    sums: &mut [F::Value; BLOCK],
) {
    let (mut all, mut last) = (*sums, [0; BLOCK]);
    for i in rows {
        let row = &bits[i * distance..];
        let row = row.first_chunk().unwrap_or_else(inlined!(|| {
            last[..row.len()].copy_from(row);
            &last
        }));
        let values: [T; BLOCK] = T::widened(registers, row);
        for (sum, x) in zip(&mut all[..], values) {
            *sum = fold.combine(*sum, fold.lift(x));
        }
    }
    *sums = all;
}

#[inline(never)] // it would be compiled into each of its callers
fn add_numbers<T: Computing, F: Fold<T>>(fold: F, data: &[T], distance: usize, n: usize, sums: &mut [F::Value]) {
    simd::vectorized(inlined!(move || {
        // Rows that are far apart are read as a whole, not by blocks of columns.
        let (blocks, others) = sums.split_at_mut(if distance <= WIDTH { sums.len() / BLOCK * BLOCK } else { 0 });
        let start = blocks.len();
        for (block, sums) in blocks.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            add_block(fold, &data[block * BLOCK..], distance, n, sums);
        }
        if others.is_empty() {
            return;
        }
        let mut first = 0;
        if start > 0 {
            // The rows in which a whole block can be read without passing the end of the data.
            first = n.min((data.len() - start).saturating_sub(BLOCK) / distance.max(1));
            let mut sums = [F::IDENTITY; BLOCK];
            sums[..others.len()].copy_from(others);
            add_block(fold, &data[start..], distance, first, &mut sums);
            others.copy_from(&sums[..others.len()]);
        }
        let row = |i: usize| &data[start + i * distance..];
        while n - first >= 4 {
            add_rows(fold, [row(first), row(first + 1), row(first + 2), row(first + 3)], others);
            first += 4;
        }
        if n - first >= 2 {
            add_rows(fold, [row(first), row(first + 1)], others);
            first += 2;
        }
        if n > first {
            add_rows(fold, [row(first)], others);
        }
    }));
}

/// `add_numbers` for one block of columns, row after row.
#[inline(always)]
fn add_block<T: Computing, F: Fold<T>>(fold: F, data: &[T], distance: usize, n: usize, sums: &mut [F::Value; BLOCK]) {
    let mut all = *sums;
    for i in 0..n {
        for (sum, &x) in zip(&mut all[..], &data[i * distance..][..BLOCK]) {
            *sum = fold.combine(*sum, fold.lift(x));
        }
    }
    *sums = all;
}

/// `sums[i] = combine(sums[i], lift(row[i]))` for every sum, row after row.
#[inline(always)]
fn add_rows<T: Computing, F: Fold<T>, const N: usize>(fold: F, mut rows: [&[T]; N], sums: &mut [F::Value]) {
    shorten(&mut rows, sums.len());
    for (i, sum) in sums.iter_mut().enumerate() {
        let mut all = *sum;
        for row in rows {
            all = fold.combine(all, fold.lift(row[i]));
        }
        *sum = all;
    }
}
