//! Other sizes: padding, nearest neighbors, channels as pixels.

use pagelock_tensor::{Error, Result, Shape, Tensor};

use super::pieces::{constant, signed, wrong_argument, wrong_shape};

/// What stands beyond the ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// A number.
    Constant(f64),
    /// The elements in reverse, without the last: `c b | a b c | b a`.
    Reflect,
    /// The last element: `a a | a b c | c c`.
    Replicate,
    /// The elements from the other end: `b c | a b c | a b`.
    Circular,
}

/// More elements at the ends of the last dimensions: `padding` has a pair `[before, behind]` for each, the last dimension first,
/// as in PyTorch.
///
/// ```
/// use pagelock_nn::functional::{self as F, PadMode};
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::new([[1.0, 2.0, 3.0]])?;
/// assert_eq!(F::pad(&x, &[[2, 0]], PadMode::Reflect)?.to_vec::<f32>()?, [3.0, 2.0, 1.0, 2.0, 3.0]);
/// assert_eq!(F::pad(&x, &[[0, 1], [1, 0]], PadMode::Constant(0.0))?.dims(), [2, 4]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`] for more pairs than dimensions, or more elements than there are to reflect or repeat.
pub fn pad(x: &Tensor, padding: &[[usize; 2]], mode: PadMode) -> Result<Tensor> {
    if padding.len() > x.rank() {
        let expected = format!("there are {} pairs of padding; give at most one for each dimension", padding.len());
        return Err(wrong_shape("pad", "the input", x.shape(), &expected));
    }
    let mut padded = x.clone();
    for (back, &ends) in padding.iter().enumerate() {
        let dim = x.rank() - 1 - back;
        padded = match (ends, mode) {
            ([0, 0], _) => continue,
            (_, PadMode::Constant(value)) => pad_constant(&padded, dim, ends, value)?,
            _ => {
                let index = places(padded.shape(), dim, ends, mode)?;
                let len = index.len();
                padded.index_select(signed(dim), &Tensor::from_vec(index, len)?.to(&x.device())?)?
            }
        };
    }
    Ok(padded)
}

fn pad_constant(x: &Tensor, dim: usize, ends: [usize; 2], value: f64) -> Result<Tensor> {
    let [before, behind] = ends.map(|count| {
        let mut sizes = x.dims().to_vec();
        sizes[dim] = count;
        constant(x, value)?.expand(Shape::new(&sizes)?)
    });
    Tensor::cat(&[&before?, x, &behind?], signed(dim))
}

/// Which index each place of a padded dimension shows.
fn places(shape: &Shape, dim: usize, [before, behind]: [usize; 2], mode: PadMode) -> Result<Vec<i64>> {
    let size = shape[dim];
    let most = match mode {
        PadMode::Reflect => size.saturating_sub(1),
        PadMode::Circular => size,
        _ if size == 0 => 0,
        _ => usize::MAX,
    };
    let largest = before.max(behind);
    if largest > most {
        return Err(Error::Argument(format!(
            "pad: {largest} elements were asked for at an end of dimension {dim} of {shape}, but {mode:?} has at most {most} there"
        )));
    }
    let total = size.checked_add(before).and_then(|len| len.checked_add(behind));
    let Some(total) = total.filter(|&total| i64::try_from(total).is_ok()) else {
        return Err(wrong_argument("pad", "the padding", format!("[{before}, {behind}]"), "less"));
    };
    Shape::new(&[total])?;
    let (size, before) = (size as i64, before as i64);
    Ok((0..total as i64).map(|place| shown(place - before, size, mode)).collect())
}

/// The index in `0..size` that a place from before 0 to behind `size` shows.
fn shown(place: i64, size: i64, mode: PadMode) -> i64 {
    match mode {
        PadMode::Reflect if place < 0 => -place,
        PadMode::Reflect if place >= size => 2 * (size - 1) - place,
        PadMode::Circular => place.rem_euclid(size),
        _ => place.clamp(0, size - 1),
    }
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
/// [`Error::Argument`] if there are not as many sizes as dimensions behind the channels, or one of them is 0.
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
/// [`Error::Argument`] if `x` has not four dimensions, or `r²` does not divide the channels.
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
/// [`Error::Argument`] if `x` has not four dimensions, or `r` does not divide height and width.
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
