//! Numbers that must be exact, or rounded once: half types, large integers, and tensors without elements.

use half::bf16;
use pagelock_tensor::{DType, Result, Tensor};

/// Values from −8 to 8, whose softmax spans nearly seven orders of magnitude.
fn scores(dtype: DType) -> Tensor {
    let values: Vec<f64> = (0..64).map(|i| f64::from(i * 37 % 64) / 4.0 - 8.0).collect();
    Tensor::from_slice(&values, [4, 16]).unwrap().to_dtype(dtype).unwrap()
}

/// The largest relative difference from the same function in `f64`, in units of `precision`; ∞ if a number is NaN.
fn error_of(precision: f64, f: impl Fn(&Tensor) -> Result<Tensor>, got: &Tensor) -> f64 {
    let scores = scores(got.dtype()).to_dtype(DType::F64).unwrap();
    let expected = f(&scores).unwrap().to_vec::<f64>().unwrap();
    let got = got.to_vec::<f64>().unwrap();
    assert_eq!(got.len(), expected.len());
    let relative = got.iter().zip(expected).map(|(got, expected)| ((got - expected) / expected).abs() / precision);
    relative.fold(0.0, |most: f64, x: f64| if x.is_nan() { f64::INFINITY } else { most.max(x) })
}

#[test]
fn softmax_of_half_types_is_rounded_once() -> Result<()> {
    let error = error_of(2f64.powi(-8), |x| x.softmax(-1), &scores(DType::BF16).softmax(-1)?);
    assert!(error < 1.01, "bfloat16: {error} half steps");
    // Halved, so that no result is subnormal in float16.
    let shifted = |x: &Tensor| x.mul_scalar(0.5)?.softmax(-1);
    let error = error_of(2f64.powi(-11), shifted, &scores(DType::F16).mul_scalar(0.5)?.softmax(-1)?);
    assert!(error < 1.01, "float16: {error} half steps");
    Ok(())
}

#[test]
fn softmax_of_floats_is_as_exact_as_its_exponentials() -> Result<()> {
    let error = error_of(2f64.powi(-24), |x| x.softmax(-1), &scores(DType::F32).softmax(-1)?);
    assert!(error < 8.0, "{error} half steps");
    Ok(())
}

#[test]
fn the_gradient_of_a_mean_of_half_types_is_rounded_once() -> Result<()> {
    let x = Tensor::of(DType::BF16).ones([3])?.set_requires_grad(true);
    x.mean(..)?.mul_scalar(7.0)?.backward()?;
    assert_eq!(x.grad().unwrap().to_vec::<bf16>()?, [bf16::from_f64(7.0 / 3.0); 3]);
    Ok(())
}

#[test]
fn ranges_of_large_integers_are_exact() -> Result<()> {
    let start = (1i64 << 62) + 1;
    assert_eq!(Tensor::arange(start, start + 5, 2)?.to_vec::<i64>()?, [start, start + 2, start + 4]);
    assert_eq!(Tensor::arange(3, -4, -3)?.to_vec::<i64>()?, [3, 0, -3]);
    assert_eq!(Tensor::arange(i64::MIN, i64::MAX, i64::MAX)?.to_vec::<i64>()?, [i64::MIN, -1, i64::MAX - 1]);
    assert_eq!(Tensor::of(DType::U8).arange(250, 255, 2)?.to_vec::<u8>()?, [250, 252, 254]);
    assert!(Tensor::of(DType::I32).arange(5, 5, 1)?.is_empty());
    Ok(())
}

#[test]
fn integers_become_floats_as_in_rust() -> Result<()> {
    // The first lies between two floats, just above their midpoint. Converted by way of a double, it would become the
    // midpoint, and round down.
    let numbers = [(1i64 << 60) + (1 << 36) + 1, i64::MAX, i64::MIN, -3, 16_777_217];
    let expected = numbers.map(|number| number as f32);
    assert_eq!(Tensor::new(numbers)?.to_float()?.to_vec::<f32>()?, expected);
    Ok(())
}

#[test]
fn floats_become_integers_by_saturating_truncation() -> Result<()> {
    let x = Tensor::new([1.9, -1.9, 1e30, -1e30, f32::NAN])?;
    assert_eq!(x.to_int()?.to_vec::<i64>()?, [1, -1, i64::MAX, i64::MIN, 0]);
    assert_eq!(x.to_int()?.to_dtype(DType::U8)?.to_vec::<u8>()?, [1, 255, 255, 0, 0]); // integers wrap
    assert_eq!(x.to_bool()?.to_vec::<bool>()?, [true; 5]);
    Ok(())
}

#[test]
fn views_of_tensors_without_elements_may_be_cut_anywhere() -> Result<()> {
    let x = Tensor::zeros([2, 0, 3])?.set_requires_grad(true);
    let joined = Tensor::cat(&[&x, &x, &Tensor::zeros([1, 0, 3])?], 0)?;
    assert_eq!(joined.shape(), &[5, 0, 3]);
    let views = [
        joined.select(0, 4)?,
        joined.select(-1, 2)?,
        joined.narrow(0, 3, 2)?.flatten(0, 1)?,
        joined.slice(2, 1.., 2)?.select(0, 1)?,
        joined.permute([2, 1, 0])?.select(0, 1)?.contiguous()?,
    ];
    for view in views {
        assert_eq!(view.to_vec::<f32>()?, [0.0; 0]);
        assert_eq!(view.exp()?.sum(..)?.item::<f32>()?, 0.0);
        view.sum(..)?.backward()?;
    }
    assert_eq!(x.grad().unwrap().shape(), &[2, 0, 3]);
    Tensor::zeros([2, 0])?.select(0, 1)?.fill_(1.0)?;
    Ok(())
}

#[test]
fn sums_over_nothing_are_zero_and_products_of_nothing_too() -> Result<()> {
    assert_eq!(Tensor::zeros([3, 0])?.sum(1)?.to_vec::<f32>()?, [0.0; 3]);
    assert_eq!(Tensor::zeros([2, 0])?.matmul(&Tensor::zeros([0, 2])?)?.to_vec::<f32>()?, [0.0; 4]);
    assert_eq!(Tensor::zeros([0, 2])?.matmul(&Tensor::zeros([2, 3])?)?.shape(), &[0, 3]);
    assert!(Tensor::zeros([0])?.mean(..)?.item::<f32>()?.is_nan());
    assert!(Tensor::zeros([1])?.var(..)?.item::<f32>()?.is_nan());
    assert_eq!(Tensor::zeros([0, 3])?.max(1)?.shape(), &[0]);
    assert_eq!(Tensor::zeros([0, 3])?.softmax(0)?.shape(), &[0, 3]);
    Ok(())
}
