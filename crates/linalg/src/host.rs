//! Decompositions of batches of matrices on the host, with `nalgebra`, in `f64` for every precision.
//!
//! So `nalgebra` is compiled for one type only, and results are rounded once. Matrices on a device are copied to the
//! host and results back, which waits for the device.

use nalgebra::{Cholesky, DMatrix, DVector, LU};

use pagelock_tensor::{CountedHeap, Error, Result, Tensor};

use crate::{MatrixSize, householder, jacobi};

pub(super) type Matrix = DMatrix<f64>;

/// Calls `compute` for every matrix of a batch; each result has the given numbers of rows and columns.
fn each(
    op: &'static str,
    x: &Tensor,
    [rows, columns]: [usize; 2],
    mut compute: impl FnMut(usize, Matrix) -> Result<Matrix>,
) -> Result<Tensor> {
    let &[ref batch @ .., n, m] = x.dims() else { unreachable!("{op}: x was checked to hold matrices") };
    // All elements, and five matrices of the largest kind that a decomposition makes: a matrix above an identity, or q
    // above r.
    let (long, short) = (n.max(m), n.min(m));
    let largest = long.saturating_add(short).saturating_mul(short).max(rows.saturating_mul(columns));
    let n_elements = largest.saturating_mul(5).saturating_add(x.len());
    let bytes = n_elements.saturating_mul(size_of::<f64>()).min(isize::MAX as usize);
    let _reserved = CountedHeap::granted(op, "the matrices to decompose", bytes)?;
    let numbers = x.detach().to_vec::<f64>()?;
    let mut result = Ok(());
    let shape = [batch, &[rows, columns]].concat();
    let out = Tensor::build(&shape[..], |out: &mut [f64]| {
        let size = (rows * columns).max(1);
        for (i, out) in out.chunks_exact_mut(size).enumerate() {
            match compute(i, Matrix::from_row_slice(n, m, &numbers[i * n * m..][..n * m])) {
                Ok(matrix) => out.copy_from_slice(matrix.transpose().as_slice()),
                Err(error) => {
                    result = Err(error);
                    return;
                }
            }
        }
    })?;
    result?;
    out.to_dtype(x.dtype())?.to(&x.device())
}

fn matrix_error<T>(op: &str, i: usize, problem: &str) -> Result<T> {
    Err(Error::Argument(format!("{op}: matrix {i} of the batch {problem}")))
}

const SINGULAR: &str = "is singular; use pinv, or add a small number to its diagonal";

fn check_finite(op: &str, i: usize, x: &Matrix) -> Result<()> {
    if x.iter().all(|number| number.is_finite()) {
        return Ok(());
    }
    matrix_error(op, i, "has elements that are infinite or NaN; look for where they come from")
}

fn square(x: &Tensor) -> [usize; 2] {
    let n = x.dims().last().copied().unwrap_or(0);
    [n, n]
}

pub(super) fn inverse(x: &Tensor) -> Result<Tensor> {
    let op = "linalg::inv";
    each(op, x, square(x), |i, x| {
        let (x, scale) = scaled(x);
        LU::new(x).try_inverse().map_or_else(|| matrix_error(op, i, SINGULAR), |found| Ok(found * scale))
    })
}

/// Solves a · x = b for x; a and b have the same batch dimensions.
pub(super) fn solve(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (op, [n, _], [_, columns]) = ("linalg::solve", square(a), square(b));
    // `each` takes one tensor, so put each b to the right of its a.
    let both = Tensor::cat(&[&a.detach(), &b.detach()], -1)?;
    each(op, &both, [n, columns], |i, both| {
        let (a, b) = (both.columns(0, n).into_owned(), both.columns(n, columns).into_owned());
        let (a, scale) = scaled(a);
        LU::new(a).solve(&b).map_or_else(|| matrix_error(op, i, SINGULAR), |found| Ok(found * scale))
    })
}

/// The sign and the logarithm of the magnitude of each determinant, side by side.
pub(super) fn sign_and_log_determinant(x: &Tensor) -> Result<Tensor> {
    let op = "linalg::slogdet";
    each(op, x, [1, 2], |_, x| {
        let (swaps, factors, scale) = determinant_factors(x);
        // The sign is 0 or NaN if one factor is.
        let sign = factors.iter().fold(swaps, |sign, factor| if *factor == 0.0 { 0.0 } else { sign * factor.signum() });
        let logarithm = factors.iter().map(|factor| factor.abs().ln() - scale.ln()).sum();
        Ok(Matrix::from_row_slice(1, 2, &[sign, logarithm]))
    })
}

