//! Reductions over any dimensions.
//!
//! Every result is a fold over the reduced elements, which are split in halves recursively, down to blocks of
//! [`BLOCK`] elements (or rows). So rounding errors grow with the logarithm of the length. The splits depend on sizes
//! only.
//!
//! There are two kinds of loops: along a line in memory ([`Lines`], sums of rows), and across neighboring lines
//! (`columns.rs`, sums of columns). A reduction uses the direction with the smaller stride. `permuted.rs` computes
//! results in the order in which their elements are in memory.

#[cfg(test)]
mod tests;

use super::columns::Columns;
use super::math::half::{self, Registers, Wide, by_half};
use super::permuted::ColumnwiseResults;
use super::spaced_rows::fold_rows;
use super::walk::{Dims, Walk};
use super::{CHUNK, CpuView, MAX_RANK, Stored, StoredMut, Value, simd};
use crate::element::{Computing, Element, Num, Real};
use crate::inlined::Slice;
use crate::parallel::for_each_chunk_mut;

/// How elements become one value: `lift` each, `combine` them in any order, starting from `IDENTITY`, which is neutral.
///
/// `combine` is associative and commutative up to rounding.
pub(crate) trait Fold<T: Computing>: Copy + Sync {
    /// The type of the folded value.
    type Value: Value;
    const IDENTITY: Self::Value;
    /// Whether blocks of long rows are folded by [`row`](Self::row), too.
    const BY_ROWS: bool = false;
    /// Whether columns of halves are folded while they are widened, which is faster for sums and slower for comparisons.
    const AS_WIDENED: bool = false;

    fn lift(self, x: T) -> Self::Value;
    fn combine(self, a: Self::Value, b: Self::Value) -> Self::Value;

    /// Folds a row of at most one block.
    #[inline(always)]
    fn row(self, row: &[T]) -> Self::Value {
        fold_row(self, row)
    }
}

/// `fold! { docs Struct, T: Bound => Value, identity, |x| lifted, |a, b| combined, { other items } }`: a [`Fold`].
macro_rules! fold {
    ($(#[$doc:meta])* $visibility:vis $Fold:ident$(<const $MAX:ident>)?, $T:ident: $Bound:ident => $Value:ty, $identity:expr,
    |$x:ident| $lifted:expr, |$a:ident, $b:ident| $combined:expr $(, { $($more:tt)* })?) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        $visibility struct $Fold$(<const $MAX: bool>)?;

        impl<$T: $Bound $(, const $MAX: bool)?> $crate::cpu::Fold<$T> for $Fold$(<$MAX>)? {
            type Value = $Value;
            const IDENTITY: $Value = $identity;

            #[inline(always)]
            fn lift(self, $x: $T) -> $Value {
                $lifted
            }
            #[inline(always)]
            fn combine(self, $a: $Value, $b: $Value) -> $Value {
                $combined
            }

            $($($more)*)?
        }
    };
}
pub(crate) use fold;

fold! {
    /// The sum, in the type in which elements are summed.
    pub(crate) Sum, T: Computing => T::Total, <T::Total as Element>::ZERO, |x| x.to_total(), |a, b| a.plus(b),
    { const AS_WIDENED: bool = true; }
}

fold! {
    /// The sum of the elements that are not NaN.
    pub(crate) SumOfNumbers, R: Real => R::Total, <R::Total as Element>::ZERO,
    |x| if x.is_nan() { <R::Total as Element>::ZERO } else { x.to_total() }, |a, b| a.plus(b), {
        const AS_WIDENED: bool = true;

        /// If the sum is not NaN, no element is.
        #[inline(always)]
        fn row(self, row: &[R]) -> R::Total {
            let sum = fold_row(Sum, row);
            if sum.is_nan() { fold_row(self, row) } else { sum }
        }
    }
}

fold! {
    /// The largest element, or the smallest. NaN if any element is NaN.
    pub(crate) Extreme<const MAX>, T: Num => T, if MAX { T::LOWEST } else { T::HIGHEST }, |x| x, |a, b| a.extreme::<MAX>(b), {
        /// If the sum of a row is not NaN, no element is. Both passes vectorize.
        #[inline(always)]
        fn row(self, row: &[T]) -> T {
            if !T::DTYPE.is_float() || fold_row(Sum, row).is_nan() {
                return fold_row(self, row);
            }
            fold_row(ExtremeOfNumbers::<MAX>, row)
        }
    }
}

fold! {
    /// The largest element, or the smallest, if none is NaN.
    ExtremeOfNumbers<const MAX>, T: Num => T, <Extreme<MAX> as Fold<T>>::IDENTITY, |x| x,
    |a, b| {
        let is_further = if MAX { b > a } else { b < a };
        if is_further { b } else { a }
    }
}

