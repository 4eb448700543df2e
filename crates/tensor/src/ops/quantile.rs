//! Quantiles, searches in sorted sequences, and distinct elements with their counts.

use std::array;
use std::hint::select_unpredictable;

use super::histogram::extremes;
use super::{number_like, searchsorted, where_cond};
use crate::autograd::no_grad;
use crate::cpu::{Quantile, vectorized};
use crate::create::filled;
use crate::device::{Device, common_device};
use crate::element::{DType, Num, Scalar};
use crate::error::{Error, Result};
use crate::inlined::zip;
use crate::kind::{Bool, Int, Numeric};
use crate::op::{on_cpu, widest};
use crate::parallel::for_each_chunk_mut;
use crate::scratch;
use crate::tensor::{Raw, Tensor, by_num};

impl Tensor {
    /// The `q`-quantile along a dimension, which is removed: the element at `q` of the way from the smallest (0) to
    /// the largest (1), interpolated linearly between two. NaN if one of the elements is.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([1.0, 3.0, 2.0, 4.0])?.quantile(0.5, 0)?.item::<f32>()?, 2.5);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, it is empty, or `q` is not in [0, 1]; as [`Tensor::sort`].
    pub fn quantile(&self, q: f64, dim: isize) -> Result<Tensor> {
        let (places, _, at) = neighbors("quantile", self, Quantile { q, ignores_nan: false, is_lower: false }, dim)?;
        let place = q * (self.shape()[at as usize] - 1) as f64;
        let entries = self.gather(at, &places)?;
        entries.select(at, 0)?.lerp(&entries.select(at, 1)?, place - place.floor())
    }

    /// [`quantile`](Tensor::quantile) of the elements that are not NaN; NaN where all are.
    ///
    /// # Errors
    /// As [`Tensor::quantile`].
    pub fn nanquantile(&self, q: f64, dim: isize) -> Result<Tensor> {
        let (places, last, at) =
            neighbors("nanquantile", self, Quantile { q, ignores_nan: true, is_lower: false }, dim)?;
        let place = last.to_float_of(DType::F64)?.mul_scalar(q)?;
        let wide = self.dtype().computing();
        let weight = place.sub(&place.floor()?)?.to_dtype(wide)?.squeeze(at)?;
        let entries = self.gather(at, &places)?.to_dtype(wide)?;
        entries.select(at, 0)?.lerp_tensor(&entries.select(at, 1)?, &weight)?.to_dtype(self.dtype())
    }

    /// The median of the elements that are not NaN along a dimension, which is removed. The lower one of two in the
    /// middle; NaN where all are NaN.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or it is empty; as [`Tensor::sort`].
    pub fn nanmedian(&self, dim: isize) -> Result<Tensor> {
        let median = Quantile { q: 0.5, ignores_nan: true, is_lower: true };
        let (places, _, at) = neighbors("nanmedian", self, median, dim)?;
        self.gather(at, &places.narrow(at, 0, 1)?)?.squeeze(at)
    }
}

