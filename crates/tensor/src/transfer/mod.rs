//! Moves of tensors between host and devices. Nothing can race, and no flag is needed for correctness.
//!
//! Uploads: from page-locked memory the device copies in the background, and a change or drop of the source waits for
//! the copy. From ordinary memory, the call returns once the source may be changed. Downloads: into page-locked
//! memory, the copy runs in the background, and the first access waits for it. A tensor that is too large to
//! page-lock goes through the ring, and has arrived when the call returns. In all cases operations on the result are
//! queued behind the copy. `pagelock-cuda` chooses the route; `many.rs` moves many tensors together.

pub(crate) mod many;

use std::sync::LazyLock;

use pagelock_cuda::{DeviceView, DeviceViewMut, HostSource, PageLockedMemory, Stream, page_locked_budget};
use pagelock_memory::{Counted, HostBuffer, HugePages, Limited, PageLocked, Pooled, Resource, default_host};

use crate::autograd::{GradFn, NodeRef, is_recorded};
use crate::capture;
use crate::cpu;
use crate::cuda::CudaDevice;
use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::heap;
use crate::inlined::{Array, Slice};
use crate::kind::Kind;
use crate::layout::Layout;
use crate::profiler;
use crate::storage::{FreshCuda, on_host};
use crate::tensor::{Raw, Tensor, by_bits};

/// Tensors of up to this many bytes are downloaded to page-locked memory.
const PAGE_LOCKED_BYTES: usize = 32 << 20;

impl<K: Kind> Tensor<K> {
    /// Where the elements are.
    pub fn device(&self) -> Device {
        self.storage().device().clone()
    }

    /// This tensor on `device`: itself if it is there already, else a copy. Gradients flow back. A tensor with gaps, or
    /// an expanded one, becomes contiguous; others keep their strides.
    ///
    /// Returns while the copy may still be in progress. This tensor may be changed or dropped, and the result used,
    /// at once: whatever has to wait for the copy does so. From page-locked memory ([`Tensor::pin_memory`]) nothing
    /// is copied twice.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`] or [`Error::Memory`] if there is no room; [`Error::Cuda`].
    #[track_caller]
    pub fn to(&self, device: &Device) -> Result<Tensor<K>> {
        let _here = pagelock_cuda::here();
        self.raw().to(device).map(Raw::typed)
    }

    /// This tensor in page-locked memory, from which GPUs copy fastest and without blocking the program. It is the
    /// tensor itself if that is there already, else a copy in [`page_locked`] memory.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget of page-locked memory refuses, or, without a GPU, the system's limit on locked
    /// pages; [`Error::OnDevice`] for a tensor that is not on the host.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::ones([2, 3])?.pin_memory()?;
    /// assert!(x.is_pinned());
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn pin_memory(&self) -> Result<Tensor<K>> {
        pinned_in(self.raw(), page_locked()).map(Raw::typed)
    }

    /// As [`Tensor::pin_memory`], in the page-locked memory of that device.
    ///
    /// # Errors
    /// As [`Tensor::pin_memory`]; for the CPU, [`Error::Argument`].
    pub fn pin_memory_for(&self, device: &Device) -> Result<Tensor<K>> {
        pinned_in(self.raw(), page_locked_of(device)?).map(Raw::typed)
    }

    /// Whether the elements are in page-locked host memory.
    pub fn is_pinned(&self) -> bool {
        many::is_pinned(self.raw())
    }
}

impl Raw {
    #[track_caller]
    pub(crate) fn to(&self, device: &Device) -> Result<Raw> {
        let _here = pagelock_cuda::here();
        if self.storage.device() == device {
            return Ok(self.clone());
        }
        let running = profiler::op("to");
        let dense = if self.layout.is_dense() { self.clone() } else { self.detached_copy("to")? };
        let moved = move_to(&dense, device)?;
        running.note_result(&[Some(self)], &moved, "to");
        Ok(record("to", self, moved))
    }
}

fn pinned_in(tensor: &Raw, resource: &PageLockedMemory) -> Result<Raw> {
    if many::is_pinned(tensor) {
        return Ok(tensor.clone());
    }
    let memory = allocate_host("pin_memory", tensor, resource, tensor.shape().elements())?;
    let mut memory = memory.drop_without_waiting(); // as in `x.pin_memory()?.to(&gpu)?`
    let bytes = memory.bytes_mut().unwrap_or_else(|error| unreachable!("page-locked memory is writable: {error}"));
    if tensor.dtype() == DType::Bool {
        bytes.set_to(0);
    }
    by_bits!(tensor.dtype(), B => {
        cpu::copy(tensor.host("pin_memory")?.bits::<B>(&tensor.layout), bytemuck::cast_slice_mut(bytes));
    });
    let layout = Layout::contiguous(*tensor.shape());
    let out = Raw { storage: on_host(memory, tensor.dtype())?, layout, node: None };
    Ok(record("pin_memory", tensor, out))
}

