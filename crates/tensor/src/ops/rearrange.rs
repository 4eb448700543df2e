//! Elements reordered, repeated or padded: copies made of views, joins and selections by index.

use super::cat;
use super::flip::flip;
use super::index::entries_added;
use super::number_like;
use super::slice_scatter::written_over;
use crate::element::Scalar;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::kind::{Int, Kind};
use crate::layout::Layout;
use crate::op::{View, view_raw};
use crate::shape::{IntoShape, MAX_RANK, Shape};
use crate::tensor::{Raw, Tensor};

/// What [`Tensor::pad`] puts around a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum PadMode {
    /// This number.
    Constant(f64),
    /// The elements mirrored at the edge, which is not repeated.
    Reflect,
    /// The element at the edge.
    Replicate,
    /// The elements from the other end.
    Circular,
}

impl<K: Kind> Tensor<K> {
    /// The elements in reverse order along each of `dims`.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[1, 2], [3, 4]])?;
    /// assert_eq!(x.flip(&[1])?.to_vec::<i64>()?, [2, 1, 4, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension.
    pub fn flip(&self, dims: &[isize]) -> Result<Tensor<K>> {
        let dims = dims.iter().map(|&dim| self.shape().dim("flip", dim)).collect::<Result<_>>()?;
        flip(self.raw(), dims).map(Raw::typed)
    }

    /// The elements moved by `shifts` along `dims`, one shift for each. Elements that leave at one end come back at
    /// the other.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([1, 2, 3])?.roll(&[1], &[0])?.to_vec::<i64>()?, [3, 1, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or there are more or fewer shifts than dimensions.
    pub fn roll(&self, shifts: &[isize], dims: &[isize]) -> Result<Tensor<K>> {
        own_copy(self.raw(), roll(self.raw(), shifts, dims)?)
    }

    /// The whole tensor repeated along each dimension; sizes beyond the rank become new dimensions in front.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([1, 2])?.repeat([2, 2])?.to_vec::<i64>()?, [1, 2, 1, 2, 1, 2, 1, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for fewer sizes than dimensions.
    pub fn repeat(&self, repeats: impl IntoShape) -> Result<Tensor<K>> {
        own_copy(self.raw(), repeat(self.raw(), repeats.into_shape()?)?)
    }

    /// As [`Tensor::repeat`], but if there are fewer sizes than dimensions, they are the sizes of the last dimensions.
    ///
    /// # Errors
    /// As [`Tensor::repeat`].
    pub fn tile(&self, repeats: impl IntoShape) -> Result<Tensor<K>> {
        let mut repeats = repeats.into_shape()?;
        while repeats.rank() < self.rank() {
            repeats.insert(0, 1)?;
        }
        own_copy(self.raw(), repeat(self.raw(), repeats)?)
    }

    /// Every entry of a dimension `repeats` times, one after another.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([1, 2])?.repeat_interleave(2, 0)?.to_vec::<i64>()?, [1, 1, 2, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or the tensor already has the most dimensions possible.
    pub fn repeat_interleave(&self, repeats: usize, dim: isize) -> Result<Tensor<K>> {
        let dim = self.shape().dim("repeat_interleave", dim)?;
        own_copy(self.raw(), repeated(self.raw(), dim, dim + 1, repeats)?)
    }

    /// Pads the last dimensions in front and behind, or cuts them where a size is negative. `sizes` are
    /// `[left, right, top, bottom, …]`, beginning with the last dimension, as in PyTorch's `F.pad`. Any number of
    /// dimensions may be padded in any mode.
    ///
    /// ```
    /// # use pagelock_tensor::{PadMode, Tensor};
    /// let x = Tensor::new([1, 2, 3])?;
    /// assert_eq!(x.pad(&[1, 2], PadMode::Constant(0.0))?.to_vec::<i64>()?, [0, 1, 2, 3, 0, 0]);
    /// assert_eq!(x.pad(&[2, 1], PadMode::Reflect)?.to_vec::<i64>()?, [3, 2, 1, 2, 3, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an odd number of sizes or more than two per dimension, or if there are too few
    /// elements to cut off or to mirror.
    pub fn pad(&self, sizes: &[isize], mode: PadMode) -> Result<Tensor<K>> {
        own_copy(self.raw(), pad(self.raw(), sizes, mode)?)
    }

    /// Windows of `size` entries of a dimension, `step` apart, as the last dimension of the result: a view. Windows may
    /// overlap; then in-place changes of the view are refused.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::arange(0, 5, 1)?.unfold(0, 3, 2)?;
    /// assert_eq!((x.dims(), x.to_vec::<i64>()?), (&[2, 3][..], vec![0, 1, 2, 2, 3, 4]));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, for a window that is larger than the dimension, or a step
    /// of 0.
    pub fn unfold(&self, dim: isize, size: usize, step: usize) -> Result<Tensor<K>> {
        unfold(self.raw(), dim, size, step).map(Raw::typed)
    }
}

