//! Transposition in registers: of matrices, and from planes to vectors that hold one number of each plane, and back.

use bytemuck::Pod;
use pulp::{Simd, WithSimd};

use super::Lanes;
use crate::inlined::{from_fn, zip};

/// `vectors[indices[i], c] = planes[c · distance + i]` for `c < n_planes`, else zero; `i < len`. Without indices,
/// `vectors[i, c]`.
pub(crate) struct FromPlanes<'a, R> {
    pub(crate) planes: &'a [R],
    /// Planes at the same positions: where these are at most zero, zero is read.
    pub(crate) positive: Option<&'a [R]>,
    pub(crate) distance: usize,
    /// As many as there are lanes, or fewer.
    pub(crate) n_planes: usize,
    pub(crate) len: usize,
    pub(crate) indices: Option<&'a [usize]>,
    /// Without indices `[len, lanes]`, but at least as many vectors as there are lanes.
    pub(crate) vectors: &'a mut [R],
}

/// `planes[c · distance + i] = vectors[i, c]` for `c < n_planes` and `i < len`.
pub(crate) struct ToPlanes<'a, R> {
    pub(crate) planes: &'a mut [R],
    pub(crate) distance: usize,
    /// As many as there are lanes, or fewer.
    pub(crate) n_planes: usize,
    pub(crate) len: usize,
    /// `[len, lanes]`, but at least as many vectors as there are lanes.
    pub(crate) vectors: &'a [R],
    /// Whether numbers below zero are written as zero.
    pub(crate) relu: bool,
}

/// `to[row · row_len + column] = from[row + column · stride]` for `row < rows` and `column < columns`.
pub(crate) struct Transpose<'a, R> {
    pub(crate) from: &'a [R],
    pub(crate) stride: usize,
    pub(crate) to: &'a mut [R],
    pub(crate) row_len: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// A kernel for vectors of `L` lanes.
trait PerLanes {
    fn run<S: Simd, const L: usize>(self, simd: S);
}

/// Runs a kernel with the number of lanes known to the compiler.
#[inline(always)]
fn for_lanes<S: Simd, R: Lanes>(simd: S, kernel: impl PerLanes) {
    match R::lanes::<S>() {
        16 => kernel.run::<S, 16>(simd),
        8 => kernel.run::<S, 8>(simd),
        4 => kernel.run::<S, 4>(simd),
        2 => kernel.run::<S, 2>(simd),
        1 => kernel.run::<S, 1>(simd),
        lanes => unreachable!("no vectors of {lanes} lanes"),
    }
}

impl<R: Lanes> WithSimd for FromPlanes<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for_lanes::<S, R>(simd, self);
    }
}

impl<R: Lanes> PerLanes for FromPlanes<'_, R> {
    #[inline(always)]
    fn run<S: Simd, const L: usize>(self, simd: S) {
        let FromPlanes { planes, positive, distance, n_planes, len, indices, vectors } = self;
        let to = R::vectors_mut::<S>(vectors);
        for at in squares(len, L) {
            let n = L.min(len - at);
            let whole = n == L && n_planes == L;
            // Each arm transposes by itself, so that the rows of a whole square stay in registers.
            match positive {
                None if whole => {
                    let rows = from_fn(|c| R::vectors::<S>(&planes[c * distance + at..][..L])[0]);
                    put(to, (at, n), indices, transposed::<S, R, L>(simd, rows));
                }
                Some(positive) if whole => {
                    let mut rows = [R::splat(simd, R::zeroed()); L];
                    for (c, row) in rows.iter_mut().enumerate() {
                        let numbers = R::vectors::<S>(&planes[c * distance + at..][..L])[0];
                        let of = R::vectors::<S>(&positive[c * distance + at..][..L])[0];
                        *row = R::where_positive(simd, numbers, of);
                    }
                    put(to, (at, n), indices, transposed::<S, R, L>(simd, rows));
                }
                _ => {
                    let mut rows = [R::splat(simd, R::zeroed()); L];
                    for (c, row) in rows.iter_mut().enumerate().take(n_planes) {
                        *row = first::<S, R, L>(simd, &planes[c * distance + at..][..n]);
                        if let Some(positive) = positive {
                            let of = first::<S, R, L>(simd, &positive[c * distance + at..][..n]);
                            *row = R::where_positive(simd, *row, of);
                        }
                    }
                    put(to, (at, n), indices, transposed::<S, R, L>(simd, rows));
                }
            }
        }
    }
}

