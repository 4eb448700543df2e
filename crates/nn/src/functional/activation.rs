//! Activation functions, composed of other operations. They match PyTorch, also at the kinks.

use pagelock_tensor::{Generator, Result, Tensor, no_grad};

use super::shared::{along_channels, computed, signed, wrong_argument, wrong_shape};

/// How [`gelu`] is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approximate {
    /// With the error function.
    #[default]
    None,
    /// With the hyperbolic tangent, as GPT-2 does.
    Tanh,
}

/// x · Φ(x), where Φ is the cumulative distribution function of the standard normal distribution.
///
/// ```
/// use pagelock_nn::functional::{self as F, Approximate};
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::new([1.0])?;
/// assert!((F::gelu(&x, Approximate::None)?.item::<f32>()? - 0.841345).abs() < 1e-6);
/// assert!((F::gelu(&x, Approximate::Tanh)?.item::<f32>()? - 0.841192).abs() < 1e-6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// The result does not fit the memory budget.
pub fn gelu(x: &Tensor, approximate: Approximate) -> Result<Tensor> {
    match approximate {
        Approximate::None => x.gelu(),
        Approximate::Tanh => x.gelu_tanh(),
    }
}

/// x · sigmoid(x), also called swish.
///
/// # Errors
/// The result does not fit the memory budget.
pub fn silu(x: &Tensor) -> Result<Tensor> {
    x.silu()
}

/// x above 0, `negative_slope · x` elsewhere.
///
/// # Errors
/// The result does not fit the memory budget.
pub fn leaky_relu(x: &Tensor, negative_slope: f64) -> Result<Tensor> {
    x.leaky_relu(negative_slope)
}

/// x above 0, and x times a slope elsewhere. While `training`, `generator` draws a slope between `lower` and `upper`
/// for each element; otherwise the slope is their mean.
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `lower` is above `upper`.
pub fn rrelu(x: &Tensor, lower: f64, upper: f64, training: bool, generator: &Generator) -> Result<Tensor> {
    if lower.partial_cmp(&upper).is_none_or(std::cmp::Ordering::is_gt) {
        return Err(wrong_argument("rrelu", "lower", lower, &format!("at most `upper`, {upper}")));
    }
    if !training {
        return leaky_relu(x, (lower + upper) / 2.0);
    }
    computed(x, |x| {
        let slopes = Tensor::on(&x.device()).of(x.dtype()).rand_with(x.shape(), generator)?;
        let below = x.mul(&slopes.mul_scalar(upper - lower)?.add_scalar(lower)?)?;
        x.where_cond(&x.gt_scalar(0.0)?, &below)
    })
}

/// x above 0, `alpha · (eˣ − 1)` elsewhere.
///
/// # Errors
/// The result does not fit the memory budget.
pub fn elu(x: &Tensor, alpha: f64) -> Result<Tensor> {
    x.elu(alpha, 1.0, 1.0)
}

/// x above 0, `alpha · (e^(x / alpha) − 1)` elsewhere.
///
/// # Errors
/// `alpha` is 0.
pub fn celu(x: &Tensor, alpha: f64) -> Result<Tensor> {
    if alpha == 0.0 {
        return Err(wrong_argument("celu", "alpha", alpha, "nonzero"));
    }
    x.elu(alpha, 1.0, 1.0 / alpha)
}

/// [`elu`] with the constants that keep mean 0 and variance 1 from layer to layer (Klambauer et al., 2017,
/// <https://arxiv.org/abs/1706.02515>).
///
/// # Errors
/// The result does not fit the memory budget.
pub fn selu(x: &Tensor) -> Result<Tensor> {
    x.elu(SELU_ALPHA, SELU_SCALE, 1.0)
}

/// The constants of the SELU paper, in `f64` precision.
pub(crate) const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
pub(crate) const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// log(1 + e^(beta · x)) / beta, and x where `beta · x` is above `threshold`.
///
/// # Errors
/// `beta` is 0.
pub fn softplus(x: &Tensor, beta: f64, threshold: f64) -> Result<Tensor> {
    if beta == 0.0 {
        return Err(wrong_argument("softplus", "beta", beta, "nonzero"));
    }
    x.softplus(beta, threshold)
}

