//! Views: the same elements under another shape, order or selection, without copying.
//!
//! Each is a [`View`] with its layout rule and the view (or scatter) that takes a gradient back.

use super::slice_range::SliceRange;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView};
use crate::cuda::{COPY, CudaDevice, CudaOut, CudaView};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::op::{Op, Saves, View, apply, apply_view, per_type};
use crate::shape::{IntoShape, MAX_RANK, Shape, resolve_dim};
use crate::tensor::Tensor;

impl<T: Element> Tensor<T> {
    /// The same elements in row-major order under another shape; one size may be −1 and is inferred. Copies only where
    /// strides cannot say it.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([64, 28, 28])?;
    /// assert_eq!(x.reshape([-1, 784])?.shape(), &[64, 784]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Reshape`] if the sizes do not multiply to the number of elements.
    pub fn reshape<const N: usize>(&self, sizes: [isize; N]) -> Result<Tensor<T>> {
        self.reshape_to(infer(self.shape(), &sizes)?)
    }

    pub(crate) fn reshape_to(&self, shape: Shape) -> Result<Tensor<T>> {
        match self.layout().reshape(&shape) {
            Some(_) => apply_view(Reshape(shape), self),
            None => apply_view(Reshape(shape), &self.contiguous()?),
        }
    }

    /// As [`Tensor::reshape`], but never copies.
    ///
    /// # Errors
    /// [`Error::Reshape`]; [`Error::NeedsCopy`] if strides cannot say it.
    pub fn view<const N: usize>(&self, sizes: [isize; N]) -> Result<Tensor<T>> {
        apply_view(Reshape(infer(self.shape(), &sizes)?), self)
    }

    /// Dimensions `start` to `end` (inclusive) as one. A scalar becomes `[1]`.
    ///
    /// # Errors
    /// [`Error::NoSuchDim`]; [`Error::BadArgument`] if `start` comes after `end`.
    pub fn flatten(&self, start: isize, end: isize) -> Result<Tensor<T>> {
        if self.rank() == 0 {
            return self.reshape_to(Shape::new(&[1])?);
        }
        let (first, last) = (self.shape().dim("flatten", start)?, self.shape().dim("flatten", end)?);
        if first > last {
            return Err(Error::BadArgument {
                op: "flatten",
                argument: "start",
                value: start.to_string(),
                expected: format!("it must not come after end, which is {end} of {}", self.shape()),
            });
        }
        let mut shape = *self.shape();
        for _ in first..last {
            let size = shape.remove(first + 1);
            shape.set(first, shape[first] * size);
        }
        self.reshape_to(shape)
    }

    /// The dimensions in another order: dimension `i` of the result is dimension `order[i]` of this tensor.
    ///
    /// # Errors
    /// [`Error::NoSuchDim`], [`Error::RepeatedDim`], [`Error::WrongShape`] if not every dimension is named.
    pub fn permute<const N: usize>(&self, order: [isize; N]) -> Result<Tensor<T>> {
        use crate::shape::Axes;
        order.resolve("permute", self.shape())?;
        if N != self.rank() {
            return Err(Error::WrongShape {
                op: "permute",
                operand: "the tensor",
                shape: *self.shape(),
                expected: format!("{N} dimensions were named; name each of its {} once", self.rank()),
            });
        }
        let mut dims = [0; MAX_RANK];
        for (to, from) in dims.iter_mut().zip(order) {
            *to = self.shape().dim("permute", from)?;
        }
        apply_view(Permute { dims }, self)
    }

    /// Dimensions `a` and `b` exchanged.
    ///
    /// # Errors
    /// [`Error::NoSuchDim`].
    pub fn transpose(&self, a: isize, b: isize) -> Result<Tensor<T>> {
        let (a, b) = (self.shape().dim("transpose", a)?, self.shape().dim("transpose", b)?);
        let mut dims = std::array::from_fn(|dim| dim);
        dims.swap(a, b);
        apply_view(Permute { dims }, self)
    }

    /// A matrix transposed; scalars and vectors stay as they are.
    ///
    /// # Errors
    /// [`Error::WrongShape`] above two dimensions.
    pub fn t(&self) -> Result<Tensor<T>> {
        match self.rank() {
            0 | 1 => Ok(self.clone()),
            2 => self.transpose(0, 1),
            _ => Err(Error::WrongShape {
                op: "t",
                operand: "the tensor",
                shape: *self.shape(),
                expected: "it must have at most 2 dimensions; use transpose or permute".into(),
            }),
        }
    }

