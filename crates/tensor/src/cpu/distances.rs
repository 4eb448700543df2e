//! Distances between the rows of two matrices.

use super::simd;
use crate::element::Real;
use crate::parallel::for_each_chunk_mut;

/// Distances whose sums are kept at a time.
const WIDTH: usize = 64;
/// Differences that are worth handing to another thread.
const WORK: usize = 1 << 15;

/// `out[b, i, j]` is the `p`-norm of `x[b, i, :] − y[b, :, j]`, for `x` of `[…, n, d]`, `y` of `[…, d, m]`, and `p` above 0.
pub(crate) fn distances<R: Real>(x: &[R], y: &[R], [n, d, m]: [usize; 3], p: f64, out: &mut [R]) {
    if out.is_empty() {
        return;
    }
    let rows = (WORK / (d * m)).max(1);
    for_each_chunk_mut(out, rows * m, |i, out| {
        for (row, out) in out.chunks_exact_mut(m).enumerate() {
            let row = i * rows + row;
            let (x, y) = (&x[row * d..][..d], &y[row / n * d * m..][..d * m]);
            match p {
                1.0 => sums(x, y, out, |sum, gap| sum + gap.magnitude(), |sum| sum),
                2.0 => sums(x, y, out, |sum, gap| sum + gap * gap, |sum| sum.sqrt()),
                f64::INFINITY => sums(x, y, out, |most, gap| most.extreme::<true>(gap.magnitude()), |most| most),
                _ => {
                    let (p, root) = (R::from_f64(p), R::from_f64(1.0 / p));
                    sums(x, y, out, |sum, gap| sum + power(gap.magnitude(), p), |sum| power(sum, root));
                }
            }
        }
    });
}

fn power<R: Real>(x: R, exponent: R) -> R {
    if x == R::ZERO { x } else { x.powf(exponent) }
}

/// One row of distances.
#[inline(always)]
fn sums<R: Real>(x: &[R], y: &[R], out: &mut [R], add: impl Fn(R, R) -> R, end: impl Fn(R) -> R) {
    let m = out.len();
    simd::vectorized(
        #[inline(always)]
        || {
            for (block, out) in out.chunks_mut(WIDTH).enumerate() {
                let mut all = [R::ZERO; WIDTH];
                for (k, &x) in x.iter().enumerate() {
                    let y = &y[k * m + block * WIDTH..][..out.len()];
                    for (sum, &y) in all.iter_mut().zip(y) {
                        *sum = add(*sum, x - y);
                    }
                }
                for (out, &sum) in out.iter_mut().zip(&all) {
                    *out = end(sum);
                }
            }
        },
    );
}
