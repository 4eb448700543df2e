//! Tensors as values.

use std::borrow::Cow;

use pagelock_tensor::{Bool, DType, Int, Tensor};

use crate::array::{Array, ToArray, ToScalar, Values};
use crate::error::Result;

impl ToArray for Tensor {
    fn to_array(&self) -> Result<Array<'_>> {
        let values = match self.dtype() {
            DType::F64 => Values::F64(Cow::Owned(self.to_vec()?)),
            _ => Values::F32(Cow::Owned(self.to_vec()?)),
        };
        Array::of(values, self.shape().to_vec())
    }
}

impl ToArray for Tensor<Int> {
    fn to_array(&self) -> Result<Array<'_>> {
        let values = match self.dtype() {
            DType::U8 => Values::U8(Cow::Owned(self.to_vec()?)),
            _ => Values::I64(Cow::Owned(self.to_vec()?)),
        };
        Array::of(values, self.shape().to_vec())
    }
}

/// 0 and 1.
impl ToArray for Tensor<Bool> {
    fn to_array(&self) -> Result<Array<'_>> {
        let values: Vec<bool> = self.to_vec()?;
        let values = values.into_iter().map(|value| f32::from(u8::from(value))).collect();
        Array::of(Values::F32(Cow::Owned(values)), self.shape().to_vec())
    }
}

impl ToScalar for Tensor {
    fn to_scalar(&self) -> Result<f64> {
        Ok(self.item()?)
    }
}

impl ToScalar for Tensor<Int> {
    fn to_scalar(&self) -> Result<f64> {
        Ok(self.item::<i64>()? as f64)
    }
}
