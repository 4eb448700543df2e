//! Tensors like others: with their shape and precision, on their device.

use super::filled_like;
use crate::element::Scalar;
use crate::error::Result;
use crate::kind::{Kind, Number};
use crate::tensor::{Raw, Tensor};

impl<K: Kind> Tensor<K> {
    /// Zeros with this tensor's shape and precision, on its device. As with `ones_like` and `full_like`, the channels
    /// of a pixel are together in memory if they are in this tensor ([`channels_last`](Tensor::channels_last)).
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the budget refuses.
    pub fn zeros_like(&self) -> Result<Tensor<K>> {
        filled_like("zeros_like", self.raw(), Scalar::Int(0)).map(Raw::typed)
    }

    /// A tensor with this one's shape and precision, on its device, that a program is about to overwrite: PyTorch's
    /// `empty_like`. Its elements are zeros, because memory is always initialized.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the budget refuses.
    pub fn empty_like(&self) -> Result<Tensor<K>> {
        filled_like("empty_like", self.raw(), Scalar::Int(0)).map(Raw::typed)
    }

    /// Ones with this tensor's shape and precision, on its device.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the budget refuses.
    pub fn ones_like(&self) -> Result<Tensor<K>> {
        filled_like("ones_like", self.raw(), Scalar::Int(1)).map(Raw::typed)
    }

    /// A tensor filled with `value`, with this tensor's shape and precision, on its device.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the budget refuses.
    pub fn full_like(&self, value: impl Number<K>) -> Result<Tensor<K>> {
        filled_like("full_like", self.raw(), value.scalar()).map(Raw::typed)
    }
}
