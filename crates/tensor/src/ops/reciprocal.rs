//! The derivative of a number divided by a tensor.

use super::elementwise::formula;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{Real, Scalar};
use crate::error::Result;
use crate::op::{CpuKernel, Derivative, Op, Precision, Saves, apply, per_type};
use crate::tensor::Tensor;

/// −g · dividend / x²: the derivative of a number over a tensor. It is one operation, because its parts may be too
/// large for halves.
pub(super) struct ScalarOverGrad(pub(super) Scalar);

per_type! { ScalarOverGrad[2]: Real }

impl Op<2> for ScalarOverGrad {
    const NAME: &'static str = "div's gradient";
    const PRECISION: Precision = Precision::Widest;

    formula! { 2, "div's gradient", [grad, x], |op| [dividend = op.0], "-(grad * dividend / x / x)" }
}

impl Derivative<2> for ScalarOverGrad {
    const SAVES: Saves = Saves::Inputs;

    /// With `h` the incoming gradient: this operation applied to `h` for `g`, and −2 · h · (the result) / x for `x`.
    fn backward(&self, saved: &Saved<'_, 2>, h: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (grad, x) = (saved.input(0), saved.input(1));
        let of = |grad: &Tensor| apply(ScalarOverGrad(self.0), [grad, x]);
        let for_x = || of(grad)?.div(x)?.mul(h)?.mul_scalar(-2.0);
        Ok([saved.grad_of(0, || of(h))?, saved.grad_of(1, for_x)?])
    }
}

impl<R: Real> CpuKernel<R, 2> for ScalarOverGrad {
    type Out = R;

    fn cpu(&self, [grad, x]: [CpuView<'_, R>; 2], out: StoredMut<'_, R>) -> Result<()> {
        let dividend = R::from_scalar(self.0);
        cpu::map2(
            grad,
            x,
            out,
            #[inline(always)]
            |grad: R, x: R| -(grad * dividend / x / x), // x² could overflow, or become 0
        );
        Ok(())
    }
}
