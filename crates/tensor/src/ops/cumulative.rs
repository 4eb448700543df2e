//! Running extremes, and running logarithms of sums of exponentials, along a dimension. On a device, each step
//! combines a result with the one that is 1, 2, 4, … places before it, so every step doubles the number of elements
//! in each result.

use super::{cat, where_cond};
use crate::autocast::{no_autocast, prepared};
use crate::autograd::{Saved, no_grad, record};
use crate::cpu::{self, math::Functions};
use crate::element::{DType, Num, Real};
use crate::error::{Error, Result};
use crate::inlined::{Array, Slice, zip};
use crate::kind::{Int, Numeric};
use crate::op::{Derivative, Precision, Saves, on_cpu};
use crate::ops::scan::{Lines, recurrence_from_end};
use crate::parallel::try_for_each_chunk_mut;
use crate::scratch;
use crate::tensor::{Raw, Tensor, by_num, by_real};

impl<K: Numeric> Tensor<K> {
    /// For each element, the largest of the elements up to it along a dimension, and its place: the last one of
    /// equals. NaN is larger than all numbers.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (most, places) = Tensor::new([1, 3, 2])?.cummax(0)?;
    /// assert_eq!((most.to_vec::<i64>()?, places.to_vec::<i64>()?), (vec![1, 3, 3], vec![0, 1, 1]));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such dimension.
    pub fn cummax(&self, dim: isize) -> Result<(Tensor<K>, Tensor<Int>)> {
        running_extreme(self.raw(), Extreme::Max, dim)
    }

    /// For each element, the smallest of the elements up to it along a dimension, and its place; see
    /// [`Tensor::cummax`]. NaN is smaller than all numbers here.
    ///
    /// # Errors
    /// As [`Tensor::cummax`].
    pub fn cummin(&self, dim: isize) -> Result<(Tensor<K>, Tensor<Int>)> {
        running_extreme(self.raw(), Extreme::Min, dim)
    }
}

#[derive(Clone, Copy)]
enum Extreme {
    Max,
    Min,
}

fn running_extreme<K: Numeric>(x: &Raw, extreme: Extreme, dim: isize) -> Result<(Tensor<K>, Tensor<Int>)> {
    let op = match extreme {
        Extreme::Max => "cummax",
        Extreme::Min => "cummin",
    };
    let at = x.shape().dim(op, dim)?;
    let (size, dim) = (x.shape()[at], at as isize);
    if x.storage.device().is_cpu() {
        let places = extreme_places(x, op, extreme, at)?;
        return Ok((x.gather(dim, &places)?.typed(), places.typed()));
    }
    let numbers = Tensor::arange(0, size as i64, 1)?.to(x.storage.device())?;
    let column = x.shape().iter().enumerate().map(|(i, &size)| if i == at { size as isize } else { 1 });
    let mut places = numbers.raw().reshape(&column.collect::<Vec<_>>())?.expand(*x.shape())?;
    let mut values = x.without_node();
    for step in steps(size) {
        let [later, earlier] = [(step, &values), (0, &values)].mapped(|(start, x)| x.narrow(dim, start, size - step));
        let (later, earlier) = (later?, earlier?);
        let is_nan = later.ne(&later)?;
        let wins = match extreme {
            Extreme::Max => later.ge(&earlier)?,
            Extreme::Min => later.le(&earlier)?,
        };
        let stays = wins.add(&is_nan)?; // for truth values, `add` is *or*
        values = cat(&[&values.narrow(dim, 0, step)?, &where_cond(op, &stays, &later, &earlier)?], dim)?;
        let chosen =
            where_cond(op, &stays, &places.narrow(dim, step, size - step)?, &places.narrow(dim, 0, size - step)?)?;
        places = cat(&[&places.narrow(dim, 0, step)?, &chosen], dim)?;
    }
    let places = places.contiguous()?;
    Ok((x.gather(dim, &places)?.typed(), places.typed()))
}

