//! The Huber loss of each element, in one pass, and its gradient.

use super::elementwise::formula;
use super::fused::mixed;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{Real, Scalar};
use crate::error::Result;
use crate::inlined::Array;
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, per_type};
use crate::tensor::Tensor;

/// `d² / (2 · divisor)` for a difference d = `x − target` with a magnitude below `bound`, else `slope · (|d| − bound / 2)`,
/// where `slope` is `bound / divisor`.
#[derive(Clone, Copy)]
pub(super) struct Huber {
    bound: f64,
    divisor: f64,
    slope: f64,
}

impl Huber {
    pub(super) fn new(bound: f64, divisor: f64) -> Huber {
        Huber { bound, divisor, slope: bound / divisor }
    }

    fn constants(&self) -> [Scalar; 3] {
        [self.bound, self.divisor, self.slope].mapped(Scalar::Float)
    }
}

mixed! { Huber[2]: Real, "huber_loss", [x, target],
|op| [bound = op.constants()[0], divisor = op.constants()[1], slope = op.constants()[2], half = Scalar::Float(0.5)],
|R| {
    let d = (x - target).magnitude();
    if d >= bound { (d - bound * half) * slope } else { d / divisor * d * half }
}, map2,
"magnitude(x - target) >= bound ? (magnitude(x - target) - bound * half) * slope : magnitude(x - target) / divisor * magnitude(x - target) * half" }

impl Derivative<2> for Huber {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (x, target) = (saved.input(0), saved.input(1));
        let of_x = saved.grad_of(0, || apply(HuberGrad(*self), [grad, x, target]))?;
        Ok([of_x, saved.grad_of(1, || apply(HuberGrad(*self), [grad, target, x]))?])
    }
}

/// The gradient times `d / divisor`, or times `±slope` where the magnitude of d = `x − target` is `bound` or more.
struct HuberGrad(Huber);
mixed! { HuberGrad[3]: Real, "huber_loss's gradient", [grad, x, target],
|op| [bound = op.0.constants()[0], divisor = op.0.constants()[1], slope = op.0.constants()[2]],
|R| {
    let d = x - target;
    grad * if d.magnitude() >= bound { slope.with_sign_of(d) } else { d / divisor }
}, map3,
"grad * (magnitude(x - target) >= bound ? copysign(slope, x - target) : (x - target) / divisor)" }

impl Derivative<3> for HuberGrad {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, h: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let [grad, x, target] = [0, 1, 2].mapped(|i| saved.input(i));
        let of_x = || {
            let is_far = x.sub(target)?.abs()?.ge_scalar(self.0.bound)?;
            h.mul(grad)?.div_scalar(self.0.divisor)?.masked_fill(&is_far, 0.0)
        };
        Ok([
            saved.grad_of(0, || apply(HuberGrad(self.0), [h, x, target]))?,
            saved.grad_of(1, of_x)?,
            saved.grad_of(2, || of_x()?.neg())?,
        ])
    }
}
