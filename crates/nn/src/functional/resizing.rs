//! Other sizes: padding, nearest neighbors, channels as pixels.

use pagelock_tensor::{PadMode, Result, Shape, Tensor};

use super::pieces::{signed, wrong_argument, wrong_shape};

/// More elements at the ends of the last dimensions, as [`Tensor::pad`]: `[left, right, top, bottom, …]`.
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::{PadMode, Tensor};
/// let x = Tensor::new([[1.0, 2.0, 3.0]])?;
/// assert_eq!(F::pad(&x, &[2, 0], PadMode::Reflect)?.to_vec::<f32>()?, [3.0, 2.0, 1.0, 2.0, 3.0]);
/// assert_eq!(F::pad(&x, &[0, 1, 1, 0], PadMode::Constant(0.0))?.dims(), [2, 4]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`Tensor::pad`].
pub fn pad(x: &Tensor, sizes: &[isize], mode: PadMode) -> Result<Tensor> {
    x.pad(sizes, mode)
}

/// Images, sequences or volumes in another size: each element is the one that is nearest before it, as PyTorch's
/// `interpolate(x, size, mode="nearest")`.
///
/// - `x`: `[batch, channels, ..]`
/// - `size`: one size for each dimension behind the channels
/// - result: `[batch, channels, ..size]`
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::new([[[1.0, 2.0]]])?;
/// assert_eq!(F::interpolate_nearest(&x, &[4])?.to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if there are not as many sizes as dimensions behind the
/// channels, or one of them is 0.
pub fn interpolate_nearest(x: &Tensor, size: &[usize]) -> Result<Tensor> {
    nearest(x, size, &[])
}

/// As [`interpolate_nearest`], with factors that were given and not computed from the sizes.
pub(crate) fn nearest(x: &Tensor, size: &[usize], factors: &[f64]) -> Result<Tensor> {
    if x.rank() < 3 || size.len() + 2 != x.rank() || size.contains(&0) || x.dims()[2..].contains(&0) {
        let expected = format!(
            "for the sizes {size:?} it must be [batch, channels, ..] with {} more dimensions, none empty",
            size.len()
        );
        return Err(wrong_shape("interpolate", "the input", x.shape(), &expected));
    }
    let mut resized = x.clone();
    for (place, &to) in size.iter().enumerate() {
        let (dim, from) = (place + 2, x.dims()[place + 2]);
        if from == to {
            continue;
        }
        Shape::new(&[to])?;
        // PyTorch computes in f32 for all but f64.
        let step = factors.get(place).map_or(from as f64 / to as f64, |factor| 1.0 / factor);
        let index: Vec<i64> = (0..to).map(|at| ((at as f64 * step).floor() as i64).min(from as i64 - 1)).collect();
        resized = resized.index_select(signed(dim), &Tensor::from_vec(index, to)?.to(&x.device())?)?;
    }
    Ok(resized)
}

/// Channels as pixels: `[batch, channels · r², height, width]` becomes `[batch, channels, height · r, width · r]`.
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `x` has not four dimensions, or `r²` does not divide the
/// channels.
pub fn pixel_shuffle(x: &Tensor, upscale_factor: usize) -> Result<Tensor> {
    let (&[batch, channels, height, width], r) = (x.dims(), upscale_factor) else {
        let expected = "it must be [batch, channels, height, width]; reshape it";
        return Err(wrong_shape("pixel_shuffle", "the input", x.shape(), expected));
    };
    if r == 0 || channels.checked_rem(r.saturating_mul(r)) != Some(0) {
        let expected = format!("one whose square divides the {channels} channels of {}", x.shape());
        return Err(wrong_argument("pixel_shuffle", "upscale_factor", r, &expected));
    }
    let apart = [batch, channels / (r * r), r, r, height, width].map(signed);
    let together = [batch, channels / (r * r), height * r, width * r].map(signed);
    x.reshape(apart)?.permute([0, 1, 4, 2, 5, 3])?.reshape(together)
}

/// Pixels as channels: the reverse of [`pixel_shuffle`].
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `x` has not four dimensions, or `r` does not divide
/// height and width.
pub fn pixel_unshuffle(x: &Tensor, downscale_factor: usize) -> Result<Tensor> {
    let (&[batch, channels, height, width], r) = (x.dims(), downscale_factor) else {
        let expected = "it must be [batch, channels, height, width]; reshape it";
        return Err(wrong_shape("pixel_unshuffle", "the input", x.shape(), expected));
    };
    if height.checked_rem(r) != Some(0) || width.checked_rem(r) != Some(0) {
        let expected = format!("a divisor of height and width of {}", x.shape());
        return Err(wrong_argument("pixel_unshuffle", "downscale_factor", r, &expected));
    }
    let apart = [batch, channels, height / r, r, width / r, r].map(signed);
    let together = [batch, channels * r * r, height / r, width / r].map(signed);
    x.reshape(apart)?.permute([0, 1, 3, 5, 2, 4])?.reshape(together)
}
