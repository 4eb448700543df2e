//! Copies of a tensor with elements written at places that an index tensor names, or combined with the elements there.
//!
//! Elements are written in the order of the source: of several with one index, the last one stays, and it alone gets
//! the gradient. (PyTorch leaves open which one stays, and gives the gradient to all.) Sums are `scatter_add`'s.

pub(super) mod cuda;
pub(super) mod entries;
mod lines;
mod reduce;
mod sorted;

use super::index::{check_index_shape, check_range, entries_of, own_index, same_dtype};
use super::nonzero::{counts_where, cuda::spread};
use super::{in_place, number_like, where_cond};
use crate::autograd::{Saved, record};
use crate::cpu;
use crate::create::filled;
use crate::device::{Device, common_device};
use crate::element::{Computing, DType, Num, Scalar};
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::kind::{Bool, Int, Kind, Number};
use crate::op::{Derivative, LockedInputs, on_cpu, on_cuda};
use crate::profiler;
use crate::shape::Shape;
use crate::storage::Fresh;
use crate::tensor::{Raw, Tensor, by_bits, by_num};

pub use reduce::ScatterReduce;
pub(super) use reduce::reduced;

impl<K: Kind> Tensor<K> {
    /// A copy of this tensor with every element of `source` at its index: `out[i][index[i][j]] = source[i][j]` for
    /// `dim` 1. `index` and `source` have this tensor's rank. Of several elements with one index, the last one stays
    /// and gets the gradient.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([3])?;
    /// let y = x.scatter(0, &Tensor::new([2, 0])?, &Tensor::new([5.0, 7.0])?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [7.0, 0.0, 5.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or the shapes do not fit; [`Error::IndexOutOfRange`].
    pub fn scatter(&self, dim: isize, index: &Tensor<Int>, source: &Tensor<K>) -> Result<Tensor<K>> {
        let dim = self.shape().dim("scatter", dim)?;
        let index = own_index("scatter", [self.raw(), source.raw()], index.raw())?;
        scattered("scatter", self.raw(), dim, &index, source.raw()).map(Raw::typed)
    }

    /// [`scatter`](Tensor::scatter) of one number to all indices.
    ///
    /// # Errors
    /// As [`Tensor::scatter`].
    pub fn scatter_scalar(&self, dim: isize, index: &Tensor<Int>, value: impl Number<K>) -> Result<Tensor<K>> {
        let dim = self.shape().dim("scatter", dim)?;
        let index = own_index("scatter", [self.raw(), self.raw()], index.raw())?;
        with_number("scatter", self.raw(), dim, &index, value.scalar()).map(Raw::typed)
    }

    /// A copy of this tensor with the entries that `index`, a vector, names replaced by those of `source`. Of several
    /// entries with one index, the last one stays.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([3, 2])?;
    /// let y = x.index_copy(0, &Tensor::new([2, 0])?, &Tensor::new([[1.0, 2.0], [3.0, 4.0]])?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [3.0, 4.0, 0.0, 0.0, 1.0, 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::scatter`].
    pub fn index_copy(&self, dim: isize, index: &Tensor<Int>, source: &Tensor<K>) -> Result<Tensor<K>> {
        let dim = self.shape().dim("index_copy", dim)?;
        index_copied("index_copy", self.raw(), dim, index.raw(), source.raw()).map(Raw::typed)
    }

    /// This tensor with the elements where `mask` is true replaced by those of `source`, one after another in row-major order.
    /// The mask broadcasts to this tensor; the source has at least as many elements as there are to replace.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([1, 2, 3])?;
    /// let y = x.masked_scatter(&Tensor::new([true, false, true])?, &Tensor::new([7, 8])?)?;
    /// assert_eq!(y.to_vec::<i64>()?, [7, 2, 8]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the mask does not expand to this shape; [`Error::IndexOutOfRange`] for too short a source.
    pub fn masked_scatter(&self, mask: &Tensor<Bool>, source: &Tensor<K>) -> Result<Tensor<K>> {
        let op = "masked_scatter";
        let source = same_dtype(op, self.raw(), source.raw())?;
        let mask = mask.raw().expand(*self.shape())?.reshape(&[-1])?;
        let all: Tensor<Bool> = mask.clone().typed();
        if all.is_empty() || source.shape().elements() == 0 && !all.any(..)?.item::<bool>()? {
            return self.deep_clone();
        }
        if self.raw().node.is_none() && source.node.is_none() {
            return masked(self.raw(), &mask, source).map(Raw::typed);
        }
        let flat: Tensor<Int> = mask.converted(DType::I64)?.typed();
        let positions = flat.cumsum(0)?.add_scalar(-1)?.clamp_min(0)?;
        let taken = source.reshape(&[-1])?.index_select(0, positions.raw()).map_err(|error| error.of_index_in(op))?;
        where_cond(op, &mask.reshape_to(*self.shape())?, &taken.reshape_to(*self.shape())?, self.raw()).map(Raw::typed)
    }
}

