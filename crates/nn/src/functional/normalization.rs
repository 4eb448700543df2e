//! Normalizing over groups of channels, and dropping whole channels.

use pagelock_tensor::{Generator, IntoShape, Result, Shape, Tensor};

use super::shared::{along_channels, computed, constant, shaped, signed, wrong_argument, wrong_shape};

/// `x · weight + bias`, with one weight and one bias for each channel.
pub(crate) fn affine(x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
    let scaled = match weight {
        Some(weight) => x.mul(&along_channels(weight, x.rank())?)?,
        None => x.clone(),
    };
    match bias {
        Some(bias) => scaled.add(&along_channels(bias, x.rank())?),
        None => Ok(scaled),
    }
}

fn check_per_channel(op: &str, x: &Tensor, channels: usize, all: [Option<&Tensor>; 2]) -> Result<()> {
    for (operand, tensor) in ["the weight", "the bias"].into_iter().zip(all) {
        if let Some(tensor) = tensor
            && *tensor.shape() != [channels]
        {
            let expected = format!("for the input {} it must be [{channels}]", x.shape());
            return Err(wrong_shape(op, operand, tensor.shape(), &expected));
        }
    }
    Ok(())
}

/// Normalizes each of `num_groups` groups of a sample's channels to mean 0 and variance 1, then applies `weight` and
/// `bias`.
///
/// - `x`: `[batch, channels, ..]`
/// - `weight`, `bias`: `[channels]`
/// - result: the shape of `x`
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// let y = F::group_norm(&Tensor::new([[1.0, 3.0, 5.0, 9.0]])?, 2, None, None, 0.0)?;
/// assert_eq!(y.to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `num_groups` does not divide the channels, or weight or
/// bias have another shape.
pub fn group_norm(
    x: &Tensor,
    num_groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    const OP: &str = "group_norm";
    let [batch, channels, len] = rows_of_channels(OP, x)?;
    if channels.checked_rem(num_groups) != Some(0) {
        return Err(wrong_argument(
            OP,
            "num_groups",
            num_groups,
            &format!("a divisor of the {channels} channels of {}", x.shape()),
        ));
    }
    check_per_channel(OP, x, channels, [weight, bias])?;
    affine(&normalized(x, [batch, num_groups, channels / num_groups * len], eps)?, weight, bias)
}

/// The sizes of `x` as `[batch, channels, elements of a channel]`; an error if it has no channels.
fn rows_of_channels(op: &str, x: &Tensor) -> Result<[usize; 3]> {
    match *x.dims() {
        [batch, channels, ref space @ ..] => Ok([batch, channels, space.iter().product()]),
        _ => {
            let expected = "it must be [batch, channels, ..]; unsqueeze a batch dimension";
            Err(wrong_shape(op, "the input", x.shape(), expected))
        }
    }
}

/// Normalizes the rows of `x`, reshaped to `rows`, to mean 0 and variance 1. The result has the shape of `x`.
fn normalized(x: &Tensor, rows: [usize; 3], eps: f64) -> Result<Tensor> {
    if x.is_empty() {
        return Ok(x.clone());
    }
    shaped(&x.reshape(rows.map(signed))?.layer_norm(rows[2], None, None, eps)?, x.shape())
}

/// Normalizes each channel of a sample to mean 0 and variance 1, then applies `weight` and `bias`.
///
/// - `x`: `[batch, channels, ..]` with at least one more dimension
/// - `weight`, `bias`: `[channels]`
/// - result: the shape of `x`
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// let y = F::instance_norm(&Tensor::new([[[1.0, 3.0], [5.0, 9.0]]])?, None, None, 0.0)?;
/// assert_eq!(y.to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `x` has fewer dimensions or one element per channel, or
/// weight or bias have another shape.
pub fn instance_norm(x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    const OP: &str = "instance_norm";
    let [batch, channels, len] = rows_of_channels(OP, x)?;
    if len < 2 && !x.is_empty() {
        return Err(wrong_shape(
            OP,
            "the input",
            x.shape(),
            "a channel needs at least two values; give longer or larger samples",
        ));
    }
    check_per_channel(OP, x, channels, [weight, bias])?;
    affine(&normalized(x, [batch, channels, len], eps)?, weight, bias)
}

/// The last dimensions divided by the root of the mean of their squares, then times `weight`; see [`Tensor::rms_norm`].
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// let y = F::rms_norm(&Tensor::new([3.0, -3.0])?, 2, None, None)?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, -1.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`Tensor::rms_norm`].
pub fn rms_norm(x: &Tensor, normalized: impl IntoShape, weight: Option<&Tensor>, eps: Option<f64>) -> Result<Tensor> {
    x.rms_norm(normalized, weight, eps)
}

