//! Variants of ReLU: leaky and parametric ReLU, ELU, thresholds.

use super::elementwise::{formula, scalar};
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

    /// Every element above 0, and every other times that of `weight`, broadcasting.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (x, weight) = (Tensor::new([[-2.0, 3.0], [-4.0, -1.0]])?, Tensor::new([0.5, 0.25])?);
    /// assert_eq!(x.prelu(&weight)?.to_vec::<f32>()?, [-1.0, 3.0, -2.0, -0.25]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the shapes do not fit.
    pub fn prelu(&self, weight: &Tensor) -> Result<Tensor> {
        apply(Prelu, [self, weight])
    }

    /// Every element above `threshold`, and `value` in place of every other. NaN stays NaN.
    ///
    /// # Errors
    /// As [`Tensor::leaky_relu`].
    pub fn threshold(&self, threshold: f64, value: f64) -> Result<Tensor> {
        apply(Threshold([threshold, value]), [self])
    }

    /// Every element whose magnitude is above `lambda`, and 0 in place of every other. PyTorch's default is 0.5.
    ///
    /// # Errors
    /// As [`Tensor::leaky_relu`].
    pub fn hardshrink(&self, lambda: f64) -> Result<Tensor> {
        apply(Hardshrink(Scalar::Float(lambda)), [self])
    }

    /// Every element, moved towards 0 by `lambda`, and 0 in place of those whose magnitude is at most `lambda`.
    /// PyTorch's default is 0.5.
    ///
    /// # Errors
    /// As [`Tensor::leaky_relu`].
    pub fn softshrink(&self, lambda: f64) -> Result<Tensor> {
        apply(Softshrink(Scalar::Float(lambda)), [self])
    }
}

struct LeakyRelu(Scalar);
scalar! { LeakyRelu: Real, "leaky_relu", Inputs, Same, |op| [slope = op.0],
|x| if x > T::ZERO { x } else { x * slope }, "x > 0 ? x : x * slope",
|saved, grad| apply(LeakyReluGrad(op.0), [grad, saved.input(0)]) }

/// The gradient where x is above 0, else the gradient times the slope.
#[derive(Clone, Copy)]
struct LeakyReluGrad(Scalar);
mixed! { LeakyReluGrad[2]: Real, "leaky_relu's gradient", [grad, x], |op| [slope = op.0],
|R| if x > R::ZERO { grad } else { grad * slope }, map2, "x > 0 ? grad : grad * slope" }

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
mixed! { EluGrad[2]: Real, "elu's gradient", [grad, x],
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

struct Prelu;
mixed! { Prelu[2]: Real, "prelu", [x, weight], |_op| [], |R| if x > R::ZERO { x } else { x * weight }, map2,
"x > 0 ? x : x * weight" }

impl Derivative<2> for Prelu {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (x, weight) = (saved.input(0), saved.input(1));
        let of_x = saved.grad_of(0, || apply(PreluGrad, [grad, x, weight]))?;
        Ok([of_x, saved.grad_of(1, || apply(WhereNotPositive, [&grad.mul(x)?, x]))?])
    }
}

/// The gradient where x is above 0, else the gradient times the weight.
struct PreluGrad;
mixed! { PreluGrad[3]: Real, "prelu's gradient", [grad, x, weight], |_op| [],
|R| if x > R::ZERO { grad } else { grad * weight }, map3, "x > 0 ? grad : grad * weight" }

impl Derivative<3> for PreluGrad {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, h: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let [grad, x, weight] = [0, 1, 2].mapped(|i| saved.input(i));
        let of_grad = saved.grad_of(0, || apply(PreluGrad, [h, x, weight]))?;
        Ok([of_grad, None, saved.grad_of(2, || apply(WhereNotPositive, [&h.mul(grad)?, x]))?])
    }
}

/// 0 where x is above 0, also for an infinite or NaN gradient, else the gradient.
#[derive(Clone, Copy)]
struct WhereNotPositive;
mixed! { WhereNotPositive[2]: Real, "prelu's gradient", [grad, x], |_op| [], |R| if x > R::ZERO { R::ZERO } else { grad }, map2,
"x > 0 ? 0 : grad" }

/// The threshold, and the value in place of elements up to it.
struct Threshold([f64; 2]);
scalar! { Threshold: Real, "threshold", Inputs, Same, |op| [most = Scalar::Float(op.0[0]), value = Scalar::Float(op.0[1])],
|x| if x <= most { value } else { x }, "x <= most ? value : x",
|saved, grad| apply(ThresholdGrad(Scalar::Float(op.0[0])), [grad, saved.input(0)]) }

/// 0 where x is at most the threshold, else the gradient.
#[derive(Clone, Copy)]
struct ThresholdGrad(Scalar);
mixed! { ThresholdGrad[2]: Real, "threshold's gradient", [grad, x], |op| [most = op.0], |R| if x <= most { R::ZERO } else { grad },
map2, "x <= most ? 0 : grad" }

struct Hardshrink(Scalar);
scalar! { Hardshrink: Real, "hardshrink", Inputs, Same, |op| [lambda = op.0],
|x| if x >= -lambda && x <= lambda { T::ZERO } else { x }, "x >= -lambda && x <= lambda ? 0 : x",
|saved, grad| apply(ShrinkGrad(op.0), [grad, saved.input(0)]) }

struct Softshrink(Scalar);
scalar! { Softshrink: Real, "softshrink", Inputs, Same, |op| [lambda = op.0],
|x| if x > lambda { x - lambda } else if x < -lambda { x + lambda } else if x.is_nan() { x } else { T::ZERO },
"x > lambda ? x - lambda : x < -lambda ? x + lambda : is_nan(x) ? x : 0",
|saved, grad| apply(ShrinkGrad(op.0), [grad, saved.input(0)]) }

/// The gradient where the magnitude of x is above `lambda`, else 0, also where x is NaN, as in PyTorch.
#[derive(Clone, Copy)]
struct ShrinkGrad(Scalar);
mixed! { ShrinkGrad[2]: Real, "softshrink's gradient", [grad, x], |op| [lambda = op.0],
|R| if x > lambda || x < -lambda { grad } else { R::ZERO }, map2, "x > lambda || x < -lambda ? grad : 0" }

/// The derivative of an operation on a gradient and x that is linear in the gradient, and piecewise constant in x.
macro_rules! linear_in_grad {
    ($($name:ident)+) => {$(
        impl Derivative<2> for $name {
            const SAVES: Saves = Saves::Inputs;

            fn backward(&self, saved: &Saved<'_, 2>, h: &Tensor) -> Result<[Option<Tensor>; 2]> {
                Ok([saved.grad_of(0, || apply(*self, [h, saved.input(1)]))?, None])
            }
        }
    )+};
}
linear_in_grad! { LeakyReluGrad WhereNotPositive ThresholdGrad ShrinkGrad }
