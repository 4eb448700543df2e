//! [`DeviceLoader`]: a loader, of either kind, whose batches are on a device before the program asks for them.
//!
//! Copies run on a stream of their own, from page-locked batches, while the device computes; an operation waits for the
//! batch that it uses and for nothing else. A source is kept until the copies after it are queued, since dropping it
//! waits for its own.

use std::collections::VecDeque;
use std::mem;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pagelock_cuda::Timeline;
use pagelock_tensor::{AnyTensor, CopyStream, Device};

use super::batches::Batches;
use super::loaders::{Indices, Loader};
use super::opaque::Opaque;
use super::order::Position;
use super::plan::{MOST_AHEAD, check_most};
use crate::panics::lock;
use crate::pin::{Destination, PinMemory, Slots};
use crate::{Error, Result};

/// Gives the batches of a loader on a device; made by [`Loader::to`].
///
/// It is that loader for everything else: [`len`](crate::DataLoader::len), [`report`](Loader::report),
/// [`state`](crate::DataLoader::state), and so on.
///
/// # Examples
/// ```
/// use pagelock_data::{DataLoader, TensorDataset};
/// use pagelock_tensor::{Device, Tensor};
///
/// let device = Device::best();
/// let dataset = TensorDataset::new((Tensor::zeros([100, 784])?, Tensor::ones([100])?))?;
/// let loader = DataLoader::new(dataset).batch_size(25).shuffle(1).num_workers(2).to(&device)?;
/// for batch in &loader {
///     let (xb, yb) = batch?;
///     assert_eq!((xb.device(), yb.device()), (device.clone(), device.clone()));
/// }
/// assert_eq!(loader.report().batches, 4);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub struct DeviceLoader<B, K = Indices> {
    loader: Loader<B, K>,
    device: Device,
    ahead: usize,
    timeline: Option<Timeline>,
}

impl<B: PinMemory + Send + 'static, K> Loader<B, K> {
    /// Batches on `device`: page-locked first, if it is a GPU, then copied there on a stream of its own while the device
    /// computes, two batches ahead of the program. They are as they are with [`Tensor::to`](pagelock_tensor::Tensor::to), only sooner.
    ///
    /// # Errors
    /// None so far; what keeps a batch from the device comes in its place.
    ///
    /// # Examples
    /// See [`DeviceLoader`].
    pub fn to(self, device: &Device) -> Result<DeviceLoader<B, K>> {
        let loader = if device.is_cpu() || self.core.plan.pins { self } else { self.pin_memory(true) };
        Ok(DeviceLoader { loader, device: device.clone(), ahead: 2, timeline: None })
    }
}

impl<B: PinMemory + Send + 'static, K> DeviceLoader<B, K> {
    /// How many batches are on the device, or on their way there, ahead of the program: 2 unless set. Each takes memory
    /// there; with 0 a batch is copied when the program asks for it.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::{Device, Tensor};
    /// # let dataset = TensorDataset::new(Tensor::zeros([100, 2])?)?;
    /// let loader = DataLoader::new(dataset).batch_size(10).to(&Device::best())?.ahead(4);
    /// assert_eq!(loader.iter().count(), 10);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn ahead(mut self, ahead: usize) -> Self {
        self.ahead = ahead;
        self
    }

    /// Notes in `timeline` when each batch is copied, by the device's clock: "upload 17". Beside spans of what the program
    /// computes, its trace shows what is hidden and what is waited for. On the CPU there is nothing to note.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device as Gpu, Timeline, software::Config};
    /// use pagelock_tensor::Device;
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// # let dataset = TensorDataset::new(Tensor::zeros([100, 2])?)?;
    ///
    /// let device = Device::try_from(&Gpu::software(Config::default())?)?;
    /// let timeline = Timeline::new();
    /// let loader = DataLoader::new(dataset).batch_size(50).to(&device)?.timeline(&timeline);
    /// loader.iter().for_each(drop);
    /// assert_eq!(timeline.spans()?[1].name, "upload 1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn timeline(mut self, timeline: &Timeline) -> Self {
        self.timeline = Some(timeline.clone());
        self
    }

    /// Starts the next epoch; `for batch in &loader` does the same.
    ///
    /// # Examples
    /// See [`DeviceLoader`].
    pub fn iter(&self) -> DeviceBatches<'_, B, K> {
        let (uploads, refusal) = match Uploads::begin(&self.device, self.ahead, &self.timeline) {
            Ok(uploads) => (Some(uploads), None),
            Err(error) => (None, Some(error)),
        };
        let (loader, batches) = (&self.loader, self.loader.iter());
        DeviceBatches { loader, batches, ahead: self.ahead, uploads, refusal, there: VecDeque::new() }
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
    type IntoIter = DeviceBatches<'a, B, K>;

    fn into_iter(self) -> DeviceBatches<'a, B, K> {
        self.iter()
    }
}

