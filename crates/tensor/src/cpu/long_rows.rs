//! Sums and formulas of rows that are read in pieces, so that halves are widened in the first-level cache.

use super::elements::Pieces;
use super::layer_norm::map;
use super::rows::{greater, largest};
use super::sums::{sum_of_pieces, sums, wide};
use super::{PIECE, Stored, StoredMut, simd};
use crate::element::Real;

/// The largest element of a row that is read in pieces, and the sum of `exp(x − largest)`: that of the pieces so far is
/// multiplied whenever one has a larger element.
pub(super) fn exp_of_long_row<R: Real>(x: Stored<'_, R>, pieces: &mut Pieces<R, 1>) -> [R; 2] {
    let (mut largest_of, mut total, mut room) = (R::LOWEST, 0.0, [R::ZERO; PIECE]);
    pieces.read([x], &mut |[x]| {
        let (largest_of, total, room) = (&mut largest_of, &mut total, &mut room[..x.len()]);
        simd::vectorized_widely(
            #[inline(always)]
            move || {
                let before = *largest_of;
                *largest_of = greater(before, largest(x));
                // Where there are no larger elements yet, there is no sum either.
                let now = if *largest_of > R::LOWEST { *largest_of } else { R::ZERO };
                if before > R::LOWEST {
                    *total *= wide((before - now).exp_below());
                }
                map(
                    [x],
                    room,
                    #[inline(always)]
                    move |[x]| (x - now).exp_below(),
                );
                let [sum] = sums([&*room], |[x]| [x]);
                *total += wide(sum);
            },
        );
    });
    [largest_of, R::from_f64(total)]
}

/// `Σ f(inputs[..][i])` of a row that is read in pieces.
pub(super) fn sum_of_long_row<R: Real, const N: usize>(
    inputs: [Stored<'_, R>; N],
    pieces: &mut Pieces<R, N>,
    f: impl Fn([R; N]) -> R + Copy,
) -> R {
    R::from_f64(sum_of_pieces(inputs, pieces, f))
}

/// `out[i] = f(inputs[..][i])` of such a row.
pub(super) fn map_long_row<R: Real, const N: usize>(
    inputs: [Stored<'_, R>; N],
    out: StoredMut<'_, R>,
    pieces: &mut Pieces<R, N>,
    f: impl Fn([R; N]) -> R + Copy,
) {
    pieces.write(inputs, out, &mut |inputs, out| {
        simd::vectorized_widely(
            #[inline(always)]
            move || map(inputs, out, f),
        );
    });
}
