//! [`Tensor`]: a handle to a strided view of a storage, and to the node of the autograd graph that made it.
//!
//! Read `op.rs` next: how operations make tensors.

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::allocation::try_zeroed_vec;
use pagelock_memory::{self as memory, ByteSize, MemoryKind};

use crate::autograd::{NodeRef, no_grad};
use crate::cpu;
use crate::cuda::COPY;
use crate::device::Device;
use crate::element::{DType, Element};
use crate::error::{Error, Result};
use crate::kind::{Float, Kind};
use crate::layout::Layout;
use crate::ops::cast;
use crate::profiler;
use crate::shape::Shape;
use crate::storage::{Fresh, FreshCuda, Locked, Reading, StorageRef, UploadedBlock};
use crate::transfer;

/// An n-dimensional array of numbers: of floats, unless another kind is named ([`Int`](crate::Int), [`Bool`](crate::Bool)).
///
/// A handle: cloning is cheap, and clones are the same tensor. The kind is part of the Rust type, so labels where floats
/// belong do not compile; shapes, strides, the device and the precision ([`Tensor::dtype`]) are run-time values.
///
/// # Examples
/// ```
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?;
/// let y = (x.matmul(&x.t()?)? + 1.0)?;
/// assert_eq!(y.to_vec::<f32>()?, [6.0, 12.0, 12.0, 26.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Tensor<K = Float> {
    raw: Raw,
    kind: PhantomData<fn() -> K>,
}

/// A tensor without its kind: what operations compute with, and what the autograd graph passes along its edges.
#[derive(Clone)]
pub struct Raw {
    pub(crate) storage: StorageRef,
    pub(crate) layout: Layout,
    /// The node that made this tensor, if its gradient is wanted.
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