/// The page-locked memory of a GPU.
pub(crate) fn page_locked_of(device: &Device) -> Result<&PageLockedMemory> {
    match device {
        Device::Cuda(cuda) => Ok(cuda.cuda().page_locked()),
        Device::Cpu => {
            let expected = "only a GPU copies from page-locked memory; name one";
            Err(Error::bad_argument("pin_memory", "device", device, expected))
        }
    }
}

/// A span of fewer elements than twice this takes less time to copy than a kernel that leaves the gaps out.
const LONG_SPAN: usize = 64 << 10;

/// A tensor that the host can read, outside the graph: the tensor itself, or a copy of the part of the storage that
/// it covers. An error if an earlier operation on the device had an index out of range.
pub(crate) fn readable(tensor: &Raw) -> Result<Raw> {
    let Device::Cuda(cuda) = tensor.storage.device() else { return Ok(tensor.without_node()) };
    let _running = profiler::op("read");
    // Of a large view with gaps, such as a column, only the elements are copied, if the device has memory for them.
    let has_gaps = tensor.layout.span() / 2 > tensor.shape().elements().max(LONG_SPAN);
    let without_gaps = if has_gaps { tensor.detached_copy("to").ok() } else { None };
    let out = download_span("to", without_gaps.as_ref().unwrap_or(tensor), cuda)?;
    cuda.check_faults()?;
    Ok(out)
}

/// The page-locked memory of the process, under [`page_locked_budget`]: that of the first GPU. Without a GPU, `mlock`
/// alone locks the pages, within the system's limit on them (`ulimit -l`).
///
/// # Examples
/// ```
/// use pagelock_memory::{HostBuffer, MemoryKind};
///
/// let buffer = HostBuffer::allocate(pagelock_tensor::page_locked(), 1_000)?;
/// assert_eq!(buffer.kind(), MemoryKind::PageLocked);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub fn page_locked() -> &'static PageLockedMemory {
    static MEMORY: LazyLock<PageLockedMemory> = LazyLock::new(|| match Device::cuda(0) {
        Ok(Device::Cuda(cuda)) => cuda.cuda().page_locked().clone(),
        _ => {
            let limited = Limited::new(page_locked_source(), page_locked_budget().clone());
            Counted::new("page-locked", Pooled::new(limited))
        }
    });
    &MEMORY
}

/// The source of [`page_locked`] memory, for memory under a budget of one's own.
///
/// # Examples
/// ```
/// use pagelock_memory::{Budget, ByteSize, HostBuffer, Limited, Pooled};
///
/// let source = pagelock_tensor::page_locked_source();
/// let slots = Pooled::new(Limited::new(source, Budget::new("mine", ByteSize::mib(1))));
/// assert!(HostBuffer::allocate(&slots, 2 << 20).is_err());
/// ```
pub fn page_locked_source() -> PageLocked {
    let source = PageLocked::new().huge_pages(HugePages::WhereGranted);
    match Device::cuda(0) {
        Ok(Device::Cuda(cuda)) => source.locked_by(cuda.cuda().page_locker()),
        _ => source,
    }
}

/// A copy of a dense tensor on another device, with the same strides.
fn move_to(tensor: &Raw, device: &Device) -> Result<Raw> {
    match (tensor.storage.device(), device) {
        (Device::Cpu, Device::Cuda(cuda)) => upload(tensor, device, cuda),
        (Device::Cuda(cuda), Device::Cpu) => download_span("to", tensor, cuda),
        (Device::Cuda(_), Device::Cuda(cuda)) => copy_between(tensor, device, cuda),
        (Device::Cpu, Device::Cpu) => Ok(tensor.clone()),
    }
}

fn upload(tensor: &Raw, device: &Device, cuda: &CudaDevice) -> Result<Raw> {
    upload_on(&cuda.stream(), tensor, device)
}

/// A copy on `device`, queued on `stream`, which belongs to it.
pub(crate) fn upload_on(stream: &Stream, tensor: &Raw, device: &Device) -> Result<Raw> {
    let (dtype, layout) = (tensor.dtype(), tensor.layout.at_start());
    let mut fresh = FreshCuda::allocate_on(stream, "to", *tensor.shape(), dtype, device)?;
    send(tensor, stream, fresh.out().into_bytes())?;
    Ok(Raw { layout, ..fresh.share() })
}

