//! Tensors combined: blocks along a diagonal, all pairs of elements, products over any dimensions, sums of outer products.

use super::cross;
use super::join::join;
use super::reduce::{Reduced, sum};
use crate::autocast::{no_autocast, prepared, prepared_raw};
use crate::autograd::{Saved, no_grad, record};
use crate::device::Device;
use crate::element::Scalar;
use crate::error::{Error, Result};
use crate::heap;
use crate::inlined::Array;
use crate::kind::{Float, Int, Kind, Numeric};
use crate::op::{Derivative, Precision, Saves, widest};
use crate::shape::{Axes, AxisSet, IntoShape, MAX_RANK, Shape};
use crate::tensor::{Raw, Tensor};

impl<K: Kind> Tensor<K> {
    /// At least one dimension: a single number becomes a vector.
    ///
    /// # Errors
    /// [`Error::Memory`] if a handle cannot be allocated.
    pub fn atleast_1d(&self) -> Result<Tensor<K>> {
        if self.rank() == 0 { self.unsqueeze(0) } else { Ok(self.clone()) }
    }

    /// At least two dimensions: a vector becomes a row.
    ///
    /// # Errors
    /// As [`Tensor::atleast_1d`].
    pub fn atleast_2d(&self) -> Result<Tensor<K>> {
        if self.rank() < 2 { self.atleast_1d()?.unsqueeze(0) } else { Ok(self.clone()) }
    }

    /// At least three dimensions: a vector becomes the middle one, a matrix the first two.
    ///
    /// # Errors
    /// As [`Tensor::atleast_1d`].
    pub fn atleast_3d(&self) -> Result<Tensor<K>> {
        if self.rank() < 3 { self.atleast_2d()?.unsqueeze(-1) } else { Ok(self.clone()) }
    }

    /// All combinations of one element of each vector, a row each, in the order of nested loops. A single vector is
    /// returned as it is.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let all = Tensor::cartesian_prod(&[&Tensor::new([1, 2])?, &Tensor::new([3, 4])?])?;
    /// assert_eq!(all.to_vec::<i64>()?, [1, 3, 1, 4, 2, 3, 2, 4]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::meshgrid`].
    pub fn cartesian_prod(vectors: &[&Tensor<K>]) -> Result<Tensor<K>> {
        if let [one] = vectors {
            return Ok((*one).clone());
        }
        let mut columns = Tensor::meshgrid(vectors)?;
        if columns.len() == MAX_RANK {
            columns = columns.iter().map(|grid| grid.reshape(-1)).collect::<Result<_>>()?; // stacking adds a dimension
        }
        let rows = Tensor::stack(&columns, -1)?;
        let shape = Shape::new(&[rows.len() / vectors.len().max(1), vectors.len()])?;
        rows.raw().reshape_to(shape).map(Raw::typed)
    }

    /// All combinations of `r` different elements of a vector, a row each; with `replacement`, an element may be
    /// taken several times. PyTorch's defaults are 2 and no replacement.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([1, 2, 3])?.combinations(2, false)?.to_vec::<i64>()?, [1, 2, 1, 3, 2, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if this is not a vector, or for more combinations than a tensor can hold;
    /// [`Error::Memory`].
    pub fn combinations(&self, r: usize, replacement: bool) -> Result<Tensor<K>> {
        combinations(self.raw(), r, replacement).map(Raw::typed)
    }
}

fn combinations(x: &Raw, r: usize, replacement: bool) -> Result<Raw> {
    let op = "combinations";
    let [n] = x.shape()[..] else {
        return Err(Error::wrong_shape(op, "the tensor", x.shape(), "it must be a vector; flatten it"));
    };
    let of = if replacement && n > 0 { n.saturating_add(r).saturating_sub(1) } else { n };
    let shape = Shape::new(&[count(of, r), r])?;
    shape.check_size()?;
    if shape.elements() == 0 {
        return x.narrow(0, 0, 0)?.reshape_to(shape);
    }
    let device = x.storage.device();
    if r == 2 && !device.is_cpu() {
        return x.index_select(0, pairs(n, replacement, device)?.raw())?.reshape_to(shape);
    }
    let _counted = heap::reserve(op, "a combination", r.saturating_mul(size_of::<usize>()))?;
    let index = Tensor::<Int>::build([shape.elements()], |numbers: &mut [i64]| {
        let mut next: Vec<usize> = if replacement { vec![0; r] } else { (0..r).collect() };
        for row in numbers.chunks_exact_mut(r.max(1)) {
            row.iter_mut().zip(&next).for_each(|(entry, &number)| *entry = number as i64);
            advance(&mut next, n, replacement);
        }
    })?;
    x.index_select(0, index.to(device)?.raw())?.reshape_to(shape)
}

