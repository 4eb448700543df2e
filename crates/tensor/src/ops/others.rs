//! For each element the product of the others, on the CPU and unrecorded: of all before it, and of all behind it.

use super::scan::Lines;
use crate::cpu;
use crate::element::Real;
use crate::error::{Error, Result};
use crate::inlined::{Slice, zip};
use crate::op::on_cpu;
use crate::scratch;
use crate::tensor::{Raw, by_real};

/// Of `x`, which is `[outer, n, inner]`, the products of the others along `n`, times `grad`, which is `[outer, inner]`.
pub(super) fn products_of_others(x: &Raw, grad: &Raw, lines: Lines) -> Result<Raw> {
    const OP: &str = "prod";
    let (x, grad) = (x.gap_free()?, grad.gap_free()?);
    on_cpu(OP, [Some(&x), Some(&grad)], (*x.shape(), x.dtype()), &mut |inputs, out| {
        let Some([slab, piece]) = lines.pieces() else { return Ok(()) };
        by_real!(inputs.dtype(), R => {
            let (x, grad) = (inputs.view::<R>(0).data, inputs.view::<R>(1).data);
            out.stored::<R>().try_for_each_chunk(piece, &|i, out| {
                let (start, len) = (i * piece, out.len());
                scratch::reals_mut(out, |out| scratch::reals(x.part(start, len), |x| {
                    scratch::reals(grad.part(start / lines.n, len / lines.n), |grad| of_slabs(x, grad, (slab, lines.inner), out))
                }))
            })
        })
        .map_err(Error::scratch(OP))
    })
}

/// What a row is cut into, so that vectors compute it.
const COLUMNS: usize = 16;

/// Of slabs of `[n, inner]`, behind each other.
fn of_slabs<R: Real>(x: &[R], grad: &[R], (slab, inner): (usize, usize), out: &mut [R]) -> pagelock_memory::Result<()> {
    if inner == 1 && slab.is_multiple_of(COLUMNS) {
        cpu::vectorized_widely(
            #[inline(always)]
            || {
                for ((x, out), &grad) in zip(zip(x.chunks_exact(slab), out.chunks_exact_mut(slab)), grad) {
                    of_row(x, grad, out);
                }
            },
        );
        return Ok(());
    }
    scratch::with(inner, |products: &mut [R]| {
        let slabs = zip(zip(x.chunks_exact(slab), out.chunks_exact_mut(slab)), grad.chunks_exact(inner));
        for ((x, out), grad) in slabs {
            products.copy_from(grad);
            cpu::vectorized_widely(
                #[inline(always)]
                || {
                    behind(x, inner, out);
                    before(x, products, out);
                },
            );
        }
        Ok(())
    })
}

/// Of a row as one of `[n / COLUMNS, COLUMNS]`, whose columns have others of their own.
#[inline(always)]
fn of_row<R: Real>(x: &[R], grad: R, out: &mut [R]) {
    behind(x, COLUMNS, out);
    let (mut totals, mut others, mut ones) = ([R::ONE; COLUMNS], [R::ONE; COLUMNS], grad);
    for ((total, &x), &out) in zip(zip(&mut totals[..], x), &*out) {
        *total = x * out;
    }
    for i in (1..COLUMNS).rev() {
        others[i - 1] = others[i] * totals[i];
    }
    for (other, &total) in zip(&mut others[..], &totals) {
        *other = *other * ones;
        ones = ones * total;
    }
    let (x, out) = (x.as_chunks::<COLUMNS>().0, out.as_chunks_mut::<COLUMNS>().0);
    for (x, out) in zip(x, out) {
        before(x, &mut others, out);
    }
}

/// The products of what is behind each in its column.
#[inline(always)]
fn behind<R: Real>(x: &[R], inner: usize, out: &mut [R]) {
    let last = x.len() - inner;
    out[last..].set_to(R::ONE);
    for at in (0..last).step_by(inner).rev() {
        let (now, later) = out[at..].split_at_mut(inner);
        for ((now, &later), &x) in zip(zip(&mut now[..], &*later), &x[at + inner..]) {
            *now = later * x;
        }
    }
}

/// Multiplies by what is before each in its column, and by `products`, which become those of all.
#[inline(always)]
fn before<R: Real>(x: &[R], products: &mut [R], out: &mut [R]) {
    for (x, out) in zip(x.chunks_exact(products.len()), out.chunks_exact_mut(products.len())) {
        for ((&x, out), product) in zip(zip(x, out), &mut *products) {
            *out = *out * *product;
            *product = *product * x;
        }
    }
}