/// For a dimension that is not empty: the places of the two elements next to the `q`-quantile, `[…, 2, …]`; the
/// number, in sorted order, of the last element that is not NaN, `[…, 1, …]`; and the dimension. If an element is
/// NaN, both places are those of NaN, unless NaN is ignored.
fn neighbors(
    op: &'static str,
    x: &Tensor,
    quantile: Quantile,
    dim: isize,
) -> Result<(Tensor<Int>, Tensor<Int>, isize)> {
    let (at, Quantile { q, ignores_nan, .. }) = (x.shape().dim(op, dim)?, quantile);
    if !(0.0..=1.0).contains(&q) {
        return Err(Error::bad_argument(op, "q", q, "it must be from 0 to 1"));
    }
    let (n, dim) = (x.shape()[at], at as isize);
    if n == 0 {
        return Err(Error::empty(op, "the dimension", "give at least one element"));
    }
    let x = x.detach();
    if x.device().is_cpu() {
        let found: Tensor<Int> = super::sort::neighbors(x.raw(), op, quantile, at)?.typed();
        let last = found.narrow(dim, 2, 1)?.add_scalar(-1)?.clamp_min(0)?;
        return Ok((found.narrow(dim, 0, 2)?, last, dim));
    }
    let order: Tensor<Int> = super::sort::order(x.raw(), op, dim, false, None)?.typed();
    let numbers: Tensor<Int> = x.isnan()?.logical_not()?.raw().converted(DType::I64)?.typed();
    let last = numbers.sum_keepdim(dim)?.add_scalar(-1)?.clamp_min(0)?;
    let mut place = last.to_float_of(DType::F64)?.mul_scalar(q)?;
    if !ignores_nan {
        place = place.masked_fill(&last.lt_scalar(n as i64 - 1)?, (n - 1) as f64)?;
    }
    let places = Tensor::cat(&[&place.floor()?.to_int()?, &place.ceil()?.to_int()?], dim)?;
    Ok((order.gather(dim, &places)?, last, dim))
}

impl<K: Numeric> Tensor<K> {
    /// Where each of `values` would be inserted into this tensor, which is sorted along its last dimension, to keep
    /// it sorted: before equal elements, or behind them if `right`. This tensor is a vector, or has the shape of
    /// `values` except for the last dimension.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (sorted, values) = (Tensor::new([1, 3, 5])?, Tensor::new([0, 3, 9])?);
    /// assert_eq!(sorted.searchsorted(&values, false)?.to_vec::<i64>()?, [0, 1, 3]);
    /// assert_eq!(sorted.searchsorted(&values, true)?.to_vec::<i64>()?, [0, 2, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not fit.
    pub fn searchsorted(&self, values: &Tensor<K>, right: bool) -> Result<Tensor<Int>> {
        no_grad(|| searchsorted("searchsorted", &self.raw().without_node(), &values.raw().without_node(), right))
            .map(Raw::typed)
    }

    /// The bucket of each element between `boundaries`, a sorted vector: where [`searchsorted`](Tensor::searchsorted)
    /// puts it.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let ages = Tensor::new([5, 18, 70])?;
    /// assert_eq!(ages.bucketize(&Tensor::new([18, 65])?, true)?.to_vec::<i64>()?, [0, 1, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if `boundaries` is not a vector.
    pub fn bucketize(&self, boundaries: &Tensor<K>, right: bool) -> Result<Tensor<Int>> {
        if boundaries.rank() != 1 {
            let expected = "it must be a vector";
            return Err(Error::wrong_shape("bucketize", "the tensor of boundaries", boundaries.shape(), expected));
        }
        let (x, boundaries) = (self.raw().without_node(), boundaries.raw().without_node());
        no_grad(|| searchsorted("bucketize", &boundaries, &x, right)).map(Raw::typed)
    }
}

/// The search on the CPU. The sequence is a vector, or has a row for each row of the values.
fn searched(op: &'static str, sorted: &Raw, values: &Raw, right: bool) -> Result<Raw> {
    if sorted.dtype() == DType::U8 && values.dtype() == DType::U8 {
        // Vectors of bytes would have to be widened for each comparison.
        return searched(op, &sorted.converted(DType::I32)?, &values.converted(DType::I32)?, right);
    }
    let (sorted, values) = (sorted.gap_free()?, values.gap_free()?);
    let (n, rows_of) = (sorted.shape()[sorted.rank() - 1], values.shape()[values.rank() - 1]);
    let is_vector = sorted.rank() == 1;
    on_cpu(op, [Some(&values), Some(&sorted)], (*values.shape(), DType::I64), &mut |inputs, out| {
        by_num!(inputs.dtype(), T => {
            let (values, sorted) = (inputs.view::<T>(0).data, inputs.view::<T>(1).data);
            scratch::reals(sorted, |sorted| scratch::reals(values, |values| {
                for_each_chunk_mut(out.elements::<i64>(), SEARCHES, |i, out| {
                    let start = i * SEARCHES;
                    let values = &values[start..][..out.len()];
                    if is_vector {
                        return count_before(sorted, values, right, out);
                    }
                    // Row by row; the first row may have begun in the chunk before.
                    let (mut at, mut rest) = (start, out);
                    while !rest.is_empty() {
                        let len = (rows_of - at % rows_of).min(rest.len());
                        let (now, later) = rest.split_at_mut(len);
                        count_before(&sorted[at / rows_of * n..][..n], &values[at - start..][..len], right, now);
                        (at, rest) = (at + len, later);
                    }
                });
                Ok(())
            }))
        })
        .map_err(Error::scratch(op))
    })
}

