//! Two precisions in one operation.

use std::sync::mpsc;

use half::bf16;
use pagelock_tensor::autograd::{Backward, grad};
use pagelock_tensor::{Bool, DType, Int, Kind, Result, Tensor, no_grad};

use crate::common::FLOATS;

fn pairs(dtypes: &'static [DType]) -> impl Iterator<Item = (DType, DType)> {
    dtypes.iter().flat_map(|&left| dtypes.iter().map(move |&right| (left, right)))
}

/// 0.1 and 0.3, rounded to a precision.
fn tenths(dtype: DType) -> Result<Tensor> {
    Tensor::of(dtype).new([0.1, 0.3])
}

#[test]
fn both_operands_are_widened_before_they_are_computed_with() -> Result<()> {
    let [h, b, f, d] = [tenths(DType::F16)?, tenths(DType::BF16)?, tenths(DType::F32)?, tenths(DType::F64)?];
    // PyTorch's values.
    assert_eq!((&h + &f)?.to_vec::<f32>()?, [0.199_975_58, 0.600_048_84]);
    assert_eq!((&h * &f)?.to_vec::<f32>()?, [0.009_997_559, 0.090_014_65]);
    assert_eq!((&h + &b)?.to_vec::<f32>()?, [0.200_073_24, 0.600_830_1]);
    assert_eq!((&h * &b)?.to_vec::<f32>()?, [0.010_007_322, 0.090_249_06]);
    assert_eq!((&f + &d)?.to_vec::<f64>()?, [0.200_000_001_490_116_12, 0.600_000_011_920_929]);
    assert_eq!((&h * &d)?.to_vec::<f64>()?, [0.009_997_558_593_75, 0.090_014_648_437_5]);
    assert_eq!(h.eq(&f)?.to_vec::<bool>()?, [false, false], "0.1 rounded otherwise is another number");
    assert_eq!(h.lt(&f)?.to_vec::<bool>()?, [true, false]);
    let large = (Tensor::of(DType::F16).new([65_504.0])? * Tensor::of(DType::BF16).new([2.0])?)?;
    assert_eq!(large.item::<f32>()?, 131_008.0, "which f16 does not hold");
    Ok(())
}

#[test]
fn operations_that_take_one_precision_name_both_and_the_cast() -> Result<()> {
    let (x, h) = (Tensor::ones([2, 2])?, Tensor::of(DType::BF16).ones([2, 2])?);
    let text = x.matmul(&h).unwrap_err().to_string();
    assert_eq!(text, "matmul: one operand is float32, another bfloat16; convert one of them: x.to_dtype(DType::F32)");
    Ok(())
}

#[test]
fn gradients_go_back_through_conversions_to_the_precision_they_came_from() -> Result<()> {
    for (from, to) in pairs(FLOATS) {
        let x = Tensor::of(from).new([1.5, -2.0])?.set_requires_grad(true);
        let y = x.to_dtype(to)?;
        assert!(y.requires_grad());
        y.pow(2.0)?.sum(..)?.backward()?;
        let grad = x.grad().unwrap();
        assert_eq!((grad.dtype(), grad.to_vec::<f64>()?), (from, vec![3.0, -4.0]), "{from} to {to}");
    }
    // The gradient is rounded where it is converted to the narrower type, and nowhere else.
    let x = tenths(DType::F32)?.set_requires_grad(true);
    (x.to_dtype(DType::BF16)?.to_dtype(DType::F32)? * Tensor::new([0.7, 0.9])?)?.sum(..)?.backward()?;
    assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [0.7, 0.9].map(|x| bf16::from_f64(x).to_f32()));
    assert!(!no_grad(|| x.to_dtype(DType::F64))?.requires_grad());
    Ok(())
}

#[test]
fn second_derivatives_go_through_promotions_and_conversions() -> Result<()> {
    for (left, right) in pairs(FLOATS) {
        let x = Tensor::of(left).new([1.5, -2.0])?.set_requires_grad(true);
        let w = Tensor::of(right).new([0.5, 2.0])?.set_requires_grad(true);
        let y = ((&x * &w)? * &x.to_dtype(right)?)?.sum(..)?; // x² w
        let first = grad(&[&y], &[&x], Backward { create_graph: true, ..Backward::default() })?.remove(0).unwrap();
        assert_eq!((first.dtype(), first.to_vec::<f64>()?), (left, vec![1.5, -8.0]), "{left} and {right}: 2 x w");
        let second = grad(&[&first.sum(..)?], &[&x, &w], Backward::default())?;
        let [by_x, by_w] = [&second[0], &second[1]].map(|grad| grad.as_ref().unwrap());
        assert_eq!((by_x.dtype(), by_x.to_vec::<f64>()?), (left, vec![1.0, 4.0]), "{left} and {right}: 2 w");
        assert_eq!((by_w.dtype(), by_w.to_vec::<f64>()?), (right, vec![3.0, -4.0]), "{left} and {right}: 2 x");
    }
    Ok(())
}

#[test]
fn gradients_that_are_set_passed_or_seen_by_hooks_have_the_precision_of_their_tensor() -> Result<()> {
    let x = tenths(DType::F16)?.set_requires_grad(true);
    let wide = Tensor::ones([2])?;
    let expected = "the gradient is float32 [2], but float16 [2] was expected; a gradient is shaped like its tensor";
    assert_eq!(x.set_grad(Some(wide.clone())).unwrap_err().to_string(), format!("set_grad: {expected}"));
    let given = Backward { gradient: Some((wide * 3)?), ..Backward::default() };
    (&x * 2)?.backward_with(given)?;
    let grad = x.grad().unwrap();
    assert_eq!(
        (grad.dtype(), grad.to_vec::<f32>()?),
        (DType::F16, vec![6.0; 2]),
        "backward converts what it starts from"
    );
    let (seen, dtypes) = mpsc::channel();
    x.register_hook(move |grad| {
        seen.send(grad.dtype()).unwrap();
        Ok(None)
    })?;
    (&x * Tensor::of(DType::F64).ones([2])?)?.sum(..)?.backward()?;
    assert_eq!(dtypes.try_iter().collect::<Vec<_>>(), [DType::F16], "hooks see it converted");
    Ok(())
}

#[test]
fn truth_values_have_one_precision() -> Result<()> {
    fn same<K: Kind>(x: &Tensor<K>) -> Result<Tensor<K>> {
        x.to_dtype(x.dtype())
    }
    let mask: Tensor<Bool> = same(&Tensor::new([true, false])?)?;
    assert_eq!(mask.mul(&Tensor::new([true, true])?)?.to_vec::<bool>()?, [true, false]);
    let bytes: Tensor<Int> = same(&Tensor::of(DType::U8).new([1, 2])?)?;
    assert_eq!(bytes.dtype(), DType::U8);
    Ok(())
}
