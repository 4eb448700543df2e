//! The squared differences of two tensors, added up in one pass, and their gradient.

use crate::autograd::{Saved, is_grad_enabled};
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::element::Real;
use crate::error::{Error, Result};
use crate::op::{CpuKernel, Inputs, Op, Saves, apply, per_type};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// `factor · Σ (x − target)²` on the CPU, for tensors of one shape and precision.
pub(super) fn squared_distance(x: &Tensor, target: &Tensor, factor: f64) -> Result<Tensor> {
    apply(SquaredDistance { factor }, [x, target])
}

/// Computed in the computing type, and rounded once: the squares of half types overflow early.
struct SquaredDistance {
    factor: f64,
}

per_type! { SquaredDistance[2]: Real }

impl Op<2> for SquaredDistance {
    const NAME: &'static str = "mse_loss";
    const SAVES: Saves = Saves::Inputs;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, _: [&Shape; 2]) -> Result<Shape> {
        Shape::new(&[])
    }

    fn cuda(&self, _: &CudaDevice, _: [CudaView<'_>; 2], _: CudaOut<'_>) -> Result<()> {
        unreachable!("devices compute the loss in other operations")
    }

    /// 2 · factor · g · (x − target) for `x`, and the negative for `target`.
    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let gradient = |of: usize| {
            let (x, from) = (saved.input(of), saved.input(1 - of));
            match is_grad_enabled() {
                true => x.widened()?.sub(&from.widened()?)?.mul(&grad.widened()?.mul_scalar(2.0 * self.factor)?),
                false => apply(Difference { factor: 2.0 * self.factor }, [x, from, grad]),
            }
        };
        Ok([saved.grad_of(0, || gradient(0))?, saved.grad_of(1, || gradient(1))?])
    }
}

impl<R: Real> CpuKernel<R, 2> for SquaredDistance {
    type Out = R;

    fn cpu(&self, [x, target]: [CpuView<'_, R>; 2], mut out: StoredMut<'_, R>) -> Result<()> {
        let total = cpu::total(
            [x.data, target.data],
            #[inline(always)]
            |[x, target]: [R; 2]| (x - target) * (x - target),
        );
        out.fill(R::from_f64(total.map_err(Error::scratch("mse_loss"))? * self.factor));
        Ok(())
    }
}

/// `factor · g · (x − target)` for a single number g; never recorded.
struct Difference {
    factor: f64,
}

per_type! { Difference[3]: Real }

impl Op<3> for Difference {
    const NAME: &'static str = "mse_loss";
    const SAVES: Saves = Saves::Nothing;
    const INPUTS: Inputs = Inputs::Broadcast;

    fn out_shape(&self, [x, ..]: [&Shape; 3]) -> Result<Shape> {
        Ok(*x)
    }

    fn cuda(&self, _: &CudaDevice, _: [CudaView<'_>; 3], _: CudaOut<'_>) -> Result<()> {
        unreachable!("devices compute the loss in other operations")
    }

    fn backward(&self, _: &Saved<'_, 3>, _: &Tensor) -> Result<[Option<Tensor>; 3]> {
        unreachable!("a recorded derivative is made of other operations")
    }
}

impl<R: Real> CpuKernel<R, 3> for Difference {
    type Out = R;

    fn cpu(&self, [x, target, grad]: [CpuView<'_, R>; 3], out: StoredMut<'_, R>) -> Result<()> {
        let factor = grad.data.get(0) * R::from_f64(self.factor);
        cpu::map2(
            x,
            target,
            out,
            #[inline(always)]
            move |x: R, target: R| (x - target) * factor,
        );
        Ok(())
    }
}
