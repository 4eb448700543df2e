//! Products of vectors and matrices beside `matmul`, and distances.

use super::reduce::{Reduced, sum};
use crate::autocast::{no_autocast, prepared};
use crate::autograd::{Saved, is_grad_enabled, record};
use crate::cpu;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::kind::{Float, Numeric};
use crate::op::{Derivative, Precision, Saves, on_cpu};
use crate::scratch;
use crate::shape::{AxisSet, Shape};
use crate::tensor::{Raw, Tensor, by_real};

impl<K: Numeric> Tensor<K> {
    /// The inner product of two vectors.
    ///
    /// # Errors
    /// [`Error::Argument`] for tensors that are not vectors, or of different lengths.
    pub fn dot(&self, other: &Tensor<K>) -> Result<Tensor<K>> {
        check_rank("dot", self.shape(), 1)?;
        check_rank("dot", other.shape(), 1)?;
        self.matmul(other)
    }

    /// The product of a matrix and a vector.
    ///
    /// # Errors
    /// [`Error::Argument`] for other ranks, or sizes that do not fit.
    pub fn mv(&self, vector: &Tensor<K>) -> Result<Tensor<K>> {
        check_rank("mv", self.shape(), 2)?;
        check_rank("mv", vector.shape(), 1)?;
        self.matmul(vector)
    }

    /// The Kronecker product: each element of this tensor is replaced by its product with the whole other tensor. The
    /// tensor of smaller rank gets dimensions of size 1 in front.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([1, 2])?.kron(&Tensor::new([3, 4])?)?;
    /// assert_eq!(x.to_vec::<i64>()?, [3, 4, 6, 8]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for more than four dimensions.
    pub fn kron(&self, other: &Tensor<K>) -> Result<Tensor<K>> {
        kron(self.raw(), other.raw()).map(Raw::typed)
    }
}

fn check_rank(op: &'static str, shape: &Shape, rank: usize) -> Result<()> {
    if shape.rank() == rank {
        return Ok(());
    }
    let what = if rank == 1 { "it must be a vector" } else { "it must be a matrix" };
    Err(Error::wrong_shape(op, "a tensor", shape, format!("{what}; use matmul for others")))
}

fn kron(left: &Raw, right: &Raw) -> Result<Raw> {
    let rank = left.rank().max(right.rank());
    let [mut wide, mut narrow, mut shape] = [Shape::SCALAR; 3];
    for back in (1..=rank).rev() {
        let [a, b] = [left, right].mapped(|x| x.rank().checked_sub(back).map_or(1, |dim| x.shape()[dim]));
        [(&mut wide, [a, 1]), (&mut narrow, [1, b])]
            .into_iter()
            .try_for_each(|(shape, sizes)| sizes.into_iter().try_for_each(|size| shape.push(size)))?;
        shape.push(a.saturating_mul(b))?;
    }
    shape.check_size()?;
    left.reshape_to(wide)?.mul(&right.reshape_to(narrow)?)?.reshape_to(shape)
}

impl Tensor {
    /// The distances between the rows of two (batches of) matrices by the `p`-norm: `[…, n, d]` and `[…, m, d]` give
    /// `[…, n, m]`. Batches broadcast. On devices, and for a gradient with another `p` than 1 and 2, the differences of all
    /// pairs are held in memory. As in PyTorch, the gradient for equal rows is 0, and with `p` = ∞ each of several
    /// largest differences gets the whole gradient.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (x, y) = (Tensor::new([[0.0, 0.0]])?, Tensor::new([[3.0, 4.0], [0.0, 1.0]])?);
    /// assert_eq!(x.cdist(&y, 2.0)?.to_vec::<f32>()?, [5.0, 1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for fewer than two dimensions, rows of two lengths, or a negative `p`.
    pub fn cdist(&self, other: &Tensor, p: f64) -> Result<Tensor> {
        let (&[.., d], &[.., e]) = (self.dims(), other.dims()) else {
            return Err(Error::wrong_shape("cdist", "one tensor", self.shape(), "both must have two dimensions"));
        };
        if self.rank() < 2 || other.rank() < 2 || d != e {
            let expected = format!("the other is {}; give matrices with rows of one length", other.shape());
            return Err(Error::wrong_shape("cdist", "one tensor", self.shape(), expected));
        }
        if p.is_nan() || p < 0.0 {
            return Err(Error::bad_argument("cdist", "p", p, "it must be 0 or more"));
        }
        let [x, y] = [self, other].mapped(|x| prepared(Precision::F32UnderAutocast, x));
        let (x, y) = (x?, y?);
        let has_kernel = [1.0, 2.0].contains(&p) || p > 0.0 && [&x, &y].iter().all(|x| x.raw().node.is_none());
        if has_kernel && d > 0 && x.device().is_cpu() {
            return distances(&x, &y, p);
        }
        no_autocast(|| {
            let pairs = x.unsqueeze(-2)?.sub(&y.unsqueeze(-3)?)?;
            if d == 0 {
                let axes = AxisSet::one(pairs.rank() - 1);
                return sum(pairs.raw(), Reduced { axes, keepdim: false }).map(Raw::typed);
            }
            if p == f64::INFINITY { largest_magnitude(&pairs) } else { pairs.norm(p, -1) }
        })
    }
}

