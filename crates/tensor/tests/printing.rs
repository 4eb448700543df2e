//! Tensors print as in PyTorch, whose texts `golden/printing.py` wrote.

use pagelock_tensor::{DType, Element, Int, Tensor};
use serde_json::Value;

/// A number of the file. JSON has no infinities and no NaN, so these are strings.
fn number(value: &Value) -> f64 {
    match value {
        Value::Bool(truth) => f64::from(u8::from(*truth)),
        Value::String(name) => name.parse().unwrap(),
        number => number.as_f64().unwrap(),
    }
}

fn values(case: &Value) -> Vec<f64> {
    match &case["arange"] {
        Value::Null => case["values"].as_array().unwrap().iter().map(number).collect(),
        count => (0..count.as_u64().unwrap()).map(|i| i as f64).collect(),
    }
}

fn tensor<E: Element>(case: &Value, element: impl Fn(f64) -> E) -> Tensor<E::Kind> {
    let shape: Vec<usize> =
        case["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect();
    Tensor::from_vec(values(case).into_iter().map(element).collect(), &shape[..]).unwrap()
}

fn float(case: &Value, dtype: DType) -> Tensor {
    tensor(case, |number| number).to_dtype(dtype).unwrap()
}

fn int(case: &Value, dtype: DType) -> Tensor<Int> {
    tensor(case, |number| number as i64).to_dtype(dtype).unwrap()
}

fn printed(case: &Value) -> String {
    match (case["dtype"].as_str().unwrap(), case["grad"].as_str()) {
        ("float32", Some("leaf")) => float(case, DType::F32).set_requires_grad(true).to_string(),
        ("float64", Some("leaf")) => float(case, DType::F64).set_requires_grad(true).to_string(),
        ("float32", Some("product")) => {
            let leaf = float(case, DType::F32).set_requires_grad(true);
            leaf.mul(&Tensor::ones(()).unwrap()).unwrap().to_string()
        }
        ("float32", None) => float(case, DType::F32).to_string(),
        ("float64", None) => float(case, DType::F64).to_string(),
        ("float16", None) => float(case, DType::F16).to_string(),
        ("bfloat16", None) => float(case, DType::BF16).to_string(),
        ("int64", None) => int(case, DType::I64).to_string(),
        ("int32", None) => int(case, DType::I32).to_string(),
        ("uint8", None) => int(case, DType::U8).to_string(),
        ("bool", None) => tensor(case, |number| number != 0.0).to_string(),
        other => unreachable!("the script writes no {other:?}"),
    }
}

#[test]
fn tensors_print_as_in_pytorch() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("golden/printing.json")).unwrap();
    assert!(cases.len() > 100);
    for case in cases {
        assert_eq!(printed(&case), case["text"].as_str().unwrap(), "{}", case["name"]);
    }
}

#[test]
fn views_print_like_their_copies() {
    let x = Tensor::arange(0.0, 6000.0, 1.0).unwrap().reshape([30, 200]).unwrap();
    let views = [
        x.t().unwrap(),
        x.slice(1, 3..190, 7).unwrap(),
        x.select(0, -1).unwrap(),
        x.narrow(0, 2, 5).unwrap().narrow(1, 4, 3).unwrap(),
        x.select(0, 1).unwrap().expand([8, 200]).unwrap(),
        x.narrow(0, 2, 0).unwrap(),
    ];
    for view in views {
        assert_eq!(view.to_string(), view.contiguous().unwrap().to_string());
    }
}

#[test]
fn the_format_string_chooses_the_digits() {
    let x = Tensor::new([1.0, 0.123456]).unwrap();
    assert_eq!(format!("{x:.2}"), "tensor([1.00, 0.12])");
    assert_eq!(format!("{:.1}", Tensor::new([1.0, 2.5e9]).unwrap()), "tensor([1.0e+00, 2.5e+09])");
}

#[test]
fn debug_says_the_same_as_display() {
    let x = Tensor::new([1, -2]).unwrap();
    assert_eq!(format!("{x:?}"), "tensor([ 1, -2])");
    assert_eq!(format!("{:?}", Some(x)), "Some(tensor([ 1, -2]))");
}

#[test]
fn a_result_of_an_operation_names_it() {
    let w = Tensor::new([[2.0]]).unwrap().set_requires_grad(true);
    assert_eq!(w.matmul(&w).unwrap().to_string(), "tensor([[4.]], grad_fn=<matmul>)");
    assert_eq!(w.detach().to_string(), "tensor([[2.]])");
}
