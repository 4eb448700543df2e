//! Layer normalization of rows, and its gradients. Everything is computed in `f32` or `f64`.

use pagelock_memory::Result;

use super::stored::{nth, with_widened};
use super::sums::{sums, wide};
use super::{CHUNK, PIECE, Stored, StoredMut, simd};
use crate::element::Real;
use crate::parallel::for_each_chunk_mut;
use crate::scratch;

/// The most parts of the rows that are added up by themselves.
const PARTS: usize = 64;

/// The mean of a row, and what its deviations are multiplied by: 1 / √(variance + eps).
fn scale_of<R: Real>(x: Stored<'_, R>, eps: R) -> (R, R) {
    let n = R::from_f64(x.len() as f64);
    let mean = mean_of(x, n);
    let [squares] = sums([x], |[x]| [(x - mean) * (x - mean)]);
    centered(mean, R::ONE / (squares / n + eps).sqrt())
}

/// The mean of `n` numbers, which is finite if they are.
fn mean_of<R: Real>(x: Stored<'_, R>, n: R) -> R {
    let [sum] = sums([x], |[x]| [x]);
    if sum.magnitude() < R::HIGHEST {
        return sum / n;
    }
    let down = R::from_f64(SMALL);
    let [sum] = sums([x], |[x]| [x * down]);
    unscaled(sum / n)
}

/// A power of two by which numbers are multiplied so that no sum of them overflows.
pub(super) const SMALL: f64 = 1.0 / (1_u64 << 63) as f64;

/// The mean of numbers, given that of what they are multiplied by [`SMALL`]: finite if that is, also if it was rounded up.
pub(super) fn unscaled<R: Real>(mean: R) -> R {
    let scaled = mean / R::from_f64(SMALL);
    match mean.magnitude() < R::HIGHEST {
        true if scaled > R::LARGEST => R::LARGEST,
        true if scaled < -R::LARGEST => -R::LARGEST,
        _ => scaled,
    }
}

/// A mean and a scale such that `(x − mean) · scale` is 0, not NaN, where the variance overflows.
pub(super) fn centered<R: Real>(mean: R, scale: R) -> (R, R) {
    let overflows = scale == R::ZERO && mean.magnitude() < R::HIGHEST;
    (if overflows { R::ZERO } else { mean }, scale)
}

/// Calls `work(start, row)` for each row of `n` elements, on several threads if there is enough to do.
fn each_row<R: Real>(out: StoredMut<'_, R>, n: usize, work: &(dyn Fn(usize, StoredMut<'_, R>) + Sync)) {
    if out.len() == 0 {
        return;
    }
    let rows = (CHUNK / n).max(1);
    out.for_each_chunk(rows * n, &|i, mut chunk| {
        for start in (0..chunk.len()).step_by(n) {
            work(i * rows * n + start, chunk.part(start, n));
        }
    });
}