/// x clamped to `min..=max`. The gradient is 0 outside of the bounds and at them.
///
/// # Errors
/// `min` is above `max`.
pub fn hardtanh(x: &Tensor, min: f64, max: f64) -> Result<Tensor> {
    if min > max {
        return Err(wrong_argument("hardtanh", "min", min, &format!("at most max, which is {max}")));
    }
    x.clamp(min, max)
}

/// x clamped to `0..=6`.
///
/// # Errors
/// The result does not fit the memory budget.
pub fn relu6(x: &Tensor) -> Result<Tensor> {
    hardtanh(x, 0.0, 6.0)
}

/// `relu6(x + 3) / 6`.
///
/// # Errors
/// The result does not fit the memory budget.
pub fn hardsigmoid(x: &Tensor) -> Result<Tensor> {
    computed(x, |x| relu6(&x.add_scalar(3.0)?)?.div_scalar(6.0))
}

/// x · [`hardsigmoid`]`(x)`.
///
/// # Errors
/// The result does not fit the memory budget.
pub fn hardswish(x: &Tensor) -> Result<Tensor> {
    computed(x, |x| x.mul(&hardsigmoid(x)?))
}

/// log(1 / (1 + e⁻ˣ)), without overflow.
///
/// # Errors
/// The result does not fit the memory budget.
pub fn logsigmoid(x: &Tensor) -> Result<Tensor> {
    x.log_sigmoid()
}

/// x / (1 + |x|).
///
/// # Errors
/// The result does not fit the memory budget.
pub fn softsign(x: &Tensor) -> Result<Tensor> {
    computed(x, |x| x.div(&x.abs()?.add_scalar(1.0)?))
}

/// x · tanh(log(1 + eˣ)).
///
/// # Errors
/// The result does not fit the memory budget.
pub fn mish(x: &Tensor) -> Result<Tensor> {
    computed(x, |x| x.mul(&x.softplus(1.0, f64::INFINITY)?.tanh()?))
}

/// x − tanh(x).
///
/// # Errors
/// The result does not fit the memory budget.
pub fn tanhshrink(x: &Tensor) -> Result<Tensor> {
    computed(x, |x| x.sub(&x.tanh()?))
}

/// A differentiable draw from the categorical distribution with scores `logits`: [`softmax`](super::softmax) along
/// `dim` of `(logits + g) / tau`, where `generator` draws the elements of g from the Gumbel distribution (Jang et
/// al., 2017, <https://arxiv.org/abs/1611.01144>; Maddison et al., 2017, <https://arxiv.org/abs/1611.00712>).
///
/// - `logits`: `[..]`
/// - `tau`: the temperature, 1 by default in PyTorch; the smaller it is, the closer the result is to 0 and 1
/// - `hard`: whether the result is 1 at its largest element and 0 elsewhere, with the gradient of the soft result
/// - `dim`: the dimension of the categories, −1 by default in PyTorch
/// - result: the shape of `logits`
///
/// A generator in the same state gives the same numbers.
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::{Generator, Tensor};
/// let logits = Tensor::new([[0.0, 100.0, 0.0]])?;
/// let drawn = F::gumbel_softmax(&logits, 1.0, true, -1, &Generator::new(0))?;
/// assert_eq!(drawn.to_vec::<f32>()?, [0.0, 1.0, 0.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `tau` is not above 0, or there is no such dimension.
pub fn gumbel_softmax(logits: &Tensor, tau: f64, hard: bool, dim: isize, generator: &Generator) -> Result<Tensor> {
    if tau.is_nan() || tau <= 0.0 {
        return Err(wrong_argument("gumbel_softmax", "tau", tau, "above 0"));
    }
    logits.size(dim)?;
    computed(logits, |logits| {
        let numbers = no_grad(|| {
            let uniform = Tensor::on(&logits.device()).of(logits.dtype()).rand_with(logits.shape(), generator)?;
            let positive = uniform.clamp_min(f64::from(f32::EPSILON) / 4.0)?; // a drawn 0 has an infinite logarithm
            positive.log()?.neg()?.log()?.neg()
        })?;
        let soft = logits.add(&numbers)?.div_scalar(tau)?.softmax(dim)?;
        if !hard {
            return Ok(soft);
        }
        let hard = no_grad(|| {
            let categories = Tensor::on(&soft.device()).arange(0_i64, soft.size(dim)? as i64, 1)?;
            let n_after = if dim < 0 { -dim - 1 } else { signed(soft.rank()) - dim - 1 };
            let categories = (0..n_after).try_fold(categories, |categories, _| categories.unsqueeze(-1))?;
            soft.argmax_keepdim(dim)?.eq(&categories)?.to_float_of(soft.dtype())
        })?;
        hard.sub(&soft.detach())?.add(&soft)
    })
}

