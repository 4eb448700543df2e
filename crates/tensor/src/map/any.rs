//! [`AnyTensor`]: a tensor whose kind is a run-time value, for collections of tensors of different kinds.

use std::fmt;

use pagelock_memory::HostBuffer;

use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::kind::{Bool, Float, Int, Kind};
use crate::layout::Layout;
use crate::op::same_precision;
use crate::ops::{cat, stack};
use crate::shape::{IntoShape, Shape};
use crate::storage::on_host;
use crate::tensor::{Raw, Tensor, by_kind};
use crate::transfer::many;

/// A tensor of any kind and precision. A handle, as [`Tensor`] is: clones are the same tensor.
///
/// # Examples
/// ```
/// use pagelock_tensor::{AnyTensor, DType, Tensor};
///
/// let any = AnyTensor::from(Tensor::ones([2, 3])?);
/// assert_eq!((any.dtype(), any.dims()), (DType::F32, &[2, 3][..]));
/// assert_eq!(any.float()?.sum(..)?.item::<f32>()?, 6.0);
/// assert_eq!(
///     any.int().unwrap_err().to_string(),
///     "the tensor is float32 [2, 3], not integer; read it as its own kind, then convert it"
/// );
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct AnyTensor {
    raw: Raw,
}

impl<K: Kind> From<Tensor<K>> for AnyTensor {
    fn from(tensor: Tensor<K>) -> AnyTensor {
        AnyTensor { raw: tensor.into_raw() }
    }
}

impl<K: Kind> From<&Tensor<K>> for AnyTensor {
    fn from(tensor: &Tensor<K>) -> AnyTensor {
        AnyTensor { raw: tensor.raw().clone() }
    }
}

impl AnyTensor {
    pub(crate) fn new(raw: Raw) -> AnyTensor {
        AnyTensor { raw }
    }

    pub(crate) fn raw(&self) -> &Raw {
        &self.raw
    }

