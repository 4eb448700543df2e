//! Decompositions with several results. Each is one operation, whose output is one tensor that contains all results.
//! The results are views of this tensor, so one derivative gets the gradients of all of them.

use pagelock_tensor::autograd::Function;
use pagelock_tensor::{Error, Result, Tensor, no_autocast};

use crate::{MatrixNorm, MatrixSize, Saves, Unary, check, check_square, host, mt};

/// Returns q and r with x = q · r. The columns of q are orthonormal. r is upper triangular, and its diagonal is not
/// negative (PyTorch's results may differ in signs). `[…, n, m]` gives `[…, n, k]` and `[…, k, m]`, where k is the
/// smaller of n and m. There is a gradient only for n ≥ m.
///
/// # Errors
/// [`Error::Argument`] for fewer than two dimensions or half precision; for tensors on a device also as [`Tensor::to`].
pub fn qr(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let op = "linalg::qr";
    let sizes = check(op, x)?;
    let forward = move |x: &Tensor| host::qr(x, sizes);
    let gradient = move |out: &Tensor, grad: &Tensor| qr_gradient(sizes, out, grad);
    let out = Unary { op, forward, saves: Saves::Result, gradient }.apply(&[x])?;
    let dim = if sizes.n >= sizes.m { -2 } else { -1 };
    let [q, r] = into_two(out.split_sizes(&[sizes.n, sizes.m], dim)?);
    Ok((q, r))
}

fn into_two(parts: Vec<Tensor>) -> [Tensor; 2] {
    parts.try_into().unwrap_or_else(|_| unreachable!("two sizes make two parts"))
}

/// (gq + q · sym(triu(gr · rᵀ − qᵀ · gq))) · r⁻ᵀ, where sym adds the transpose and halves the diagonal. PyTorch uses
/// the same formula; see Walter and Lehmann, *Algorithmic differentiation of linear algebra functions*, 2010.
fn qr_gradient(MatrixSize { n, m, .. }: MatrixSize, out: &Tensor, grad: &Tensor) -> Result<Tensor> {
    if n < m {
        let problem = format!("linalg::qr: there is no gradient for {n} rows and {m} columns; transpose, or use svd");
        return Err(Error::Argument(problem));
    }
    let [q, r] = into_two(out.split_sizes(&[n, m], -2)?);
    let [grad_q, grad_r] = into_two(grad.split_sizes(&[n, m], -2)?);
    let upper = grad_r.matmul(&mt(&r)?)?.sub(&mt(&q)?.matmul(&grad_q)?)?;
    let whole = upper.triu(0)?.add(&mt(&upper.triu(1)?)?)?;
    let left = grad_q.add(&q.matmul(&whole)?)?;
    // y · r⁻ᵀ is the transpose of r⁻¹ · yᵀ.
    mt(&crate::solve(&r, &mt(&left)?)?)
}

/// Returns u, s and vᵀ with x = u · diag(s) · vᵀ. s has the singular values, the largest first; the columns of u and v
/// are orthonormal. `[…, n, m]` gives `[…, n, k]`, `[…, k]` and `[…, k, m]`, where k is the smaller of n and m, as
/// with PyTorch's `full_matrices=False`. The sign of each pair of singular vectors is not determined. Gradients of u
/// and v are finite only if the singular values differ and are not 0.
///
/// # Errors
/// [`Error::Argument`] for fewer than two dimensions, half precision, or elements that are not finite; for tensors on a
/// device also as [`Tensor::to`].
pub fn svd(x: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    let op = "linalg::svd";
    let sizes = check(op, x)?;
    let forward = move |x: &Tensor| host::svd(x, sizes);
    let gradient = move |out: &Tensor, grad: &Tensor| svd_gradient(sizes, out, grad);
    let out = Unary { op, forward, saves: Saves::Result, gradient }.apply(&[x])?;
    let [u, s, v] = sizes.split_svd(&out)?;
    Ok((u, s.squeeze(-2)?, mt(&v)?))
}

impl MatrixSize {
    /// u, s as a row, and v.
    fn split_svd(&self, packed: &Tensor) -> Result<[Tensor; 3]> {
        let all = packed.split_sizes(&[self.n, 1, self.m], -2)?;
        Ok(all.try_into().unwrap_or_else(|_| unreachable!("three sizes make three parts")))
    }
}

/// PyTorch's formula: u · ((skew(uᵀ·gu) / e) · s + s · (skew(vᵀ·gv) / e) + diag(gs)) · vᵀ with e_ij = s_j² − s_i², plus
/// the parts of gu and gv that are orthogonal to u and v.
fn svd_gradient(sizes: MatrixSize, out: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let ([u, s, v], [grad_u, grad_s, grad_v]) = (sizes.split_svd(out)?, sizes.split_svd(grad)?);
    let (column, gaps) = (mt(&s)?, differences(&s.square()?)?);
    let skew = |x: &Tensor| quotient(&x.sub(&mt(x)?)?, &gaps);
    let (in_u, in_v) = (mt(&u)?.matmul(&grad_u)?, mt(&v)?.matmul(&grad_v)?);
    let diagonal = grad_s.squeeze(-2)?.diag_embed(0, -2, -1)?;
    let inner = skew(&in_u)?.mul(&s)?.add(&skew(&in_v)?.mul(&column)?)?.add(&diagonal)?;
    let mut total = u.matmul(&inner)?.matmul(&mt(&v)?)?;
    if sizes.n > sizes.k {
        total = total.add(&quotient(&grad_u.sub(&u.matmul(&in_u)?)?, &s)?.matmul(&mt(&v)?)?)?;
    }
    if sizes.m > sizes.k {
        total = total.add(&u.matmul(&mt(&quotient(&grad_v.sub(&v.matmul(&in_v)?)?, &s)?)?)?)?;
    }
    Ok(total)
}