/// The searches of a task.
const SEARCHES: usize = 2048;

/// Values that are searched together, so that the loads of one overlap with the comparisons of others.
const VALUES_AT_ONCE: usize = 8;

/// The number of elements before each value. All elements are before NaN. Unless `right` is set, elements that are NaN are
/// behind all numbers; PyTorch, too, takes them as any element if it is.
fn count_before<T: Num>(sorted: &[T], values: &[T], right: bool, out: &mut [i64]) {
    match right {
        true => search(sorted, values, |element, value| element > value, out),
        false => search(sorted, values, |element, value| !(element < value || value.is_nan()), out),
    }
}

fn search<T: Num>(sorted: &[T], values: &[T], is_behind: impl Fn(T, T) -> bool + Copy, out: &mut [i64]) {
    vectorized(inlined!(|| {
        let ((groups, rest), (group_outs, rest_out)) = (values.as_chunks::<VALUES_AT_ONCE>(), out.as_chunks_mut());
        for (values, out) in zip(groups, group_outs) {
            search_at_once(sorted, values, is_behind, out);
        }
        for (&value, out) in zip(rest, rest_out) {
            search_at_once(sorted, &[value], is_behind, array::from_mut(out));
        }
    }));
}

#[inline(always)]
fn search_at_once<T: Num, const N: usize>(
    sorted: &[T],
    values: &[T; N],
    is_behind: impl Fn(T, T) -> bool,
    out: &mut [i64; N],
) {
    let (mut counts, mut rest) = ([0; N], sorted.len());
    while rest > 1 {
        let half = rest / 2;
        for (count, &value) in zip(&mut counts[..], &values[..]) {
            let next = *count + half;
            let is_behind = is_behind(sorted[next - 1], value);
            *count = select_unpredictable(is_behind, *count, next);
        }
        rest -= half;
    }
    for ((out, &value), &count) in zip(zip(&mut out[..], &values[..]), &counts[..]) {
        *out = count as i64 + i64::from(!is_behind(sorted[count], value));
    }
}

impl<K: Numeric> Tensor<K> {
    /// Which elements are equal to one of `elements`, which may have any shape. NaN equals none.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([1, 2, 3])?.isin(&Tensor::new([3, 1])?)?.to_vec::<bool>()?, [true, false, true]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for the sorted elements.
    pub fn isin(&self, elements: &Tensor<K>) -> Result<Tensor<Bool>> {
        no_grad(|| isin(self.raw(), elements.raw())).map(Raw::typed)
    }

    /// The most frequent element along a dimension, which is removed, and the last of its places. If several are
    /// equally frequent, the smallest of them. PyTorch's default is −1.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([3, 1, 3, 1, 2])?.mode(0)?.0.item::<i64>()?, 1);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or it is empty; as [`Tensor::sort`].
    pub fn mode(&self, dim: isize) -> Result<(Tensor<K>, Tensor<Int>)> {
        let place = no_grad(|| mode_place(self.raw(), dim))?;
        let at = self.shape().dim("mode", dim)? as isize;
        Ok((self.gather(at, &place)?.squeeze(at)?, place.squeeze(at)?))
    }
}

