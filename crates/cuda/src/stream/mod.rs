//! [`Stream`]: a queue of work on one device, and the one function that queues work.
//!
//! Streams run concurrently. Uses of one buffer by several streams are ordered without the user's help; `order.rs`
//! says how.
//!
//! Invariant: work is counted in `submitted` only after it was queued. So an event that is recorded after a read of
//! `submitted` covers all work up to the number that was read.

mod capture;
mod handles;
mod order;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use self::order::{WaitedFor, take_turns};
pub(crate) use self::{
    capture::Capture,
    handles::Handles,
    order::{Access, Uses, Writes},
};
use crate::{
    device::Device,
    device_shared::DeviceShared,
    driver::{self, Call, Driver, EventTiming, Failure, Status, StreamHandle},
    error::{Error, OnDevice, Result},
    event::{Event, Recorded},
    host_function,
    pool::BlockCache,
    sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock},
};

/// A queue of work on one device. Cheap to clone: all clones are the same stream.
///
/// Functions that queue work on a stream return when the work is queued. Dropping the last handle neither waits nor
/// stops anything; the device reuses the queue for a later stream.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, software::Config};
///
/// let device = Device::software(Config::default())?;
/// let (first, second) = (device.stream()?, device.stream()?);
/// let mut numbers = first.allocate::<u32>(1_000)?;
/// first.fill(&mut numbers, 7)?;
/// assert_eq!(second.read(&numbers)?, [7; 1_000], "the second stream waited for the first");
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone)]
pub struct Stream {
    core: Arc<StreamCore>,
}

/// The state of a stream, shared by its handles and by everything that must be ordered against it.
pub(crate) struct StreamCore {
    device: Device,
    queue: Queue,
    is_capturing: AtomicBool,        // whether there is a capture, or may still be one
    is_private: AtomicBool,          // whether other streams must not take blocks from the cache
    capture: Mutex<Option<Capture>>, // guards the list of the capture
    /// The free blocks of the stream, for its next buffers.
    pub(crate) cache: Mutex<BlockCache>,
}

/// The part of a stream that outlives its handles: the device reuses it for a later stream.
pub(crate) struct Queue {
    pub(crate) handle: StreamHandle,
    pub(crate) priority: Priority,
    id: u64,
    submitted: AtomicU64, // Release after work was queued, Acquire before an event is recorded to cover it
    done: AtomicU64,      // work up to this number is done. Release: a reader of the number sees what the work wrote
    waited_for: Mutex<WaitedFor>, // guards which work of other streams this stream has waited for
}

/// How urgent a stream's work is, compared with that of other streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// For most work.
    #[default]
    Normal,
    /// More urgent: for short work that other streams wait for.
    High,
}

/// Why queueing failed, and whether the work may be queued all the same.
pub(crate) enum Unqueued {
    /// The work was not queued.
    NotQueued(Error),
    /// The driver's call to queue the work failed. It may have queued the work all the same.
    MaybeQueued(Failure),
}

impl From<Unqueued> for Error {
    fn from(unqueued: Unqueued) -> Self {
        match unqueued {
            Unqueued::NotQueued(error) => error,
            Unqueued::MaybeQueued(failure) => failure.into(),
        }
    }
}

impl Stream {
    pub(crate) fn from_core(core: Arc<StreamCore>) -> Self {
        Self { core }
    }

    pub(crate) fn core(&self) -> &Arc<StreamCore> {
        &self.core
    }

    /// The device that executes its work.
    pub fn device(&self) -> &Device {
        &self.core.device
    }

    /// How urgent its work is.
    pub fn priority(&self) -> Priority {
        self.core.queue.priority
    }

    /// Records an event behind everything that was queued so far.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn record(&self) -> Result<Event> {
        Recorded::new(&self.core, EventTiming::Untimed).map(Event::from)
    }

    /// Like [`record`](Self::record), for an event that notes when it is reached; see [`Event::elapsed_since`].
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn record_timed(&self) -> Result<Event> {
        Recorded::new(&self.core, EventTiming::Timed).map(Event::from)
    }

    /// Makes all work that is queued from now on wait, on the device, until the event is reached.
    ///
    /// Uses of buffers need no such call: they are ordered automatically.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.core.order_after_event(event.recorded())
    }

    /// Whether all queued work is done.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn is_idle(&self) -> Result<bool> {
        self.core.is_idle()
    }

    /// Waits, on the host, until all queued work is done.
    ///
    /// # Errors
    /// [`Error::Driver`], also for work that failed since the last wait.
    pub fn synchronize(&self) -> Result<()> {
        host_function::refuse_inside()?;
        self.core.refuse_capturing()?;
        // SAFETY: the stream exists as long as its core.
        unsafe { self.core.driver().synchronize_stream(self.core.queue.handle) }?;
        self.core.device.core().release_finished_buffers_too();
        self.core.shared().check_races()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Queue { id, priority, .. } = &self.core.queue;
        write!(f, "Stream({id} of {:?}, {priority:?})", self.core.device)
    }
}