/// One epoch of a [`DeviceLoader`].
///
/// # Examples
/// ```
/// # use pagelock_data::{DataLoader, TensorDataset};
/// # use pagelock_tensor::{Device, Tensor};
/// # let dataset = TensorDataset::new(Tensor::zeros([10])?)?;
/// let loader = DataLoader::new(dataset).batch_size(4).to(&Device::best())?;
/// let mut batches = loader.iter();
/// batches.next();
/// assert_eq!(batches.size_hint(), (2, Some(2)));
/// assert_eq!(loader.state().batch, 1, "what is ahead was not given yet");
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub struct DeviceBatches<'a, B: PinMemory + Send + 'static, K = Indices> {
    loader: &'a Loader<B, K>,
    batches: Batches<'a, B>,
    ahead: usize,
    uploads: Option<Opaque<'static, Uploads>>,
    /// Why there is no batch at all; given once.
    refusal: Option<Error>,
    there: VecDeque<Arrived<B>>,
}

/// A batch on the device, and where the loader is when the program has it.
struct Arrived<B> {
    batch: Result<B>,
    then: Position,
}

/// Tensors that are being copied.
type Sources = Vec<AnyTensor>;

/// Sends the tensors of a batch to a device.
pub(super) struct Uploads {
    stream: CopyStream,
    timeline: Option<Timeline>,
    sources: Mutex<Sources>, // guards what was sent of this batch
    /// Of the batches that were sent last.
    earlier: VecDeque<Sources>,
}

impl Uploads {
    fn begin(device: &Device, ahead: usize, timeline: &Option<Timeline>) -> Result<Opaque<'static, Self>> {
        check_most("ahead", ahead, MOST_AHEAD, "2 is usual")?;
        let (stream, timeline) = (CopyStream::new(device)?, timeline.clone());
        Ok(Opaque::new(Self { stream, timeline, sources: Mutex::default(), earlier: VecDeque::new() }))
    }

    /// Runs `send`, which takes the tensors of a batch; a panic is an error too.
    fn send(&self, number: usize, send: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let send = || {
            let sent = catch_unwind(AssertUnwindSafe(send));
            sent.unwrap_or_else(|panic| Err(Error::panicked(None, None, None, panic)))
        };
        match (&self.timeline, self.stream.stream()) {
            (Some(timeline), Some(stream)) => timeline
                .on_stream(format!("upload {number}"), stream, send)
                .unwrap_or_else(|error| Err(Error::other(error))),
            _ => send(),
        }
    }

    /// What was taken is of one batch, which is sent.
    fn end_batch(&mut self) {
        let sources = self.sources.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.earlier.push_back(mem::take(sources));
    }

    /// Keeps the sources of the last `n_batches` batches. Dropping the others waits for their copies.
    fn keep(&mut self, n_batches: usize) {
        while self.earlier.len() > n_batches {
            self.earlier.pop_front();
        }
    }
}

impl Destination for Uploads {
    fn take(&self, tensor: AnyTensor) -> Result<AnyTensor> {
        let there = match tensor.dtype() {
            dtype if dtype.is_float() => self.stream.upload(&tensor.float()?)?.into(),
            dtype if dtype.is_int() => self.stream.upload(&tensor.int()?)?.into(),
            _ => self.stream.upload(&tensor.bool()?)?.into(),
        };
        if !self.stream.device().is_cpu() {
            lock(&self.sources).push(tensor);
        }
        Ok(there)
    }
}

impl<'a, B: PinMemory + Send + 'static, K> DeviceBatches<'a, B, K> {
    /// Sends the next batch; false if there is none.
    fn send(&mut self, uploads: &mut Uploads) -> bool {
        let number = self.batches.epoch.number;
        let Some(mut here) = self.batches.next().map(Some) else { return false };
        let start = Instant::now();
        let mut there = None;
        let sent = uploads.send(number, &mut || {
            if let Some(batch) = here.take() {
                there = Some(batch?.move_into(&Slots::new(uploads))?);
            }
            Ok(())
        });
        let batch = sent.map(|()| there.unwrap_or_else(|| unreachable!("it was sent")));
        uploads.end_batch();
        let mut progress = self.loader.core.progress();
        progress.record.report.transfer += start.elapsed();
        self.there.push_back(Arrived { batch, then: progress.next });
        true
    }
}

impl<'a, B: PinMemory + Send + 'static, K> Iterator for DeviceBatches<'a, B, K> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        if let Some(error) = self.refusal.take() {
            return Some(Err(error));
        }
        let mut uploads = self.uploads.take()?;
        while self.there.len() <= self.ahead && self.send(&mut uploads) {}
        let given = self.there.pop_front();
        if let Some(Arrived { then, .. }) = &given {
            self.loader.core.progress().next = *then;
            uploads.keep(self.there.len() + 1); // waits for the copy of the batch that was given before this one
        }
        self.uploads = Some(uploads);
        given.map(|arrived| arrived.batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.uploads.is_none() {
            let left = usize::from(self.refusal.is_some());
            return (left, Some(left));
        }
        let (n_there, (least, most)) = (self.there.len(), self.batches.size_hint());
        (n_there + least, most.map(|most| n_there + most))
    }
}
