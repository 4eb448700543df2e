//! Elementwise operations: one block each, with the formula in Rust and in CUDA C++, the derivative and the documented
//! method.
//!
//! A unary formula is a function of `x` in the computing type; a binary one takes two elements and broadcasts. In CUDA C++
//! all values are of the computing type, and the result is rounded to the element type; `cuda/header.cu` has the words.
//! Derivatives are tensor operations, so they are differentiable again.

use crate::autograd::Saved;
use crate::cpu::{self, CpuView};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{Element, Float, Num, Real, Scalar};
use crate::error::Result;
use crate::op::{Inputs, Op, Saves, apply, per_type};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The `cuda` of an operation with `n` inputs: `formula! { n, name, [inputs], |op| [constants = values], formula }`.
macro_rules! formula {
    ($n:literal, $name:expr, [$($input:ident),*], |$op:pat_param| [$($constant:ident = $value:expr),*], $text:literal) => {
        const IS_ELEMENTWISE: bool = true;

        fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; $n], out: CudaOut<'_>) -> Result<()> {
            static FORMULA: Formula = Formula {
                name: $name,
                inputs: &[$(stringify!($input)),*],
                constants: &[$(stringify!($constant)),*],
                text: $text,
                changes: false,
            };
            let $op = self;
            FORMULA.run(device, <Self as Op<T, $n>>::NAME, &inputs, &[$(constant($value)),*], out)
        }
    };
}

