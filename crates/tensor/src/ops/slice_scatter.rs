//! Copies of a tensor with a slice, an entry or a diagonal replaced, or with entries combined; elements by row-major
//! index; the diagonal set in place.

use super::diagonals::Diagonal;
use super::index::own_index;
use super::number_like;
use super::scatter::{self, ScatterReduce};
use super::slice_range::SliceRange;
use super::views::Slice;
use crate::autograd::{Saved, record};
use crate::cpu;
use crate::cuda::COPY;
use crate::device::{Device, common_device};
use crate::element::Scalar;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::kind::{Int, Kind, Number, Numeric};
use crate::layout::Layout;
use crate::op::{Derivative, View, apply_view, on_cpu, on_cuda};
use crate::shape::Shape;
use crate::sizes::Integer;
use crate::tensor::{Raw, Tensor, by_bits};

impl<K: Kind> Tensor<K> {
    /// A copy in which `source`, converted to this tensor's type, replaces the entry of [`select`](Tensor::select).
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
        let start = if index < 0 { index + self.shape()[at] as isize } else { index } as usize;
        let source = source.raw().unsqueeze(at as isize)?;
        written_over("select_scatter", Slice { dim: at, start, len: 1, step: 1 }, self.raw(), &source).map(Raw::typed)
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
        let [start, end] = range.within(self.shape()[at]).mapped(|place| place.max(0) as usize);
        slice_scatter(self.raw(), source.raw(), at, start..end, step).map(Raw::typed)
    }

    /// A copy with `source` in place of the diagonal that [`diagonal`](Tensor::diagonal) gives.
    ///
    /// # Errors
    /// As [`Tensor::diagonal`]; [`Error::Argument`] if the source has another shape.
    pub fn diagonal_scatter(&self, source: &Tensor<K>, offset: isize, dim1: isize, dim2: isize) -> Result<Tensor<K>> {
        diagonal_scatter(self.raw(), source.raw(), (offset, dim1, dim2)).map(Raw::typed)
    }

    /// The elements at these indices in row-major order, in the shape of `index`; negative indices count from the end.
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
    let slice = Slice { dim: at, start: range.start, len: range.len().div_ceil(step), step };
    check_like(op, &x.shape().with(at, slice.len), source.shape())?;
    written_over(op, slice, x, source)
}

fn diagonal_scatter(x: &Raw, source: &Raw, (offset, dim1, dim2): (isize, isize, isize)) -> Result<Raw> {
    let op = "diagonal_scatter";
    check_like(op, x.diagonal(offset, dim1, dim2)?.shape(), source.shape())?;
    let dims = [x.shape().dim(op, dim1)?, x.shape().dim(op, dim2)?];
    written_over(op, Diagonal { offset, dims }, x, source)
}

/// A copy of `x` in which the source, converted to the type of `x`, replaces the elements of a view. The view and the
/// source have the same shape.
pub(super) fn written_over<V: View + Copy>(op: &'static str, view: V, x: &Raw, source: &Raw) -> Result<Raw> {
    common_device(op, &[x, source])?;
    let source = &source.converted(x.dtype())?;
    let window = view.layout(&Layout::contiguous(*x.shape()))?;
    let (inputs, shape_and_dtype) = ([Some(x), Some(source)], (*x.shape(), x.dtype()));
    let out = match x.storage.device() {
        Device::Cpu => on_cpu(op, inputs, shape_and_dtype, &mut |inputs, out| {
            by_bits!(inputs.dtype(), B => {
                let ([x, source], out) = (inputs.bits::<B>(), out.bits::<B>());
                cpu::copy(x, out);
                cpu::copy_strided(&mut out[window.offset()..][..window.span()], window.strides(), source);
            });
            Ok(())
        }),
        Device::Cuda(device) => on_cuda(op, device, inputs, shape_and_dtype, &mut |inputs, mut out| {
            let [x, source] = inputs.cuda_views();
            COPY.run(device, op, &[x], &[], out.reborrow())?;
            COPY.run(device, op, &[source], &[], out.window(&window))
        }),
    }?;
    Ok(record(op, WrittenOver { op, view }, inputs, out))
}

/// The derivative of [`written_over`].
struct WrittenOver<V> {
    op: &'static str,
    view: V,
}

impl<V: View + Copy> Derivative<2> for WrittenOver<V> {
    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let of_x = || {
            let zeros = number_like(self.op, grad.raw(), Scalar::Int(0))?.expand(*saved.shape(1))?;
            written_over(self.op, self.view, grad.raw(), &zeros).map(Raw::typed)
        };
        Ok([saved.grad_of(0, of_x)?, saved.grad_of(1, || apply_view(self.view, grad))?])
    }
}

impl<K: Numeric> Tensor<K> {
    /// [`scatter_reduce`](Tensor::scatter_reduce) of whole entries. `index`, a vector, has the position along `dim` for
    /// each entry of `source`.
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
        let dim = self.shape().dim("index_reduce", dim)?;
        scatter::reduced(self.raw(), (dim, &index), source.raw(), reduce, include_self).map(Raw::typed)
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

/// Expands an index of entries to the shape of the source, which has one entry along the dimension for each index.
fn whole_entries(x: &Raw, dim: isize, index: &Raw, source: &Raw) -> Result<Raw> {
    let op = "index_reduce";
    let at = x.shape().dim(op, dim)?;
    if index.rank() != 1 {
        return Err(Error::wrong_shape(op, "the index", index.shape(), "it must have one dimension; flatten it"));
    }
    let wanted = x.shape().with(at, index.shape()[0]);
    check_like(op, &wanted, source.shape())?;
    let mut sizes = Shape::SCALAR;
    (0..x.rank()).try_for_each(|dim| sizes.push(if dim == at { wanted[at] } else { 1 }))?;
    own_index(op, [x, source], index)?.reshape_to(sizes)?.expand(wanted)
}