fn isin(x: &Raw, elements: &Raw) -> Result<Raw> {
    let (x, elements) = (x.without_node(), elements.without_node());
    let n = elements.shape().elements();
    if n == 0 {
        return filled(x.storage.device(), "isin", *x.shape(), DType::Bool, Scalar::Int(0));
    }
    let sorted = elements.reshape(&[-1])?;
    let order = super::sort::order(&sorted, "isin", 0, false, None)?;
    let sorted = sorted.gather(0, &order)?;
    let places: Tensor<Int> = searchsorted("isin", &sorted, &x, false)?.typed();
    let places = places.clamp_max(n as i64 - 1)?;
    sorted.index_select(0, places.reshape(-1)?.raw())?.reshape_to(*x.shape())?.eq(&x)
}

/// The place of the most frequent element; the dimension stays, with size 1.
fn mode_place(x: &Raw, dim: isize) -> Result<Tensor<Int>> {
    let op = "mode";
    let at = x.shape().dim(op, dim)?;
    let (size, dim) = (x.shape()[at], at as isize);
    if size == 0 {
        return Err(Error::empty(op, "the dimension", "give at least one element"));
    }
    if x.storage.device().is_cpu() {
        return Ok(super::sort::modes(x, op, at)?.typed());
    }
    let order = super::sort::order(x, op, dim, false, None)?;
    let sorted = x.without_node().gather(dim, &order)?;
    let mut sizes = vec![1; x.rank()];
    sizes[at] = size as isize;
    let numbers =
        Tensor::arange(0, size as i64, 1)?.to(x.storage.device())?.raw().reshape(&sizes)?.expand(*x.shape())?;
    // Where each run of equal elements begins, and how many elements it has so far.
    let is_new = sorted.narrow(dim, 1, size - 1)?.ne(&sorted.narrow(dim, 0, size - 1)?)?;
    let zero = number_like(op, &numbers, Scalar::Int(0))?;
    let starts = where_cond(op, &is_new, &numbers.narrow(dim, 1, size - 1)?, &zero)?;
    let starts: Tensor<Int> = super::cat(&[&numbers.narrow(dim, 0, 1)?, &starts], dim)?.typed();
    let length = numbers.sub(starts.cummax(dim)?.0.raw())?;
    let last = length.argmax_keepdim(dim)?;
    Ok(order.gather(dim, &last)?.typed())
}

/// A binary search of all values at once.
fn searchsorted(op: &'static str, sorted: &Raw, values: &Raw, right: bool) -> Result<Raw> {
    let (shape, is_vector) = (*values.shape(), sorted.rank() == 1);
    let is_like = sorted.rank() == shape.rank() && shape.rank() > 0 && {
        let last = shape.rank() - 1;
        sorted.shape().with(last, 0) == shape.with(last, 0)
    };
    if !is_vector && !is_like {
        let expected = format!("it must be a vector, or like the values {shape} except in the last dimension");
        return Err(Error::wrong_shape(op, "the sorted tensor", sorted.shape(), expected));
    }
    let values = if is_vector { values.reshape(&[-1])? } else { values.clone() };
    let n = sorted.shape()[sorted.rank() - 1];
    let device = common_device(op, &[sorted, &values])?;
    if n == 0 || values.shape().elements() == 0 {
        return filled(device, op, shape, DType::I64, Scalar::Int(0));
    }
    let dtype = widest(op, &[sorted, &values])?;
    let (sorted, values) = (&sorted.converted(dtype)?, &values.converted(dtype)?);
    let found = match device {
        Device::Cpu => searched(op, sorted, values, right),
        Device::Cuda(device) => searchsorted::searched(op, device, [sorted, values], right),
    };
    found?.reshape_to(shape)
}

