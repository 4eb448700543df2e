//! Writes elements at the positions in an index tensor, selects elements by masks, and flips dimensions.

use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::Pod;

use super::column_blocks::{entries_of, for_each_block};
use super::copy::{chunk_of, copy_line};
use super::index::{all_below, without};
use super::strided_zip::{Lines, StridedZip};
use super::walk::contiguous_strides;
use super::{CHUNK, CpuView, MAX_RANK, Value, simd};
use crate::inlined::{Slice, zip};
use crate::parallel::for_each_chunk_mut;

/// Sets `dst[i, …, index[i, …, k, …], …]` to `combine` of itself and `src[i, …, k, …]`, in row-major order of the
/// source along each line.
///
/// `dst` is contiguous with shape `dst_shape`. `src` and `index` have the same shape, at most `dst_shape` in every
/// dimension except `dim`. Returns whether all indices were in range; if not, `dst` is unspecified.
#[must_use]
pub(crate) fn scatter<T: Value>(
    dst: &mut [T],
    dst_shape: &[usize],
    dim: usize,
    index: CpuView<'_, i64>,
    src: CpuView<'_, T>,
    combine: impl Fn(T, T) -> T + Sync + Copy,
) -> bool {
    if index.shape.contains(&0) {
        return true;
    }
    let size = dst_shape.get(dim).copied().unwrap_or(1);
    if let Some(rows) = Rows::of(dst_shape, dim, index, src) {
        let are_inside = all_below(rows.index, size);
        if are_inside {
            rows.write(dst, combine);
        }
        return are_inside;
    }
    if dst.is_empty() {
        return false;
    }
    if dim == 0 {
        return scatter_in_columns(dst, dst_shape, index, src, combine);
    }
    let any_outside = AtomicBool::new(false);
    let strides = contiguous_strides(dst_shape);
    let (base, stride) = (without(dim, &strides), strides[dim]);
    // The outermost dimension splits all tensors alike.
    let (rows, src_rows) = (dst_shape[0], index.shape[0]);
    let row_len = dst.len() / rows;
    let chunk_rows = (CHUNK / row_len).max(1);
    let (numbers, values) = (index.data.plain(), src.data.plain());
    for_each_chunk_mut(dst, chunk_rows * row_len, |i, dst| {
        let own_combine = combine; // a local copy, which is not reloaded after stores to `dst`
        let first = i * chunk_rows;
        let n = (dst.len() / row_len).min(src_rows.saturating_sub(first));
        if n == 0 {
            return;
        }
        let mut shape = [1; MAX_RANK];
        let shape = &mut shape[..index.shape.len()];
        shape.copy_from(index.shape);
        shape[0] = n;
        let (numbers, values) = (&numbers[first * index.strides[0]..], &values[first * src.strides[0]..]);
        let sides = StridedZip::of(shape, [index.strides, src.strides, &base]);
        let mut are_inside = true;
        sides.each(|lines| are_inside &= write(lines, dst, (numbers, stride, size), values, own_combine));
        any_outside.fetch_or(!are_inside, Ordering::Relaxed); // Relaxed: read after all tasks ended
    });
    !any_outside.into_inner()
}

/// [`scatter`] along the first dimension.
fn scatter_in_columns<T: Value>(
    dst: &mut [T],
    dst_shape: &[usize],
    index: CpuView<'_, i64>,
    src: CpuView<'_, T>,
    combine: impl Fn(T, T) -> T + Sync + Copy,
) -> bool {
    let (numbers, values) = (index.data.plain(), src.data.plain());
    let base = without(0, &contiguous_strides(dst_shape));
    for_each_block(dst, dst_shape, index.shape.iter().product(), |dst, entries| {
        let own_combine = combine; // a local copy, which is not reloaded after stores to `dst`
        let Some((start, shape)) = entries_of(index, &entries) else { return true };
        let numbers = &numbers[start..];
        let values = &values[entries.start * src.strides.get(1).unwrap_or(&0)..];
        let mut are_inside = true;
        StridedZip::of(&shape[..dst_shape.len()], [index.strides, src.strides, &base]).each(|lines| {
            let [index_step, value_step, step] = lines.steps;
            for line in 0..lines.count {
                let [mut at, mut value, mut column] = lines.beginnings(line);
                if lines.steps == [1; 3] {
                    let (numbers, values) = (&numbers[at..][..lines.len], &values[value..][..lines.len]);
                    for ((column, &number), &value) in zip(zip(column.., numbers), values) {
                        match dst.get_mut(number as usize, column) {
                            Some(element) => *element = own_combine(*element, value),
                            None => are_inside = false,
                        }
                    }
                    continue;
                }
                for _ in 0..lines.len {
                    match dst.get_mut(numbers[at] as usize, column) {
                        Some(element) => *element = own_combine(*element, values[value]),
                        None => are_inside = false,
                    }
                    (at, value, column) = (at + index_step, value + value_step, column + step);
                }
            }
        });
        are_inside
    })
}

