//! [`Tensor`]: a handle to a strided view of a storage, and to the node of the autograd graph that made it.
//!
//! Read `op.rs` next: how operations make tensors.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use crate::autograd::NodeRef;
use crate::cpu;
use crate::cuda::COPY;
use crate::device::Device;
use crate::element::{DType, Element};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::shape::{IntoShape, Shape};
use crate::storage::{Fresh, FreshCuda, Reading, StorageRef, Uploaded};

/// An n-dimensional array of one element type, `f32` unless another is named.
///
/// A handle: cloning is cheap, and clones are the same tensor. Shapes, strides and the device are run-time values; the
/// element type is part of the Rust type, so labels where floats belong do not compile.
///
/// # Examples
/// ```
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?;
/// let y = (x.matmul(&x.t()?)? + 1.0)?;
/// assert_eq!(y.to_vec()?, [6.0, 12.0, 12.0, 26.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Tensor<T = f32> {
    raw: Raw,
    element: PhantomData<T>,
}

/// A tensor without its element type: what the autograd graph passes along its edges.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) storage: StorageRef,
    pub(crate) layout: Layout,
    /// What made this tensor, if its gradient is wanted.
    pub(crate) node: Option<NodeRef>,
}

impl Raw {
    #[inline]
    pub(crate) fn dtype(&self) -> DType {
        self.storage.dtype()
    }

    pub(crate) fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// Expanded to a shape, outside the graph.
    pub(crate) fn broadcast_to(&self, op: &'static str, shape: &Shape) -> Result<Raw> {
        Ok(Raw { storage: self.storage.clone(), layout: self.layout.expand(op, shape)?, node: None })
    }

    /// As a tensor of `T`, which must be the element type.
    #[inline]
    pub(crate) fn typed<T: Element>(self) -> Tensor<T> {
        debug_assert_eq!(self.dtype(), T::DTYPE);
        Tensor { raw: self, element: PhantomData }
    }
}

impl<T> Clone for Tensor<T> {
    fn clone(&self) -> Self {
        Tensor { raw: self.raw.clone(), element: PhantomData }
    }
}

impl<T: Element> Tensor<T> {
    pub(crate) fn from_fresh_cuda(fresh: FreshCuda<'_>) -> Tensor<T> {
        let (storage, layout) = fresh.share();
        Raw { storage, layout, node: None }.typed()
    }

    pub(crate) fn from_fresh(fresh: Fresh<T>) -> Tensor<T> {
        let (storage, layout) = fresh.share();
        Raw { storage, layout, node: None }.typed()
    }

    pub(crate) fn raw(&self) -> &Raw {
        &self.raw
    }

    pub(crate) fn raw_mut(&mut self) -> &mut Raw {
        &mut self.raw
    }

    pub(crate) fn into_raw(self) -> Raw {
        self.raw
    }

    pub(crate) fn node(&self) -> Option<&NodeRef> {
        self.raw.node.as_ref()
    }

    pub(crate) fn with_node(mut self, node: Option<NodeRef>) -> Tensor<T> {
        self.raw.node = node;
        self
    }

    /// The same storage seen through another layout, outside the graph.
    pub(crate) fn with_layout(&self, layout: Layout) -> Tensor<T> {
        Raw { storage: self.raw.storage.clone(), layout, node: None }.typed()
    }

    /// Adds tensors that are laid out as these, each from the start of one storage of a block on, outside the graph.
    pub(crate) fn add_laid_in(all: &mut Vec<Tensor<T>>, like: &[&Raw], (block, range): (&Arc<Uploaded>, Range<usize>)) {
        // Layouts are long: they are copied to where they stay, which takes half as long as moving tensors there. Handles are
        // counted before: an atomic waits for everything that was written before it.
        let scalar =
            |storage| Tensor { raw: Raw { storage, layout: Layout::SCALAR, node: None }, element: PhantomData };
        let first = all.len();
        all.extend(block.storages(range, like).into_iter().map(scalar));
        all[first..].iter_mut().zip(like).for_each(|(made, like)| made.raw.layout.set_from_start(&like.layout));
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.raw.layout
    }

    pub(crate) fn storage(&self) -> &StorageRef {
        &self.raw.storage
    }

    /// Locked for reading on the host; an error if it is elsewhere.
    pub(crate) fn read(&self, op: &'static str) -> Result<Reading<'_, T>> {
        read(op, &self.raw)
    }

    /// Whether two tensors may share elements.
    pub(crate) fn shares_storage<U>(&self, other: &Tensor<U>) -> bool {
        self.raw.storage.is(&other.raw.storage)
    }

    /// The sizes of the dimensions.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([2, 3])?;
    /// assert_eq!(x.shape(), &[2, 3]);
    /// assert_eq!((x.rank(), x.len(), x.size(-1)?), (2, 6, 3));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn shape(&self) -> &Shape {
        self.raw.layout.shape()
    }