/// `out[i] = finish(all x[i, …], folded)` over all elements of the dimensions whose bit is set in `axes`.
///
/// `out` has the kept dimensions in row-major order. A reduction over no elements gives `finish(IDENTITY)`.
pub(crate) fn reduce<T: Computing, F: Fold<T>, U: Computing>(
    x: CpuView<'_, T>,
    axes: u32,
    mut out: StoredMut<'_, U>,
    fold: F,
    finish: impl Fn(F::Value) -> U + Sync + Copy,
) {
    if x.shape.contains(&0) {
        return out.fill(finish(F::IDENTITY));
    }
    let (kept, reduced) = split(x.shape, x.strides, axes);
    let (data, len) = (x.data, reduced.len());
    match ColumnwiseResults::find(&kept, len) {
        Some(columnwise) => columnwise.write(out, &|first, kept, out| {
            let data = data.from(first);
            match is_across_lines(&kept, &reduced) {
                true => Columns { data, kept, reduced, fold }.reduce_chunk(0, out, finish),
                false => Lines { data, kept, reduced, fold }.reduce_chunk(0, out, finish),
            }
        }),
        None if is_across_lines(&kept, &reduced) => Columns { data, kept, reduced, fold }.reduce(out, finish),
        None => Lines { data, kept, reduced, fold }.reduce(out, finish),
    }
}

/// Whether neighboring results are closer to each other in memory than neighboring elements of one result.
fn is_across_lines(kept: &Dims, reduced: &Dims) -> bool {
    let (len, stride) = kept.inner();
    len > 1 && stride > 0 && stride < reduced.inner().1
}

/// The number of rows and their length, if `x` is contiguous and a reduction over `axes` folds its columns.
pub(crate) fn columns<T>(x: CpuView<'_, T>, axes: u32) -> Option<(usize, usize)> {
    if x.shape.contains(&0) {
        return None;
    }
    let (kept, reduced) = split(x.shape, x.strides, axes);
    let (rows, width) = (reduced.len(), kept.len());
    (width > 1 && kept.is_contiguous() && reduced.strides() == [width]).then_some((rows, width))
}

/// The sums over the dimensions in `axes`.
pub(crate) fn sum<T: Computing>(x: CpuView<'_, T>, axes: u32, out: StoredMut<'_, T::Total>) {
    reduce(x, axes, out, Sum, |sum| sum);
}

/// The sums over the dimensions in `axes`, divided by `count`, rounded once.
pub(crate) fn mean<R: Real>(x: CpuView<'_, R>, axes: u32, count: f64, out: StoredMut<'_, R>) {
    let count = R::from_f64(count);
    reduce(x, axes, out, Sum, move |sum| sum / count);
}

/// The kept dimensions, and the reduced ones from the largest stride to the smallest (their order is free).
fn split(shape: &[usize], strides: &[usize], axes: u32) -> (Dims, Dims) {
    let pairs = || std::iter::zip(shape.iter().copied(), strides.iter().copied()).enumerate();
    let is_reduced = |dim: usize| axes >> dim & 1 == 1;
    let kept = Dims::merged(pairs().filter(|&(dim, _)| !is_reduced(dim)).map(|(_, pair)| pair));
    let mut sorted = [(1, 0); MAX_RANK];
    let mut n_reduced = 0;
    for (_, pair) in pairs().filter(|&(dim, (size, _))| is_reduced(dim) && size > 1) {
        sorted[n_reduced] = pair;
        n_reduced += 1;
    }
    sorted[..n_reduced].sort_unstable_by_key(|&(_, stride)| std::cmp::Reverse(stride));
    (kept, Dims::merged(sorted[..n_reduced].iter().copied()))
}

/// Elements that are folded without splitting: each of the [`LANES`] accumulators takes 64 of them.
pub(super) const BLOCK: usize = 2048;
/// Up to this many halves are widened in a small buffer.
const SHORT_RUN: usize = 128;
/// Contiguous elements that are folded in one go, block by block: long enough that memory is read at full speed.
const RUN: usize = 16 * BLOCK;
/// Accumulators of a block: independent of each other, so that they fill vectors and hide latency. Equals the number
/// of halves that are widened together.
const LANES: usize = half::BLOCK;
/// Accumulators of a short row: combining more of them would take longer than the row.
const ROW_LANES: usize = 16;
/// Accumulators for the ends of lines, which do not fill [`LANES`].
const SHORT: usize = 8;
/// The most parts of one fold that run in parallel.
const PARTS: usize = 64;

