//! Diagonals of matrices: as views, and written into matrices of zeros.

use super::reduce::{Reduced, sum};
use super::views::{Part, Placed};
use crate::error::{Error, Result};
use crate::inlined::Slice;
use crate::kind::{Int, Kind, Numeric};
use crate::layout::Layout;
use crate::op::{View, apply, apply_raw, view_raw};
use crate::shape::{AxisSet, Shape, resolve_dim};
use crate::tensor::{Raw, Tensor};

impl<K: Kind> Tensor<K> {
    /// A view of diagonal `offset` of the matrices with rows `dim1` and columns `dim2`, as the last dimension. Offset
    /// 0 is the main diagonal; positive offsets are above it. PyTorch's defaults are 0, 0 and 1.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[1, 2, 3], [4, 5, 6]])?;
    /// assert_eq!(x.diagonal(0, 0, 1)?.to_vec::<i64>()?, [1, 5]);
    /// assert_eq!(x.diagonal(1, 0, 1)?.to_vec::<i64>()?, [2, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if `dim1` and `dim2` are not two dimensions of the tensor.
    pub fn diagonal(&self, offset: isize, dim1: isize, dim2: isize) -> Result<Tensor<K>> {
        self.raw().diagonal(offset, dim1, dim2).map(Raw::typed)
    }

    /// Matrices of zeros with the last dimension as their diagonal `offset`. Their rows and columns are dimensions
    /// `dim1` and `dim2` of the result. PyTorch's defaults are 0, −2 and −1.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([1, 2])?.diag_embed(0, -2, -1)?;
    /// assert_eq!(x.to_vec::<i64>()?, [1, 0, 0, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a scalar, or if `dim1` and `dim2` are not two dimensions of the result.
    pub fn diag_embed(&self, offset: isize, dim1: isize, dim2: isize) -> Result<Tensor<K>> {
        diag_embed(self.raw(), offset, dim1, dim2).map(Raw::typed)
    }
}

impl<K: Numeric> Tensor<K> {
    /// The sum of a matrix's diagonal; integers are summed in `int64`.
    ///
    /// # Errors
    /// [`Error::Argument`] unless there are two dimensions.
    pub fn trace(&self) -> Result<Tensor<K>> {
        if self.rank() != 2 {
            return Err(Error::wrong_shape(
                "trace",
                "the tensor",
                self.shape(),
                "it must be a matrix; use diagonal and sum",
            ));
        }
        let diagonal = self.raw().diagonal(0, 0, 1)?;
        sum(&diagonal, Reduced { axes: AxisSet::one(0), keepdim: false }).map(Raw::typed)
    }
}

impl Tensor {
    /// The indices of the elements on and below diagonal `offset` of a matrix, row by row: `[2, n]`, row indices
    /// first.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::tril_indices(2, 2, 0)?.to_vec::<i64>()?, [0, 1, 1, 0, 0, 1]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if the result does not fit the budget.
    pub fn tril_indices(rows: usize, columns: usize, offset: isize) -> Result<Tensor<Int>> {
        triangle_indices([rows, columns], offset, true)
    }

    /// The indices of the elements on and above diagonal `offset` of a matrix; see [`Tensor::tril_indices`].
    ///
    /// # Errors
    /// As [`Tensor::tril_indices`].
    pub fn triu_indices(rows: usize, columns: usize, offset: isize) -> Result<Tensor<Int>> {
        triangle_indices([rows, columns], offset, false)
    }
}

/// The indices on and below, or else on and above, a diagonal.
fn triangle_indices([rows, columns]: [usize; 2], offset: isize, lower: bool) -> Result<Tensor<Int>> {
    Shape::new(&[rows, columns])?;
    if rows == 0 || columns == 0 {
        return Tensor::build([2, 0], |_: &mut [i64]| ());
    }
    let (rows, columns, offset) = (rows as i128, columns as i128, offset as i128);
    let on_and_below = |offset| sum_of_clamped(offset + rows, columns) - sum_of_clamped(offset, columns);
    let n = if lower { on_and_below(offset) } else { rows * columns - on_and_below(offset - 1) } as usize;
    // Only rows that have an index: all rows may be too many for a loop.
    let visited = if lower { (-offset).max(0)..rows } else { 0..rows.min(columns - offset) };
    Tensor::build([2, n], |numbers: &mut [i64]| {
        let (of_rows, of_columns) = numbers.split_at_mut(n);
        let mut at = 0;
        for row in visited {
            let diagonal = row + offset;
            let columns = if lower { 0..columns.min(diagonal + 1) } else { diagonal.max(0)..columns };
            let places = at..at + (columns.end - columns.start) as usize;
            at = places.end;
            of_rows[places.clone()].set_to(row as i64);
            of_columns[places].iter_mut().zip(columns).for_each(|(to, column)| *to = column as i64);
        }
    })
}

/// The sum of `clamp(i, 0, most)` over all `i` up to `last`.
fn sum_of_clamped(last: i128, most: i128) -> i128 {
    let rising = last.clamp(0, most);
    rising * (rising + 1) / 2 + (last - most).max(0) * most
}

impl Raw {
    pub(crate) fn diagonal(&self, offset: isize, dim1: isize, dim2: isize) -> Result<Raw> {
        let dims = [self.shape().dim("diagonal", dim1)?, self.shape().dim("diagonal", dim2)?];
        if dims[0] == dims[1] {
            return Err(Error::bad_argument("diagonal", "dim2", dim2, "it must differ from dim1"));
        }
        view_raw(Diagonal { offset, dims }, self)
    }
}

/// Zeros of shape `into`, with `x` as a diagonal.
pub(super) fn placed(x: &Raw, offset: isize, dims: [usize; 2], into: Shape) -> Result<Raw> {
    apply_raw(Placed { view: Diagonal { offset, dims }, into }, [x])
}

fn diag_embed(x: &Raw, offset: isize, dim1: isize, dim2: isize) -> Result<Raw> {
    let op = "diag_embed";
    let Some(n) = x.shape().last().copied() else {
        return Err(Error::wrong_shape(op, "the tensor", x.shape(), "it must have a dimension; reshape it"));
    };
    let rank = x.rank() + 1;
    let dims = [resolve_dim(op, dim1, rank, x.shape())?, resolve_dim(op, dim2, rank, x.shape())?];
    if dims[0] == dims[1] {
        return Err(Error::bad_argument(op, "dim2", dim2, "it must differ from dim1"));
    }
    let side = n.saturating_add(offset.unsigned_abs());
    let mut into = *x.shape();
    into.remove(x.rank() - 1);
    into.insert(dims[0].min(dims[1]), side)?;
    into.insert(dims[0].max(dims[1]), side)?;
    into.check_size()?;
    placed(x, offset, dims, into)
}

/// The diagonal of two dimensions as the last one.
#[derive(Clone, Copy)]
pub(super) struct Diagonal {
    pub(super) offset: isize,
    pub(super) dims: [usize; 2],
}

impl View for Diagonal {
    const NAME: &'static str = "diagonal";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        Ok(input.diagonal(self.dims, self.offset))
    }

    fn backward(&self, input: &Shape, grad: &Tensor) -> Result<Tensor> {
        apply(Placed { view: *self, into: *input }, [grad])
    }

    fn part(&self, input: &Layout) -> Option<Result<Layout>> {
        Some(self.layout(input))
    }
}

impl Part for Diagonal {
    const PLACED: &'static str = "diag_embed";
}