/// The indices of all pairs of `n` elements in order, computed on the device.
fn pairs(n: usize, replacement: bool, device: &Device) -> Result<Tensor<Int>> {
    let second = Tensor::on(device).arange(0_i64, n as i64, 1)?;
    let first = second.unsqueeze(1)?;
    let pairs = if replacement { first.le(&second)? } else { first.lt(&second)? }.nonzero()?;
    pairs.reshape([pairs.len()])
}

/// The number of ways to choose `r` of `n` elements; saturates.
fn count(n: usize, r: usize) -> usize {
    if r > n {
        return 0;
    }
    let r = r.min(n - r);
    let count = (0..r).try_fold(1_u128, |count, i| Some(count.checked_mul((n - i) as u128)? / (i as u128 + 1)));
    count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX)
}

/// The next combination in order.
fn advance(next: &mut [usize], n: usize, replacement: bool) {
    let r = next.len();
    let most = |i: usize| if replacement { n - 1 } else { n + i - r };
    let Some(at) = (0..r).rev().find(|&i| next[i] < most(i)) else { return };
    let first = next[at] + 1;
    next[at..].iter_mut().enumerate().for_each(|(i, number)| *number = first + if replacement { 0 } else { i });
}

impl<K: Numeric> Tensor<K> {
    /// The matrices along a diagonal, zeros elsewhere. Vectors are rows, single numbers matrices of one element.
    ///
    /// # Errors
    /// [`Error::Argument`] for an empty list, or a tensor of more than two dimensions.
    pub fn block_diag(blocks: &[&Tensor<K>]) -> Result<Tensor<K>> {
        block_diag(&blocks.iter().map(|block| block.raw()).collect::<Vec<_>>()).map(Raw::typed)
    }

    /// The sums of products over pairs of dimensions: `dims` of this tensor with `others` of the other one. The
    /// result has the remaining dimensions of this tensor, then those of the other one.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (x, y) = (Tensor::ones([2, 3, 4])?, Tensor::ones([4, 3, 5])?);
    /// assert_eq!(x.tensordot(&y, &[1, 2], &[1, 0])?.dims(), [2, 5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there are no such dimensions, or their sizes differ.
    pub fn tensordot(&self, other: &Tensor<K>, dims: &[isize], others: &[isize]) -> Result<Tensor<K>> {
        tensordot(self.raw(), other.raw(), dims, others).map(Raw::typed)
    }

    /// The cross products along a dimension of size 3; the other dimensions broadcast.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or it has another size.
    pub fn cross(&self, other: &Tensor<K>, dim: isize) -> Result<Tensor<K>> {
        cross::cross(self.raw(), other.raw(), dim).map(Raw::typed)
    }

    /// The sum over the dimensions that broadcasting from `shape` to this tensor's shape adds or expands.
    ///
    /// # Errors
    /// [`Error::Argument`] if that shape does not broadcast to this tensor's.
    pub fn sum_to_size(&self, shape: impl IntoShape) -> Result<Tensor<K>> {
        sum_to_size(self.raw(), shape.into_shape()?).map(Raw::typed)
    }
}

fn addr(x: &Raw, vectors: [&Raw; 2], [beta, alpha]: [f64; 2]) -> Result<Raw> {
    let dtype = widest("addr", &[x, vectors[0], vectors[1]])?;
    let [left, right] = vectors.mapped(|vector| vector.converted(dtype));
    let (left, right): (Tensor<Float>, Tensor<Float>) = (left?.typed(), right?.typed());
    let x = x.converted(dtype)?;
    if beta != 1.0 || left.rank() != 1 || right.rank() != 1 || *x.shape() != Shape::new(&[left.len(), right.len()])? {
        return scaled_sum(&x, left.outer(&right)?.raw(), beta, alpha);
    }
    let column = left.detach().unsqueeze(1)?;
    let out = no_grad(|| x.without_node().typed::<Float>().addcmul(&column, &right.detach(), alpha))?;
    Ok(record("addr", Addr { alpha }, [Some(&x), Some(left.raw()), Some(right.raw())], out.raw().clone()))
}

/// The derivative of [`addr`] with `beta` 1.
struct Addr {
    alpha: f64,
}

impl Derivative<3> for Addr {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let scaled = |x: Tensor| if self.alpha == 1.0 { Ok(x) } else { x.mul_scalar(self.alpha) };
        Ok([
            saved.grad_of(0, || Ok(grad.clone()))?,
            saved.grad_of(1, || scaled(grad.mv(saved.input(2))?))?,
            saved.grad_of(2, || scaled(grad.t()?.mv(saved.input(1))?))?,
        ])
    }
}

fn scaled_sum(x: &Raw, product: &Raw, beta: f64, alpha: f64) -> Result<Raw> {
    let times =
        |x: &Raw, factor: f64| if factor == 1.0 { Ok(x.clone()) } else { x.times_scalar(Scalar::Float(factor)) };
    times(x, beta)?.add(&times(product, alpha)?)
}

