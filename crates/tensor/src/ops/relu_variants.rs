//! Variants of ReLU: leaky ReLU and ELU.

use super::elementwise::{formula, scalar};
use super::fused::mixed;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{Real, Scalar};
use crate::error::Result;
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, per_type};
use crate::shape::Shape;
use crate::tensor::Tensor;

impl Tensor {
    /// Every element above 0, and `negative_slope` times every other; PyTorch's default is 0.01.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([-2.0, 3.0])?.leaky_relu(0.5)?.to_vec::<f32>()?, [-1.0, 3.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn leaky_relu(&self, negative_slope: f64) -> Result<Tensor> {
        apply(LeakyRelu(Scalar::Float(negative_slope)), [self])
    }

    /// `scale · x` for every element x above 0, and `scale · alpha · (e^(input_scale · x) − 1)` for every other. ELU has 1
    /// for both scales, CELU has `input_scale` 1 / `alpha`.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let y = Tensor::new([-1.0, 2.0])?.elu(1.0, 1.0, 1.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [(-1_f32).exp_m1(), 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::leaky_relu`].
    pub fn elu(&self, alpha: f64, scale: f64, input_scale: f64) -> Result<Tensor> {
        apply(Elu { above: scale, below: scale * alpha, rate: input_scale }, [self])
    }
}

struct LeakyRelu(Scalar);
scalar! { LeakyRelu: Real, "leaky_relu", Inputs, Same, |op| [slope = op.0],
|x| if x > T::ZERO { x } else { x * slope }, "x > 0 ? x : x * slope",
|saved, grad| apply(LeakyReluGrad(op.0), [grad, saved.input(0)]) }

/// The gradient where x is above 0, else the gradient times the slope.
struct LeakyReluGrad(Scalar);
mixed! { LeakyReluGrad[2]: "leaky_relu's gradient", [grad, x], |op| [slope = op.0],
|R| if x > R::ZERO { grad } else { grad * slope }, map2, "x > 0 ? grad : grad * slope" }

impl Derivative<2> for LeakyReluGrad {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 2>, h: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let of_grad = saved.grad_of(0, || apply(LeakyReluGrad(self.0), [h, saved.input(1)]))?;
        Ok([of_grad, None]) // piecewise constant in x
    }
}

/// `above · x` above 0, else `below · (e^(rate·x) − 1)`.
#[derive(Clone, Copy)]
struct Elu {
    above: f64,
    below: f64,
    rate: f64,
}
scalar! { Elu: Real, "elu", Inputs, Same,
|op| [above = Scalar::Float(op.above), below = Scalar::Float(op.below), rate = Scalar::Float(op.rate)],
|x| if x > T::ZERO { x * above } else { (x * rate).exp_m1() * below }, by map1_longest,
"x > 0 ? x * above : expm1(x * rate) * below",
|saved, grad| apply(EluGrad(Elu { below: op.below * op.rate, ..*op }), [grad, saved.input(0)]) }

/// The gradient times `above` where x is above 0, else times `below · e^(rate·x)`.
struct EluGrad(Elu);
mixed! { EluGrad[2]: "elu's gradient", [grad, x],
|op| [above = Scalar::Float(op.0.above), below = Scalar::Float(op.0.below), rate = Scalar::Float(op.0.rate)],
|R| if x > R::ZERO { grad * above } else { grad * ((x * rate).exp() * below) }, map2_long,
"x > 0 ? grad * above : grad * (exp(x * rate) * below)" }

impl Derivative<2> for EluGrad {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 2>, h: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (grad, x, Elu { above, below, rate }) = (saved.input(0), saved.input(1), self.0);
        let of_x = || apply(EluGrad(Elu { above: 0.0, below: below * rate, rate }), [&h.mul(grad)?, x]);
        Ok([saved.grad_of(0, || apply(EluGrad(Elu { above, below, rate }), [h, x]))?, saved.grad_of(1, of_x)?])
    }
}