    /// `len` indices of a dimension, from `start` on.
    ///
    /// # Errors
    /// [`Error::NoSuchDim`], [`Error::BadRange`].
    pub fn narrow(&self, dim: isize, start: usize, len: usize) -> Result<Tensor<T>> {
        let dim = self.shape().dim("narrow", dim)?;
        let [start, end] = [start, start.saturating_add(len)].map(|at| isize::try_from(at).unwrap_or(isize::MAX));
        self.sliced("narrow", dim, start, end, 1)
    }

    /// Every `step`-th index of a range of a dimension, as Python's `x[start:end:step]`: negative bounds count from
    /// the end, bounds beyond it are cut. The range is one of Rust's, or `[start, end]`, which reads better when one
    /// of the bounds is negative.
    ///
    /// ```
    /// # use pagelock_tensor::{Create, Tensor};
    /// let x = Tensor::<i64>::arange(0, 10, 1)?;
    /// assert_eq!(x.slice(0, [1, -1], 3)?.to_vec()?, [1, 4, 7]);
    /// assert_eq!(x.slice(0, -2.., 1)?.to_vec()?, [8, 9]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchDim`]; [`Error::BadRange`] for a step of 0.
    pub fn slice(&self, dim: isize, range: impl SliceRange, step: usize) -> Result<Tensor<T>> {
        let dim = self.shape().dim("slice", dim)?;
        let [start, end] = range.within(self.shape()[dim]);
        self.sliced("slice", dim, start, end.max(start), step)
    }

    fn sliced(&self, op: &'static str, dim: usize, start: isize, end: isize, step: usize) -> Result<Tensor<T>> {
        if step == 0 || end > self.shape()[dim] as isize || start > end {
            return Err(Error::BadRange { op, start, end, step, dim, shape: *self.shape() });
        }
        let len = ((end - start) as usize).div_ceil(step);
        apply_view(Slice { dim, start: start as usize, len, step }, self)
    }

    /// One index of a dimension, which goes away; negative indices count from the end.
    ///
    /// # Errors
    /// [`Error::NoSuchDim`], [`Error::IndexOutOfRange`].
    pub fn select(&self, dim: isize, index: isize) -> Result<Tensor<T>> {
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
        let kept = apply_view(Slice { dim, start: from_start as usize, len: 1, step: 1 }, self)?;
        apply_view(Squeeze { dim }, &kept)
    }

    /// Without dimension `dim`, if its size is 1; unchanged otherwise.
    ///
    /// # Errors
    /// [`Error::NoSuchDim`].
    pub fn squeeze(&self, dim: isize) -> Result<Tensor<T>> {
        let dim = self.shape().dim("squeeze", dim)?;
        if self.shape()[dim] == 1 { apply_view(Squeeze { dim }, self) } else { Ok(self.clone()) }
    }

    /// With a new dimension of size 1 at `dim` (0 to rank, or negative from the end).
    ///
    /// # Errors
    /// [`Error::NoSuchDim`], [`Error::TooManyDims`].
    pub fn unsqueeze(&self, dim: isize) -> Result<Tensor<T>> {
        self.with_place("unsqueeze", dim)
    }

    /// As [`Tensor::unsqueeze`], for an operation of another name.
    pub(crate) fn with_place(&self, op: &'static str, dim: isize) -> Result<Tensor<T>> {
        let dim = resolve_dim(op, dim, self.rank() + 1, self.shape())?;
        apply_view(Unsqueeze { dim }, self)
    }

    /// Dimensions of size 1 repeated to the sizes of `shape`, and new ones put in front, without copying.
    ///
    /// # Errors
    /// [`Error::WrongShape`] if a size that is not 1 would change.
    pub fn expand(&self, shape: impl IntoShape) -> Result<Tensor<T>> {
        let shape = shape.into_shape()?;
        if shape == *self.shape() { Ok(self.clone()) } else { apply_view(Expand(shape), self) }
    }

    /// This tensor if its elements lie in row-major order without gaps, else a copy that does.
    ///
    /// # Errors
    /// [`Error::Memory`] if a copy does not fit the budget.
    pub fn contiguous(&self) -> Result<Tensor<T>> {
        if self.is_contiguous() { Ok(self.clone()) } else { apply(Contiguous, [self]) }
    }
}

/// The sizes with −1 replaced by what is left.
fn infer(from: &Shape, sizes: &[isize]) -> Result<Shape> {
    let wrong = || Error::Reshape { from: *from, to: sizes.to_vec() };
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

impl<T: Element> View<T> for Reshape {
    const NAME: &'static str = "reshape";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        input.reshape(&self.0).ok_or_else(|| Error::NeedsCopy {
            shape: *input.shape(),
            strides: input.strides().to_vec(),
            to: self.0.iter().map(|&size| size as isize).collect(),
        })
    }

    fn backward(&self, input: &Shape, grad: &Tensor<T>) -> Result<Tensor<T>> {
        grad.reshape_to(*input)
    }
}