/// The result, copied if it shares the elements of `x`.
pub(super) fn own_copy<K: Kind>(x: &Raw, result: Raw) -> Result<Tensor<K>> {
    if result.storage.is(&x.storage) { result.deep_clone() } else { Ok(result) }.map(Raw::typed)
}

/// `len` entries of a dimension, of which entry `i` is entry `number(i)` of `x`.
pub(super) fn entries(x: &Raw, dim: isize, len: usize, number: impl Fn(usize) -> usize) -> Result<Raw> {
    x.index_select(dim, numbers(len, x, number)?.raw())
}

/// `number(0)`, `number(1)`, … on the device of `x`.
fn numbers(len: usize, x: &Raw, number: impl Fn(usize) -> usize) -> Result<Tensor<Int>> {
    let numbers = Tensor::<Int>::build(len, |numbers: &mut [i64]| {
        numbers.iter_mut().enumerate().for_each(|(i, entry)| *entry = number(i) as i64);
    })?;
    numbers.to(x.storage.device())
}

pub(super) fn roll(x: &Raw, shifts: &[isize], dims: &[isize]) -> Result<Raw> {
    if shifts.len() != dims.len() {
        let expected = format!("there must be one for each of the dimensions {dims:?}");
        return Err(Error::bad_argument("roll", "shifts", format!("{shifts:?}"), expected));
    }
    std::iter::zip(shifts, dims).try_fold(x.clone(), |x, (&shift, &dim)| {
        let size = x.shape()[x.shape().dim("roll", dim)?];
        let by = if size == 0 { 0 } else { shift.rem_euclid(size as isize) as usize };
        if by == 0 {
            return Ok(x);
        }
        let first = size - by;
        cat(&[&x.narrow(dim, first, size - first)?, &x.narrow(dim, 0, first)?], dim)
    })
}

fn repeat(x: &Raw, repeats: Shape) -> Result<Raw> {
    if repeats.rank() < x.rank() {
        let expected = format!("there must be one for each dimension of {}", x.shape());
        return Err(Error::bad_argument("repeat", "repeats", repeats, expected));
    }
    let mut shape = *x.shape();
    while shape.rank() < repeats.rank() {
        shape.insert(0, 1)?;
    }
    let x = x.reshape_to(shape)?;
    if let Some(repeated) = repeated_at_once(&x, &repeats)? {
        return Ok(repeated);
    }
    repeats.iter().enumerate().try_fold(x, |x, (dim, &repeats)| match repeats {
        1 => Ok(x),
        repeats => repeated(&x, dim, dim, repeats),
    })
}

/// Repeats all dimensions in one copy; `None` if that takes more dimensions than a tensor can have.
fn repeated_at_once(x: &Raw, repeats: &Shape) -> Result<Option<Raw>> {
    let n_repeated = repeats.iter().filter(|&&repeats| repeats != 1).count();
    if x.rank() + n_repeated > MAX_RANK {
        return Ok(None);
    }
    let [mut split, mut wide, mut shape] = [Shape::SCALAR; 3];
    for (&size, &repeats) in x.shape().iter().zip(repeats.iter()) {
        if repeats != 1 {
            split.push(1)?;
            wide.push(repeats)?;
        }
        split.push(size)?;
        wide.push(size)?;
        shape.push(size.saturating_mul(repeats))?;
    }
    shape.check_size()?;
    x.reshape_to(split)?.expand(wide)?.reshape_to(shape).map(Some)
}

/// Repeats a dimension: as a whole (`at` is `dim`), or entry by entry (`at` is `dim + 1`).
fn repeated(x: &Raw, dim: usize, at: usize, repeats: usize) -> Result<Raw> {
    let mut wide = *x.shape();
    wide.insert(at, repeats)?;
    let shape = x.shape().with(dim, x.shape()[dim].saturating_mul(repeats));
    shape.check_size()?;
    x.unsqueeze(at as isize)?.expand(wide)?.reshape_to(shape)
}

pub(super) fn pad(x: &Raw, sizes: &[isize], mode: PadMode) -> Result<Raw> {
    if !sizes.len().is_multiple_of(2) || sizes.len() / 2 > x.rank() {
        let expected = format!("there must be two for each of the last dimensions of {}", x.shape());
        return Err(Error::bad_argument("pad", "sizes", format!("{sizes:?}"), expected));
    }
    if sizes.iter().all(|&n| n == 0) {
        return Ok(x.clone());
    }
    let sizes = sizes.as_chunks().0.iter().enumerate().map(|(i, around)| (x.rank() - 1 - i, *around));
    if let PadMode::Constant(value) = mode {
        return surrounded(x, sizes, value);
    }
    sizes.filter(|(_, around)| *around != [0, 0]).try_fold(x.clone(), |x, (dim, around)| pad_dim(&x, dim, around, mode))
}