/// Reductions in which neighbours in memory belong to the same result.
struct Lines<'a, T, F> {
    data: Stored<'a, T>,
    kept: Dims,
    reduced: Dims,
    fold: F,
}

impl<T: Computing, F: Fold<T>> Lines<'_, T, F> {
    fn reduce<U: Computing>(&self, mut out: StoredMut<'_, U>, finish: impl Fn(F::Value) -> U + Sync + Copy) {
        let len = self.reduced.len();
        if out.len() <= PARTS / 4 && len > 2 * CHUNK {
            return out.each_piece(|first, out| {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = finish(self.in_parts(self.kept.offset(first + i)));
                }
            });
        }
        let chunk_len = (CHUNK / len).max(1);
        if out.len() <= chunk_len {
            return self.reduce_chunk(0, out, finish);
        }
        out.for_each_chunk(chunk_len, &|i, chunk| self.reduce_chunk(i * chunk_len, chunk, finish));
    }

    /// Computes the results from number `start` on.
    fn reduce_chunk<U: Computing>(
        &self,
        start: usize,
        mut out: StoredMut<'_, U>,
        finish: impl Fn(F::Value) -> U + Sync + Copy,
    ) {
        let len = self.reduced.len();
        if len <= BLOCK && self.reduced.is_contiguous() && self.kept.strides() == [len] {
            let data = self.data.part(start * len, out.len() * len);
            return out.each_piece(|first, out| self.short_rows(data.part(first * len, out.len() * len), out, finish));
        }
        let mut kept = Walk::starting_at(self.kept, start);
        if let (true, &[stride]) = (len <= BLOCK, self.reduced.strides()) {
            return out.each_piece(|_, out| fold_rows(self.data, &mut kept, [len, stride], self.fold, out, finish));
        }
        out.each_piece(|_, out| {
            for out in out {
                *out = finish(self.range(kept.offset(), 0, len));
                kept.advance(1);
            }
        });
    }

    /// Computes one result per row of a contiguous matrix whose rows are at most one block long.
    fn short_rows<U>(&self, data: Stored<'_, T>, out: &mut [U], finish: impl Fn(F::Value) -> U) {
        let (fold, len) = (self.fold, self.reduced.len());
        let mut rest = out.iter_mut();
        data.each_piece::<BLOCK>(BLOCK / len * len, |data| {
            simd::vectorized(inlined!(|| {
                // A loop: the compiler may call `for_each`, which is then not compiled for the instruction set.
                for (row, out) in data.chunks_exact(len).zip(rest.by_ref()) {
                    *out = finish(fold.row(row));
                }
            }));
        });
    }

    /// Computes one long result, in parts of a fixed size that may run in parallel.
    fn in_parts(&self, offset: usize) -> F::Value {
        let len = self.reduced.len();
        let part_len = len.div_ceil(PARTS).max(CHUNK).next_multiple_of(BLOCK);
        let mut parts = [F::IDENTITY; PARTS];
        let parts = &mut parts[..len.div_ceil(part_len)];
        for_each_chunk_mut(parts, 1, |i, part| {
            let start = i * part_len;
            part[0] = self.range(offset, start, part_len.min(len - start));
        });
        in_halves(parts, |a, b| self.fold.combine(a, b))
    }

    /// Folds the reduced elements `start .. start + len`.
    fn range(&self, offset: usize, start: usize, len: usize) -> F::Value {
        let (line_len, stride) = self.reduced.inner();
        if stride == 1 && line_len > BLOCK && !self.reduced.is_contiguous() {
            let n_lines = (start + len).div_ceil(line_len) - start / line_len;
            if n_lines <= 1 {
                let line = Lines { data: self.data, kept: self.kept, reduced: Dims::of(&[len], &[1]), fold: self.fold };
                return line.range(offset + self.reduced.offset(start), 0, len);
            }
            let half = (start / line_len + n_lines / 2) * line_len - start;
            let left = self.range(offset, start, half);
            let right = self.range(offset, start + half, len - half);
            return self.fold.combine(left, right);
        }
        let uncut = if self.reduced.is_contiguous() { RUN } else { BLOCK };
        if len <= uncut {
            return self.block(offset, start, len);
        }
        let half = (len / 2).next_multiple_of(uncut);
        let left = self.range(offset, start, half);
        let right = self.range(offset, start + half, len - half);
        self.fold.combine(left, right)
    }

    fn block(&self, offset: usize, start: usize, len: usize) -> F::Value {
        let data = self.data.from(offset);
        let fold = self.fold;
        let mut lanes = [F::IDENTITY; LANES];
        if self.reduced.is_contiguous() {
            let data = data.part(start, len);
            if let (Stored::Halves(bits, half), true) = (data, len > SHORT_RUN && !F::BY_ROWS)
                && let Some(wide) = Wide::new(half)
            {
                halves_to_lanes(fold, wide, bits, &mut lanes);
                return in_halves(&mut lanes, |a, b| fold.combine(a, b));
            }
            match len <= SHORT_RUN {
                true => data.each_piece::<SHORT_RUN>(SHORT_RUN, |run| run_to_lanes(fold, run, &mut lanes)),
                false => data.each_piece::<BLOCK>(BLOCK, |run| run_to_lanes(fold, run, &mut lanes)),
            }
            return in_halves(&mut lanes, |a, b| fold.combine(a, b));
        }
        let mut walk = Walk::starting_at(self.reduced, start);
        let (line_len, stride) = self.reduced.inner();
        if stride == 1 && line_len >= SHORT {
            self.lines_to_lanes(data, walk, len, &mut lanes);
        } else {
            self.copies_to_lanes(data, &mut walk, len, &mut lanes);
        }
        in_halves(&mut lanes, |a, b| fold.combine(a, b))
    }

    /// Folds the next `len` elements, at most one block of them, line by line.
    fn lines_to_lanes(&self, data: Stored<'_, T>, mut walk: Walk, len: usize, lanes: &mut [F::Value; LANES]) {
        // Halves are widened together, into contiguous lines.
        let mut buffer;
        let (data, in_place) = match data {
            Stored::Plain(data) => (data, true),
            Stored::Halves(..) => {
                buffer = [T::ZERO; BLOCK];
                walk.clone().read_widened(data, &mut buffer[..len]);
                (&buffer[..len], false)
            }
        };
        let fold = self.fold;
        // The ends of lines have accumulators of their own: if single lanes of the others were accessed, these would
        // leave their vector registers.
        let (mut short, mut ends) = ([F::IDENTITY; SHORT], [F::IDENTITY; SHORT]);
        simd::vectorized(inlined!(|| {
            let mut total = *lanes;
            let mut left = len;
            while left > 0 {
                let run = walk.run().min(left);
                let at = if in_place { walk.offset() } else { len - left };
                let (full, rest) = data[at..][..run].as_chunks::<LANES>();
                for values in full {
                    lift_each(fold, &mut total, values);
                }
                let (pieces, rest) = rest.as_chunks::<SHORT>();
                for values in pieces {
                    lift_each(fold, &mut short, values);
                }
                lift_each(fold, &mut ends, rest);
                walk.advance(run);
                left -= run;
            }
            *lanes = total;
        }));
        combine_each(lanes, &short, |lane, short| fold.combine(lane, short));
        combine_each(lanes, &ends, |lane, end| fold.combine(lane, end));
    }

    /// Folds the next `len` elements, copied to a contiguous buffer first.
    fn copies_to_lanes(&self, data: Stored<'_, T>, walk: &mut Walk, len: usize, lanes: &mut [F::Value; LANES]) {
        let mut buffer = [T::ZERO; BLOCK / 8];
        let mut left = len;
        while left > 0 {
            let piece_len = buffer.len().min(left);
            let piece = &mut buffer[..piece_len];
            walk.read_widened(data, piece);
            run_to_lanes(self.fold, piece, lanes);
            left -= piece_len;
        }
    }
}