/// Writes the first `n` vectors of a square to vectors from `at` on, or to those of these indices.
#[inline(always)]
fn put<V: Copy, const L: usize>(to: &mut [V], (at, n): (usize, usize), indices: Option<&[usize]>, vectors: [V; L]) {
    match indices {
        None => *to[at..].first_chunk_mut().expect("room for a vector per lane") = vectors,
        Some(indices) if n == L => {
            let indices: &[usize; L] = indices[at..].first_chunk().expect("an index per vector");
            let mut i = 0;
            while i < L {
                to[indices[i]] = vectors[i];
                i += 1;
            }
        }
        Some(indices) => zip(&indices[at..][..n], &vectors[..]).for_each(|(&index, &vector)| to[index] = vector),
    }
}

/// A vector of at most `L` numbers.
#[inline(always)]
fn first<S: Simd, R: Lanes, const L: usize>(simd: S, numbers: &[R]) -> R::Vector<S> {
    if numbers.len() == L { R::vectors::<S>(numbers)[0] } else { R::load(simd, numbers) }
}

impl<R: Lanes> WithSimd for ToPlanes<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for_lanes::<S, R>(simd, self);
    }
}

impl<R: Lanes> PerLanes for ToPlanes<'_, R> {
    #[inline(always)]
    fn run<S: Simd, const L: usize>(self, simd: S) {
        let from = R::vectors::<S>(self.vectors);
        for at in squares(self.len, L) {
            let rows: &[R::Vector<S>; L] = from[at..].first_chunk().expect("room for a vector per lane");
            let n = L.min(self.len - at);
            // Both branches transpose, so that the rows of a whole square stay in registers.
            if n == L && self.n_planes == L {
                let rows = transposed::<S, R, L>(simd, *rows);
                for (c, &row) in rows.iter().enumerate() {
                    let row = if self.relu { R::relu(simd, row) } else { row };
                    R::vectors_mut::<S>(&mut self.planes[c * self.distance + at..][..L])[0] = row;
                }
            } else {
                let rows = transposed::<S, R, L>(simd, *rows);
                for (c, &row) in rows.iter().enumerate().take(self.n_planes) {
                    let row = if self.relu { R::relu(simd, row) } else { row };
                    let numbers = &mut self.planes[c * self.distance + at..][..n];
                    if n == L { R::vectors_mut::<S>(numbers)[0] = row } else { R::store(simd, numbers, row) }
                }
            }
        }
    }
}

impl<R: Lanes> WithSimd for Transpose<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for_lanes::<S, R>(simd, self);
    }
}

