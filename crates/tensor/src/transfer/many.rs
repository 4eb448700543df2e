//! Moves of many tensors together, without a pause between them.
//!
//! On a device they share blocks of up to 64 MiB, so that few copies move them all. They share nothing else: each
//! tensor has a storage of its own, with its own version and lock. A block is freed with the last of its tensors.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use pagelock_cuda::{DeviceBuffer, HostSource, Stream};
use pagelock_memory::{ALIGN, HostBuffer, MemoryKind, Resource, default_host};

use super::{PAGE_LOCKED_BYTES, copy_between, download_span, record};
use crate::all_locked::{AllLocked, try_lock_all};
use crate::capture;
use crate::cuda::CudaDevice;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::inlined::{Array, Slice};
use crate::kind::Kind;
use crate::layout::Layout;
use crate::parallel;
use crate::shape::Shape;
use crate::storage::{Locked, LockedMut, StorageRef, UploadedBlock, on_cuda, on_host, sort_by_lock_key};
use crate::tensor::{Raw, Tensor};

/// The alignment of tensors in a block that they share, in bytes, as kernels prefer it.
const STEP: usize = 256;

/// Bytes that a thread copies at once.
const TASK_BYTES: usize = 1 << 20;

impl<K: Kind> Tensor<K> {
    /// Copies many tensors to `device` together, as [`Tensor::to`] copies one, without a pause between them. Tensors
    /// in ordinary memory share blocks of up to 64 MiB of the device's memory, and each block is freed with the last
    /// of its tensors. Tensors that are there already are returned as they are.
    ///
    /// # Errors
    /// As [`Tensor::to`].
    ///
    /// # Examples
    /// ```
    /// use pagelock_tensor::{Device, Tensor};
    ///
    /// let tensors = (0..100).map(|i| Tensor::full([1_000], i as f32)).collect::<Result<Vec<_>, _>>()?;
    /// let there = Tensor::all_to(&tensors, &Device::best())?;
    /// assert_eq!(there[99].select(0, 0)?.item::<f32>()?, 99.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn all_to(tensors: &[Tensor<K>], device: &Device) -> Result<Vec<Tensor<K>>> {
        let _here = pagelock_cuda::here();
        let raws: Vec<&Raw> = tensors.iter().map(Tensor::raw).collect();
        let moved = if raws.iter().any(|tensor| tensor.node.is_some()) {
            all_to(&raws, device)?
        } else {
            match upload_packed(&raws, device)? {
                Some(block) => return Ok(Tensor::all_in_block(&block, &raws)),
                None => each_to(&raws, device)?,
            }
        };
        Ok(raws.iter().zip(moved).map(|(from, moved)| moved.recorded("to", from).typed()).collect())
    }
}

/// Where the elements of a moved tensor are now, and in which layout.
pub(crate) enum Moved {
    /// Where they were.
    Stays,
    /// In the same layout, in a storage that begins with the first element.
    Dense(StorageRef),
    /// In row-major order, since there were gaps.
    Contiguous(StorageRef),
}

impl Moved {
    /// The moved tensor, whose gradient flows back to `from`.
    pub(crate) fn recorded(self, name: &'static str, from: &Raw) -> Raw {
        let (storage, layout) = match self {
            Moved::Stays => return from.clone(),
            Moved::Dense(storage) => (storage, from.layout.at_start()),
            Moved::Contiguous(storage) => (storage, Layout::contiguous(*from.shape())),
        };
        record(name, from, Raw { storage, layout, node: None })
    }
}

/// Copies many tensors to another device, outside the graph.
pub(crate) fn all_to(tensors: &[&Raw], device: &Device) -> Result<Vec<Moved>> {
    match upload_packed(tensors, device)? {
        Some(block) => Ok(block.all(tensors).into_iter().map(Moved::Dense).collect()),
        None => each_to(tensors, device),
    }
}

