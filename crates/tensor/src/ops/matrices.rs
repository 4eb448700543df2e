//! Matrices: their diagonals, grids of vectors, one-hot rows, and products with a sum.

use super::diagonals::placed;
use super::index::scatter_added;
use crate::autocast::prepared;
use crate::create::filled;
use crate::device::common_device;
use crate::element::{DType, Scalar};
use crate::error::{Error, Result};
use crate::kind::{Int, Kind, Numeric};
use crate::op::Precision;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

impl<K: Kind> Tensor<K> {
    /// Diagonal number `diagonal` of a matrix. For a vector: the matrix that has it as that diagonal, and 0 elsewhere.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([1, 2])?.diag(0)?;
    /// assert_eq!(x.to_vec::<i64>()?, [1, 0, 0, 2]);
    /// assert_eq!(x.diag(1)?.to_vec::<i64>()?, [0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for other than one or two dimensions, or a matrix without that diagonal.
    pub fn diag(&self, diagonal: isize) -> Result<Tensor<K>> {
        diag(self.raw(), diagonal).map(Raw::typed)
    }

    /// Views of the vectors, each expanded to the grid of all: `out[k][i][j] = vectors[k][i or j]`, PyTorch's
    /// `indexing="ij"`.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let grid = Tensor::meshgrid(&[&Tensor::new([1, 2])?, &Tensor::new([3, 4, 5])?])?;
    /// assert_eq!(grid[1].dims(), [2, 3]);
    /// assert_eq!(grid[0].to_vec::<i64>()?, [1, 1, 1, 2, 2, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for tensors that are not vectors, or more than 8 of them.
    pub fn meshgrid(vectors: &[&Tensor<K>]) -> Result<Vec<Tensor<K>>> {
        let mut shape = Shape::SCALAR;
        for vector in vectors {
            check_vector("meshgrid", vector.shape())?;
            shape.push(vector.len())?;
        }
        let expanded = |(i, vector): (usize, &&Tensor<K>)| {
            let mut sizes = Shape::SCALAR;
            (0..vectors.len()).try_for_each(|dim| sizes.push(if dim == i { vector.len() } else { 1 }))?;
            vector.raw().reshape_to(sizes)?.expand(shape).map(Raw::typed)
        };
        vectors.iter().enumerate().map(expanded).collect()
    }
}

impl Tensor<Int> {
    /// Rows of `classes` elements, 1 at the index and 0 elsewhere, as `int64` along a new last dimension.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([2, 0])?.one_hot(3)?.to_vec::<i64>()?, [0, 0, 1, 1, 0, 0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] for an index that is no class.
    pub fn one_hot(&self, classes: usize) -> Result<Tensor<Int>> {
        let index = self.raw().unsqueeze(-1)?;
        let ones = filled(index.storage.device(), "one_hot", *index.shape(), DType::I64, Scalar::Int(1))?;
        let last = index.rank() - 1;
        let rows = scatter_added(&ones, last, &index, index.shape().with(last, classes));
        rows.map(Raw::typed).map_err(|error| error.of_index_in("one_hot"))
    }
}

impl<K: Numeric> Tensor<K> {
    /// The products of every element of a vector with every element of another: `out[i][j] = self[i] · other[j]`.
    ///
    /// # Errors
    /// [`Error::Argument`] for tensors that are not vectors.
    pub fn outer(&self, other: &Tensor<K>) -> Result<Tensor<K>> {
        check_vector("outer", self.shape())?;
        check_vector("outer", other.shape())?;
        self.raw().unsqueeze(1)?.mul(other.raw()).map(Raw::typed)
    }
}

impl Tensor {
    /// The products of the matrices of two batches: `[b, n, m]` and `[b, m, p]` give `[b, n, p]`. Like
    /// [`matmul`](Tensor::matmul), but without broadcasting.
    ///
    /// # Errors
    /// [`Error::Argument`] for other shapes.
    pub fn bmm(&self, other: &Tensor) -> Result<Tensor> {
        let is_batch = self.rank() == 3 && other.rank() == 3 && self.shape()[0] == other.shape()[0];
        if !is_batch {
            let expected = format!(
                "the other tensor has shape {}; give two batches of matrices, [b, n, m] and [b, m, p]",
                other.shape()
            );
            return Err(Error::wrong_shape("bmm", "one tensor", self.shape(), expected));
        }
        self.matmul(other)
    }

    /// `beta · self + alpha · (left · right)` for matrices; `self` broadcasts. PyTorch's defaults are 1 and 1.
    ///
    /// # Errors
    /// As [`matmul`](Tensor::matmul) and [`add`](Tensor::add).
    pub fn addmm(&self, left: &Tensor, right: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        self.added(left.matmul(right)?, beta, alpha)
    }

    /// [`addmm`](Tensor::addmm) for batches of matrices.
    ///
    /// # Errors
    /// As [`bmm`](Tensor::bmm) and [`add`](Tensor::add).
    pub fn baddbmm(&self, left: &Tensor, right: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        self.added(left.bmm(right)?, beta, alpha)
    }

    fn added(&self, product: Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        let this = &prepared(Precision::HalfUnderAutocast, self)?; // like the product's factors
        let product = if alpha == 1.0 { product } else { product.mul_scalar(alpha)? };
        match beta {
            0.0 => {
                // NaN in `self` is ignored, but not a shape or a device that does not fit.
                Shape::broadcast("add", product.shape(), this.shape())?;
                common_device("add", &[product.raw(), this.raw()])?;
                Ok(product)
            }
            1.0 => product.add(this),
            beta => product.add(&this.mul_scalar(beta)?),
        }
    }
}

fn check_vector(op: &'static str, shape: &Shape) -> Result<()> {
    match shape.rank() {
        1 => Ok(()),
        _ => Err(Error::wrong_shape(op, "a tensor", shape, "it must have one dimension; flatten it")),
    }
}

fn diag(x: &Raw, diagonal: isize) -> Result<Raw> {
    let (down, right) = (diagonal.min(0).unsigned_abs(), diagonal.max(0) as usize);
    match x.shape()[..] {
        [n] => {
            let side = n.saturating_add(diagonal.unsigned_abs());
            let shape = Shape::new(&[side, side])?;
            shape.check_size()?;
            placed(x, diagonal, [0, 1], shape)
        }
        [rows, columns] if down <= rows && right <= columns => x.diagonal(diagonal, 0, 1)?.deep_clone(),
        _ => {
            let expected = format!("it must be a vector, or a matrix that has diagonal {diagonal}");
            Err(Error::wrong_shape("diag", "the tensor", x.shape(), expected))
        }
    }
}
