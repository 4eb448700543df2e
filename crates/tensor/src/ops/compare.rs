//! Comparisons, which make `bool` tensors, and conversions between precisions and kinds.

use super::elementwise::formula;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut, math};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{Computing, DType, Element, Scalar};
use crate::error::{Error, Result};
use crate::kind::{Bool, Int, Kind};
use crate::op::{
    CpuKernel, Derivative, Inputs, LockedInputs, Op, PerType, Precision, apply_into, apply_raw, per_type,
    run_unrecorded,
};
use crate::storage::Fresh;
use crate::tensor::{Raw, Tensor, by_computing, by_num};

/// `truths! { Struct, method, formula in CUDA, |inputs, out| kernel }`: an operation on two tensors that broadcast, whose
/// result is truth values.
macro_rules! truths {
    ($name:ident, $method:ident, $cuda:expr, |$inputs:ident, $out:ident| $kernel:expr) => {
        struct $name;

        impl PerType<2> for $name {
            fn out_dtype(&self, _: DType) -> DType {
                DType::Bool
            }

            fn run_on_cpu(&self, $inputs: &LockedInputs<'_, 2>, out: &mut Fresh) -> Result<()> {
                let $out = out.stored::<u8>();
                $kernel;
                Ok(())
            }
        }

        impl Op<2> for $name {
            const NAME: &'static str = stringify!($method);
            const INPUTS: Inputs = Inputs::Broadcast;
            const PRECISION: Precision = Precision::Widest;

            formula! { 2, stringify!($method), [a, b], |_| [], $cuda }
        }
    };
}

pub(super) use truths;

/// `comparison! { Struct, method, operator, doc }`
macro_rules! comparison {
    ($name:ident, $method:ident, $operator:tt, $doc:literal) => {
        truths! { $name, $method, concat!("a ", stringify!($operator), " b"), |inputs, out| by_computing!(inputs.dtype(), C => {
            let [a, b] = inputs.views::<C>();
            cpu::map2(a, b, out, |a: C, b: C| u8::from(a $operator b))
        }) }

        impl<K: Kind> Tensor<K> {
            #[doc = $doc]
            ///
            /// # Errors
            /// [`Error::Argument`](crate::Error::Argument) if the shapes do not fit.
            pub fn $method(&self, other: &Tensor<K>) -> Result<Tensor<Bool>> {
                self.raw().$method(other.raw()).map(Raw::typed)
            }
        }

        impl Raw {
            pub(crate) fn $method(&self, other: &Raw) -> Result<Raw> {
                run_unrecorded(&$name, [self, other])
            }
        }
    };
}

comparison!(Eq, eq, ==, "Where `self == other`, elementwise, broadcasting.");
comparison!(Ne, ne, !=, "Where `self != other`, elementwise, broadcasting.");
comparison!(Lt, lt, <, "Where `self < other`, elementwise, broadcasting.");
comparison!(Le, le, <=, "Where `self <= other`, elementwise, broadcasting.");
comparison!(Gt, gt, >, "Where `self > other`, elementwise, broadcasting.");
comparison!(Ge, ge, >=, "Where `self >= other`, elementwise, broadcasting.");

/// Where an element is 0.
pub(super) struct IsZero;

impl Op<1> for IsZero {
    const NAME: &'static str = "logical_not";

    formula! { 1, "is_zero", [x], |_| [], "x == R(0)" }
}

impl PerType<1> for IsZero {
    fn out_dtype(&self, _: DType) -> DType {
        DType::Bool
    }

    fn run_on_cpu(&self, inputs: &LockedInputs<'_, 1>, out: &mut Fresh) -> Result<()> {
        by_computing!(inputs.dtype(), C => {
            let [x] = inputs.views::<C>();
            cpu::map1(x, out.stored::<u8>(), |x: C| u8::from(x == C::ZERO));
        });
        Ok(())
    }
}

/// A conversion to another precision or kind, as Rust's `as` does it: floats become integers by truncation (saturating),
/// anything but zero becomes `true`.
struct Cast {
    to: DType,
}

impl Op<1> for Cast {
    const NAME: &'static str = "to_dtype";

    formula! { 1, "cast", [x], |_| [], "x" }
}

impl Derivative<1> for Cast {
    /// The engine converts a gradient to the precision of its tensor.
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(grad.clone())])
    }
}

impl PerType<1> for Cast {
    fn out_dtype(&self, _: DType) -> DType {
        self.to
    }

