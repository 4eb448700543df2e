//! Elements in another order, repeated, or with others around them: copies made of views, joins and selections by index.

use super::cat;
use crate::autograd::{Saved, record};
use crate::cpu;
use crate::create::filled;
use crate::element::Scalar;
use crate::error::{Error, Result};
use crate::kind::{Int, Kind};
use crate::op::{Derivative, on_cpu};
use crate::shape::{IntoShape, Shape};
use crate::tensor::{Raw, Tensor, by_bits};

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

    /// The elements moved by `shifts` along `dims`, one shift for each; what leaves at one end comes back at the other.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([1, 2, 3])?.roll(&[1], &[0])?.to_vec::<i64>()?, [3, 1, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or not one shift for each.
    pub fn roll(&self, shifts: &[isize], dims: &[isize]) -> Result<Tensor<K>> {
        roll(self.raw(), shifts, dims).map(Raw::typed)
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
        repeat(self.raw(), repeats.into_shape()?).map(Raw::typed)
    }

    /// As [`Tensor::repeat`]; where there are fewer sizes than dimensions, they are those of the last ones.
    ///
    /// # Errors
    /// As [`Tensor::repeat`].
    pub fn tile(&self, repeats: impl IntoShape) -> Result<Tensor<K>> {
        let mut repeats = repeats.into_shape()?;
        while repeats.rank() < self.rank() {
            repeats.insert(0, 1)?;
        }
        repeat(self.raw(), repeats).map(Raw::typed)
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
    /// [`Error::Argument`] if there is no such dimension, or no room for one more.
    pub fn repeat_interleave(&self, repeats: usize, dim: isize) -> Result<Tensor<K>> {
        let dim = self.shape().dim("repeat_interleave", dim)?;
        repeated(self.raw(), dim, dim + 1, repeats).map(Raw::typed)
    }

    /// With elements put in front of and behind the last dimensions, or taken away: `[left, right, top, bottom, …]`, from the
    /// last dimension on; PyTorch's `F.pad`. Any number of dimensions may be padded in any mode.
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
    /// [`Error::Argument`] for an odd number of sizes, or more than the dimensions have; for more than there is to take away, or
    /// to mirror.
    pub fn pad(&self, sizes: &[isize], mode: PadMode) -> Result<Tensor<K>> {
        pad(self.raw(), sizes, mode).map(Raw::typed)
    }

    /// Windows of `size` entries of a dimension, `step` apart, as the last dimension of the result; windows may overlap. A
    /// copy, unlike PyTorch's.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::arange(0, 5, 1)?.unfold(0, 3, 2)?;
    /// assert_eq!((x.dims(), x.to_vec::<i64>()?), (&[2, 3][..], vec![0, 1, 2, 2, 3, 4]));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, for a window that is larger, or a step of 0.
    pub fn unfold(&self, dim: isize, size: usize, step: usize) -> Result<Tensor<K>> {
        unfold(self.raw(), dim, size, step).map(Raw::typed)
    }
}

/// [`Tensor::flip`]. A dimension that is named twice stays as it is.
fn flip(x: &Raw, dims: Vec<usize>) -> Result<Raw> {
    let once: Vec<usize> = (0..x.rank()).filter(|at| dims.iter().filter(|dim| *dim == at).count() % 2 == 1).collect();
    if !x.storage.device().is_cpu() {
        let reversed = |x: Raw, &dim: &usize| {
            let size = x.shape()[dim];
            entries(&x, dim as isize, size, |i| size - 1 - i)
        };
        let out = once.iter().try_fold(x.without_node(), reversed)?;
        return Ok(record("flip", Flip(once), [Some(x)], out));
    }
    // A transposed matrix is flipped as it lies in memory.
    if let Some(last) = x.rank().checked_sub(1).filter(|&last| last > 0 && !x.is_contiguous()) {
        let matrix = x.transpose(-2, -1)?;
        if matrix.is_contiguous() {
            let swapped = |dim| if dim + 1 >= last { 2 * last - 1 - dim } else { dim };
            return flip(&matrix, once.into_iter().map(swapped).collect())?.transpose(-2, -1);
        }
    }
    let input = x.gap_free()?;
    let out = on_cpu("flip", [Some(&input)], (*x.shape(), x.dtype()), &mut |inputs, out| {
        by_bits!(inputs.dtype(), B => {
            let x = inputs.bits_of::<B>(0);
            cpu::flip(x.data.plain(), x.shape, &once, out.bits());
        });
        Ok(())
    })?;
    Ok(record("flip", Flip(once), [Some(x)], out))
}

