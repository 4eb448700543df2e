//! Views: the same elements under another shape, order or selection, without copying.
//!
//! Each but [`Contiguous`] is a [`View`]: a layout rule, and the view (or scatter) that maps the gradient back.

use bytemuck::Pod;

use super::diagonals::Diagonal;
use super::slice_range::SliceRange;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView};
use crate::cuda::{COPY, CudaDevice, CudaOut, CudaView};
use crate::error::{Error, Result};
use crate::inlined::{Array, from_fn};
use crate::kind::Kind;
use crate::layout::Layout;
use crate::op::{Derivative, Mover, Op, PerType, View, apply, apply_raw, apply_view, by_size, view_raw};
use crate::shape::{Integer, IntoShape, MAX_RANK, Shape, resolve_dim};
use crate::tensor::{Raw, Tensor};

impl<K: Kind> Tensor<K> {
    /// The same elements in row-major order under another shape; one size may be −1 and is inferred. Copies only if
    /// no strides describe the new shape.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([64, 28, 28])?;
    /// assert_eq!(x.reshape([-1, 784])?.shape(), &[64, 784]);
    /// let [batch, ..] = x.sizes::<3>()?;
    /// assert_eq!(x.reshape((batch, -1))?.shape(), &[64, 784]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the sizes do not multiply to the number of elements.
    pub fn reshape(&self, sizes: impl IntoShape) -> Result<Tensor<K>> {
        self.raw().reshape(sizes.into_sizes()?.as_slice()).map(Raw::typed)
    }

    /// As [`Tensor::reshape`], but never copies.
    ///
    /// # Errors
    /// [`Error::Argument`] if the sizes do not multiply to the number of elements, or no strides describe the new
    /// shape.
    pub fn view(&self, sizes: impl IntoShape) -> Result<Tensor<K>> {
        self.raw().view(sizes.into_sizes()?.as_slice()).map(Raw::typed)
    }

    /// Dimensions `start` to `end` (inclusive) as one. A scalar becomes `[1]`.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or `start` comes after `end`.
    pub fn flatten(&self, start: isize, end: isize) -> Result<Tensor<K>> {
        self.raw().flatten(start, end).map(Raw::typed)
    }

    /// One dimension as several, of these sizes: the reverse of [`Tensor::flatten`].
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([64, 10])?;
    /// assert_eq!(x.unflatten(1, [2, 5])?.shape(), &[64, 2, 5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or the sizes do not multiply to its size.
    pub fn unflatten(&self, dim: isize, sizes: impl IntoShape) -> Result<Tensor<K>> {
        self.raw().unflatten(dim, sizes.into_shape()?).map(Raw::typed)
    }

    /// The dimensions in another order: dimension `i` of the result is dimension `order[i]` of this tensor. Elements
    /// are not moved in memory. Results of elementwise operations have the same memory order;
    /// [`contiguous`](Tensor::contiguous) puts elements in the order of the dimensions.
    ///
    /// # Errors
    /// [`Error::Argument`] if not every dimension is named.
    pub fn permute<const N: usize>(&self, order: [isize; N]) -> Result<Tensor<K>> {
        self.raw().permute(&order).map(Raw::typed)
    }

    /// Dimensions `a` and `b` exchanged.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension.
    pub fn transpose(&self, a: isize, b: isize) -> Result<Tensor<K>> {
        self.raw().transpose(a, b).map(Raw::typed)
    }

    /// A matrix transposed; scalars and vectors stay as they are.
    ///
    /// # Errors
    /// [`Error::Argument`] above two dimensions.
    pub fn t(&self) -> Result<Tensor<K>> {
        self.raw().t().map(Raw::typed)
    }

    /// `len` indices of a dimension, from `start` on.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or no such range.
    pub fn narrow(&self, dim: isize, start: usize, len: usize) -> Result<Tensor<K>> {
        self.raw().narrow(dim, start, len).map(Raw::typed)
    }

