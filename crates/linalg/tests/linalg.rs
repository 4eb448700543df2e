//! Linear algebra against `torch.linalg` (`golden/make.py`), derivatives against finite differences, and refusals.

use pagelock_linalg::{self as linalg, MatrixNorm};
use pagelock_tensor::autograd::{self, Backward, Tolerance, gradcheck, gradgradcheck};
use pagelock_tensor::{DType, Device, Half, Result, Tensor, autocast};
use safetensors::SafeTensors;

const GOLDEN: &[u8] = include_bytes!("golden/linalg.safetensors");

type Call = fn(&[Tensor]) -> Result<Tensor>;

/// The cases of `golden/make.py`, by name.
const CASES: &[(&str, Call)] = &[
    ("solve", |x| linalg::solve(&x[0], &x[1])),
    ("solve_vector", |x| linalg::solve(&x[0], &x[1])),
    ("solve_broadcast", |x| linalg::solve(&x[0], &x[1])),
    ("inv", |x| linalg::inv(&x[0])),
    ("det", |x| linalg::det(&x[0])),
    ("slogdet", |x| {
        let (sign, logarithm) = linalg::slogdet(&x[0])?;
        sign.mul_scalar(10.0)?.add(&logarithm)
    }),
    ("cholesky", |x| linalg::cholesky(&symmetric(&x[0])?)),
    ("qr", |x| flat(linalg::qr(&x[0])?)),
    ("qr_square", |x| flat(linalg::qr(&x[0])?)),
    ("svd", |x| weighted(&x[0])),
    ("svd_tall", |x| weighted(&x[0])),
    ("svd_wide", |x| weighted(&x[0])),
    ("svdvals", |x| linalg::svdvals(&x[0])),
    ("eigh", |x| {
        let (values, vectors) = linalg::eigh(&symmetric(&x[0])?)?;
        vectors.mul(&weights(&values.narrow(0, 0, 1)?)?)?.matmul(&vectors.transpose(-2, -1)?)
    }),
    ("eigvalsh", |x| linalg::eigvalsh(&symmetric(&x[0])?)),
    ("pinv", |x| linalg::pinv(&x[0], 1e-12)),
    ("norm_fro", |x| linalg::matrix_norm(&x[0], MatrixNorm::Frobenius)),
    ("norm_nuc", |x| linalg::matrix_norm(&x[0], MatrixNorm::Nuclear)),
    ("norm_spectral", |x| linalg::matrix_norm(&x[0], MatrixNorm::Spectral)),
    ("norm_columns", |x| linalg::matrix_norm(&x[0], MatrixNorm::Columns)),
    ("norm_rows", |x| linalg::matrix_norm(&x[0], MatrixNorm::Rows)),
];

fn symmetric(x: &Tensor) -> Result<Tensor> {
    x.add(&x.transpose(-2, -1)?)?.mul_scalar(0.5)
}

fn flat((q, r): (Tensor, Tensor)) -> Result<Tensor> {
    Tensor::cat(&[&q.reshape([-1])?, &r.reshape([-1])?], 0)
}

/// 1, 2, 3, … in the shape of a tensor.
fn weights(like: &Tensor) -> Result<Tensor> {
    let numbers = (1..=like.len()).map(|number| number as f64).collect();
    Tensor::from_vec(numbers, like.dims())?.to_dtype(like.dtype())?.to(&like.device())
}

fn weighted(x: &Tensor) -> Result<Tensor> {
    let (u, s, v_t) = linalg::svd(x)?;
    let weights = weights(&Tensor::of(x.dtype()).on(&x.device()).zeros(*s.dims().last().unwrap())?)?;
    u.mul(&weights)?.matmul(&v_t)
}

fn stored(file: &SafeTensors<'_>, name: &str) -> Option<Tensor> {
    let found = file.tensor(name).ok()?;
    let numbers = found.data().as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    Some(Tensor::from_vec(numbers, found.shape()).unwrap())
}

#[track_caller]
fn assert_near(what: &str, found: &Tensor, expected: &Tensor, bound: f64) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let pairs = std::iter::zip(found.to_vec::<f64>().unwrap(), expected.to_vec::<f64>().unwrap());
    let is_near = |(a, b): (f64, f64)| (a - b).abs() <= bound * b.abs().max(1.0);
    assert!(pairs.clone().all(is_near), "{what}: {:?}", pairs.collect::<Vec<_>>());
}

fn inputs(file: &SafeTensors<'_>, name: &str) -> Vec<Tensor> {
    (0..2).filter_map(|i| stored(file, &format!("{name}.in.{i}"))).collect()
}