fn block_diag(blocks: &[&Raw]) -> Result<Raw> {
    let op = "block_diag";
    let mut matrices = Vec::new();
    for block in blocks {
        matrices.push(match block.rank() {
            0 | 1 => block.reshape(&[1, -1])?,
            2 => (*block).clone(),
            _ => return Err(Error::wrong_shape(op, "a block", block.shape(), "it must be a matrix")),
        });
    }
    if matrices.is_empty() {
        return Err(Error::empty(op, "the list of blocks", "give at least one"));
    }
    let sides =
        [0, 1].mapped(|dim| matrices.iter().fold(0_usize, |side, block| side.saturating_add(block.shape()[dim])));
    join(op, &matrices.iter().collect::<Vec<_>>(), Shape::new(&sides)?, &[0, 1])
}

fn tensordot(x: &Raw, y: &Raw, dims: &[isize], others: &[isize]) -> Result<Raw> {
    let op = "tensordot";
    let [of_x, of_y] = [(x, dims), (y, others)].mapped(|(x, dims)| {
        dims.resolve(op, x.shape())?;
        dims.iter().map(|&dim| x.shape().dim(op, dim)).collect::<Result<Vec<_>>>()
    });
    let (of_x, of_y) = (of_x?, of_y?);
    let sizes = |x: &Raw, dims: &[usize]| dims.iter().map(|&dim| x.shape()[dim]).collect::<Vec<_>>();
    if sizes(x, &of_x) != sizes(y, &of_y) {
        let expected = format!("dimensions {dims:?} must have the sizes of dimensions {others:?} of {}", y.shape());
        return Err(Error::wrong_shape(op, "the first tensor", x.shape(), expected));
    }
    let rest = |x: &Raw, dims: &[usize]| (0..x.rank()).filter(|dim| !dims.contains(dim)).collect::<Vec<_>>();
    let (rest_x, rest_y) = (rest(x, &of_x), rest(y, &of_y));
    let shape = Shape::new(&[sizes(x, &rest_x), sizes(y, &rest_y)].concat())?;
    let inner: usize = sizes(x, &of_x).iter().product();
    let outer = |x: &Raw, dims: &[usize]| sizes(x, dims).iter().product::<usize>();
    let ordered = |x: &Raw, order: [&[usize]; 2], sizes: [usize; 2]| {
        let order: Vec<isize> = order.concat().into_iter().map(|dim| dim as isize).collect();
        x.permute(&order)?.reshape_to(Shape::new(&sizes)?)
    };
    let left = ordered(x, [&rest_x, &of_x], [outer(x, &rest_x), inner])?;
    let right = ordered(y, [&of_y, &rest_y], [inner, outer(y, &rest_y)])?;
    left.matmul(&right)?.reshape_to(shape)
}

fn sum_to_size(x: &Raw, wanted: Shape) -> Result<Raw> {
    let op = "sum_to_size";
    if Shape::broadcast(op, x.shape(), &wanted)? != *x.shape() {
        let expected = format!("{wanted} does not broadcast to it");
        return Err(Error::wrong_shape(op, "the tensor", x.shape(), expected));
    }
    let x = prepared_raw(Precision::F32UnderAutocast, x)?;
    if *x.shape() == wanted { Ok(x) } else { x.sum_to(&wanted) }
}

impl Tensor {
    /// `beta · self + alpha · left ⊗ right`, the outer product of two vectors. PyTorch's defaults are 1.
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not fit.
    pub fn addr(&self, left: &Tensor, right: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        addr(self.raw(), [left.raw(), right.raw()], [beta, alpha]).map(Raw::typed)
    }

    /// `beta · self + alpha · Σ left[i] · right[i]`, the products of two batches of matrices summed. PyTorch's defaults are 1.
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not fit.
    pub fn addbmm(&self, left: &Tensor, right: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        let [x, left, right] = [self, left, right].mapped(|x| prepared(Precision::HalfUnderAutocast, x));
        let (x, left, right) = (x?, left?, right?);
        no_autocast(|| {
            let total = sum(left.bmm(&right)?.raw(), Reduced { axes: AxisSet::one(0), keepdim: false })?;
            scaled_sum(x.raw(), &total, beta, alpha).map(Raw::typed)
        })
    }
}

impl Tensor<Int> {
    /// Converts row-major positions in a tensor of that `shape` to indices along each of its dimensions.
    ///
    /// # Errors
    /// [`Error::Argument`] for a shape without elements.
    pub fn unravel_index(&self, shape: impl IntoShape) -> Result<Vec<Tensor<Int>>> {
        let shape = shape.into_shape()?;
        if shape.elements() == 0 {
            return Err(Error::bad_argument("unravel_index", "shape", shape, "it must have elements"));
        }
        let mut rest = self.clone();
        let mut all = Vec::new();
        for &size in shape.iter().rev() {
            all.push(rest.remainder_scalar(size as i64)?);
            rest = rest.floor_divide_scalar(size as i64)?;
        }
        all.reverse();
        Ok(all)
    }
}
