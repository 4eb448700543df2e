//! Copies of strided views.
//!
//! A contiguous view is one `memcpy` or, if it is large, is written by non-temporal stores. If neighbors in a view's
//! memory are not neighbors in the output (a transposed matrix), the copy goes tile by tile, so that both sides use
//! whole cache lines. Everything else is copied line by line.

use std::sync::atomic::{Ordering, compiler_fence};

use bytemuck::{NoUninit, Pod};

use super::fill::fill;
use super::strided_zip::{Lines, StridedZip};
use super::transpose::Tile;
use super::walk::{Dims, Walk, contiguous_strides};
use super::{CHUNK, CpuView, PIECE, Value, simd};
use crate::inlined::{Array, Slice, zip};
use crate::non_temporal::{self, NonTemporal};
use crate::parallel::for_each_chunk_mut;

/// The number of elements that is worth a task of its own: for small elements, as many bytes as for `f32`.
pub(super) const fn chunk_of<T>() -> usize {
    match size_of::<T>() {
        bytes @ 1..4 => CHUNK * 4 / bytes,
        _ => CHUNK,
    }
}

/// `out[i] = x[i]` in row-major order.
pub(crate) fn copy<T: Value + Pod>(x: CpuView<'_, T>, out: &mut [T]) {
    if out.is_empty() {
        return;
    }
    let (dims, data) = (Dims::of(x.shape, x.strides), x.data.plain());
    if dims.is_contiguous() {
        contiguous(data, out);
    } else if dims.strides() == [0] {
        fill(out, data[0]);
    } else if let Some(transposed) = Transposed::find(&dims) {
        transposed.copy(data, out);
    } else {
        copy_lines(x, out);
    }
}

/// [`copy`] line by line, for a type that has invalid bit patterns.
pub(crate) fn copy_lines<T: Value>(x: CpuView<'_, T>, out: &mut [T]) {
    if !out.is_empty() {
        copy_lines_strided(out, &contiguous_strides(x.shape), x);
    }
}

/// `out[2 · i] = a[i]` and `out[2 · i + 1] = b[i]`, of two views with one shape.
pub(crate) fn interleave_two<T: Value + Pod>(a: CpuView<'_, T>, b: CpuView<'_, T>, out: &mut [T]) {
    let sources = [a, b].mapped(|view| (view.data.plain(), Dims::of(view.shape, view.strides)));
    for_each_chunk_mut(out, 2 * CHUNK, |i, out| {
        let [mut a, mut b] = [[T::zeroed(); PIECE]; 2];
        let mut walks = sources.mapped(|(_, dims)| Walk::starting_at(dims, i * CHUNK));
        for out in out.chunks_mut(2 * PIECE) {
            let (pairs, _) = out.as_chunks_mut::<2>();
            let (a, b) = (&mut a[..pairs.len()], &mut b[..pairs.len()]);
            walks[0].read(sources[0].0, a);
            walks[1].read(sources[1].0, b);
            simd::vectorized(inlined!(|| {
                for ((pair, &a), &b) in zip(zip(&mut pairs[..], &*a), &*b) {
                    *pair = [a, b];
                }
            }));
        }
    });
}

/// `dst[i] = x[i]`, where element `i` of `dst` is at offset `i · strides`. No two elements may have the same offset.
pub(crate) fn copy_strided<T: Value + Pod>(dst: &mut [T], strides: &[usize], x: CpuView<'_, T>) {
    if x.shape.contains(&0) {
        return;
    }
    let dims = Dims::of(x.shape, strides);
    if dims.is_contiguous() { copy(x, &mut dst[..dims.len()]) } else { copy_lines_strided(dst, strides, x) }
}