/// [`Tensor::masked_scatter`], unrecorded; the mask is flat.
fn masked(x: &Raw, mask: &Raw, source: &Raw) -> Result<Raw> {
    const OP: &str = "masked_scatter";
    let (x, source, mask) = (x.gap_free()?, source.gap_free()?, &mask.gap_free()?);
    if let Device::Cuda(device) = common_device(OP, &[&x, mask, &source])? {
        return spread(OP, device, Some(&x), mask, &source)?.reshape_to(*x.shape());
    }
    let counts = counts_where(mask)?;
    let n = source.shape().elements();
    if counts.iter().sum::<usize>() > n {
        let shape = Shape::new(&[n])?;
        return Err(Error::IndexOutOfRange { op: OP, index: n as i64, dim: 0, shape, from_end: false });
    }
    on_cpu(OP, [Some(&x), Some(mask), Some(&source)], (*x.shape(), x.dtype()), &mut |inputs, out| {
        by_bits!(inputs.dtype(), B => {
            let [x, source] = [0, 2].mapped(|i| inputs.bits_of::<B>(i).data.plain());
            let mask = inputs.bits_of::<u8>(1).data.plain();
            cpu::replace_where(Some(x), mask, &counts, source, out.bits());
        });
        Ok(())
    })
}

/// How an element of the source is combined with the element at its index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Combination {
    Last,
    Sum,
    Prod,
    Amax,
    Amin,
}

/// [`Tensor::scatter`] with an index in a storage of its own. The source is cut to the sizes of the index.
fn scattered(op: &'static str, x: &Raw, dim: usize, index: &Raw, source: &Raw) -> Result<Raw> {
    let source = cut_source(op, x, dim, index, source)?;
    let out = scatter_unrecorded(op, Combination::Last, dim, [x, index, &source])?;
    Ok(record(op, Scattered { op, dim, index: index.clone() }, [Some(x), Some(&source)], out))
}

/// [`Tensor::scatter_scalar`].
fn with_number(op: &'static str, x: &Raw, dim: usize, index: &Raw, value: Scalar) -> Result<Raw> {
    scattered(op, x, dim, index, &number_like(op, x, value)?.expand(*index.shape())?)
}

/// [`Tensor::index_copy`].
pub(super) fn index_copied(op: &'static str, x: &Raw, dim: usize, index: &Raw, source: &Raw) -> Result<Raw> {
    if index.rank() != 1 {
        return Err(Error::wrong_shape(op, "the index", index.shape(), "it must have one dimension; flatten it"));
    }
    let wanted = x.shape().with(dim, index.shape()[0]);
    if *source.shape() != wanted {
        let expected = format!("it must be {wanted}; reshape or expand it");
        return Err(Error::wrong_shape(op, "the source", source.shape(), expected));
    }
    let index = own_index(op, [x, source], index)?.reshape_to(along(dim, &wanted)?)?.expand(wanted)?;
    scattered(op, x, dim, &index, source)
}

/// Writes the entries of `source` over the entries of `x` that `index`, a vector, names. In place, for a contiguous
/// `x`, and for tensors that fit each other and are in no graph.
pub(super) fn write_entries(op: &'static str, x: &Raw, dim: usize, index: &Raw, source: &Raw) -> Result<()> {
    let unshared = |of: &Raw| if of.storage.is(&x.storage) { of.detached_copy(op) } else { Ok(of.clone()) };
    let (shape, source) = (*source.shape(), unshared(source)?);
    let index = unshared(index)?.reshape_to(along(dim, &shape)?)?.expand(shape)?;
    let _running = profiler::op(op);
    in_place::write(
        op,
        x,
        [&index, &source],
        &mut |to, inputs| {
            let index = inputs.view::<i64>(0);
            let are_inside = by_bits!(x.dtype(), B => {
                cpu::scatter(to.bits::<B>()?, x.shape(), dim, index, inputs.bits_of::<B>(1), |_: B, new: B| new)
            });
            if are_inside { Ok(()) } else { check_range(op, index.data.plain(), dim, x.shape()) }
        },
        &mut |device, [index, source], out| cuda::write(device, (op, dim), [index, source], out),
    )
}

/// The shape with size 1 in all dimensions but one.
pub(super) fn along(dim: usize, shape: &Shape) -> Result<Shape> {
    let mut sizes = Shape::SCALAR;
    (0..shape.rank()).try_for_each(|at| sizes.push(if at == dim { shape[dim] } else { 1 }))?;
    Ok(sizes)
}

/// The part of the source that has indices. Checks all shapes and precisions.
fn cut_source(op: &'static str, x: &Raw, dim: usize, index: &Raw, source: &Raw) -> Result<Raw> {
    common_device(op, &[x, index, source])?;
    same_dtype(op, x, source)?;
    check_index_shape(op, index.shape(), dim, x.shape())?;
    indexed_part(op, source, index.shape())
}

