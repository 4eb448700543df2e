//! For each element the product of the others, on the CPU and unrecorded: of all before it, and of all behind it.

use super::scan::Lines;
use crate::cpu;
use crate::element::Real;
use crate::error::{Error, Result};
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
                    scratch::reals(grad.part(start / lines.n, len / lines.n), |grad| {
                        let slabs = x.chunks_exact(slab).zip(out.chunks_exact_mut(slab)).zip(grad.chunks_exact(lines.inner));
                        slabs.into_iter().try_for_each(|((x, out), grad)| of_slab(x, grad, out))
                    })
                }))
            })
        })
        .map_err(Error::scratch(OP))
    })
}

/// What a row is cut into, so that vectors compute it.
const COLUMNS: usize = 16;

/// Of one `[n, inner]`. A row of `n` numbers is one of `[n / COLUMNS, COLUMNS]`, whose columns have others of their own.
fn of_slab<R: Real>(x: &[R], grad: &[R], out: &mut [R]) -> pagelock_memory::Result<()> {
    if let ([grad], true) = (grad, x.len().is_multiple_of(COLUMNS)) {
        behind(x, COLUMNS, out);
        let totals: [R; COLUMNS] = std::array::from_fn(|i| out[i] * x[i]);
        let (mut others, mut ones) = ([R::ZERO; COLUMNS], [*grad]);
        behind(&totals, 1, &mut others);
        before(&totals, &mut ones, &mut others);
        before(x, &mut others, out);
        return Ok(());
    }
    scratch::with(grad.len(), |products: &mut [R]| {
        products.copy_from_slice(grad);
        behind(x, products.len(), out);
        before(x, products, out);
        Ok(())
    })
}

/// The products of what is behind each in its column.
fn behind<R: Real>(x: &[R], inner: usize, out: &mut [R]) {
    cpu::vectorized_widely(
        #[inline(always)]
        || {
            let last = x.len() - inner;
            out[last..].fill(R::ONE);
            for at in (0..last).step_by(inner).rev() {
                let (now, later) = out[at..].split_at_mut(inner);
                for ((now, &later), &x) in now.iter_mut().zip(&*later).zip(&x[at + inner..]) {
                    *now = later * x;
                }
            }
        },
    );
}

/// Multiplies by what is before each in its column, and by `products`, which become those of all.
fn before<R: Real>(x: &[R], products: &mut [R], out: &mut [R]) {
    cpu::vectorized_widely(
        #[inline(always)]
        || {
            for (x, out) in x.chunks_exact(products.len()).zip(out.chunks_exact_mut(products.len())) {
                for ((&x, out), product) in x.iter().zip(out).zip(&mut *products) {
                    *out = *out * *product;
                    *product = *product * x;
                }
            }
        },
    );
}