/// [`Tensor::logcumsumexp`] on the CPU, unrecorded.
fn running_logarithm(x: &Raw, dim: usize) -> Result<Raw> {
    const OP: &str = "logcumsumexp";
    let x = x.gap_free()?;
    let lines = Lines::along(dim, x.shape());
    on_cpu(OP, [Some(&x)], (*x.shape(), x.dtype()), &mut |inputs, out| {
        let Some([slab, piece]) = lines.pieces() else { return Ok(()) };
        let piece = if lines.inner == 1 { piece.max(ROWS_AT_ONCE * slab) } else { piece };
        by_real!(inputs.dtype(), R => {
            let x = inputs.view::<R>(0).data;
            out.stored::<R>().try_for_each_chunk(piece, &|i, out| {
                scratch::reals_mut(out, |out| scratch::reals(x.part(i * piece, out.len()), |x| {
                    if lines.inner == 1 {
                        let pairs = zip(x.chunks(ROWS_AT_ONCE * slab), out.chunks_mut(ROWS_AT_ONCE * slab));
                        return pairs.into_iter().try_for_each(|(x, out)| rows_side_by_side(x, slab, out));
                    }
                    out.copy_from(x);
                    out.chunks_exact_mut(slab).try_for_each(|out| running_exponentials(out, lines.inner))
                }))
            })
        })
        .map_err(Error::scratch(OP))
    })
}

/// Rows that are computed side by side, in vectors.
const ROWS_AT_ONCE: usize = 16;

/// Running logarithms of at most [`ROWS_AT_ONCE`] rows of `n` numbers.
fn rows_side_by_side<R: Real>(x: &[R], n: usize, out: &mut [R]) -> pagelock_memory::Result<()> {
    let rows = x.len() / n;
    scratch::with(x.len(), |columns: &mut [R]| {
        for (row, x) in x.chunks_exact(n).enumerate() {
            zip(columns.iter_mut().skip(row).step_by(rows), x).for_each(|(to, &x)| *to = x);
        }
        running_exponentials(columns, rows)?;
        for (row, out) in out.chunks_exact_mut(n).enumerate() {
            zip(&mut out[..], columns.iter().skip(row).step_by(rows)).for_each(|(out, &x)| *out = x);
        }
        Ok(())
    })
}

/// Replaces each number by ln Σ eˣ over its column up to it, added up in `f64`; lines have `inner` numbers.
fn running_exponentials<R: Real>(lines: &mut [R], inner: usize) -> pagelock_memory::Result<()> {
    scratch::with(2 * inner, |wide: &mut [f64]| {
        let (before, now) = wide.split_at_mut(inner);
        before.set_to(f64::NEG_INFINITY);
        for line in lines.chunks_exact_mut(inner) {
            zip(&mut now[..], &*line).for_each(|(now, &x)| *now = x.cast());
            add_exponentials(before, now);
            zip(line, &*now).for_each(|(x, &now)| *x = R::from_f64(now));
            before.copy_from(now);
        }
        Ok(())
    })
}

/// ln(eᵃ + eᵇ), computed as in `logaddexp`.
fn add_exponentials(before: &[f64], now: &mut [f64]) {
    cpu::vectorized_widely(inlined!(|| {
        for (b, &a) in zip(&mut now[..], before) {
            let (more, less) = if a > *b || a.is_nan() { (a, *b) } else { (*b, a) };
            *b = if a == *b { a + std::f64::consts::LN_2 } else { more + (less - more).log1p_exp() };
        }
    }));
}

/// The places of running extremes on the CPU.
fn extreme_places(x: &Raw, op: &'static str, extreme: Extreme, dim: usize) -> Result<Raw> {
    let x = x.gap_free()?;
    let lines = Lines::along(dim, x.shape());
    on_cpu(op, [Some(&x)], (*x.shape(), DType::I64), &mut |inputs, out| {
        let Some([slab, piece]) = lines.pieces() else { return Ok(()) };
        by_num!(inputs.dtype(), T => try_for_each_chunk_mut(out.elements::<i64>(), piece, |i, out| {
            let x = inputs.view::<T>(0).data.part(i * piece, out.len());
            scratch::reals(x, |x| {
                for (x, out) in zip(x.chunks_exact(slab), out.chunks_exact_mut(slab)) {
                    match extreme {
                        Extreme::Max => running_places(x, lines.inner, out, |new: T, old: T| new >= old),
                        Extreme::Min => running_places(x, lines.inner, out, |new: T, old: T| new <= old),
                    }
                }
                Ok(())
            })
        }))
        .map_err(Error::scratch(op))
    })
}

