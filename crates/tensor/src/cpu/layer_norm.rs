//! Layer normalization of rows, and its gradients. Everything is computed in `T::Real`.

use pagelock_memory::Result;

use super::sums::{sums, wide};
use super::{CHUNK, simd};
use crate::element::{Element, Floating, Real};
use crate::parallel::for_each_chunk_mut;
use crate::scratch;

/// The most parts of the rows that are added up by themselves.
const PARTS: usize = 64;

/// The mean of a row, and what its deviations are multiplied by: 1 / √(variance + eps).
fn scale_of<T: Floating>(x: &[T], eps: T::Real) -> (T::Real, T::Real) {
    let n = T::Real::from_f64(x.len() as f64);
    let [sum] = sums([x], |[x]| [x]);
    let mean = sum / n;
    let [squares] = sums([x], |[x]| [(x - mean) * (x - mean)]);
    (mean, T::Real::ONE / (squares / n + eps).sqrt())
}

/// Calls `work(first row, rows)` for chunks of whole rows, on several threads if there is enough to do.
fn in_rows<T: Send>(out: &mut [T], n: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    if out.is_empty() {
        return;
    }
    let rows = (CHUNK / n).max(1);
    for_each_chunk_mut(out, rows * n, |i, chunk| work(i * rows, chunk));
}

/// `out = (x − mean) · scale · weight + bias`, for rows of `n` elements.
pub(crate) fn layer_norm<T: Floating>(
    x: &[T],
    [weight, bias]: [Option<&[T]>; 2],
    (n, eps): (usize, T::Real),
    out: &mut [T],
) {
    in_rows(out, n, |first, out| {
        for (out, x) in out.chunks_exact_mut(n).zip(x[first * n..].chunks_exact(n)) {
            let (mean, scale) = scale_of(x, eps);
            let write = |[x, weight, bias]: [T::Real; 3]| (x - mean) * scale * weight + bias;
            match (weight, bias) {
                (Some(weight), Some(bias)) => map([x, weight, bias], out, write),
                (Some(weight), None) => map([x, weight], out, |[x, weight]| (x - mean) * scale * weight),
                _ => map([x], out, |[x]| (x - mean) * scale),
            }
        }
    });
}

/// The gradient of the input, from the input and the gradient of the result.
pub(crate) fn layer_norm_grad<T: Floating>(
    [x, grad]: [&[T]; 2],
    weight: Option<&[T]>,
    (n, eps): (usize, T::Real),
    out: &mut [T],
) {
    let count = T::Real::from_f64(n as f64);
    in_rows(out, n, |first, out| {
        let rows = x[first * n..].chunks_exact(n).zip(grad[first * n..].chunks_exact(n));
        for (out, (x, grad)) in out.chunks_exact_mut(n).zip(rows) {
            let (mean, scale) = scale_of(x, eps);
            let normal = |x: T::Real| (x - mean) * scale;
            let both = |x: T::Real, h: T::Real| [h, h * normal(x)];
            let [sum, dot] = match weight {
                Some(weight) => sums([x, grad, weight], |[x, grad, weight]| both(x, grad * weight)),
                None => sums([x, grad], |[x, grad]| both(x, grad)),
            };
            let (sum, dot) = (sum / count, dot / count);
            let change = |x: T::Real, h: T::Real| scale * (h - sum - normal(x) * dot);
            match weight {
                Some(weight) => map([x, grad, weight], out, |[x, grad, weight]| change(x, grad * weight)),
                None => map([x, grad], out, |[x, grad]| change(x, grad)),
            }
        }
    });
}

/// The gradients of weight and bias, one after the other.
pub(crate) fn layer_norm_sums<T: Floating>(
    [x, grad]: [&[T]; 2],
    (n, eps): (usize, T::Real),
    out: &mut [T],
) -> Result<()> {
    let rows = x.len() / n;
    let part_rows = rows.div_ceil(PARTS).max(CHUNK / n).max(1);
    scratch::with(rows.div_ceil(part_rows) * 2 * n, |parts: &mut [f64]| {
        for_each_chunk_mut(parts, 2 * n, |i, part| {
            part.fill(0.0);
            let (weight, bias) = part.split_at_mut(n);
            let rows = x.chunks_exact(n).zip(grad.chunks_exact(n)).skip(i * part_rows).take(part_rows);
            for (x, grad) in rows {
                let (mean, scale) = scale_of(x, eps);
                simd::vectorized(
                    #[inline(always)]
                    || {
                        for (((weight, bias), x), grad) in weight.iter_mut().zip(&mut *bias).zip(x).zip(grad) {
                            let (x, grad) = (x.to_real(), grad.to_real());
                            *weight += wide(grad * ((x - mean) * scale));
                            *bias += wide(grad);
                        }
                    },
                );
            }
        });
        for (j, out) in out.iter_mut().enumerate() {
            *out = T::from_real(T::Real::from_f64(parts[j..].iter().step_by(2 * n).sum()));
        }
        Ok(())
    })
}

/// `out[i] = f(inputs[..][i])`, for inputs of one length.
pub(super) fn map<T: Floating, const N: usize>(inputs: [&[T]; N], out: &mut [T], f: impl Fn([T::Real; N]) -> T::Real) {
    simd::vectorized(
        #[inline(always)]
        move || {
            let inputs = inputs.map(|input| &input[..out.len()]);
            for (i, out) in out.iter_mut().enumerate() {
                *out = T::from_real(f(std::array::from_fn(|k| inputs[k][i].to_real())));
            }
        },
    );
}