    /// Every `step`-th index of a range of a dimension, as Python's `x[start:end:step]`: negative bounds count from
    /// the end, and bounds outside the dimension are clamped. The range is one of Rust's, or `[start, end]`, which
    /// reads better if one of the bounds is negative.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::arange(0, 10, 1)?;
    /// assert_eq!(x.slice(0, [1, -1], 3)?.to_vec::<i64>()?, [1, 4, 7]);
    /// assert_eq!(x.slice(0, -2.., 1)?.to_vec::<i64>()?, [8, 9]);
    /// assert_eq!(x.slice(0, x.len() - 3.., 2)?.to_vec::<i64>()?, [7, 9]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or for a step of 0.
    pub fn slice(&self, dim: isize, range: impl SliceRange, step: usize) -> Result<Tensor<K>> {
        self.raw().slice(dim, |size| range.within(size), step).map(Raw::typed)
    }

    /// One index of a dimension, which is removed; negative indices count from the end.
    ///
    /// # Errors
    /// [`Error::Argument`], [`Error::IndexOutOfRange`].
    pub fn select(&self, dim: isize, index: impl Integer) -> Result<Tensor<K>> {
        self.raw().select(dim, index.index()).map(Raw::typed)
    }

    /// Without dimension `dim`, if its size is 1; unchanged otherwise.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension.
    pub fn squeeze(&self, dim: isize) -> Result<Tensor<K>> {
        self.raw().squeeze(dim).map(Raw::typed)
    }

    /// With a new dimension of size 1 at `dim` (0 to rank, or negative from the end).
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such position, or the tensor already has the most dimensions possible.
    pub fn unsqueeze(&self, dim: isize) -> Result<Tensor<K>> {
        self.raw().unsqueeze(dim).map(Raw::typed)
    }

    /// Dimensions of size 1 repeated to the sizes of `shape`, and new ones put in front, without copying; −1 leaves a dimension as
    /// it is.
    ///
    /// # Errors
    /// [`Error::Argument`] if a size that is not 1 would change.
    pub fn expand(&self, shape: impl IntoShape) -> Result<Tensor<K>> {
        let shape = shape.into_sizes()?.expanding(self.shape())?;
        if shape == *self.shape() { self.raw().alias() } else { self.raw().expand(shape) }.map(Raw::typed)
    }

    /// This tensor if its elements lie in row-major order without gaps, else a copy that does.
    ///
    /// # Errors
    /// [`Error::Memory`] if a copy does not fit the budget.
    pub fn contiguous(&self) -> Result<Tensor<K>> {
        self.raw().contiguous().map(Raw::typed)
    }
}

impl Tensor {
    pub(crate) fn reshape_to(&self, shape: Shape) -> Result<Tensor> {
        self.raw().reshape_to(shape).map(Raw::typed)
    }
}

impl Raw {
    pub(crate) fn reshape(&self, sizes: &[isize]) -> Result<Raw> {
        self.reshape_to(infer("reshape", self.shape(), sizes)?)
    }
    pub(crate) fn reshape_to(&self, shape: Shape) -> Result<Raw> {
        match self.layout.reshape(&shape) {
            Some(_) => view_raw(Reshape(shape), self),
            None => view_raw(Reshape(shape), &self.contiguous()?),
        }
    }

    pub(crate) fn view(&self, sizes: &[isize]) -> Result<Raw> {
        view_raw(Reshape(infer("view", self.shape(), sizes)?), self)
    }

    pub(crate) fn flatten(&self, start: isize, end: isize) -> Result<Raw> {
        if self.rank() == 0 {
            return self.reshape_to(Shape::new(&[1])?);
        }
        let (first, last) = (self.shape().dim("flatten", start)?, self.shape().dim("flatten", end)?);
        if first > last {
            return Err(Error::bad_argument(
                "flatten",
                "start",
                start,
                format!("it must not come after end, which is {end} of {}", self.shape()),
            ));
        }
        let mut shape = *self.shape();
        for _ in first..last {
            let size = shape.remove(first + 1);
            shape.set(first, shape[first] * size);
        }
        self.reshape_to(shape)
    }

