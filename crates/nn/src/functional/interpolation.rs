//! Resizing sequences, images and volumes.
//!
//! Every mode but `Area` resizes one dimension after the other, except the nearest neighbor with whole factors on a GPU,
//! which is one copy. Along a dimension, each output is a weighted sum of a few inputs, its taps: one for the nearest
//! neighbor, two for linear and four for cubic interpolation, more with `antialias`. A short dimension is multiplied by
//! the matrix of the weights, `[out, in]`, so its gradient is a matrix product too. For a long dimension the taps are
//! gathered and added.

use pagelock_tensor::{Int, Result, Shape, Tensor, no_autocast};

use super::shared::{computed, signed, wrong_argument, wrong_shape};
use super::{adaptive_avg_pool1d, adaptive_avg_pool3d};
use crate::setters::setters;

/// How elements are interpolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum InterpolationMode {
    /// The nearest neighbor, rounded down as in PyTorch's `nearest`.
    #[default]
    Nearest,
    /// The nearest neighbor of the middle of each element, as in PyTorch's `nearest-exact`.
    NearestExact,
    /// Linear interpolation, for sequences.
    Linear,
    /// Linear interpolation in two dimensions, for images.
    Bilinear,
    /// Cubic interpolation of four elements in each of two dimensions, for images.
    Bicubic,
    /// Linear interpolation in three dimensions, for volumes.
    Trilinear,
    /// The mean of the covered area, as in adaptive pooling.
    Area,
}

impl InterpolationMode {
    /// PyTorch's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::NearestExact => "nearest-exact",
            Self::Linear => "linear",
            Self::Bilinear => "bilinear",
            Self::Bicubic => "bicubic",
            Self::Trilinear => "trilinear",
            Self::Area => "area",
        }
    }

    /// Where the point within an output lies whose nearest element counts, if the mode takes the nearest neighbor.
    fn nearest_offset(self) -> Option<f32> {
        match self {
            Self::Nearest => Some(0.0),
            Self::NearestExact => Some(0.5),
            _ => None,
        }
    }

    fn is_linear(self) -> bool {
        matches!(self, Self::Linear | Self::Bilinear | Self::Trilinear)
    }

    /// The number of dimensions that the mode requires, if it requires one.
    fn dims(self) -> Option<usize> {
        match self {
            Self::Nearest | Self::NearestExact | Self::Area => None,
            Self::Linear => Some(1),
            Self::Bilinear | Self::Bicubic => Some(2),
            Self::Trilinear => Some(3),
        }
    }
}

/// The output size of [`interpolate`]: one entry for each dimension after the channels, or one for all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale<'a> {
    /// These sizes.
    Size(&'a [usize]),
    /// The sizes of the input times these factors, rounded down.
    Factor(&'a [f64]),
}

/// The settings of [`interpolate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InterpolateOptions {
    /// The mode; the nearest neighbor by default.
    pub mode: InterpolationMode,
    /// Whether the centers of the corner elements stay aligned; otherwise their outer corners do. For linear and
    /// cubic modes.
    pub align_corners: bool,
    /// Whether given factors are recomputed from the rounded sizes.
    pub recompute_scale_factor: bool,
    /// Whether each element of a smaller result is a mean over all inputs that it covers. For bilinear and bicubic
    /// modes.
    pub antialias: bool,
}

impl InterpolateOptions {
    /// With this mode.
    pub fn mode(mode: InterpolationMode) -> Self {
        Self { mode, ..Self::default() }
    }
}

setters! { InterpolateOptions,
    /// Sets whether the centers of the corner elements stay aligned.
    align_corners: bool;
    /// With or without antialiasing.
    antialias: bool;
}

