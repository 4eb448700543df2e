//! For each element the product of all others: of those before it and those behind it. On the CPU, and not recorded.

use super::scan::Lines;
use super::statistics::Times;
use crate::cpu::{self, CpuView, Stored, StoredMut};
use crate::element::Real;
use crate::error::{Error, Result};
use crate::inlined::{Slice, zip};
use crate::op::on_cpu;
use crate::scratch;
use crate::tensor::{Raw, by_real};

/// For each element of `x`, `[outer, n, inner]`, the product of the others along `n`, times `grad`, `[outer, inner]`.
pub(super) fn products_of_others(x: &Raw, grad: &Raw, lines: Lines) -> Result<Raw> {
    const OP: &str = "prod";
    let (x, grad) = (x.gap_free()?, grad.gap_free()?);
    on_cpu(OP, [Some(&x), Some(&grad)], (*x.shape(), x.dtype()), &mut |inputs, out| {
        let Some([slab, piece]) = lines.pieces() else { return Ok(()) };
        by_real!(inputs.dtype(), R => {
            let (x, grad) = (inputs.view::<R>(0).data, inputs.view::<R>(1).data);
            let out = out.stored::<R>();
            if lines.inner == 1 && slab > PART {
                return of_long_rows(x, grad, slab, out).map_err(Error::scratch(OP));
            }
            out.try_for_each_chunk(piece, &|i, out| {
                let (start, len) = (i * piece, out.len());
                scratch::reals_mut(out, |out| scratch::reals(x.part(start, len), |x| {
                    scratch::reals(grad.part(start / lines.n, len / lines.n), |grad| of_slabs(x, grad, (slab, lines.inner), out))
                }))
            })
        })
        .map_err(Error::scratch(OP))
    })
}

/// Elements of a part of a long row. Threads share the parts.
const PART: usize = 16 * 1024;

/// [`products_of_others`] for long rows of `n` elements, row by row.
fn of_long_rows<R: Real>(
    x: Stored<'_, R>,
    grad: Stored<'_, R>,
    n: usize,
    mut out: StoredMut<'_, R>,
) -> pagelock_memory::Result<()> {
    (0..grad.len()).try_for_each(|row| {
        let grad = grad.part(row, 1).widened(&mut [R::ZERO])[0];
        of_long_row(x.part(row * n, n), grad, out.part(row * n, n))
    })
}

/// [`products_of_others`] for one row, in parts. The others of an element are those of its part, and all other parts.
fn of_long_row<R: Real>(x: Stored<'_, R>, grad: R, out: StoredMut<'_, R>) -> pagelock_memory::Result<()> {
    let part = |i: usize| x.part(i * PART, PART.min(x.len() - i * PART));
    scratch::with(2 * x.len().div_ceil(PART), |products: &mut [R]| {
        let (totals, others) = products.split_at_mut(products.len() / 2);
        let whole = x.len() / PART;
        let (of_whole, of_rest) = totals.split_at_mut(whole);
        for (first, shape, totals) in [(0, [whole, PART], of_whole), (whole, [1, x.len() % PART], of_rest)] {
            let parts = CpuView { data: x.part(first * PART, shape[0] * shape[1]), shape: &shape, strides: &[PART, 1] };
            cpu::reduce(parts, 0b10, totals.into(), Times, |product| product);
        }
        suffix_products(totals, 1, others);
        times_prefix_products(totals, &mut [grad], others);
        out.try_for_each_chunk(PART, &|i, out| {
            scratch::reals_mut(out, |out| scratch::reals(part(i), |x| of_slabs(x, &others[i..=i], (x.len(), 1), out)))
        })
    })
}

/// Columns into which a row is cut, so that vectors compute it.
const COLUMNS: usize = 16;

