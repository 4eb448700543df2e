//! Copies of a tensor with a slice, an entry or a diagonal replaced, or with entries combined; vectors of elements by number.

use super::index::own_index;
use super::scatter::{ScatterReduce, index_copied};
use super::slice_range::SliceRange;
use super::{choose, diagonals};
use crate::create::filled;
use crate::element::{DType, Scalar};
use crate::error::{Error, Result};
use crate::kind::{Int, Kind, Number, Numeric};
use crate::shape::Shape;
use crate::sizes::Integer;
use crate::tensor::{Raw, Tensor};

impl<K: Kind> Tensor<K> {
    /// A copy with `source` in place of the entry that [`select`](Tensor::select) gives.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([2, 2])?.select_scatter(&Tensor::ones([2])?, 0, -1)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or the shapes do not fit; [`Error::IndexOutOfRange`].
    pub fn select_scatter(&self, source: &Tensor<K>, dim: isize, index: impl Integer) -> Result<Tensor<K>> {
        let index = index.index();
        let at = self.shape().dim("select_scatter", dim)?;
        let entry = self.raw().select(dim, index)?; // for its checks
        check_like("select_scatter", entry.shape(), source.shape())?;
        let number = if index < 0 { index + self.shape()[at] as isize } else { index };
        placed(
            "select_scatter",
            self.raw(),
            at,
            number as usize..number as usize + 1,
            1,
            &source.raw().unsqueeze(at as isize)?,
        )
        .map(Raw::typed)
    }

    /// A copy with `source` in place of the entries that [`slice`](Tensor::slice) gives.
    ///
    /// # Errors
    /// As [`Tensor::select_scatter`], and [`Tensor::slice`].
    pub fn slice_scatter(
        &self,
        source: &Tensor<K>,
        dim: isize,
        range: impl SliceRange,
        step: usize,
    ) -> Result<Tensor<K>> {
        let at = self.shape().dim("slice_scatter", dim)?;
        let [start, end] = range.within(self.shape()[at]).map(|place| place.max(0) as usize);
        slice_scatter(self.raw(), source.raw(), at, start..end, step).map(Raw::typed)
    }

    /// A copy with `source` in place of the diagonal that [`diagonal`](Tensor::diagonal) gives.
    ///
    /// # Errors
    /// As [`Tensor::diagonal`]; [`Error::Argument`] if the source has another shape.
    pub fn diagonal_scatter(&self, source: &Tensor<K>, offset: isize, dim1: isize, dim2: isize) -> Result<Tensor<K>> {
        diagonal_scatter(self.raw(), source.raw(), (offset, dim1, dim2)).map(Raw::typed)
    }

    /// The elements by number in row-major order, in the shape of `index`; negative numbers count from the end.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[1, 2], [3, 4]])?;
    /// assert_eq!(x.take(&Tensor::new([3, -4])?)?.to_vec::<i64>()?, [4, 1]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`].
    pub fn take(&self, index: &Tensor<Int>) -> Result<Tensor<K>> {
        self.raw().reshape(&[-1])?.typed::<K>().i(index)
    }
}

fn check_like(op: &'static str, wanted: &Shape, source: &Shape) -> Result<()> {
    if wanted == source {
        return Ok(());
    }
    Err(Error::wrong_shape(op, "the source", source, format!("it must be {wanted}; reshape or expand it")))
}

fn slice_scatter(x: &Raw, source: &Raw, at: usize, range: std::ops::Range<usize>, step: usize) -> Result<Raw> {
    let op = "slice_scatter";
    if step == 0 {
        return Err(Error::bad_argument(op, "step", 0, "it must be at least 1"));
    }
    check_like(op, &x.shape().with(at, range.len().div_ceil(step)), source.shape())?;
    placed(op, x, at, range, step, source)
}

/// `x` with the source in place of every `step`th entry of a range.
fn placed(
    op: &'static str,
    x: &Raw,
    at: usize,
    range: std::ops::Range<usize>,
    step: usize,
    source: &Raw,
) -> Result<Raw> {
    let index = Tensor::<Int>::build(range.len().div_ceil(step), |numbers: &mut [i64]| {
        numbers.iter_mut().zip(range.step_by(step)).for_each(|(entry, number)| *entry = number as i64);
    })?;
    index_copied(op, x, at, index.to(x.storage.device())?.raw(), source)
}

fn diagonal_scatter(x: &Raw, source: &Raw, (offset, dim1, dim2): (isize, isize, isize)) -> Result<Raw> {
    let op = "diagonal_scatter";
    check_like(op, x.diagonal(offset, dim1, dim2)?.shape(), source.shape())?;
    let dims = [x.shape().dim(op, dim1)?, x.shape().dim(op, dim2)?];
    let all = filled(x.storage.device(), op, *source.shape(), DType::Bool, Scalar::Int(1))?;
    let [mask, source] = [&all, source].map(|part| diagonals::placed(part, offset, dims, *x.shape()));
    choose(op, &mask?, &source?, x)
}

impl<K: Numeric> Tensor<K> {
    /// [`scatter_reduce`](Tensor::scatter_reduce) of whole entries of a dimension, which `index` (one-dimensional) names.
    ///
    /// # Errors
    /// As [`Tensor::scatter_reduce`].
    pub fn index_reduce(
        &self,
        dim: isize,
        index: &Tensor<Int>,
        source: &Tensor<K>,
        reduce: ScatterReduce,
        include_self: bool,
    ) -> Result<Tensor<K>> {
        let index = whole_entries(self.raw(), dim, index.raw(), source.raw())?;
        self.scatter_reduce(dim, &index, source, reduce, include_self)
    }

    /// Sets the main diagonal of a matrix.
    ///
    /// # Errors
    /// [`Error::Argument`] for other ranks; as [`Tensor::fill_`].
    pub fn fill_diagonal_(&self, value: impl Number<K>) -> Result<()> {
        if self.rank() != 2 {
            let expected = "it must be a matrix";
            return Err(Error::wrong_shape("fill_diagonal_", "the tensor", self.shape(), expected));
        }
        self.diagonal(0, 0, 1)?.fill_(value)
    }
}

/// The index for each element of the source, which has an entry of a dimension for each of the index.
fn whole_entries(x: &Raw, dim: isize, index: &Raw, source: &Raw) -> Result<Tensor<Int>> {
    let op = "index_reduce";
    let at = x.shape().dim(op, dim)?;
    if index.rank() != 1 {
        return Err(Error::wrong_shape(op, "the index", index.shape(), "it must have one dimension; flatten it"));
    }
    let wanted = x.shape().with(at, index.shape()[0]);
    check_like(op, &wanted, source.shape())?;
    let mut sizes = Shape::SCALAR;
    (0..x.rank()).try_for_each(|dim| sizes.push(if dim == at { wanted[at] } else { 1 }))?;
    Ok(own_index(op, [x, source], index)?.reshape_to(sizes)?.expand(wanted)?.typed())
}