/// Copies a dense tensor of the host to `target`.
fn send(tensor: &Raw, stream: &Stream, target: DeviceViewMut<'_, u8>) -> Result<()> {
    capture::refuse("a copy from the host")?;
    let locked = tensor.storage.lock();
    let Some(buffer) = locked.host() else { unreachable!("the tensor is on the host") };
    let start = tensor.layout.offset() * tensor.dtype().size();
    let source = HostSource::of(buffer, start..start + target.len());
    let copied = source
        .and_then(|source| profiler::on_stream("upload", || stream.clone(), || stream.upload_from(source, target)));
    copied.map_err(|source| Error::cuda("to", source))
}

/// The part of the storage that a view covers, on the host, with the view's strides.
fn download_span(op: &'static str, tensor: &Raw, cuda: &CudaDevice) -> Result<Raw> {
    capture::refuse("reading elements on the host")?;
    let (dtype, layout) = (tensor.dtype(), tensor.layout.at_start());
    let locked = tensor.storage.lock();
    let source = span_of(tensor, locked.device_bytes());
    let failed = |source| Error::cuda(op, source);
    let stream = cuda.stream();
    if source.len() <= PAGE_LOCKED_BYTES {
        // Page-locked memory may be short. Ordinary memory works as well, only not in the background.
        if let Ok(mut memory) = HostBuffer::allocate(cuda.cuda().page_locked(), source.len()) {
            profiler::on_stream("download", || stream.clone(), || stream.download_to(source, &mut memory))
                .map_err(failed)?;
            return Ok(Raw { storage: on_host(memory, dtype)?, layout, node: None });
        }
    }
    let mut memory = allocate_host(op, tensor, default_host(), tensor.layout.span())?;
    profiler::on_stream("download", || stream.clone(), || stream.download_to(source, &mut memory)).map_err(failed)?;
    Ok(Raw { storage: on_host(memory, dtype)?, layout, node: None })
}

fn copy_between(tensor: &Raw, device: &Device, cuda: &CudaDevice) -> Result<Raw> {
    let (dtype, layout) = (tensor.dtype(), tensor.layout.at_start());
    let mut fresh = FreshCuda::allocate("to", *tensor.shape(), dtype, device, cuda)?;
    let locked = tensor.storage.lock();
    let source = span_of(tensor, locked.device_bytes());
    cuda.stream().copy(source, fresh.out().into_bytes()).map_err(|source| Error::cuda("to", source))?;
    Ok(Raw { layout, ..fresh.share() })
}

fn span_of<'a>(tensor: &Raw, bytes: Option<DeviceView<'a, u8>>) -> DeviceView<'a, u8> {
    let Some(bytes) = bytes else { unreachable!("the tensor is on a device") };
    let [start, len] =
        [tensor.layout.offset(), tensor.layout.span()].mapped(|elements| elements * tensor.dtype().size());
    let span = bytes.slice(start..start + len);
    span.unwrap_or_else(|error| unreachable!("a layout is inside its storage: {error}"))
}

fn allocate_host<R: Resource>(op: &'static str, tensor: &Raw, resource: &R, elements: usize) -> Result<HostBuffer> {
    let (shape, dtype) = (*tensor.shape(), tensor.dtype());
    let buffer = heap::check().and_then(|()| HostBuffer::allocate(resource, elements * dtype.size()));
    buffer.map_err(|source| Error::Memory { op, shape, dtype, source })
}

/// Gives a moved copy its node, if the gradient of `from` is wanted.
pub(crate) fn record(name: &'static str, from: &Raw, out: Raw) -> Raw {
    if !is_recorded(name, [from.node.as_ref()].into_iter(), out.dtype()) {
        return out;
    }
    let function = Move { name, edge: [from.node.clone()], back_to: from.storage.device().clone() };
    Raw { node: Some(NodeRef::new(out.dtype(), *out.shape(), function)), ..out }
}

/// The node of [`Tensor::to`]: the gradient goes back to where the tensor came from.
struct Move {
    name: &'static str,
    edge: [Option<NodeRef>; 1],
    back_to: Device,
}

impl GradFn for Move {
    fn name(&self) -> &'static str {
        self.name
    }

    fn edges(&self) -> &[Option<NodeRef>] {
        &self.edge
    }

    fn backward(&self, _this: &NodeRef, grad: Raw, send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<()> {
        send(0, grad.to(&self.back_to)?)
    }

    fn take_links(&mut self, links: &mut Vec<NodeRef>) {
        links.extend(self.edge[0].take());
    }
}