/// Writes lines. The three sides are the index, the source, and the destination without the offset that the index
/// adds. Returns whether all indices are below `size`.
#[inline]
fn write<T: Value>(
    lines: Lines<3>,
    dst: &mut [T],
    (numbers, stride, size): (&[i64], usize, usize),
    values: &[T],
    combine: impl Fn(T, T) -> T,
) -> bool {
    let mut are_inside = true;
    for line in 0..lines.count {
        let [mut at, mut value, mut to] = lines.beginnings(line);
        let [index_step, value_step, step] = lines.steps;
        if let ([1, 1, 0], 1) = (lines.steps, stride) {
            let dst = &mut dst[to..][..size];
            let (numbers, values) = (&numbers[at..][..lines.len], &values[value..][..lines.len]);
            for (&number, &value) in zip(numbers, values) {
                match dst.get_mut(number as usize) {
                    Some(element) => *element = combine(*element, value),
                    None => are_inside = false,
                }
            }
            continue;
        }
        for _ in 0..lines.len {
            if (numbers[at] as usize) < size {
                let element = &mut dst[to + numbers[at] as usize * stride];
                *element = combine(*element, values[value]);
            } else {
                are_inside = false;
            }
            (at, value, to) = (at + index_step, value + value_step, to + step);
        }
    }
    are_inside
}

/// Whole entries of a dimension: one index gives the position of an entry.
struct Rows<'a, T> {
    /// Sizes of the destination: outside of the dimension, along it, and inside.
    outer: usize,
    n: usize,
    inner: usize,
    index: &'a [i64],
    src: &'a [T],
    /// Whether the source is one element, which is written everywhere.
    is_constant: bool,
}

/// The most bands of the destination that are written separately if the dimension is the outermost: each reads the
/// whole index.
const BANDS: usize = 8;

impl<'a, T: Value> Rows<'a, T> {
    /// `None` unless the index repeats in all other dimensions, and the source is contiguous or a single element.
    fn of(dst_shape: &[usize], dim: usize, index: CpuView<'a, i64>, src: CpuView<'a, T>) -> Option<Self> {
        let is_repeated = |(at, (&size, &stride)): (usize, (&usize, &usize))| {
            if at == dim { size == 1 || stride == 1 } else { (size == 1 || stride == 0) && size == dst_shape[at] }
        };
        let repeats = zip(index.shape, index.strides).enumerate().all(is_repeated);
        let inner = dst_shape.get(dim + 1..)?.iter().product();
        let lies_at =
            |strides: &[usize]| (0..src.shape.len()).all(|at| src.shape[at] == 1 || src.strides[at] == strides[at]);
        let is_constant = lies_at(&[0; MAX_RANK]);
        let is_known = is_constant || lies_at(&contiguous_strides(src.shape));
        (repeats && is_known && inner > 1).then(|| Rows {
            outer: dst_shape[..dim].iter().product(),
            n: dst_shape[dim],
            inner,
            index: &index.data.plain()[..index.shape[dim]],
            src: src.data.plain(),
            is_constant,
        })
    }

    fn write(&self, dst: &mut [T], combine: impl Fn(T, T) -> T + Sync + Copy) {
        let Rows { outer, n, inner, index, .. } = *self;
        if outer > 1 {
            let slabs = (CHUNK / (n * inner)).max(1);
            return for_each_chunk_mut(dst, slabs * n * inner, |i, dst| {
                simd::vectorized(inlined!(|| {
                    for (slab, dst) in dst.chunks_exact_mut(n * inner).enumerate() {
                        let first = (i * slabs + slab) * index.len();
                        for (j, &row) in index.iter().enumerate() {
                            self.write_row(&mut dst[row as usize * inner..][..inner], first + j, combine);
                        }
                    }
                }));
            });
        }
        let band = n.div_ceil(BANDS).max(CHUNK.div_ceil(inner));
        for_each_chunk_mut(dst, band * inner, |i, dst| {
            let (first, rows) = (i * band, dst.len() / inner);
            simd::vectorized(inlined!(|| {
                for (j, &row) in index.iter().enumerate() {
                    let row = (row as usize).wrapping_sub(first);
                    if row < rows {
                        self.write_row(&mut dst[row * inner..][..inner], j, combine);
                    }
                }
            }));
        });
    }

