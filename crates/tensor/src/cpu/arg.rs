//! Where the best element along a dimension is.

use super::turned::Turned;
use super::walk::{Dims, Walk, read_line_widened};
use super::{CHUNK, CpuView, PIECE, Stored, Value, simd};
use crate::element::Computing;
use crate::inlined::{Slice, from_fn, zip};
use crate::parallel::for_each_chunk_mut;

/// Columns that are searched together.
const WIDTH: usize = 128;
/// Columns that a thread searches at least: lines of memory that it uses whole.
const LEAST: usize = 32;
/// Elements of a line that are searched together.
const LANES: usize = 16;

/// `out[i]` = the index along `dim` of the best element; `out` has the other dimensions in row-major order.
///
/// `better(a, b)` says whether `a` beats `b`. The first of equally good elements wins, so PyTorch's rule for NaN (the
/// first NaN wins) is `a > b || (a.is_nan() && !b.is_nan())`. The dimension may be empty only if `out` is.
pub(crate) fn arg_reduce<T: Computing>(
    x: CpuView<'_, T>,
    dim: usize,
    out: &mut [i64],
    better: impl Fn(T, T) -> bool + Sync + Copy,
) {
    if out.is_empty() {
        return;
    }
    let pairs = std::iter::zip(x.shape.iter().copied(), x.strides.iter().copied());
    let kept = Dims::merged(pairs.enumerate().filter(|&(i, _)| i != dim).map(|(_, pair)| pair));
    let search =
        |first: usize, kept: Dims| Search { data: x.data.from(first), kept, len: x.shape[dim], stride: x.strides[dim] };
    if let Some(turned) = Turned::find(&kept, x.shape[dim]) {
        return turned.write(out.into(), &|first, kept, out| search(first, kept).chunk(0, out.plain(), better));
    }
    let search = search(0, kept);
    let chunk_len = (CHUNK / x.shape[dim]).max(if search.in_columns() { LEAST } else { 1 });
    if out.len() <= chunk_len {
        return search.chunk(0, out, better);
    }
    for_each_chunk_mut(out, chunk_len, |i, chunk| search.chunk(i * chunk_len, chunk, better));
}

/// A search along one dimension for every index of the others.
struct Search<'a, T> {
    data: Stored<'a, T>,
    kept: Dims,
    len: usize,
    stride: usize,
}

