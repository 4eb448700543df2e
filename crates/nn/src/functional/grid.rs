//! Images and volumes sampled at the positions in a tensor: `affine_grid` and `grid_sample`.

use pagelock_tensor::{Bool, Int, Result, Shape, Tensor, no_autocast};

use super::shared::{computed, constant, signed, wrong_argument, wrong_shape};

/// How [`grid_sample`] interpolates between pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum GridSampleMode {
    /// Linear interpolation in each dimension, for images and for volumes.
    #[default]
    Bilinear,
    /// The nearest pixel. The position gets no gradient.
    Nearest,
}

/// What [`grid_sample`] reads outside of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum GridPadding {
    /// Zeros.
    #[default]
    Zeros,
    /// The pixel at the border.
    Border,
    /// The image, reflected at its border.
    Reflection,
}

/// The settings of [`grid_sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GridSampleOptions {
    /// How to interpolate between pixels.
    pub mode: GridSampleMode,
    /// What to read outside of the image.
    pub padding_mode: GridPadding,
    /// Whether −1 and 1 are the centers of the pixels at the border; otherwise they are the outer edges of these
    /// pixels.
    pub align_corners: bool,
}

/// The positions to which an affine map sends the pixels of an image, as PyTorch's `F.affine_grid`.
///
/// - `theta`: `[batch, 2, 3]` for images, `[batch, 3, 4]` for volumes
/// - `size`: the shape of the result of [`grid_sample`], `[batch, channels, height, width]` or with a depth
/// - result: `[batch, height, width, 2]` with the coordinates `x` and `y`, −1 to 1 inside of the image; for volumes
///   `[batch, depth, height, width, 3]`
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// let same = Tensor::new([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])?;
/// let grid = F::affine_grid(&same, &[1, 3, 1, 2], false)?;
/// assert_eq!(grid.to_vec::<f32>()?, [-0.5, 0.0, 0.5, 0.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes do not fit.
pub fn affine_grid(theta: &Tensor, size: &[usize], align_corners: bool) -> Result<Tensor> {
    let dims = size.len().saturating_sub(2);
    if !(2..=3).contains(&dims) || *theta.dims() != [size[0], dims, dims + 1] {
        let expected =
            format!("for the size {size:?} it must be [batch, 2, 3] for images and [batch, 3, 4] for volumes");
        return Err(wrong_shape("affine_grid", "theta", theta.shape(), &expected));
    }
    let space = Shape::new(&size[2..])?;
    let base = base_grid(&space, align_corners)?.to_dtype(theta.dtype())?.to(&theta.device())?;
    let grid = no_autocast(|| base.matmul(&theta.transpose(1, 2)?))?;
    grid.unflatten(1, space)
}

/// `[x, y, 1]` of each pixel, or `[x, y, z, 1]`.
fn base_grid(space: &Shape, align_corners: bool) -> Result<Tensor> {
    let coordinate_of = |index: usize, size: usize| match (size, align_corners) {
        (0 | 1, _) => 0.0,
        (_, true) => 2.0 * index as f64 / (size - 1) as f64 - 1.0,
        (_, false) => (2.0 * index as f64 + 1.0) / size as f64 - 1.0,
    };
    let width = space.rank() + 1;
    Tensor::build([space.elements(), width], |numbers: &mut [f64]| {
        for (pixel, position) in numbers.chunks_exact_mut(width).enumerate() {
            let mut rest = pixel;
            for (coordinate, &size) in std::iter::zip(position.iter_mut(), space.iter().rev()) {
                *coordinate = coordinate_of(rest % size, size);
                rest /= size;
            }
            position[width - 1] = 1.0;
        }
    })
}

/// `x` sampled at the positions in `grid`, as PyTorch's `F.grid_sample`.
///
/// - `x`: `[batch, channels, height, width]`, or with a depth
/// - `grid`: `[batch, out_h, out_w, 2]` with the coordinates `x` and `y`, where −1 is left or top and 1 is right or
///   bottom; for volumes `[batch, out_d, out_h, out_w, 3]`
/// - result: `[batch, channels, out_h, out_w]`, or with a depth
///
/// It is composed of other operations, which read and write memory of the result's size about six times per neighbor.
/// Both inputs get gradients.
///
/// ```
/// use pagelock_nn::functional::{self as F, GridSampleOptions};
/// # use pagelock_tensor::Tensor;
/// let image = Tensor::new([[[[1.0, 2.0], [3.0, 4.0]]]])?;
/// let center = Tensor::zeros([1, 1, 1, 2])?;
/// assert_eq!(F::grid_sample(&image, &center, GridSampleOptions::default())?.to_vec::<f32>()?, [2.5]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes do not fit, or the image has no pixels.
pub fn grid_sample(x: &Tensor, grid: &Tensor, options: GridSampleOptions) -> Result<Tensor> {
    let dims = x.rank().saturating_sub(2);
    let fits = (2..=3).contains(&dims)
        && grid.rank() == x.rank()
        && grid.dims()[0] == x.dims()[0]
        && grid.dims()[dims + 1] == dims;
    if !fits {
        let expected =
            format!("for the input {} it must be [batch, .., 2] for images and [batch, .., 3] for volumes", x.shape());
        return Err(wrong_shape("grid_sample", "the grid", grid.shape(), &expected));
    }
    if x.dims()[2..].contains(&0) {
        return Err(wrong_shape("grid_sample", "the input", x.shape(), "it must have pixels"));
    }
    if x.dtype() != grid.dtype() {
        return Err(wrong_argument(
            "grid_sample",
            "the grid's type",
            grid.dtype(),
            &format!("that of the input, {}", x.dtype()),
        ));
    }
    no_autocast(|| {
        computed(x, |x| {
            let grid = grid.to_dtype(x.dtype())?;
            sample(x, &grid, options)
        })
    })
}