    /// Combines the row with entry number `j` of the source.
    #[inline(always)]
    fn write_row(&self, to: &mut [T], j: usize, combine: impl Fn(T, T) -> T) {
        if self.is_constant {
            return to.iter_mut().for_each(|to| *to = combine(*to, self.src[0]));
        }
        let from = &self.src[j * self.inner..][..self.inner];
        for (to, &from) in zip(to, from) {
            *to = combine(*to, from);
        }
    }
}

/// How many bytes of each [`CHUNK`] are not 0.
pub(crate) fn counts_of_true(mask: &[u8]) -> Vec<usize> {
    let mut counts = vec![0; mask.len().div_ceil(CHUNK)];
    for_each_chunk_mut(&mut counts, 4, |i, counts| {
        simd::vectorized(inlined!(|| {
            for (mask, count) in zip(mask[4 * i * CHUNK..].chunks(CHUNK), counts) {
                // A byte can hold the count of 128.
                for mask in mask.chunks(128) {
                    *count += usize::from(mask.iter().fold(0, |n, &is_true| n + u8::from(is_true != 0)));
                }
            }
        }));
    });
    counts
}

/// The elements where the mask is not 0, in order; `counts` are those of the mask.
pub(crate) fn keep_where<T: Value>(x: &[T], mask: &[u8], counts: &[usize], out: &mut [T]) {
    let mut parts = parts(out, counts, 1);
    for_each_chunk_mut(&mut parts, 1, |i, part| {
        let (out, mut n) = (&mut *part[0], 0);
        for (&x, &is_true) in zip(&x[i * CHUNK..], &mask[i * CHUNK..]) {
            if n == out.len() {
                break;
            }
            out[n] = x;
            n += usize::from(is_true != 0);
        }
    });
}

/// Splits `out` into a part for each count, with `width` elements for each element that was counted.
fn parts<'a, T>(out: &'a mut [T], counts: &[usize], width: usize) -> Vec<&'a mut [T]> {
    let mut rest = out;
    let mut part = |&count: &usize| {
        let (part, others) = std::mem::take(&mut rest).split_at_mut(count * width);
        rest = others;
        part
    };
    counts.iter().map(&mut part).collect()
}

/// The indices of the elements of a mask of this shape that are not 0: a row of `out` for each, in order. `counts`
/// are those of the mask.
pub(crate) fn indices_where(mask: &[u8], counts: &[usize], shape: &[usize], out: &mut [i64]) {
    let (rank, Some(&size)) = (shape.len(), shape.last().filter(|_| !out.is_empty())) else { return };
    let mut parts = parts(out, counts, rank);
    for_each_chunk_mut(&mut parts, 1, |i, part| {
        let (rows, end) = (&mut *part[0], mask.len().min((i + 1) * CHUNK));
        let (mut position, mut at) = (i * CHUNK, 0);
        while position < end && at < rows.len() {
            let (line, first, start) = (position / size, position % size, at);
            let truths = &mask[position..end.min(position + size - first)];
            for (number, &is_true) in zip(first as i64.., truths) {
                // Indices of zeros are written, too, and then overwritten, so that no branch is mispredicted.
                let Some(last) = rows.get_mut(at + rank - 1) else { break };
                *last = number;
                at += if is_true != 0 { rank } else { 0 };
            }
            let mut rest = line;
            for dim in (0..rank - 1).rev() {
                let index = (rest % shape[dim]) as i64;
                rows[start..at].iter_mut().skip(dim).step_by(rank).for_each(|to| *to = index);
                rest /= shape[dim];
            }
            position += truths.len();
        }
    });
}