fn compare(device: &Device) {
    let file = SafeTensors::deserialize(GOLDEN).unwrap();
    for (name, call) in CASES {
        for (dtype, bound) in [(DType::F64, 1e-9), (DType::F32, 2e-4)] {
            let given = inputs(&file, name).into_iter();
            let given: Vec<_> =
                given.map(|x| x.to_dtype(dtype).and_then(|x| x.to(device)).unwrap().set_requires_grad(true)).collect();
            let out = call(&given).unwrap();
            let what = format!("{name} of {dtype} on {device:?}");
            assert_eq!((out.dtype(), &out.device()), (dtype, device), "{what}");
            assert_near(&what, &out, &stored(&file, &format!("{name}.out")).unwrap(), bound);
            let start = Backward { gradient: Some(weights(&out).unwrap()), ..Backward::default() };
            let grads = autograd::grad(&[&out], &given.iter().collect::<Vec<_>>(), start).unwrap();
            for (i, grad) in grads.iter().enumerate() {
                let expected = stored(&file, &format!("{name}.grad.{i}")).unwrap();
                let largest = expected.abs().unwrap().max(..).unwrap().item::<f64>().unwrap().max(1.0);
                assert_near(&format!("gradient {i} of {what}"), grad.as_ref().unwrap(), &expected, bound * largest);
            }
        }
    }
}

#[test]
fn results_and_gradients_are_those_of_pytorch() {
    compare(&Device::Cpu);
}

#[test]
fn results_and_gradients_on_a_gpu_are_those_of_pytorch() {
    match Device::cuda(0) {
        Ok(gpu) => compare(&gpu),
        Err(missing) => {
            let required = std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1");
            assert!(!required, "REQUIRE_GPU=1, but {missing}");
            eprintln!("SKIPPED: {missing}");
        }
    }
}

#[test]
fn first_and_second_derivatives_are_those_of_finite_differences() {
    let file = SafeTensors::deserialize(GOLDEN).unwrap();
    for (name, call) in CASES.iter().filter(|(name, _)| !name.starts_with("solve_broadcast")) {
        let given = inputs(&file, name);
        let given: Vec<&Tensor> = given.iter().collect();
        let loose = Tolerance { step: 1e-5, absolute: 1e-5, relative: 1e-4 };
        gradcheck(call, &given, loose).unwrap_or_else(|error| panic!("{name}: {error}"));
        gradgradcheck(call, &given, loose).unwrap_or_else(|error| panic!("{name}, twice: {error}"));
    }
}

#[test]
fn the_product_of_the_factors_is_the_matrix() -> Result<()> {
    for [n, m] in [[5, 3], [3, 5], [1, 1], [4, 4]] {
        let x = Tensor::of(DType::F64).rand([2, n, m])?;
        let (q, r) = linalg::qr(&x)?;
        assert_near("q · r", &q.matmul(&r)?, &x, 1e-12);
        let (u, s, v_t) = linalg::svd(&x)?;
        assert_near("u · s · vᵀ", &u.mul(&s.unsqueeze(-2)?)?.matmul(&v_t)?, &x, 1e-12);
        assert_near(
            "uᵀ · u",
            &u.transpose(-2, -1)?.matmul(&u)?,
            &Tensor::of(DType::F64).eye(n.min(m))?.expand([2, n.min(m), n.min(m)])?,
            1e-12,
        );
    }
    let x = symmetric(&Tensor::of(DType::F64).rand([3, 4, 4])?)?;
    let (values, vectors) = linalg::eigh(&x)?;
    let again = vectors.mul(&values.unsqueeze(-2)?)?.matmul(&vectors.transpose(-2, -1)?)?;
    assert_near("v · λ · vᵀ", &again, &x, 1e-12);
    let ascending = values.narrow(-1, 1, 3)?.ge(&values.narrow(-1, 0, 3)?)?;
    assert!(ascending.all(..)?.item::<bool>()?);
    Ok(())
}