/// [`all_to`] for tensors of any layout, on any device.
fn each_to(tensors: &[&Raw], device: &Device) -> Result<Vec<Moved>> {
    let has_gaps = |tensor: &Raw| tensor.storage.device() != device && !tensor.layout.is_dense();
    let gappy = tensors.iter().enumerate().filter(|(_, tensor)| has_gaps(tensor));
    let closed = gappy.map(|(at, tensor)| Ok((at, tensor.detached_copy("to")?))).collect::<Result<Vec<_>>>()?;
    let mut dense = tensors.to_vec();
    closed.iter().for_each(|(at, tensor)| dense[*at] = tensor);

    let mut out: Vec<Option<StorageRef>> = vec![None; tensors.len()];
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for (at, tensor) in dense.iter().enumerate() {
        match (tensor.storage.device(), device) {
            (from, to) if from == to => {}
            (Device::Cpu, _) => up.push(at),
            (Device::Cuda(_), Device::Cpu) => down.push(at),
            (Device::Cuda(_), Device::Cuda(cuda)) => out[at] = Some(copy_between(tensor, device, cuda)?.storage),
        }
    }
    if let Device::Cuda(cuda) = device {
        put(&mut out, &dense, &up, |dense| upload(dense, &AllLocked::new(dense), device, cuda))?;
    }
    while let Some(Device::Cuda(cuda)) = down.first().map(|&first| dense[first].storage.device().clone()) {
        let is_here = |at: &mut usize| *dense[*at].storage.device() == Device::Cuda(cuda.clone());
        let here: Vec<_> = down.extract_if(.., is_here).collect();
        put(&mut out, &dense, &here, |dense| download(dense, &cuda, PAGE_LOCKED_BYTES))?;
    }
    let moved = |(at, storage): (usize, Option<StorageRef>)| match storage {
        None => Moved::Stays,
        Some(storage) if std::ptr::eq(dense[at], tensors[at]) => Moved::Dense(storage),
        Some(storage) => Moved::Contiguous(storage),
    };
    Ok(out.into_iter().enumerate().map(moved).collect())
}

/// Calls `make` with the tensors at the indices `which`, and stores its results at these indices of `out`.
fn put(
    out: &mut [Option<StorageRef>],
    dense: &[&Raw],
    which: &[usize],
    make: impl FnOnce(&[&Raw]) -> Result<Vec<StorageRef>>,
) -> Result<()> {
    if which.is_empty() {
        return Ok(());
    }
    let chosen: Vec<&Raw> = which.iter().map(|&at| dense[at]).collect();
    which.iter().zip(make(&chosen)?).for_each(|(&at, made)| out[at] = Some(made));
    Ok(())
}

/// The bytes of a dense tensor in its storage.
#[inline]
fn bytes_of(tensor: &Raw) -> Range<usize> {
    let span = if tensor.layout.is_contiguous() { tensor.shape().elements() } else { tensor.layout.span() };
    let [start, len] = [tensor.layout.offset(), span].mapped(|elements| elements * tensor.dtype().size());
    start..start + len
}

fn upload(dense: &[&Raw], locked: &AllLocked<'_>, device: &Device, cuda: &CudaDevice) -> Result<Vec<StorageRef>> {
    capture::refuse("a copy from the host")?;
    let failed = |source| Error::cuda("to", source);
    let sources = dense.iter().enumerate().map(|(at, tensor)| HostSource::of(host(locked.get(at)), bytes_of(tensor)));
    let sources = sources.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let buffers = cuda.stream().upload_all(&sources).map_err(|source| refused(dense, source))?;
    let made = buffers.into_iter().zip(dense).map(|(buffer, tensor)| on_cuda(buffer, tensor.dtype(), device));
    Ok(made.collect())
}

/// Uploads dense tensors in ordinary memory that nobody is writing, of up to 64 MiB together, as one block, whose
/// parts become storages when they are first used. `None` if the tensors are others.
fn upload_packed(tensors: &[&Raw], device: &Device) -> Result<Option<Arc<UploadedBlock>>> {
    let (Device::Cuda(cuda), Ok(())) = (device, capture::refuse("a copy from the host")) else { return Ok(None) };
    if !fit_in_a_block(tensors) {
        return Ok(None);
    }
    let Some(locks) = try_lock_all(tensors) else { return Ok(None) };
    if locks.iter().any(|locked| host(locked).kind() == MemoryKind::PageLocked) {
        return Ok(None);
    }
    let slices = tensors.iter().zip(&locks).map(|(tensor, locked)| &host(locked).bytes()[bytes_of(tensor)]);
    let packed = cuda.stream().upload_packed(&slices.collect::<Vec<_>>());
    let parts = packed
        .and_then(|packed| packed.buffer.split_when_taken(packed.ranges))
        .map_err(|source| refused(tensors, source))?;
    Ok(Some(UploadedBlock::new(parts, tensors.len(), device)))
}

