//! Orders along a dimension: sorting, the largest elements, the median. Values are gathered by the order, so that
//! gradients go back to the elements that they came from.

mod cuda;
pub(super) mod radix;

use crate::cpu::{self, CpuView, Key, Quantile, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::kind::{Float, Int, Numeric};
use crate::op::{CpuKernel, Inputs, LockedInputs, Op, on_cpu, per_type, run_unrecorded};
use crate::ops::scan::Lines;
use crate::ops::where_cond::where_cond;
use crate::parallel::try_for_each_chunk_mut;
use crate::scratch;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor, by_num, by_real};

impl<K: Numeric> Tensor<K> {
    /// The elements in order along a dimension, and where they were. The sort is stable: equal elements keep their
    /// order. NaN is larger than all numbers.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (values, order) = Tensor::new([3, 1, 2])?.sort(0, false)?;
    /// assert_eq!(values.to_vec::<i64>()?, [1, 2, 3]);
    /// assert_eq!(order.to_vec::<i64>()?, [1, 2, 0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension; [`Error::Memory`] if the results do not fit the budget.
    pub fn sort(&self, dim: isize, descending: bool) -> Result<(Tensor<K>, Tensor<Int>)> {
        let order = order(self.raw(), "sort", dim, descending, None)?;
        with_values(self.raw(), dim, order)
    }

    /// The second result of [`Tensor::sort`].
    ///
    /// # Errors
    /// As [`Tensor::sort`].
    pub fn argsort(&self, dim: isize, descending: bool) -> Result<Tensor<Int>> {
        order(self.raw(), "argsort", dim, descending, None).map(Raw::typed)
    }

    /// The `k` largest (or smallest) elements along a dimension, in order, and where they were. PyTorch's default is
    /// `largest`.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (values, places) = Tensor::new([0.1, 0.7, 0.2])?.topk(2, -1, true)?;
    /// assert_eq!(values.to_vec::<f32>()?, [0.7, 0.2]);
    /// assert_eq!(places.to_vec::<i64>()?, [1, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or it has fewer than `k` elements; as [`Tensor::sort`].
    pub fn topk(&self, k: usize, dim: isize, largest: bool) -> Result<(Tensor<K>, Tensor<Int>)> {
        let order = order(self.raw(), "topk", dim, largest, Some(k))?;
        with_values(self.raw(), dim, order)
    }

    /// The element that is number `k` (from 1) in order along a dimension, which is removed, and where it was.
    ///
    /// # Errors
    /// As [`Tensor::topk`]; [`Error::Argument`] for a `k` of 0.
    pub fn kthvalue(&self, k: usize, dim: isize) -> Result<(Tensor<K>, Tensor<Int>)> {
        with_values_at(self.raw(), dim, &place_of_kth(self.raw(), "kthvalue", k, dim)?)
    }

    /// The median along a dimension, which is removed, and where it was; the lower one of two elements in the middle.
    /// If there is NaN, the median is NaN.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or it is empty; as [`Tensor::sort`].
    pub fn median(&self, dim: isize) -> Result<(Tensor<K>, Tensor<Int>)> {
        let size = self.shape()[self.shape().dim("median", dim)?];
        if size == 0 {
            return Err(Error::empty("median", "the dimension", "give at least one element"));
        }
        let mut place = place_of_kth(self.raw(), "median", size.div_ceil(2), dim)?;
        if self.dtype().is_float() {
            let largest = self.raw().argmax_keepdim(dim)?; // the first NaN, if there is one
            let has_nan = self.raw().gather_once(dim, &largest)?.without_node().typed::<Float>().isnan()?;
            place = where_cond("median", has_nan.raw(), &largest, &place)?;
        }
        with_values_at(self.raw(), dim, &place)
    }
}

pub(super) fn order(x: &Raw, op: &'static str, dim: isize, descending: bool, k: Option<usize>) -> Result<Raw> {
    let dim = x.shape().dim(op, dim)?;
    let size = x.shape()[dim];
    let k = k.unwrap_or(size);
    if k > size {
        let expected = format!("it must be at most {size}, the size of dimension {dim} of {}", x.shape());
        return Err(Error::bad_argument(op, "k", k, expected));
    }
    ordered(x, Order { dim, from: 0, k, descending })
}

/// On the CPU, the elements of a line are first made adjacent.
fn ordered(x: &Raw, order: Order) -> Result<Raw> {
    let last = x.rank() - 1;
    if order.dim == last || !x.storage.device().is_cpu() {
        return run_unrecorded(&order, [x]);
    }
    let (dim, last) = (order.dim as isize, last as isize);
    run_unrecorded(&Order { dim: last as usize, ..order }, [&x.transpose(dim, last)?])?
        .transpose(dim, last)?
        .contiguous()
}