/// Gradients of the vectors may be infinite, as in PyTorch.
#[test]
fn gradients_of_equal_values_and_of_zeros_are_finite() -> Result<()> {
    let identity = || Ok::<_, pagelock_tensor::Error>(Tensor::of(DType::F64).eye(3)?.set_requires_grad(true));
    let gradient = |x: &Tensor, y: Tensor| {
        y.sum(..)?.backward()?;
        x.grad().unwrap().to_vec::<f64>()
    };
    let expected: Vec<f64> = Tensor::of(DType::F64).eye(3)?.to_vec()?;
    let x = identity()?;
    assert_eq!(gradient(&x, linalg::svdvals(&x)?)?, expected);
    let x = identity()?;
    assert_eq!(gradient(&x, linalg::matrix_norm(&x, linalg::MatrixNorm::Nuclear)?)?, expected);
    let x = identity()?;
    assert_eq!(gradient(&x, linalg::eigvalsh(&x)?)?, expected);

    let tall = Tensor::of(DType::F64).new([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])?.set_requires_grad(true);
    let found = gradient(&tall, linalg::svdvals(&tall)?)?;
    assert!(found.iter().all(|grad| grad.is_finite()) && found[0] == 1.0, "{found:?}");
    let zeros = Tensor::of(DType::F64).zeros([3, 3])?.set_requires_grad(true);
    let found = gradient(&zeros, linalg::pinv(&zeros, 1e-12)?)?;
    assert!(found.iter().all(|grad| grad.is_finite()), "{found:?}");
    Ok(())
}

#[test]
fn matrices_without_elements_have_results() -> Result<()> {
    let none = Tensor::zeros([2, 0, 0])?;
    assert_eq!(linalg::inv(&none)?.dims(), [2, 0, 0]);
    assert_eq!(linalg::det(&none)?.to_vec::<f32>()?, [1.0, 1.0]);
    assert_eq!(linalg::slogdet(&none)?.1.to_vec::<f32>()?, [0.0, 0.0]);
    assert_eq!(linalg::eigh(&none)?.0.dims(), [2, 0]);
    assert_eq!(linalg::svd(&Tensor::zeros([3, 0])?)?.2.dims(), [0, 0]);
    assert_eq!(linalg::qr(&Tensor::zeros([3, 0])?)?.0.dims(), [3, 0]);
    assert_eq!(linalg::inv(&Tensor::zeros([0, 2, 2])?)?.dims(), [0, 2, 2]);
    Ok(())
}

#[test]
fn autocast_changes_nothing() -> Result<()> {
    let x = Tensor::of(DType::F32).eye(3)?.set_requires_grad(true);
    let grad = autocast(Half::BF16, || {
        let out = linalg::inv(&x)?;
        assert_eq!(out.dtype(), DType::F32);
        autograd::grad(&[&out.sum(..)?], &[&x], Backward::default())
    })?;
    assert_eq!(grad[0].as_ref().unwrap().to_vec::<f32>()?, [-1.0; 9]);
    Ok(())
}

#[track_caller]
fn refused<R>(result: Result<R>, text: &str) {
    let Err(error) = result else { panic!("not refused; expected: {text}") };
    assert_eq!(error.to_string(), text);
}

#[test]
fn what_cannot_be_computed_is_refused_with_the_fix() {
    let (half, wide) = (Tensor::of(DType::F16).zeros([2, 2]).unwrap(), Tensor::zeros([2, 3]).unwrap());
    let (zeros, nan) = (Tensor::zeros([1, 2, 2]).unwrap(), Tensor::full([2, 2], f32::NAN).unwrap());
    refused(linalg::inv(&half), "linalg::inv: float16 is not supported; convert it: x.to_dtype(DType::F32)");
    refused(linalg::inv(&wide), "linalg::inv: [2, 3] is not square; give square matrices");
    refused(
        linalg::svd(&wide.select(0, 0).unwrap()),
        "linalg::svd: [3] is not a matrix; unsqueeze it to two dimensions",
    );
    let singular = "matrix 0 of the batch is singular; use pinv, or add a small number to its diagonal";
    refused(linalg::inv(&zeros), &format!("linalg::inv: {singular}"));
    refused(linalg::solve(&zeros, &Tensor::zeros([2]).unwrap()), &format!("linalg::solve: {singular}"));
    refused(
        linalg::cholesky(&zeros),
        "linalg::cholesky: matrix 0 of the batch is not positive definite; make it symmetric, or add a small number \
         to its diagonal",
    );
    let infinite = "matrix 0 of the batch has elements that are infinite or NaN; look for where they come from";
    refused(linalg::svd(&nan), &format!("linalg::svd: {infinite}"));
    refused(linalg::eigh(&nan), &format!("linalg::eigh: {infinite}"));
    refused(
        linalg::solve(&Tensor::zeros([2, 2]).unwrap(), &Tensor::zeros([3, 1]).unwrap()),
        "linalg::solve: a is float32 [2, 2] and b is float32 [3, 1]; give both one precision and the same number \
         of rows",
    );
    let wide = wide.set_requires_grad(true);
    let (q, _) = linalg::qr(&wide).unwrap();
    refused(
        q.sum(..).unwrap().backward(),
        "linalg::qr: there is no gradient for 2 rows and 3 columns; transpose, or use svd",
    );
}