/// The places of running extremes of `x`, `[n, inner]`, along its first dimension. NaN always wins.
fn running_places<T: Num>(x: &[T], inner: usize, out: &mut [i64], wins: impl Fn(T, T) -> bool) {
    if inner == 1 {
        let (mut best, mut place) = (x[0], 0);
        for (i, (&x, out)) in zip(0_i64.., zip(x, out)) {
            let is_new = wins(x, best) || x.is_nan();
            (best, place) = if is_new { (x, i) } else { (best, place) };
            *out = place;
        }
        return;
    }
    out[..inner].set_to(0);
    for row in 1..x.len() / inner {
        let (before, out) = out[(row - 1) * inner..].split_at_mut(inner);
        for column in 0..inner {
            let (new, place) = (x[row * inner + column], before[column]);
            let is_new = wins(new, x[place as usize * inner + column]) || new.is_nan();
            out[column] = if is_new { row as i64 } else { place };
        }
    }
}

/// 1, 2, 4, … below a size.
fn steps(size: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1_usize), |step| step.checked_mul(2)).take_while(move |&step| step < size)
}

impl Tensor {
    /// For each element, ln Σ eˣ over the elements up to it along a dimension, without overflow.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such dimension.
    pub fn logcumsumexp(&self, dim: isize) -> Result<Tensor> {
        let at = self.shape().dim("logcumsumexp", dim)?;
        let (size, dim) = (self.shape()[at], at as isize);
        let x = prepared(Precision::F32UnderAutocast, self)?;
        let out = match x.device().is_cpu() {
            true => running_logarithm(x.raw(), at)?,
            false => no_grad(|| no_autocast(|| doubled_logarithms(&x, size, dim)))?.into_raw(),
        };
        Ok(record("logcumsumexp", LogCumSumExp { dim: at }, [Some(x.raw())], out).typed())
    }
}

/// [`Tensor::logcumsumexp`] on a device.
fn doubled_logarithms(x: &Tensor, size: usize, dim: isize) -> Result<Tensor> {
    let wide = x.to_dtype(x.dtype().computing())?;
    let total = steps(size).try_fold(wide, |x, step| {
        let added = x.narrow(dim, step, size - step)?.logaddexp(&x.narrow(dim, 0, size - step)?)?;
        Tensor::cat(&[&x.narrow(dim, 0, step)?, &added], dim)
    })?;
    total.to_dtype(x.dtype())
}

/// The derivative of [`Tensor::logcumsumexp`].
struct LogCumSumExp {
    dim: usize,
}

impl Derivative<1> for LogCumSumExp {
    const SAVES: Saves = Saves::Inputs;

    /// With y the result, ∂/∂x[k] is Σ g[i] · e^(x[k] − y[i]) for i ≥ k, which is e^(x[k] − y[k]) · s[k] with s[k] =
    /// g[k] + e^(y[k] − y[k + 1]) · s[k + 1]: no exponent is above 0. The difference of equal numbers is 0, even if
    /// they are infinite.
    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let difference = |a: &Tensor, b: &Tensor| a.sub(b)?.masked_fill(&a.eq(b)?, 0.0);
        let (x, grad, dim) = (saved.input(0).widened()?, grad.widened()?, self.dim as isize);
        let size = x.shape()[self.dim];
        if x.is_empty() {
            return Ok([Some(x.zeros_like()?)]);
        }
        let y = x.logcumsumexp(dim)?;
        let falls = difference(&y.narrow(dim, 0, size - 1)?, &y.narrow(dim, 1, size - 1)?)?.exp()?;
        let factors = Tensor::cat(&[&y.narrow(dim, 0, 1)?.zeros_like()?, &falls], dim)?;
        let sums = recurrence_from_end(&grad, &factors, self.dim)?;
        Ok([Some(difference(&x, &y)?.exp()?.mul(&sums)?)])
    }
}