/// The largest magnitude along the last dimension. Each of several largest elements gets the whole gradient, as in
/// PyTorch's `cdist`; [`Tensor::norm`] shares it among them, as PyTorch's `norm` does.
fn largest_magnitude(x: &Tensor) -> Result<Tensor> {
    let largest = x.raw().without_node().typed::<Float>().norm(f64::INFINITY, -1)?;
    Ok(record("cdist", LargestMagnitude, [Some(x.raw()), None], largest.into_raw()).typed())
}

struct LargestMagnitude;

impl Derivative<2> for LargestMagnitude {
    const SAVES: Saves = Saves::OutputForLast;

    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (x, largest) = (saved.input(0), saved.output().unsqueeze(-1)?);
        let is_smaller = x.abs()?.eq(&largest)?.logical_not()?;
        Ok([Some(x.sign()?.mul(&grad.unsqueeze(-1)?)?.masked_fill(&is_smaller, 0.0)?), None])
    }
}

/// [`Tensor::cdist`] on the CPU, one pair at a time.
fn distances(x: &Tensor, y: &Tensor, p: f64) -> Result<Tensor> {
    let (rank, [n, d, m]) = (x.rank().max(y.rank()), [x.size(-2)?, x.size(-1)?, y.size(-2)?]);
    let batch = |x: &Tensor| Shape::new(&x.dims()[..x.rank() - 2]);
    let mut shape = Shape::broadcast("cdist", &batch(x)?, &batch(y)?)?;
    let with = |rows: usize, columns: usize| {
        let mut shape = shape;
        shape.push(rows)?;
        shape.push(columns).map(|()| shape)
    };
    let dtype = crate::op::widest("cdist", &[x.raw(), y.raw()])?;
    let of = |x: &Tensor, shape: Shape| x.to_dtype(dtype)?.raw().expand(shape);
    let (x, y) = (of(x, with(n, d)?)?, of(y, with(m, d)?)?);
    // The columns of `y` lie next to each other, so that vectors hold several distances.
    let (left, right) = (x.gap_free()?, y.transpose(-2, -1)?.gap_free()?);
    shape = with(n, m)?;
    debug_assert_eq!(shape.rank(), rank);
    let out = on_cpu("cdist", [Some(&left), Some(&right)], (shape, dtype), &mut |inputs, out| {
        by_real!(inputs.dtype(), R => {
            let (left, right, sizes) = (inputs.view::<R>(0).data, inputs.view::<R>(1).data, [n, d, m]);
            scratch::reals(left, |x| scratch::reals(right, |y| {
                scratch::reals_mut(out.stored::<R>(), |out| {
                    cpu::distances(x, y, sizes, p, out);
                    Ok(())
                })
            }))
        })
        .map_err(Error::scratch("cdist"))
    })?;
    Ok(record("cdist", Distances { p }, [Some(&x), Some(&y)], out).typed())
}

/// The derivative of [`distances`] with `p` 1 or 2, for inputs in one precision that are expanded to all batches.
struct Distances {
    p: f64,
}

impl Derivative<2> for Distances {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (x, y) = (saved.input(0), saved.input(1));
        if is_grad_enabled() {
            return no_autocast(|| self.composed([x, y], grad));
        }
        let transposed = grad.transpose(-2, -1)?;
        Ok([saved.grad_of(0, || self.of_rows(x, y, grad))?, saved.grad_of(1, || self.of_rows(y, x, &transposed))?])
    }
}

impl Distances {
    /// The gradient of the rows of `x`, unrecorded, from the gradient of their distances to the rows of `y`.
    fn of_rows(&self, x: &Tensor, y: &Tensor, grad: &Tensor) -> Result<Tensor> {
        let op = "cdist's gradient";
        let (sizes, grad) = ([x.size(-2)?, x.size(-1)?, y.size(-2)?], grad.to_dtype(x.dtype())?);
        let inputs = [x.raw().gap_free()?, y.transpose(-2, -1)?.raw().gap_free()?, grad.raw().gap_free()?];
        let out = on_cpu(op, inputs.each_ref().mapped(Some), (*x.shape(), x.dtype()), &mut |inputs, out| {
            by_real!(inputs.dtype(), R => {
                let [x, y, grad] = [0, 1, 2].mapped(|i| inputs.view::<R>(i).data);
                scratch::reals(x, |x| scratch::reals(y, |y| scratch::reals(grad, |grad| {
                    scratch::reals_mut(out.stored::<R>(), |out| {
                        cpu::distances_grad([x, y, grad], sizes, self.p, out);
                        Ok(())
                    })
                })))
            })
            .map_err(Error::scratch(op))
        })?;
        Ok(out.typed())
    }

    /// Both gradients, recorded, by way of the differences of all pairs. For equal rows they are 0.
    fn composed(&self, inputs: [&Tensor; 2], grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let dtype = inputs[0].dtype();
        let [x, y, grad] = [inputs[0], inputs[1], grad].mapped(|x| x.to_dtype(dtype.computing()));
        let pairs = x?.unsqueeze(-2)?.sub(&y?.unsqueeze(-3)?)?;
        let direction = match self.p {
            1.0 => pairs.sign()?,
            _ => {
                let length = pairs.norm_keepdim(2.0, -1)?;
                pairs.div(&length.masked_fill(&length.eq_scalar(0.0)?, f64::INFINITY)?)?
            }
        };
        let each = direction.mul(&grad?.unsqueeze(-1)?)?;
        Ok([Some(each.sum(-2)?.to_dtype(dtype)?), Some(each.sum(-3)?.neg()?.to_dtype(dtype)?)])
    }
}
