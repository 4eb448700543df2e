//! The squared differences of two tensors, added up in one pass, and their gradient.

use crate::autograd::{Saved, is_grad_enabled, record};
use crate::cpu;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::op::{Derivative, Saves, on_cpu};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor, by_real};

const OP: &str = "mse_loss";

/// `factor · Σ (x − target)²` on the CPU, for tensors of one shape and precision. Half types are computed in `f32` and
/// rounded once, because their squares overflow early.
pub(super) fn squared_distance(x: &Tensor, target: &Tensor, factor: f64) -> Result<Tensor> {
    let [x, target] = [x.raw().gap_free_in_graph()?, target.raw().gap_free_in_graph()?];
    let inputs = [Some(&x), Some(&target)];
    let out = on_cpu(OP, inputs, (Shape::SCALAR, x.dtype()), &mut |inputs, out| {
        by_real!(inputs.dtype(), R => {
            let [x, target] = inputs.views::<R>().mapped(|view| view.data);
            let total = cpu::total([x, target], #[inline(always)] |[x, target]: [R; 2]| (x - target) * (x - target));
            out.stored().fill(R::from_f64(total.map_err(Error::scratch(OP))? * factor));
            Ok(())
        })
    })?;
    Ok(record(OP, SquaredDistance { factor }, inputs, out).typed())
}

struct SquaredDistance {
    factor: f64,
}

impl Derivative<2> for SquaredDistance {
    const SAVES: Saves = Saves::Inputs;

    /// 2 · factor · g · (x − target) for `x`, and the negative for `target`.
    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let factor = 2.0 * self.factor;
        let gradient = |of: usize| {
            let (x, from) = (saved.input(of), saved.input(1 - of));
            match is_grad_enabled() {
                true => x.widened()?.sub(&from.widened()?)?.mul(&grad.widened()?.mul_scalar(factor)?),
                false => scaled_difference([x, from, grad].mapped(Tensor::raw), factor).map(Raw::typed),
            }
        };
        Ok([saved.grad_of(0, || gradient(0))?, saved.grad_of(1, || gradient(1))?])
    }
}

/// `factor · g · (x − target)` for a single number g.
fn scaled_difference([x, target, grad]: [&Raw; 3], factor: f64) -> Result<Raw> {
    let inputs = [x, target, grad].mapped(Some);
    on_cpu(OP, inputs, (*x.shape(), x.dtype()), &mut |inputs, out| {
        by_real!(inputs.dtype(), R => {
            let [x, target, grad] = inputs.views::<R>();
            let factor = grad.data.get(0) * R::from_f64(factor);
            cpu::map2(x, target, out.stored(), #[inline(always)] move |x: R, target: R| (x - target) * factor);
            Ok(())
        })
    })
}
