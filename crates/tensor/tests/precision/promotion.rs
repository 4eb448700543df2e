//! Two precisions in one operation.

use std::sync::mpsc;

use half::{bf16, f16};
use pagelock_tensor::autograd::{Backward, grad};
use pagelock_tensor::{
    BatchNormOptions, Bool, Conv2dOptions, DType, Error, Int, Kind, Reduction, Result, Tensor, no_grad,
};

use crate::common::{FLOATS, INTS, Values};

/// What two precisions of one kind give. PyTorch's table.
fn promoted(left: DType, right: DType) -> DType {
    use DType::{BF16, F16, F32, F64, I32, I64, U8};
    match (left, right) {
        (F16, F16) => F16,
        (BF16, BF16) => BF16,
        (F16, BF16) | (BF16, F16) => F32,
        (F32, F32 | F16 | BF16) | (F16 | BF16, F32) => F32,
        (F64, _) | (_, F64) => F64,
        (U8, U8) => U8,
        (I32, I32 | U8) | (U8, I32) => I32,
        (I64, _) | (_, I64) => I64,
        (left, right) => unreachable!("{left} beside {right}"),
    }
}

fn pairs(dtypes: &'static [DType]) -> impl Iterator<Item = (DType, DType)> {
    dtypes.iter().flat_map(|&left| dtypes.iter().map(move |&right| (left, right)))
}

/// Checks dtype and values.
#[track_caller]
fn is<K: Values>(result: Result<Tensor<K>>, dtype: DType, values: &[f64]) {
    let result = result.unwrap();
    assert_eq!((result.dtype(), K::values(&result).unwrap()), (dtype, values.to_vec()));
}

#[test]
fn every_pair_of_float_precisions_gives_the_one_that_holds_both() -> Result<()> {
    for (left, right) in pairs(FLOATS) {
        let (a, b) = (Tensor::of(left).new([1.5, -2.0, 8.0])?, Tensor::of(right).new([0.5, 4.0, 8.0])?);
        let dtype = promoted(left, right);
        is(a.add(&b), dtype, &[2.0, 2.0, 16.0]);
        is(&a + &b, dtype, &[2.0, 2.0, 16.0]);
        is(a.sub(&b), dtype, &[1.0, -6.0, 0.0]);
        is(a.mul(&b), dtype, &[0.75, -8.0, 64.0]);
        is(a.div(&b), dtype, &[3.0, -0.5, 1.0]);
        is(a.maximum(&b), dtype, &[1.5, 4.0, 8.0]);
        is(a.add(&b.select(0, 0)?), dtype, &[2.0, -1.5, 8.5]);
        is(a.unsqueeze(1)?.mul(&b.narrow(0, 0, 2)?), dtype, &[0.75, 6.0, -1.0, -8.0, 4.0, 32.0]);
        is(Tensor::cat(&[&a, &b], 0), dtype, &[1.5, -2.0, 8.0, 0.5, 4.0, 8.0]);
        is(Tensor::stack(&[&a, &b], 1), dtype, &[1.5, 0.5, -2.0, 4.0, 8.0, 8.0]);
        is(a.mse_loss(&b, Reduction::Sum), dtype, &[37.0]);
        is(a.eq(&b), DType::Bool, &[0.0, 0.0, 1.0]);
        is(a.ne(&b), DType::Bool, &[1.0, 1.0, 0.0]);
        is(a.lt(&b), DType::Bool, &[0.0, 1.0, 0.0]);
        is(a.le(&b), DType::Bool, &[0.0, 1.0, 1.0]);
        is(a.gt(&b), DType::Bool, &[1.0, 0.0, 0.0]);
        is(a.ge(&b), DType::Bool, &[1.0, 0.0, 1.0]);
    }
    Ok(())
}

