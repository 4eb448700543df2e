//! Running products along a dimension, and the recurrence that computes their derivative.

use super::{Lines, Wide, combine, cuda, follow, running};
use crate::autograd::{Saved, is_grad_enabled};
use crate::cpu::{CpuView, StoredMut, vectorized};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::element::{Computing, Num, Real};
use crate::error::{Error, Result};
use crate::inlined::{Array, zip};
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, on_cpu, per_type};
use crate::scratch;
use crate::tensor::{Raw, Tensor, by_real};

/// Running products from the start.
pub(super) struct Cumprod {
    pub(super) dim: usize,
}

per_type! { Cumprod[1]: Num }

impl Op<1> for Cumprod {
    const NAME: &'static str = "cumprod";
    const INPUTS: Inputs = Inputs::WithoutGaps;
    const PRECISION: Precision = Precision::F32UnderAutocast;

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        cuda::run(device, (Self::NAME, &cuda::CUMPROD), (x, None), Lines::along(self.dim, x.shape()), false, out)
    }
}

impl Derivative<1> for Cumprod {
    const SAVES: Saves = Saves::Inputs;

    /// With y the products, ∂/∂x[k] = y[k − 1] · Σ g[i] · x[k + 1] ⋯ x[i] for i ≥ k, and the sums are a recurrence
    /// from the end. There is no division, so zeros are no special case.
    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let x = saved.input(0);
        if x.device().is_cpu() && !is_grad_enabled() {
            return Ok([Some(product_grad(grad.raw(), x.raw(), self.dim)?.typed())]);
        }
        let before = shifted(&apply(Cumprod { ..*self }, [x])?, self.dim, 1.0)?;
        let sums = apply(Recurrence { dim: self.dim, reverse: true }, [grad, x])?;
        Ok([Some(before.mul(&sums)?)])
    }
}

/// The derivative of [`Cumprod`] in one pass on the CPU, unrecorded.
fn product_grad(grad: &Raw, x: &Raw, dim: usize) -> Result<Raw> {
    const NAME: &str = "cumprod's gradient";
    let (grad, x) = (grad.gap_free()?, x.gap_free()?);
    let lines = Lines::along(dim, x.shape());
    on_cpu(NAME, [Some(&grad), Some(&x)], (*x.shape(), x.dtype()), &mut |inputs, out| {
        let Some([_, piece]) = lines.pieces() else { return Ok(()) };
        by_real!(inputs.dtype(), R => {
            let [grad, x] = [0, 1].mapped(|i| inputs.view::<R>(i).data);
            out.stored::<R>().try_for_each_chunk(piece, &|i, out| {
                let (start, len) = (i * piece, out.len());
                scratch::reals_mut(out, |out| {
                    scratch::reals(grad.part(start, len), |grad| {
                        scratch::reals(x.part(start, len), |x| {
                            scratch::with(len, |y: &mut [R]| {
                                follow(y, lines, false, |at| x[at], |at, _, y| x[at] * y);
                                follow(out, lines, true, |at| grad[at], |at, before, sum| grad[at] + x[before] * sum);
                                times_before(out, y, lines);
                                Ok(())
                            })
                        })
                    })
                })
            })
        })
        .map_err(Error::scratch(NAME))
    })
}

/// Multiplies each element, except the first of each line, by the element of `y` one place before it.
fn times_before<R: Real>(out: &mut [R], y: &[R], Lines { n, inner, .. }: Lines) {
    vectorized(inlined!(|| {
        for (out, y) in zip(out.chunks_exact_mut(n * inner), y.chunks_exact(n * inner)) {
            for (out, &y) in zip(&mut out[inner..], y) {
                *out = *out * y;
            }
        }
    }));
}

impl<T: Num> CpuKernel<T, 1> for Cumprod {
    type Out = T::Total;

    fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: StoredMut<'_, T::Total>) -> Result<()> {
        let lines = Lines::along(self.dim, x.shape);
        running("cumprod", lines, x, out, |x, out| combine(x, out, lines, false, Wide::<T>::times))
    }
}

/// y[k] = x[k] + a[k] · y[k − 1] along a dimension, with nothing before the first; in reverse y[k] = x[k] + a[k + 1] · y[k + 1].
#[derive(Clone, Copy)]
struct Recurrence {
    dim: usize,
    reverse: bool,
}

/// y[k] = x[k] + a[k + 1] · y[k + 1] along a dimension, with nothing behind the last.
pub(in crate::ops) fn recurrence_from_end(x: &Tensor, a: &Tensor, dim: usize) -> Result<Tensor> {
    apply(Recurrence { dim, reverse: true }, [x, a])
}

per_type! { Recurrence[2]: Real }

impl Op<2> for Recurrence {
    const NAME: &'static str = "cumprod's gradient";
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn cuda(&self, device: &CudaDevice, [x, factors]: [CudaView<'_>; 2], out: CudaOut<'_>) -> Result<()> {
        let lines = Lines::along(self.dim, x.shape());
        cuda::run(device, (Self::NAME, &cuda::RECURRENCE), (x, Some(factors)), lines, self.reverse, out)
    }
}

impl Derivative<2> for Recurrence {
    const SAVES: Saves = Saves::Inputs;

    /// With h the incoming gradient, the gradient of x is v, the same recurrence of h in the other direction. The
    /// gradient of a[k] is v[k] · y[k − 1], in reverse v[k − 1] · y[k].
    fn backward(&self, saved: &Saved<'_, 2>, h: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (x, a) = (saved.input(0), saved.input(1));
        let v = apply(Recurrence { reverse: !self.reverse, ..*self }, [h, a])?;
        let for_a = || {
            let y = apply(*self, [x, a])?;
            match self.reverse {
                true => shifted(&v, self.dim, 0.0)?.mul(&y),
                false => v.mul(&shifted(&y, self.dim, 0.0)?),
            }
        };
        let for_a = saved.grad_of(1, for_a)?;
        Ok([Some(v), for_a])
    }
}

impl<R: Real> CpuKernel<R, 2> for Recurrence {
    type Out = R;

    fn cpu(&self, [x, a]: [CpuView<'_, R>; 2], out: StoredMut<'_, R>) -> Result<()> {
        let lines = Lines::along(self.dim, x.shape);
        let Some([_, piece]) = lines.pieces() else { return Ok(()) };
        let followed = |i: usize, out: StoredMut<'_, R>| {
            scratch::reals_mut(out, |out| {
                let [x, a] = [x, a].mapped(|input| input.data.part(i * piece, out.len()));
                scratch::reals(x, |x| {
                    scratch::reals(a, |a| {
                        match self.reverse {
                            false => follow(out, lines, false, |at| x[at], |at, _, y| x[at] + a[at] * y),
                            true => follow(out, lines, true, |at| x[at], |at, before, y| x[at] + a[before] * y),
                        }
                        Ok(())
                    })
                })
            })
        };
        out.try_for_each_chunk(piece, &followed).map_err(Error::scratch(Self::NAME))
    }
}

/// Elements moved by one place along a dimension, with the number `first` in front of them.
fn shifted(x: &Tensor, dim: usize, first: f64) -> Result<Tensor> {
    let (size, dim) = (x.dims()[dim], dim as isize);
    if size == 0 {
        return Ok(x.clone());
    }
    let front = x.narrow(dim, 0, 1)?.full_like(first)?;
    Tensor::cat(&[&front, &x.narrow(dim, 0, size - 1)?], dim)
}
