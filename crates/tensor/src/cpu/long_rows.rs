//! Sums and formulas over long rows. Halves are widened in registers or, on processors that cannot, in pieces that
//! fit in the L1 cache.

use super::elements::Pieces;
use super::kernel::{in_blocks_of_halves, map_in_registers};
use super::layer_norm::map;
use super::math::half::{Registers, by_half};
use super::softmax::{greater, largest};
use super::sums::{sums, sums_of_pieces, wide};
use super::{PIECE, Stored, StoredMut, simd};
use crate::element::Real;
use crate::inlined::zip;

/// The largest element of the first input's row, and the sum of `exp(x − largest)`. The row is read in pieces. If a
/// piece has a larger element, the sum of the pieces before it is rescaled.
pub(super) fn exp_of_long_row<R: Real, const N: usize>(
    inputs: [Stored<'_, R>; N],
    pieces: &mut Pieces<R, N>,
) -> [R; 2] {
    let (mut largest_of, mut total, mut buffer) = (R::LOWEST, 0.0, [R::ZERO; PIECE]);
    pieces.read(inputs, &mut |inputs| {
        let x = inputs[0];
        let (largest_of, total, buffer) = (&mut largest_of, &mut total, &mut buffer[..x.len()]);
        simd::vectorized_widely(inlined!(move || {
            let before = *largest_of;
            *largest_of = greater(before, largest(x));
            // As long as no element is above `LOWEST`, the sum is 0.
            let now = if *largest_of > R::LOWEST { *largest_of } else { R::ZERO };
            if before > R::LOWEST {
                *total *= wide((before - now).exp_below());
            }
            map([x], buffer, inlined!(move |[x]| (x - now).exp_below()));
            let [sum] = sums([&*buffer], |[x]| [x]);
            *total += wide(sum);
        }));
    });
    [largest_of, R::from_f64(total)]
}

/// `Σ f(inputs[..][i])` over a long row, each component by itself.
pub(super) fn sums_of_long_row<R: Real, const N: usize, const S: usize>(
    inputs: [Stored<'_, R>; N],
    pieces: &mut Pieces<R, N>,
    f: impl Fn([R; N]) -> [R; S] + Copy,
) -> [R; S] {
    let mut sums = [R::ZERO; S];
    let totals = sums_of_pieces(inputs, pieces, f);
    zip(&mut sums[..], totals).for_each(|(sum, total)| *sum = R::from_f64(total));
    sums
}

/// `out[i] = f(inputs[..][i])` over a long row.
pub(super) fn map_long_row<R: Real, const N: usize>(
    inputs: [Stored<'_, R>; N],
    out: StoredMut<'_, R>,
    pieces: &mut Pieces<R, N>,
    f: impl Fn([R; N]) -> R + Copy,
) {
    if const { R::HAS_HALVES }
        && let StoredMut::Halves(_, half) = out
        && let Stored::Halves(_, of) = inputs[0]
        && half == of
        && let Some((wide, x)) = in_blocks_of_halves(inputs)
    {
        let out = out.halves().as_chunks_mut().0;
        return by_half!(wide, registers => registers.vectorized(
            inlined!(|| map_in_registers(registers, x, out, f)),
        ));
    }
    pieces.write(inputs, out, &mut |inputs, out| {
        simd::vectorized_widely(inlined!(move || map(inputs, out, f)));
    });
}