/// `unary! { doc; method = Struct, what it saves, formula of x, the same in CUDA, |saved, grad| derivative }`
macro_rules! unary {
    ($(#[$doc:meta])* $method:ident = $name:ident, $saves:ident, |$x:ident| $formula:expr, $cuda:literal, |$saved:ident, $grad:ident| $derivative:expr) => {
        struct $name;

        impl<T: Float> Op<T, 1> for $name {
            type Out = T;
            const NAME: &'static str = stringify!($method);
            const SAVES: Saves = Saves::$saves;

            fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
                Ok(*x)
            }

            fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: &mut [T]) -> Result<()> {
                cpu::map1(x, out, #[inline(always)] |x: T| { let $x = x.to_real(); T::from_real($formula) });
                Ok(())
            }

            formula! { 1, stringify!($method), [$x], |_| [], $cuda }

            fn backward(&self, $saved: &Saved<'_, T, T, 1>, $grad: &Tensor<T>) -> Result<[Option<Tensor<T>>; 1]> {
                Ok([Some($derivative?)])
            }
        }

        per_type! { $name[1]: Float }

        impl<T: Float> Tensor<T> {
            $(#[$doc])*
            ///
            /// # Errors
            /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
            pub fn $method(&self) -> Result<Tensor<T>> {
                apply($name, [self])
            }
        }
    };
}

unary! {
    /// eˣ of every element. The derivative is the result itself.
    exp = Exp, Output, |x| x.exp(), "exp(x)", |saved, grad| grad.mul(saved.output())
}
unary! {
    /// The natural logarithm of every element: −∞ at 0, NaN below.
    log = Log, Inputs, |x| x.ln(), "log(x)", |saved, grad| grad.div(saved.input(0))
}
unary! {
    /// The square root of every element: NaN below 0.
    sqrt = Sqrt, Output, |x| x.sqrt(), "sqrt(x)", |saved, grad| grad.div(&saved.output().mul_scalar(T::from_f64(2.0))?)
}
unary! {
    /// The hyperbolic tangent of every element. The derivative is 1 − tanh².
    tanh = Tanh, Output, |x| x.tanh(), "tanh(x)", |saved, grad| apply(TanhGrad, [grad, saved.output()])
}
unary! {
    /// 1 / (1 + e⁻ˣ) of every element. With `y` the result, the derivative is y·(1 − y).
    sigmoid = Sigmoid, Output, |x| x.sigmoid(), "sigmoid(x)", |saved, grad| apply(SigmoidGrad, [grad, saved.output()])
}
unary! {
    /// max(x, 0) of every element; NaN stays NaN. The derivative is 0 at 0 and 1 at NaN, as PyTorch's.
    relu = Relu, Output, |x| if x < T::Real::ZERO { T::Real::ZERO } else { x }, "x < 0 ? 0 : x",
    |saved, grad| grad.where_positive(saved.output())
}

/// `binary! { Struct: bound, name, what it saves, formula, the same in CUDA, |saved, grad| [derivatives] }` for operations
/// that broadcast.
macro_rules! binary {
    ($name:ident: $bound:ident, $op_name:literal, $saves:ident, |$a:ident, $b:ident| $formula:expr, $cuda:literal, |$saved:ident, $grad:ident| [$left:expr, $right:expr $(,)?]) => {
        struct $name;

        per_type! { $name[2]: $bound }

        impl<T: $bound> Op<T, 2> for $name {
            type Out = T;
            const NAME: &'static str = $op_name;
            const SAVES: Saves = Saves::$saves;
            const INPUTS: Inputs = Inputs::Broadcast;

            fn out_shape(&self, [a, b]: [&Shape; 2]) -> Result<Shape> {
                Shape::broadcast($op_name, a, b)
            }

            fn cpu(&self, [a, b]: [CpuView<'_, T>; 2], out: &mut [T]) -> Result<()> {
                cpu::map2(
                    a,
                    b,
                    out,
                    #[inline(always)]
                    |$a: T, $b: T| $formula,
                );
                Ok(())
            }

            formula! { 2, $op_name, [$a, $b], |_| [], $cuda }

            fn backward(&self, $saved: &Saved<'_, T, T, 2>, $grad: &Tensor<T>) -> Result<[Option<Tensor<T>>; 2]> {
                Ok([$saved.grad_of(0, || $left)?, $saved.grad_of(1, || $right)?])
            }
        }
    };
}

binary! { Add: Element, "add", Nothing, |a, b| a.plus(b), "plus(a, b)", |saved, grad| [Ok(grad.clone()), Ok(grad.clone())] }
binary! { Sub: Num, "sub", Nothing, |a, b| a.minus(b), "minus(a, b)", |saved, grad| [Ok(grad.clone()), grad.neg()] }
binary! { Mul: Element, "mul", Inputs, |a, b| a.times(b), "times(a, b)", |saved, grad| [grad.mul(saved.input(1)), grad.mul(saved.input(0))] }
binary! { Div: Float, "div", Inputs, |a, b| T::from_real(a.to_real() / b.to_real()), "a / b", |saved, grad| [
    grad.div(saved.input(1)),
    grad.mul(&saved.input(0).div(saved.input(1))?.div(saved.input(1))?)?.neg(), // b² could overflow, or become 0
] }
// Where both are equal each side gets half of the gradient, as in PyTorch. NaN wins, and then both get all of it.
binary! { Maximum: Num, "maximum", Inputs, |a, b| if a > b || a.is_nan() { a } else { b }, "a > b || is_nan(a) ? a : b", |saved, grad| [
    apply(ShareOfLarger, [grad, saved.input(0), saved.input(1)]),
    apply(ShareOfLarger, [grad, saved.input(1), saved.input(0)]),
] }
// The derivative of relu: 0 where the second operand is at most 0, else (also where it is NaN) the gradient.
binary! { WherePositive: Float, "relu", Inputs, |grad, y| if y <= T::ZERO { T::ZERO } else { grad }, "y <= 0 ? 0 : grad", |saved, grad| [
    apply(WherePositive, [grad, saved.input(1)]),
    grad.zeros_like(),
] }
// The derivative of tanh, from its result: in one operation, because 1 − y² of a rounded y² is far off where y is near 1.
binary! { TanhGrad: Float, "tanh's gradient", Inputs,
|grad, y| T::from_real(grad.to_real() * (T::Real::ONE - y.to_real() * y.to_real())), "grad * (R(1) - y * y)", |saved, h| [
    apply(TanhGrad, [h, saved.input(1)]),
    h.mul(saved.input(0))?.mul(saved.input(1))?.scaled(-2.0),
] }
// The derivative of sigmoid, from its result.
binary! { SigmoidGrad: Float, "sigmoid's gradient", Inputs,
|grad, y| T::from_real(grad.to_real() * (T::Real::ONE - y.to_real()) * y.to_real()), "grad * (R(1) - y) * y", |saved, h| [
    apply(SigmoidGrad, [h, saved.input(1)]),
    h.mul(saved.input(0))?.mul(&saved.input(1).scaled(-2.0)?.add_scalar(T::ONE)?),
] }

/// 0 where `mine < other`, half of `grad` where they are equal, else (also where one is NaN) all of it: the derivative of
/// `maximum`.
struct ShareOfLarger;

per_type! { ShareOfLarger[3]: Num }

impl<T: Num> Op<T, 3> for ShareOfLarger {
    type Out = T;
    const NAME: &'static str = "maximum";
    const SAVES: Saves = Saves::Inputs;
    const INPUTS: Inputs = Inputs::Broadcast;

    fn out_shape(&self, [grad, ..]: [&Shape; 3]) -> Result<Shape> {
        Ok(*grad)
    }

    fn cpu(&self, [grad, mine, other]: [CpuView<'_, T>; 3], out: &mut [T]) -> Result<()> {
        let half = T::from_f64(0.5);
        cpu::map3(
            grad,
            mine,
            other,
            out,
            #[inline(always)]
            |grad: T, mine: T, other: T| {
                if mine < other {
                    T::ZERO
                } else if mine == other {
                    grad.times(half)
                } else {
                    grad
                }
            },
        );
        Ok(())
    }

    formula! { 3, "share of the larger", [grad, mine, other], |_| [], "mine < other ? 0 : mine == other ? times(grad, to<R>(0.5)) : grad" }

    fn backward(&self, saved: &Saved<'_, T, T, 3>, grad: &Tensor<T>) -> Result<[Option<Tensor<T>>; 3]> {
        let back = saved.grad_of(0, || apply(ShareOfLarger, [grad, saved.input(1), saved.input(2)]))?;
        Ok([back, None, None]) // piecewise constant in the operands
    }
}

impl<T: Element> Tensor<T> {
    /// `self + other`, elementwise, broadcasting; also written `&a + &b`. For `bool`: *or*.
    ///
    /// # Errors
    /// [`Error::Broadcast`](crate::Error::Broadcast) if the shapes do not fit.
    pub fn add(&self, other: &Tensor<T>) -> Result<Tensor<T>> {
        apply(Add, [self, other])
    }

    /// `self · other`, elementwise, broadcasting; also written `&a * &b`. For `bool`: *and*.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn mul(&self, other: &Tensor<T>) -> Result<Tensor<T>> {
        apply(Mul, [self, other])
    }
}

impl<T: Num> Tensor<T> {
    /// `self − other`, elementwise, broadcasting; also written `&a - &b`.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn sub(&self, other: &Tensor<T>) -> Result<Tensor<T>> {
        apply(Sub, [self, other])
    }

    /// The larger of each pair of elements, broadcasting. NaN wins.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn maximum(&self, other: &Tensor<T>) -> Result<Tensor<T>> {
        apply(Maximum, [self, other])
    }

    /// `self + value`; also written `&a + value`.
    ///
    /// # Errors
    /// As [`Tensor::neg`].
    pub fn add_scalar(&self, value: T) -> Result<Tensor<T>> {
        apply(AddScalar(value.to_scalar()), [self])
    }

    /// `self · value`; also written `&a * value`.
    ///
    /// # Errors
    /// As [`Tensor::neg`].
    pub fn mul_scalar(&self, value: T) -> Result<Tensor<T>> {
        apply(MulScalar(value.to_scalar()), [self])
    }

    /// `−self`; also written `-&a`.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn neg(&self) -> Result<Tensor<T>> {
        apply(Neg, [self])
    }

    /// The magnitude of every element. The derivative at 0 is 0.
    ///
    /// # Errors
    /// As [`Tensor::neg`].
    pub fn abs(&self) -> Result<Tensor<T>> {
        apply(Abs, [self])
    }
}

