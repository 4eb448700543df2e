//! Elementwise operations: one block each, with the formula in Rust and in CUDA C++, the derivative and the documented
//! method.
//!
//! A unary formula is a function of `x` in the computing type; a binary one takes two elements and broadcasts. In
//! CUDA C++ all values are of the computing type, and the result is rounded to the element type; `cuda/header.cu`
//! defines the functions. Derivatives are tensor operations, so they are differentiable again.

use super::fused::mixed;
use super::reciprocal::ScalarOverGrad;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{DType, Num, Real, Scalar};
use crate::error::Result;
use crate::kind::{Float, Kind, Number, Numeric};
use crate::op::{
    CpuKernel, Derivative, Inputs, LockedInputs, Op, PerType, Precision, Saves, apply, apply_raw, per_type,
};
use crate::storage::Fresh;
use crate::tensor::{Raw, Tensor, by_num};

/// The `cuda` of an operation with `n` inputs: `formula! { n, name, [inputs], |op| [constants = values], formula }`.
macro_rules! formula {
    ($n:literal, $name:expr, [$($input:ident),*], |$op:pat_param| [$($constant:ident = $value:expr),*], $text:expr) => {
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
            FORMULA.run(device, <Self as Op<$n>>::NAME, &inputs, &[$(constant(inputs[0].dtype(), $value)),*], out)
        }
    };
}

pub(super) use formula;