impl StreamCore {
    pub(crate) fn new(device: Device, queue: Queue, cache: BlockCache) -> Self {
        let (is_capturing, is_private) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { device, queue, is_capturing, is_private, capture: Mutex::new(None), cache: Mutex::new(cache) }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether both queue work on the same device.
    pub(crate) fn is_same_device(&self, other: &StreamCore) -> bool {
        Arc::ptr_eq(self.shared(), other.shared())
    }

    /// An error unless this stream's driver can use the handles of `other`, which may be a stream of another device.
    pub(crate) fn check_same_family(&self, other: &StreamCore, what: OnDevice) -> Result<()> {
        let is_same_family = self.is_same_device(other) || self.shared().is_same_family(other.shared());
        if is_same_family { Ok(()) } else { Err(Error::OtherDriver { what }) }
    }

    /// An error unless `shared` is that of this stream's device.
    pub(crate) fn check_device(&self, shared: &Arc<DeviceShared>, what: OnDevice) -> Result<()> {
        self.shared().check_same(shared, what)
    }

    pub(crate) fn shared(&self) -> &Arc<DeviceShared> {
        self.device.core().shared()
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.shared().driver
    }

    /// Makes long uploads of other streams yield to an upload of this stream.
    pub(crate) fn note_upload(&self) {
        self.shared().uploads.note(self.id());
    }

    /// Makes long downloads of other streams yield to a download of this stream.
    pub(crate) fn note_download(&self) {
        self.shared().downloads.note(self.id());
    }

    /// A number that is unique among the streams of all devices.
    pub(crate) fn id(&self) -> u64 {
        self.queue.id
    }

    pub(crate) fn handle(&self) -> StreamHandle {
        self.queue.handle
    }

    /// The number of the latest work that was queued.
    pub(crate) fn submitted(&self) -> u64 {
        self.queue.submitted.load(Ordering::Acquire)
    }

    /// Queues work that uses these buffers: **the only way in which work gets onto a stream.**
    ///
    /// First the stream waits, on the device, for conflicting uses of the buffers by other streams. Then `submit`
    /// queues the work, and the buffers note the use. They note it after a failure too, since the work may be queued
    /// all the same. A panic in `submit`, which calls no user code, counts as a failure.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        accesses: &[Access<'_>],
        submit: impl FnOnce(&dyn Driver, StreamHandle) -> driver::Result<()>,
    ) -> Result<(), Unqueued> {
        host_function::refuse_inside().map_err(Unqueued::NotQueued)?;
        self.refuse_capturing().map_err(Unqueued::NotQueued)?;
        Self::refuse_captured(accesses).map_err(Unqueued::NotQueued)?;
        self.device.core().release_finished();
        let mut removed = Vec::new(); // dropped without the turns
        let _turns = take_turns(accesses);
        self.order_after_conflicts(accesses).map_err(Unqueued::NotQueued)?;
        let submitted = catch_unwind(AssertUnwindSafe(|| submit(self.driver(), self.queue.handle)));
        let submitted = submitted.unwrap_or(Err(Failure { call: Call::Launch, status: Status::UNKNOWN }));
        let at = self.count_work();
        for access in accesses {
            removed.extend(access.note(self, at));
        }
        submitted.map_err(Unqueued::MaybeQueued)
    }

    /// Whether other streams must not take blocks from this stream's cache, because a graph uses the blocks.
    pub(crate) fn is_private(&self) -> bool {
        self.is_private.load(Ordering::Acquire)
    }

    pub(crate) fn set_private(&self, is_private: bool) {
        self.is_private.store(is_private, Ordering::Release);
    }

    /// Whether work up to number `at` is known to be done.
    pub(crate) fn is_done(&self, at: u64) -> bool {
        self.queue.done.load(Ordering::Acquire) >= at
    }

    /// Notes that work up to number `at` is done.
    pub(crate) fn note_done(&self, at: u64) {
        self.queue.done.fetch_max(at, Ordering::AcqRel);
    }

    /// Counts work that was just queued, and returns its number.
    fn count_work(&self) -> u64 {
        self.queue.submitted.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(crate) fn is_idle(&self) -> Result<bool> {
        host_function::refuse_inside()?;
        self.refuse_capturing()?;
        // SAFETY: the stream exists as long as its core.
        Ok(unsafe { self.driver().query_stream(self.queue.handle) }?)
    }

    /// Waits until all queued work is done with its memory, or returns the driver's first failure if nothing proves
    /// that.
    pub(crate) fn wait_until_idle(&self) -> driver::Result<()> {
        if self.is_capturing() {
            // The call would invalidate the capture.
            return Err(Failure { call: Call::SynchronizeStream, status: Status::STREAM_CAPTURE_UNSUPPORTED });
        }
        // SAFETY: the stream exists as long as its core.
        let synchronized = unsafe { self.driver().synchronize_stream(self.queue.handle) };
        synchronized.or_else(|failure| self.driver().synchronize().map_err(|_| failure))
    }
}

impl Drop for StreamCore {
    fn drop(&mut self) {
        let cache = std::mem::take(&mut *lock(&self.cache));
        self.device.core().recycle_queue(self.queue.take(), cache);
    }
}

impl Queue {
    pub(crate) fn new(handle: StreamHandle, priority: Priority, id: u64) -> Self {
        let [submitted, done] = [0; 2].map(AtomicU64::new);
        Self { handle, priority, id, submitted, done, waited_for: Mutex::default() }
    }

    fn take(&mut self) -> Self {
        let [submitted, done] =
            [&self.submitted, &self.done].map(|number| AtomicU64::new(number.load(Ordering::Acquire)));
        let waited_for = Mutex::new(std::mem::take(&mut *lock(&self.waited_for)));
        Self { submitted, done, waited_for, ..*self }
    }
}
