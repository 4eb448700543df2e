//! `+ - * /` on tensors and numbers.
//!
//! An operator's result is a `Result`, because shapes are run-time values; a `Result` can be an operand again, so that
//! `(x.matmul(&w)? * 2.0 + &b)?` needs one question mark per fallible method and one at the end.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::element::Scalar;
use crate::error::Result;
use crate::kind::{Float, Number, Numeric, PlainNumber};
use crate::tensor::Tensor;

/// `operator! { [parameters of the impl] trait, method, tensor }` implements a trait for owned and borrowed operands,
/// and with a `Result` on one side.
macro_rules! operator {
    ([$($parameter:tt)*] $trait:ident, $method:ident, $tensor:ty) => {
        operator! { [$($parameter)*] $trait, $method, $tensor; &$tensor, &$tensor, |a, b| Tensor::$method(a, b) }
        operator! { [$($parameter)*] $trait, $method, $tensor; &$tensor, $tensor, |a, b| Tensor::$method(a, &b) }
        operator! { [$($parameter)*] $trait, $method, $tensor; $tensor, &$tensor, |a, b| Tensor::$method(&a, b) }
        operator! { [$($parameter)*] $trait, $method, $tensor; $tensor, $tensor, |a, b| Tensor::$method(&a, &b) }
        operator! { [$($parameter)*] $trait, $method, $tensor; &$tensor, Result<$tensor>, |a, b| Tensor::$method(a, &b?) }
        operator! { [$($parameter)*] $trait, $method, $tensor; $tensor, Result<$tensor>, |a, b| Tensor::$method(&a, &b?) }
        operator! { [$($parameter)*] $trait, $method, $tensor; Result<$tensor>, $tensor, |a, b| Tensor::$method(&a?, &b) }
        operator! { [$($parameter)*] $trait, $method, $tensor; Result<$tensor>, &$tensor, |a, b| Tensor::$method(&a?, b) }
    };
    ([$($parameter:tt)*] $trait:ident, $method:ident, $tensor:ty; $left:ty, $right:ty, |$a:ident, $b:ident| $result:expr) => {
        impl<$($parameter)*> $trait<$right> for $left {
            type Output = Result<$tensor>;
            fn $method(self, other: $right) -> Self::Output {
                let ($a, $b) = (self, other);
                $result
            }
        }
    };
}

operator! { [K: Numeric] Add, add, Tensor<K> }
operator! { [K: Numeric] Sub, sub, Tensor<K> }
operator! { [K: Numeric] Mul, mul, Tensor<K> }
operator! { [] Div, div, Tensor }

/// Operators with a number on the right.
macro_rules! number_right {
    ($trait:ident, $method:ident, |$x:ident, $value:ident| $result:expr) => {
        impl<K: Numeric, N: PlainNumber + Number<K>> $trait<N> for &Tensor<K> {
            type Output = Result<Tensor<K>>;
            fn $method(self, value: N) -> Self::Output {
                let ($x, $value) = (self, value.scalar());
                $result
            }
        }
        impl<K: Numeric, N: PlainNumber + Number<K>> $trait<N> for Tensor<K> {
            type Output = Result<Tensor<K>>;
            fn $method(self, value: N) -> Self::Output {
                $trait::$method(&self, value)
            }
        }
    };
}

number_right!(Add, add, |x, value| x.plus_scalar(value));
number_right!(Sub, sub, |x, value| x.plus_scalar(value.negated()));
number_right!(Mul, mul, |x, value| x.times_scalar(value));

impl<N: PlainNumber + Number<Float>> Div<N> for &Tensor {
    type Output = Result<Tensor>;
    fn div(self, value: N) -> Self::Output {
        self.div_scalar(value)
    }
}

impl<N: PlainNumber + Number<Float>> Div<N> for Tensor {
    type Output = Result<Tensor>;
    fn div(self, value: N) -> Self::Output {
        self.div_scalar(value)
    }
}

/// Operators with a number on the left, of the types that literals default to, so that `2.0 * &x` needs no annotation.
macro_rules! number_left {
    ($($parameters:tt $number:ident, $tensor:ty: $trait:ident $method:ident $of:ident;)*) => { $(
        number_left! { @ $parameters $number, $tensor, $trait, $method, $of }
    )* };
    (@ [$($parameter:tt)*] $number:ident, $tensor:ty, $trait:ident, $method:ident, $of:ident) => {
        impl<$($parameter)*> $trait<&$tensor> for $number {
            type Output = Result<$tensor>;
            fn $method(self, x: &$tensor) -> Self::Output {
                x.$of(Scalar::from(self))
            }
        }
        impl<$($parameter)*> $trait<$tensor> for $number {
            type Output = Result<$tensor>;
            fn $method(self, x: $tensor) -> Self::Output {
                x.$of(Scalar::from(self))
            }
        }
    };
}

number_left! {
    [] f64, Tensor: Add add plus_scalar;
    [] f64, Tensor: Sub sub scalar_minus;
    [] f64, Tensor: Mul mul times_scalar;
    [] f64, Tensor: Div div scalar_over;
    [K: Numeric] i32, Tensor<K>: Add add plus_scalar;
    [K: Numeric] i32, Tensor<K>: Sub sub scalar_minus;
    [K: Numeric] i32, Tensor<K>: Mul mul times_scalar;
    [] i32, Tensor: Div div scalar_over;
}

impl<K: Numeric> Neg for &Tensor<K> {
    type Output = Result<Tensor<K>>;
    fn neg(self) -> Self::Output {
        Tensor::neg(self)
    }
}

impl<K: Numeric> Neg for Tensor<K> {
    type Output = Result<Tensor<K>>;
    fn neg(self) -> Self::Output {
        Tensor::neg(&self)
    }
}