/// [`copy_strided`] line by line, if no dimension is empty.
fn copy_lines_strided<T: Value>(dst: &mut [T], strides: &[usize], x: CpuView<'_, T>) {
    let data = x.data.plain();
    StridedZip::of(x.shape, [strides, x.strides]).in_parts(dst, chunk_of::<T>(), |dst, [_, from], sides| {
        sides.each(|lines| match (lines.steps, lines.len) {
            ([1, 0 | 1], 32 | 64 | 128) => {
                simd::vectorized_widely(inlined!(|| move_usual_lines(dst, &data[from..], lines)))
            }
            _ => simd::vectorized(inlined!(|| move_lines(dst, &data[from..], lines))),
        });
    });
}

/// Copies lines of side 1 to side 0, for common lengths.
#[inline(always)]
fn move_usual_lines<T: Value>(to: &mut [T], from: &[T], lines: Lines<2>) {
    match lines.len {
        32 => move_lines_of::<T, 32>(to, from, lines),
        64 => move_lines_of::<T, 64>(to, from, lines),
        _ => move_lines_of::<T, 128>(to, from, lines),
    }
}

/// Copies lines of side 1 to side 0.
#[inline(always)]
fn move_lines<T: Value>(to: &mut [T], from: &[T], lines: Lines<2>) {
    let (len, [to_step, step]) = (lines.len, lines.steps);
    match (lines.steps, len) {
        ([1, 1], 2) => each_line((to, from, lines), inlined!(|to, from| to[..2].copy_from(&from[..2]))),
        ([1, 1], _) => each_line((to, from, lines), inlined!(|to, from| copy_line(&mut to[..len], &from[..len]))),
        ([1, 0], _) => each_line((to, from, lines), inlined!(|to, from| fill_line(&mut to[..len], from[0]))),
        ([1, _], _) => each_line(
            (to, from, lines),
            inlined!(|to, from| to[..len].iter_mut().enumerate().for_each(|(i, to)| *to = from[i * step])),
        ),
        ([2, 1], _) => each_line(
            (to, from, lines),
            inlined!(|to, from| zip(to[..2 * len - 1].chunks_mut(2), &from[..len]).for_each(|(to, &from)| to[0] = from)),
        ),
        ([2, 0], _) => each_line(
            (to, from, lines),
            inlined!(|to, from| {
                let value = from[0];
                to[..2 * len - 1].chunks_mut(2).for_each(|to| to[0] = value);
            }),
        ),
        _ => each_line((to, from, lines), inlined!(|to, from| (0..len).for_each(|i| to[i * to_step] = from[i * step]))),
    }
}

/// Copies lines of `LEN` elements, or fills each with one element. A length that the compiler knows halves the time.
#[inline(always)]
fn move_lines_of<T: Value, const LEN: usize>(to: &mut [T], from: &[T], lines: Lines<2>) {
    match lines.steps[1] {
        0 => each_line((to, from, lines), inlined!(|to, from| to[..LEN].set_to(from[0]))),
        _ => each_line((to, from, lines), inlined!(|to, from| copy_in_order::<T, LEN>(to, from))),
    }
}

/// Copies `LEN` elements in ascending order, which hardware prefetching follows. For a longer copy, the compiler
/// emits descending stores, with which results larger than the caches took twice as long (decision 0084).
#[inline(always)]
pub(super) fn copy_in_order<T: Copy, const LEN: usize>(to: &mut [T], from: &[T]) {
    let (to, from) = (&mut to[..LEN], &from[..LEN]);
    let step = const {
        let in_a_line = CACHE_LINE / size_of::<T>();
        if in_a_line > 0 && LEN.is_multiple_of(in_a_line) { in_a_line } else { LEN }
    };
    let mut at = 0;
    while at < LEN {
        to[at..][..step].copy_from(&from[at..][..step]);
        compiler_fence(Ordering::SeqCst); // keeps the order of the stores
        at += step;
    }
}

#[inline(always)]
fn each_line<T>((to, from, lines): (&mut [T], &[T], Lines<2>), move_line: impl Fn(&mut [T], &[T])) {
    for line in 0..lines.count {
        let [to_start, start] = lines.beginnings(line);
        move_line(&mut to[to_start..], &from[start..]);
    }
}