fn with_values<K: Numeric>(x: &Raw, dim: isize, order: Raw) -> Result<(Tensor<K>, Tensor<Int>)> {
    Ok((x.gather_once(dim, &order)?.typed(), order.typed()))
}

/// Where the element is that is number `k` in order; the dimension stays, with size 1.
fn place_of_kth(x: &Raw, op: &'static str, k: usize, dim: isize) -> Result<Raw> {
    if k == 0 {
        return Err(Error::bad_argument(op, "k", 0, "it must be at least 1"));
    }
    let at = x.shape().dim(op, dim)?;
    match x.storage.device().is_cpu() && k <= x.shape()[at] {
        true => ordered(x, Order { dim: at, from: k - 1, k, descending: false }),
        false => order(x, op, dim, false, Some(k))?.narrow(dim, k - 1, 1),
    }
}

/// The elements at the places, and the places, without the dimension, which has size 1.
fn with_values_at<K: Numeric>(x: &Raw, dim: isize, place: &Raw) -> Result<(Tensor<K>, Tensor<Int>)> {
    let mut shape = *place.shape();
    shape.remove(x.shape().dim("gather", dim)?);
    Ok((x.gather_once(dim, place)?.reshape_to(shape)?.typed(), place.reshape_to(shape)?.typed()))
}

/// [`cpu::neighbors`] along a dimension of floats, on the CPU. The three numbers of a line replace its elements.
pub(super) fn neighbors(x: &Raw, op: &'static str, quantile: Quantile, dim: usize) -> Result<Raw> {
    let n = x.shape()[dim];
    replace_lines(x, op, dim, 3, |inputs, [start, len], out| {
        by_real!(inputs.dtype(), R => {
            let x = inputs.view::<R>(0).data.part(start, len);
            scratch::reals(x, |x| cpu::neighbors(x, n, quantile, out.as_chunks_mut().0))
        })
    })
}

/// [`cpu::modes`] along a dimension, which stays, on the CPU.
pub(super) fn modes(x: &Raw, op: &'static str, dim: usize) -> Result<Raw> {
    let n = x.shape()[dim];
    replace_lines(x, op, dim, 1, |inputs, [start, len], out| {
        by_num!(inputs.dtype(), T => {
            let x = inputs.view::<T>(0).data.part(start, len);
            scratch::reals(x, |x| cpu::modes(x, n, out))
        })
    })
}

/// On the CPU, `per_line` numbers in place of the elements of each line along a dimension. `compute` gets the start and
/// the length of some adjacent lines, and writes their numbers.
fn replace_lines(
    x: &Raw,
    op: &'static str,
    dim: usize,
    per_line: usize,
    compute: impl Fn(&LockedInputs<'_, 1>, [usize; 2], &mut [i64]) -> pagelock_memory::Result<()> + Sync,
) -> Result<Raw> {
    let (dim, last, n) = (dim as isize, x.rank() as isize - 1, x.shape()[dim]);
    let x = x.transpose(dim, last)?.gap_free()?;
    let lines = (TASK_ELEMENTS / n).max(1);
    let shape = x.shape().with(x.rank() - 1, per_line);
    let out = on_cpu(op, [Some(&x)], (shape, DType::I64), &mut |inputs, out| {
        try_for_each_chunk_mut(out.elements::<i64>(), per_line * lines, |i, out| {
            compute(inputs, [i * lines * n, out.len() / per_line * n], out)
        })
        .map_err(Error::scratch(op))
    })?;
    out.transpose(dim, last)
}

/// The places of elements number `from` to `k` in order; on a device, `from` is 0.
struct Order {
    dim: usize,
    from: usize,
    k: usize,
    descending: bool,
}

per_type! { Order[1]: Num }

impl Op<1> for Order {
    const NAME: &'static str = "argsort";
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        Ok(x.with(self.dim, self.k - self.from))
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        cuda::order(device, x, Lines::along(self.dim, x.shape()), self.k, self.descending, out)
    }
}

impl<T: Key> CpuKernel<T, 1> for Order {
    type Out = i64;

    fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: StoredMut<'_, i64>) -> Result<()> {
        let (n, wanted) = (x.shape[self.dim], self.from..self.k);
        if out.len() == 0 {
            return Ok(());
        }
        let lines = (TASK_ELEMENTS / n).max(1);
        let sort_lines = |i: usize, out: StoredMut<'_, i64>| {
            let StoredMut::Plain(out) = out else { unreachable!("indices are never halves") };
            let x = x.data.part(i * lines * n, out.len() / wanted.len() * n);
            scratch::reals(x, |x| cpu::order(x, n, wanted.clone(), self.descending, out))
        };
        out.try_for_each_chunk(lines * wanted.len(), &sort_lines).map_err(Error::scratch("argsort"))
    }
}

/// Elements per task.
const TASK_ELEMENTS: usize = 4096;
