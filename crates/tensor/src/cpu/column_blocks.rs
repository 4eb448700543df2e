//! Blocks of whole columns of a contiguous tensor: what threads share where an index names places along the first dimension.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{CHUNK, CpuView, MAX_RANK, Value};
use crate::inlined::Slice;
use crate::parallel::{Columns, for_each_columns_mut};

/// Elements of a row that a block has at least: two lines of memory or more, so that threads do not wait for each other's.
const WIDTH: usize = 32;

/// Calls `write(columns, entries)` for blocks of columns, each of some entries of the second dimension, on several threads if
/// `n_writes` elements are written and these are many. Returns whether all calls returned true.
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
        all.fetch_and(done, Ordering::Relaxed); // who reads it waits for all
    });
    all.into_inner()
}

/// Some entries of the second dimension of a view, as many as it has of them: where they begin, and their shape. None if it has
/// none of them. A view without a second dimension is one entry.
pub(super) fn entries_of<T>(view: CpuView<'_, T>, entries: &Range<usize>) -> Option<(usize, [usize; MAX_RANK])> {
    let mut shape = [1; MAX_RANK];
    shape[..view.shape.len()].copy_from(view.shape);
    if view.shape.len() < 2 {
        return Some((0, shape));
    }
    shape[1] = view.shape[1].min(entries.end).checked_sub(entries.start).filter(|&n| n > 0)?;
    Some((entries.start * view.strides[1], shape))
}
