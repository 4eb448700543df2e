//! [`DeviceLoader`]: a loader, of either kind, whose batches are on a device before the program requests them.
//!
//! Copies from page-locked batches run on a separate stream while the device computes. An operation waits only for
//! the copy of the batch that it uses. Dropping a source waits for its copy, so a source is kept until later copies
//! are queued.

use std::collections::VecDeque;
use std::mem;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use pagelock_cuda::Timeline;
use pagelock_tensor::profiler::{self, Category};
use pagelock_tensor::{AnyTensor, CopyStream, Device};

use super::batches::Batches;
use super::loaders::{Indices, Loader};
use super::order::Position;
use super::settings::MAX_AHEAD;
use super::source::{AnyBatch, move_tensors};
use crate::error::check_most;
use crate::panics::lock;
use crate::pin::{Destination, PinMemory, Slots};
use crate::{Error, Result};

/// Gives the batches of a loader on a device; made by [`Loader::to`].
///
/// For everything else it derefs to that loader: [`len`](crate::DataLoader::len), [`report`](Loader::report),
/// [`state`](crate::DataLoader::state), and so on.
///
/// # Examples
/// ```
/// use pagelock_cuda::Timeline;
/// use pagelock_data::{DataLoader, TensorDataset};
/// use pagelock_tensor::{Device, Tensor};
///
/// let (device, timeline) = (Device::best(), Timeline::new());
/// let dataset = TensorDataset::new((Tensor::zeros([100, 784])?, Tensor::ones([100])?))?;
/// let loader = DataLoader::new(dataset).batch_size(25).shuffle(1).num_workers(2).to(&device)?;
/// let loader = loader.ahead(3).timeline(&timeline);
/// for batch in &loader {
///     let (xb, yb) = batch?;
///     assert_eq!((xb.device(), yb.device()), (device.clone(), device.clone()));
/// }
/// assert_eq!(loader.report().batches, 4);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub struct DeviceLoader<B, K = Indices> {
    loader: Loader<B, K>, // with a device among its settings
}

/// Where batches go, and how far ahead of the program.
#[derive(Clone)]
pub(super) struct ToDevice {
    device: Device,
    ahead: usize,
    timeline: Option<Timeline>,
    move_tensors: fn(&mut AnyBatch, &Slots<'_>) -> Result<()>,
}

impl<B: PinMemory + Send + 'static, K> Loader<B, K> {
    /// Copies batches to `device`, two batches ahead of the program. For a GPU they are page-locked first, then
    /// copied on a separate stream while the device computes. The results are those of
    /// [`Tensor::to`](pagelock_tensor::Tensor::to).
    ///
    /// # Errors
    /// None. If a batch cannot be copied, the error takes its place.
    pub fn to(self, device: &Device) -> Result<DeviceLoader<B, K>> {
        let mut loader = if device.is_cpu() || self.core.makes_pinned() { self } else { self.pin_memory(true) };
        let to = ToDevice { device: device.clone(), ahead: 2, timeline: None, move_tensors: move_tensors::<B> };
        loader.core.recipe_mut().settings.device = Some(to);
        Ok(DeviceLoader { loader })
    }
}

impl<B: PinMemory + Send + 'static, K> DeviceLoader<B, K> {
    /// How many batches are copied to the device ahead of the program: 2 unless set. Each takes memory there. With 0,
    /// a batch is copied when the program requests it.
    pub fn ahead(mut self, ahead: usize) -> Self {
        self.loader.core.recipe_mut().settings.device.iter_mut().for_each(|to| to.ahead = ahead);
        self
    }

    /// Records in `timeline` when each batch is copied, by the device's clock: "upload 17". Next to spans of the
    /// program's computation, the trace shows which copies overlap with it and which delay it. On the CPU nothing is
    /// recorded.
    pub fn timeline(mut self, timeline: &Timeline) -> Self {
        self.loader.core.recipe_mut().settings.device.iter_mut().for_each(|to| to.timeline = Some(timeline.clone()));
        self
    }
}

impl<B, K> Deref for DeviceLoader<B, K> {
    type Target = Loader<B, K>;

    fn deref(&self) -> &Loader<B, K> {
        &self.loader
    }
}

impl<'a, B: PinMemory + Send + 'static, K> IntoIterator for &'a DeviceLoader<B, K> {
    type Item = Result<B>;
    type IntoIter = Batches<'a, B>;

    fn into_iter(self) -> Batches<'a, B> {
        self.iter()
    }
}

/// The batches of an epoch that are on a device, or being copied there.
pub(super) struct Uploads {
    to: ToDevice,
    stream: CopyStream,
    sources: Mutex<Vec<AnyTensor>>, // guards the sources of the batch that is being sent
    /// The sources of the batches that were sent before, the oldest first.
    earlier: VecDeque<Vec<AnyTensor>>,
    /// The next batches for the program, each with the loader's position after it.
    uploaded: VecDeque<(Result<AnyBatch>, Position)>,
}

impl Uploads {
    pub(super) fn begin(to: &ToDevice) -> Result<Self> {
        check_most("ahead", to.ahead, MAX_AHEAD, "2 is usual")?;
        let (stream, sources) = (CopyStream::new(&to.device)?, Mutex::default());
        Ok(Self { to: to.clone(), stream, sources, earlier: VecDeque::new(), uploaded: VecDeque::new() })
    }

    /// How many batches the program can get without another being made.
    pub(super) fn len(&self) -> usize {
        self.uploaded.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.uploaded.len() > self.to.ahead
    }

    /// Starts the copy of batch `number` of the epoch; a panic becomes an error.
    pub(super) fn send(&self, number: usize, mut batch: AnyBatch) -> Result<AnyBatch> {
        let _uploading = profiler::span("DataLoader upload", Category::Loading);
        let mut send = || Error::catch(None, None, None, || (self.to.move_tensors)(&mut batch, &Slots::new(self)));
        match (&self.to.timeline, self.stream.stream()) {
            (Some(timeline), Some(stream)) => timeline
                .on_stream(format!("upload {number}"), stream, send)
                .unwrap_or_else(|error| Err(Error::other(error))),
            _ => send(),
        }?;
        Ok(batch)
    }

    /// Adds a batch that was sent, or the error in its place.
    pub(super) fn push(&mut self, batch: Result<AnyBatch>, next: Position) {
        let sources = self.sources.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.earlier.push_back(mem::take(sources));
        self.uploaded.push_back((batch, next));
    }

    /// Drops all sources but those of the last `n_kept` batches, which waits for the copies of the others.
    pub(super) fn release(&mut self, n_kept: usize) {
        let n_done = self.earlier.len().saturating_sub(n_kept);
        self.earlier.drain(..n_done);
    }

    /// The next batch, whose copy is not waited for.
    pub(super) fn pop(&mut self) -> Option<(Result<AnyBatch>, Position)> {
        let first = self.uploaded.pop_front()?;
        self.release(self.uploaded.len() + 1);
        Some(first)
    }
}

impl Destination for Uploads {
    fn take(&self, tensor: AnyTensor) -> Result<AnyTensor> {
        let uploaded = match tensor.dtype() {
            dtype if dtype.is_float() => self.stream.upload(&tensor.float()?)?.into(),
            dtype if dtype.is_int() => self.stream.upload(&tensor.int()?)?.into(),
            _ => self.stream.upload(&tensor.bool()?)?.into(),
        };
        if !self.stream.device().is_cpu() {
            lock(&self.sources).push(tensor);
        }
        Ok(uploaded)
    }
}