/// `x`, or zeros, where the elements at which the mask is not 0 are replaced by successive elements of `source`.
/// `counts` are those of the mask. If another thread writes to the mask meanwhile, they may differ from what is read
/// here, and `source` may have too few elements.
pub(crate) fn replace_where<T: Value + Pod>(
    x: Option<&[T]>,
    mask: &[u8],
    counts: &[usize],
    source: &[T],
    out: &mut [T],
) {
    let mut rest = source;
    let mut part = |&count: &usize| {
        let (part, others) = rest.split_at(count.min(rest.len()));
        rest = others;
        part
    };
    let parts: Vec<&[T]> = counts.iter().map(&mut part).collect();
    for_each_chunk_mut(out, CHUNK, |i, out| {
        match x {
            Some(x) => out.copy_from(&x[i * CHUNK..][..out.len()]),
            None => out.set_to(T::zeroed()),
        }
        let Some(last) = parts[i].len().checked_sub(1) else { return };
        let mut n = 0;
        for (out, &is_true) in zip(&mut out[..], &mask[i * CHUNK..]) {
            let next = parts[i][n.min(last)];
            *out = if is_true != 0 { next } else { *out };
            n += usize::from(is_true != 0);
        }
    });
}

/// `out[…, i, …] = x[…, size − 1 − i, …]` along all dimensions of `flipped`; both are contiguous.
pub(crate) fn flip<T: Value>(x: &[T], shape: &[usize], flipped: &[usize], out: &mut [T]) {
    let Some(&last) = flipped.iter().max().filter(|_| !out.is_empty()) else { return out.copy_from(x) };
    let (n, inner): (usize, usize) = (shape[last], shape[last + 1..].iter().product());
    if inner == 1 && flipped.len() == 1 && n <= CHUNK {
        return reverse_lines(x, n, out);
    }
    let outside = &shape[..last];
    // Entries are numbered across all lines.
    let entries = (chunk_of::<T>() / inner).max(1);
    for_each_chunk_mut(out, entries * inner, |i, out| {
        simd::vectorized(inlined!(|| {
            let (mut line, mut first, mut rest) = (i * entries / n, i * entries % n, out);
            while !rest.is_empty() {
                let count = (n - first).min(rest.len() / inner);
                let from = flipped_index(line, outside, flipped);
                let (now, later) = rest.split_at_mut(count * inner);
                let from = &x[(from * n + n - first - count) * inner..][..now.len()];
                match inner {
                    1 => reverse(from, now),
                    _ => std::iter::zip(now.chunks_exact_mut(inner), from.rchunks_exact(inner))
                        .for_each(|(out, x)| copy_line(out, x)),
                }
                (line, first, rest) = (line + 1, 0, later);
            }
        }));
    });
}

/// Reverses every line of `n` elements.
fn reverse_lines<T: Value>(x: &[T], n: usize, out: &mut [T]) {
    let len = 2 * CHUNK / n * n;
    for_each_chunk_mut(out, len, |i, out| {
        let x = &x[i * len..][..out.len()];
        simd::vectorized(inlined!(|| {
            for (x, out) in zip(x.chunks_exact(n), out.chunks_exact_mut(n)) {
                reverse(x, out);
            }
        }));
    });
}

/// Reverses elements in blocks whose length the compiler knows, so that it reverses whole vectors.
#[inline(always)]
fn reverse<T: Value>(x: &[T], out: &mut [T]) {
    const BLOCK: usize = 32;
    let (x_rest, x_blocks) = x.as_rchunks::<BLOCK>();
    let (blocks, rest) = out.as_chunks_mut::<BLOCK>();
    for (out, &x) in zip(&mut blocks[..], x_blocks.iter().rev()) {
        // On a copy: the compiler does not know here that `out` and `x` do not overlap.
        let mut reversed = x;
        for (i, reversed) in reversed.iter_mut().enumerate() {
            *reversed = x[BLOCK - 1 - i];
        }
        *out = reversed;
    }
    for (out, &x) in zip(&mut rest[..], x_rest.iter().rev()) {
        *out = x;
    }
}

/// The linear index of element number `index` of these sizes, if the flipped dimensions are counted from the end.
fn flipped_index(mut index: usize, sizes: &[usize], flipped: &[usize]) -> usize {
    let (mut number, mut distance) = (0, 1);
    for (dim, &size) in sizes.iter().enumerate().rev() {
        let i = if flipped.contains(&dim) { size - 1 - index % size } else { index % size };
        number += i * distance;
        (index, distance) = (index / size, distance * size);
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_that_changed_after_it_was_counted_is_no_panic() {
        let mut out = [0; 4];
        replace_where(None, &[1, 1, 1, 0], &[3], &[7, 8], &mut out);
        assert_eq!(out, [7, 8, 8, 0]);
        replace_where(None, &[1; 4], &[1], &[], &mut out);
        assert_eq!(out, [0; 4]);
    }
}
