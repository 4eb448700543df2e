//! The QR decomposition by Householder reflections (Golub and Van Loan, *Matrix Computations*, 4th edition, section
//! 5.2).
//!
//! The QR decomposition of `nalgebra` squares elements without scaling them. Where a square underflows or overflows,
//! its q · r differs from x.

use nalgebra::{DVector, Dyn, Reflection, U1, Unit, VecStorage};

use crate::host::Matrix;

type Reflector = Reflection<f64, Dyn, VecStorage<f64, Dyn, U1>>;

/// Returns q and r with x = q · r. The columns of q are orthonormal. r is upper triangular, and its diagonal is not
/// negative. x has n rows and m columns, q has k columns, and r has k rows, where k is the smaller of n and m.
pub(super) fn qr(mut x: Matrix) -> (Matrix, Matrix) {
    let (n, m) = x.shape();
    let k = n.min(m);
    let reflections: Vec<_> = (0..k).map(|i| clear_below_diagonal(&mut x, i)).collect();
    let (mut q, mut r) = (Matrix::identity(n, k), x.rows(0, k).upper_triangle());
    for (i, reflection) in reflections.iter().enumerate().rev() {
        if let Some(reflection) = reflection {
            reflection.reflect(&mut q.view_mut((i, i), (n - i, k - i)));
        }
    }
    for i in 0..k {
        if r[(i, i)] < 0.0 {
            r.row_mut(i).neg_mut();
            q.column_mut(i).neg_mut();
        }
    }
    (q, r)
}

/// Applies the reflection that clears column i below the diagonal to the rows from i on, and returns it. `None` if the
/// column is 0 from the diagonal on. The elements below the diagonal keep their old values, which nothing reads.
fn clear_below_diagonal(x: &mut Matrix, i: usize) -> Option<Reflector> {
    let (n, m) = x.shape();
    let mut axis: DVector<f64> = x.column(i).rows(i, n - i).into_owned();
    let largest = axis.amax();
    if largest == 0.0 {
        return None;
    }
    axis.unscale_mut(largest);
    // The sign of the first element, so that nothing cancels.
    let norm = axis.norm().copysign(axis[0]);
    axis[0] += norm;
    x[(i, i)] = -norm * largest;
    let reflection = Reflection::new(Unit::new_normalize(axis), 0.0);
    reflection.reflect(&mut x.view_mut((i, i + 1), (n - i, m - i - 1)));
    Some(reflection)
}