/// [`products_of_others`] for contiguous slabs of `[n, inner]`.
fn of_slabs<R: Real>(x: &[R], grad: &[R], (slab, inner): (usize, usize), out: &mut [R]) -> pagelock_memory::Result<()> {
    if inner == 1 && slab.is_multiple_of(COLUMNS) {
        cpu::vectorized_widely(inlined!(|| {
            for ((x, out), &grad) in zip(zip(x.chunks_exact(slab), out.chunks_exact_mut(slab)), grad) {
                of_row(x, grad, out);
            }
        }));
        return Ok(());
    }
    scratch::with(inner, |products: &mut [R]| {
        let slabs = zip(zip(x.chunks_exact(slab), out.chunks_exact_mut(slab)), grad.chunks_exact(inner));
        for ((x, out), grad) in slabs {
            products.copy_from(grad);
            cpu::vectorized_widely(inlined!(|| {
                suffix_products(x, inner, out);
                times_prefix_products(x, products, out);
            }));
        }
        Ok(())
    })
}

/// [`products_of_others`] for a row, as `[n / COLUMNS, COLUMNS]`. The others of an element are those of its column,
/// and all other columns.
#[inline(always)]
fn of_row<R: Real>(x: &[R], grad: R, out: &mut [R]) {
    suffix_products(x, COLUMNS, out);
    let (mut totals, mut others, mut prefix) = ([R::ONE; COLUMNS], [R::ONE; COLUMNS], grad);
    for ((total, &x), &out) in zip(zip(&mut totals[..], x), &*out) {
        *total = x * out;
    }
    for i in (1..COLUMNS).rev() {
        others[i - 1] = others[i] * totals[i];
    }
    for (other, &total) in zip(&mut others[..], &totals) {
        *other = *other * prefix;
        prefix = prefix * total;
    }
    let (x, out) = (x.as_chunks::<COLUMNS>().0, out.as_chunks_mut::<COLUMNS>().0);
    for (x, out) in zip(x, out) {
        times_prefix_products(x, &mut others, out);
    }
}

/// Writes for each element the product of the elements behind it in its column.
#[inline(always)]
fn suffix_products<R: Real>(x: &[R], inner: usize, out: &mut [R]) {
    let last = x.len() - inner;
    out[last..].set_to(R::ONE);
    for at in (0..last).step_by(inner).rev() {
        let (now, later) = out[at..].split_at_mut(inner);
        for ((now, &later), &x) in zip(zip(&mut now[..], &*later), &x[at + inner..]) {
            *now = later * x;
        }
    }
}

/// Multiplies each element of `out` by `products` and by the elements of `x` before it in its column. In the end,
/// `products` includes the whole columns.
#[inline(always)]
fn times_prefix_products<R: Real>(x: &[R], products: &mut [R], out: &mut [R]) {
    for (x, out) in zip(x.chunks_exact(products.len()), out.chunks_exact_mut(products.len())) {
        for ((&x, out), product) in zip(zip(x, out), &mut *products) {
            *out = *out * *product;
            *product = *product * x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PART;
    use crate::{DType, Tensor};

    /// For each element the product of all before it, times that of all behind it.
    fn others(row: &[f64]) -> Vec<f64> {
        let mut others = vec![1.0; row.len()];
        for i in 1..row.len() {
            others[i] = others[i - 1] * row[i - 1];
        }
        let mut suffix = 1.0;
        for i in (0..row.len()).rev() {
            others[i] *= suffix;
            suffix *= row[i];
        }
        others
    }

    #[test]
    fn others_of_rows_of_several_parts_are_those_of_loops() {
        for n in [PART + 1, 2 * PART, 3 * PART + 37] {
            let mut numbers: Vec<f64> = (0..2 * n).map(|i| 1.0 + 1e-3 * ((i * 7 % 19) as f64 - 9.0)).collect();
            numbers[n + PART] = 0.0; // a factor for all other elements of the second row
            let x = Tensor::from_slice(&numbers, [2, n]).unwrap().set_requires_grad(true);
            let weights = Tensor::of(DType::F64).new([3.0, 5.0]).unwrap();

            x.prod(1).unwrap().mul(&weights).unwrap().sum(..).unwrap().backward().unwrap();

            let grad = x.grad().unwrap().to_vec::<f64>().unwrap();
            for (row, weight) in [(0, 3.0), (1, 5.0)] {
                let expected = others(&numbers[row * n..][..n]);
                for (i, expected) in expected.iter().map(|other| weight * other).enumerate() {
                    let (found, at) = (grad[row * n + i], (row, i));
                    assert!((found - expected).abs() <= 1e-11 * expected.abs(), "{n} {at:?}: {found}, not {expected}");
                }
            }
        }
    }
}
