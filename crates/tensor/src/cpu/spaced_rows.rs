//! Reductions of rows that have gaps between them, or between their elements.

use super::reduce::{BLOCK, Fold};
use super::walk::{Walk, read_line_widened};
use super::{Stored, simd};
use crate::element::Computing;

/// Folds rows of `len` elements, at most [`BLOCK`], which are `stride` apart. Each row begins at the next position of
/// `rows`.
pub(super) fn fold_rows<T: Computing, F: Fold<T>, U>(
    data: Stored<'_, T>,
    rows: &mut Walk,
    [len, stride]: [usize; 2],
    fold: F,
    out: &mut [U],
    finish: impl Fn(F::Value) -> U,
) {
    let mut buffer = [T::ZERO; BLOCK];
    for out in out {
        let row = match data.from(rows.offset()) {
            Stored::Plain(data) if stride == 1 => &data[..len],
            data => {
                read_line_widened(data, stride, &mut buffer[..len]);
                &buffer[..len]
            }
        };
        *out = finish(simd::vectorized(inlined!(|| fold.row(row))));
        rows.advance(1);
    }
}