    pub(crate) fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// Whether two handles are of the same elements in the same order.
    pub(crate) fn is_same_view(&self, other: &Raw) -> bool {
        let [one, two] = [&self.layout, &other.layout];
        let is_alike = one.offset() == two.offset() && one.shape() == two.shape() && one.strides() == two.strides();
        is_alike && self.storage.is(&other.storage)
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// This tensor expanded to a shape, outside the graph.
    pub(crate) fn broadcast_to(&self, op: &'static str, shape: &Shape) -> Result<Raw> {
        Ok(self.with_layout(self.layout.expand(op, shape)?))
    }

    /// The same storage seen through another layout, outside the graph.
    pub(crate) fn with_layout(&self, layout: Layout) -> Raw {
        Raw { storage: self.storage.clone(), layout, node: None }
    }

    /// The same tensor outside the graph, without a node.
    pub(crate) fn without_node(&self) -> Raw {
        self.with_layout(self.layout)
    }

    /// As a tensor of kind `K`, which it must be.
    #[inline]
    pub(crate) fn typed<K: Kind>(self) -> Tensor<K> {
        debug_assert!(K::holds(self.dtype()), "{} is not {}", self.dtype(), K::NAME);
        Tensor { raw: self, kind: PhantomData }
    }

    /// As a tensor of kind `K`, which it need not be: for code that only passes it on to kernels that know its type.
    #[inline]
    pub(crate) fn passed_as<K: Kind>(self) -> Tensor<K> {
        Tensor { raw: self, kind: PhantomData }
    }

    /// Locks the storage for reading on the host; an error if it is elsewhere. `T` is the element type.
    pub(crate) fn read<T: Element>(&self, op: &'static str) -> Result<Reading<'_, T>> {
        debug_assert_eq!(self.dtype(), T::DTYPE);
        Ok(Reading::new(self.host(op)?))
    }

    /// [`read`](Self::read) for any element type.
    pub(crate) fn host(&self, op: &'static str) -> Result<Locked<'_>> {
        let locked = self.storage.lock();
        match locked.host() {
            Some(_) => Ok(locked),
            None => Err(Error::OnDevice { op, shape: *self.shape(), device: self.storage.device().clone() }),
        }
    }

    /// This tensor if it is contiguous, else a copy that is; outside the graph.
    pub(crate) fn gap_free(&self) -> Result<Raw> {
        if self.layout.is_contiguous() { Ok(self.without_node()) } else { self.detached_copy("contiguous") }
    }

    /// [`gap_free`](Self::gap_free) at this tensor's place in the graph.
    pub(crate) fn gap_free_in_graph(&self) -> Result<Raw> {
        Ok(Raw { node: self.node.clone(), ..self.gap_free()? })
    }

    /// This tensor if it is dense, else a copy that is, with the dimensions in the same order; at its place in the graph.
    pub(crate) fn dense(&self) -> Result<Raw> {
        let layout = self.layout.dense();
        let dense = match self.layout.order() {
            _ if self.layout.is_dense() => self.with_layout(layout.starting_at(self.layout.offset())),
            Some(order) => {
                self.with_layout(self.layout.permute(&order)).detached_copy("contiguous")?.with_layout(layout)
            }
            None => self.detached_copy("contiguous")?,
        };
        Ok(Raw { node: self.node.clone(), ..dense })
    }

    /// A contiguous copy in a storage of its own, outside the graph.
    pub(crate) fn detached_copy(&self, op: &'static str) -> Result<Raw> {
        let device = self.storage.device();
        let running = profiler::op("copy");
        let Device::Cuda(cuda) = device else {
            let mut out = Fresh::allocate(op, *self.shape(), self.dtype())?;
            by_bits!(self.dtype(), B => cpu::copy(self.host(op)?.bits::<B>(&self.layout), out.bits()));
            let out = out.share();
            running.note_result(&[Some(self)], &out, "copy");
            return Ok(out);
        };
        let mut out = FreshCuda::allocate(op, *self.shape(), self.dtype(), device, cuda)?;
        let locked = self.storage.lock();
        let views = [locked.cuda(&self.layout, self.dtype())];
        profiler::on_stream("copy", || cuda.stream(), || COPY.run(cuda, op, &views, &[], out.out()))?;
        let out = out.share();
        running.note_result(&[Some(self)], &out, "copy");
        Ok(out)
    }

    /// This tensor on the host, in precision `dtype`; waits for a device that computes it.
    fn here(&self, dtype: DType) -> Result<Raw> {
        let here = transfer::readable(self)?;
        if here.dtype() == dtype { Ok(here) } else { no_grad(|| cast(&here, dtype)) }
    }

    /// [`Tensor::copy_to_slice`]; allocates only to convert elements, or to copy them from a device.
    fn copy_to_slice<T: Element>(&self, op: &'static str, out: &mut [T]) -> Result<()> {
        T::copy_out(&self.here(T::DTYPE)?, op, out)
    }
}

/// `$body` with `$T` for the type of the first pattern that `$value` matches; else `$rest`, if there is one.
macro_rules! by_pattern {
    ($value:expr, $T:ident => $body:expr; $($pattern:pat_param $(if $guard:expr)? => $type:ty),+ $(; $other:ident => $rest:expr)?) => {
        match $value {
            $($pattern $(if $guard)? => {
                type $T = $type;
                $body
            })+
            $($other => $rest,)?
        }
    };
}
pub(crate) use by_pattern;

/// `$body` with `$T` for the type of elements of `$dtype`.
macro_rules! by_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::tensor::by_pattern!($dtype, $T => $body;
            $crate::element::DType::F32 => f32,
            $crate::element::DType::F64 => f64,
            $crate::element::DType::F16 => half::f16,
            $crate::element::DType::BF16 => half::bf16,
            $crate::element::DType::I64 => i64,
            $crate::element::DType::I32 => i32,
            $crate::element::DType::U8 => u8,
            $crate::element::DType::Bool => bool)
    };
}
pub(crate) use by_dtype;

/// `$body` with `$K` for the kind of tensors that hold elements of `$dtype`.
macro_rules! by_kind {
    ($dtype:expr, $K:ident => $body:expr) => {
        $crate::tensor::by_pattern!($dtype, $K => $body;
            $crate::element::DType::Bool => $crate::kind::Bool,
            dtype if dtype.is_float() => $crate::kind::Float,
            _ => $crate::kind::Int)
    };
}
pub(crate) use by_kind;

/// `$body` with `$B` for the type of the bits of elements of `$dtype`.
macro_rules! by_bits {
    ($dtype:expr, $B:ident => $body:expr) => {
        $crate::tensor::by_pattern!($dtype.size(), $B => $body; 1 => u8, 2 => u16, 4 => u32, _ => u64)
    };
}
pub(crate) use by_bits;

/// `$body` with `$C` for the computing type of `$dtype`; truth values are bytes.
macro_rules! by_computing {
    ($dtype:expr, $C:ident => $body:expr) => {
        $crate::tensor::by_pattern!($dtype.computing(), $C => $body;
            $crate::element::DType::Bool => u8; number => $crate::tensor::by_num!(number, $C => $body))
    };
}
pub(crate) use by_computing;

/// [`by_computing!`] for types that are known to be numbers.
macro_rules! by_num {
    ($dtype:expr, $C:ident => $body:expr) => {
        $crate::tensor::by_pattern!($dtype.computing(), $C => $body;
            $crate::element::DType::I64 => i64, $crate::element::DType::I32 => i32, $crate::element::DType::U8 => u8;
            float => $crate::tensor::by_real!(float, $C => $body))
    };
}
pub(crate) use by_num;

/// [`by_computing!`] for types that are known to be floats.
macro_rules! by_real {
    ($dtype:expr, $C:ident => $body:expr) => {
        $crate::tensor::by_pattern!($dtype.computing(), $C => $body;
            $crate::element::DType::F32 => f32, $crate::element::DType::F64 => f64;
            other => unreachable!("{other} is not a float type"))
    };
}
pub(crate) use by_real;

impl<K> Clone for Tensor<K> {
    fn clone(&self) -> Self {
        Tensor { raw: self.raw.clone(), kind: PhantomData }
    }
}

impl<K: Kind> Tensor<K> {
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