impl<T: Computing> Search<'_, T> {
    /// Whether neighbors in memory belong to neighboring results.
    fn in_columns(&self) -> bool {
        self.kept.inner().1 == 1 && self.stride > 1
    }

    /// Computes the results from number `start` on.
    fn chunk(&self, start: usize, out: &mut [i64], better: impl Fn(T, T) -> bool + Copy) {
        let in_columns = self.in_columns();
        let mut kept = Walk::starting_at(self.kept, start);
        if self.stride == 1 && self.len >= 4 * LANES {
            match self.data {
                Stored::Plain(data) => return long_lines(data, self.len, kept, out, better),
                Stored::Halves(..) if self.len <= PIECE && self.kept.is_one_after_another(self.len) => {
                    return self.widened_lines(start, out, better);
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
                self.columns(data, some, better);
            } else {
                some[0] = self.line(data, better) as i64;
            }
            kept.advance(n);
            rest = others;
        }
    }

    /// The results of lines of halves that lie one behind the other, from number `start` on: as many at a time as there is room for.
    fn widened_lines(&self, start: usize, out: &mut [i64], better: impl Fn(T, T) -> bool + Copy) {
        let (mut room, lines) = ([T::ZERO; PIECE], PIECE / self.len);
        for (i, out) in out.chunks_mut(lines).enumerate() {
            let first = (start + i * lines) * self.len;
            let x = self.data.part(first, out.len() * self.len).widened(&mut room);
            let rows = Dims::of(&[out.len()], &[self.len]);
            long_lines(x, self.len, Walk::starting_at(rows, 0), out, better);
        }
    }

    /// One result per neighbouring column.
    fn columns(&self, data: Stored<'_, T>, out: &mut [i64], better: impl Fn(T, T) -> bool + Copy) {
        let (mut best, mut room) = ([T::ZERO; WIDTH], [T::ZERO; WIDTH]);
        let best = &mut best[..out.len()];
        best.copy_from(data.part(0, out.len()).widened(&mut room));
        out.set_to(0);
        if let Stored::Plain(data) = data {
            return simd::vectorized(
                #[inline(always)]
                || {
                    for i in 1..self.len {
                        next_row(i, &data[i * self.stride..], best, out, better);
                    }
                },
            );
        }
        for i in 1..self.len {
            let row = data.part(i * self.stride, out.len()).widened(&mut room);
            simd::vectorized(
                #[inline(always)]
                || next_row(i, row, best, out, better),
            );
        }
    }

    /// The result for one line.
    fn line(&self, data: Stored<'_, T>, better: impl Fn(T, T) -> bool + Copy) -> usize {
        match data {
            Stored::Plain(data) if self.stride == 1 => best_of(&data[..self.len], better).0,
            Stored::Plain(_) if self.stride == 0 => 0,
            Stored::Plain(data) => first_best(data.iter().step_by(self.stride).take(self.len), better).0,
            Stored::Halves(..) if self.len <= 64 => self.pieces::<64>(data, better),
            Stored::Halves(..) => self.pieces::<1024>(data, better),
        }
    }

    /// The same for halves, `N` at a time.
    fn pieces<const N: usize>(&self, data: Stored<'_, T>, better: impl Fn(T, T) -> bool + Copy) -> usize {
        let (mut best, mut room) = (None, [T::ZERO; N]);
        for start in (0..self.len).step_by(N) {
            let piece = &mut room[..N.min(self.len - start)];
            read_line_widened(data.from(start * self.stride), self.stride, piece);
            let (i, x) = best_of(piece, better);
            if best.is_none_or(|(_, best)| better(x, best)) {
                best = Some((start + i, x));
            }
        }
        best.map_or(0, |(i, _)| i)
    }
}

/// Looks at row number `i`.
#[inline(always)]
fn next_row<T: Value>(i: usize, row: &[T], best: &mut [T], out: &mut [i64], better: impl Fn(T, T) -> bool) {
    for ((out, best), &x) in zip(zip(&mut out[..], best), row) {
        let wins = better(x, *best);
        *best = if wins { x } else { *best };
        *out = if wins { i as i64 } else { *out };
    }
}

/// The first best of contiguous elements, and where it is.
fn best_of<T: Value>(x: &[T], better: impl Fn(T, T) -> bool + Copy) -> (usize, T) {
    if x.len() < 4 * LANES {
        return first_best(x.iter(), better);
    }
    let i = simd::vectorized_widely(
        #[inline(always)]
        || long_line(x, better),
    );
    (i, x[i])
}

/// The same for a few, one after the other.
#[inline]
fn first_best<'a, T: Value + 'a>(mut x: impl Iterator<Item = &'a T>, better: impl Fn(T, T) -> bool) -> (usize, T) {
    let first = *x.next().unwrap_or_else(|| unreachable!("the dimension is not empty"));
    x.enumerate().fold((0, first), |best, (i, &x)| if better(x, best.1) { (i + 1, x) } else { best })
}

/// The results of lines of `len` contiguous elements, at least four times [`LANES`].
fn long_lines<T: Value>(x: &[T], len: usize, starts: Walk, out: &mut [i64], better: impl Fn(T, T) -> bool + Copy) {
    simd::vectorized_widely(
        #[inline(always)]
        move || {
            let mut starts = starts;
            for out in out {
                *out = long_line(&x[starts.offset()..][..len], better) as i64;
                starts.advance(1);
            }
        },
    );
}