    /// The sizes of the dimensions, as a slice.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([64, 1, 28, 28])?;
    /// let &[batch, _, height, width] = x.dims() else { unreachable!() };
    /// assert_eq!((batch, height * width), (64, 784));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn dims(&self) -> &[usize] {
        self.shape()
    }

    /// The size of one dimension; negative values count from the end.
    ///
    /// # Errors
    /// [`Error::NoSuchDim`].
    pub fn size(&self, dim: isize) -> Result<usize> {
        Ok(self.shape()[self.shape().dim("size", dim)?])
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape().elements()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many storage elements lie between neighbors of each dimension; 0 where a dimension was expanded.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([2, 3])?;
    /// assert_eq!(x.strides(), [3, 1]);
    /// assert_eq!(x.t()?.strides(), [1, 3]);
    /// assert_eq!(x.select(0, 0)?.expand([4, 3])?.strides(), [0, 1]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn strides(&self) -> &[usize] {
        self.raw.layout.strides()
    }

    /// Whether the elements lie in row-major order without gaps.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([2, 3])?;
    /// assert!(x.is_contiguous());
    /// assert!(!x.t()?.is_contiguous());
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn is_contiguous(&self) -> bool {
        self.raw.layout.is_contiguous()
    }

    /// The element type, as a run-time value.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::zeros([2])?.dtype().name(), "float32");
    /// assert_eq!(Tensor::from_slice(&[1i64], [1])?.dtype().name(), "int64");
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// How many times the storage has been changed in place, through any view of it.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([2, 2])?;
    /// x.select(0, 1)?.fill_(7.0)?;
    /// assert_eq!(x.version(), 1);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn version(&self) -> u64 {
        self.raw.storage.version()
    }

    /// All elements in row-major order, on the host; waits for a device that computes them.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([[1.0, 2.0], [3.0, 4.0]])?.t()?.to_vec()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// None on the CPU; as [`Tensor::to`] otherwise.
    #[track_caller]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let _here = pagelock_cuda::here();
        let mut out = vec![T::ZERO; self.len()];
        self.copy_to_slice(&mut out)?;
        Ok(out)
    }

    /// Copies all elements, in row-major order, into `out`; waits for a device that computes them.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let mut out = [0.0; 3];
    /// Tensor::new([1.0, 2.0, 3.0])?.copy_to_slice(&mut out)?;
    /// assert_eq!(out, [1.0, 2.0, 3.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DataLength`] if `out` has another length; as [`Tensor::to`].
    #[track_caller]
    pub fn copy_to_slice(&self, out: &mut [T]) -> Result<()> {
        let _here = pagelock_cuda::here();
        if out.len() != self.len() {
            return Err(Error::DataLength { op: "copy_to_slice", given: out.len(), shape: *self.shape() });
        }
        let here = self.readable()?;
        cpu::copy(here.read("copy_to_slice")?.view(here.layout()), out);
        Ok(())
    }

    /// The one element of a tensor that holds one; waits for a device that computes it.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([[2.5]])?.item()?, 2.5);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotOneElement`]; as [`Tensor::to`].
    #[track_caller]
    pub fn item(&self) -> Result<T> {
        let _here = pagelock_cuda::here();
        if self.len() != 1 {
            return Err(Error::NotOneElement { shape: *self.shape() });
        }
        let here = self.readable()?;
        Ok(here.read("item")?.of(here.layout())[0])
    }

    /// This tensor if it is contiguous, else a copy that is; outside the graph.
    pub(crate) fn gap_free(&self) -> Result<Tensor<T>> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.deep_copy("contiguous") }
    }

    /// A contiguous copy in a storage of its own, outside the graph.
    pub(crate) fn deep_copy(&self, op: &'static str) -> Result<Tensor<T>> {
        let device = self.storage().device();
        let Device::Cuda(cuda) = device else {
            let mut out = Fresh::allocate(op, *self.shape())?;
            cpu::copy(self.read(op)?.view(self.layout()), out.elements());
            return Ok(Tensor::from_fresh(out));
        };
        let mut out = FreshCuda::allocate(op, *self.shape(), T::DTYPE, device, cuda)?;
        let locked = self.storage().lock();
        COPY.run(cuda, op, &[locked.cuda(self.layout(), T::DTYPE)], &[], out.out())?;
        Ok(Tensor::from_fresh_cuda(out))
    }

    /// The first `n` elements of a vector that an operation just made, and the others. On a device each part gets a storage
    /// of its own, so that neither has to be copied to be changed.
    pub(crate) fn split_behind(self, n: usize) -> Result<[Tensor<T>; 2]> {
        let rest = self.len() - n;
        let Some([left, right]) = self.storage().split_at(n * size_of::<T>())? else {
            return Ok([self.narrow(0, 0, n)?, self.narrow(0, n, rest)?]);
        };
        let part = |storage, len| {
            let layout = Layout::contiguous(Shape::new(&[len])?);
            Ok(Raw { storage, layout, node: None }.typed())
        };
        Ok([part(left, n)?, part(right, rest)?])
    }

    /// Expanded to a shape, outside the graph.
    pub(crate) fn broadcast_to(&self, op: &'static str, shape: impl IntoShape) -> Result<Tensor<T>> {
        Ok(self.raw.broadcast_to(op, &shape.into_shape()?)?.typed())
    }
}

/// `$body` with `$tensor`, a tensor without its element type, as the tensor of that type which it is.
macro_rules! typed {
    ($raw:expr, $tensor:ident => $body:expr) => {{
        let raw: &$crate::tensor::Raw = $raw;
        $crate::tensor::typed!(raw, $tensor => $body;
            F32: f32, F64: f64, F16: half::f16, BF16: half::bf16, I64: i64, I32: i32, U8: u8, Bool: bool)
    }};
    ($raw:ident, $tensor:ident => $body:expr; $($dtype:ident: $type:ty),+) => {
        match $raw.dtype() {
            $($crate::DType::$dtype => {
                let $tensor: $crate::Tensor<$type> = $raw.clone().typed();
                $body
            })+
        }
    };
}
pub(crate) use typed;

/// Locks a tensor of `T` for reading on the host; an error if it is elsewhere.
pub(crate) fn read<'a, T: Element>(op: &'static str, tensor: &'a Raw) -> Result<Reading<'a, T>> {
    let on_device = || Error::OnDevice { op, shape: *tensor.shape(), device: tensor.storage.device().clone() };
    Reading::new(tensor.storage.lock()).ok_or_else(on_device)
}