    fn run_on_cpu(&self, inputs: &LockedInputs<'_, 1>, out: &mut Fresh) -> Result<()> {
        by_computing!(inputs.dtype(), C => {
            let [x] = inputs.views::<C>();
            match self.to {
                to if to.computing() == C::DTYPE => cpu::convert(x, out.stored::<C>()),
                DType::F16 | DType::BF16 => cpu::to_halves(x, out.stored()),
                DType::Bool => cpu::map1(x, out.stored::<u8>(), |x: C| u8::from(x != C::ZERO)),
                DType::I64 => cpu::map1_long(x, out.stored::<i64>(), #[inline(always)] |x: C| whole(x)),
                to => by_num!(to, U => cpu::map1(x, out.stored::<U>(), |x: C| x.cast())),
            }
        });
        Ok(())
    }
}

/// As an `i64`; see [`Cast`].
#[inline(always)]
fn whole<C: Computing>(x: C) -> i64 {
    match x.to_scalar() {
        Scalar::Int(value) => value,
        Scalar::Float(value) => math::f64::to_i64(value),
    }
}

/// The tensor in another precision or kind, recorded if both are floats.
pub(crate) fn cast(tensor: &Raw, to: DType) -> Result<Raw> {
    apply_raw(Cast { to }, [tensor])
}

impl Raw {
    /// The tensor in that precision or kind; unchanged if it already has it.
    pub(crate) fn converted(&self, dtype: DType) -> Result<Raw> {
        if self.dtype() == dtype { Ok(self.clone()) } else { cast(self, dtype) }
    }
}

impl<K: Kind> Tensor<K> {
    /// The same numbers in another precision of the same kind, rounded to nearest even where it is narrower; the
    /// tensor itself if it already has `dtype`. Between floats gradients flow back, converted.
    ///
    /// ```
    /// # use pagelock_tensor::{DType, Tensor};
    /// let x = Tensor::new([1.0, 1.0 / 3.0])?.to_dtype(DType::BF16)?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 0.33398438]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongKind`] for a precision of another kind; [`Error::Memory`] if the result does not fit the budget.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor<K>> {
        if !K::holds(dtype) {
            return Err(Error::WrongKind { op: "to_dtype", dtype, kind: K::NAME });
        }
        self.converted(dtype)
    }

    /// The elements as floats of the default precision ([`default_dtype`](crate::default_dtype)); of a float tensor, the
    /// tensor itself. `true` becomes 1.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let right = Tensor::new([1.0, 2.0])?.eq(&Tensor::new([1.0, 3.0])?)?;
    /// assert_eq!(right.to_float()?.mean(..)?.item::<f32>()?, 0.5);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if the result does not fit the budget.
    pub fn to_float(&self) -> Result<Tensor> {
        self.of_kind()
    }

    /// The elements as floats of the precision `dtype`. `f64` holds large integers that `to_float` rounds to `f32`.
    ///
    /// ```
    /// # use pagelock_tensor::{DType, Tensor};
    /// let count = Tensor::full((), (1_i64 << 24) + 1)?;
    /// assert_eq!(count.to_float_of(DType::F64)?.item::<f64>()?, 16_777_217.0);
    /// assert_eq!(count.to_float()?.item::<f64>()?, 16_777_216.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongKind`] if `dtype` is no float; [`Error::Memory`] if the result does not fit the budget.
    pub fn to_float_of(&self, dtype: DType) -> Result<Tensor> {
        if !dtype.is_float() {
            return Err(Error::WrongKind { op: "to_float_of", dtype, kind: "float" });
        }
        self.converted(dtype)
    }

    /// The elements as `int64`; of an integer tensor, the tensor itself. Floats are truncated toward zero and
    /// saturate at the range of `int64`; NaN becomes 0.
    ///
    /// # Errors
    /// As [`Tensor::to_float`].
    pub fn to_int(&self) -> Result<Tensor<Int>> {
        self.of_kind()
    }

    /// Whether each element is anything but zero.
    ///
    /// # Errors
    /// As [`Tensor::to_float`].
    pub fn to_bool(&self) -> Result<Tensor<Bool>> {
        self.of_kind()
    }

    fn of_kind<L: Kind>(&self) -> Result<Tensor<L>> {
        if L::holds(self.dtype()) { Ok(self.raw().clone().typed()) } else { self.converted(L::default_dtype()) }
    }

    /// The tensor in the precision `dtype`, which is one of kind `L`.
    fn converted<L: Kind>(&self, dtype: DType) -> Result<Tensor<L>> {
        self.raw().converted(dtype).map(Raw::typed)
    }
}

/// Bytes as `f32`, each times a number.
struct Scaled(f32);

per_type! { Scaled[1]: [u8 U8] }

impl Op<1> for Scaled {
    const NAME: &'static str = "scaled";

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        static SCALED: Formula =
            Formula { name: "scaled", inputs: &["x"], constants: &["by"], text: "Q(x) * by", changes: false };
        SCALED.run(device, "scaled", &inputs, &[constant(DType::F32, Scalar::Float(self.0.into()))], out)
    }
}

impl Derivative<1> for Scaled {
    fn backward(&self, _: &Saved<'_, 1>, _: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([None]) // bytes have no gradient
    }
}

impl CpuKernel<u8, 1> for Scaled {
    type Out = f32;

    fn cpu(&self, [x]: [CpuView<'_, u8>; 1], out: StoredMut<'_, f32>) -> Result<()> {
        cpu::map1(x, out, |x: u8| f32::from(x) * self.0);
        Ok(())
    }
}

impl Tensor<Int> {
    /// Every element as a float, times `factor`. Bytes, such as pixels of images, become `float32` in one pass.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let pixels = Tensor::from_slice(&[0_u8, 64, 255], 3)?;
    /// assert_eq!(pixels.scaled(1.0 / 256.0)?.to_vec::<f32>()?, [0.0, 0.25, 0.99609375]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn scaled(&self, factor: f32) -> Result<Tensor> {
        if self.dtype() != DType::U8 {
            return self.to_float()?.mul_scalar(factor);
        }
        apply_into(Scaled(factor), [self])
    }
}
