//! Truth values: comparisons with numbers, logical operations, and tests for NaN and infinity.

use super::compare::{IsZero, truths};
use super::elementwise::formula;
use super::number_like;
use crate::cpu;
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula};
use crate::element::{DType, Scalar};
use crate::error::Result;
use crate::inlined::Array;
use crate::kind::{Bool, Kind, Number};
use crate::op::{Inputs, LockedInputs, Op, PerType, Precision, run_unrecorded};
use crate::storage::Fresh;
use crate::tensor::{Raw, Tensor};

/// `with_number! { method, the same of tensors, doc }`
macro_rules! with_number {
    ($method:ident, $of_tensors:ident, $doc:literal) => {
        impl<K: Kind> Tensor<K> {
            #[doc = $doc]
            ///
            /// # Errors
            /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
            pub fn $method(&self, value: impl Number<K>) -> Result<Tensor<Bool>> {
                compare(stringify!($of_tensors), Raw::$of_tensors, self.raw(), value.scalar()).map(Raw::typed)
            }
        }
    };
}

with_number!(eq_scalar, eq, "Where `self == value`, elementwise.");
with_number!(ne_scalar, ne, "Where `self != value`, elementwise.");
with_number!(lt_scalar, lt, "Where `self < value`, elementwise.");
with_number!(le_scalar, le, "Where `self <= value`, elementwise.");
with_number!(gt_scalar, gt, "Where `self > value`, elementwise.");
with_number!(ge_scalar, ge, "Where `self >= value`, elementwise.");

/// A comparison with a number. If it is an integer outside the range of the tensor's precision, `int64` is used.
fn compare(op: &'static str, with: fn(&Raw, &Raw) -> Result<Raw>, x: &Raw, value: Scalar) -> Result<Raw> {
    let is_held = match (x.dtype(), value) {
        (DType::I32, Scalar::Int(value)) => i32::try_from(value).is_ok(),
        (DType::U8, Scalar::Int(value)) => u8::try_from(value).is_ok(),
        _ => true,
    };
    if !is_held {
        return compare(op, with, &x.converted(DType::I64)?, value);
    }
    with(x, &number_like(op, x, value)?)
}

/// `logical! { method, Struct, operator, doc }`
macro_rules! logical {
    ($method:ident, $op:ident, $operator:tt, $doc:literal) => {
        impl<K: Kind> Tensor<K> {
            #[doc = $doc]
            ///
            /// # Errors
            /// [`Error::Argument`](crate::Error::Argument) if the shapes do not fit.
            pub fn $method<L: Kind>(&self, other: &Tensor<L>) -> Result<Tensor<Bool>> {
                let [a, b] = [self.raw(), other.raw()];
                // CUDA kernels take any type if both operands have it.
                let is_taken = a.dtype() == b.dtype() && (a.dtype() == DType::U8 || !a.storage.device().is_cpu());
                let [a, b] = [a, b].mapped(|x| if is_taken { Ok(x.clone()) } else { x.converted(DType::Bool) });
                run_unrecorded(&$op, [&a?, &b?]).map(Raw::typed)
            }
        }

        truths! { $op, $method, concat!("(a != R(0)) ", stringify!($operator), " (b != R(0))"), |inputs, out| {
            let [a, b] = inputs.views::<u8>();
            cpu::map2(a, b, out, |a: u8, b: u8| u8::from((a != 0) $operator (b != 0)))
        } }
    };
}

logical!(logical_and, And, &, "Where both are true or, as numbers, not 0, elementwise, broadcasting.");
logical!(logical_or, Or, |, "Where at least one is true or, as a number, not 0, elementwise, broadcasting.");
logical!(logical_xor, Xor, ^, "Where exactly one is true or, as a number, not 0, elementwise, broadcasting.");

impl<K: Kind> Tensor<K> {
    /// Where an element is not true (of numbers: 0).
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn logical_not(&self) -> Result<Tensor<Bool>> {
        run_unrecorded(&IsZero, [self.raw()]).map(Raw::typed)
    }
}

impl Tensor {
    /// Where an element is not a number.
    ///
    /// # Errors
    /// As [`Tensor::logical_not`].
    pub fn isnan(&self) -> Result<Tensor<Bool>> {
        self.ne(self)
    }

    /// Where an element is ∞ or −∞.
    ///
    /// # Errors
    /// As [`Tensor::logical_not`].
    pub fn isinf(&self) -> Result<Tensor<Bool>> {
        self.detach().abs()?.eq_scalar(f64::INFINITY)
    }

    /// Where an element is neither infinite nor NaN.
    ///
    /// # Errors
    /// As [`Tensor::logical_not`].
    pub fn isfinite(&self) -> Result<Tensor<Bool>> {
        self.detach().abs()?.lt_scalar(f64::INFINITY)
    }
}