/// Whether there are tensors, and all are dense, on the host, and together small enough for one block. Such a block
/// is kept until the last of its tensors is dropped.
fn fit_in_a_block(tensors: &[&Raw]) -> bool {
    const BLOCK_BYTES: usize = 64 << 20;
    let mut len_bytes = 0_usize;
    let fits = |tensor: &&Raw| {
        len_bytes = len_bytes.saturating_add(bytes_of(tensor).len());
        tensor.storage.device().is_cpu() && tensor.layout.is_dense() && len_bytes <= BLOCK_BYTES
    };
    !tensors.is_empty() && tensors.iter().all(fits)
}

#[inline]
fn host<'a>(locked: &'a Locked<'_>) -> &'a HostBuffer {
    locked.host().unwrap_or_else(|| unreachable!("the tensor is on the host"))
}

/// Allocates tensors like these on a device, without gaps, in one block. They are as far apart as those of a loader's
/// batch, so that one copy fills them all.
pub(crate) fn allocate_like(tensors: &[Raw], device: &Device, cuda: &CudaDevice) -> Result<Vec<Raw>> {
    let ranges = tensors.iter().scan(0, |start: &mut usize, tensor| {
        // Expanded tensors can have any size, so sums saturate: no device has that much memory.
        let range = *start..start.saturating_add(tensor.shape().elements().saturating_mul(tensor.dtype().size()));
        *start = range.end.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX);
        Some(range)
    });
    let len_bytes = ranges.clone().last().map_or(0, |range| range.end);
    let parts = cuda.stream().allocate(len_bytes).and_then(|whole| whole.split(ranges));
    let parts = parts.map_err(|source| refused(&tensors.iter().collect::<Vec<_>>(), source))?;
    let slot = |(like, part): (&Raw, DeviceBuffer<u8>)| Raw {
        storage: on_cuda(part, like.dtype(), device),
        layout: like.layout.dense(),
        node: None,
    };
    Ok(tensors.iter().zip(parts).map(slot).collect())
}