/// The result for contiguous elements.
#[inline(always)]
fn long_line<T: Value>(x: &[T], better: impl Fn(T, T) -> bool + Copy) -> usize {
    // Places as wide as elements: the compiler makes vectors of no others.
    let best = match size_of::<T>() {
        8 => {
            let (place, best) = best_of_lanes::<T, u64>(x, better);
            (place as usize, best)
        }
        _ => {
            let (place, best) = best_of_lanes::<T, u32>(x, better);
            (place as usize, best)
        }
    };
    let (blocks, rest) = x.as_chunks::<LANES>();
    let in_rest = rest.iter().enumerate().map(|(i, &x)| (blocks.len() * LANES + i, x));
    in_rest.fold(best, |best, next| if better(next.1, best.1) { next } else { best }).0
}

/// The first best of whole blocks, and where it is: a search per lane, then among the lanes by halves.
#[inline(always)]
fn best_of_lanes<T: Value, I: Copy + PartialOrd + From<u8> + std::ops::AddAssign>(
    x: &[T],
    better: impl Fn(T, T) -> bool + Copy,
) -> (I, T) {
    let (blocks, _) = x.as_chunks::<LANES>();
    let mut here: [I; LANES] = from_fn(|lane| I::from(lane as u8));
    let (mut best, mut place) = (blocks[0], here);
    for block in &blocks[1..] {
        for lane in 0..LANES {
            here[lane] += I::from(LANES as u8);
            let wins = better(block[lane], best[lane]);
            best[lane] = if wins { block[lane] } else { best[lane] };
            place[lane] = if wins { here[lane] } else { place[lane] };
        }
    }
    let mut lanes = LANES;
    while lanes > 1 {
        lanes /= 2;
        for a in 0..lanes {
            let b = a + lanes;
            let wins = better(best[b], best[a]) | (!better(best[a], best[b]) & (place[b] < place[a]));
            best[a] = if wins { best[b] } else { best[a] };
            place[a] = if wins { place[b] } else { place[a] };
        }
    }
    (place[0], best[0])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{Strided, shape, strided};
    use super::*;

    fn check(x: &Strided, dim: usize, modulus: i32) {
        let data: Vec<i32> = x.data.iter().map(|value| value % modulus).collect();
        let out_len = x.len() / x.shape[dim];
        let mut out = vec![-1; out_len];
        arg_reduce(CpuView { data: data[..].into(), ..x.view() }, dim, &mut out, |a, b| a > b);

        let inner: usize = x.shape[dim + 1..].iter().product();
        let mut best: Vec<Option<(i32, i64)>> = vec![None; out_len];
        for (index, offset) in x.indices().iter().zip(x.offsets()) {
            let outer = index[..dim].iter().zip(&x.shape).fold(0, |position, (i, size)| position * size + i);
            let within =
                index[dim + 1..].iter().zip(&x.shape[dim + 1..]).fold(0, |position, (i, size)| position * size + i);
            let best = &mut best[outer * inner + within];
            if best.is_none_or(|(value, _)| data[offset] > value) {
                *best = Some((data[offset], index[dim] as i64));
            }
        }
        let expected: Vec<i64> = best.into_iter().map(|best| best.unwrap().1).collect();
        assert_eq!(out, expected, "shape {:?}, strides {:?}, dim {dim}", x.shape, x.strides);
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
            // Channels that lie outermost, along every dimension.
            (0..4).for_each(|dim| check(&Strided::new(vec![2, 25, 30, 40], vec![30_000, 30, 1, 750]), dim, modulus));
        }
    }

    #[test]
    fn the_first_nan_wins() {
        for len in [5, 100] {
            let mut data = vec![1.0_f32; len];
            (data[1], data[3], data[4]) = (f32::INFINITY, f32::NAN, f32::NAN);
            let mut out = [0];
            let x = CpuView { data: data[..].into(), shape: &[len], strides: &[1] };
            arg_reduce(x, 0, &mut out, |a, b| a > b || (a.is_nan() && !b.is_nan()));
            assert_eq!(out, [3]);
        }
    }
}
