//! Tensors like others: of their shape and precision, where they are.

use super::filled_like;
use crate::element::Scalar;
use crate::error::Result;
use crate::kind::{Kind, Number};
use crate::tensor::{Raw, Tensor};

impl<K: Kind> Tensor<K> {
    /// Zeros of this tensor's shape and precision, where it is; as `ones_like` and `full_like` give them, with the channels
    /// of a pixel together if they are so here ([`channels_last`](Tensor::channels_last)).
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the budget refuses.
    pub fn zeros_like(&self) -> Result<Tensor<K>> {
        filled_like("zeros_like", self.raw(), Scalar::Int(0)).map(Raw::typed)
    }

    /// A tensor of this one's shape and precision, where it is, whose elements a program is about to write: PyTorch's
    /// `empty_like`. Here they are zeros, because memory is always initialized.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the budget refuses.
    pub fn empty_like(&self) -> Result<Tensor<K>> {
        filled_like("empty_like", self.raw(), Scalar::Int(0)).map(Raw::typed)
    }

    /// Ones of this tensor's shape and precision, where it is.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the budget refuses.
    pub fn ones_like(&self) -> Result<Tensor<K>> {
        filled_like("ones_like", self.raw(), Scalar::Int(1)).map(Raw::typed)
    }

    /// `value` in this tensor's shape and precision, where it is.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the budget refuses.
    pub fn full_like(&self, value: impl Number<K>) -> Result<Tensor<K>> {
        filled_like("full_like", self.raw(), value.scalar()).map(Raw::typed)
    }
}
