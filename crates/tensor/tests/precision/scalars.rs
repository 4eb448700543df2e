//! Operations of tensors and plain numbers.

use half::{bf16, f16};
use pagelock_tensor::{DType, Result, Tensor, no_grad};

use crate::common::FLOATS;

/// Numbers of several magnitudes, most of which no half type represents exactly.
fn numbers() -> Vec<f64> {
    (1..400).map(|i| f64::from(i) * 0.173 * if i % 3 == 0 { -1.0 } else { 1.0 }).collect()
}

/// Checks that `ours` of numbers in half precision is `expected` of each number, computed in `f32` and rounded once.
fn rounded_once(ours: impl Fn(&Tensor) -> Result<Tensor>, expected: impl Fn(f32) -> f32) -> Result<()> {
    let x = Tensor::from_vec(numbers(), 399)?;
    let (h, b) = (x.to_dtype(DType::F16)?, x.to_dtype(DType::BF16)?);
    let of = |x: f16| f16::from_f32(expected(x.to_f32()));
    assert_eq!(ours(&h)?.to_vec::<f16>()?, h.to_vec::<f16>()?.into_iter().map(of).collect::<Vec<_>>());
    let of = |x: bf16| bf16::from_f32(expected(x.to_f32()));
    assert_eq!(ours(&b)?.to_vec::<bf16>()?, b.to_vec::<bf16>()?.into_iter().map(of).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn a_number_beside_half_types_is_taken_in_f32_and_the_result_rounded_once() -> Result<()> {
    rounded_once(|x| x * 0.1, |x| x * 0.1)?;
    rounded_once(|x| 0.1 * x, |x| x * 0.1)?;
    rounded_once(|x| x + 0.1, |x| x + 0.1)?;
    rounded_once(|x| x - 0.1, |x| x - 0.1)?;
    rounded_once(|x| 0.1 - x, |x| 0.1 - x)?;
    rounded_once(|x| x / 3.0, |x| x / 3.0)?;
    rounded_once(|x| 0.1 / x, |x| 0.1 / x)?;
    rounded_once(|x| x.mul_scalar(0.1), |x| x * 0.1)?;
    rounded_once(|x| x.add_scalar(0.1), |x| x + 0.1)?;
    let in_place = |f: fn(&Tensor) -> Result<()>| {
        move |x: &Tensor| {
            let y = x.add_scalar(0)?;
            f(&y)?;
            Ok(y)
        }
    };
    rounded_once(in_place(|x| x.mul_scalar_(0.1)), |x| x * 0.1)?;
    rounded_once(in_place(|x| x.add_scalar_(0.1)), |x| x + 0.1)
}

#[test]
fn pytorch_has_the_same_products_with_a_number() -> Result<()> {
    let x = Tensor::of(DType::F16).new([0.1, 3.3, -7.7, 1000.0])?;
    assert_eq!((&x * 0.1)?.to_vec::<f64>()?, [0.0099945068359375, 0.330078125, -0.77001953125, 100.0]);
    assert_eq!((&x + 0.1)?.to_vec::<f64>()?, [0.199951171875, 3.400390625, -7.59765625, 1000.0]);
    assert_eq!((&x / 3)?.to_vec::<f64>()?, [0.0333251953125, 1.1005859375, -2.56640625, 333.25]);
    let x = x.to_dtype(DType::BF16)?;
    assert_eq!((&x * 0.1)?.to_vec::<f64>()?, [0.010009765625, 0.330078125, -0.76953125, 100.0]);
    assert_eq!((&x + 0.1)?.to_vec::<f64>()?, [0.2001953125, 3.390625, -7.59375, 1000.0]);
    assert_eq!((&x / 3)?.to_vec::<f64>()?, [0.033447265625, 1.1015625, -2.5625, 334.0]);
    // 0.1 in half precision is another number, whose products are rounded differently.
    let (x, tenth) = (Tensor::of(DType::BF16).new(numbers())?, Tensor::of(DType::BF16).full((), 0.1)?);
    assert_ne!((&x * 0.1)?.to_vec::<f64>()?, (&x * &tenth)?.to_vec::<f64>()?);
    Ok(())
}

#[test]
fn a_number_beside_f64_keeps_all_its_bits() -> Result<()> {
    let x = Tensor::of(DType::F64).new([1.1, 2.2])?;
    assert_eq!((&x * 0.1)?.to_vec::<f64>()?, [1.1 * 0.1, 2.2 * 0.1]);
    assert_eq!((&x * 0.1_f32)?.to_vec::<f64>()?, [1.1 * f64::from(0.1_f32), 2.2 * f64::from(0.1_f32)]);
    assert_eq!((1.0 / &x)?.to_vec::<f64>()?, [1.0 / 1.1, 1.0 / 2.2]);
    x.fill_(0.1)?;
    assert_eq!(x.to_vec::<f64>()?, [0.1; 2]);
    assert_eq!(x.full_like(0.2)?.to_vec::<f64>()?, [0.2; 2]);
    assert_eq!((Tensor::new([1.5])? * 0.1)?.item::<f32>()?, 1.5 * 0.1_f32, "f32 takes it rounded");
    Ok(())
}

#[test]
fn any_number_may_stand_beside_any_float_tensor() -> Result<()> {
    for &dtype in FLOATS {
        let x = Tensor::of(dtype).new([1.0, 2.0])?;
        let doubled = [
            &x * 2.0,
            &x * 2.0_f32,
            &x * f16::from_f32(2.0),
            &x * bf16::from_f32(2.0),
            &x * 2,
            &x * 2_i64,
            &x * 2_u8,
            &x * 2_usize,
            2.0 * &x,
            2 * &x,
            &x / 0.5,
            (&x - 1)? + (&x + 1),
        ];
        for doubled in doubled {
            let doubled = doubled?;
            assert_eq!((doubled.dtype(), doubled.to_vec::<f64>()?), (dtype, vec![2.0, 4.0]));
        }
        let y = x.zeros_like()?;
        y.fill_(1)?;
        y.add_scalar_(1)?;
        y.mul_scalar_(1.5)?;
        y.add_scaled_(&x, 2_usize)?;
        assert_eq!(y.to_vec::<f64>()?, [5.0, 7.0]);
    }
    Ok(())
}

#[test]
fn whole_numbers_beside_integers_wrap_as_the_integers_do() -> Result<()> {
    let bytes = Tensor::of(DType::U8).new([1, 200])?;
    let doubled = (&bytes * 2)?;
    assert_eq!((doubled.dtype(), doubled.to_vec::<i64>()?), (DType::U8, vec![2, 144]));
    assert_eq!((&bytes + 1_usize)?.to_vec::<i64>()?, [2, 201]);
    let labels = Tensor::new([1, 2])?;
    assert_eq!((&labels * 2)?.to_vec::<i64>()?, [2, 4]);
    assert_eq!((&labels - 1_u8)?.to_vec::<i64>()?, [0, 1]);
    labels.fill_(7)?;
    labels.add_scaled_(&bytes, 3)?;
    assert_eq!(labels.to_vec::<i64>()?, [10, 607]);
    Ok(())
}

#[test]
fn the_gradient_of_a_product_with_a_number_is_rounded_once() -> Result<()> {
    let x = Tensor::of(DType::BF16).ones([3])?.set_requires_grad(true);
    ((&x * 0.1)? * 0.3)?.sum(..)?.backward()?;
    let inner = bf16::from_f32(0.3);
    let expected = bf16::from_f32(inner.to_f32() * 0.1);
    assert_eq!(x.grad().unwrap().to_vec::<bf16>()?, [expected; 3]);
    no_grad(|| x.add_scaled_(&x.grad().unwrap(), -0.1))?;
    assert_eq!(x.detach().to_vec::<bf16>()?, [bf16::from_f32(1.0 - 0.1 * expected.to_f32()); 3]);
    Ok(())
}