/// Copies dense tensors of the host, each to one with the same strides on the stream's device, together.
pub(crate) fn upload_to(copies: &[(Raw, Raw)], stream: &Stream) -> Result<()> {
    if copies.is_empty() {
        return Ok(());
    }
    capture::refuse("a copy from the host")?;
    let failed = |source| Error::cuda("to", source);
    let (sources, slots): (Vec<&Raw>, Vec<&Raw>) = copies.iter().map(|(source, slot)| (source, slot)).unzip();
    let locked = AllLocked::new(&sources); // only this locks storages of the host and of a device together, in this order
    let mut order: Vec<_> = slots.iter().enumerate().map(|(at, slot)| (slot.storage.lock_key(), at)).collect();
    sort_by_lock_key(&mut order);
    let mut targets: Vec<(usize, LockedMut<'_>)> =
        order.into_iter().map(|(_, at)| (at, slots[at].storage.lock_mut())).collect();
    targets.sort_unstable_by_key(|(at, _)| *at);
    let pairs = targets.iter_mut().map(|(at, target)| {
        let source = HostSource::of(host(locked.get(*at)), bytes_of(sources[*at]))?;
        Ok((source, target.cuda(&slots[*at].layout, slots[*at].dtype()).into_bytes()))
    });
    let pairs = pairs.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    stream.upload_each(pairs).map_err(failed)
}

/// The device's error, with the shape of the largest tensor.
fn refused(dense: &[&Raw], source: pagelock_cuda::Error) -> Error {
    let largest = dense.iter().max_by_key(|tensor| bytes_of(tensor).len());
    match (source, largest) {
        (source @ (pagelock_cuda::Error::OutOfMemory { .. } | pagelock_cuda::Error::Memory(_)), Some(tensor)) => {
            Error::DeviceMemory { op: "to", shape: *tensor.shape(), dtype: tensor.dtype(), source }
        }
        (source, _) => Error::cuda("to", source),
    }
}

/// Copies tensors to the host, outside the graph. Those from a device are in page-locked memory, whatever their size,
/// if there is enough of it.
pub(crate) fn snapshot(tensors: &[&Raw]) -> Result<Vec<Raw>> {
    let mut out: Vec<Option<Raw>> = vec![None; tensors.len()];
    let mut left: Vec<usize> = (0..tensors.len()).collect();
    while let Some(device) = left.first().map(|&first| tensors[first].storage.device().clone()) {
        let here: Vec<usize> = left.extract_if(.., |at| *tensors[*at].storage.device() == device).collect();
        let chosen: Vec<&Raw> = here.iter().map(|&at| tensors[at]).collect();
        let made: Vec<(StorageRef, Layout)> = match &device {
            Device::Cpu => {
                let layouts = chosen.iter().map(|tensor| Layout::contiguous(*tensor.shape()));
                all_in("snapshot", &chosen, default_host(), None)?.into_iter().zip(layouts).collect()
            }
            Device::Cuda(cuda) => {
                let whole = chosen.iter().map(|tensor| in_own_buffer(tensor)).collect::<Result<Vec<_>>>()?;
                let dense: Vec<&Raw> = whole.iter().map(|tensor| &**tensor).collect();
                let layouts = dense.iter().map(|tensor| tensor.layout.at_start());
                download(&dense, cuda, usize::MAX)?.into_iter().zip(layouts).collect()
            }
        };
        for (at, (storage, layout)) in here.into_iter().zip(made) {
            out[at] = Some(Raw { storage, layout, node: None });
        }
    }
    Ok(out.into_iter().flatten().collect())
}

/// The tensor, if it covers its whole buffer on the device; else a copy that does.
fn in_own_buffer<'a>(tensor: &'a Raw) -> Result<Cow<'a, Raw>> {
    let len_bytes = tensor.storage.lock().device_buffer().map(DeviceBuffer::len);
    if tensor.layout.is_dense() && len_bytes == Some(bytes_of(tensor).len()) {
        return Ok(Cow::Borrowed(tensor));
    }
    Ok(Cow::Owned(tensor.detached_copy("snapshot")?))
}

/// Downloads dense tensors, to page-locked memory if together they have at most `most_locked` bytes.
fn download(dense: &[&Raw], cuda: &CudaDevice, most_locked: usize) -> Result<Vec<StorageRef>> {
    capture::refuse("reading elements on the host")?;
    let locked = AllLocked::new(dense);
    let whole = |at: usize| locked.get(at).device_buffer().filter(|buffer| buffer.len() == bytes_of(dense[at]).len());
    let Some(buffers) = (0..dense.len()).map(whole).collect::<Option<Vec<_>>>() else {
        drop(locked);
        return dense.iter().map(|tensor| Ok(download_span("to", tensor, cuda)?.storage)).collect();
    };
    let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let in_locked = if total <= most_locked { download_locked(&buffers, cuda)? } else { None };
    let hosts = match in_locked {
        Some(hosts) => hosts,
        None => download_staged(dense, &buffers, cuda)?,
    };
    cuda.check_faults()?;
    dense.iter().zip(hosts).map(|(tensor, host)| on_host(host, tensor.dtype())).collect()
}

