//! Numbers kept within bounds.

use super::elementwise::{formula, scalar};
use super::fused::mixed;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::element::{DType, Num, Scalar};
use crate::error::Result;
use crate::kind::{Number, Numeric};
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, apply_raw, per_type};
use crate::tensor::{Raw, Tensor};

/// The bounds, as values of the element type. Among floats, NaN stands for a missing bound: nothing compares as less.
#[derive(Clone, Copy)]
struct Bounds {
    low: Scalar,
    high: Scalar,
}

impl Bounds {
    /// The given bounds. Those of integers are limited to the range of the element type, whose ends replace missing
    /// ones.
    fn of(dtype: DType, low: Option<Scalar>, high: Option<Scalar>) -> Bounds {
        let held = |bound: Option<Scalar>, end: f64| {
            let bound_or = |missing: f64| bound.unwrap_or(Scalar::Float(missing));
            match dtype {
                DType::I32 => within(bound_or(end), i32::MIN.into(), i32::MAX.into()),
                DType::U8 => within(bound_or(end), 0, u8::MAX.into()),
                DType::I64 => within(bound_or(end), i64::MIN, i64::MAX),
                _ => bound_or(f64::NAN),
            }
        };
        Bounds { low: held(low, f64::NEG_INFINITY), high: held(high, f64::INFINITY) }
    }
}

fn within(bound: Scalar, least: i64, most: i64) -> Scalar {
    Scalar::Int(match bound {
        Scalar::Int(bound) => bound.clamp(least, most),
        Scalar::Float(bound) => (bound as i64).clamp(least, most), // saturates
    })
}

struct Clamp(Bounds);
scalar! { Clamp: Num, "clamp", Inputs, Same, |op| [low = op.0.low, high = op.0.high],
|x| { let x = if x < low { low } else { x }; if x > high { high } else { x } },
"(x < low ? low : x) > high ? high : x < low ? low : x",
|saved, grad| apply(ClampGrad(op.0), [grad, saved.input(0)]) }

/// The gradient where the element is between the bounds, else 0: the derivative of [`Clamp`].
struct ClampGrad(Bounds);

mixed! { ClampGrad[2]: Num, "clamp's gradient", [grad, x], |op| [low = op.0.low, high = op.0.high],
|T| if (x > low || low.is_nan()) & (x < high || high.is_nan()) { grad } else { T::ZERO }, map2,
"(x > low || is_nan(low)) && (x < high || is_nan(high)) ? grad : 0" }

impl Derivative<2> for ClampGrad {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let back = saved.grad_of(0, || apply(ClampGrad(self.0), [grad, saved.input(1)]))?;
        Ok([back, None]) // piecewise constant in x
    }
}

impl<K: Numeric> Tensor<K> {
    /// Every element limited to the range from `min` to `max`; NaN stays NaN. If `min` is above `max`, all elements
    /// are `max`; if one of them is NaN, all are NaN. As in PyTorch, the derivative is 1 between the bounds, and 0 at
    /// them and beyond.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([-2.0, 0.5, 3.0])?;
    /// assert_eq!(x.clamp(-1.0, 1.0)?.to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget.
    pub fn clamp(&self, min: impl Number<K>, max: impl Number<K>) -> Result<Tensor<K>> {
        clamp(self.raw(), Some(min.scalar()), Some(max.scalar())).map(Raw::typed)
    }

    /// [`Tensor::clamp`] with a lower bound alone.
    ///
    /// # Errors
    /// As [`Tensor::clamp`].
    pub fn clamp_min(&self, min: impl Number<K>) -> Result<Tensor<K>> {
        clamp(self.raw(), Some(min.scalar()), None).map(Raw::typed)
    }

    /// [`Tensor::clamp`] with an upper bound alone.
    ///
    /// # Errors
    /// As [`Tensor::clamp`].
    pub fn clamp_max(&self, max: impl Number<K>) -> Result<Tensor<K>> {
        clamp(self.raw(), None, Some(max.scalar())).map(Raw::typed)
    }
}

fn clamp(x: &Raw, low: Option<Scalar>, high: Option<Scalar>) -> Result<Raw> {
    if x.dtype().is_float() && [low, high].into_iter().flatten().any(|bound| bound.to_f64().is_nan()) {
        return x.times_scalar(Scalar::Int(0))?.plus_scalar(Scalar::Float(f64::NAN)); // the gradient is 0
    }
    apply_raw(Clamp(Bounds::of(x.dtype(), low, high)), [x])
}