impl<T: Float> Tensor<T> {
    /// `self / other`, elementwise, broadcasting; also written `&a / &b`.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn div(&self, other: &Tensor<T>) -> Result<Tensor<T>> {
        apply(Div, [self, other])
    }

    /// 0 where `other` is at most 0, and the elements elsewhere: the derivative of `relu`, whose result is `other`.
    pub(crate) fn where_positive(&self, other: &Tensor<T>) -> Result<Tensor<T>> {
        apply(WherePositive, [self, other])
    }

    /// `self / value`.
    pub(crate) fn div_scalar(&self, value: T) -> Result<Tensor<T>> {
        self.divided(value.cast())
    }

    /// `self / divisor`, for a divisor that the element type may not hold: rounded once.
    pub(crate) fn divided(&self, divisor: f64) -> Result<Tensor<T>> {
        apply(DividedBy(divisor), [self])
    }

    /// `value / self`.
    pub(crate) fn scalar_over(&self, value: T) -> Result<Tensor<T>> {
        apply(ScalarOver(value.to_scalar()), [self])
    }

    /// `self · factor`, rounded once.
    pub(crate) fn scaled(&self, factor: f64) -> Result<Tensor<T>> {
        apply(Scaled(factor), [self])
    }

    /// Every element to the power `exponent`. The derivative is exponent · x^(exponent − 1), and 0 for exponent 0.
    /// Exponents 0.5 and −0.5 are the square root and its reciprocal, also for −∞ and −0, as in PyTorch.
    ///
    /// # Errors
    /// As [`Tensor::neg`].
    pub fn pow(&self, exponent: f64) -> Result<Tensor<T>> {
        apply(Pow(exponent), [self])
    }
}