    pub(crate) fn unflatten(&self, dim: isize, sizes: Shape) -> Result<Raw> {
        let dim = self.shape().dim("unflatten", dim)?;
        let mut shape = *self.shape();
        let size = shape.remove(dim);
        if sizes.elements() != size {
            let expected = format!(
                "dimension {dim} has {size} elements, which do not fill {sizes}; give sizes whose product is {size}"
            );
            return Err(Error::wrong_shape("unflatten", "the tensor", self.shape(), expected));
        }
        for (place, &size) in sizes.iter().enumerate() {
            shape.insert(dim + place, size)?;
        }
        shape.check_size()?;
        self.reshape_to(shape)
    }

    pub(crate) fn permute(&self, order: &[isize]) -> Result<Raw> {
        use crate::shape::Axes;
        order.resolve("permute", self.shape())?;
        if order.len() != self.rank() {
            return Err(Error::wrong_shape(
                "permute",
                "the tensor",
                self.shape(),
                format!("{} dimensions were named; name each of its {} once", order.len(), self.rank()),
            ));
        }
        let mut dims = [0; MAX_RANK];
        for (to, from) in dims.iter_mut().zip(order) {
            *to = self.shape().dim("permute", *from)?;
        }
        view_raw(Permute { dims }, self)
    }

    pub(crate) fn transpose(&self, a: isize, b: isize) -> Result<Raw> {
        let (a, b) = (self.shape().dim("transpose", a)?, self.shape().dim("transpose", b)?);
        let mut dims = from_fn(|dim| dim);
        dims.swap(a, b);
        view_raw(Permute { dims }, self)
    }

    pub(crate) fn t(&self) -> Result<Raw> {
        match self.rank() {
            0 | 1 => self.alias(),
            2 => self.transpose(0, 1),
            _ => Err(Error::wrong_shape(
                "t",
                "the tensor",
                self.shape(),
                "it must have at most 2 dimensions; use transpose or permute",
            )),
        }
    }

    pub(crate) fn narrow(&self, dim: isize, start: usize, len: usize) -> Result<Raw> {
        let dim = self.shape().dim("narrow", dim)?;
        let [start, end] = [start, start.saturating_add(len)].mapped(|at| isize::try_from(at).unwrap_or(isize::MAX));
        self.sliced("narrow", dim, start, end, 1)
    }

    pub(crate) fn slice(&self, dim: isize, range: impl FnOnce(usize) -> [isize; 2], step: usize) -> Result<Raw> {
        let dim = self.shape().dim("slice", dim)?;
        let [start, end] = range(self.shape()[dim]);
        self.sliced("slice", dim, start, end.max(start), step)
    }
    fn sliced(&self, op: &'static str, dim: usize, start: isize, end: isize, step: usize) -> Result<Raw> {
        if step == 0 || end > self.shape()[dim] as isize || start > end {
            return Err(Error::Argument(format!(
                "{op}: {start}..{end} with step {step} does not fit dimension {dim} of {}; keep start and end in 0..={} and the step at least 1",
                self.shape(),
                self.shape()[dim]
            )));
        }
        let len = ((end - start) as usize).div_ceil(step);
        view_raw(Slice { dim, start: start as usize, len, step }, self)
    }

    pub(crate) fn select(&self, dim: isize, index: isize) -> Result<Raw> {
        let dim = self.shape().dim("select", dim)?;
        let size = self.shape()[dim] as isize;
        let from_start = if index < 0 { index + size } else { index };
        if !(0..size).contains(&from_start) {
            return Err(Error::IndexOutOfRange {
                op: "select",
                index: index as i64,
                dim,
                shape: *self.shape(),
                from_end: true,
            });
        }
        let kept = view_raw(Slice { dim, start: from_start as usize, len: 1, step: 1 }, self)?;
        view_raw(Squeeze { dim }, &kept)
    }

