//! `scatter_reduce`: elements with the same index are added, multiplied, averaged, or reduced to their extreme.

use super::{Combination, along, cut_source, scatter_unrecorded, with_number};
use crate::autograd::{Saved, no_grad, record};
use crate::create::filled;
use crate::element::{DType, Element, Num, Scalar};
use crate::error::Result;
use crate::kind::{Int, Numeric};
use crate::op::{Derivative, Saves};
use crate::ops::index::{added_to_own, entries_of, own_index, scatter_added_own};
use crate::ops::{number_like, where_cond};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor, by_num};

/// How [`Tensor::scatter_reduce`] combines the elements with one index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScatterReduce {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// Their mean, rounded down for integers.
    Mean,
    /// The largest one; NaN wins.
    Amax,
    /// The smallest one; NaN wins.
    Amin,
}

impl<K: Numeric> Tensor<K> {
    /// A copy of this tensor with every element of `source` combined with the element at its index along `dim`:
    /// PyTorch's `scatter_reduce`. `index` and `source` have this tensor's rank. `include_self` says whether this
    /// tensor's own elements take part where an index names them, which is PyTorch's default. If several elements are
    /// the extreme, each gets an equal share of the gradient.
    ///
    /// ```
    /// # use pagelock_tensor::{ScatterReduce, Tensor};
    /// let (x, index) = (Tensor::new([1.0, 2.0])?, Tensor::new([0, 0, 1])?);
    /// let source = Tensor::new([5.0, 3.0, 0.0])?;
    /// let most = x.scatter_reduce(0, &index, &source, ScatterReduce::Amax, true)?;
    /// assert_eq!(most.to_vec::<f32>()?, [5.0, 2.0]);
    /// let mean = x.scatter_reduce(0, &index, &source, ScatterReduce::Mean, false)?;
    /// assert_eq!(mean.to_vec::<f32>()?, [4.0, 0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::scatter`].
    pub fn scatter_reduce(
        &self,
        dim: isize,
        index: &Tensor<Int>,
        source: &Tensor<K>,
        reduce: ScatterReduce,
        include_self: bool,
    ) -> Result<Tensor<K>> {
        let (x, source) = (self.raw(), source.raw());
        let dim = self.shape().dim(OP, dim)?;
        let index = own_index(OP, [x, source], index.raw())?;
        reduced(x, (dim, &index), source, reduce, include_self).map(Raw::typed)
    }
}

const OP: &str = "scatter_reduce";

/// [`Tensor::scatter_reduce`] with an index in a storage of its own.
pub(in crate::ops) fn reduced(
    x: &Raw,
    (dim, index): (usize, &Raw),
    source: &Raw,
    reduce: ScatterReduce,
    include_self: bool,
) -> Result<Raw> {
    let source = cut_source(OP, x, dim, index, source)?;
    let combination = match reduce {
        ScatterReduce::Sum | ScatterReduce::Mean => Combination::Sum,
        ScatterReduce::Prod => Combination::Prod,
        ScatterReduce::Amax => Combination::Amax,
        ScatterReduce::Amin => Combination::Amin,
    };
    let x = match include_self {
        true => x.clone(),
        false => with_number(OP, x, dim, index, identity(combination, x.dtype()))?,
    };
    if combination != Combination::Sum {
        return folded(combination, (dim, index), &x, &source);
    }
    let total = added_to_own(&x, &source, dim, index.clone()).map_err(|error| error.of_index_in(OP))?;
    if reduce == ScatterReduce::Sum {
        return Ok(total);
    }
    let counts = counts(x.dtype().computing(), (dim, index), x.shape())?; // a half type counts to 256 or 2,048
    let counts = if include_self { counts.plus_scalar(Scalar::Int(1))? } else { counts };
    mean_of(&total, &counts.converted(x.dtype())?)
}

/// The number of elements with each index of a tensor of shape `into`, in a shape that broadcasts to it.
fn counts(dtype: DType, (dim, index): (usize, &Raw), into: &Shape) -> Result<Raw> {
    let ones = |shape| filled(index.storage.device(), OP, shape, dtype, Scalar::Int(1));
    match entries_of(index, dim, into)? {
        None => scatter_added_own(&ones(*index.shape())?, dim, index.clone(), *into),
        Some(entries) => {
            let counts = scatter_added_own(&ones(*entries.shape())?, 0, entries, Shape::new(&[into[dim]])?)?;
            counts.reshape_to(along(dim, into)?)
        }
    }
}