/// Pads `x` with a number, and cuts it where sizes are negative.
fn surrounded(x: &Raw, sizes: impl Iterator<Item = (usize, [isize; 2])>, value: f64) -> Result<Raw> {
    let (mut kept, mut shape, mut starts) = (x.clone(), *x.shape(), [0; MAX_RANK]);
    for (dim, [before, after]) in sizes {
        let (size, len) = (shape[dim], padded_len(x, dim, [before, after], isize::MAX)?);
        shape = shape.with(dim, len);
        shape.check_size()?;
        let [front, back] = [before, after].mapped(|n| n.max(0) as usize);
        starts[dim] = front.min(len);
        let cut = before.min(0).unsigned_abs().min(size);
        let n = len.saturating_sub(front + back);
        if n != size {
            kept = kept.narrow(dim as isize, cut, n)?;
        }
    }
    let around = number_like("pad", x, Scalar::Float(value))?.expand(shape)?;
    let window = Window { starts, shape: *kept.shape() };
    written_over("pad", window, &around, &kept)
}

/// A part of every dimension.
#[derive(Clone, Copy)]
struct Window {
    starts: [usize; MAX_RANK],
    shape: Shape,
}

impl View for Window {
    const NAME: &'static str = "slice";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        let dims = self.starts.iter().zip(self.shape.iter()).enumerate();
        Ok(dims.fold(*input, |layout, (dim, (&start, &len))| layout.slice(dim, start, len, 1)))
    }

    fn backward(&self, input: &Shape, grad: &Tensor) -> Result<Tensor> {
        let zeros = number_like("slice_backward", grad.raw(), Scalar::Int(0))?.expand(*input)?;
        written_over("slice_backward", *self, &zeros, grad.raw()).map(Raw::typed)
    }

    fn part(&self, input: &Layout) -> Option<Result<Layout>> {
        Some(self.layout(input))
    }
}

/// The length of a dimension that is padded by at most `most` on each side, or cut.
fn padded_len(x: &Raw, dim: usize, [before, after]: [isize; 2], most: isize) -> Result<usize> {
    let len = x.shape()[dim] as i128 + before as i128 + after as i128;
    if len < 0 || before.max(after) > most {
        return Err(Error::Argument(format!(
            "pad: dimension {dim} of {} cannot be padded or cut by {before} and {after}; pad or cut less",
            x.shape()
        )));
    }
    Ok(usize::try_from(len).unwrap_or(usize::MAX))
}

/// Pads a dimension with elements of `x`, or cuts it.
fn pad_dim(x: &Raw, dim: usize, [before, after]: [isize; 2], mode: PadMode) -> Result<Raw> {
    let size = x.shape()[dim] as isize;
    let most = match mode {
        PadMode::Reflect => size - 1,
        PadMode::Circular => size,
        _ if size == 0 => 0,
        _ => isize::MAX,
    };
    let len = padded_len(x, dim, [before, after], most)?;
    x.shape().with(dim, len).check_size()?;
    let [front, back] = [before, after].mapped(|n| n.max(0) as usize);
    if len >= front + back {
        return around(x, dim, [before, after], mode);
    }
    // Nothing is left of `x` itself, only padding.
    let number = |i: isize| match mode {
        PadMode::Replicate => i.clamp(0, size - 1),
        PadMode::Circular => i.rem_euclid(size),
        _ if i < 0 => -i,
        _ if i >= size => 2 * (size - 1) - i,
        _ => i,
    };
    entries(x, dim as isize, len, |i| number((i as isize).saturating_sub(before)) as usize)
}