    pub(crate) fn squeeze(&self, dim: isize) -> Result<Raw> {
        let dim = self.shape().dim("squeeze", dim)?;
        if self.shape()[dim] == 1 { view_raw(Squeeze { dim }, self) } else { self.alias() }
    }

    pub(crate) fn unsqueeze(&self, dim: isize) -> Result<Raw> {
        self.insert_dim("unsqueeze", dim)
    }

    /// [`Tensor::unsqueeze`], with errors that name another operation.
    pub(crate) fn insert_dim(&self, op: &'static str, dim: isize) -> Result<Raw> {
        let dim = resolve_dim(op, dim, self.rank() + 1, self.shape())?;
        view_raw(Unsqueeze { dim }, self)
    }

    pub(crate) fn expand(&self, shape: Shape) -> Result<Raw> {
        if shape == *self.shape() { Ok(self.clone()) } else { view_raw(Expand(shape), self) }
    }

    /// All elements as they are. Has its own node, as every view, so hooks of the result are not hooks of this tensor.
    fn alias(&self) -> Result<Raw> {
        view_raw(Expand(*self.shape()), self)
    }

    pub(crate) fn contiguous(&self) -> Result<Raw> {
        if self.is_contiguous() { Ok(self.clone()) } else { apply_raw(Contiguous, [self]) }
    }

    pub(crate) fn deep_clone(&self) -> Result<Raw> {
        apply_raw(Contiguous, [self])
    }
}

/// The sizes with −1 replaced by the size that is left.
fn infer(op: &str, from: &Shape, sizes: &[isize]) -> Result<Shape> {
    let wrong = || {
        Error::Argument(format!(
            "{op}: {from} has {elements} elements, which do not fill {sizes:?}; make the product of the sizes {elements} (one size may be -1)",
            elements = from.elements()
        ))
    };
    let known = sizes
        .iter()
        .filter(|&&size| size != -1)
        .try_fold(1usize, |product, &size| product.checked_mul(usize::try_from(size).ok()?));
    let known = known.ok_or_else(wrong)?;
    let n_inferred = sizes.iter().filter(|&&size| size == -1).count();
    let inferred = match n_inferred {
        0 => 0,
        1 if known > 0 => from.elements() / known,
        _ => return Err(wrong()),
    };
    let mut shape = Shape::SCALAR;
    for &size in sizes {
        shape.push(if size == -1 { inferred } else { size as usize })?;
    }
    shape.check_size()?;
    if shape.elements() == from.elements() { Ok(shape) } else { Err(wrong()) }
}

struct Reshape(Shape);

impl View for Reshape {
    const NAME: &'static str = "reshape";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        input.reshape(&self.0).ok_or_else(|| {
            Error::Argument(format!(
                "view: {} with strides {:?} has no view as {:?} without a copy; use reshape, or contiguous first",
                input.shape(),
                input.strides(),
                &self.0[..]
            ))
        })
    }

    fn backward(&self, input: &Shape, grad: &Tensor) -> Result<Tensor> {
        grad.reshape_to(*input)
    }
}

struct Permute {
    dims: [usize; MAX_RANK],
}

impl View for Permute {
    const NAME: &'static str = "permute";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        Ok(input.permute(&self.dims[..input.shape().rank()]))
    }

    fn backward(&self, input: &Shape, grad: &Tensor) -> Result<Tensor> {
        let mut inverse = [0; MAX_RANK];
        for (to, &from) in self.dims[..input.rank()].iter().enumerate() {
            inverse[from] = to;
        }
        apply_view(Permute { dims: inverse }, grad)
    }
}

/// `len` indices `start, start + step, …` of one dimension.
#[derive(Clone, Copy)]
pub(super) struct Slice {
    pub(super) dim: usize,
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) step: usize,
}

