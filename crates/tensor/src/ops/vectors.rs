//! Products of vectors and matrices beside `matmul`, and distances.

use super::reduce::{Reduced, sum};
use crate::autocast::{no_autocast, prepared};
use crate::cpu;
use crate::error::{Error, Result};
use crate::kind::Numeric;
use crate::op::{Precision, on_cpu};
use crate::scratch;
use crate::shape::{AxisSet, Shape};
use crate::tensor::{Raw, Tensor, by_real};

impl<K: Numeric> Tensor<K> {
    /// The inner product of two vectors.
    ///
    /// # Errors
    /// [`Error::Argument`] for tensors that are no vectors, or of two lengths.
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

    /// The Kronecker product: every element of this tensor times the whole other one, in its place. Of two ranks, the smaller
    /// tensor gets dimensions of size 1 in front.
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
        let [a, b] = [left, right].map(|x| x.rank().checked_sub(back).map_or(1, |dim| x.shape()[dim]));
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
    /// `[…, n, m]`. Batches broadcast. Where a gradient is wanted, and on devices, the differences of all pairs are held
    /// in memory.
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
        let [x, y] = [self, other].map(|x| prepared(Precision::F32UnderAutocast, x));
        let (x, y) = (x?, y?);
        if p > 0.0 && d > 0 && x.device().is_cpu() && [&x, &y].iter().all(|x| x.raw().node.is_none()) {
            return distances(&x, &y, p);
        }
        no_autocast(|| {
            let pairs = x.unsqueeze(-2)?.sub(&y.unsqueeze(-3)?)?;
            if d == 0 {
                let axes = AxisSet::one(pairs.rank() - 1);
                return sum(pairs.raw(), Reduced { axes, keepdim: false }).map(Raw::typed);
            }
            pairs.norm(p, -1)
        })
    }
}

/// [`Tensor::cdist`] on the CPU, unrecorded, one pair at a time.
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
    let of = |x: &Tensor, shape: Shape| x.to_dtype(dtype)?.raw().expand(shape)?.gap_free();
    // The columns of `y` lie next to each other, so that vectors hold several distances.
    let (left, right) = (of(x, with(n, d)?)?, of(&y.transpose(-2, -1)?, with(d, m)?)?);
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
    Ok(out.typed())
}