    /// A tensor of one dimension that holds a buffer's elements, without a copy. The program may have allocated the
    /// memory itself, or another library may own it ([`Foreign`](pagelock_memory::Foreign)).
    ///
    /// # Errors
    /// [`Error::Argument`] if the buffer is no whole number of elements, or a byte of a `bool` buffer is neither 0
    /// nor 1.
    ///
    /// # Examples
    /// ```
    /// use pagelock_memory::{HostBuffer, default_host};
    /// use pagelock_tensor::{AnyTensor, DType};
    ///
    /// let mut buffer = HostBuffer::allocate(default_host(), 8)?;
    /// buffer.bytes_mut()?.copy_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
    /// assert_eq!(AnyTensor::from_buffer(buffer, DType::I32)?.int()?.to_vec::<i32>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_buffer(buffer: HostBuffer, dtype: DType) -> Result<AnyTensor> {
        let (len_bytes, size) = (buffer.len_bytes(), dtype.size());
        if !len_bytes.is_multiple_of(size) {
            let fix = "give a whole number of elements";
            let problem = format!("{len_bytes} bytes are not a multiple of the {size} of {dtype}");
            return Err(Error::Argument(format!("from_buffer: {problem}; {fix}")));
        }
        if dtype == DType::Bool && buffer.bytes().iter().any(|&byte| byte > 1) {
            let fix = "make it 0 or 1";
            return Err(Error::Argument(format!("from_buffer: a byte of a bool is neither 0 nor 1; {fix}")));
        }
        let shape = Shape::new(&[len_bytes / size])?;
        let storage = on_host(buffer, dtype)?;
        Ok(AnyTensor { raw: Raw { storage, layout: Layout::contiguous(shape), node: None } })
    }

    /// As a tensor of floats.
    ///
    /// # Errors
    /// [`Error::ElementType`] if it is of another kind.
    pub fn float(&self) -> Result<Tensor> {
        self.kind()
    }

    /// As a tensor of integers.
    ///
    /// # Errors
    /// As [`AnyTensor::float`].
    pub fn int(&self) -> Result<Tensor<Int>> {
        self.kind()
    }

    /// As a tensor of truth values.
    ///
    /// # Errors
    /// As [`AnyTensor::float`].
    pub fn bool(&self) -> Result<Tensor<Bool>> {
        self.kind()
    }

    /// As a tensor of kind `K`.
    ///
    /// # Errors
    /// As [`AnyTensor::float`].
    pub fn kind<K: Kind>(&self) -> Result<Tensor<K>> {
        if !K::holds(self.dtype()) {
            return Err(Error::ElementType { found: self.dtype(), shape: *self.shape(), asked: K::NAME });
        }
        Ok(self.raw.clone().typed())
    }

    /// As [`Tensor::deep_clone`].
    ///
    /// # Errors
    /// As [`Tensor::deep_clone`].
    pub fn deep_clone(&self) -> Result<AnyTensor> {
        self.raw.deep_clone().map(AnyTensor::new)
    }

    /// As [`Tensor::to_dtype`], within the kind.
    ///
    /// # Errors
    /// As [`Tensor::to_dtype`].
    pub fn to_dtype(&self, dtype: DType) -> Result<AnyTensor> {
        by_kind!(self.dtype(), K => self.kind::<K>()?.to_dtype(dtype).map(AnyTensor::from))
    }

    /// The precision.
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

    /// The size of the elements in bytes.
    pub fn len_bytes(&self) -> usize {
        self.shape().elements() * self.dtype().size()
    }

    /// As [`Tensor::strides`].
    pub fn strides(&self) -> &[usize] {
        self.raw.layout.strides()
    }

    /// How many elements of the storage are before the first one of this tensor.
    pub fn storage_offset(&self) -> usize {
        self.raw.layout.offset()
    }

    /// A number that is the same for two tensors exactly if they are views of one storage. It is valid while one of
    /// these views exists.
    pub fn storage_id(&self) -> usize {
        self.raw.storage.address().addr()
    }

    /// Another view of the storage: element `[i0, i1, …]` is the storage's element
    /// `offset + i0·strides[0] + i1·strides[1] + …`. It has no gradient. See [`storage_offset`](Self::storage_offset).
    ///
    /// # Errors
    /// [`Error::Argument`] if an element would be outside the storage, or two indices might name the same element,
    /// except by a stride of 0; as [`Shape::new`].
    ///
    /// # Examples
    /// ```
    /// use pagelock_tensor::{AnyTensor, Tensor};
    ///
    /// let numbers = AnyTensor::from(Tensor::new([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?);
    /// let columns = numbers.as_strided([2, 3], &[1, 2], 0)?.float()?;
    /// assert_eq!(columns.to_vec::<f32>()?, [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    /// assert_eq!(
    ///     numbers.as_strided([2, 3], &[1, 3], 0).unwrap_err().to_string(),
    ///     "as_strided: [2, 3] with strides [1, 3] from element 0 ends at element 7, but the storage has 6; check shape, \
    ///      strides and offset",
    /// );
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn as_strided(&self, shape: impl IntoShape, strides: &[usize], offset: usize) -> Result<AnyTensor> {
        let len_bytes = self.raw.storage.lock().len_bytes();
        let layout = Layout::in_storage(shape.into_shape()?, strides, offset, len_bytes / self.dtype().size())?;
        Ok(AnyTensor::new(self.raw.with_layout(layout)))
    }

    /// As [`Tensor::select`].
    ///
    /// # Errors
    /// As [`Tensor::select`].
    pub fn select(&self, dim: isize, index: isize) -> Result<AnyTensor> {
        self.raw.select(dim, index).map(AnyTensor::new)
    }

    /// As [`Tensor::narrow`].
    ///
    /// # Errors
    /// As [`Tensor::narrow`].
    pub fn narrow(&self, dim: isize, start: usize, len: usize) -> Result<AnyTensor> {
        self.raw.narrow(dim, start, len).map(AnyTensor::new)
    }

    /// As [`Tensor::index_select`].
    ///
    /// # Errors
    /// As [`Tensor::index_select`].
    pub fn index_select(&self, dim: isize, index: &Tensor<Int>) -> Result<AnyTensor> {
        self.raw.index_select(dim, index.raw()).map(AnyTensor::new)
    }

    /// As [`Tensor::stack`], of tensors of one kind and precision.
    ///
    /// # Errors
    /// As [`Tensor::stack`], and [`Error::ElementType`].
    pub fn stack(tensors: &[&AnyTensor], dim: isize) -> Result<AnyTensor> {
        stack(&raws("stack", tensors)?, dim).map(AnyTensor::new)
    }

    /// As [`Tensor::cat`], of tensors of one kind and precision.
    ///
    /// # Errors
    /// As [`Tensor::cat`], and [`Error::ElementType`].
    pub fn cat(tensors: &[&AnyTensor], dim: isize) -> Result<AnyTensor> {
        cat(&raws("cat", tensors)?, dim).map(AnyTensor::new)
    }
}

/// The inner tensors; an error unless all are of one kind and precision.
fn raws<'a>(op: &'static str, tensors: &[&'a AnyTensor]) -> Result<Vec<&'a Raw>> {
    let raws: Vec<&Raw> = tensors.iter().map(|tensor| tensor.raw()).collect();
    let kind = raws.first().map_or(Float::NAME, |first| first.dtype().kind_name());
    if let Some(other) = raws.iter().find(|other| other.dtype().kind_name() != kind) {
        return Err(Error::ElementType { found: other.dtype(), shape: *other.shape(), asked: kind });
    }
    same_precision(op, &raws)?;
    Ok(raws)
}

/// `float32 [2, 3] on cpu`
impl fmt::Debug for AnyTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} on {}", self.dtype(), self.shape(), self.device())
    }
}