impl View for Slice {
    const NAME: &'static str = "slice";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        Ok(input.slice(self.dim, self.start, self.len, self.step))
    }

    fn backward(&self, input: &Shape, grad: &Tensor) -> Result<Tensor> {
        apply(Placed { view: *self, into: *input }, [grad])
    }

    fn part(&self, input: &Layout) -> Option<Result<Layout>> {
        Some(self.layout(input))
    }
}

impl Part for Slice {
    const PLACED: &'static str = "slice_backward";
}

/// A view that shows a part of its input, no element twice.
pub(super) trait Part: View + Copy {
    /// The name of [`Placed`] in errors, profiles and graphs.
    const PLACED: &'static str;
}

/// Zeros of shape `into`, with the input where a view shows a part: the derivative of that view, and `diag_embed`.
pub(super) struct Placed<V> {
    pub(super) view: V,
    pub(super) into: Shape,
}

by_size! { Placed<Slice> }
by_size! { Placed<Diagonal> }

impl<V: Part> Placed<V> {
    fn window(&self) -> Result<Layout> {
        self.view.layout(&Layout::contiguous(self.into))
    }
}

impl<V: Part> Op<1> for Placed<V>
where
    Self: PerType<1>,
{
    const NAME: &'static str = V::PLACED;

    fn out_shape(&self, _: [&Shape; 1]) -> Result<Shape> {
        Ok(self.into)
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 1], mut out: CudaOut<'_>) -> Result<()> {
        let zeroed = device.stream().fill(out.reborrow().into_bytes(), 0);
        zeroed.map_err(|source| Error::cuda(V::PLACED, source))?;
        COPY.run(device, V::PLACED, &inputs, &[], out.window(&self.window()?))
    }
}

impl<V: Part> Derivative<1> for Placed<V> {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(apply_view(self.view, grad)?)])
    }
}

impl<V: Part> Mover for Placed<V> {
    fn cpu<B: Pod + Send + Sync>(&self, x: CpuView<'_, B>, out: &mut [B]) -> Result<()> {
        let window = self.window()?;
        if window.shape().elements() < out.len() {
            cpu::fill(out, B::zeroed());
        }
        cpu::copy_strided(&mut out[window.offset()..][..window.span()], window.strides(), x);
        Ok(())
    }
}

struct Squeeze {
    dim: usize,
}

impl View for Squeeze {
    const NAME: &'static str = "squeeze";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        Ok(input.remove(self.dim))
    }

    fn backward(&self, _: &Shape, grad: &Tensor) -> Result<Tensor> {
        apply_view(Unsqueeze { dim: self.dim }, grad)
    }
}

struct Unsqueeze {
    dim: usize,
}

impl View for Unsqueeze {
    const NAME: &'static str = "unsqueeze";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        input.insert(self.dim)
    }

    fn backward(&self, _: &Shape, grad: &Tensor) -> Result<Tensor> {
        apply_view(Squeeze { dim: self.dim }, grad)
    }
}

struct Expand(Shape);

impl View for Expand {
    const NAME: &'static str = "expand";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        input.expand("expand", &self.0)
    }

    /// The engine sums the gradient over repeated dimensions.
    fn backward(&self, _: &Shape, grad: &Tensor) -> Result<Tensor> {
        Ok(grad.clone())
    }
}

struct Contiguous;

by_size! { Contiguous }

impl Op<1> for Contiguous {
    const NAME: &'static str = "contiguous";

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        COPY.run(device, "contiguous", &inputs, &[], out)
    }
}

impl Derivative<1> for Contiguous {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(grad.clone())])
    }
}

impl Mover for Contiguous {
    fn cpu<B: Pod + Send + Sync>(&self, x: CpuView<'_, B>, out: &mut [B]) -> Result<()> {
        cpu::copy(x, out);
        Ok(())
    }
}
