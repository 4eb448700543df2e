//! Shapes and axis arguments, and how they are checked; `sizes.rs` converts the sizes that users give.
//!
//! A [`Shape`] is at most [`MAX_RANK`] sizes, stored inline, so shapes never touch the heap.

use std::fmt;
use std::ops::{Deref, RangeFull};

use crate::error::{Error, Result};
use crate::inlined::Slice;
pub use crate::sizes::{Integer, IntoShape};

/// The largest number of dimensions a tensor can have.
pub const MAX_RANK: usize = 8;

/// The sizes of a tensor's dimensions, outermost first. `[]` is a scalar.
///
/// ```
/// # use pagelock_tensor::Shape;
/// let shape = Shape::new(&[64, 1, 28, 28])?;
/// assert_eq!(shape.rank(), 4);
/// assert_eq!(shape.elements(), 50_176);
/// assert_eq!(shape.to_string(), "[64, 1, 28, 28]");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    sizes: [usize; MAX_RANK], // zero beyond `rank`, so that derived equality holds
    rank: u8,
}

impl Shape {
    /// The shape of a scalar: no dimensions, one element.
    pub const SCALAR: Shape = Shape { sizes: [0; MAX_RANK], rank: 0 };

    /// A shape from its sizes.
    ///
    /// # Errors
    /// [`Error::Argument`] above [`MAX_RANK`] sizes, or if the elements' bytes cannot be addressed.
    pub fn new(sizes: &[usize]) -> Result<Shape> {
        if sizes.len() > MAX_RANK {
            return Err(Error::too_many_dims(sizes));
        }
        let mut shape = Shape { sizes: [0; MAX_RANK], rank: sizes.len() as u8 };
        shape.sizes[..sizes.len()].copy_from(sizes);
        shape.check_size()?;
        Ok(shape)
    }

    /// Returns an error if the elements' bytes cannot be addressed. Sizes of 0 are skipped, so that strides are
    /// addressable too.
    pub(crate) fn check_size(&self) -> Result<()> {
        let widest_element = 8;
        let bytes = self
            .iter()
            .filter(|&&size| size > 0)
            .try_fold(widest_element, |bytes: usize, &size| bytes.checked_mul(size));
        match bytes {
            Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
            _ => Err(Error::too_large(self)),
        }
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The sizes as an array, of as many as the pattern has names: `let [batch, channels] = shape.sizes()?`.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is another number of dimensions.
    pub fn sizes<const N: usize>(&self) -> Result<[usize; N]> {
        <[usize; N]>::try_from(&self[..]).map_err(|_| self.other_rank(N))
    }

    fn other_rank(&self, n_names: usize) -> Error {
        Error::Argument(format!(
            "sizes: the pattern has {n_names} sizes, but {self} has {}; use one name for each dimension",
            self.rank()
        ))
    }

    /// The number of elements: the product of the sizes.
    pub fn elements(&self) -> usize {
        self.iter().fold(1, |product: usize, &size| product.saturating_mul(size))
    }

    pub(crate) fn push(&mut self, size: usize) -> Result<()> {
        self.insert(self.rank(), size)
    }

    pub(crate) fn insert(&mut self, dim: usize, size: usize) -> Result<()> {
        let rank = self.rank();
        if rank == MAX_RANK {
            return Err(Error::too_many_dims(&[&self.sizes[..], &[size]].concat()));
        }
        self.sizes.copy_within(dim..rank, dim + 1);
        self.sizes[dim] = size;
        self.rank += 1;
        Ok(())
    }

    pub(crate) fn remove(&mut self, dim: usize) -> usize {
        let size = self.sizes[dim];
        let rank = self.rank();
        self.sizes.copy_within(dim + 1..rank, dim);
        self.sizes[rank - 1] = 0;
        self.rank -= 1;
        size
    }

    pub(crate) fn set(&mut self, dim: usize, size: usize) {
        self.sizes[..self.rank as usize][dim] = size;
    }

    /// This shape with one dimension resized.
    pub(crate) fn with(mut self, dim: usize, size: usize) -> Shape {
        self.set(dim, size);
        self
    }

    /// This shape with a further dimension at the end; its rank must be below [`MAX_RANK`].
    pub(crate) fn with_last(mut self, size: usize) -> Shape {
        self.sizes[self.rank()] = size;
        self.rank += 1;
        self
    }

    /// The dimension that `dim` names; negative values count from the end.
    pub(crate) fn dim(&self, op: &'static str, dim: isize) -> Result<usize> {
        resolve_dim(op, dim, self.rank(), self)
    }

    /// The common shape of two operands: sizes are aligned at the end, and must be equal or 1.
    /// The rule is NumPy's: <https://numpy.org/doc/stable/user/basics.broadcasting.html>.
    pub(crate) fn broadcast(op: &'static str, left: &Shape, right: &Shape) -> Result<Shape> {
        if left == right {
            return Ok(*left);
        }
        let mut out = if left.rank >= right.rank { *left } else { *right };
        let (rank, left_rank, right_rank) = (out.rank(), left.rank(), right.rank());
        for back in 1..=left_rank.min(right_rank) {
            let size = match (left[left_rank - back], right[right_rank - back]) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => {
                    return Err(Error::Argument(format!(
                        "{op}: shapes {left} and {right} do not broadcast: aligned at the end, sizes must be equal or 1; reshape, unsqueeze or transpose one side"
                    )));
                }
            };
            out.set(rank - back, size);
        }
        out.check_size()?;
        Ok(out)
    }

