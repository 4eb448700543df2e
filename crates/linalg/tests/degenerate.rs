//! Decompositions of matrices that are hard: rank not full, known singular values, elements that are tiny, huge, or of
//! very different sizes.

use pagelock_linalg::{self as linalg, MatrixNorm};
use pagelock_tensor::{DType, Result, Tensor};
use proptest::prelude::*;

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

/// Checks the three factors and returns the singular values.
#[track_caller]
fn checked_svd(x: &Tensor) -> Result<Vec<f64>> {
    let (u, s, v_t) = linalg::svd(x)?;
    assert_orthonormal("u", &u)?;
    assert_orthonormal("v", &v_t.t()?)?;
    // Products of factors near 1 do not overflow.
    let scale = 1.0 / largest(x).clamp(1e-300, 1e300);
    let product = u.mul(&s.mul_scalar(scale)?)?.matmul(&v_t)?;
    let x = x.mul_scalar(scale)?;
    assert_near("u · s · vᵀ", &product, &x, 1e-13 * largest(&x));
    let s = s.to_vec::<f64>()?;
    assert!(s.is_sorted_by(|a, b| a >= b) && s.iter().all(|s| *s >= 0.0), "{s:?}");
    Ok(s)
}

#[track_caller]
fn check_eigh(x: &Tensor) -> Result<()> {
    let (values, vectors) = linalg::eigh(x)?;
    assert_orthonormal("v", &vectors)?;
    assert_near("v · λ · vᵀ", &vectors.mul(&values)?.matmul(&vectors.t()?)?, x, 1e-13 * largest(x));
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

/// A square orthogonal matrix: the product of reflections (1 − 2 · a · aᵀ / aᵀ · a).
fn orthogonal(n: usize, numbers: &[f64]) -> Result<Tensor> {
    let mut product = Tensor::of(DType::F64).eye(n)?;
    for axis in numbers.chunks_exact(n).take(n) {
        let axis = matrix(n, 1, axis.iter().map(|number| number + 1.5));
        let square = axis.square()?.sum(..)?.item::<f64>()?;
        let reflected = axis.matmul(&axis.t()?.matmul(&product)?)?;
        product = product.sub(&reflected.mul_scalar(2.0 / square)?)?;
    }
    Ok(product)
}

#[test]
fn singular_values_of_a_matrix_of_rank_two_are_right() -> Result<()> {
    let rows = [-1., -2., -1., 6., 1., 2., -6., -3., -6., 0., 6., -6., 3., 3., 3., -6., -3., 0.];
    let x = matrix(3, 6, rows);
    // By torch.linalg.svdvals.
    let expected = [14.00564618184, 8.708724075846, 0.0];
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-11, "{found} instead of {expected}");
    let s = checked_svd(&x)?;
    std::iter::zip(s, expected).for_each(|(found, expected)| near(found, expected));
    near(linalg::matrix_norm(&x, MatrixNorm::Nuclear)?.item::<f64>()?, expected.iter().sum());
    let inverse = linalg::pinv(&x, 1e-10)?;
    assert_near("x · x⁺ · x", &x.matmul(&inverse)?.matmul(&x)?, &x, 1e-12);
    Ok(())
}

#[test]
fn singular_vectors_of_zeros_are_orthonormal() -> Result<()> {
    for [n, m] in [[1, 1], [3, 3], [5, 2], [2, 5], [1, 4]] {
        assert_eq!(checked_svd(&Tensor::of(DType::F64).zeros([n, m])?)?, vec![0.0; n.min(m)]);
    }
    let one_row = matrix(3, 3, [0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 0.0, 0.0, 0.0]);
    assert_eq!(checked_svd(&one_row)?, [3.0, 0.0, 0.0]);
    Ok(())
}

#[test]
fn singular_values_of_the_smallest_and_the_largest_numbers_are_right() -> Result<()> {
    for size in [5e-324, 1e-310, 1e-200, 1e200, 8e307] {
        let s = checked_svd(&matrix(2, 2, [size, size, size, size]))?;
        assert!((s[0] - 2.0 * size).abs() <= 1e-15 * size && s[1] <= 1e-15 * size, "{s:?}");
        assert_eq!(linalg::eigvalsh(&matrix(2, 2, [size, 0.0, 0.0, -size]))?.to_vec::<f64>()?, [-size, size]);
    }
    assert_eq!(checked_svd(&matrix(2, 2, [1.0, 0.0, 0.0, 1e-100]))?, [1.0, 1e-100]);
    assert_eq!(checked_svd(&matrix(1, 1, [-3.0]))?, [3.0]);
    Ok(())
}