/// `unary! { doc; method = Struct, saved, precision, loop: formula of x, in CUDA, |saved, grad| derivative }`. The
/// loop may have one more argument.
macro_rules! unary {
    ($(#[$doc:meta])* $method:ident = $name:ident, $saves:ident, $precision:ident, $map:ident$(($rare:expr))?: |$x:ident| $formula:expr, $cuda:literal, |$saved:ident, $grad:ident| $derivative:expr) => {
        struct $name;

        impl Op<1> for $name {
            const NAME: &'static str = stringify!($method);
            const PRECISION: Precision = Precision::$precision;

            formula! { 1, stringify!($method), [$x], |_| [], $cuda }
        }

        impl Derivative<1> for $name {
            const SAVES: Saves = Saves::$saves;

            fn backward(&self, $saved: &Saved<'_, 1>, $grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
                Ok([Some($derivative?)])
            }
        }

        impl<R: Real> CpuKernel<R, 1> for $name {
            type Out = R;

            fn cpu(&self, [x]: [CpuView<'_, R>; 1], out: StoredMut<'_, R>) -> Result<()> {
                cpu::$map(x, out, #[inline(always)] |$x: R| $formula $(, $rare)?);
                Ok(())
            }
        }

        per_type! { $name[1]: Real }

        impl Tensor {
            $(#[$doc])*
            ///
            /// # Errors
            /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
            pub fn $method(&self) -> Result<Tensor> {
                apply($name, [self])
            }
        }
    };
}

pub(super) use unary;

unary! {
    /// eˣ of every element. The derivative is the result itself.
    exp = Exp, Output, F32UnderAutocast, map1_long: |x| x.exp(), "exp(x)", |saved, grad| grad.mul(saved.output())
}
unary! {
    /// The natural logarithm of every element: −∞ at 0, NaN below.
    log = Log, Inputs, F32UnderAutocast, map1_long: |x| x.ln(), "log(x)", |saved, grad| grad.div(saved.input(0))
}
unary! {
    /// The square root of every element: NaN below 0.
    sqrt = Sqrt, Output, Same, map1: |x| x.sqrt(), "sqrt(x)", |saved, grad| grad.div(&saved.output().mul_scalar(2.0)?)
}
unary! {
    /// The hyperbolic tangent of every element. The derivative is 1 − tanh².
    tanh = Tanh, Output, Same, map1_long: |x| x.tanh(), "tanh(x)", |saved, grad| apply(TanhGrad, [grad, saved.output()])
}
unary! {
    /// 1 / (1 + e⁻ˣ) of every element. With `y` the result, the derivative is y·(1 − y).
    sigmoid = Sigmoid, Output, Same, map1_long: |x| x.sigmoid(), "sigmoid(x)", |saved, grad| apply(SigmoidGrad, [grad, saved.output()])
}
unary! {
    /// x / (1 + e⁻ˣ) of every element, PyTorch's `silu`. With s = 1 / (1 + e⁻ˣ), the derivative is s·(1 + x·(1 − s)).
    silu = Silu, Inputs, Same, map1_long: |x| x / (R::ONE + (-x).exp()), "x * sigmoid(x)", |saved, grad| apply(SiluGrad, [grad, saved.input(0)])
}
unary! {
    /// max(x, 0) of every element; NaN stays NaN. As in PyTorch, the derivative is 0 at 0 and 1 at NaN.
    relu = Relu, Output, Same, map1: |x| if x < R::ZERO { R::ZERO } else { x }, "x < 0 ? 0 : x",
    |saved, grad| grad.where_positive(saved.output())
}

/// `binary! { Struct: bound, name, what is saved, loop: formula, the same in CUDA, |saved, grad| [derivatives] }` for
/// operations that broadcast. The loop may be left out, for `map2`, or have one more argument.
macro_rules! binary {
    (@run $a:expr, $b:expr, $out:expr, [$($formula:tt)*]) => { cpu::map2($a, $b, $out, $($formula)*); };
    (@run $a:expr, $b:expr, $out:expr, [$($formula:tt)*], $map:ident $(, $rest:expr)?) => { cpu::$map($a, $b, $out, $($formula)* $(, $rest)?); };
    ($name:ident: $bound:ident, $op_name:literal, $saves:ident, $($map:ident$(($rest:expr))?:)? |$a:ident, $b:ident| $formula:expr, $cuda:literal, |$saved:ident, $grad:ident| [$left:expr, $right:expr $(,)?]) => {
        struct $name;

        impl Op<2> for $name {
            const NAME: &'static str = $op_name;
            const INPUTS: Inputs = Inputs::Broadcast;
            const PRECISION: Precision = Precision::Widest;

            formula! { 2, $op_name, [$a, $b], |_| [], $cuda }
        }

        impl Derivative<2> for $name {
            const SAVES: Saves = Saves::$saves;

            fn backward(&self, $saved: &Saved<'_, 2>, $grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
                Ok([$saved.grad_of(0, || $left)?, $saved.grad_of(1, || $right)?])
            }
        }

        impl<T: $bound> CpuKernel<T, 2> for $name {
            type Out = T;

            fn cpu(&self, [a, b]: [CpuView<'_, T>; 2], out: StoredMut<'_, T>) -> Result<()> {
                binary! { @run a, b, out, [#[inline(always)] |$a: T, $b: T| $formula] $(, $map $(, $rest)?)? }
                Ok(())
            }
        }
    };
}

pub(super) use binary;

binary! { Add: Num, "add", Nothing, |a, b| a.plus(b), "plus(a, b)", |saved, grad| [Ok(grad.clone()), Ok(grad.clone())] }
binary! { Sub: Num, "sub", Nothing, |a, b| a.minus(b), "minus(a, b)", |saved, grad| [Ok(grad.clone()), grad.neg()] }
binary! { Mul: Num, "mul", OtherInputs, map2_product: |a, b| a.times(b), "times(a, b)", |saved, grad| [grad.mul(saved.input(1)), grad.mul(saved.input(0))] }
binary! { Div: Real, "div", Inputs, |a, b| a / b, "a / b", |saved, grad| [
    grad.div(saved.input(1)),
    grad.mul(&saved.input(0).div(saved.input(1))?.div(saved.input(1))?)?.neg(), // b² could overflow, or become 0
] }
// Where both are equal, each side gets half of the gradient, as in PyTorch. Where one is NaN, both get all of it.
binary! { Maximum: Num, "maximum", Inputs, |a, b| if a > b || a.is_nan() { a } else { b }, "a > b || is_nan(a) ? a : b", |saved, grad| [
    apply(ShareOfLarger, [grad, saved.input(0), saved.input(1)]),
    apply(ShareOfLarger, [grad, saved.input(1), saved.input(0)]),
] }
// The derivative of relu: 0 where the second operand is at most 0, otherwise (also where it is NaN) the gradient.
binary! { WherePositive: Real, "relu", Inputs, |grad, y| if y <= T::ZERO { T::ZERO } else { grad }, "y <= 0 ? 0 : grad", |saved, grad| [
    apply(WherePositive, [grad, saved.input(1)]),
    grad.zeros_like(),
] }
// The derivative of tanh, from its result: in one operation, because 1 − y² of a rounded y² is far off where y is near 1.
binary! { TanhGrad: Real, "tanh's gradient", Inputs,
|grad, y| grad * (T::ONE - y * y), "grad * (R(1) - y * y)", |saved, h| [
    apply(TanhGrad, [h, saved.input(1)]),
    h.mul(saved.input(0))?.mul(saved.input(1))?.mul_scalar(-2.0),
] }
// The derivative of sigmoid, from its result.
binary! { SigmoidGrad: Real, "sigmoid's gradient", Inputs,
|grad, y| grad * (T::ONE - y) * y, "grad * (R(1) - y) * y", |saved, h| [
    apply(SigmoidGrad, [h, saved.input(1)]),
    h.mul(saved.input(0))?.mul(&saved.input(1).mul_scalar(-2.0)?.add_scalar(1.0)?),
] }
// The derivative of silu; that of s·(1 + x·(1 − s)) is s·(1 − s)·(2 + x·(1 − 2·s)).
binary! { SiluGrad: Real, "silu's gradient", Inputs, map2_longest: |grad, x| {
    let s = T::ONE / (T::ONE + (-x).exp());
    grad * s * (x * (T::ONE - s) + T::ONE)
}, "grad * sigmoid(x) * (x * (R(1) - sigmoid(x)) + R(1))", |saved, h| [
    apply(SiluGrad, [h, saved.input(1)]),
    {
        let (x, s) = (saved.input(1), saved.input(1).sigmoid()?);
        let bent = x.mul(&s.mul_scalar(-2.0)?.add_scalar(1.0)?)?.add_scalar(2.0)?;
        h.mul(saved.input(0))?.mul(&s.sub(&s.mul(&s)?)?)?.mul(&bent)
    },
] }

per_type! { Sub[2]: Num }
per_type! { Div[2]: Real }
per_type! { Maximum[2]: Num }
per_type! { WherePositive[2]: Real }
per_type! { TanhGrad[2]: Real }
per_type! { SigmoidGrad[2]: Real }
per_type! { SiluGrad[2]: Real }

/// `also_of_truths! { Add, |a, b| formula }`: an operation on numbers that also takes truth values, with a formula
/// for bytes.
macro_rules! also_of_truths {
    ($op:ty, |$a:ident, $b:ident| $formula:expr) => {
        impl PerType<2> for $op {
            fn out_dtype(&self, input: DType) -> DType {
                input
            }

            fn run_on_cpu(&self, inputs: &LockedInputs<'_, 2>, out: &mut Fresh) -> Result<()> {
                if inputs.dtype() == DType::Bool {
                    let [a, b] = inputs.views::<u8>();
                    cpu::map2(a, b, out.stored::<u8>(), |$a: u8, $b: u8| $formula);
                    return Ok(());
                }
                by_num!(inputs.dtype(), T => CpuKernel::<T, 2>::cpu(self, inputs.views(), out.stored()))
            }
        }
    };
}

also_of_truths! { Add, |a, b| a | b }
also_of_truths! { Mul, |a, b| a & b }

/// The derivative of `maximum`: 0 where `mine < other`, half of `grad` where they are equal, otherwise (also where
/// one is NaN) `grad`.
pub(super) struct ShareOfLarger;

mixed! { ShareOfLarger[3]: Num, "maximum", [grad, mine, other], |_| [],
|T| if mine < other { T::ZERO } else if mine == other { grad.times(T::from_f64(0.5)) } else { grad }, map3,
"mine < other ? 0 : mine == other ? times(grad, to<R>(0.5)) : grad" }

impl Derivative<3> for ShareOfLarger {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let back = saved.grad_of(0, || apply(ShareOfLarger, [grad, saved.input(1), saved.input(2)]))?;
        Ok([back, None, None]) // piecewise constant in the operands
    }
}

impl<K: Kind> Tensor<K> {
    /// `self + other`, elementwise, broadcasting; also written `&a + &b`. For `bool`: *or*.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the shapes do not fit.
    pub fn add(&self, other: &Tensor<K>) -> Result<Tensor<K>> {
        self.raw().add(other.raw()).map(Raw::typed)
    }

    /// `self · other`, elementwise, broadcasting; also written `&a * &b`. For `bool`: *and*.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn mul(&self, other: &Tensor<K>) -> Result<Tensor<K>> {
        self.raw().mul(other.raw()).map(Raw::typed)
    }
}

impl Raw {
    pub(crate) fn add(&self, other: &Raw) -> Result<Raw> {
        apply_raw(Add, [self, other])
    }

    pub(crate) fn mul(&self, other: &Raw) -> Result<Raw> {
        apply_raw(Mul, [self, other])
    }
}

impl<K: Numeric> Tensor<K> {
    /// `self − other`, elementwise, broadcasting; also written `&a - &b`.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn sub(&self, other: &Tensor<K>) -> Result<Tensor<K>> {
        self.raw().sub(other.raw()).map(Raw::typed)
    }

    /// The larger of each pair of elements, broadcasting. NaN wins.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn maximum(&self, other: &Tensor<K>) -> Result<Tensor<K>> {
        self.raw().maximum(other.raw()).map(Raw::typed)
    }

    /// `self + value`; also written `&a + value`.
    ///
    /// # Errors
    /// As [`Tensor::neg`].
    pub fn add_scalar(&self, value: impl Number<K>) -> Result<Tensor<K>> {
        self.plus_scalar(value.scalar())
    }

    /// `self · value`; also written `&a * value`.
    ///
    /// # Errors
    /// As [`Tensor::neg`].
    pub fn mul_scalar(&self, value: impl Number<K>) -> Result<Tensor<K>> {
        self.times_scalar(value.scalar())
    }

    pub(crate) fn plus_scalar(&self, value: Scalar) -> Result<Tensor<K>> {
        self.raw().plus_scalar(value).map(Raw::typed)
    }

    /// `value − self`.
    pub(crate) fn scalar_minus(&self, value: Scalar) -> Result<Tensor<K>> {
        apply_raw(ScalarMinus(value), [self.raw()]).map(Raw::typed)
    }

    pub(crate) fn times_scalar(&self, value: Scalar) -> Result<Tensor<K>> {
        self.raw().times_scalar(value).map(Raw::typed)
    }

    /// `−self`; also written `-&a`.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn neg(&self) -> Result<Tensor<K>> {
        self.raw().neg().map(Raw::typed)
    }

    /// The magnitude of every element. The derivative at 0 is 0.
    ///
    /// # Errors
    /// As [`Tensor::neg`].
    pub fn abs(&self) -> Result<Tensor<K>> {
        self.raw().abs().map(Raw::typed)
    }
}

impl Raw {
    pub(crate) fn sub(&self, other: &Raw) -> Result<Raw> {
        apply_raw(Sub, [self, other])
    }

    pub(crate) fn maximum(&self, other: &Raw) -> Result<Raw> {
        apply_raw(Maximum, [self, other])
    }

    /// [`Tensor::add_scalar`].
    pub(crate) fn plus_scalar(&self, value: Scalar) -> Result<Raw> {
        apply_raw(AddScalar(value), [self])
    }

    /// [`Tensor::mul_scalar`].
    pub(crate) fn times_scalar(&self, value: Scalar) -> Result<Raw> {
        apply_raw(MulScalar(value), [self])
    }

    pub(crate) fn neg(&self) -> Result<Raw> {
        apply_raw(Neg, [self])
    }

    pub(crate) fn abs(&self) -> Result<Raw> {
        apply_raw(Abs, [self])
    }
}

impl Tensor {
    /// `self / other`, elementwise, broadcasting; also written `&a / &b`.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn div(&self, other: &Tensor) -> Result<Tensor> {
        apply(Div, [self, other])
    }

    /// 0 where `other` is at most 0, and the elements elsewhere: the derivative of `relu`, whose result is `other`.
    pub(crate) fn where_positive(&self, other: &Tensor) -> Result<Tensor> {
        apply(WherePositive, [self, other])
    }

    /// `self / value`; also written `&a / value`.
    ///
    /// # Errors
    /// As [`Tensor::neg`].
    pub fn div_scalar(&self, value: impl Number<Float>) -> Result<Tensor> {
        apply(DivScalar(value.scalar()), [self])
    }

    /// `value / self`.
    pub(crate) fn scalar_over(&self, value: Scalar) -> Result<Tensor> {
        apply(ScalarOver(value), [self])
    }

    /// Every element to the power `exponent`. The derivative is exponent · x^(exponent − 1), and 0 for exponent 0. As
    /// in PyTorch, exponents 0.5 and −0.5 are the square root and its reciprocal, also for −∞ and −0, and 2, 3, −1
    /// and −2 are computed by products and reciprocals.
    ///
    /// # Errors
    /// As [`Tensor::neg`].
    pub fn pow(&self, exponent: f64) -> Result<Tensor> {
        apply(Pow(exponent), [self])
    }
}

/// `scalar! { Struct: bound, name, saved, |op| [constants = values], |x| formula, in CUDA, |saved, grad| derivative }`
/// for one tensor and constants. After the formula may come `of bits:` with the same function of the bits of halves,
/// or `by` with a loop other than `map1`.
macro_rules! scalar {
    (@run $x:expr, $out:expr, [$($formula:tt)*]) => { cpu::map1($x, $out, $($formula)*); };
    (@run $x:expr, $out:expr, [$($formula:tt)*], by $map:ident) => { cpu::$map($x, $out, $($formula)*); };
    (@run $x:expr, $out:expr, [$($formula:tt)*], $of_bits:expr) => { cpu::map1_by_bits($x, $out, $($formula)*, $of_bits); };
    ($name:ident: $bound:ident, $op_name:literal, $saves:ident, $precision:ident, |$this:ident| [$($constant:ident = $value:expr),*], |$x:ident| $formula:expr$(, of bits: $of_bits:expr)?$(, by $map:ident)?, $cuda:literal, |$saved:ident, $grad:ident| $derivative:expr) => {
        per_type! { $name[1]: $bound }

        impl Op<1> for $name {
            const NAME: &'static str = $op_name;
            const PRECISION: Precision = Precision::$precision;

            formula! { 1, $op_name, [$x], |$this| [$($constant = $value),*], $cuda }
        }

        impl Derivative<1> for $name {
            const SAVES: Saves = Saves::$saves;

            fn backward(&self, $saved: &Saved<'_, 1>, $grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
                let $this = self;
                Ok([Some($derivative?)])
            }
        }

        impl<T: $bound> CpuKernel<T, 1> for $name {
            type Out = T;

            fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: StoredMut<'_, T>) -> Result<()> {
                let $this = self;
                $(let $constant = T::from_scalar($value);)*
                scalar! { @run x, out, [#[inline(always)] move |$x: T| $formula] $(, $of_bits)? $(, by $map)? }
                Ok(())
            }
        }
    };
}

pub(super) use scalar;

struct AddScalar(Scalar);
scalar! { AddScalar: Num, "add", Nothing, Same, |_op| [term = _op.0], |x| x.plus(term), "plus(x, term)",
|_saved, grad| Ok::<_, crate::Error>(grad.clone()) }

struct ScalarMinus(Scalar);
scalar! { ScalarMinus: Num, "sub", Nothing, Same, |_op| [minuend = _op.0], |x| minuend.minus(x), "minus(minuend, x)",
|_saved, grad| grad.neg() }

struct MulScalar(Scalar);
scalar! { MulScalar: Num, "mul", Nothing, Same, |op| [factor = op.0], |x| x.times(factor), "times(x, factor)",
|_saved, grad| grad.times_scalar(op.0) }

struct DivScalar(Scalar);
scalar! { DivScalar: Real, "div", Nothing, Same, |op| [divisor = op.0], |x| x / divisor, "x / divisor",
|_saved, grad| apply(DivScalar(op.0), [grad]) }

struct ScalarOver(Scalar);
scalar! { ScalarOver: Real, "div", Inputs, F32UnderAutocast, |op| [dividend = op.0],
|x| dividend / x, by map1_long, "dividend / x",
|saved, grad| apply(ScalarOverGrad(op.0), [grad, saved.input(0)]) }

struct Neg;
scalar! { Neg: Num, "neg", Nothing, Same, |_op| [], |x| x.negated(), of bits: |bits| bits ^ 0x8000, "negated(x)", |_saved, grad| grad.neg() }

struct Abs;
scalar! { Abs: Num, "abs", Inputs, Same, |_op| [], |x| x.magnitude(), of bits: |bits| bits & 0x7fff, "magnitude(x)",
|saved, grad| grad.mul(&saved.input(0).sign()?) }

/// −1, 0 or 1. The derivative is 0.
struct Sign;
scalar! { Sign: Num, "sign", Nothing, Same, |_op| [], |x| sign(x), "x > 0 ? 1 : x < 0 ? -1 : 0",
|_saved, grad| grad.zeros_like() }

#[inline(always)]
fn sign<T: Num>(x: T) -> T {
    if x > T::ZERO {
        T::ONE
    } else if x < T::ZERO {
        T::ONE.negated()
    } else {
        T::ZERO
    }
}

impl<K: Numeric> Tensor<K> {
    /// −1, 0 or 1 by the sign of every element (0 for NaN).
    ///
    /// # Errors
    /// As [`Tensor::neg`].
    pub fn sign(&self) -> Result<Tensor<K>> {
        self.raw().sign().map(Raw::typed)
    }
}

impl Raw {
    pub(crate) fn sign(&self) -> Result<Raw> {
        apply_raw(Sign, [self])
    }
}

struct Pow(f64);

per_type! { Pow[1]: Real }

impl Op<1> for Pow {
    const NAME: &'static str = "pow";
    const PRECISION: Precision = Precision::F32UnderAutocast;

    formula! { 1, "pow", [x], |op| [exponent = Scalar::Float(op.0)],
    "exponent == 0 ? 1 : exponent == 1 ? x : exponent == 2 ? x * x : exponent == 3 ? x * x * x : exponent == 0.5 ? sqrt(x) \
    : exponent == -0.5 ? 1 / sqrt(x) : exponent == -1 ? 1 / x : exponent == -2 ? 1 / (x * x) : pow(x, exponent)" }
}

impl Derivative<1> for Pow {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        if self.0 == 0.0 {
            return Ok([Some(grad.zeros_like()?)]);
        }
        Ok([Some(grad.mul(&saved.input(0).pow(self.0 - 1.0)?.mul_scalar(self.0)?)?)])
    }
}

/// Small integer exponents are computed by multiplication: faster, and exact where products are. Exponents ±0.5 use
/// the square root, as in PyTorch: √−∞ is NaN, and √−0 is −0.
impl<R: Real> CpuKernel<R, 1> for Pow {
    type Out = R;

    fn cpu(&self, [x]: [CpuView<'_, R>; 1], out: StoredMut<'_, R>) -> Result<()> {
        match R::from_f64(self.0).cast::<f64>() {
            0.0 => cpu::map1(x, out, |_: R| R::ONE),
            1.0 => cpu::map1(x, out, |x: R| x),
            2.0 => cpu::map1(x, out, |x: R| x * x),
            3.0 => cpu::map1(x, out, |x: R| x * x * x),
            0.5 => cpu::map1(x, out, |x: R| x.sqrt()),
            -0.5 => cpu::map1_long(x, out, |x: R| R::ONE / x.sqrt()),
            -1.0 => cpu::map1_long(x, out, |x: R| R::ONE / x),
            -2.0 => cpu::map1_long(x, out, |x: R| R::ONE / (x * x)),
            exponent => {
                let exponent = R::from_f64(exponent);
                cpu::map1_longest(x, out, inlined!(move |x: R| x.powf(exponent)));
            }
        }
        Ok(())
    }
}