/// `totals[i] = combine(totals[i], values[i])`, as far as both exist. By index, since zipped iterators, which are
/// several hundred lines of code for each type and formula, would double what is compiled here.
#[inline(always)]
fn combine_each<A: Value, X: Copy>(totals: &mut [A], values: &[X], combine: impl Fn(A, X) -> A) {
    let len = totals.len().min(values.len());
    let mut i = 0;
    while i < len {
        totals[i] = combine(totals[i], values[i]);
        i += 1;
    }
}

/// Folds each element into the total with the same index.
#[inline(always)]
fn lift_each<T: Computing, F: Fold<T>>(fold: F, totals: &mut [F::Value], elements: &[T]) {
    combine_each(totals, elements, inlined!(|total, x| fold.combine(total, fold.lift(x))));
}

/// Combines values pair by pair, overwriting them on the way. There must be at least one.
#[inline(always)]
pub(super) fn in_halves<A: Value>(values: &mut [A], combine: impl Fn(A, A) -> A + Copy) -> A {
    let mut len = values.len();
    while len > 1 {
        let half = len.div_ceil(2);
        let (low, high) = values[..len].split_at_mut(half);
        combine_each(low, high, combine);
        len = half;
    }
    values[0]
}

/// Folds a row of at most one block.
#[inline(always)]
fn fold_row<T: Computing, F: Fold<T>>(fold: F, row: &[T]) -> F::Value {
    if !T::DTYPE.is_float() {
        return in_any_order(fold, row);
    }
    if row.len() < ROW_LANES {
        return short_row(fold, row);
    }
    let (full, rest) = row.as_chunks::<ROW_LANES>();
    let mut lanes = [F::IDENTITY; ROW_LANES];
    for values in full {
        lift_each(fold, &mut lanes, values);
    }
    if !rest.is_empty() {
        // In lanes of their own: if single lanes of the others were accessed, these would leave their vector
        // registers.
        let mut last = [F::IDENTITY; ROW_LANES];
        lift_each(fold, &mut last, rest);
        combine_each(&mut lanes, &last, |lane, last| fold.combine(lane, last));
    }
    in_halves(&mut lanes, |a, b| fold.combine(a, b))
}

