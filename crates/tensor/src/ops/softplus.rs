//! Softplus, ln(1 + e^(β·x)) / β, and the logarithm of the sigmoid.

use super::elementwise::{binary, formula, scalar, unary};
use super::fused::mixed;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{Real, Scalar};
use crate::error::Result;
use crate::inlined::Array;
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, per_type};
use crate::tensor::Tensor;

impl Tensor {
    /// ln(1 + e^(β·x)) / β of every element, a smooth [`relu`](Tensor::relu); x itself where β·x is above `threshold`.
    /// PyTorch's defaults are 1 and 20.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let y = Tensor::new([0.0, 30.0])?.softplus(1.0, 20.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [2_f32.ln(), 30.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn softplus(&self, beta: f64, threshold: f64) -> Result<Tensor> {
        let [beta, threshold] = [beta, threshold].mapped(Scalar::Float);
        apply(Softplus(SoftplusParams { beta, threshold }), [self])
    }
}

unary! {
    /// ln(1 / (1 + e⁻ˣ)) of every element, without overflow.
    log_sigmoid = LogSigmoid, Output, Same, map1_longest: |x| (if x > R::ZERO { R::ZERO } else { x }) - (-x.magnitude()).log1p_exp(),
    "(x > 0 ? R(0) : x) - log1p_exp(-magnitude(x))", |saved, grad| apply(LogSigmoidGrad, [grad, saved.output()])
}
// The derivative of log_sigmoid with the result y: 1 / (1 + eˣ) = 1 − eʸ.
binary! { LogSigmoidGrad: Real, "log_sigmoid's gradient", Inputs, map2_long: |grad, y| grad * y.one_minus_exp_below(),
"-grad * expm1(y)", |saved, h| [
    apply(LogSigmoidGrad, [h, saved.input(1)]),
    h.mul(saved.input(0))?.mul(&saved.input(1).exp()?)?.neg(),
] }

per_type! { LogSigmoidGrad[2]: Real }

#[derive(Clone, Copy)]
struct SoftplusParams {
    beta: Scalar,
    threshold: Scalar,
}

struct Softplus(SoftplusParams);
scalar! { Softplus: Real, "softplus", Inputs, F32UnderAutocast, |op| [beta = op.0.beta, inverse = Scalar::Float(1.0 / op.0.beta.to_f64()), threshold = op.0.threshold],
|x| {
    let z = x * beta;
    let soft = ((if z < T::ZERO { T::ZERO } else { z }) + (-z.magnitude()).log1p_exp()) * inverse;
    if z > threshold { x } else { soft }
}, by map1_longest,
"x * beta > threshold ? x : ((x * beta < 0 ? R(0) : x * beta) + log1p_exp(-magnitude(x * beta))) * inverse",
|saved, grad| apply(SoftplusGrad(op.0), [grad, saved.input(0)]) }

/// The gradient times the sigmoid of β·x, or the gradient where β·x is above the threshold: the derivative of
/// [`Softplus`].
struct SoftplusGrad(SoftplusParams);
mixed! { SoftplusGrad[2]: Real, "softplus's gradient", [grad, x], |op| [beta = op.0.beta, threshold = op.0.threshold],
|R| { let z = x * beta; if z > threshold { grad } else { grad * z.sigmoid() } }, map2_long,
"x * beta > threshold ? grad : grad * sigmoid(x * beta)" }

impl Derivative<2> for SoftplusGrad {
    const SAVES: Saves = Saves::Inputs;

    /// With `h` the incoming gradient and s the sigmoid of β·x: this operation applied to `h` for `g`, and h · g · β
    /// · s · (1 − s) for `x`, but 0 above the threshold.
    fn backward(&self, saved: &Saved<'_, 2>, h: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (grad, x) = (saved.input(0), saved.input(1));
        let for_x = || {
            let z = x.times_scalar(self.0.beta)?;
            let s = z.sigmoid()?;
            let slope = s.mul(&s.scalar_minus(1.0.into())?)?.times_scalar(self.0.beta)?;
            h.mul(grad)?.mul(&slope)?.masked_fill(&z.gt_scalar(self.0.threshold.to_f64())?, 0.0)
        };
        Ok([saved.grad_of(0, || apply(SoftplusGrad(self.0), [h, x]))?, saved.grad_of(1, for_x)?])
    }
}