/// Resizes sequences, images or volumes, as PyTorch's `F.interpolate`.
///
/// - `x`: `[batch, channels, ..]`, with one to three more dimensions, as the mode requires
/// - result: `[batch, channels, ..size]`
///
/// Inputs of half precision are computed in `f32`.
///
/// ```
/// use pagelock_nn::functional::{self as F, InterpolateOptions, InterpolationMode, Scale};
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::new([[[1.0, 2.0]]])?;
/// assert_eq!(F::interpolate(&x, Scale::Size(&[4]), InterpolateOptions::default())?.to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
/// let linear = InterpolateOptions::mode(InterpolationMode::Linear);
/// assert_eq!(F::interpolate(&x, Scale::Factor(&[2.0]), linear)?.to_vec::<f32>()?, [1.0, 1.25, 1.75, 2.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if the mode or the sizes or factors are for another number
/// of dimensions, a size would be 0, a factor is not above 0, or `align_corners` or `antialias` is set in a mode
/// without it.
pub fn interpolate(x: &Tensor, scale: Scale<'_>, options: InterpolateOptions) -> Result<Tensor> {
    let (sizes, factors) = check(x, scale, options)?;
    if options.mode == InterpolationMode::Area {
        return match *sizes {
            [length] => adaptive_avg_pool1d(x, length),
            [height, width] => x.adaptive_avg_pool2d([height, width]),
            [depth, height, width] => adaptive_avg_pool3d(x, [depth, height, width]),
            _ => unreachable!("checked to have up to three dimensions"),
        };
    }
    let space = &x.dims()[2..];
    let axis_scale = |axis: usize| {
        let ratio = space[axis] as f64 / sizes[axis] as f64;
        factors.as_ref().map_or(ratio, |factors| 1.0 / factors[axis])
    };
    // Half the time of a selection along each dimension on a GPU, but twice as much on the CPU.
    if !x.device().is_cpu()
        && let Some(times) = whole_factors(space, &sizes, axis_scale, options.mode)
    {
        return repeated(x, &times);
    }
    // As in PyTorch, linear and smoothed modes ignore the factor where the size stays.
    let ignores_scale = options.antialias || options.mode.is_linear();
    let stays = |axis: usize| space[axis] == sizes[axis] && (axis_scale(axis) == 1.0 || ignores_scale);
    if (0..sizes.len()).all(stays) {
        return x.deep_clone();
    }
    let resize = |x: &Tensor| {
        sizes.iter().enumerate().try_fold(x.clone(), |x, (axis, &to)| match stays(axis) {
            true => Ok(x),
            false => resize_dim(&x, axis + 2, &Taps::new(options, [space[axis], to], axis_scale(axis))),
        })
    };
    no_autocast(|| match options.mode.dims() {
        None => resize(x),
        Some(_) => computed(x, resize),
    })
}

/// How often each element is repeated along each dimension, if the mode takes the nearest neighbor and takes all
/// elements equally often.
fn whole_factors(
    space: &[usize],
    sizes: &[usize],
    axis_scale: impl Fn(usize) -> f64,
    mode: InterpolationMode,
) -> Option<Vec<usize>> {
    let offset = mode.nearest_offset()?;
    let times = |axis: usize| {
        let (from, to) = (space[axis], sizes[axis]);
        let (times, scale) = (to / from, axis_scale(axis));
        // Rounding may choose a neighbor for whole factors too. Elements are in order: first and last outputs suffice.
        let takes = |out: usize, element: usize| nearest(out, offset, scale, from) == element;
        let is_repeated = |i: usize| takes(i * times, i) && takes((i + 1) * times - 1, i);
        (to == from * times && (0..from).all(is_repeated)).then_some(times)
    };
    (0..sizes.len()).map(times).collect()
}

/// The element that an output takes, as on a GPU in PyTorch: computed in `f32` for all types.
///
/// - `offset`: of the point within an output whose nearest element counts
/// - `scale`: the number of inputs per output
fn nearest(out: usize, offset: f32, scale: f64, from: usize) -> usize {
    (((out as f32 + offset) * scale as f32) as usize).min(from - 1)
}

/// Repeats each element along the dimensions behind batch and channels, in one copy.
fn repeated(x: &Tensor, times: &[usize]) -> Result<Tensor> {
    let (outer, space) = x.dims().split_at(2);
    let [mut split, mut wide, mut whole] = [outer.to_vec(), outer.to_vec(), outer.to_vec()];
    for (&size, &times) in std::iter::zip(space, times) {
        split.extend([size, 1]);
        wide.extend([size, times]);
        whole.push(size * times);
    }
    x.reshape(&split[..])?.expand(&wide[..])?.reshape(&whole[..])
}