/// Downloads to page-locked memory in the background; `None` if there is not enough of it.
fn download_locked(buffers: &[&DeviceBuffer<u8>], cuda: &CudaDevice) -> Result<Option<Vec<HostBuffer>>> {
    let failed = |source| Error::cuda("to", source);
    let mut hosts = Vec::with_capacity(buffers.len());
    while hosts.len() < buffers.len() {
        let rest = &buffers[hosts.len()..];
        let start = |buffer: &DeviceBuffer<u8>| (buffer.address().0 - rest[0].address().0) as usize;
        let is_next =
            |pair: &&[&DeviceBuffer<u8>]| pair[0].is_followed_by(pair[1]) && start(pair[1]).is_multiple_of(ALIGN);
        let run = &rest[..1 + rest.windows(2).take_while(is_next).count()];
        let ranges: Vec<_> = match run {
            [only] => std::iter::once(0..only.len()).collect(),
            run => run.iter().map(|buffer| start(buffer)..start(buffer) + buffer.len()).collect(),
        };
        let len_bytes = ranges.last().map_or(0, |range| range.end);
        let Ok(host) = HostBuffer::allocate(cuda.cuda().page_locked(), len_bytes) else { return Ok(None) };
        let mut parts = match run {
            [_] => vec![host],
            _ => host.split(ranges).unwrap_or_else(|error| unreachable!("parts of a device buffer: {error}")),
        };
        cuda.stream().download_each(run.iter().copied().zip(&mut parts)).map_err(failed)?;
        hosts.append(&mut parts);
    }
    Ok(Some(hosts))
}

/// Downloads to ordinary memory.
fn download_staged(dense: &[&Raw], from: &[&DeviceBuffer<u8>], cuda: &CudaDevice) -> Result<Vec<HostBuffer>> {
    let allocate = |tensor: &&Raw| super::allocate_host("to", tensor, default_host(), tensor.layout.span());
    let mut hosts = dense.iter().map(allocate).collect::<Result<Vec<_>>>()?;
    cuda.stream().download_each(from.iter().copied().zip(&mut hosts)).map_err(|source| Error::cuda("to", source))?;
    Ok(hosts)
}

fn writable(buffer: &mut HostBuffer) -> &mut [u8] {
    buffer.bytes_mut().unwrap_or_else(|error| unreachable!("allocated memory is writable: {error}"))
}

/// Contiguous copies of many tensors of the host in one block of `resource`, outside the graph. They are made by
/// `threads` threads, including the caller's, or by as many as kernels use.
pub(crate) fn all_in<R: Resource>(
    op: &'static str,
    tensors: &[&Raw],
    resource: &R,
    threads: Option<usize>,
) -> Result<Vec<StorageRef>> {
    let (ranges, len_bytes) = ranges_in_block(tensors)?;
    let refused = |source| memory_refused(op, tensors, source);
    let block = HostBuffer::allocate(resource, len_bytes).map_err(refused)?;
    let mut parts = block.split(ranges).unwrap_or_else(|error| unreachable!("the ranges are parts: {error}"));
    if let Some(tensor) = tensors.iter().find(|tensor| !tensor.storage.device().is_cpu()) {
        return Err(Error::OnDevice { op, shape: *tensor.shape(), device: tensor.storage.device().clone() });
    }
    let dense = tensors.iter().map(|tensor| gap_free(op, tensor)).collect::<Result<Vec<_>>>()?;
    let locked = AllLocked::new(&dense);
    let mut tasks = Vec::new();
    for (at, part) in parts.iter_mut().enumerate() {
        let source = &host(locked.get(at)).bytes()[bytes_of(&dense[at])];
        tasks.extend(source.chunks(TASK_BYTES).zip(writable(part).chunks_mut(TASK_BYTES)));
    }
    copy_all(tasks, threads);
    drop(locked);
    tensors.iter().zip(parts).map(|(tensor, part)| on_host(part, tensor.dtype())).collect()
}

/// The tensor if it is contiguous, else a copy that is.
fn gap_free<'a>(op: &'static str, tensor: &'a Raw) -> Result<Cow<'a, Raw>> {
    if tensor.layout.is_contiguous() {
        return Ok(Cow::Borrowed(tensor));
    }
    Ok(Cow::Owned(tensor.detached_copy(op)?))
}

fn memory_refused(op: &'static str, tensors: &[&Raw], source: pagelock_memory::Error) -> Error {
    let largest = tensors.iter().max_by_key(|tensor| tensor.shape().elements() * tensor.dtype().size());
    let (shape, dtype) = largest.map_or((Shape::SCALAR, crate::DType::U8), |tensor| (*tensor.shape(), tensor.dtype()));
    Error::Memory { op, shape, dtype, source }
}