fn sample(x: &Tensor, grid: &Tensor, options: GridSampleOptions) -> Result<Tensor> {
    let space = &x.dims()[2..];
    let dims = space.len();
    // Coordinates are in reverse order: the first dimension of an image has the last one. Each is [batch, positions].
    let axes = (0..dims).map(|axis| {
        let coordinate = grid.select(-1, signed(dims - 1 - axis))?.flatten(1, -1)?;
        Axis::new(&coordinate, space[axis], options)
    });
    let axes: Vec<Axis> = axes.collect::<Result<_>>()?;
    let flat = x.flatten(2, -1)?;
    let sides = if options.mode == GridSampleMode::Nearest { 1 } else { 2_usize };
    let neighbor = |number: usize| -> Result<(Tensor, Tensor)> {
        let mut index: Option<Tensor<Int>> = None;
        let mut weight: Option<Tensor> = None;
        let mut inside: Option<Tensor<Bool>> = None;
        for (axis, on_axis) in axes.iter().enumerate() {
            let (at, factor, is_inside) = &on_axis.sides[number / sides.pow(axis as u32) % sides];
            index = Some(match index {
                None => at.clone(),
                Some(index) => index.mul_scalar(space[axis] as i64)?.add(at)?,
            });
            weight = Some(match weight {
                None => factor.clone(),
                Some(weight) => weight.mul(factor)?,
            });
            inside = Some(match inside {
                None => is_inside.clone(),
                Some(inside) => inside.logical_and(is_inside)?,
            });
        }
        let (Some(index), Some(weight), Some(inside)) = (index, weight, inside) else {
            unreachable!("there are two or three dimensions")
        };
        let wide = [x.dims()[0], x.dims()[1], index.dims()[1]];
        let values = flat.gather(2, &index.unsqueeze(1)?.expand(wide)?)?;
        // A weight of 0 is not enough: what stands at index 0 may be infinite.
        Ok((values.where_cond(&inside.unsqueeze(1)?, &constant(x, 0.0)?)?, weight.unsqueeze(1)?))
    };
    let (first, weight) = neighbor(0)?;
    let sum = (1..sides.pow(dims as u32)).try_fold(first.mul(&weight)?, |sum, number| {
        let (next, weight) = neighbor(number)?;
        sum.addcmul(&next, &weight, 1.0)
    })?;
    sum.unflatten(2, &grid.dims()[1..=dims])
}

/// The neighbors of positions along one dimension: an index and a weight each, both 0 for a neighbor outside, and
/// whether it is inside.
struct Axis {
    sides: Vec<(Tensor<Int>, Tensor, Tensor<Bool>)>,
}

impl Axis {
    fn new(coordinate: &Tensor, size: usize, options: GridSampleOptions) -> Result<Self> {
        let (align, last) = (options.align_corners, (size - 1) as f64);
        let at = match align {
            true => coordinate.add_scalar(1.0)?.mul_scalar(last / 2.0)?,
            false => coordinate.add_scalar(1.0)?.mul_scalar(size as f64 / 2.0)?.add_scalar(-0.5)?,
        };
        let at = match options.padding_mode {
            GridPadding::Zeros => at,
            GridPadding::Border => at.clamp(0.0, last)?,
            GridPadding::Reflection if align => reflected(&at, 0.0, last)?.clamp(0.0, last)?,
            GridPadding::Reflection => reflected(&at, -0.5, size as f64)?.clamp(0.0, last)?,
        };
        let side = |whole: Tensor, weight: Tensor| {
            let inside = whole.ge_scalar(0.0)?.logical_and(&whole.le_scalar(last)?)?;
            let zeros = whole.zeros_like()?;
            let weight = weight.where_cond(&inside, &zeros)?;
            Ok((whole.where_cond(&inside, &zeros)?.to_int()?, weight, inside))
        };
        let sides = match options.mode {
            GridSampleMode::Nearest => {
                let whole = at.detach().round()?;
                vec![side(whole.clone(), whole.ones_like()?)?]
            }
            GridSampleMode::Bilinear => {
                let below = at.detach().floor()?;
                let part = at.sub(&below)?;
                let rest = part.neg()?.add_scalar(1.0)?;
                vec![side(below.clone(), rest)?, side(below.add_scalar(1.0)?, part)?]
            }
        };
        Ok(Self { sides })
    }
}

/// Positions reflected at `low` and `low + span` until they lie between the two.
fn reflected(at: &Tensor, low: f64, span: f64) -> Result<Tensor> {
    if span == 0.0 {
        return at.mul_scalar(0.0);
    }
    let away = at.add_scalar(-low)?.abs()?;
    let flips = away.detach().div_scalar(span)?.floor()?;
    let extra = away.sub(&flips.mul_scalar(span)?)?;
    let is_odd = flips.remainder_scalar(2.0)?.gt_scalar(0.5)?;
    extra.neg()?.add_scalar(span)?.where_cond(&is_odd, &extra)?.add_scalar(low)
}