    /// This shape after a reduction over `axes`: kept as size 1, or dropped.
    pub(crate) fn reduced(&self, axes: AxisSet, keepdim: bool) -> Shape {
        let mut out = Shape::SCALAR;
        for (dim, &size) in self.iter().enumerate() {
            let size = if axes.contains(dim) { 1 } else { size };
            if !axes.contains(dim) || keepdim {
                out.sizes[out.rank()] = size;
                out.rank += 1;
            }
        }
        out
    }
}

/// Which of `n_dims` dimensions, or positions between dimensions, `dim` names; negative values count from the end.
pub(crate) fn resolve_dim(op: &'static str, dim: isize, n_dims: usize, shape: &Shape) -> Result<usize> {
    let resolved = if dim < 0 { dim + n_dims as isize } else { dim };
    if (0..n_dims as isize).contains(&resolved) {
        Ok(resolved as usize)
    } else {
        Err(Error::Argument(format!("{op}: there is no dimension {dim} in {shape}: {}", dims_hint(n_dims))))
    }
}

/// A hint which dimensions can be named, for errors.
fn dims_hint(n_dims: usize) -> String {
    match n_dims {
        0 => "it is a scalar and has none; reshape it to [1] first".to_string(),
        1 => "use 0, or -1 from the end".to_string(),
        _ => format!("use 0 to {}, or -{n_dims} to -1 from the end", n_dims - 1),
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.sizes[..self.rank as usize]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<const N: usize> PartialEq<[usize; N]> for Shape {
    fn eq(&self, other: &[usize; N]) -> bool {
        **self == other[..]
    }
}

/// A set of dimensions, as a bit mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AxisSet(u8);

impl AxisSet {
    /// One dimension.
    pub(crate) fn one(dim: usize) -> AxisSet {
        AxisSet(1 << dim)
    }

    /// Several dimensions; an error if one is named twice.
    pub(crate) fn of(dims: &mut dyn Iterator<Item = isize>, op: &'static str, shape: &Shape) -> Result<AxisSet> {
        let mut set = 0u8;
        for dim in dims {
            let bit = 1 << shape.dim(op, dim)?;
            if set & bit != 0 {
                return Err(Error::Argument(format!(
                    "{op}: dimension {dim} of {shape} is named twice; name each once"
                )));
            }
            set |= bit;
        }
        Ok(AxisSet(set))
    }

    pub(crate) fn contains(self, dim: usize) -> bool {
        self.0 >> dim & 1 == 1
    }

    /// Bit `i` is set where dimension `i` is in the set.
    pub(crate) fn mask(self) -> u32 {
        u32::from(self.0)
    }
}

/// An argument that names dimensions: `..` for all, `-1` for one, `[0, 2]` for several.
///
/// ```
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::ones([2, 3, 4])?;
/// assert_eq!(x.sum(..)?.shape(), &[0; 0]);
/// assert_eq!(x.sum(-1)?.shape(), &[2, 3]);
/// assert_eq!(x.sum([0, 2])?.shape(), &[3]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name dimensions",
    label = "not dimensions",
    note = "give `..` for all, a dimension (`1`, or `-1` from the end), or an array of some: `[0, 2]`"
)]
pub trait Axes {
    /// The axes as a set, checked against a shape.
    ///
    /// # Errors
    /// [`Error::Argument`] for an axis that does not exist, or that is named twice.
    fn resolve(self, op: &'static str, shape: &Shape) -> Result<AxisSet>;
}

impl Axes for RangeFull {
    fn resolve(self, _op: &'static str, shape: &Shape) -> Result<AxisSet> {
        Ok(AxisSet(((1u16 << shape.rank()) - 1) as u8))
    }
}

macro_rules! axes {
    ($($type:ty)+) => { $(
        impl Axes for $type {
            fn resolve(self, op: &'static str, shape: &Shape) -> Result<AxisSet> {
                Integer::axes(&[self], op, shape)
            }
        }
    )+ };
}

axes! { usize isize i32 i64 u32 u64 }

impl<T: Integer, const N: usize> Axes for [T; N] {
    fn resolve(self, op: &'static str, shape: &Shape) -> Result<AxisSet> {
        T::axes(&self, op, shape)
    }
}

impl<T: Integer> Axes for &[T] {
    fn resolve(self, op: &'static str, shape: &Shape) -> Result<AxisSet> {
        T::axes(self, op, shape)
    }
}

impl Axes for AxisSet {
    fn resolve(self, op: &'static str, shape: &Shape) -> Result<AxisSet> {
        match self.0.checked_ilog2() {
            Some(last) => shape.dim(op, last as isize).map(|_| self),
            None => Ok(self),
        }
    }
}