/// Each element divided by (k + alpha / size · the sum of the squares of `size` neighboring channels)^beta.
///
/// - `x`: `[batch, channels, ..]`
/// - result: the same
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// let y = F::local_response_norm(&Tensor::new([[[2.0], [2.0]]])?, 1, 1.0, 0.5, 0.0)?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `x` has fewer than three dimensions, or `size` is 0.
pub fn local_response_norm(x: &Tensor, size: usize, alpha: f64, beta: f64, k: f64) -> Result<Tensor> {
    const OP: &str = "local_response_norm";
    let [_, channels, _, ..] = *x.dims() else {
        return Err(wrong_shape(
            OP,
            "the input",
            x.shape(),
            "it must be [batch, channels, ..] with at least one more dimension",
        ));
    };
    if size == 0 {
        return Err(wrong_argument(OP, "size", size, "at least 1"));
    }
    if x.is_empty() {
        return Ok(x.clone()); // without a loop over its channels
    }
    let window = size.min(2 * channels); // a longer one covers all channels, too
    computed(x, |x| {
        let squares = x.mul(x)?;
        let zeros = |count: usize| constant(x, 0.0)?.expand(with_channels(x.shape(), count)?);
        let padded = Tensor::cat(&[&zeros(window / 2)?, &squares, &zeros((window - 1) / 2)?], 1)?;
        let mut sum = padded.narrow(1, 0, channels)?;
        for offset in 1..window {
            sum = sum.add(&padded.narrow(1, offset, channels)?)?;
        }
        x.div(&sum.mul_scalar(alpha / size as f64)?.add_scalar(k)?.pow(beta)?)
    })
}

fn with_channels(shape: &Shape, channels: usize) -> Result<Shape> {
    let mut sizes = shape.to_vec();
    sizes[1] = channels;
    Shape::new(&sizes)
}

/// An error unless `p` is from 0 to 1.
pub(super) fn check_probability(op: &str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) { Ok(()) } else { Err(wrong_argument(op, "p", p, "a probability, 0 to 1")) }
}

/// Sets whole channels to 0 with probability `p` and scales the others by `1 / (1 − p)`; `x` itself if not `training`.
///
/// - `x`: `[batch, channels, ..]`
/// - result: the same
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `p` is not in `0..=1`, or `x` has no channels.
pub fn feature_dropout(x: &Tensor, p: f64, training: bool, generator: &Generator) -> Result<Tensor> {
    rows_of_channels("feature_dropout", x)?;
    check_probability("feature_dropout", p)?;
    if !training {
        return Ok(x.clone());
    }
    channel_mask(x, p, generator)?.mul(x)
}

/// Ones after dropout, one for each channel: `[batch, channels, 1, ..]`.
fn channel_mask(x: &Tensor, p: f64, generator: &Generator) -> Result<Tensor> {
    let mask = Tensor::on(&x.device()).of(x.dtype()).ones([x.dims()[0], x.dims()[1]])?.dropout(p, generator)?;
    (2..x.rank()).try_fold(mask, |mask, _| mask.unsqueeze(-1))
}

/// Dropout that preserves the mean 0 and variance 1 of outputs of [`selu`](super::selu): sets elements to SELU's
/// lowest value with probability `p`, then scales and shifts all elements. Returns `x` itself if not `training`.
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `p` is not in `0..=1`.
pub fn alpha_dropout(x: &Tensor, p: f64, training: bool, generator: &Generator) -> Result<Tensor> {
    check_probability("alpha_dropout", p)?;
    if !training || p == 0.0 {
        return Ok(x.clone());
    }
    if p == 1.0 {
        return x.mul_scalar(0.0);
    }
    let mask = x.ones_like()?.dropout(p, generator)?.sign()?;
    drop_to_lowest(x, &mask, p)
}

/// [`alpha_dropout`] of whole channels.
///
/// - `x`: `[batch, channels, ..]`
/// - result: the same
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `p` is not in `0..=1`, or `x` has no channels.
pub fn feature_alpha_dropout(x: &Tensor, p: f64, training: bool, generator: &Generator) -> Result<Tensor> {
    if x.rank() < 2 || !(0.0..=1.0).contains(&p) || !training || p == 0.0 || p == 1.0 {
        feature_dropout(x, 0.0, false, generator)?; // checks that `x` has channels
        return alpha_dropout(x, p, training, generator);
    }
    let mask = channel_mask(x, p, generator)?.sign()?;
    drop_to_lowest(x, &mask, p)
}

/// Sets elements to SELU's lowest value where the mask is 0, then scales and shifts all elements.
fn drop_to_lowest(x: &Tensor, mask: &Tensor, p: f64) -> Result<Tensor> {
    let lowest = -super::SELU_ALPHA * super::SELU_SCALE;
    let scale = 1.0 / ((1.0 - p) * (1.0 + p * lowest * lowest)).sqrt();
    let dropped = mask.neg()?.add_scalar(1.0)?.mul_scalar(lowest * scale)?;
    x.mul(mask)?.mul_scalar(scale)?.add(&dropped)?.add_scalar(-lowest * scale * p)
}