impl<K: Numeric> Tensor<K> {
    /// The distinct elements in ascending order, for each element of this tensor its index among them, and how often
    /// each occurs: PyTorch's `unique` with `return_inverse` and `return_counts`. Waits for a device.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (values, inverse, counts) = Tensor::new([3, 1, 3])?.unique_with_counts()?;
    /// assert_eq!(values.to_vec::<i64>()?, [1, 3]);
    /// assert_eq!(inverse.to_vec::<i64>()?, [1, 0, 1]);
    /// assert_eq!(counts.to_vec::<i64>()?, [1, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if a result does not fit the budget; as [`Tensor::to_vec`].
    pub fn unique_with_counts(&self) -> Result<(Tensor<K>, Tensor<Int>, Tensor<Int>)> {
        let flat: Tensor<K> = self.raw().without_node().reshape(&[-1])?.typed();
        if let Some(tally) = Tally::of(flat.raw())? {
            let places = tally.places()?;
            let numbers = Tensor::arange(0, places.len() as i64, 1)?;
            let inverse = tally.counts.index_copy(0, &places, &numbers)?.index_select(0, &tally.distances)?;
            let inverse = inverse.raw().reshape_to(*self.shape())?.typed();
            return Ok((tally.values(&places, self.dtype())?.typed(), inverse, tally.counts.index_select(0, &places)?));
        }
        let (sorted, order) = flat.sort(0, false)?;
        let n = sorted.len();
        let device = self.device();
        if n == 0 {
            let none = || Tensor::on(&device).full([0], 0_i64);
            return Ok((sorted, none()?.raw().reshape_to(*self.shape())?.typed(), none()?));
        }
        let is_new: Tensor<Bool> = sorted.narrow(0, 1, n - 1)?.ne(&sorted.narrow(0, 0, n - 1)?)?;
        let first = Tensor::new([true])?.to(&device)?;
        let is_new = Tensor::cat(&[&first, &is_new], 0)?;
        let group: Tensor<Int> = is_new.raw().converted(DType::I64)?.typed();
        let group = group.cumsum(0)?.add_scalar(-1)?;
        let inverse = group.index_copy(0, &order, &group)?;
        let starts: Tensor<Int> = is_new.nonzero()?.squeeze(1)?;
        let end = Tensor::on(&device).full([1], n as i64)?;
        let ends = Tensor::cat(&[&starts.narrow(0, 1, starts.len() - 1)?, &end], 0)?;
        let values = sorted.index_select(0, &starts)?;
        Ok((values, inverse.raw().reshape_to(*self.shape())?.typed(), ends.sub(&starts)?))
    }
}

/// Counts of integers from a small range: counting is faster than sorting.
pub(super) struct Tally {
    least: i64,
    /// How far each number is from the least one.
    distances: Tensor<Int>,
    /// How often each distance occurs.
    counts: Tensor<Int>,
}

impl Tally {
    /// A range of this many distances is counted even if there are fewer numbers.
    const FEW: usize = 256;

    /// Counts a vector on the CPU. `None` if it is empty, has floats, or has too wide a range, or is on another device.
    pub(super) fn of(flat: &Raw) -> Result<Option<Tally>> {
        let n = flat.shape().elements();
        if n == 0 || flat.dtype().is_float() || !flat.storage.device().is_cpu() {
            return Ok(None);
        }
        let numbers: Tensor<Int> = flat.converted(DType::I64)?.typed();
        let (least, most) = extremes(&numbers)?;
        if most.checked_sub(least).is_none_or(|span| span >= n.max(Self::FEW) as i64) {
            return Ok(None);
        }
        let distances = numbers.add_scalar(least.wrapping_neg())?;
        Ok(Some(Tally { least, counts: distances.bincount(0)?, distances }))
    }

    /// The distances that occur, in order.
    pub(super) fn places(&self) -> Result<Tensor<Int>> {
        self.counts.nonzero()?.squeeze(1)
    }

    /// The numbers at these distances.
    pub(super) fn values(&self, places: &Tensor<Int>, dtype: DType) -> Result<Raw> {
        places.add_scalar(self.least)?.raw().converted(dtype)
    }
}