/// `scalar! { Struct: bound, name, what it saves, |op| [constants = values], |x| formula, the same in CUDA, |saved, grad|
/// derivative }` for one tensor and constants.
macro_rules! scalar {
    ($name:ident: $bound:ident, $op_name:literal, $saves:ident, |$this:ident| [$($constant:ident = $value:expr),*], |$x:ident| $formula:expr, $cuda:literal, |$saved:ident, $grad:ident| $derivative:expr) => {
        per_type! { $name[1]: $bound }

        impl<T: $bound> Op<T, 1> for $name {
            type Out = T;
            const NAME: &'static str = $op_name;
            const SAVES: Saves = Saves::$saves;

            fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
                Ok(*x)
            }

            fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: &mut [T]) -> Result<()> {
                let $this = self;
                $(let $constant = $value;)*
                cpu::map1(
                    x,
                    out,
                    #[inline(always)]
                    |$x: T| $formula,
                );
                Ok(())
            }

            formula! { 1, $op_name, [$x], |$this| [$($constant = $value),*], $cuda }

            fn backward(&self, $saved: &Saved<'_, T, T, 1>, $grad: &Tensor<T>) -> Result<[Option<Tensor<T>>; 1]> {
                let $this = self;
                Ok([Some($derivative?)])
            }
        }
    };
}

struct AddScalar(Scalar);
scalar! { AddScalar: Num, "add", Nothing, |_op| [term = T::from_scalar(_op.0)], |x| x.plus(term), "plus(x, term)",
|_saved, grad| Ok::<_, crate::Error>(grad.clone()) }

struct MulScalar(Scalar);
scalar! { MulScalar: Num, "mul", Nothing, |op| [factor = T::from_scalar(op.0)], |x| x.times(factor), "times(x, factor)",
|_saved, grad| grad.mul_scalar(T::from_scalar(op.0)) }

struct DividedBy(f64);
scalar! { DividedBy: Float, "div", Nothing, |op| [divisor = T::Real::from_f64(op.0)],
|x| T::from_real(x.to_real() / divisor), "x / divisor", |_saved, grad| grad.divided(op.0) }

struct ScalarOver(Scalar);
scalar! { ScalarOver: Float, "div", Inputs, |op| [dividend = T::from_scalar(op.0)],
|x| T::from_real(dividend.to_real() / x.to_real()), "dividend / x",
|saved, grad| {
    let x = saved.input(0);
    grad.mul(&x.scalar_over(T::from_scalar(op.0))?.div(x)?)?.neg() // x² could overflow, or become 0
} }

/// By a factor that the element type may not hold: rounded once, after the product.
struct Scaled(f64);
scalar! { Scaled: Float, "mul", Nothing, |op| [factor = T::Real::from_f64(op.0)],
|x| T::from_real(x.to_real().times(factor)), "times(x, factor)", |_saved, grad| grad.scaled(op.0) }

struct Neg;
scalar! { Neg: Num, "neg", Nothing, |_op| [], |x| x.negated(), "negated(x)", |_saved, grad| grad.neg() }

struct Abs;
scalar! { Abs: Num, "abs", Inputs, |_op| [], |x| x.magnitude(), "magnitude(x)",
|saved, grad| grad.mul(&saved.input(0).sign()?) }

/// −1, 0 or 1. Its derivative is 0 everywhere that it has one.
struct Sign;
scalar! { Sign: Num, "sign", Nothing, |_op| [], |x| sign(x), "x > 0 ? 1 : x < 0 ? -1 : 0",
|_saved, grad| grad.zeros_like() }

fn sign<T: Num>(x: T) -> T {
    if x > T::ZERO {
        T::ONE
    } else if x < T::ZERO {
        T::ONE.negated()
    } else {
        T::ZERO
    }
}

impl<T: Num> Tensor<T> {
    /// −1, 0 or 1 by the sign of every element (0 for NaN).
    ///
    /// # Errors
    /// As [`Tensor::neg`].
    pub fn sign(&self) -> Result<Tensor<T>> {
        apply(Sign, [self])
    }
}

struct Pow(f64);
scalar! { Pow: Float, "pow", Inputs, |op| [exponent = T::Real::from_f64(op.0)], |x| T::from_real(power(x.to_real(), exponent)),
"exponent == 0 ? 1 : exponent == 1 ? x : exponent == 2 ? x * x : exponent == 3 ? x * x * x : exponent == 0.5 ? sqrt(x) \
: exponent == -0.5 ? 1 / sqrt(x) : exponent == -1 ? 1 / x : pow(x, exponent)",
|saved, grad| {
    if op.0 == 0.0 {
        grad.zeros_like()
    } else {
        grad.mul(&saved.input(0).pow(op.0 - 1.0)?.scaled(op.0)?)
    }
} }

/// Small whole exponents by multiplication: faster, and exact where products are. Exponents of a half and minus one as
/// PyTorch has them: √−∞ is NaN, and √−0 is −0.
#[inline(always)]
fn power<R: Real>(x: R, exponent: R) -> R {
    match exponent.cast::<f64>() {
        0.0 => R::ONE,
        1.0 => x,
        2.0 => x * x,
        3.0 => x * x * x,
        0.5 => x.sqrt(),
        -0.5 => R::ONE / x.sqrt(),
        -1.0 => R::ONE / x,
        _ => x.powf(exponent),
    }
}
