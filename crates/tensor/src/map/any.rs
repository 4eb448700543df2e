//! [`AnyTensor`]: a tensor whose element type is a value, for collections of tensors of different types.

use std::fmt;

use crate::autograd::NodeRef;
use crate::device::Device;
use crate::element::{DType, Element};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor, typed};
use crate::transfer::many;

/// A tensor of any element type. A handle, as [`Tensor`] is: clones are the same tensor.
///
/// # Examples
/// ```
/// use pagelock_tensor::{AnyTensor, DType, Tensor};
///
/// let any = AnyTensor::from(Tensor::ones([2, 3])?);
/// assert_eq!((any.dtype(), any.dims()), (DType::F32, &[2, 3][..]));
/// assert_eq!(any.typed::<f32>()?.sum(..)?.item()?, 6.0);
/// assert_eq!(
///     any.typed::<i64>().unwrap_err().to_string(),
///     "the tensor is float32 [2, 3], not int64; ask for its own type, and cast that"
/// );
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct AnyTensor {
    raw: Raw,
}

impl<T: Element> From<Tensor<T>> for AnyTensor {
    fn from(tensor: Tensor<T>) -> AnyTensor {
        AnyTensor { raw: tensor.into_raw() }
    }
}

impl<T: Element> From<&Tensor<T>> for AnyTensor {
    fn from(tensor: &Tensor<T>) -> AnyTensor {
        AnyTensor { raw: tensor.raw().clone() }
    }
}

impl AnyTensor {
    pub(super) fn new(raw: Raw) -> AnyTensor {
        AnyTensor { raw }
    }

    pub(super) fn raw(&self) -> &Raw {
        &self.raw
    }

    pub(super) fn node(&self) -> Option<&NodeRef> {
        self.raw.node.as_ref()
    }

    /// As a tensor of `T`.
    ///
    /// # Errors
    /// [`Error::ElementType`] if its elements are of another type.
    pub fn typed<T: Element>(&self) -> Result<Tensor<T>> {
        if self.dtype() != T::DTYPE {
            return Err(Error::ElementType { found: self.dtype(), shape: *self.shape(), asked: T::DTYPE });
        }
        Ok(self.raw.clone().typed())
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.raw.dtype()
    }

    /// The sizes of the dimensions.
    pub fn shape(&self) -> &Shape {
        self.raw.shape()
    }

    /// The sizes of the dimensions, as a slice.
    pub fn dims(&self) -> &[usize] {
        self.raw.shape()
    }

    /// Where the elements are.
    pub fn device(&self) -> Device {
        self.raw.storage.device().clone()
    }

    /// Whether the elements are in page-locked host memory.
    pub fn is_pinned(&self) -> bool {
        many::is_pinned(&self.raw)
    }

    /// How many bytes the elements are.
    pub fn len_bytes(&self) -> usize {
        self.shape().elements() * self.dtype().size()
    }

    /// As [`Tensor::select`].
    ///
    /// # Errors
    /// As [`Tensor::select`].
    pub fn select(&self, dim: isize, index: isize) -> Result<AnyTensor> {
        typed!(&self.raw, tensor => tensor.select(dim, index).map(AnyTensor::from))
    }

    /// As [`Tensor::narrow`].
    ///
    /// # Errors
    /// As [`Tensor::narrow`].
    pub fn narrow(&self, dim: isize, start: usize, len: usize) -> Result<AnyTensor> {
        typed!(&self.raw, tensor => tensor.narrow(dim, start, len).map(AnyTensor::from))
    }

    /// As [`Tensor::index_select`].
    ///
    /// # Errors
    /// As [`Tensor::index_select`].
    pub fn index_select(&self, dim: isize, index: &Tensor<i64>) -> Result<AnyTensor> {
        typed!(&self.raw, tensor => tensor.index_select(dim, index).map(AnyTensor::from))
    }

    /// As [`Tensor::stack`], of tensors of one element type.
    ///
    /// # Errors
    /// As [`Tensor::stack`], and [`Error::ElementType`].
    pub fn stack(tensors: &[&AnyTensor], dim: isize) -> Result<AnyTensor> {
        join(tensors, dim, Join::Stack)
    }

    /// As [`Tensor::cat`], of tensors of one element type.
    ///
    /// # Errors
    /// As [`Tensor::cat`], and [`Error::ElementType`].
    pub fn cat(tensors: &[&AnyTensor], dim: isize) -> Result<AnyTensor> {
        join(tensors, dim, Join::Cat)
    }
}

#[derive(Clone, Copy)]
enum Join {
    Stack,
    Cat,
}

fn join(tensors: &[&AnyTensor], dim: isize, how: Join) -> Result<AnyTensor> {
    fn of<T: Element>(_first: Tensor<T>, tensors: &[&AnyTensor], dim: isize, how: Join) -> Result<AnyTensor> {
        let tensors = tensors.iter().map(|tensor| tensor.typed::<T>()).collect::<Result<Vec<_>>>()?;
        let tensors: Vec<&Tensor<T>> = tensors.iter().collect();
        let joined = match how {
            Join::Stack => Tensor::stack(&tensors, dim),
            Join::Cat => Tensor::cat(&tensors, dim),
        };
        joined.map(AnyTensor::from)
    }
    let Some(first) = tensors.first() else {
        return Err(Error::Empty { op: "stack", what: "the list of tensors", fix: "give at least one" });
    };
    typed!(&first.raw, first => of(first, tensors, dim, how))
}

/// `float32 [2, 3] on cpu`
impl fmt::Debug for AnyTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} on {}", self.dtype(), self.shape(), self.device())
    }
}
