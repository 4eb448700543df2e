//! Singular values and eigenvalues of symmetric matrices, by Jacobi rotations.
//!
//! `nalgebra`'s own SVD is wrong for many matrices whose rank is not full, and its eigenvectors are not orthonormal if
//! the elements differ by many orders of magnitude. Jacobi rotations need no such assumption: they end when a check
//! of the result passes. They are slow alone, so they start from `nalgebra`'s eigenvectors, and seldom change much.
//!
//! Sources: Hestenes, *Inversion of matrices by biorthogonalization and related results*, 1958, and Drmač and Veselić,
//! *New fast and accurate Jacobi SVD algorithm*, 2008, for singular values; Golub and Van Loan, *Matrix Computations*,
//! 4th edition, section 8.5, for eigenvalues.

use nalgebra::SymmetricEigen;

use crate::host::{Matrix, scaled};
use crate::householder;

/// The most passes over all pairs of columns. Matrices of random elements need at most 15, even without a start.
pub(super) const SWEEPS: usize = 60;

/// A norm that counts as 0 in a matrix whose largest element is near 1: its square times the rounding error is still a
/// normal number.
const TINY: f64 = 1e-140;

/// Returns u, the singular values in descending order, and v of a finite x = u · diag(s) · vᵀ with at least one element,
/// or `None` if the rotations do not end. u and v have orthonormal columns, also for singular values that are 0.
pub(super) fn svd(x: Matrix) -> Option<(Matrix, Vec<f64>, Matrix)> {
    if x.nrows() < x.ncols() {
        let (v, s, u) = svd(x.transpose())?;
        return Some((u, s, v));
    }
    let ([n, m], (x, scale)) = ([x.nrows(), x.ncols()], scaled(x));
    let start = nearly_orthogonal_columns(above(&x, &Matrix::identity(m, m)), n);
    let (columns, v) = orthogonal_columns(start, n)?;
    let norms: Vec<f64> = columns.column_iter().map(|column| column.norm()).collect();
    let mut order: Vec<usize> = (0..m).collect();
    order.sort_by(|&a, &b| norms[b].total_cmp(&norms[a]));
    let mut u = columns.select_columns(&order);
    for (mut column, &from) in u.column_iter_mut().zip(&order) {
        if norms[from] > 0.0 {
            column.unscale_mut(norms[from]);
        }
    }
    if norms.contains(&0.0) {
        // Orthonormal columns stay as they are, and the zeros after them become orthonormal too.
        u = householder::qr(u).0;
    }
    Some((u, order.iter().map(|&from| norms[from] / scale).collect(), v.select_columns(&order)))
}

/// Multiplies by an orthogonal matrix that makes the n upper rows x have nearly orthogonal columns: the eigenvectors of
/// xᵀ · x. Columns below about 10⁻⁸ of the largest are lost in the rounding of that product, so they are made orthogonal
/// to the others and get the same again. Without this, a 200 × 200 matrix of rank 20 takes 8 times as long.
fn nearly_orthogonal_columns(both: Matrix, n: usize) -> Matrix {
    let x = both.rows(0, n);
    let mut both = &both * approximate_eigenvectors(x.tr_mul(&x));
    let norms: Vec<f64> = both.rows(0, n).column_iter().map(|column| column.norm()).collect();
    let bound = 1e-7 * norms.iter().copied().fold(0.0, f64::max);
    let (small, large): (Vec<usize>, Vec<usize>) = (0..norms.len()).partition(|&i| norms[i] < bound);
    if !small.is_empty() {
        for pair in large.iter().flat_map(|&p| small.iter().map(move |&q| (p.min(q), p.max(q)))) {
            rotate_unless_orthogonal(&mut both, pair, n);
        }
        let turned = nearly_orthogonal_columns(both.select_columns(&small), n);
        small.iter().zip(turned.column_iter()).for_each(|(&to, column)| both.set_column(to, &column));
    }
    both
}

/// Rotates pairs of columns until the n upper rows have columns that are orthogonal, or 0. Returns the upper rows and
/// the lower ones.
fn orthogonal_columns(mut both: Matrix, n: usize) -> Option<(Matrix, Matrix)> {
    let m = both.ncols();
    for _ in 0..SWEEPS {
        for mut column in both.rows_mut(0, n).column_iter_mut() {
            if column.norm() < TINY {
                column.fill(0.0);
            }
        }
        // Counting goes through all pairs, also after the first rotation.
        if pairs(m).filter(|&pair| rotate_unless_orthogonal(&mut both, pair, n)).count() == 0 {
            return Some((both.rows(0, n).into_owned(), both.rows(n, m).into_owned()));
        }
    }
    None
}