    pub(crate) fn with_node(mut self, node: Option<NodeRef>) -> Tensor<K> {
        self.raw.node = node;
        self
    }

    /// Tensors with the layouts of `like`, each at the start of its own storage in a block, outside the graph.
    pub(crate) fn all_in_block(block: &Arc<UploadedBlock>, like: &[&Raw]) -> Vec<Tensor<K>> {
        // Layouts are large, so each is written once, in place: half the time of moving whole tensors. The reference
        // counts are raised before that, since an atomic operation waits for all earlier writes.
        let scalar = |storage| Tensor { raw: Raw { storage, layout: Layout::SCALAR, node: None }, kind: PhantomData };
        let mut all: Vec<_> = block.all(like).into_iter().map(scalar).collect();
        all.iter_mut().zip(like).for_each(|(made, like)| made.raw.layout.set_from_start(&like.layout));
        all
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.raw.layout
    }

    pub(crate) fn storage(&self) -> &StorageRef {
        &self.raw.storage
    }

    /// Whether two tensors may share elements.
    pub(crate) fn shares_storage<L: Kind>(&self, other: &Tensor<L>) -> bool {
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
    /// assert_eq!(x.dims(), [64, 1, 28, 28]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn dims(&self) -> &[usize] {
        self.shape()
    }

    /// The sizes of the dimensions, as many as the pattern has names: PyTorch's
    /// `batch, channels, height, width = x.shape`.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([64, 1, 28, 28])?;
    /// let [batch, channels, height, width] = x.sizes()?;
    /// assert_eq!(x.reshape((batch, channels * height * width))?.dims(), [64, 784]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the number of dimensions is not `N`.
    pub fn sizes<const N: usize>(&self) -> Result<[usize; N]> {
        self.shape().sizes()
    }