/// The sizes of the result, and the factors if they determine the scale.
fn check(x: &Tensor, scale: Scale<'_>, options: InterpolateOptions) -> Result<(Vec<usize>, Option<Vec<f64>>)> {
    let op = "interpolate";
    let (mode, dims) = (options.mode, x.rank().saturating_sub(2));
    if !(1..=3).contains(&dims) || mode.dims().is_some_and(|of| of != dims) {
        let of = mode.dims().map_or("one to three".to_owned(), |dims| dims.to_string());
        let expected =
            format!("for the mode {} it must be [batch, channels, ..] with {of} more dimensions", mode.name());
        return Err(wrong_shape(op, "the input", x.shape(), &expected));
    }
    let not_allowed =
        |argument: &str| Err(wrong_argument(op, argument, "true", &format!("false for the mode {}", mode.name())));
    if options.align_corners && mode.dims().is_none() {
        return not_allowed("align_corners");
    }
    if options.antialias && !matches!(mode, InterpolationMode::Bilinear | InterpolationMode::Bicubic) {
        return not_allowed("antialias");
    }
    let space = &x.dims()[2..];
    let (sizes, factors) = match scale {
        Scale::Size(sizes) => (for_each(op, "size", sizes, dims)?, None),
        Scale::Factor(factors) => {
            let factors = for_each(op, "scale_factor", factors, dims)?;
            if let Some(wrong) = factors.iter().find(|&&factor| !(factor > 0.0 && factor.is_finite())) {
                return Err(wrong_argument(op, "scale_factor", wrong, "above 0"));
            }
            let sizes =
                std::iter::zip(space, &factors).map(|(&size, factor)| (size as f64 * factor) as usize).collect();
            (sizes, (!options.recompute_scale_factor).then_some(factors))
        }
    };
    if sizes.contains(&0) || space.contains(&0) {
        let expected = format!("neither its dimensions nor the sizes {sizes:?} may be 0");
        return Err(wrong_shape(op, "the input", x.shape(), &expected));
    }
    Shape::new(&sizes)?;
    Ok((sizes, factors))
}

/// One value for each dimension.
fn for_each<T: Copy + std::fmt::Debug>(op: &str, argument: &str, given: &[T], dims: usize) -> Result<Vec<T>> {
    match *given {
        [one] => Ok(vec![one; dims]),
        _ if given.len() == dims => Ok(given.to_vec()),
        _ => Err(wrong_argument(
            op,
            argument,
            format!("{given:?}"),
            &format!("one value, or one for each of {dims} dimensions"),
        )),
    }
}

/// The taps of each output along one dimension: for each of `out` outputs up to `count` input indices and weights.
struct Taps {
    input: usize,
    out: usize,
    count: usize,
    row: Box<dyn Fn(usize) -> Vec<(i64, f64)>>,
}

impl Taps {
    /// `scale`: the number of inputs per output.
    fn new(options: InterpolateOptions, [from, to]: [usize; 2], scale: f64) -> Self {
        let last = from - 1;
        let clamped = move |at: f64| (at.max(0.0) as usize).min(last) as i64;
        let scale = match options.align_corners {
            true if to > 1 => last as f64 / (to - 1) as f64,
            true => 0.0,
            false => scale,
        };
        let [factor, shift] = if options.align_corners { [0.0, 0.0] } else { [0.5, -0.5] };
        let middle = move |out: usize| (out as f64 + factor) * scale + shift;
        let smooth = |radius: f64, filter: fn(f64) -> f64| -> Self {
            let count = (2.0 * radius * scale.max(1.0)).ceil() as usize + 1;
            let row = move |out| smooth(out, from, scale, (radius, filter));
            Self { input: from, out: to, count: count.min(from), row: Box::new(row) }
        };
        let (count, row): (usize, Box<dyn Fn(usize) -> Vec<(i64, f64)>>) = match options.mode {
            InterpolationMode::Bicubic if options.antialias => return smooth(2.0, |x| cubic(x, -0.5)),
            InterpolationMode::Bilinear if options.antialias => return smooth(1.0, |x| (1.0 - x.abs()).max(0.0)),
            InterpolationMode::Bicubic => {
                let of = move |at: f64| {
                    [-1.0, 0.0, 1.0, 2.0].map(|tap| at.floor() + tap).map(|tap| (clamped(tap), cubic(at - tap, -0.75)))
                };
                (4, Box::new(move |out| of(middle(out)).to_vec()))
            }
            mode => match mode.nearest_offset() {
                Some(offset) => (1, Box::new(move |out| vec![(nearest(out, offset, scale, from) as i64, 1.0)])),
                None => (2, Box::new(move |out| on_line(middle(out).max(0.0), last))),
            },
        };
        Self { input: from, out: to, count, row }
    }