/// The determinant of each matrix, from its LU decomposition.
pub(super) fn determinant(x: &Tensor) -> Result<Tensor> {
    let op = "linalg::det";
    each(op, x, [1, 1], |_, x| {
        let (swaps, factors, scale) = determinant_factors(x);
        let product = factors.iter().fold(swaps, |product, factor| product * (factor / scale));
        Ok(Matrix::from_element(1, 1, product))
    })
}

/// The sign of the row swaps, the diagonal of the upper factor, and what the latter is multiplied by.
fn determinant_factors(x: Matrix) -> (f64, DVector<f64>, f64) {
    let (x, scale) = scaled(x);
    let lu = LU::new(x);
    (lu.p().determinant(), lu.u().diagonal(), scale)
}

pub(super) fn cholesky(x: &Tensor) -> Result<Tensor> {
    let op = "linalg::cholesky";
    const PROBLEM: &str = "is not positive definite; make it symmetric, or add a small number to its diagonal";
    each(op, x, square(x), |i, x| Cholesky::new(x).map_or_else(|| matrix_error(op, i, PROBLEM), |found| Ok(found.l())))
}

/// q above r, or beside r for wide matrices.
pub(super) fn qr(x: &Tensor, MatrixSize { n, m, k }: MatrixSize) -> Result<Tensor> {
    let (op, is_tall) = ("linalg::qr", n >= m);
    each(op, x, if is_tall { [n + m, m] } else { [n, n + m] }, |_, x| {
        let mut out = if is_tall { Matrix::zeros(n + m, m) } else { Matrix::zeros(n, n + m) };
        let (x, scale) = scaled(x);
        let (q, r) = householder::qr(x);
        out.view_mut((0, 0), (n, k)).copy_from(&q);
        let at = if is_tall { (n, 0) } else { (0, n) };
        out.view_mut(at, (k, m)).copy_from(&r.unscale(scale));
        Ok(out)
    })
}

/// u, the singular values as a row, and v, one above the other.
pub(super) fn svd(x: &Tensor, MatrixSize { n, m, k }: MatrixSize) -> Result<Tensor> {
    let op = "linalg::svd";
    each(op, x, [n + 1 + m, k], |i, x| {
        check_finite(op, i, &x)?;
        let mut out = Matrix::zeros(n + 1 + m, k);
        if k == 0 {
            return Ok(out);
        }
        let Some((u, s, v)) = jacobi::svd(x) else {
            return matrix_error(op, i, &no_convergence("singular values"));
        };
        out.view_mut((0, 0), (n, k)).copy_from(&u);
        out.view_mut((n, 0), (1, k)).copy_from_slice(&s);
        out.view_mut((n + 1, 0), (m, k)).copy_from(&v);
        Ok(out)
    })
}

/// The eigenvalues as a row, in ascending order, above the eigenvectors.
pub(super) fn eigh(x: &Tensor, n: usize) -> Result<Tensor> {
    let op = "linalg::eigh";
    each(op, x, [1 + n, n], |i, mut x| {
        // What is above the diagonal is not read, so it can be NaN.
        x.fill_upper_triangle_with_lower_triangle();
        check_finite(op, i, &x)?;
        let Some((values, vectors)) = jacobi::eigh(x) else {
            return matrix_error(op, i, &no_convergence("eigenvalues"));
        };
        let mut out = Matrix::zeros(1 + n, n);
        out.view_mut((0, 0), (1, n)).copy_from_slice(&values);
        out.view_mut((1, 0), (n, n)).copy_from(&vectors);
        Ok(out)
    })
}

fn no_convergence(of: &str) -> String {
    format!(
        "has {of} that did not converge in {} sweeps of Jacobi rotations; scale its rows or columns",
        jacobi::SWEEPS
    )
}

/// Multiplies x by a power of 2 that brings its largest element near 1, so that its squares do not overflow. Returns the
/// product and the power.
pub(super) fn scaled(mut x: Matrix) -> (Matrix, f64) {
    // Larger powers would not have an inverse; these are enough for the largest and the smallest number.
    let exponent = x.amax().log2().clamp(-1000.0, 1000.0) as i32;
    let power = 2_f64.powi(-exponent);
    x *= power;
    (x, power)
}