/// Folds elements for which the order makes no difference, so that the compiler vectorizes this.
#[inline(always)]
fn in_any_order<T: Computing, F: Fold<T>>(fold: F, row: &[T]) -> F::Value {
    row.iter().fold(F::IDENTITY, |all, &x| fold.combine(all, fold.lift(x)))
}

/// Folds fewer elements than there are lanes.
#[inline(always)]
fn short_row<T: Computing, F: Fold<T>>(fold: F, row: &[T]) -> F::Value {
    let (fours, rest) = row.as_chunks::<4>();
    let mut lanes = [F::IDENTITY; 4];
    for four in fours {
        lift_each(fold, &mut lanes, four);
    }
    let [a, b, c, d] = lanes;
    let most = fold.combine(fold.combine(a, b), fold.combine(c, d));
    rest.iter().fold(most, |sum, &x| fold.combine(sum, fold.lift(x)))
}

/// Folds any number of elements into the lanes.
#[inline(never)] // it would be compiled into each of its callers
fn run_to_lanes<T: Computing, F: Fold<T>>(fold: F, x: &[T], lanes: &mut [F::Value; LANES]) {
    simd::vectorized(inlined!(move || {
        if F::BY_ROWS {
            for block in x.chunks(BLOCK) {
                lanes[0] = fold.combine(lanes[0], fold.row(block));
            }
        } else if T::DTYPE.is_float() {
            add_to_lanes(fold, x, lanes);
        } else {
            lanes[0] = fold.combine(lanes[0], in_any_order(fold, x));
        }
    }));
}

/// Folds any number of halves into the lanes, widened in registers.
fn halves_to_lanes<T: Computing, F: Fold<T>>(fold: F, wide: Wide, bits: &[u16], lanes: &mut [F::Value; LANES]) {
    by_half!(if T::HAS_HALVES && !F::BY_ROWS, wide, registers => add_halves_to_lanes(fold, registers, bits, lanes));
}

fn add_halves_to_lanes<T: Computing, F: Fold<T>>(
    fold: F,
    registers: impl Registers,
    bits: &[u16],
    lanes: &mut [F::Value; LANES],
) {
    registers.vectorized(inlined!(move || {
        let mut total = *lanes;
        for block in bits.chunks(BLOCK) {
            let (full, rest) = block.as_chunks::<LANES>();
            let mut sums = [F::IDENTITY; LANES];
            for bits in full {
                let values: [T; LANES] = T::widened(registers, bits);
                lift_each(fold, &mut sums, &values);
            }
            combine_each(&mut total, &sums, |total, sum| fold.combine(total, sum));
            let mut last = [0; LANES];
            last[..rest.len()].copy_from(rest);
            let values: [T; LANES] = T::widened(registers, &last);
            lift_each(fold, &mut total, &values[..rest.len()]);
        }
        *lanes = total;
    }));
}

/// Folds block by block, and the blocks' accumulators into `lanes`.
#[inline(always)]
fn add_to_lanes<T: Computing, F: Fold<T>>(fold: F, x: &[T], lanes: &mut [F::Value; LANES]) {
    // Accumulators of their own, separate from the rest of a block: both let the compiler keep the accumulators in
    // whole vectors.
    let mut total = *lanes;
    for block in x.chunks(BLOCK) {
        let (full, rest) = block.as_chunks::<LANES>();
        let mut sums = [F::IDENTITY; LANES];
        for values in full {
            lift_each(fold, &mut sums, values);
        }
        combine_each(&mut total, &sums, |total, sum| fold.combine(total, sum));
        lift_each(fold, &mut total, rest);
    }
    *lanes = total;
}