#[test]
fn eigenvalues_ignore_what_is_above_the_diagonal() -> Result<()> {
    for above in [f64::NAN, f64::INFINITY, 1e300, 0.0] {
        let x = matrix(2, 2, [2.0, above, 1.0, 2.0]);
        assert_near("eigenvalues", &linalg::eigvalsh(&x)?, &Tensor::of(DType::F64).new([1.0, 3.0])?, 1e-15);
        let (_, vectors) = linalg::eigh(&x)?;
        assert_orthonormal("vectors", &vectors)?;
    }
    Ok(())
}

#[test]
fn eigenvectors_of_elements_of_very_different_sizes_are_orthonormal() -> Result<()> {
    // `nalgebra`'s eigenvectors of both are NaN.
    let first =
        [[1e-50, -2e-60, -4e-60], [-2e-60, 0.0, -3.0000000000000005e-290], [-4e-60, -3.0000000000000005e-290, 3e-210]];
    check_eigh(&matrix(3, 3, first.concat()))?;
    let second = [[2e-90, 4e-100, 0.0], [4e-100, 1e-290, 4e-250], [0.0, 4e-250, -4e-260]];
    check_eigh(&matrix(3, 3, second.concat()))
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

const SIDE: usize = 10;

fn numbers() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(-1.0..1.0, SIDE * 3 * SIDE)
}

/// Numbers whose magnitudes differ by up to 10³⁰⁰.
fn graded() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(
        (-1.0..1.0, -300..1).prop_map(|(number, power): (f64, i32)| number * 10_f64.powi(power)),
        SIDE * SIDE,
    )
}

fn integers() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec((-3..4).prop_map(f64::from), SIDE * SIDE)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products_of_small_integers_decompose(
        [n, m] in [1..=SIDE, 1..=SIDE], rank in 1..4_usize, left in integers(), right in integers(),
    ) {
        let x = matrix(n, rank, left).matmul(&matrix(rank, m, right)).unwrap();
        checked_svd(&x).unwrap();
        check_qr(&x).unwrap();
        check_eigh(&x.matmul(&x.t().unwrap()).unwrap()).unwrap();
    }

    #[test]
    fn centered_data_decomposes(numbers in numbers()) {
        let x = matrix(SIDE, 3 * SIDE, numbers);
        let ones = matrix(1, SIDE, [1.0; SIDE]);
        let means = ones.matmul(&x).unwrap().mul_scalar(1.0 / SIDE as f64).unwrap();
        let x = x.sub(&means).unwrap();
        let s = checked_svd(&x).unwrap();
        prop_assert!(s[SIDE - 1] < 1e-14 * s[0]);
    }

    /// Equal values and zeros are frequent, and the scale is anything.
    #[test]
    fn known_singular_values_are_found(
        [n, m] in [1..=SIDE, 1..=SIDE], left in numbers(), right in numbers(), power in -300..300,
        values in prop::collection::vec(prop_oneof![Just(0.0_f64), Just(1.0), 0.0..1.0, Just(1e-9)], SIDE),
    ) {
        let (k, scale) = (n.min(m), 10_f64.powi(power));
        let mut expected: Vec<f64> = values[..k].to_vec();
        expected.sort_by(|a, b| b.total_cmp(a));
        let u = orthogonal(n, &left).unwrap().narrow(1, 0, k).unwrap();
        let v_t = orthogonal(m, &right).unwrap().narrow(0, 0, k).unwrap();
        let x = u.mul(&matrix(1, k, expected.clone())).unwrap().matmul(&v_t).unwrap();
        let found = checked_svd(&x.mul_scalar(scale).unwrap()).unwrap();
        for (found, expected) in std::iter::zip(found, expected) {
            prop_assert!((found / scale - expected).abs() < 1e-14, "{found} instead of {expected} · {scale}");
        }
    }

    #[test]
    fn elements_of_very_different_sizes_decompose([n, m] in [1..=SIDE, 1..=SIDE], numbers in graded()) {
        let x = matrix(n, m, numbers.clone());
        checked_svd(&x).unwrap();
        check_qr(&x).unwrap();
        let lower = matrix(n, n, numbers).tril(0).unwrap();
        check_eigh(&lower.add(&lower.tril(-1).unwrap().t().unwrap()).unwrap()).unwrap();
    }
}

/// Before the fix, the memory of a square matrix was asked for.
#[test]
fn tall_matrices_need_little_more_than_themselves() -> Result<()> {
    let x = Tensor::ones([200_000, 2])?;
    let (q, r) = linalg::qr(&x)?;
    assert_eq!((q.dims(), r.dims()), (&[200_000, 2][..], &[2, 2][..]));
    assert_eq!(linalg::svd(&x)?.1.dims(), [2]);
    Ok(())
}
