//! The index of the best element along a dimension: the element of the largest [`rank`](Key::rank), the first of
//! several.

use std::ops::{AddAssign, Not};

use super::permuted::ColumnwiseResults;
use super::sort::Key;
use super::walk::{Dims, Walk, read_line_widened};
use super::{CHUNK, CpuView, PIECE, Stored, simd};
use crate::inlined::{Array, Slice, zip};
use crate::parallel::for_each_chunk_mut;

/// Columns that are searched together.
const WIDTH: usize = 128;
/// The fewest columns that a thread searches, so that it uses whole cache lines.
const LEAST: usize = 32;
/// A line is searched in pieces of this many elements, which fit in the L1 cache.
const SEARCHED: usize = 1024;

/// `out[i]` = the index along `dim` of the largest element (`MAX`) or of the smallest; `out` has the other dimensions
/// in row-major order.
///
/// The first of equal elements wins, and NaN wins over all numbers, as in PyTorch. The dimension may be empty only if
/// `out` is.
pub(crate) fn arg_reduce<T: Key, const MAX: bool>(x: CpuView<'_, T>, dim: usize, out: &mut [i64]) {
    if out.is_empty() {
        return;
    }
    let pairs = std::iter::zip(x.shape.iter().copied(), x.strides.iter().copied());
    let kept = Dims::merged(pairs.enumerate().filter(|&(i, _)| i != dim).map(|(_, pair)| pair));
    let search =
        |first: usize, kept: Dims| Search { data: x.data.from(first), kept, len: x.shape[dim], stride: x.strides[dim] };
    if let Some(columnwise) = ColumnwiseResults::find(&kept, x.shape[dim]) {
        return columnwise.write(out.into(), &|first, kept, out| search(first, kept).chunk::<MAX>(0, out.plain()));
    }
    let search = search(0, kept);
    let chunk_len = (CHUNK / x.shape[dim]).max(if search.in_columns() { LEAST } else { 1 });
    if out.len() <= chunk_len {
        return search.chunk::<MAX>(0, out);
    }
    for_each_chunk_mut(out, chunk_len, |i, chunk| search.chunk::<MAX>(i * chunk_len, chunk));
}

/// A search along one dimension for every index of the others.
struct Search<'a, T> {
    data: Stored<'a, T>,
    kept: Dims,
    len: usize,
    stride: usize,
}

impl<T: Key> Search<'_, T> {
    /// Whether neighbors in memory belong to neighboring results.
    fn in_columns(&self) -> bool {
        self.kept.inner().1 == 1 && self.stride > 1
    }

    /// Computes the results from number `start` on.
    fn chunk<const MAX: bool>(&self, start: usize, out: &mut [i64]) {
        let in_columns = self.in_columns();
        let mut kept = Walk::starting_at(self.kept, start);
        if self.stride == 1 {
            match self.data {
                Stored::Plain(data) => return contiguous_lines::<T, MAX>(data, self.len, kept, out),
                Stored::Halves(..) if self.len <= PIECE && self.kept.is_evenly_spaced(self.len) => {
                    return self.widened_lines::<MAX>(start, out);
                }
                Stored::Halves(..) => {}
            }
        }
        let mut rest = out;
        while !rest.is_empty() {
            let data = self.data.from(kept.offset());
            let n = if in_columns { kept.run().min(rest.len()).min(WIDTH) } else { 1 };
            let (some, others) = rest.split_at_mut(n);
            if in_columns {
                self.columns::<MAX>(data, some);
            } else {
                some[0] = self.line::<MAX>(data) as i64;
            }
            kept.advance(n);
            rest = others;
        }
    }

    /// Computes the results of contiguous lines of halves from number `start` on. Widens as many lines at a time as
    /// fit in `buffer`.
    fn widened_lines<const MAX: bool>(&self, start: usize, out: &mut [i64]) {
        let (mut buffer, lines) = ([T::ZERO; PIECE], PIECE / self.len);
        for (i, out) in out.chunks_mut(lines).enumerate() {
            let first = (start + i * lines) * self.len;
            let x = self.data.part(first, out.len() * self.len).widened(&mut buffer);
            let rows = Dims::of(&[out.len()], &[self.len]);
            contiguous_lines::<T, MAX>(x, self.len, Walk::starting_at(rows, 0), out);
        }
    }

    /// Computes one result for each of some neighboring columns.
    fn columns<const MAX: bool>(&self, data: Stored<'_, T>, out: &mut [i64]) {
        let (mut best, mut buffer) = ([T::ZERO.rank::<MAX>(); WIDTH], [T::ZERO; WIDTH]);
        let best = &mut best[..out.len()];
        let first = data.part(0, out.len()).widened(&mut buffer);
        zip(&mut best[..], first).for_each(|(best, x)| *best = x.rank::<MAX>());
        out.set_to(0);
        // Two rows at once: for a single row, the compiler emits masked stores, which take many cycles with AVX2.
        let pairs = (1..self.len).step_by(2).map(|i| [i, (i + 1).min(self.len - 1)]);
        if let Stored::Plain(data) = data {
            return simd::vectorized(inlined!(|| {
                pairs.for_each(|pair| next_rows::<T, MAX>(pair, pair.mapped(|i| &data[i * self.stride..]), best, out))
            }));
        }
        let mut other_buffer = [T::ZERO; WIDTH];
        for pair in pairs {
            let [x, y] = pair.mapped(|i| data.part(i * self.stride, out.len()));
            let rows = [x.widened(&mut buffer), y.widened(&mut other_buffer)];
            simd::vectorized(inlined!(|| next_rows::<T, MAX>(pair, rows, best, out)));
        }
    }

    /// The result for one line. A line of `Stored::Plain` elements is not contiguous here.
    fn line<const MAX: bool>(&self, data: Stored<'_, T>) -> usize {
        match data {
            Stored::Plain(_) if self.stride == 0 => 0,
            Stored::Plain(data) => first_best::<T, MAX>(data.iter().step_by(self.stride).take(self.len)).0,
            Stored::Halves(..) if self.len <= 64 => self.pieces::<64, MAX>(data),
            Stored::Halves(..) => self.pieces::<1024, MAX>(data),
        }
    }

    /// The result for one line of halves, which are widened `N` at a time.
    fn pieces<const N: usize, const MAX: bool>(&self, data: Stored<'_, T>) -> usize {
        let (mut best, mut buffer) = (None, [T::ZERO; N]);
        for start in (0..self.len).step_by(N) {
            let piece = &mut buffer[..N.min(self.len - start)];
            read_line_widened(data.from(start * self.stride), self.stride, piece);
            let (i, rank) = best_of::<T, MAX>(piece);
            if best.is_none_or(|(_, best)| rank > best) {
                best = Some((start + i, rank));
            }
        }
        best.map_or(0, |(i, _)| i)
    }
}

