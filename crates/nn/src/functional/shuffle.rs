//! Pixel shuffling and channel shuffling.

use pagelock_tensor::{Result, Tensor};

use super::shared::{signed, wrong_argument, wrong_shape};

/// Turns `[batch, channels · r², height, width]` into `[batch, channels, height · r, width · r]`, `r` being
/// the factor.
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `x` does not have four dimensions, or `r²` does not
/// divide the channels.
pub fn pixel_shuffle(x: &Tensor, upscale_factor: usize) -> Result<Tensor> {
    let (&[batch, channels, height, width], r) = (x.dims(), upscale_factor) else {
        let expected = "it must be [batch, channels, height, width]; reshape it";
        return Err(wrong_shape("pixel_shuffle", "the input", x.shape(), expected));
    };
    let square = r.checked_mul(r).filter(|&square| square > 0 && channels.is_multiple_of(square));
    let sizes = height.checked_mul(r).zip(width.checked_mul(r));
    let (Some(square), Some((tall, wide))) = (square, sizes) else {
        let expected = format!("one whose square divides the {channels} channels of {}", x.shape());
        return Err(wrong_argument("pixel_shuffle", "upscale_factor", r, &expected));
    };
    let split = [batch, channels / square, r, r, height, width].map(signed);
    let shape = [batch, channels / square, tall, wide].map(signed);
    x.reshape(split)?.permute([0, 1, 4, 2, 5, 3])?.deep_clone()?.reshape(shape)
}

/// Turns pixels into channels: the inverse of [`pixel_shuffle`].
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `x` does not have four dimensions, or the factor does
/// not divide height and width.
pub fn pixel_unshuffle(x: &Tensor, downscale_factor: usize) -> Result<Tensor> {
    let (&[batch, channels, height, width], r) = (x.dims(), downscale_factor) else {
        let expected = "it must be [batch, channels, height, width]; reshape it";
        return Err(wrong_shape("pixel_unshuffle", "the input", x.shape(), expected));
    };
    let is_divisor = height.checked_rem(r) == Some(0) && width.checked_rem(r) == Some(0);
    let out_channels = channels.checked_mul(r).and_then(|product| product.checked_mul(r)).filter(|_| is_divisor);
    let Some(out_channels) = out_channels else {
        let expected = format!("a divisor of height and width of {}", x.shape());
        return Err(wrong_argument("pixel_unshuffle", "downscale_factor", r, &expected));
    };
    let split = [batch, channels, height / r, r, width / r, r].map(signed);
    let shape = [batch, out_channels, height / r, width / r].map(signed);
    x.reshape(split)?.permute([0, 1, 3, 5, 2, 4])?.deep_clone()?.reshape(shape)
}

/// Interleaves the channels of `groups` groups: the first channel of each group, then the second of each, and so on.
///
/// - `x`: `[batch, channels, ..]`
/// - result: the same
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::new([[[1.0], [2.0], [3.0], [4.0]]])?;
/// assert_eq!(F::channel_shuffle(&x, 2)?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `x` has fewer than three dimensions, or `groups` does not
/// divide the channels.
pub fn channel_shuffle(x: &Tensor, groups: usize) -> Result<Tensor> {
    let Some(&channels) = x.dims().get(1).filter(|_| x.rank() > 2) else {
        return Err(wrong_shape("channel_shuffle", "the input", x.shape(), "it must be [batch, channels, ..]"));
    };
    if channels.checked_rem(groups) != Some(0) {
        let expected = format!("a divisor of the {channels} channels of {}", x.shape());
        return Err(wrong_argument("channel_shuffle", "groups", groups, &expected));
    }
    x.unflatten(1, [groups, channels / groups])?.transpose(1, 2)?.deep_clone()?.flatten(1, 2)
}
