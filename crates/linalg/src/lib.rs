//! Linear algebra beyond products, like `torch.linalg`: solving, inverses, determinants, decompositions and norms of
//! matrices. Part of [Pagelock](https://github.com/pagelock/pagelock), as `pagelock::linalg` with the feature `linalg`.
//!
//! All functions take batches `[…, n, m]`, with any number of leading dimensions. They compute on the host in `f64`,
//! for `float32` and `float64`, and round once. Tensors on a device are copied to the host and results back, which
//! waits for the device. Half precision is refused: convert with `x.to_dtype(DType::F32)`.
//! [`autocast`](pagelock_tensor::autocast()) changes nothing. Derivatives are composed of tensor operations and of
//! these functions, so they have derivatives themselves.
//!
//! ```
//! # use pagelock_linalg as linalg;
//! # use pagelock_tensor::Tensor;
//! let a = Tensor::new([[2.0, 0.0], [1.0, 1.0]])?;
//! assert_eq!(linalg::solve(&a, &Tensor::new([2.0, 3.0])?)?.to_vec::<f32>()?, [1.0, 2.0]);
//! assert_eq!(linalg::det(&a)?.item::<f32>()?, 2.0);
//! # Ok::<(), pagelock_tensor::Error>(())
//! ```

// # Reading order
// `lib.rs`: functions with one result; `decompositions.rs`: functions with several; `host.rs`: the computation, with
// `householder.rs` for QR and `jacobi.rs` for singular values and eigenvalues.

#![forbid(unsafe_code)]

mod decompositions;
mod host;
mod householder;
mod jacobi;

/// The crate of the tensors that these functions take.
#[doc(no_inline)]
pub use pagelock_tensor;

pub use decompositions::{eigh, eigvalsh, matrix_norm, pinv, qr, svd, svdvals};

use pagelock_tensor::autograd::{Context, Function};
use pagelock_tensor::{DType, Error, Result, Tensor, no_autocast};

/// The numbers of rows and columns of a matrix, and the smaller of the two.
#[derive(Clone, Copy)]
struct MatrixSize {
    n: usize,
    m: usize,
    k: usize,
}

/// The norm that [`matrix_norm`] computes, with PyTorch's `ord`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatrixNorm {
    /// The root of the sum of squares: `'fro'`.
    Frobenius,
    /// The sum of the singular values: `'nuc'`.
    Nuclear,
    /// The largest singular value: `2`.
    Spectral,
    /// The largest sum of magnitudes in a column: `1`.
    Columns,
    /// The largest sum of magnitudes in a row: `inf`.
    Rows,
}

fn check(op: &str, x: &Tensor) -> Result<MatrixSize> {
    let dtype = x.dtype();
    if matches!(dtype, DType::F16 | DType::BF16) {
        return Err(Error::Argument(format!("{op}: {dtype} is not supported; convert it: x.to_dtype(DType::F32)")));
    }
    match x.dims() {
        &[.., n, m] => Ok(MatrixSize { n, m, k: n.min(m) }),
        _ => Err(Error::Argument(format!("{op}: {} is not a matrix; unsqueeze it to two dimensions", x.shape()))),
    }
}

fn check_square(op: &str, x: &Tensor) -> Result<usize> {
    match check(op, x)? {
        MatrixSize { n, m, .. } if n == m => Ok(n),
        _ => Err(Error::Argument(format!("{op}: {} is not square; give square matrices", x.shape()))),
    }
}

/// The transpose of each matrix, as PyTorch's `x.mT`.
fn mt(x: &Tensor) -> Result<Tensor> {
    x.transpose(-2, -1)
}

/// Solves `a` · x = `b` for x: `[…, n, n]` and `[…, n, k]` give `[…, n, k]`. `b` can also be a vector, or a batch of
/// vectors with the batch dimensions of `a`; x then has vectors too. Batches broadcast.
///
/// # Errors
/// [`Error::Argument`] for shapes that do not match, half precision, different precisions, or a singular matrix; for
/// tensors on a device also as [`Tensor::to`].
pub fn solve(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let n = check_square("linalg::solve", a)?;
    let is_vector = b.rank() == 1 || b.dims() == &a.dims()[..a.rank() - 1];
    let b = if is_vector { b.unsqueeze(-1)? } else { b.clone() };
    let &[.., rows, columns] = b.dims() else {
        return Err(Error::Argument("linalg::solve: b is a scalar; give a vector or matrices".to_owned()));
    };
    if rows != n || a.dtype() != b.dtype() {
        let [of_a, of_b] = [a, &b].map(|x| format!("{} {}", x.dtype(), x.shape()));
        let problem =
            format!("linalg::solve: a is {of_a} and b is {of_b}; give both one precision and the same number of rows");
        return Err(Error::Argument(problem));
    }
    let batch = common_batch(&a.dims()[..a.rank() - 2], &b.dims()[..b.rank() - 2])?;
    let (a, b) = (a.expand(&[&batch[..], &[n, n]].concat()[..])?, b.expand(&[&batch[..], &[n, columns]].concat()[..])?);
    let x = Solve.apply(&[&a, &b])?;
    if is_vector { x.squeeze(-1) } else { Ok(x) }
}

/// The broadcast batch dimensions: sizes are aligned at the end, and are equal or 1.
fn common_batch(left: &[usize], right: &[usize]) -> Result<Vec<usize>> {
    let rank = left.len().max(right.len());
    let at = |sizes: &[usize], dim: usize| (dim + sizes.len()).checked_sub(rank).map_or(1, |dim| sizes[dim]);
    let common = |dim: usize| match (at(left, dim), at(right, dim)) {
        (a, b) if a == b || b == 1 => Ok(a),
        (1, b) => Ok(b),
        _ => {
            let problem = format!("linalg::solve: batches {left:?} and {right:?} do not broadcast; expand one of them");
            Err(Error::Argument(problem))
        }
    };
    (0..rank).map(common).collect()
}