/// Compares rows `i` and `j` with the best elements so far.
#[inline(always)]
fn next_rows<T: Key, const MAX: bool>([i, j]: [usize; 2], [x, y]: [&[T]; 2], best: &mut [T::Rank], out: &mut [i64]) {
    for ((out, best), (&x, &y)) in zip(zip(&mut out[..], best), zip(x, y)) {
        let [x, y] = [x.rank::<MAX>(), y.rank::<MAX>()];
        let first = if x > *best { (x, i as i64) } else { (*best, *out) };
        (*best, *out) = if y > first.0 { (y, j as i64) } else { first };
    }
}

/// The index of the best of contiguous elements, and its rank.
fn best_of<T: Key, const MAX: bool>(x: &[T]) -> (usize, T::Rank) {
    let i = simd::vectorized_widely(inlined!(|| contiguous_line::<T, MAX>(x)));
    (i, x[i].rank::<MAX>())
}

/// The index and the rank of the best of elements that may be strided, one element at a time.
#[inline]
fn first_best<'a, T: Key + 'a, const MAX: bool>(x: impl Iterator<Item = &'a T>) -> (usize, T::Rank) {
    let mut ranks = x.map(|x| x.rank::<MAX>());
    let first = ranks.next().unwrap_or_else(|| unreachable!("the dimension is not empty"));
    ranks.enumerate().fold((0, first), |best, (i, rank)| if rank > best.1 { (i + 1, rank) } else { best })
}

/// The results of lines of `len` contiguous elements.
fn contiguous_lines<T: Key, const MAX: bool>(x: &[T], len: usize, starts: Walk, out: &mut [i64]) {
    simd::vectorized_widely(inlined!(move || {
        let mut starts = starts;
        for out in out {
            *out = contiguous_line::<T, MAX>(&x[starts.offset()..][..len]) as i64;
            starts.advance(1);
        }
    }));
}

/// The result for contiguous elements: the largest rank, piece by piece, then its index in the first piece that has
/// it.
#[inline(always)]
fn contiguous_line<T: Key, const MAX: bool>(x: &[T]) -> usize {
    let piece = |start: usize| &x[start..x.len().min(start + SEARCHED)];
    let (mut start, mut best) = (0, largest_rank::<T, MAX>(piece(0)));
    let mut next = SEARCHED;
    while next < x.len() {
        let rank = largest_rank::<T, MAX>(piece(next));
        (start, best) = if rank > best { (next, rank) } else { (start, best) };
        next += SEARCHED;
    }
    // Indices as wide as the elements: the compiler vectorizes no others.
    start
        + match size_of::<T>() {
            8 => index_of::<T, u64, MAX>(piece(start), best) as usize,
            _ => index_of::<T, u32, MAX>(piece(start), best) as usize,
        }
}

