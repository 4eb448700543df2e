//! Elementwise operations, with broadcasting, scalars and operators.

use pagelock_tensor::{DType, Generator, Result, Tensor};

use super::{checked, checked_twice, positive, signed};

/// Shapes that an elementwise function is tried on.
const SHAPES: [&[usize]; 4] = [&[], &[5], &[2, 3], &[2, 1, 3]];

fn unary(f: impl Fn(&Tensor) -> Result<Tensor>, input: fn(&[usize], usize) -> Tensor) {
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        checked_twice(|x| f(&x[0]), &[input(shape, seed)]);
    }
}

#[test]
fn exp() {
    unary(Tensor::exp, signed);
}

#[test]
fn log() {
    unary(Tensor::log, positive);
}

#[test]
fn sqrt() {
    unary(Tensor::sqrt, positive);
}

#[test]
fn tanh() {
    unary(Tensor::tanh, signed);
}

#[test]
fn sigmoid() {
    unary(Tensor::sigmoid, signed);
}

#[test]
fn relu() {
    unary(Tensor::relu, signed);
}

#[test]
fn abs() {
    unary(Tensor::abs, signed);
}

#[test]
fn neg_and_sign() {
    unary(Tensor::neg, signed);
    unary(Tensor::sign, signed);
}

#[test]
fn pow_with_whole_exponents() {
    for exponent in [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0] {
        unary(|x| x.pow(exponent), signed);
    }
}

#[test]
fn pow_with_other_exponents() {
    for exponent in [-0.5, 0.5, 2.5] {
        unary(|x| x.pow(exponent), positive);
    }
}

#[test]
fn adding_and_multiplying_numbers() {
    unary(|x| (x * 3.0)? + 2.0, signed);
    unary(|x| (x - 1.5)? / 4.0, signed);
    unary(|x| 1.0 - &(2.0 * x)?, signed);
    unary(|x| 3.0 / x, positive);
}

#[test]
fn casts_between_floats() {
    unary(|x| x.to_dtype(DType::F64), signed);
}

/// Pairs of shapes that broadcast: equal, repeated, repeated on both sides, scalars.
const PAIRS: [(&[usize], &[usize]); 7] =
    [(&[3], &[3]), (&[2, 3], &[3]), (&[2, 3], &[2, 1]), (&[2, 1], &[1, 3]), (&[], &[2, 2]), (&[3], &[]), (&[], &[])];

fn binary(f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>, input: fn(&[usize], usize) -> Tensor) {
    for (seed, (left, right)) in PAIRS.into_iter().enumerate() {
        checked_twice(|x| f(&x[0], &x[1]), &[input(left, seed), input(right, seed + 10)]);
        checked_twice(|x| f(&x[1], &x[0]), &[input(left, seed), input(right, seed + 10)]);
    }
}

#[test]
fn add() {
    binary(|a, b| a + b, signed);
}

#[test]
fn sub() {
    binary(|a, b| a - b, signed);
}

#[test]
fn mul() {
    binary(|a, b| a * b, signed);
}

#[test]
fn div() {
    binary(|a, b| a / b, positive);
}

#[test]
fn maximum() {
    binary(Tensor::maximum, signed);
}

#[test]
fn one_tensor_as_both_operands() {
    let x = positive(&[2, 2], 3);
    let both = |f: fn(&Tensor, &Tensor) -> Result<Tensor>| {
        checked_twice(|x| f(&x[0], &x[0]), std::slice::from_ref(&x));
        checked_twice(|x| f(&x[0], &x[0].t()?), std::slice::from_ref(&x));
    };
    both(Tensor::add);
    both(Tensor::sub);
    both(Tensor::mul);
    both(Tensor::div);
    both(Tensor::matmul);
}

#[test]
fn where_operands_are_equal_each_gets_half_of_the_gradient() -> Result<()> {
    let a = Tensor::from_slice(&[1.0f64, 2.0, 5.0], 3)?.set_requires_grad(true);
    let b = Tensor::from_slice(&[1.0f64, 3.0, 4.0], 3)?.set_requires_grad(true);
    a.maximum(&b)?.sum(..)?.backward()?;
    assert_eq!(a.grad().unwrap().to_vec::<f64>()?, [0.5, 0.0, 1.0]);
    assert_eq!(b.grad().unwrap().to_vec::<f64>()?, [0.5, 1.0, 0.0]);
    Ok(())
}

#[test]
fn dropout_scales_the_gradients_of_what_it_kept() {
    checked_twice(|x| x[0].dropout(0.4, &Generator::new(5)), &[signed(&[4, 5], 0)]);
    checked(|x| x[0].dropout(0.0, &Generator::new(5)), &[signed(&[3], 0)]);
    checked(|x| x[0].dropout(1.0, &Generator::new(5)), &[signed(&[3], 0)]);
}