/// x moved towards 0 by `lambda`; 0 where |x| is at most `lambda`.
///
/// # Errors
/// `lambda` is below 0.
pub fn softshrink(x: &Tensor, lambda: f64) -> Result<Tensor> {
    if lambda < 0.0 {
        return Err(wrong_argument("softshrink", "lambda", lambda, "at least 0"));
    }
    x.softshrink(lambda)
}

/// x where |x| is above `lambda`, 0 elsewhere.
///
/// # Errors
/// The result does not fit the memory budget.
pub fn hardshrink(x: &Tensor, lambda: f64) -> Result<Tensor> {
    x.hardshrink(lambda)
}

/// x above `threshold`, and `value` elsewhere.
///
/// # Errors
/// The result does not fit the memory budget.
pub fn threshold(x: &Tensor, threshold: f64, value: f64) -> Result<Tensor> {
    x.threshold(threshold, value)
}

/// x above 0, `weight · x` elsewhere. `weight` is `[1]`, or `[channels]` for the channels in dimension 1 of `x`.
///
/// # Errors
/// `weight` has another shape.
pub fn prelu(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let channels = x.dims().get(1).copied().unwrap_or(1);
    if *weight.shape() != [1] && *weight.shape() != [channels] {
        let expected = format!("for the input {} it must be [1] or [{channels}]", x.shape());
        return Err(wrong_shape("prelu", "the weight", weight.shape(), &expected));
    }
    x.prelu(&if weight.len() == 1 { weight.reshape(())? } else { along_channels(weight, x.rank())? })
}

/// The first half of dimension `dim` times the sigmoid of the second.
///
/// # Errors
/// There is no such dimension, or its size is odd.
pub fn glu(x: &Tensor, dim: isize) -> Result<Tensor> {
    let size = x.size(dim)?;
    if size % 2 == 1 {
        let expected = format!("dimension {dim} has the odd size {size}; give an even one: one half gates the other");
        return Err(wrong_shape("glu", "the input", x.shape(), &expected));
    }
    let half = size / 2;
    computed(x, |x| x.narrow(dim, 0, half)?.mul(&x.narrow(dim, half, half)?.sigmoid()?))
}

/// [`softmax`](super::softmax) of −x.
///
/// # Errors
/// `x` has no such dimension.
pub fn softmin(x: &Tensor, dim: isize) -> Result<Tensor> {
    x.neg()?.softmax(dim)
}

/// x divided by its `p`-norm along `dim`. A norm below `eps` counts as `eps`.
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// let y = F::normalize(&Tensor::new([[3.0, 4.0]])?, 2.0, 1, 1e-12)?;
/// assert_eq!(format!("{y:.1}"), "tensor([[0.6, 0.8]])");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// There is no such dimension.
pub fn normalize(x: &Tensor, p: f64, dim: isize, eps: f64) -> Result<Tensor> {
    computed(x, |x| x.div(&super::distance::norm(x, p, dim)?.clamp_min(eps)?))
}