/// Bytes of a cache line.
pub(super) const CACHE_LINE: usize = 64;

/// Elements that are copied at a time: for a short line, calling `memcpy` takes longer than copying it. The loops use
/// indices, because iterators over chunks take half as long again.
const SHORT: usize = 32;
/// The same for lines shorter than `SHORT`.
const SHORTER: usize = 8;

#[inline(always)]
pub(super) fn copy_line<T: Copy>(to: &mut [T], from: &[T]) {
    match to.len() {
        SHORT.. => copy_by::<T, SHORT>(to, from),
        SHORTER.. => copy_by::<T, SHORTER>(to, from),
        _ => copy_few(to, from),
    }
}

/// Copies fewer than [`SHORTER`] elements without a loop, which the compiler would vectorize.
#[inline(always)]
fn copy_few<T: Copy>(to: &mut [T], from: &[T]) {
    let n = to.len();
    if n & 4 != 0 {
        copy_in_order::<T, 4>(to, from);
    }
    if n & 2 != 0 {
        copy_in_order::<T, 2>(&mut to[n & 4..], &from[n & 4..]);
    }
    if n & 1 != 0 {
        to[n - 1] = from[n - 1];
    }
}

#[inline(always)]
fn copy_by<T: Copy, const LEN: usize>(to: &mut [T], from: &[T]) {
    let (n, mut at) = (to.len(), 0);
    while at + LEN <= n {
        copy_in_order::<T, LEN>(&mut to[at..], &from[at..]);
        at += LEN;
    }
    if at < n {
        copy_in_order::<T, LEN>(&mut to[n - LEN..], &from[n - LEN..]); // overlaps the elements before
    }
}

#[inline(always)]
pub(super) fn fill_line<T: Copy>(to: &mut [T], value: T) {
    let mut at = 0;
    while at + SHORT <= to.len() {
        to[at..][..SHORT].set_to(value);
        at += SHORT;
    }
    while at + SHORTER <= to.len() {
        to[at..][..SHORTER].set_to(value);
        at += SHORTER;
    }
    to[at..].iter_mut().for_each(|to| *to = value);
}

fn contiguous<T: Value + NoUninit>(data: &[T], out: &mut [T]) {
    let is_large = non_temporal::is_large(out);
    for_each_chunk_mut(out, chunk_of::<T>(), |i, chunk| {
        let from = &data[i * chunk_of::<T>()..][..chunk.len()];
        if is_large { NonTemporal::new().copy(chunk, from) } else { chunk.copy_from(from) }
    });
}

/// Rows and columns of a block of tiles: each page has several of its cache lines, and the block has few pages.
const BLOCK: usize = 64;

/// A view that is contiguous along a dimension that is not the innermost.
struct Transposed {
    /// The dimensions outside of the contiguous one.
    outside: Dims,
    /// Elements along the dimension with stride 1.
    n_rows: usize,
    /// The dimensions inside of the contiguous one; one row of the output has `inside.len()` elements.
    inside: Dims,
}

impl Transposed {
    fn find(dims: &Dims) -> Option<Transposed> {
        let (_, inner_stride) = dims.inner();
        let row = dims.strides().iter().position(|&stride| stride == 1)?;
        if inner_stride <= 1 {
            return None;
        }
        let (shape, strides) = (dims.shape(), dims.strides());
        Some(Transposed {
            outside: Dims::of(&shape[..row], &strides[..row]),
            n_rows: shape[row],
            inside: Dims::of(&shape[row + 1..], &strides[row + 1..]),
        })
    }

