//! Tensors print as PyTorch prints them: `golden/printing.py` wrote down what it says.

use half::{bf16, f16};
use pagelock_tensor::{Create, Element, Tensor};
use serde_json::Value;

/// The number at a place of the file: JSON has no infinities, so they are strings.
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

fn tensor<T: Element>(case: &Value) -> Tensor<T> {
    let shape: Vec<usize> =
        case["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect();
    let values: Vec<T> = values(case).into_iter().map(T::from_f64).collect();
    Tensor::from_vec(values, &shape[..]).unwrap()
}

fn printed(case: &Value) -> String {
    match (case["dtype"].as_str().unwrap(), case["grad"].as_str()) {
        ("float32", Some("leaf")) => tensor::<f32>(case).set_requires_grad(true).to_string(),
        ("float64", Some("leaf")) => tensor::<f64>(case).set_requires_grad(true).to_string(),
        ("float32", Some("product")) => {
            let leaf = tensor::<f32>(case).set_requires_grad(true);
            leaf.mul(&Tensor::ones(()).unwrap()).unwrap().to_string()
        }
        ("float32", None) => tensor::<f32>(case).to_string(),
        ("float64", None) => tensor::<f64>(case).to_string(),
        ("float16", None) => tensor::<f16>(case).to_string(),
        ("bfloat16", None) => tensor::<bf16>(case).to_string(),
        ("int64", None) => tensor::<i64>(case).to_string(),
        ("int32", None) => tensor::<i32>(case).to_string(),
        ("uint8", None) => tensor::<u8>(case).to_string(),
        ("bool", None) => tensor::<bool>(case).to_string(),
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
    let x = Tensor::<i64>::new([1, -2]).unwrap();
    assert_eq!(format!("{x:?}"), "tensor([ 1, -2])");
    assert_eq!(format!("{:?}", Some(x)), "Some(tensor([ 1, -2]))");
}

#[test]
fn a_result_of_an_operation_names_it() {
    let w = Tensor::new([[2.0]]).unwrap().set_requires_grad(true);
    assert_eq!(w.matmul(&w).unwrap().to_string(), "tensor([[4.]], grad_fn=<matmul>)");
    assert_eq!(w.detach().to_string(), "tensor([[2.]])");
}