#[test]
fn every_pair_of_integer_precisions_gives_the_wider_one() -> Result<()> {
    for (left, right) in pairs(INTS) {
        let (a, b) = (Tensor::of(left).new([3, 100, 7])?, Tensor::of(right).new([1, 2, 7])?);
        let dtype = promoted(left, right);
        is(a.add(&b), dtype, &[4.0, 102.0, 14.0]);
        is(a.sub(&b), dtype, &[2.0, 98.0, 0.0]);
        is(a.mul(&b), dtype, &[3.0, 200.0, 49.0]);
        is(a.maximum(&b), dtype, &[3.0, 100.0, 7.0]);
        is(Tensor::cat(&[&a, &b], 0), dtype, &[3.0, 100.0, 7.0, 1.0, 2.0, 7.0]);
        is(a.eq(&b), DType::Bool, &[0.0, 0.0, 1.0]);
        is(a.lt(&b), DType::Bool, &[0.0, 0.0, 0.0]);
        is(a.ge(&b), DType::Bool, &[1.0, 1.0, 1.0]);
    }
    is(Tensor::of(DType::U8).new([255])? + Tensor::of(DType::I32).new([1])?, DType::I32, &[256.0]);
    is(Tensor::of(DType::U8).new([255])? + Tensor::of(DType::U8).new([1])?, DType::U8, &[0.0]);
    Ok(())
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

#[track_caller]
fn mixed<R>(op: &str, result: Result<R>) {
    let Err(error) = result else { panic!("{op} took two precisions") };
    assert!(matches!(error, Error::MixedTypes { op: named, .. } if named == op), "{op}: {error}");
}

#[test]
fn operations_that_take_one_precision_name_both_and_the_cast() -> Result<()> {
    let (x, h) = (Tensor::ones([2, 2])?, Tensor::of(DType::BF16).ones([2, 2])?);
    let text = x.matmul(&h).unwrap_err().to_string();
    assert_eq!(text, "matmul: one operand is float32, another bfloat16; convert one of them: x.to_dtype(DType::F32)");
    mixed("matmul", h.matmul(&x));
    mixed("matmul", x.linear(&h, None));
    mixed("linear", x.linear(&x, Some(&h.select(0, 0)?)));
    mixed("layer_norm", x.layer_norm(2, Some(&h.select(0, 0)?), None, 1e-5));
    let [row, half_row, wide_row] = [DType::F32, DType::BF16, DType::F64].map(|to| Tensor::of(to).ones([2]).unwrap());
    mixed("layer_norm", h.layer_norm(2, Some(&half_row), Some(&row), 1e-5));
    mixed("layer_norm", h.layer_norm(2, Some(&row), Some(&half_row), 1e-5));
    mixed("layer_norm", h.layer_norm(2, None, Some(&wide_row), 1e-5));
    let batch_norm = |x: &Tensor, weight, bias| x.batch_norm(None, weight, bias, BatchNormOptions::default());
    mixed("batch_norm", batch_norm(&x, Some(&half_row), None));
    mixed("batch_norm", batch_norm(&x, None, Some(&wide_row)));
    mixed("batch_norm", batch_norm(&h, Some(&wide_row), None));
    mixed("batch_norm", batch_norm(&h, Some(&half_row), Some(&row)));
    mixed("batch_norm", batch_norm(&h, Some(&half_row.to_dtype(DType::F16)?), None));
    let (image, weight) = (Tensor::ones([1, 1, 4, 4])?, Tensor::of(DType::F16).ones([1, 1, 3, 3])?);
    mixed("conv2d", image.conv2d(&weight, None, Conv2dOptions::new()));
    let bias = Tensor::of(DType::F64).ones([1])?;
    mixed("conv2d", image.conv2d(&weight.to_dtype(DType::F32)?, Some(&bias), Conv2dOptions::new()));
    let (long, bytes) = (Tensor::full([2, 2], 3)?, Tensor::of(DType::U8).full([2, 2], 3)?);
    mixed("matmul", long.matmul(&bytes));
    Ok(())
}

#[test]
fn a_tensor_changed_in_place_takes_narrower_operands_and_refuses_wider_ones() -> Result<()> {
    let [h, b, f, d] = [DType::F16, DType::BF16, DType::F32, DType::F64].map(|dtype| tenths(dtype).unwrap());
    let x = f.full_like(1.0)?;
    x.add_(&h)?;
    assert_eq!(x.to_vec::<f64>()?, (h.to_dtype(DType::F32)? + 1.0)?.to_vec::<f64>()?);
    x.fill_(2.0)?;
    x.mul_(&b)?;
    assert_eq!((x.dtype(), x.to_vec::<f64>()?), (DType::F32, (b.to_dtype(DType::F32)? * 2.0)?.to_vec::<f64>()?));
    let y = d.full_like(1.0)?;
    y.sub_(&f)?;
    assert_eq!(y.to_vec::<f64>()?, [1.0 - f64::from(0.1_f32), 1.0 - f64::from(0.3_f32)]);
    y.div_(&h)?;
    y.add_scaled_(&f, 0.5)?;
    let n = Tensor::full([2], 1000)?;
    n.add_(&Tensor::of(DType::U8).new([200, 1])?)?;
    assert_eq!(n.to_vec::<i64>()?, [1200, 1001]);

    let version = f.version();
    mixed("add_", f.add_(&d));
    mixed("mul_", f.mul_(&d));
    mixed("add_scaled_", f.add_scaled_(&d, 0.5));
    mixed("add_", h.add_(&f));
    mixed("add_", h.add_(&b));
    mixed("sub_", b.sub_(&h));
    mixed("add_", Tensor::of(DType::U8).full([2], 1)?.add_(&n));
    assert_eq!((f.version(), f.to_vec::<f32>()?), (version, vec![0.1, 0.3]), "nothing was changed");
    Ok(())
}

/// The gradients of the sum of `f` for `a` and `b`.
fn gradients(f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>, a: Tensor, b: Tensor) -> Result<[Tensor; 2]> {
    let (a, b) = (a.set_requires_grad(true), b.set_requires_grad(true));
    f(&a, &b)?.sum(..)?.backward()?;
    Ok([a.grad().unwrap(), b.grad().unwrap()])
}

#[test]
fn gradients_of_promoted_operands_have_the_operands_own_precision() -> Result<()> {
    for (left, right) in pairs(FLOATS) {
        let (a, b) = (Tensor::of(left).new([1.5, -2.0])?, Tensor::of(right).new([0.5, 4.0])?);
        let check = |f: fn(&Tensor, &Tensor) -> Result<Tensor>, by_a: [f64; 2], by_b: [f64; 2]| {
            let [a, b] = gradients(f, a.clone(), b.clone()).unwrap();
            assert_eq!([a.dtype(), b.dtype()], [left, right]);
            assert_eq!((a.to_vec::<f64>().unwrap(), b.to_vec::<f64>().unwrap()), (by_a.to_vec(), by_b.to_vec()));
        };
        check(Tensor::add, [1.0, 1.0], [1.0, 1.0]);
        check(Tensor::sub, [1.0, 1.0], [-1.0, -1.0]);
        check(Tensor::mul, [0.5, 4.0], [1.5, -2.0]);
        check(Tensor::div, [2.0, 0.25], [-6.0, 0.125]);
        check(Tensor::maximum, [1.0, 0.0], [0.0, 1.0]);
        check(|a, b| a.unsqueeze(1)?.mul(b), [4.5, 4.5], [-0.5, -0.5]);
        check(|a, b| Tensor::cat(&[a, b, a], 0)?.pow(2.0), [6.0, -8.0], [1.0, 8.0]);
    }
    let [h, f] = gradients(Tensor::mul, tenths(DType::F16)?, Tensor::new([0.7, 0.9])?)?;
    assert_eq!(h.to_vec::<f16>()?, [0.7, 0.9].map(f16::from_f64), "PyTorch's");
    assert_eq!(f.to_vec::<f32>()?, [0.1, 0.3].map(|x| f16::from_f64(x).to_f32()), "PyTorch's");
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
    // Rounded where it goes into the narrower type, and nowhere else.
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
fn gradients_are_of_the_precision_of_their_tensor_whoever_gives_them() -> Result<()> {
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