struct Solve;

impl Function for Solve {
    fn name(&self) -> &'static str {
        "linalg::solve"
    }

    fn forward(&self, context: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
        let out = host::solve(inputs[0], inputs[1])?;
        context.save(inputs[0]);
        context.save(&out);
        Ok(out)
    }

    /// With the result x: the gradient of b is gb = a⁻ᵀ · g, and that of a is −gb · xᵀ.
    fn backward(&self, context: &Context, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        no_autocast(|| {
            let grad_b = Solve.apply(&[&mt(&context.saved(0)?)?, grad])?;
            let grad_a = grad_b.neg()?.matmul(&mt(&context.saved(1)?)?)?;
            Ok(vec![Some(grad_a), Some(grad_b)])
        })
    }
}

/// The inverse of each matrix.
///
/// # Errors
/// [`Error::Argument`] for matrices that are not square, are singular, or have half precision; for tensors on a device
/// also as [`Tensor::to`].
pub fn inv(x: &Tensor) -> Result<Tensor> {
    let op = "linalg::inv";
    check_square(op, x)?;
    Unary { op, forward: host::inverse, saves: Saves::Result, gradient: inv_gradient }.apply(&[x])
}

fn inv_gradient(inverse: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let transposed = mt(inverse)?;
    transposed.matmul(grad)?.matmul(&transposed)?.neg()
}

/// The determinant of each matrix: `[…, n, n]` gives `[…]`. If it is 0, there is no gradient: the backward pass fails.
///
/// # Errors
/// [`Error::Argument`] for matrices that are not square or have half precision; for tensors on a device also as
/// [`Tensor::to`].
pub fn det(x: &Tensor) -> Result<Tensor> {
    let op = "linalg::det";
    check_square(op, x)?;
    let forward = |x: &Tensor| host::determinant(x)?.squeeze(-1)?.squeeze(-1);
    Unary { op, forward, saves: Saves::Input, gradient: det_gradient }.apply(&[x])
}

/// g · det · x⁻ᵀ
fn det_gradient(x: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let scale = grad.mul(&det(x)?)?.unsqueeze(-1)?.unsqueeze(-1)?;
    mt(&inv(x)?)?.mul(&scale)
}

/// Returns the sign of each determinant and the logarithm of its magnitude, which is finite even if the determinant
/// overflows. For singular matrices they are 0 and −∞. The sign has no gradient.
///
/// # Errors
/// As [`det`].
pub fn slogdet(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let op = "linalg::slogdet";
    check_square(op, x)?;
    // The sign and the logarithm, packed as matrices of one row.
    let forward = host::sign_and_log_determinant;
    let out = Unary { op, forward, saves: Saves::Input, gradient: slogdet_gradient }.apply(&[x])?;
    Ok((out.detach().select(-1, 0)?.squeeze(-1)?, out.select(-1, 1)?.squeeze(-1)?))
}

/// g · x⁻ᵀ, with the gradient g of the logarithm
fn slogdet_gradient(x: &Tensor, grad: &Tensor) -> Result<Tensor> {
    mt(&inv(x)?)?.mul(&grad.narrow(-1, 1, 1)?)
}

/// Returns the lower triangular l with x = l · lᵀ, for symmetric positive definite matrices. Only the lower triangle is
/// read; the gradient is symmetric.
///
/// # Errors
/// [`Error::Argument`] for matrices that are not square, are not positive definite, or have half precision; for tensors
/// on a device also as [`Tensor::to`].
pub fn cholesky(x: &Tensor) -> Result<Tensor> {
    let op = "linalg::cholesky";
    check_square(op, x)?;
    Unary { op, forward: host::cholesky, saves: Saves::Result, gradient: cholesky_gradient }.apply(&[x])
}

/// The symmetric part of l⁻ᵀ · Φ(lᵀ · g) · l⁻¹, where Φ takes the lower triangle and halves the diagonal
/// (Murray, *Differentiation of the Cholesky decomposition*, 2016, <https://arxiv.org/abs/1602.07527>).
fn cholesky_gradient(l: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let product = mt(l)?.matmul(grad)?;
    let half = product.tril(0)?.add(&product.tril(-1)?)?.mul_scalar(0.5)?;
    let inverse = inv(l)?;
    let whole = mt(&inverse)?.matmul(&half)?.matmul(&inverse)?;
    whole.add(&mt(&whole)?)?.mul_scalar(0.5)
}

/// An operation on one tensor.
struct Unary<F, G> {
    op: &'static str,
    forward: F,
    saves: Saves,
    /// Computes the gradient of the input from the saved tensor and the gradient of the result. It consists of operations
    /// that have derivatives themselves.
    gradient: G,
}

/// The tensor that a [`Unary`] keeps for its gradient.
enum Saves {
    Input,
    Result,
}

impl<F, G> Function for Unary<F, G>
where
    F: Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    G: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
{
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, context: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
        let out = (self.forward)(inputs[0])?;
        context.save(match self.saves {
            Saves::Input => inputs[0],
            Saves::Result => &out,
        });
        Ok(out)
    }

    fn backward(&self, context: &Context, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let saved = context.saved(0)?;
        no_autocast(|| Ok(vec![Some((self.gradient)(&saved, grad)?)]))
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