/// Makes the n upper rows of two columns orthogonal; returns false if they were already.
fn rotate_unless_orthogonal(both: &mut Matrix, (p, q): (usize, usize), n: usize) -> bool {
    let [a, b] = [p, q].map(|i| both.column(i));
    let (a, b) = (a.rows(0, n), b.rows(0, n));
    let (aa, bb, ab) = (a.norm_squared(), b.norm_squared(), a.dot(&b));
    let is_rotated = ab.abs() > f64::EPSILON * (n as f64).sqrt() * aa.sqrt() * bb.sqrt();
    if is_rotated {
        rotate_columns(both, [p, q], rotation(aa, bb, ab));
    }
    is_rotated
}

/// Returns the eigenvalues of a finite symmetric matrix in ascending order, and its eigenvectors as columns, or `None`
/// if the rotations do not end.
pub(super) fn eigh(x: Matrix) -> Option<(Vec<f64>, Matrix)> {
    let (n, (x, scale)) = (x.nrows(), scaled(x));
    let bound = f64::EPSILON * n as f64 * x.amax();
    let start = approximate_eigenvectors(x.clone());
    let mut both = above(&start.tr_mul(&(x * &start)), &start);
    for _ in 0..SWEEPS {
        let mut is_done = true;
        for (p, q) in pairs(n) {
            if both[(p, q)].abs() > bound {
                is_done = false;
                let turn = rotation(both[(p, p)], both[(q, q)], both[(p, q)]);
                rotate_columns(&mut both, [p, q], turn);
                for i in 0..n {
                    (both[(p, i)], both[(q, i)]) = rotated(both[(p, i)], both[(q, i)], turn);
                }
            }
        }
        if is_done {
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|&a, &b| both[(a, a)].total_cmp(&both[(b, b)]));
            let values = order.iter().map(|&i| both[(i, i)] / scale).collect();
            return Some((values, both.rows(n, n).select_columns(&order)));
        }
    }
    None
}

/// Orthonormal columns that are nearly the eigenvectors of a symmetric matrix; the identity if `nalgebra` fails.
fn approximate_eigenvectors(x: Matrix) -> Matrix {
    let identity = Matrix::identity(x.nrows(), x.nrows());
    let (bound, rounds) = (1e-14 * x.nrows() as f64, 100 * x.nrows());
    let found = SymmetricEigen::try_new(x, f64::EPSILON, rounds).map(|found| found.eigenvectors);
    found.filter(|v| (v.tr_mul(v) - &identity).iter().all(|error| error.abs() < bound)).unwrap_or(identity)
}

fn above(upper: &Matrix, lower: &Matrix) -> Matrix {
    let mut both = Matrix::zeros(upper.nrows() + lower.nrows(), upper.ncols());
    both.rows_mut(0, upper.nrows()).copy_from(upper);
    both.rows_mut(upper.nrows(), lower.nrows()).copy_from(lower);
    both
}

fn pairs(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (1..n).flat_map(|q| (0..q).map(move |p| (p, q)))
}

/// The cosine and the sine of the smaller angle that makes the symmetric matrix [[aa, ab], [ab, bb]] diagonal; ab ≠ 0.
fn rotation(aa: f64, bb: f64, ab: f64) -> [f64; 2] {
    let cotangent_of_twice = (bb - aa) / (2.0 * ab);
    let tangent = cotangent_of_twice.signum() / (cotangent_of_twice.abs() + cotangent_of_twice.hypot(1.0));
    let cosine = 1.0 / tangent.hypot(1.0);
    [cosine, cosine * tangent]
}

fn rotated(a: f64, b: f64, [cosine, sine]: [f64; 2]) -> (f64, f64) {
    (cosine * a - sine * b, sine * a + cosine * b)
}

fn rotate_columns(x: &mut Matrix, [p, q]: [usize; 2], turn: [f64; 2]) {
    let (mut left, mut right) = x.columns_range_pair_mut(p, q);
    for (a, b) in left.iter_mut().zip(right.iter_mut()) {
        (*a, *b) = rotated(*a, *b, turn);
    }
}