    /// The size of one dimension; negative values count from the end.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension.
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

    /// The precision: the type of each element.
    ///
    /// ```
    /// # use pagelock_tensor::{DType, Tensor};
    /// assert_eq!(Tensor::zeros([2])?.dtype(), DType::F32);
    /// assert_eq!(Tensor::from_slice(&[1i32], [1])?.dtype().name(), "int32");
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn dtype(&self) -> DType {
        self.raw.dtype()
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

    /// All elements in row-major order, on the host, converted if they are of another precision than `T`; waits for a
    /// device that computes them.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?;
    /// assert_eq!(x.t()?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if a converted copy does not fit the budget, or the system has no memory for the vector; as
    /// [`Tensor::to`] for a tensor on a device.
    #[track_caller]
    pub fn to_vec<T: Element<Kind = K>>(&self) -> Result<Vec<T>> {
        let _here = pagelock_cuda::here();
        let mut out = try_zeroed_vec(self.len()).map_err(|()| {
            let asked = ByteSize(size_of::<T>() as u64 * self.len() as u64);
            let source = memory::Error::OutOfMemory { asked, kind: MemoryKind::Pageable };
            Error::Memory { op: "to_vec", shape: *self.shape(), dtype: T::DTYPE, source }
        })?;
        self.raw.copy_to_slice("to_vec", &mut out)?;
        Ok(out)
    }

    /// Copies all elements, in row-major order, into `out`, converted if they are of another precision; waits for a device
    /// that computes them.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let mut out = [0.0_f32; 3];
    /// Tensor::new([1.0, 2.0, 3.0])?.copy_to_slice(&mut out)?;
    /// assert_eq!(out, [1.0, 2.0, 3.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if `out` has another length; otherwise those of [`Tensor::to_vec`].
    #[track_caller]
    pub fn copy_to_slice<T: Element<Kind = K>>(&self, out: &mut [T]) -> Result<()> {
        let _here = pagelock_cuda::here();
        if out.len() != self.len() {
            return Err(Error::wrong_length("copy_to_slice", "`out`", out.len(), self.shape()));
        }
        self.raw.copy_to_slice("copy_to_slice", out)
    }

    /// The element of a tensor that holds only one, converted if it is of another precision than `T`; waits for a
    /// device that computes it.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let loss: f32 = Tensor::new([[2.5]])?.item()?;
    /// assert_eq!(loss, 2.5);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is not exactly one element; otherwise those of [`Tensor::to_vec`].
    #[track_caller]
    pub fn item<T: Element<Kind = K>>(&self) -> Result<T> {
        let _here = pagelock_cuda::here();
        if self.len() != 1 {
            return Err(Error::Argument(format!(
                "item: {} holds {} elements, not one; reduce or select first, or use to_vec",
                self.shape(),
                self.len()
            )));
        }
        let mut out = [T::ZERO];
        self.raw.copy_to_slice("item", &mut out)?;
        Ok(out[0])
    }

    /// A contiguous copy in a storage of its own, outside the graph.
    pub(crate) fn detached_copy(&self, op: &'static str) -> Result<Tensor<K>> {
        self.raw.detached_copy(op).map(Raw::typed)
    }

    /// Splits a vector that an operation just made into its first `n` elements and the others. On a device each part
    /// gets a storage of its own, so that neither has to be copied to be changed.
    pub(crate) fn split_after(self, n: usize) -> Result<[Tensor<K>; 2]> {
        let rest = self.len() - n;
        let Some([left, right]) = self.storage().split_at(n * self.dtype().size())? else {
            return Ok([self.narrow(0, 0, n)?, self.narrow(0, n, rest)?]);
        };
        let part = |storage, len| {
            let layout = Layout::contiguous(Shape::new(&[len])?);
            Ok(Raw { storage, layout, node: None }.typed())
        };
        Ok([part(left, n)?, part(right, rest)?])
    }
}
