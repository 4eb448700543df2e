//! Joins tensors row by row: each row of the result has one line of each tensor.

use super::copy::{CACHE_LINE, chunk_of, copy_in_order, copy_line};
use super::walk::Dims;
use super::{CpuView, Value, simd};
use crate::inlined::zip;
use crate::parallel::for_each_chunk_mut;

/// The maximum number of tensors that are joined row by row.
const MAX_TENSORS: usize = 8;

/// The lines of one tensor.
#[derive(Clone, Copy)]
struct Source<'a, T> {
    data: &'a [T],
    /// The distance from the beginning of a line to that of the next.
    distance: usize,
    /// Elements of a line.
    len: usize,
}

/// `out[row] = [a[row], b[row], …]`, where a row of a tensor is its elements at one index of the dimensions before
/// `dim`.
///
/// Stores are in ascending order, which hardware prefetching follows (decision 0084). Where copying tensor after
/// tensor is as fast, writes nothing and returns false: for more than [`MAX_TENSORS`] tensors, lines that are all shorter
/// than a cache line, rows longer than a chunk, and lines that are not contiguous or not evenly spaced.
pub(crate) fn join_rows<'a, T: Value + 'a>(
    tensors: impl ExactSizeIterator<Item = CpuView<'a, T>>,
    dim: usize,
    out: &mut [T],
) -> bool {
    let n = tensors.len();
    if n > MAX_TENSORS || out.is_empty() {
        return false;
    }
    let mut sources = [Source { data: &[][..], distance: 0, len: 0 }; MAX_TENSORS];
    for (source, tensor) in sources.iter_mut().zip(tensors) {
        let Some(lines) = Source::of(tensor, dim) else { return false };
        *source = lines;
    }
    let sources = &sources[..n];
    let row_len: usize = sources.iter().map(|source| source.len).sum();
    let longest = sources.iter().map(|source| source.len).max().unwrap_or(0);
    if longest * size_of::<T>() < CACHE_LINE || row_len > chunk_of::<T>() {
        return false;
    }
    let common_len = sources.iter().map(|source| source.len).reduce(|a, b| if a == b { a } else { 0 });
    let chunk_rows = chunk_of::<T>() / row_len;
    for_each_chunk_mut(out, chunk_rows * row_len, |i, rows| {
        simd::vectorized_widely(inlined!(|| match common_len {
            Some(64) => write_rows_of::<T, 64>(rows, sources, i * chunk_rows),
            Some(128) => write_rows_of::<T, 128>(rows, sources, i * chunk_rows),
            _ => write_rows(rows, row_len, sources, i * chunk_rows),
        }));
    });
    true
}

impl<'a, T: Value> Source<'a, T> {
    /// `None` if a line is not contiguous, or if the distances between lines differ.
    fn of(tensor: CpuView<'a, T>, dim: usize) -> Option<Self> {
        let ((rows, line), (row_strides, steps)) = (tensor.shape.split_at(dim), tensor.strides.split_at(dim));
        let len = line.iter().product();
        if len == 0 {
            return Some(Source { data: &[], distance: 0, len });
        }
        let rows = Dims::of(rows, row_strides);
        let fits = Dims::of(line, steps).is_contiguous() && rows.strides().len() == 1;
        fits.then(|| Source { data: tensor.data.plain(), distance: rows.strides()[0], len })
    }
}

/// Writes rows of the result, the first of which has the index `first`.
#[inline(always)]
fn write_rows<T: Value>(rows: &mut [T], row_len: usize, sources: &[Source<'_, T>], first: usize) {
    for (i, row) in rows.chunks_exact_mut(row_len).enumerate() {
        let mut at = 0;
        for &Source { data, distance, len } in sources {
            copy_line(&mut row[at..][..len], &data[(first + i) * distance..][..len]);
            at += len;
        }
    }
}

/// [`write_rows`] for lines of `LEN` elements. For short lines, a length that the compiler knows saves time.
#[inline(always)]
fn write_rows_of<T: Value, const LEN: usize>(rows: &mut [T], sources: &[Source<'_, T>], first: usize) {
    for (i, row) in rows.chunks_exact_mut(LEN * sources.len()).enumerate() {
        for (to, &Source { data, distance, .. }) in zip(row.chunks_exact_mut(LEN), sources) {
            copy_in_order::<T, LEN>(to, &data[(first + i) * distance..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Strided;
    use super::*;

    #[test]
    fn each_row_has_one_line_of_each_tensor_in_order() {
        for rows in [1, 3, 5_000] {
            // Contiguous rows, every second row of a matrix, one repeated row, and rows without elements.
            let tensors = [
                Strided::contiguous(vec![rows, 50]),
                Strided::new(vec![rows, 1, 33], vec![2 * 33, 7, 1]),
                Strided::new(vec![rows, 8], vec![0, 1]),
                Strided::new(vec![rows, 0], vec![1, 1]),
            ];
            let mut out = vec![-1; rows * 91];

            assert!(join_rows(tensors.iter().map(Strided::view), 1, &mut out));

            let values = tensors.each_ref().map(Strided::values);
            for (row, out) in out.chunks(91).enumerate() {
                let line = |tensor: usize, len: usize| &values[tensor][row * len..][..len];
                assert_eq!(out, [line(0, 50), line(1, 33), line(2, 8)].concat(), "row {row}");
            }
        }
    }

    #[test]
    fn strided_lines_uneven_distances_and_too_many_tensors_are_refused() {
        let mut out = vec![0; 2 * 6_000];
        let (contiguous, transposed) = (Strided::contiguous(vec![100, 60]), Strided::new(vec![100, 60], vec![1, 100]));
        let uneven = Strided::new(vec![10, 10, 60], vec![1_000, 60, 1]);

        assert!(!join_rows([&contiguous, &transposed].into_iter().map(Strided::view), 1, &mut out));
        assert!(!join_rows([&uneven, &uneven].into_iter().map(Strided::view), 2, &mut out));
        assert!(!join_rows([&contiguous; MAX_TENSORS + 1].into_iter().map(Strided::view), 1, &mut out));
        assert!(out.iter().all(|&x| x == 0));
    }
}
