//! Moments: the count of some numbers, their mean, and the sum of their squared distances from the mean. Blocks that
//! fit in the L1 cache have their own moments, which are combined.

use super::Stored;
use super::elements::PIECE;
use super::simd;
use super::sums::{LONG, long_sums, sums, wide};
use crate::element::Real;

/// The count of some numbers, their mean, and the sum of their squared distances from the mean.
#[derive(Clone, Copy)]
pub(crate) struct Moments {
    pub(crate) n: f64,
    pub(crate) mean: f64,
    pub(crate) squares: f64,
}

impl Moments {
    /// The moments of no numbers.
    pub(crate) const NONE: Moments = Moments { n: 0.0, mean: 0.0, squares: 0.0 };

    #[inline(always)]
    pub(crate) fn one(x: f64) -> Moments {
        Moments { n: 1.0, mean: x, squares: 0.0 }
    }

    /// The moments of both sets of numbers (Chan, Golub, LeVeque 1979).
    #[inline(always)]
    pub(crate) fn and(self, other: Moments) -> Moments {
        if self.n == 0.0 {
            return other;
        }
        if other.n == 0.0 {
            return self;
        }
        let (n, distance) = (self.n + other.n, other.mean - self.mean);
        let share = other.n / n;
        let squares = self.squares + other.squares + distance * (distance * (self.n * share));
        let mean = match distance.is_finite() {
            true => self.mean + distance * share,
            false => self.mean * (1.0 - share) + other.mean * share,
        };
        Moments { n, mean, squares }
    }

    /// The moments of a block that fits in the L1 cache: first the sum, then the distances from the mean.
    #[inline(always)]
    pub(crate) fn of_block<R: Real>(x: &[R]) -> Moments {
        let n = x.len() as f64;
        let [sum] = sum_of(x, |x| [x]);
        let center = R::from_f64(wide(sum) / n);
        let [distance, squares] = sum_of(x, inlined!(move |x| [x - center, (x - center) * (x - center)]));
        // The center is rounded, so distances from it do not add up to 0.
        let shift = wide(distance) / n;
        let squares = wide(squares) - wide(distance) * shift;
        match squares.is_finite() {
            true => Moments { n, mean: wide(center) + shift, squares: squares.max(0.0) },
            false => of_large(x),
        }
    }

    /// The moments of a row of any length.
    pub(super) fn of_row<R: Real>(x: Stored<'_, R>) -> Moments {
        let mut all = Moments::NONE;
        x.each_piece::<PIECE>(PIECE, |x| {
            let all = &mut all;
            simd::vectorized(inlined!(move || {
                for block in x.chunks(PIECE) {
                    *all = all.and(Moments::of_block(block));
                }
            }));
        });
        all
    }
}

/// The moments of numbers whose sums overflow or are not finite. If the mean is infinite, `squares` is NaN, as ∞ − ∞
/// is.
#[cold]
#[inline(never)]
fn of_large<R: Real>(x: &[R]) -> Moments {
    let all = x.iter().fold(Moments::NONE, |all, &x| all.and(Moments::one(wide(x))));
    if all.mean.is_finite() { all } else { Moments { squares: f64::NAN, ..all } }
}

/// `Σ f(x)`, each component by itself.
#[inline(always)]
pub(super) fn sum_of<R: Real, const S: usize>(x: &[R], f: impl Fn(R) -> [R; S] + Copy) -> [R; S] {
    let f = |[x]: [R; 1]| f(x);
    if x.len() >= LONG { long_sums([x], f) } else { sums([x], f) }
}