/// x / y, and 0 where x is 0: gradients of singular values alone are finite even if some of these are equal or 0.
fn quotient(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let y = y.expand(x.shape())?.masked_fill(&x.eq_scalar(0.0)?, 1.0)?;
    x.div(&y)
}

/// For rows `[…, 1, k]`: e_ij = row_j − row_i, and 1 on the diagonal.
fn differences(row: &Tensor) -> Result<Tensor> {
    let ones = row.ones_like()?.squeeze(-2)?.diag_embed(0, -2, -1)?;
    row.sub(&mt(row)?)?.add(&ones)
}

/// The singular values, the largest first; see [`svd`].
///
/// # Errors
/// As [`svd`].
pub fn svdvals(x: &Tensor) -> Result<Tensor> {
    svd(x).map(|(_, s, _)| s)
}

/// The eigenvalues of symmetric matrices, the smallest first, and the eigenvectors as columns. Only the lower triangle
/// is read. The signs of eigenvectors are not determined. Gradients of eigenvectors are finite only if the eigenvalues
/// differ.
///
/// # Errors
/// [`Error::Argument`] for matrices that are not square, half precision, or elements that are not finite; for tensors
/// on a device also as [`Tensor::to`].
pub fn eigh(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let op = "linalg::eigh";
    let n = check_square(op, x)?;
    let forward = move |x: &Tensor| host::eigh(x, n);
    let gradient = move |out: &Tensor, grad: &Tensor| eigh_gradient(n, out, grad);
    let out = Unary { op, forward, saves: Saves::Result, gradient }.apply(&[x])?;
    let [values, vectors] = into_two(out.split_sizes(&[1, n], -2)?);
    Ok((values.squeeze(-2)?, vectors))
}

/// v · ((vᵀ · gv) / e + diag(gλ)) · vᵀ with e_ij = λ_j − λ_i, as in PyTorch.
fn eigh_gradient(n: usize, out: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let [values, vectors] = into_two(out.split_sizes(&[1, n], -2)?);
    let [grad_values, grad_vectors] = into_two(grad.split_sizes(&[1, n], -2)?);
    let off_diagonal = quotient(&mt(&vectors)?.matmul(&grad_vectors)?, &differences(&values)?)?;
    let off_diagonal = off_diagonal.triu(1)?.add(&off_diagonal.tril(-1)?)?;
    let diagonal = grad_values.squeeze(-2)?.diag_embed(0, -2, -1)?;
    vectors.matmul(&off_diagonal.add(&diagonal)?)?.matmul(&mt(&vectors)?)
}

/// The eigenvalues of symmetric matrices, the smallest first; see [`eigh`].
///
/// # Errors
/// As [`eigh`].
pub fn eigvalsh(x: &Tensor) -> Result<Tensor> {
    eigh(x).map(|(values, _)| values)
}

/// The pseudo-inverse: `[…, n, m]` gives `[…, m, n]`. Singular values of at most `rtol` times the largest one count as
/// 0. PyTorch's default `rtol` is max(n, m) times the machine epsilon.
///
/// # Errors
/// As [`svd`].
pub fn pinv(x: &Tensor, rtol: f64) -> Result<Tensor> {
    let MatrixSize { k, .. } = check("linalg::pinv", x)?;
    no_autocast(|| {
        if k == 0 {
            return mt(x);
        }
        let (u, s, v_t) = svd(x)?;
        let cutoff = s.detach().narrow(-1, 0, 1)?.mul_scalar(rtol)?;
        let is_zero = s.detach().le(&cutoff)?;
        let inverse = s.masked_fill(&is_zero, 1.0)?.reciprocal()?.masked_fill(&is_zero, 0.0)?;
        mt(&v_t)?.mul(&inverse.unsqueeze(-2)?)?.matmul(&mt(&u)?)
    })
}

/// A norm of each matrix: `[…, n, m]` gives `[…]`.
///
/// # Errors
/// As [`svd`]; [`Error::Argument`] for the maximum of no elements.
pub fn matrix_norm(x: &Tensor, norm: MatrixNorm) -> Result<Tensor> {
    check("linalg::matrix_norm", x)?;
    no_autocast(|| match norm {
        MatrixNorm::Frobenius => x.norm(2.0, [-2, -1]),
        MatrixNorm::Nuclear => svdvals(x)?.sum(-1),
        MatrixNorm::Spectral => svdvals(x)?.max(-1),
        MatrixNorm::Columns => x.abs()?.sum(-2)?.max(-1),
        MatrixNorm::Rows => x.abs()?.sum(-1)?.max(-1),
    })
}
