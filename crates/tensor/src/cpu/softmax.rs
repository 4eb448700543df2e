//! Softmax, its logarithm and their gradients, for slabs `[n, inner]` along `n`. Everything is computed in `R`. The
//! largest element is subtracted first, so that nothing overflows.

mod columns;
mod rows;
#[cfg(test)]
mod tests;

use pagelock_memory::Result;

pub(crate) use columns::suits_columns;
pub(crate) use rows::{cross_entropy, cross_entropy_grad};
pub(super) use rows::{greater, largest};

use super::{Stored, StoredMut};
use crate::element::Real;

/// `out[j] = exp(x[j]) / Σ exp(x)`, or its logarithm, `x[j] − log Σ exp(x)`, along every column of slabs `[n, inner]`;
/// `inner` is 1, or the columns are [suitable](suits_columns).
pub(crate) fn softmax<R: Real, const LOG: bool>(
    x: Stored<'_, R>,
    slab: [usize; 2],
    out: StoredMut<'_, R>,
) -> Result<()> {
    match LOG {
        false => along_columns::<R, Softmax, 1>([x], slab, out),
        true => along_columns::<R, LogSoftmax, 1>([x], slab, out),
    }
}

/// The gradient of [`softmax`]'s input, where `y` is its output: `out[j] = y[j] · (grad[j] − Σ grad · y)`, or
/// `out[j] = grad[j] − exp(y[j]) · Σ grad` for the logarithm.
pub(crate) fn softmax_grad<R: Real, const LOG: bool>(
    y: Stored<'_, R>,
    grad: Stored<'_, R>,
    slab: [usize; 2],
    out: StoredMut<'_, R>,
) -> Result<()> {
    match LOG {
        false => along_columns::<R, SoftmaxGrad, 2>([y, grad], slab, out),
        true => along_columns::<R, LogSoftmaxGrad, 2>([y, grad], slab, out),
    }
}

fn along_columns<R: Real, F: Formula<N>, const N: usize>(
    inputs: [Stored<'_, R>; N],
    [n, inner]: [usize; 2],
    out: StoredMut<'_, R>,
) -> Result<()> {
    match inner {
        1 => rows::run::<R, F, N>(inputs, n, out),
        _ => columns::run::<R, F, N>(inputs, [n, inner], out),
    }
}

/// A function of columns of `N` inputs: `result(x[j], largest, of_sum(Σ term(x, largest)))`, where `largest` is the
/// largest element of the first input, or 0 unless elements are [shifted](Self::SHIFTED).
trait Formula<const N: usize> {
    const SHIFTED: bool = false;
    /// Whether each result is its term times `of_sum`.
    const SCALES_TERMS: bool = false;

    fn term<R: Real>(x: [R; N], largest: R) -> R;
    #[inline(always)]
    fn of_sum<R: Real>(sum: R) -> R {
        sum
    }
    fn result<R: Real>(x: [R; N], largest: R, of_sum: R) -> R;
}

struct Softmax;

impl Formula<1> for Softmax {
    const SHIFTED: bool = true;
    const SCALES_TERMS: bool = true;

    #[inline(always)]
    fn term<R: Real>([x]: [R; 1], largest: R) -> R {
        (x - largest).exp_below()
    }

    #[inline(always)]
    fn of_sum<R: Real>(sum: R) -> R {
        R::ONE / sum
    }

    #[inline(always)]
    fn result<R: Real>(x: [R; 1], largest: R, factor: R) -> R {
        Self::term(x, largest) * factor
    }
}

struct LogSoftmax;

impl Formula<1> for LogSoftmax {
    const SHIFTED: bool = true;

    #[inline(always)]
    fn term<R: Real>(x: [R; 1], largest: R) -> R {
        Softmax::term(x, largest)
    }

    #[inline(always)]
    fn of_sum<R: Real>(sum: R) -> R {
        sum.ln()
    }

    #[inline(always)]
    fn result<R: Real>([x]: [R; 1], largest: R, log: R) -> R {
        x - largest - log
    }
}

struct SoftmaxGrad;

impl Formula<2> for SoftmaxGrad {
    #[inline(always)]
    fn term<R: Real>([y, grad]: [R; 2], _: R) -> R {
        y * grad
    }

    #[inline(always)]
    fn result<R: Real>([y, grad]: [R; 2], _: R, sum: R) -> R {
        y * (grad - sum)
    }
}

struct LogSoftmaxGrad;

impl Formula<2> for LogSoftmaxGrad {
    #[inline(always)]
    fn term<R: Real>([_, grad]: [R; 2], _: R) -> R {
        grad
    }

    #[inline(always)]
    fn result<R: Real>([y, grad]: [R; 2], _: R, sum: R) -> R {
        grad - y.exp_below() * sum
    }
}