struct Permute {
    dims: [usize; MAX_RANK],
}

impl<T: Element> View<T> for Permute {
    const NAME: &'static str = "permute";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        Ok(input.permute(&self.dims[..input.shape().rank()]))
    }

    fn backward(&self, input: &Shape, grad: &Tensor<T>) -> Result<Tensor<T>> {
        let mut inverse = [0; MAX_RANK];
        for (to, &from) in self.dims[..input.rank()].iter().enumerate() {
            inverse[from] = to;
        }
        apply_view(Permute { dims: inverse }, grad)
    }
}

/// `len` indices `start, start + step, …` of one dimension.
#[derive(Clone, Copy)]
struct Slice {
    dim: usize,
    start: usize,
    len: usize,
    step: usize,
}

impl<T: Element> View<T> for Slice {
    const NAME: &'static str = "slice";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        Ok(input.slice(self.dim, self.start, self.len, self.step))
    }

    fn backward(&self, input: &Shape, grad: &Tensor<T>) -> Result<Tensor<T>> {
        apply(PlaceSlice { slice: *self, into: *input }, [grad])
    }
}

/// Zeros of shape `into`, but for the indices of a slice, which are the input: the derivative of [`Slice`].
struct PlaceSlice {
    slice: Slice,
    into: Shape,
}

per_type! { PlaceSlice[1]: Element }

impl<T: Element> Op<T, 1> for PlaceSlice {
    type Out = T;
    const NAME: &'static str = "slice_backward";
    const SAVES: Saves = Saves::Nothing;

    fn out_shape(&self, _: [&Shape; 1]) -> Result<Shape> {
        Ok(self.into)
    }

    fn cpu(&self, [grad]: [CpuView<'_, T>; 1], out: &mut [T]) -> Result<()> {
        let window = View::<T>::layout(&self.slice, &Layout::contiguous(self.into))?;
        out.fill(T::ZERO);
        cpu::update1(
            &mut out[window.offset()..][..window.span()],
            window.shape(),
            window.strides(),
            grad,
            |to, from| *to = from,
        );
        Ok(())
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 1], mut out: CudaOut<'_>) -> Result<()> {
        let window = View::<T>::layout(&self.slice, &Layout::contiguous(self.into))?;
        let zeroed = device.stream().fill(out.reborrow().into_bytes(), 0);
        zeroed.map_err(|source| Error::cuda("slice_backward", source))?;
        COPY.run(device, "slice_backward", &inputs, &[], out.window(&window))
    }

    fn backward(&self, _: &Saved<'_, T, T, 1>, grad: &Tensor<T>) -> Result<[Option<Tensor<T>>; 1]> {
        Ok([Some(apply_view(self.slice, grad)?)])
    }
}

struct Squeeze {
    dim: usize,
}

impl<T: Element> View<T> for Squeeze {
    const NAME: &'static str = "squeeze";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        Ok(input.remove(self.dim))
    }

    fn backward(&self, _: &Shape, grad: &Tensor<T>) -> Result<Tensor<T>> {
        apply_view(Unsqueeze { dim: self.dim }, grad)
    }
}

struct Unsqueeze {
    dim: usize,
}

impl<T: Element> View<T> for Unsqueeze {
    const NAME: &'static str = "unsqueeze";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        input.insert(self.dim)
    }

    fn backward(&self, _: &Shape, grad: &Tensor<T>) -> Result<Tensor<T>> {
        apply_view(Squeeze { dim: self.dim }, grad)
    }
}

struct Expand(Shape);

impl<T: Element> View<T> for Expand {
    const NAME: &'static str = "expand";

    fn layout(&self, input: &Layout) -> Result<Layout> {
        input.expand("expand", &self.0)
    }

    /// The engine sums over what was repeated.
    fn backward(&self, _: &Shape, grad: &Tensor<T>) -> Result<Tensor<T>> {
        Ok(grad.clone())
    }
}

struct Contiguous;

per_type! { Contiguous[1]: Element }

impl<T: Element> Op<T, 1> for Contiguous {
    type Out = T;
    const NAME: &'static str = "contiguous";
    const SAVES: Saves = Saves::Nothing;

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        Ok(*x)
    }

    fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: &mut [T]) -> Result<()> {
        cpu::copy(x, out);
        Ok(())
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        COPY.run(device, "contiguous", &inputs, &[], out)
    }

    fn backward(&self, _: &Saved<'_, T, T, 1>, grad: &Tensor<T>) -> Result<[Option<Tensor<T>>; 1]> {
        Ok([Some(grad.clone())])
    }
}