    /// `[out, in]`
    fn matrix(&self) -> Result<Tensor> {
        Tensor::build([self.out, self.input], |matrix: &mut [f64]| {
            matrix.fill(0.0);
            for (out, row) in matrix.chunks_exact_mut(self.input).enumerate() {
                (self.row)(out).into_iter().for_each(|(index, weight)| row[index as usize] += weight);
            }
        })
    }

    /// `[out · count]`
    fn indices(&self) -> Result<Tensor<Int>> {
        Tensor::build(self.out.saturating_mul(self.count), |indices: &mut [i64]| {
            indices.fill(0);
            for (out, indices) in indices.chunks_exact_mut(self.count).enumerate() {
                std::iter::zip(indices, (self.row)(out)).for_each(|(index, (from, _))| *index = from);
            }
        })
    }

    /// `[out, count]`
    fn weights(&self) -> Result<Tensor> {
        Tensor::build([self.out, self.count], |weights: &mut [f64]| {
            weights.fill(0.0);
            for (out, weights) in weights.chunks_exact_mut(self.count).enumerate() {
                std::iter::zip(weights, (self.row)(out)).for_each(|(weight, (_, of))| *weight = of);
            }
        })
    }
}

/// The two neighbors of a position, with their weights.
fn on_line(at: f64, last: usize) -> Vec<(i64, f64)> {
    let below = (at as usize).min(last);
    let part = (at - below as f64).clamp(0.0, 1.0);
    vec![(below as i64, 1.0 - part), ((below + 1).min(last) as i64, part)]
}

/// The kernel of R. Keys, "Cubic convolution interpolation for digital image processing", 1981, equation 4.
fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    match x {
        _ if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        _ if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

/// The taps of a filter that is as wide as the inputs that an output covers, as in Pillow and in PyTorch's
/// antialiased kernels.
fn smooth(out: usize, from: usize, scale: f64, (radius, filter): (f64, fn(f64) -> f64)) -> Vec<(i64, f64)> {
    let wide = scale.max(1.0);
    let (center, support) = (scale * (out as f64 + 0.5), radius * wide);
    let start = ((center - support + 0.5) as i64).max(0);
    let end = ((center + support + 0.5) as i64).min(from as i64);
    let taps = (start..end).map(|index| (index, filter((index as f64 - center + 0.5) / wide)));
    let sum: f64 = taps.clone().map(|(_, weight)| weight).sum();
    taps.map(|(index, weight)| (index, if sum == 0.0 { weight } else { weight / sum })).collect()
}

/// Up to this many inputs, a matrix product is fast on every device.
const SHORT: usize = 128;

fn resize_dim(x: &Tensor, dim: usize, taps: &Taps) -> Result<Tensor> {
    let like = |numbers: Tensor| numbers.to_dtype(x.dtype())?.to(&x.device());
    let (dim, next_dim) = (signed(dim), signed(dim + 1));
    if taps.count > 1 && taps.input <= SHORT {
        return product(x, dim, &like(taps.matrix()?)?);
    }
    let gathered = x.index_select(dim, &taps.indices()?.to(&x.device())?)?;
    if taps.count == 1 {
        return Ok(gathered);
    }
    let weights =
        (0..x.rank() - next_dim as usize).try_fold(like(taps.weights()?)?, |weights, _| weights.unsqueeze(-1))?;
    gathered.unflatten(dim, [taps.out, taps.count])?.mul(&weights)?.sum(next_dim)
}

/// Multiplies a dimension by a matrix `[out, in]`.
fn product(x: &Tensor, dim: isize, matrix: &Tensor) -> Result<Tensor> {
    if dim as usize + 1 == x.rank() {
        return x.linear(matrix, None);
    }
    let inner = Shape::new(&x.dims()[dim as usize + 1..])?;
    matrix.matmul(&x.flatten(dim + 1, -1)?)?.unflatten(-1, inner)
}