impl<R: Lanes> PerLanes for Transpose<'_, R> {
    #[inline(always)]
    fn run<S: Simd, const L: usize>(self, simd: S) {
        let Transpose { from, stride, to, row_len, rows, columns } = self;
        if rows < L || columns < L {
            for row in 0..rows {
                let to = &mut to[row * row_len..][..columns];
                to.iter_mut().enumerate().for_each(|(column, to)| *to = from[row + column * stride]);
            }
            return;
        }
        // Squares that read the same cache lines follow one another.
        let line = L.max(LINE / size_of::<R>());
        for first in (0..rows).step_by(line) {
            for column in squares(columns, L) {
                for row in (first..rows.min(first + line)).step_by(L).map(|row| row.min(rows - L)) {
                    let at = row + column * stride;
                    let square = from_fn(|c| R::vectors::<S>(&from[at + c * stride..][..L])[0]);
                    for (i, vector) in transposed::<S, R, L>(simd, square).into_iter().enumerate() {
                        R::vectors_mut::<S>(&mut to[(row + i) * row_len + column..][..L])[0] = vector;
                    }
                }
            }
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// The positions at which squares that cover `len` begin. The last one overlaps the one before instead of running
/// over the end.
#[inline(always)]
fn squares(len: usize, side: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by(side).map(move |at| at.min(len.saturating_sub(side)))
}

/// Lane `j` of row `i` becomes lane `i` of row `j`.
#[inline(always)]
fn transposed<S: Simd, R: Lanes, const L: usize>(simd: S, mut rows: [R::Vector<S>; L]) -> [R::Vector<S>; L] {
    match (L, size_of::<R>()) {
        (16, 4) => {
            return bytemuck::cast(transposed_16(simd, bytemuck::cast::<[R::Vector<S>; L], [S::f32s; 16]>(rows)));
        }
        (8, 8) => return bytemuck::cast(transposed_8(simd, bytemuck::cast::<[R::Vector<S>; L], [S::f64s; 8]>(rows))),
        (4, 8) => {
            let rows: [S::f64s; 4] = bytemuck::cast::<[R::Vector<S>; L], _>(rows);
            return bytemuck::cast(simd.deinterleave_shfl_f64s(rows));
        }
        (8, 4) => {
            // Transposes the quarters of four lanes, for four rows at a time; the quarters themselves are exchanged
            // below.
            let mut eight: [S::f32s; 8] = bytemuck::cast::<[R::Vector<S>; L], _>(rows);
            for i in [0, 4] {
                [eight[i], eight[i + 1], eight[i + 2], eight[i + 3]] =
                    simd.deinterleave_shfl_f32s([eight[i], eight[i + 1], eight[i + 2], eight[i + 3]]);
            }
            rows = bytemuck::cast(eight);
            exchange::<R::Vector<S>, R, L, 4>(&mut rows);
            return rows;
        }
        _ => {}
    }
    exchange::<R::Vector<S>, R, L, 4>(&mut rows);
    exchange::<R::Vector<S>, R, L, 2>(&mut rows);
    exchange::<R::Vector<S>, R, L, 1>(&mut rows);
    rows
}

/// Exchanges the off-diagonal quarters of each square of side `2 · D`.
#[inline(always)]
fn exchange<V: Pod, R: Pod, const L: usize, const D: usize>(rows: &mut [V; L]) {
    for i in 0..L {
        if D < L && i & D == 0 {
            let (upper, lower): ([R; L], [R; L]) = (bytemuck::cast(rows[i]), bytemuck::cast(rows[i + D]));
            // The compiler makes a shuffle of each, up to eight lanes.
            let (mut new_upper, mut new_lower) = (upper, lower);
            for j in 0..L {
                if j & D == 0 {
                    (new_upper[j + D], new_lower[j]) = (lower[j], upper[j + D]);
                }
            }
            (rows[i], rows[i + D]) = (bytemuck::cast(new_upper), bytemuck::cast(new_lower));
        }
    }
}

/// Sixteen lanes are four quarters of four. `pulp` can split four vectors in two ways. The `f32` split transposes the
/// quarters of four rows. The `f64` split exchanges pairs of lanes between rows, which a second split undoes, and
/// moves whole quarters, which two splits transpose. The lists of rows are written out so that all rows stay in
/// registers.
#[inline(always)]
pub(crate) fn transposed_16<S: Simd>(simd: S, mut rows: [S::f32s; 16]) -> [S::f32s; 16] {
    for i in [0, 4, 8, 12] {
        [rows[i], rows[i + 1], rows[i + 2], rows[i + 3]] =
            simd.deinterleave_shfl_f32s([rows[i], rows[i + 1], rows[i + 2], rows[i + 3]]);
    }
    for i in [0, 1, 8, 9] {
        [rows[i], rows[i + 2], rows[i + 4], rows[i + 6]] =
            simd.deinterleave_shfl_f64s([rows[i], rows[i + 2], rows[i + 4], rows[i + 6]]);
    }
    for i in [0, 1, 4, 5] {
        [rows[i], rows[i + 2], rows[i + 8], rows[i + 10]] =
            simd.deinterleave_shfl_f64s([rows[i], rows[i + 2], rows[i + 8], rows[i + 10]]);
    }
    rows
}

/// The same for eight lanes of `f64`. The two splits that move quarters each exchange pairs of lanes, so a third one
/// follows.
#[inline(always)]
fn transposed_8<S: Simd>(simd: S, mut rows: [S::f64s; 8]) -> [S::f64s; 8] {
    for i in [0, 4] {
        [rows[i], rows[i + 1], rows[i + 2], rows[i + 3]] =
            simd.deinterleave_shfl_f64s([rows[i], rows[i + 1], rows[i + 2], rows[i + 3]]);
    }
    for i in [0, 2] {
        [rows[i], rows[i + 1], rows[i + 4], rows[i + 5]] =
            simd.deinterleave_shfl_f64s([rows[i], rows[i + 1], rows[i + 4], rows[i + 5]]);
    }
    for i in [0, 2, 4, 6] {
        [rows[i], rows[i + 1]] = simd.deinterleave_shfl_f64s([rows[i], rows[i + 1]]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::testing::{levels, with_level};
    use super::super::{Lanes, dispatch};
    use super::*;

    /// Copies planes to vectors, and back to other planes at the same distance, which are -1 where nothing is
    /// written.
    #[derive(Clone, Copy)]
    struct ThereAndBack<'a, R> {
        planes: &'a [R],
        positive: Option<&'a [R]>,
        distance: usize,
        n_planes: usize,
        len: usize,
        relu: bool,
    }

    impl<R: Lanes + From<i8>> WithSimd for ThereAndBack<'_, R> {
        type Output = (usize, Vec<R>, Vec<R>);

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
            let ThereAndBack { planes, positive, distance, len, relu, .. } = self;
            let lanes = R::lanes::<S>();
            let n_planes = self.n_planes.min(lanes);
            let mut vectors = vec![R::from(-1); (len + lanes) * lanes];
            let indices = None;
            simd.vectorize(FromPlanes { planes, positive, distance, n_planes, len, indices, vectors: &mut vectors });
            let reversed: Vec<usize> = (0..len).rev().collect();
            let (indices, mut other) = (Some(&reversed[..]), vec![R::from(-1); (len + 1) * lanes]);
            simd.vectorize(FromPlanes { planes, positive, distance, n_planes, len, indices, vectors: &mut other });
            let in_order = other.chunks_exact(lanes).take(len).rev().flatten();
            assert!(in_order.eq(&vectors[..len * lanes]) && other[len * lanes..].iter().all(|&x| x == R::from(-1)));
            let mut back = vec![R::from(-1); planes.len()];
            simd.vectorize(ToPlanes { planes: &mut back, distance, n_planes, len, vectors: &vectors, relu });
            (lanes, vectors, back)
        }
    }

    fn check<R: Lanes + From<i8> + std::fmt::Debug>(n_planes: usize, len: usize) {
        let distance = len + 3;
        let numbers = |factor: usize| (0..n_planes * distance).map(move |i| R::from((i * factor % 127) as i8 - 60));
        let (planes, other): (Vec<R>, Vec<R>) = (numbers(1).collect(), numbers(11).collect());
        let zero = R::from(0);
        for (positive, relu) in [(None, false), (Some(&other[..]), false), (None, true), (Some(&other[..]), true)] {
            let read = |at: usize| if positive.is_none_or(|of| of[at] > zero) { planes[at] } else { zero };
            let written = |at: usize| if relu && read(at) < zero { zero } else { read(at) };
            for level in levels() {
                let case = ThereAndBack { planes: &planes, positive, distance, n_planes, len, relu };
                let (lanes, vectors, back) = with_level(level, || dispatch(case));

                for (i, vector) in vectors.chunks_exact(lanes).take(len).enumerate() {
                    for (c, &number) in vector.iter().enumerate() {
                        let expected = if c < n_planes { read(c * distance + i) } else { zero };
                        assert_eq!(number, expected, "lane {c} of vector {i} on {level:?}");
                    }
                }
                for (i, &number) in back.iter().enumerate() {
                    let inside = i / distance < n_planes.min(lanes) && i % distance < len;
                    assert_eq!(number, if inside { written(i) } else { R::from(-1) }, "number {i} on {level:?}");
                }
            }
        }
    }

    fn check_matrix<R: Lanes + From<i8> + std::fmt::Debug>(rows: usize, columns: usize) {
        let (stride, row_len) = (rows + 2, columns + 3);
        let from: Vec<R> = (0..columns * stride).map(|i| R::from((i * 7 % 127) as i8)).collect();
        for level in levels() {
            let mut to = vec![R::from(-1); rows * row_len];
            with_level(level, || dispatch(Transpose { from: &from, stride, to: &mut to, row_len, rows, columns }));
            for (i, &number) in to.iter().enumerate() {
                let (row, column) = (i / row_len, i % row_len);
                let expected = if column < columns { from[row + column * stride] } else { R::from(-1) };
                assert_eq!(number, expected, "row {row}, column {column} of {rows} x {columns} on {level:?}");
            }
        }
    }

    #[test]
    fn rows_become_columns_and_nothing_else_is_written() {
        for (rows, columns) in [(16, 16), (37, 50), (8, 8), (9, 17), (4, 30), (3, 2), (1, 1), (64, 5), (20, 4)] {
            check_matrix::<f32>(rows, columns);
            check_matrix::<f64>(rows, columns);
        }
    }

    #[test]
    fn planes_become_vectors_and_planes_again_and_nothing_else_is_written() {
        for (n_planes, len) in [(16, 16), (16, 49), (10, 20), (3, 5), (1, 1), (8, 7), (16, 100)] {
            check::<f32>(n_planes, len);
            check::<f64>(n_planes, len);
        }
    }
}