/// Sums divided by counts, or by 1 where the count is 0.
fn mean_of(total: &Raw, counts: &Raw) -> Result<Raw> {
    let counts = counts.maximum(&number_like(OP, counts, Scalar::Int(1))?)?;
    match total.dtype().is_float() {
        true => total.clone().typed().div(&counts.typed()).map(Tensor::into_raw),
        false => total.clone().typed::<Int>().floor_divide(&counts.typed()).map(Tensor::into_raw),
    }
}

/// The number that changes nothing when it is combined.
fn identity(combination: Combination, dtype: DType) -> Scalar {
    by_num!(dtype, T => match combination {
        Combination::Last | Combination::Sum => Scalar::Int(0),
        Combination::Prod => Scalar::Int(1),
        Combination::Amax => T::LOWEST.to_scalar(),
        Combination::Amin => T::HIGHEST.to_scalar(),
    })
}

/// Products and extremes. Halves are combined in `f32`, and rounded at the end.
fn folded(combination: Combination, (dim, index): (usize, &Raw), x: &Raw, source: &Raw) -> Result<Raw> {
    let computing = x.dtype().computing();
    let (wide_x, wide_source) = (x.converted(computing)?, source.converted(computing)?);
    let out = scatter_unrecorded(OP, combination, dim, [&wide_x.without_node(), index, &wide_source.without_node()])?;
    let derivative = Folded { combination, dim, index: index.clone() };
    record(OP, derivative, [Some(&wide_x), Some(&wide_source)], out).converted(x.dtype())
}

/// The derivative of [`folded`], as PyTorch has it.
struct Folded {
    combination: Combination,
    dim: usize,
    index: Raw,
}

impl Derivative<2> for Folded {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        match self.combination {
            Combination::Prod => self.of_products(saved, grad),
            _ => self.of_extremes(saved, grad),
        }
    }
}

impl Folded {
    fn folded(&self, x: &Tensor, source: &Tensor) -> Result<Tensor> {
        folded(self.combination, (self.dim, &self.index), x.raw(), source.raw()).map(Raw::typed)
    }

    /// The elements at the index.
    fn at_index(&self, x: &Tensor) -> Result<Tensor> {
        let dim = self.dim as isize;
        let elements = match entries_of(&self.index, self.dim, x.shape())? {
            Some(entries) => x.raw().index_select(dim, &entries),
            None => x.raw().gather(dim, &self.index),
        };
        elements.map(Raw::typed)
    }

    /// Elements that equal the extreme get equal shares.
    fn of_extremes(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (x, source) = (saved.input(0), saved.input(1));
        let [of_x, of_source, shares] = no_grad(|| {
            let out = self.folded(x, source)?;
            let of_x = x.eq(&out)?.to_float_of(x.dtype())?;
            let of_source = source.eq(&self.at_index(&out)?)?.to_float_of(x.dtype())?;
            let counts = scatter_added_own(of_source.raw(), self.dim, self.index.clone(), *x.shape())?;
            let shares = of_x.raw().add(&counts)?.typed();
            Ok::<_, crate::Error>([of_x, of_source, shares])
        })?;
        let grad = grad.div(&shares)?;
        Ok([saved.grad_of(0, || grad.mul(&of_x))?, saved.grad_of(1, || self.at_index(&grad)?.mul(&of_source))?])
    }

    /// The result divided by each factor; where one factor is 0, the product of the others.
    fn of_products(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (x, source) = (saved.input(0), saved.input(1));
        let of_x = || {
            let ones = x.ones_like()?;
            grad.mul(&self.folded(&ones, source)?)
        };
        let of_source = || {
            let is_zero = source.eq_scalar(0.0)?;
            let zeros = is_zero.to_float_of(x.dtype())?;
            let zeros: Tensor = scatter_added_own(zeros.raw(), self.dim, self.index.clone(), *x.shape())?.typed();
            let is_only_zero = is_zero.logical_and(&self.at_index(&zeros)?.eq_scalar(1.0)?)?;
            let others = self.folded(x, &source.masked_fill(&is_only_zero, 1.0)?)?;
            let with_zero = self.at_index(&grad.mul(&others)?)?;
            let products = self.at_index(&grad.mul(&self.folded(x, source)?)?)?;
            let divided = products.div(&source.masked_fill(&is_zero, 1.0)?)?;
            let slope = where_cond(OP, is_only_zero.raw(), with_zero.raw(), divided.raw())?;
            Ok(slope.typed())
        };
        Ok([saved.grad_of(0, of_x)?, saved.grad_of(1, of_source)?])
    }
}