    fn copy<T: Value + Pod>(&self, data: &[T], out: &mut [T]) {
        let row_len = self.inside.len();
        let chunk_rows = (CHUNK / row_len).max(1).next_multiple_of((64 / size_of::<T>()).min(BLOCK));
        for_each_chunk_mut(out, chunk_rows * row_len, |i, chunk| {
            let mut row = i * chunk_rows;
            let mut rest = chunk;
            while !rest.is_empty() {
                let first = row % self.n_rows;
                let n = (rest.len() / row_len).min(self.n_rows - first);
                let (rows, others) = rest.split_at_mut(n * row_len);
                self.copy_rows(&data[self.outside.offset(row / self.n_rows) + first..], n, rows);
                row += n;
                rest = others;
            }
        });
    }

    /// Copies `n` neighboring rows, the first of which begins at `data[0]`.
    fn copy_rows<T: Value + Pod>(&self, data: &[T], n: usize, out: &mut [T]) {
        let row_len = self.inside.len();
        let (line_len, stride) = self.inside.inner();
        match (row_len, line_len) {
            (2, 2) => return interleave::<T, 2>(data, stride, out),
            (3, 3) => return interleave::<T, 3>(data, stride, out),
            (4, 4) => return interleave::<T, 4>(data, stride, out),
            _ => {}
        }
        let mut line = Walk::starting_at(self.inside, 0);
        for line_start in (0..row_len).step_by(line_len) {
            let line_data = &data[line.offset()..];
            for column in (0..line_len).step_by(BLOCK) {
                for row in (0..n).step_by(BLOCK) {
                    let block =
                        Tile { rows: BLOCK.min(n - row), columns: BLOCK.min(line_len - column), stride, row_len };
                    let from = &line_data[row + column * stride..];
                    let to = &mut out[row * row_len + line_start + column..];
                    block.copy(from, to);
                }
            }
            line.advance(line_len);
        }
    }
}

/// Interleaves a few columns, which begin `stride` elements apart.
fn interleave<T: Value, const COLUMNS: usize>(data: &[T], stride: usize, out: &mut [T]) {
    let (rows, _) = out.as_chunks_mut::<COLUMNS>();
    let mut columns = [data; COLUMNS];
    for (i, column) in columns.iter_mut().enumerate() {
        *column = &data[i * stride..][..rows.len()];
    }
    simd::vectorized(inlined!(move || {
        for (i, row) in rows.iter_mut().enumerate() {
            for (to, column) in zip(&mut row[..], columns) {
                *to = column[i];
            }
        }
    }));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{Strided, shape, strided};
    use super::*;

    fn check(x: &Strided) {
        let mut out = vec![0; x.len()];
        copy(x.view(), &mut out);
        assert_eq!(out, x.values(), "shape {:?}, strides {:?}", x.shape, x.strides);
    }

    proptest! {
        #[test]
        fn copy_matches_index_arithmetic(x in shape().prop_flat_map(strided)) {
            check(&x);
        }
    }

    #[test]
    fn transposed_copies_match_index_arithmetic_beyond_one_chunk_and_off_the_tile_size() {
        check(&Strided::new(vec![300, 401], vec![1, 300]));
        check(&Strided::new(vec![5, 33, 7, 50], vec![33 * 7 * 50, 1, 33 * 50, 33]));
        check(&Strided::new(vec![3, 40, 600], vec![40 * 600, 1, 40]));
    }

    #[test]
    fn copies_that_are_written_past_the_caches_match_index_arithmetic() {
        let data: Vec<i64> = (0..5_000_011).collect();
        let mut out = vec![0; data.len() - 3];

        copy(CpuView { data: data[3..].into(), shape: &[out.len()], strides: &[1] }, &mut out);

        assert!(non_temporal::is_large(&out));
        assert_eq!(out, data[3..]);
    }

    #[test]
    fn contiguous_and_stepped_copies_match_index_arithmetic_beyond_one_chunk() {
        check(&Strided::contiguous(vec![70_001]));
        check(&Strided::new(vec![300, 200], vec![600, 3]));
    }
}