/// `out = (x − mean) · scale · weight + bias`, for rows of `n` elements.
pub(crate) fn layer_norm<R: Real>(
    x: Stored<'_, R>,
    [weight, bias]: [Option<Stored<'_, R>>; 2],
    (n, eps): (usize, R),
    out: StoredMut<'_, R>,
) {
    each_row(out, n, &|start, out| {
        let x = x.part(start, n);
        let (mean, scale) = scale_of(x, eps);
        let write = |[x, weight, bias]: [R; 3]| (x - mean) * scale * weight + bias;
        match (weight, bias) {
            (Some(weight), Some(bias)) => map([x, weight, bias], out, write),
            (Some(weight), None) => map([x, weight], out, |[x, weight]| (x - mean) * scale * weight),
            _ => map([x], out, |[x]| (x - mean) * scale),
        }
    });
}

/// The gradient of the input, from the input and the gradient of the result.
pub(crate) fn layer_norm_grad<R: Real>(
    [x, grad]: [Stored<'_, R>; 2],
    weight: Option<Stored<'_, R>>,
    (n, eps): (usize, R),
    out: StoredMut<'_, R>,
) {
    let count = R::from_f64(n as f64);
    each_row(out, n, &|start, out| {
        let (x, grad) = (x.part(start, n), grad.part(start, n));
        let (mean, scale) = scale_of(x, eps);
        let normal = |x: R| (x - mean) * scale;
        let both = |x: R, h: R| [h, h * normal(x)];
        let [sum, dot] = match weight {
            Some(weight) => sums([x, grad, weight], |[x, grad, weight]| both(x, grad * weight)),
            None => sums([x, grad], |[x, grad]| both(x, grad)),
        };
        let (sum, dot) = (sum / count, dot / count);
        let change = |x: R, h: R| scale * (h - sum - normal(x) * dot);
        match weight {
            Some(weight) => map([x, grad, weight], out, |[x, grad, weight]| change(x, grad * weight)),
            None => map([x, grad], out, |[x, grad]| change(x, grad)),
        }
    });
}

/// The gradients of weight and bias, one after the other.
pub(crate) fn layer_norm_sums<R: Real>(
    [x, grad]: [Stored<'_, R>; 2],
    (n, eps): (usize, R),
    mut out: StoredMut<'_, R>,
) -> Result<()> {
    let rows = x.len() / n;
    let part_rows = rows.div_ceil(PARTS).max(CHUNK / n).max(1);
    scratch::with(rows.div_ceil(part_rows) * 2 * n, |parts: &mut [f64]| {
        for_each_chunk_mut(parts, 2 * n, |i, part| {
            part.fill(0.0);
            let (weight, bias) = part.split_at_mut(n);
            for row in (i * part_rows..rows).take(part_rows) {
                add_row([x, grad].map(|all| all.part(row * n, n)), eps, [weight, bias]);
            }
        });
        out.each_piece(|first, out| {
            for (j, out) in (first..).zip(out) {
                *out = R::from_f64(parts[j..].iter().step_by(2 * n).sum());
            }
        });
        Ok(())
    })
}

/// Adds what a row gives to the gradients of weight and bias.
fn add_row<R: Real>([x, grad]: [Stored<'_, R>; 2], eps: R, [weight, bias]: [&mut [f64]; 2]) {
    let (mean, scale) = scale_of(x, eps);
    let pieces = weight.chunks_mut(PIECE).zip(bias.chunks_mut(PIECE));
    for (i, (weight, bias)) in pieces.enumerate() {
        let inputs = [x, grad].map(|all| all.part(i * PIECE, weight.len()));
        with_widened(inputs, |[x, grad]| {
            let (weight, bias) = (&mut *weight, &mut *bias);
            simd::vectorized(
                #[inline(always)]
                move || {
                    for (((weight, bias), &x), &grad) in weight.iter_mut().zip(bias).zip(x).zip(grad) {
                        *weight += wide(grad * ((x - mean) * scale));
                        *bias += wide(grad);
                    }
                },
            );
        });
    }
}

/// `out[i] = f(inputs[..][i])`, for inputs of one length.
pub(super) fn map<R: Real, const N: usize>(
    inputs: [Stored<'_, R>; N],
    mut out: StoredMut<'_, R>,
    f: impl Fn([R; N]) -> R + Copy,
) {
    let is_plain = matches!(out, StoredMut::Plain(_)) && inputs.iter().all(|input| matches!(input, Stored::Plain(_)));
    let (len, piece) = (out.len(), if is_plain { out.len() } else { PIECE });
    for start in (0..len).step_by(piece.max(1)) {
        let len = piece.min(len - start);
        out.write(start, len, |out| {
            with_widened(inputs.map(|input| input.part(start, len)), |inputs| {
                let out = &mut *out;
                simd::vectorized(
                    #[inline(always)]
                    move || {
                        let inputs = inputs.map(|input| &input[..out.len()]);
                        for (i, out) in out.iter_mut().enumerate() {
                            *out = f(nth(&inputs, i));
                        }
                    },
                );
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_largest<R: Real>(row: Vec<R>, is_constant: bool) {
        let n = row.len();
        let (mut out, mut grad) = (vec![R::ONE; n], vec![R::ONE; n]);
        layer_norm(row[..].into(), [None; 2], (n, R::from_f64(1e-5)), (&mut out[..]).into());
        let ones = vec![R::ONE; n];
        layer_norm_grad([row[..].into(), ones[..].into()], None, (n, R::from_f64(1e-5)), (&mut grad[..]).into());
        assert!(out.iter().all(|&y| y == R::ZERO || is_constant && !y.is_nan()), "{out:?}");
        assert!(grad.iter().all(|grad| !grad.is_nan()), "{grad:?}");
    }

    fn check<R: Real>() {
        for n in [4, 70, 3_000] {
            let cycle = |values: &[R]| (0..n).map(|i| values[i % values.len()]).collect::<Vec<R>>();
            check_largest(cycle(&[R::LARGEST, R::LARGEST, R::ONE, R::ZERO]), false);
            check_largest(cycle(&[R::LARGEST, -R::LARGEST]), false);
            check_largest(cycle(&[R::LARGEST]), true);
        }
    }

    #[test]
    fn rows_of_the_largest_numbers_become_zero_and_not_nan() {
        check::<f32>();
        check::<f64>();
    }
}
