//! Running extremes and logarithms of sums along a dimension. Like `cumprod`, they look one, two, four, … places back, so that
//! every step doubles how many elements are in each result.

use super::{cat, choose};
use crate::autocast::{no_autocast, prepared};
use crate::error::Result;
use crate::kind::{Int, Numeric};
use crate::op::Precision;
use crate::tensor::{Raw, Tensor};

impl<K: Numeric> Tensor<K> {
    /// The largest of the elements up to each along a dimension, and its place: the last one of equals. NaN is larger than all
    /// numbers.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (most, places) = Tensor::new([1, 3, 2])?.cummax(0)?;
    /// assert_eq!((most.to_vec::<i64>()?, places.to_vec::<i64>()?), (vec![1, 3, 3], vec![0, 1, 1]));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such dimension.
    pub fn cummax(&self, dim: isize) -> Result<(Tensor<K>, Tensor<Int>)> {
        running_extreme(self.raw(), "cummax", dim, Raw::ge)
    }

    /// The smallest of the elements up to each along a dimension, and its place; see [`Tensor::cummax`]. NaN is smaller than all
    /// numbers here.
    ///
    /// # Errors
    /// As [`Tensor::cummax`].
    pub fn cummin(&self, dim: isize) -> Result<(Tensor<K>, Tensor<Int>)> {
        running_extreme(self.raw(), "cummin", dim, Raw::le)
    }
}

fn running_extreme<K: Numeric>(
    x: &Raw,
    op: &'static str,
    dim: isize,
    wins: fn(&Raw, &Raw) -> Result<Raw>,
) -> Result<(Tensor<K>, Tensor<Int>)> {
    let at = x.shape().dim(op, dim)?;
    let (size, dim) = (x.shape()[at], at as isize);
    let numbers = Tensor::arange(0, size as i64, 1)?.to(x.storage.device())?;
    let column = x.shape().iter().enumerate().map(|(i, &size)| if i == at { size as isize } else { 1 });
    let mut places = numbers.raw().reshape(&column.collect::<Vec<_>>())?.expand(*x.shape())?;
    let mut values = x.without_node();
    for step in steps(size) {
        let [later, earlier] = [(step, &values), (0, &values)].map(|(start, x)| x.narrow(dim, start, size - step));
        let (later, earlier) = (later?, earlier?);
        let is_nan = later.ne(&later)?;
        let stays = wins(&later, &earlier)?.add(&is_nan)?; // of truth values: or
        values = cat(&[&values.narrow(dim, 0, step)?, &choose(op, &stays, &later, &earlier)?], dim)?;
        let chosen = choose(op, &stays, &places.narrow(dim, step, size - step)?, &places.narrow(dim, 0, size - step)?)?;
        places = cat(&[&places.narrow(dim, 0, step)?, &chosen], dim)?;
    }
    let places = places.contiguous()?;
    Ok((x.gather(dim, &places)?.typed(), places.typed()))
}

/// 1, 2, 4, … below a size.
fn steps(size: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1_usize), |step| step.checked_mul(2)).take_while(move |&step| step < size)
}

impl Tensor {
    /// ln Σ eˣ over the elements up to each along a dimension, without overflow.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no such dimension.
    pub fn logcumsumexp(&self, dim: isize) -> Result<Tensor> {
        let at = self.shape().dim("logcumsumexp", dim)?;
        let (size, dim) = (self.shape()[at], at as isize);
        let x = prepared(Precision::F32UnderAutocast, self)?;
        no_autocast(|| {
            let wide = x.to_dtype(x.dtype().computing())?;
            let total = steps(size).try_fold(wide, |x, step| {
                let added = x.narrow(dim, step, size - step)?.logaddexp(&x.narrow(dim, 0, size - step)?)?;
                Tensor::cat(&[&x.narrow(dim, 0, step)?, &added], dim)
            })?;
            total.to_dtype(x.dtype())
        })
    }
}