#[inline(always)]
fn largest_rank<T: Key, const MAX: bool>(x: &[T]) -> T::Rank {
    let mut largest = x[0].rank::<MAX>();
    for x in x {
        largest = largest.max(x.rank::<MAX>());
    }
    largest
}

/// The index of the first element of this rank. There must be one.
#[inline(always)]
fn index_of<T: Key, I: Ord + Copy + From<u8> + AddAssign + Not<Output = I>, const MAX: bool>(
    x: &[T],
    rank: T::Rank,
) -> I {
    let (mut index, none) = (I::from(0), !I::from(0));
    let mut first = none;
    for x in x {
        first = first.min(if x.rank::<MAX>() == rank { index } else { none });
        index += I::from(1);
    }
    first
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{Strided, shape, strided};
    use super::*;

    fn check(x: &Strided, dim: usize, modulus: i32) {
        check_either::<true>(x, dim, modulus);
        check_either::<false>(x, dim, modulus);
    }

    fn check_either<const MAX: bool>(x: &Strided, dim: usize, modulus: i32) {
        let data: Vec<i32> = x.data.iter().map(|value| value % modulus).collect();
        let out_len = x.len() / x.shape[dim];
        let mut out = vec![-1; out_len];
        arg_reduce::<_, MAX>(CpuView { data: data[..].into(), ..x.view() }, dim, &mut out);

        let inner: usize = x.shape[dim + 1..].iter().product();
        let mut best: Vec<Option<(i32, i64)>> = vec![None; out_len];
        for (index, offset) in x.indices().iter().zip(x.offsets()) {
            let outer = index[..dim].iter().zip(&x.shape).fold(0, |position, (i, size)| position * size + i);
            let within =
                index[dim + 1..].iter().zip(&x.shape[dim + 1..]).fold(0, |position, (i, size)| position * size + i);
            let best = &mut best[outer * inner + within];
            let wins = |before: i32| if MAX { data[offset] > before } else { data[offset] < before };
            if best.is_none_or(|(value, _)| wins(value)) {
                *best = Some((data[offset], index[dim] as i64));
            }
        }
        let expected: Vec<i64> = best.into_iter().map(|best| best.unwrap().1).collect();
        assert_eq!(out, expected, "MAX {MAX}, shape {:?}, strides {:?}, dim {dim}", x.shape, x.strides);
    }

    proptest! {
        #[test]
        fn the_first_largest_matches_index_arithmetic(
            x in shape().prop_flat_map(strided), dim in 0..5_usize, modulus in prop_oneof![Just(4), Just(1_000)],
        ) {
            if dim < x.shape.len() && x.len() > 0 {
                check(&x, dim, modulus);
            }
        }
    }

    #[test]
    fn long_lines_and_many_columns_match_index_arithmetic() {
        for modulus in [3, 1_000] {
            check(&Strided::contiguous(vec![70_003]), 0, modulus);
            check(&Strided::contiguous(vec![40, 1_001]), 1, modulus);
            check(&Strided::contiguous(vec![200, 301]), 0, modulus);
            // Strides that are not in the order of the dimensions, reduced along every dimension.
            (0..4).for_each(|dim| check(&Strided::new(vec![2, 25, 30, 40], vec![30_000, 30, 1, 750]), dim, modulus));
        }
    }

    #[test]
    fn the_first_nan_wins_and_zeros_are_equal() {
        for len in [5, 100, 2_000] {
            let mut data = vec![1.0_f32; len];
            (data[1], data[2], data[3], data[4]) = (f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, f32::NAN);
            let mut out = [[0], [0]];
            let x = CpuView { data: data[..].into(), shape: &[len], strides: &[1] };
            arg_reduce::<_, true>(x, 0, &mut out[0]);
            arg_reduce::<_, false>(x, 0, &mut out[1]);
            assert_eq!(out, [[3], [3]]);

            let data: Vec<f64> = (0..len).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect();
            let x = CpuView { data: data[..].into(), shape: &[len], strides: &[1] };
            arg_reduce::<_, true>(x, 0, &mut out[0]);
            arg_reduce::<_, false>(x, 0, &mut out[1]);
            assert_eq!(out, [[0], [0]]);
        }
    }
}
