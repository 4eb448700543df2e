//! Products with a long inner dimension and a small result. Each task sums over a part of that dimension; the results
//! of the tasks are added up in the end.

use pagelock_memory::Result;

use super::few_rows::Side;
use super::{Matrix, Sizes, in_pieces, narrow, real};
use crate::element::Real;
use crate::scratch;

/// The shortest inner dimension, and the largest result in elements.
const LONG: usize = 4 << 10;
const MAX_RESULTS: usize = 16 << 10;
/// The largest result if both sides are contiguous along the inner dimension. A larger one would make pieces so short
/// that adding up the lanes of each dot product takes too long.
const MAX_DOTS: usize = 1 << 10;
/// Numbers of both sides per piece; they stay in the L2 cache.
const PIECE: usize = 32 << 10;
/// The most tasks. Each has a buffer of sums.
const MAX_TASKS: usize = 16;

/// Whether this algorithm suits the product.
pub(super) fn suits<R>(Sizes { m, k, n }: Sizes, sides: [Side<'_, R>; 2]) -> bool {
    let are_dots = sides.iter().all(|side| side.strides[0] == 1);
    let most_results = if are_dots { MAX_DOTS } else { MAX_RESULTS };
    k >= LONG && m * n <= most_results && m.min(n) >= narrow::MIN_SIDE
}

/// `c = leftᵀ · right`, for sides `[k, m]` and `[k, n]`.
pub(super) fn product<R: Real>(sizes: Sizes, left: Side<'_, R>, right: Side<'_, R>, c: &mut [R]) -> Result<()> {
    let Sizes { m, k, n } = sizes;
    let depth = (PIECE / (m + n)).next_multiple_of(64);
    let pieces = k.div_ceil(depth).div_ceil(MAX_TASKS);
    scratch::sum_of_tasks(k.div_ceil(pieces * depth), c, |task, sums| {
        let first = task * pieces * depth;
        let inner = first..(first + pieces * depth).min(k);
        scratch::with(depth * (m + n) + sums.len(), |buffer| {
            let (buffer, more) = buffer.split_at_mut(depth * (m + n));
            let (of_left, of_right) = buffer.split_at_mut(depth * m);
            in_pieces((inner, depth), [sums, more], |start, k, sums| {
                let Matrix { numbers, strides } = left.part([start, 0]).plain([k, m], of_left)?;
                let a = Matrix { numbers, strides: [strides[1], strides[0]] };
                real(Sizes { m, k, n }, a, right.part([start, 0]).plain([k, n], of_right)?, sums)
            })
        })
    })
}