/// The derivative of [`flip`].
struct Flip(Vec<usize>);

impl Derivative<1> for Flip {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(flip(grad.raw(), self.0.clone())?.typed())])
    }
}

/// `len` entries of a dimension, by number.
pub(super) fn entries(x: &Raw, dim: isize, len: usize, number: impl Fn(usize) -> usize) -> Result<Raw> {
    let index = Tensor::<Int>::build(len, |numbers: &mut [i64]| {
        numbers.iter_mut().enumerate().for_each(|(i, entry)| *entry = number(i) as i64);
    })?;
    x.index_select(dim, index.to(x.storage.device())?.raw())
}

pub(super) fn roll(x: &Raw, shifts: &[isize], dims: &[isize]) -> Result<Raw> {
    if shifts.len() != dims.len() {
        let expected = format!("there must be one for each of the dimensions {dims:?}");
        return Err(Error::bad_argument("roll", "shifts", format!("{shifts:?}"), expected));
    }
    std::iter::zip(shifts, dims).try_fold(x.clone(), |x, (&shift, &dim)| {
        let size = x.shape()[x.shape().dim("roll", dim)?];
        let first = if size == 0 { 0 } else { (-shift).rem_euclid(size as isize) as usize };
        if first == 0 {
            return Ok(x);
        }
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
    repeats.iter().enumerate().try_fold(x.reshape_to(shape)?, |x, (dim, &repeats)| match repeats {
        1 => Ok(x),
        repeats => repeated(&x, dim, dim, repeats),
    })
}

/// With a dimension repeated: as a whole (`at` is `dim`), or entry by entry (`at` is `dim + 1`).
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
    sizes.as_chunks().0.iter().enumerate().try_fold(x.clone(), |x, (i, &[before, after])| match [before, after] {
        [0, 0] => Ok(x),
        around => pad_dim(&x, x.rank() - 1 - i, around, mode),
    })
}

fn pad_dim(x: &Raw, dim: usize, [before, after]: [isize; 2], mode: PadMode) -> Result<Raw> {
    let size = x.shape()[dim] as isize;
    let len = size.saturating_add(before).saturating_add(after);
    let most = match mode {
        PadMode::Constant(_) => isize::MAX,
        PadMode::Reflect => size - 1,
        PadMode::Replicate => {
            if size == 0 {
                0
            } else {
                isize::MAX
            }
        }
        PadMode::Circular => size,
    };
    if len < 0 || before.max(after) > most {
        let expected = format!("dimension {dim} of {} has fewer entries; pad less", x.shape());
        return Err(Error::bad_argument("pad", "sizes", format!("{before} and {after}"), expected));
    }
    let PadMode::Constant(value) = mode else {
        x.shape().with(dim, len as usize).check_size()?;
        let number = |i: isize| match mode {
            PadMode::Replicate => i.clamp(0, size - 1),
            PadMode::Circular => i.rem_euclid(size),
            _ if i < 0 => -i,
            _ if i >= size => 2 * (size - 1) - i,
            _ => i,
        };
        return entries(x, dim as isize, len as usize, |i| number(i as isize - before) as usize);
    };
    let start = (-before).max(0);
    let kept = x.narrow(dim as isize, start as usize, (len - before.max(0) - after.max(0)).max(0) as usize)?;
    let beside = |size: isize| {
        filled(x.storage.device(), "pad", x.shape().with(dim, size.max(0) as usize), x.dtype(), Scalar::Float(value))
    };
    cat(&[&beside(before.min(len))?, &kept, &beside(after.min(len))?], dim as isize)
}

fn unfold(x: &Raw, dim: isize, size: usize, step: usize) -> Result<Raw> {
    let dim = x.shape().dim("unfold", dim)?;
    let len = x.shape()[dim];
    if size > len || step == 0 {
        let expected =
            format!("it must fit the {len} entries of dimension {dim} of {}, with a step of at least 1", x.shape());
        return Err(Error::bad_argument("unfold", "size", size, expected));
    }
    let windows = (len - size) / step + 1;
    let mut shape = x.shape().with(dim, windows);
    shape.insert(dim + 1, size)?;
    shape.check_size()?;
    let picked = entries(x, dim as isize, windows * size, |i| i / size.max(1) * step + i % size.max(1))?;
    let mut order: Vec<isize> = (0..shape.rank() as isize).collect();
    let window = order.remove(dim + 1);
    order.push(window);
    picked.reshape_to(shape)?.permute(&order)
}