/// Joins the kept part of `x` with the padding in front of it and behind it.
fn around(x: &Raw, dim: usize, [before, after]: [isize; 2], mode: PadMode) -> Result<Raw> {
    let (at, size) = (dim as isize, x.shape()[dim]);
    // `n` entries beside the kept part, from the mode's start on; mirrored ones are flipped.
    let beside = |n: isize, [circular, reflect, replicate]: [usize; 3]| {
        let n = n.max(0) as usize;
        match mode {
            _ if n == 0 => Ok(Vec::new()),
            PadMode::Circular => Ok(vec![x.narrow(at, circular, n)?]),
            PadMode::Reflect if n <= FEW => (reflect..reflect + n).rev().map(|i| x.narrow(at, i, 1)).collect(),
            PadMode::Reflect => Ok(vec![flip(&x.narrow(at, reflect, n)?, vec![dim])?]),
            _ if n <= FEW => Ok(vec![x.narrow(at, replicate, 1)?; n]),
            _ => Ok(vec![x.narrow(at, replicate, 1)?.expand(x.shape().with(dim, n))?]),
        }
    };
    let [n_front, n_back] = [before, after].mapped(|n| n.max(0) as usize);
    let last = size.saturating_sub(1);
    let front = beside(before, [size.saturating_sub(n_front), 1, 0])?;
    let back = beside(after, [0, last.saturating_sub(n_back), last])?;
    // This is the last view of `x` to be made, so that the gradients of the others are added to its gradient.
    let [cut_front, cut_back] = [before, after].mapped(|n| n.min(0).unsigned_abs());
    let kept = x.narrow(at, cut_front, size - cut_front - cut_back)?;
    let parts: Vec<&Raw> = front.iter().chain([&kept]).chain(&back).filter(|part| part.shape()[dim] > 0).collect();
    if parts.is_empty() { Ok(kept) } else { cat(&parts, at) }
}

/// Up to this many entries are joined one by one, which takes less time than making them one tensor first.
const FEW: usize = 3;

fn unfold(x: &Raw, dim: isize, size: usize, step: usize) -> Result<Raw> {
    let dim = x.shape().dim("unfold", dim)?;
    let len = x.shape()[dim];
    if step == 0 {
        return Err(Error::bad_argument("unfold", "step", step, "it must be at least 1"));
    }
    if size > len {
        let expected = format!("it must be at most {len}, the size of dimension {dim} of {}", x.shape());
        return Err(Error::bad_argument("unfold", "size", size, expected));
    }
    let step = step.min(len + 1); // a longer step leaves one window, too
    view_raw(Unfold { dim, size, step }, x)
}

/// Windows of a dimension as the last dimension.
struct Unfold {
    dim: usize,
    size: usize,
    step: usize,
}

impl View for Unfold {
    const NAME: &'static str = "unfold";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        let layout = input.unfold(self.dim, self.size, self.step)?;
        layout.shape().check_size()?;
        Ok(layout)
    }

    /// Gradients of windows are added where windows overlap, in the order of the windows.
    fn backward(&self, input: &Shape, grad: &Tensor) -> Result<Tensor> {
        let Unfold { dim, size, step } = *self;
        if size == 0 {
            return Ok(number_like(Self::NAME, grad.raw(), Scalar::Int(0))?.expand(*input)?.typed());
        }
        let mut order: Vec<isize> = (0..input.rank() as isize).collect();
        order.insert(dim + 1, input.rank() as isize);
        let windows = grad.raw().permute(&order)?; // […, windows, size, …]
        let overlapping = size.div_ceil(step);
        let is_half = grad.dtype().computing() != grad.dtype();
        if overlapping <= if is_half { 2 } else { MAX_OVERLAPPING } {
            return self.in_steps(input, &windows, overlapping).map(Raw::typed);
        }
        let seen = grad.dims()[dim] * size;
        let entries = windows.reshape_to(input.with(dim, seen))?;
        let index = numbers(seen, grad.raw(), |i| i / size * step + i % size)?;
        entries_added(&entries, dim, index.raw(), *input).map(Raw::typed)
    }
}

/// If more windows than this overlap, their sum is not made of one tensor per window. Of half types only two are
/// added so, because a sum of two is rounded once, as one in `f32` is.
const MAX_OVERLAPPING: usize = 8;

impl Unfold {
    /// The sum of windows as a sum of `overlapping` tensors. Tensor `k` has the `k`-th part of all windows, each as
    /// long as a step, side by side.
    fn in_steps(&self, input: &Shape, windows: &Raw, overlapping: usize) -> Result<Raw> {
        let &Unfold { dim, size, step } = self;
        let seen = windows.shape()[dim] * step;
        let part = |k: usize| {
            let (start, len) = (k * step, step.min(size - k * step));
            let part = windows.narrow(dim as isize + 1, start, len)?;
            let part = if len < step {
                surrounded(&part, [(dim + 1, [0, (step - len) as isize])].into_iter(), 0.0)?
            } else {
                part
            };
            let behind = input[dim] as isize - (start + seen) as isize;
            let part = part.reshape_to(input.with(dim, seen))?;
            surrounded(&part, [(dim, [start as isize, behind])].into_iter(), 0.0)
        };
        let last = part(overlapping - 1)?;
        (0..overlapping - 1).rev().try_fold(last, |sum, k| sum.add(&part(k)?))
    }
}
