//! Decompositions of matrices that are hard: elements that are tiny, huge, or of very different sizes.

use pagelock_linalg as linalg;
use pagelock_tensor::{DType, Result, Tensor};

/// Checks that the largest difference is at most `bound`.
#[track_caller]
fn assert_near(what: &str, found: &Tensor, expected: &Tensor, bound: f64) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let [found, expected] = [found, expected].map(|x| x.to_vec::<f64>().unwrap());
    let is_near = std::iter::zip(&found, &expected).all(|(a, b)| (a - b).abs() <= bound);
    assert!(is_near, "{what}: {found:?} instead of {expected:?}");
}

fn matrix(n: usize, m: usize, numbers: impl IntoIterator<Item = f64>) -> Tensor {
    Tensor::from_vec(numbers.into_iter().take(n * m).collect(), [n, m]).unwrap()
}

fn largest(x: &Tensor) -> f64 {
    x.to_vec::<f64>().unwrap().iter().fold(0.0, |largest, number| number.abs().max(largest))
}

#[track_caller]
fn assert_orthonormal(what: &str, columns: &Tensor) -> Result<()> {
    let k = columns.dims()[1];
    assert_near(what, &columns.t()?.matmul(columns)?, &Tensor::of(DType::F64).eye(k)?, 1e-13);
    Ok(())
}

#[track_caller]
fn check_qr(x: &Tensor) -> Result<()> {
    let (q, r) = linalg::qr(x)?;
    assert_orthonormal("q", &q)?;
    assert_near("q · r", &q.matmul(&r)?, x, 1e-13 * largest(x));
    assert!(r.diagonal(0, 0, 1)?.to_vec::<f64>()?.iter().all(|number| *number >= 0.0));
    Ok(())
}

#[test]
fn q_times_r_is_x_for_tiny_and_huge_elements() -> Result<()> {
    let numbers =
        [[-1e-170, 1.0, 0.0, 2.0], [1e200, 1e200, 0.0, 1e200], [-5e-324, 1e-310, 5e-324, 0.0], [1.0, 1.0, 1.0, 1.0]];
    numbers.into_iter().try_for_each(|numbers| check_qr(&matrix(2, 2, numbers)))
}

#[test]
fn inverses_and_determinants_of_the_smallest_and_the_largest_numbers_are_right() -> Result<()> {
    let x = matrix(2, 2, [1e-310, 0.0, 1e-310, 1e-310]);
    assert_eq!(linalg::solve(&x, &Tensor::of(DType::F64).new([1e-310, 3e-310])?)?.to_vec::<f64>()?, [1.0, 2.0]);
    assert_eq!(linalg::det(&x)?.item::<f64>()?, 0.0);
    let (sign, logarithm) = linalg::slogdet(&x)?;
    assert_eq!(sign.item::<f64>()?, 1.0);
    assert!((logarithm.item::<f64>()? - 2.0 * 1e-310_f64.ln()).abs() < 1e-12);
    let x = matrix(2, 2, [1e308, 1e308, -1e308, 1e308]);
    assert_near(
        "inverse",
        &linalg::inv(&x)?.mul_scalar(1e308)?.mul_scalar(2.0)?,
        &matrix(2, 2, [1.0, -1.0, 1.0, 1.0]),
        1e-12,
    );
    assert!((linalg::slogdet(&x)?.1.item::<f64>()? - 2.0 * 1e308_f64.ln() - 2_f64.ln()).abs() < 1e-12);
    Ok(())
}
