//! The derivative of a number divided by a tensor.

use super::elementwise::formula;
use super::fused::mixed;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{Real, Scalar};
use crate::error::Result;
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, per_type};
use crate::tensor::Tensor;

/// −g · dividend / x²: the derivative of a number over a tensor. It is one operation, because its parts may be too
/// large for halves.
pub(super) struct ScalarOverGrad(pub(super) Scalar);
mixed! { ScalarOverGrad[2]: Real, "div's gradient", [grad, x], |op| [dividend = op.0],
|R| -(grad * dividend / x / x), map2, "-(grad * dividend / x / x)" } // x² could overflow, or become 0

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