/// The byte range of each tensor in a block, and the length of the block.
fn ranges_in_block(tensors: &[&Raw]) -> Result<(Vec<Range<usize>>, usize)> {
    let (mut ranges, mut end) = (Vec::with_capacity(tensors.len()), 0_usize);
    for tensor in tensors {
        tensor.shape().check_size()?; // sizes may come from expanded tensors, which take no memory
        let len_bytes = tensor.shape().elements() * tensor.dtype().size();
        let start = end.next_multiple_of(STEP);
        let too_large = || Error::too_large(tensor.shape());
        end = start.checked_add(len_bytes).filter(|&end| end <= isize::MAX as usize / 2).ok_or_else(too_large)?;
        ranges.push(start..end);
    }
    Ok((ranges, end))
}

fn copy_all(tasks: Vec<(&[u8], &mut [u8])>, threads: Option<usize>) {
    let n_tasks = tasks.len();
    let tasks = Mutex::new(tasks.into_iter());
    let work = || {
        while let Some((source, target)) = next(&tasks) {
            target.copy_from(source);
        }
    };
    match threads {
        None => parallel::run(parallel::num_threads().min(n_tasks), |_| work()),
        Some(threads) => thread::scope(|scope| {
            for _ in 1..threads.min(n_tasks) {
                scope.spawn(work);
            }
            work();
        }),
    }
}

pub(crate) fn next<I: Iterator>(tasks: &Mutex<I>) -> Option<I::Item> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner).next()
}

/// Contiguous copies of many tensors of one device in one block of its memory, outside the graph.
pub(crate) fn all_in_device(
    op: &'static str,
    tensors: &[&Raw],
    device: &Device,
    cuda: &CudaDevice,
) -> Result<Vec<StorageRef>> {
    capture::refuse("consolidating")?;
    let failed = |source| Error::cuda(op, source);
    let (ranges, len_bytes) = ranges_in_block(tensors)?;
    let dense = tensors.iter().map(|tensor| gap_free(op, tensor)).collect::<Result<Vec<_>>>()?;
    let stream = cuda.stream();
    let block = stream.allocate::<u8>(len_bytes).map_err(|source| refused(tensors, source))?;
    let mut parts = block.split(ranges).map_err(failed)?;
    let locked = AllLocked::new(&dense);
    for (at, part) in parts.iter_mut().enumerate().filter(|(_, part)| !part.is_empty()) {
        let bytes = locked.get(at).device_bytes().map(|bytes| bytes.slice(bytes_of(&dense[at])));
        let Some(Ok(source)) = bytes else { unreachable!("the tensor is inside its storage on the device") };
        stream.copy(source, part).map_err(failed)?;
    }
    Ok(tensors.iter().zip(parts).map(|(tensor, part)| on_cuda(part, tensor.dtype(), device)).collect())
}

/// Whether all tensors lie one behind the other in one block, so that one copy would move them.
pub(crate) fn are_one(tensors: &[&Raw]) -> bool {
    let locked = AllLocked::new(tensors);
    let is_whole = |at: usize| {
        let len_bytes = bytes_of(tensors[at]).len();
        let host = locked.get(at).host().map(HostBuffer::len_bytes);
        host.or(locked.get(at).device_buffer().map(DeviceBuffer::len)) == Some(len_bytes)
    };
    let follows = |at: usize| match (locked.get(at).host(), locked.get(at + 1).host()) {
        (Some(this), Some(next)) => this.is_followed_by(next),
        (None, None) => {
            let both = locked.get(at).device_buffer().zip(locked.get(at + 1).device_buffer());
            both.is_some_and(|(this, next)| this.is_followed_by(next))
        }
        _ => false,
    };
    (0..tensors.len()).all(is_whole) && (0..tensors.len().saturating_sub(1)).all(follows)
}

/// Whether a tensor is in page-locked memory.
pub(crate) fn is_pinned(tensor: &Raw) -> bool {
    tensor.storage.lock().host().is_some_and(|buffer| buffer.kind() == MemoryKind::PageLocked)
}
