//! Blocks of whole columns of a contiguous tensor, which threads share where an index selects along the first
//! dimension.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{CHUNK, CpuView, MAX_RANK, Value};
use crate::inlined::Slice;
use crate::parallel::{Columns, for_each_columns_mut};

/// The fewest elements of a row that a block has: two cache lines of `f32`, which limits false sharing.
const WIDTH: usize = 32;

/// Calls `write(columns, entries)` for blocks of columns, each of a range of entries of the second dimension. Uses
/// several threads if `n_writes`, the number of elements to write, is large. Returns whether all calls returned true.
pub(super) fn for_each_block<T: Value>(
    dst: &mut [T],
    shape: &[usize],
    n_writes: usize,
    write: impl Fn(&mut Columns<'_, T>, Range<usize>) -> bool + Sync,
) -> bool {
    let (n, second) = (shape.first().copied().unwrap_or(1), shape.get(1).copied().unwrap_or(1));
    let row_len = dst.len() / n;
    let inner = row_len / second;
    let entries = if n_writes > 2 * CHUNK { WIDTH.div_ceil(inner) } else { second };
    let all = AtomicBool::new(true);
    for_each_columns_mut(dst, row_len, entries * inner, |i, columns| {
        let first = i * entries;
        let done = write(columns, first..first + columns.width() / inner);
        all.fetch_and(done, Ordering::Relaxed); // Relaxed: read after all calls returned
    });
    all.into_inner()
}

/// The part of a view that has these entries of its second dimension, as far as they exist: its offset and its shape.
/// `None` if none of them exists. A view without a second dimension is a single entry.
pub(super) fn entries_of<T>(view: CpuView<'_, T>, entries: &Range<usize>) -> Option<(usize, [usize; MAX_RANK])> {
    let mut shape = [1; MAX_RANK];
    shape[..view.shape.len()].copy_from(view.shape);
    if view.shape.len() < 2 {
        return Some((0, shape));
    }
    shape[1] = view.shape[1].min(entries.end).checked_sub(entries.start).filter(|&n| n > 0)?;
    Some((entries.start * view.strides[1], shape))
}
