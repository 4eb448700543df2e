//! Triangles of matrices.

use bytemuck::Pod;

use super::CHUNK;
use crate::inlined::{Slice, zip};
use crate::parallel::for_each_chunk_mut;

/// Copies contiguous matrices of `rows × columns`, with zeros below diagonal number `diagonal` if `is_upper`, else
/// above it.
pub(crate) fn triangle<T: Pod + Send + Sync>(
    x: &[T],
    (rows, columns): (usize, usize),
    (diagonal, is_upper): (isize, bool),
    out: &mut [T],
) {
    let lines = (CHUNK / columns.max(1)).max(1);
    for_each_chunk_mut(out, lines * columns, |i, out| {
        let x = &x[i * lines * columns..][..out.len()];
        for (line, (out, x)) in zip(out.chunks_exact_mut(columns), x.chunks_exact(columns)).enumerate() {
            // The first column on the diagonal, or to the right of it.
            let shift = if is_upper { 0 } else { 1 };
            let row = ((i * lines + line) % rows) as isize;
            let first = row.saturating_add(diagonal).saturating_add(shift).clamp(0, columns as isize) as usize;
            let (kept, zeros) = if is_upper { (first..columns, 0..first) } else { (0..first, first..columns) };
            out[kept.clone()].copy_from(&x[kept]);
            out[zeros].set_to(T::zeroed());
        }
    });
}