/// The part of `source` that is as large as the index, which has the rank of the tensor.
pub(super) fn indexed_part(op: &'static str, source: &Raw, index: &Shape) -> Result<Raw> {
    if source.rank() != index.rank() || source.shape().iter().zip(index.iter()).any(|(mine, index)| mine < index) {
        let expected = format!("it must have an element for each element of the index {index}");
        return Err(Error::wrong_shape(op, "the source", source.shape(), expected));
    }
    index.iter().enumerate().try_fold(source.clone(), |source, (dim, &size)| {
        if source.shape()[dim] == size { Ok(source) } else { source.narrow(dim as isize, 0, size) }
    })
}

/// `x` with the source written into it, unrecorded. All fit each other; the index is checked here.
fn scatter_unrecorded(
    op: &'static str,
    combination: Combination,
    dim: usize,
    [x, index, source]: [&Raw; 3],
) -> Result<Raw> {
    let (inputs, shape_and_dtype, whole) = ([Some(x), Some(index), Some(source)], (*x.shape(), x.dtype()), x.shape());
    match x.storage.device() {
        Device::Cpu => on_cpu(op, inputs, shape_and_dtype, &mut |inputs, out| {
            let index = inputs.view::<i64>(1);
            let are_inside = match combination {
                Combination::Last => by_bits!(inputs.dtype(), B => {
                    let [x, source] = [inputs.bits_of::<B>(0), inputs.bits_of::<B>(2)];
                    cpu::copy(x, out.bits());
                    cpu::scatter(out.bits(), whole, dim, index, source, |_: B, new: B| new)
                }),
                combination => by_num!(inputs.dtype(), T => combined::<T>(combination, dim, inputs, out)),
            };
            if are_inside { Ok(()) } else { check_range(op, index.data.plain(), dim, whole) }
        }),
        Device::Cuda(device) => on_cuda(op, device, inputs, shape_and_dtype, &mut |inputs, out| {
            cuda::scatter(device, (op, combination, dim), inputs.cuda_views(), out)
        }),
    }
}

/// Products and extremes of numbers that compute in their own type. Returns whether all indices were in range.
fn combined<T: Num>(combination: Combination, dim: usize, inputs: &LockedInputs<'_, 3>, out: &mut Fresh) -> bool {
    debug_assert!(!matches!(combination, Combination::Last | Combination::Sum), "these have loops of their own");
    let [x, source] = [inputs.view::<T>(0), inputs.view::<T>(2)];
    let combine = move |a: T, b: T| match combination {
        Combination::Prod => Computing::times(a, b),
        Combination::Amax => a.extreme::<true>(b),
        _ => a.extreme::<false>(b),
    };
    let out = out.elements::<T>();
    cpu::copy(x, out);
    cpu::scatter(out, x.shape, dim, inputs.view::<i64>(1), source, combine)
}

/// The derivative of [`scattered`].
struct Scattered {
    op: &'static str,
    dim: usize,
    index: Raw,
}

impl Derivative<2> for Scattered {
    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (dim, index, grad) = (self.dim, &self.index, grad.raw());
        let of_x = || with_number(self.op, grad, dim, index, Scalar::Int(0)).map(Raw::typed);
        let of_source = || {
            let (taken, has_stayed) = match entries_of(index, dim, saved.shape(0))? {
                None => (grad.gather(dim as isize, index)?, self.has_stayed(saved.shape(0))?),
                Some(entries) => {
                    let all = Scattered { op: self.op, dim: 0, index: entries.clone() };
                    let has_stayed = all.has_stayed(&Shape::new(&[saved.shape(0)[dim]])?)?;
                    (grad.index_select(dim as isize, &entries)?, has_stayed.reshape_to(along(dim, saved.shape(1))?)?)
                }
            };
            let stays: Tensor<Bool> = has_stayed.typed();
            if stays.device().is_cpu() && (stays.is_empty() || stays.all(..)?.item::<bool>()?) {
                return Ok(taken.typed());
            }
            where_cond(self.op, stays.raw(), &taken, &number_like(self.op, grad, Scalar::Int(0))?).map(Raw::typed)
        };
        Ok([saved.grad_of(0, of_x)?, saved.grad_of(1, of_source)?])
    }
}

impl Scattered {
    /// Which elements of the source are the last ones of their index.
    fn has_stayed(&self, x: &Shape) -> Result<Raw> {
        let (device, dim, shape) = (self.index.storage.device(), self.dim, self.index.shape());
        let sizes = along(dim, shape)?;
        let is_short = device.is_cpu() && i32::try_from(shape[dim]).is_ok();
        let dtype = if is_short { DType::I32 } else { DType::I64 };
        let numbers = Tensor::arange(0, shape[dim] as i64, 1)?.to(device)?;
        let numbers = numbers.raw().converted(dtype)?.reshape_to(sizes)?.expand(*shape)?;
        let last = filled(device, self.op, Shape::SCALAR, dtype, Scalar::Int(0))?.expand(*x)?;
        let last = scatter_unrecorded(self.op, Combination::Last, dim, [&last, &self.index, &numbers])?;
        last.gather(dim as isize, &self.index)?.eq(&numbers)
    }
}
