//! [`HostElements`]: the elements of a tensor as a slice, for other crates.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use pagelock_memory::HostBuffer;

use crate::autograd::no_grad;
use crate::element::{DType, Element};
use crate::error::Result;
use crate::kind::Kind;
use crate::ops::cast;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};
use crate::transfer::readable;

/// The elements of a tensor on the host, row-major, as an immutable slice of which other crates can make views.
///
/// # Examples
/// ```
/// use pagelock_tensor::Tensor;
///
/// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?;
/// let elements = x.into_elements::<f32>()?; // no copy: `x` was the only handle
/// assert_eq!(*elements, [1.0, 2.0, 3.0, 4.0]);
/// assert_eq!(elements.dims(), [2, 2]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct HostElements<T> {
    buffer: HostBuffer,
    start: usize, // in bytes
    shape: Shape,
    element: PhantomData<T>,
}

impl<K: Kind> Tensor<K> {
    /// The elements as a slice on the host, in the precision `T`; waits for a device that computes them. Nothing is
    /// copied if this is the only handle to a storage on the host, and the elements are contiguous and of type `T`.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if a copy does not fit the budget; as [`Tensor::to`] for a tensor on a device.
    ///
    /// # Examples
    /// See [`HostElements`].
    #[track_caller]
    pub fn into_elements<T: Element<Kind = K>>(self) -> Result<HostElements<T>> {
        let _here = pagelock_cuda::here();
        let (buffer, start, shape) = taken(self.into_raw(), T::DTYPE)?;
        Ok(HostElements { buffer, start, shape, element: PhantomData })
    }
}

/// A buffer that holds the elements, the byte at which they begin, and their shape.
fn taken(tensor: Raw, dtype: DType) -> Result<(HostBuffer, usize, Shape)> {
    let here = readable(&tensor)?;
    drop(tensor);
    let wide = if here.dtype() == dtype { here } else { no_grad(|| cast(&here, dtype))? };
    let mut ordered = if wide.is_contiguous() { wide } else { wide.detached_copy("into_elements")? };
    loop {
        let Raw { storage, layout, .. } = ordered;
        match storage.into_host() {
            Ok(buffer) => return Ok((buffer, layout.offset() * dtype.size(), *layout.shape())),
            Err(storage) => ordered = Raw { storage, layout, node: None }.detached_copy("into_elements")?,
        }
    }
}

impl<T> HostElements<T> {
    /// The sizes of the dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.shape
    }
}

impl<T: Element> Deref for HostElements<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        T::slice(self.as_ref())
    }
}

/// The bytes of the elements.
impl<T> AsRef<[u8]> for HostElements<T> {
    fn as_ref(&self) -> &[u8] {
        &self.buffer.bytes()[self.start..][..self.shape.elements() * size_of::<T>()]
    }
}

impl<T: Element> fmt::Debug for HostElements<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostElements({} {})", T::DTYPE, self.shape)
    }
}
