//! `+ - * /` on tensors and numbers.
//!
//! An operator's result is a `Result`, because shapes are run-time values; a `Result` can be an operand again, so that
//! `(x.matmul(&w)? * 2.0 + &b)?` needs one question mark per fallible method and one at the end.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::element::{Float, Num};
use crate::error::Result;
use crate::tensor::Tensor;

/// The four combinations of owned and borrowed operands, and the two with a `Result` on one side.
macro_rules! operator {
    ($trait:ident, $method:ident, $bound:ident) => {
        impl<T: $bound> $trait<&Tensor<T>> for &Tensor<T> {
            type Output = Result<Tensor<T>>;
            fn $method(self, other: &Tensor<T>) -> Self::Output {
                Tensor::$method(self, other)
            }
        }
        impl<T: $bound> $trait<Tensor<T>> for &Tensor<T> {
            type Output = Result<Tensor<T>>;
            fn $method(self, other: Tensor<T>) -> Self::Output {
                Tensor::$method(self, &other)
            }
        }
        impl<T: $bound> $trait<&Tensor<T>> for Tensor<T> {
            type Output = Result<Tensor<T>>;
            fn $method(self, other: &Tensor<T>) -> Self::Output {
                Tensor::$method(&self, other)
            }
        }
        impl<T: $bound> $trait<Tensor<T>> for Tensor<T> {
            type Output = Result<Tensor<T>>;
            fn $method(self, other: Tensor<T>) -> Self::Output {
                Tensor::$method(&self, &other)
            }
        }
        impl<T: $bound> $trait<Result<Tensor<T>>> for &Tensor<T> {
            type Output = Result<Tensor<T>>;
            fn $method(self, other: Result<Tensor<T>>) -> Self::Output {
                Tensor::$method(self, &other?)
            }
        }
        impl<T: $bound> $trait<Result<Tensor<T>>> for Tensor<T> {
            type Output = Result<Tensor<T>>;
            fn $method(self, other: Result<Tensor<T>>) -> Self::Output {
                Tensor::$method(&self, &other?)
            }
        }
        impl<T: $bound> $trait<Tensor<T>> for Result<Tensor<T>> {
            type Output = Result<Tensor<T>>;
            fn $method(self, other: Tensor<T>) -> Self::Output {
                Tensor::$method(&self?, &other)
            }
        }
        impl<T: $bound> $trait<&Tensor<T>> for Result<Tensor<T>> {
            type Output = Result<Tensor<T>>;
            fn $method(self, other: &Tensor<T>) -> Self::Output {
                Tensor::$method(&self?, other)
            }
        }
    };
}

operator!(Add, add, Num);
operator!(Sub, sub, Num);
operator!(Mul, mul, Num);
operator!(Div, div, Float);

/// A tensor with a number on the right.
macro_rules! scalar_right {
    ($trait:ident, $method:ident, $bound:ident, |$x:ident, $value:ident| $result:expr) => {
        impl<T: $bound> $trait<T> for &Tensor<T> {
            type Output = Result<Tensor<T>>;
            fn $method(self, $value: T) -> Self::Output {
                let $x = self;
                $result
            }
        }
        impl<T: $bound> $trait<T> for Tensor<T> {
            type Output = Result<Tensor<T>>;
            fn $method(self, value: T) -> Self::Output {
                $trait::$method(&self, value)
            }
        }
    };
}

scalar_right!(Add, add, Num, |x, value| x.add_scalar(value));
scalar_right!(Sub, sub, Num, |x, value| x.add_scalar(value.negated()));
scalar_right!(Mul, mul, Num, |x, value| x.mul_scalar(value));
scalar_right!(Div, div, Float, |x, value| x.div_scalar(value));

/// A tensor with a number on the left.
macro_rules! scalar_left {
    ($($type:ty),*) => {$(
        impl Add<&Tensor<$type>> for $type {
            type Output = Result<Tensor<$type>>;
            fn add(self, x: &Tensor<$type>) -> Self::Output {
                x.add_scalar(self)
            }
        }
        impl Sub<&Tensor<$type>> for $type {
            type Output = Result<Tensor<$type>>;
            fn sub(self, x: &Tensor<$type>) -> Self::Output {
                x.neg()?.add_scalar(self)
            }
        }
        impl Mul<&Tensor<$type>> for $type {
            type Output = Result<Tensor<$type>>;
            fn mul(self, x: &Tensor<$type>) -> Self::Output {
                x.mul_scalar(self)
            }
        }
    )*};
}

scalar_left!(f32, f64, half::f16, half::bf16, i64, i32, u8);

macro_rules! scalar_over {
    ($($type:ty),*) => {$(
        impl Div<&Tensor<$type>> for $type {
            type Output = Result<Tensor<$type>>;
            fn div(self, x: &Tensor<$type>) -> Self::Output {
                x.scalar_over(self)
            }
        }
    )*};
}

scalar_over!(f32, f64, half::f16, half::bf16);

impl<T: Num> Neg for &Tensor<T> {
    type Output = Result<Tensor<T>>;
    fn neg(self) -> Self::Output {
        Tensor::neg(self)
    }
}

impl<T: Num> Neg for Tensor<T> {
    type Output = Result<Tensor<T>>;
    fn neg(self) -> Self::Output {
        Tensor::neg(&self)
    }
}
