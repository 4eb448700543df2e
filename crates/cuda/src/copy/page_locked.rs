//! Copies of page-locked [`HostBuffer`]s. A buffer knows which copies still use it, and waits for them before it is
//! read, written or dropped.
//!
//! Use them for memory that is shared or read at an unknown time: the first read of a download waits for its copy.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pagelock_memory::{Abandoned, ByteSize, Completion, HostBuffer};

use crate::{
    buffer::{DeviceView, DeviceViewMut},
    deferred_drops::DeferredDrop,
    driver::{Address, EventTiming},
    error::{Error, Result},
    event::Recorded,
    host_function,
    stream::{Stream, StreamCore, Unqueued},
};

pub(super) struct PageLockedUpload<'a> {
    pub(super) buffer: &'a HostBuffer,
    pub(super) range: Range<usize>,
    pub(super) target: DeviceViewMut<'a, u8>,
}

/// A copy from a device to a whole buffer. The buffer is as long as the source.
pub(super) struct PageLockedDownload<'a> {
    pub(super) source: DeviceView<'a, u8>,
    pub(super) buffer: &'a mut HostBuffer,
}

/// Bytes that are contiguous on the host and on the device, and that one call of the driver copies.
struct Run {
    host: *mut u8,
    device: Address,
    len_bytes: usize,
}

impl Stream {
    /// Queues the copies as one unit of work, with one event behind it.
    pub(super) fn upload_page_locked(&self, copies: &[PageLockedUpload<'_>]) -> Result<()> {
        let total = copies.iter().map(|copy| copy.range.len()).sum();
        if total == 0 {
            return Ok(());
        }
        copies.iter().for_each(|copy| copy.buffer.wait_for_writers());
        self.core().note_upload();
        let accesses: Vec<_> = copies.iter().map(|copy| copy.target.access()).collect();
        let each = copies.iter().map(PageLockedUpload::run);
        let runs = runs(each, |at| copies[at].can_join(&copies[at + 1]));
        let queued = self.core().enqueue(&accesses, |driver, stream| {
            runs.iter().try_for_each(|run| {
                // SAFETY: the ranges are in their buffers and as long as the targets (checked by `upload_each`),
                // which `enqueue` orders. Nobody writes the sources: the writers were waited for, a write needs
                // `&mut`, and it waits for the reader that is added below. The gaps between buffers of one run belong
                // to nobody, and are as long on the host as on the device.
                unsafe { driver.copy_to_device(stream, run.device, run.host.cast_const(), run.len_bytes) }
            })
        });
        let (fence, result) = Fence::after(self.core(), queued, total);
        if let Some(fence) = fence {
            let events = || fence.recorded.iter().cloned();
            accesses.iter().for_each(|target| events().for_each(|event| target.note_event(event)));
            let done: Arc<dyn Completion> = fence;
            HostBuffer::add_reader_to_each(copies.iter().map(|copy| copy.buffer), &done);
        }
        result
    }

    /// Queues the copies as one unit of work, with one event behind it.
    pub(super) fn download_page_locked(&self, copies: &mut [PageLockedDownload<'_>]) -> Result<()> {
        let total = copies.iter().map(|copy| copy.source.len()).sum();
        let mut starts = Vec::with_capacity(copies.len());
        for copy in &mut *copies {
            starts.push(copy.buffer.bytes_mut()?.as_mut_ptr()); // waits for readers and writers
        }
        if total == 0 {
            return Ok(());
        }
        self.core().note_download();
        let accesses: Vec<_> = copies.iter().map(|copy| copy.source.access()).collect();
        let each = copies.iter().zip(&starts).map(PageLockedDownload::run);
        let runs = runs(each, |at| copies[at].can_join(&copies[at + 1]));
        let queued = self.core().enqueue(&accesses, |driver, stream| {
            runs.iter().try_for_each(|run| {
                // SAFETY: the lengths are equal (checked by `download_each`), and `enqueue` orders the sources.
                // Nobody uses the targets: earlier copies were waited for, they are borrowed mutably, and a later use
                // waits for the writer that is added below. The gaps between buffers of one run belong to nobody, and
                // are as long on the host as on the device.
                unsafe { driver.copy_to_host(stream, run.host, run.device, run.len_bytes) }
            })
        });
        let (fence, result) = Fence::after(self.core(), queued, total);
        if let Some(fence) = fence {
            // No `Completion` can panic here: the buffers have none, since `bytes_mut` has waited for all.
            copies.iter_mut().for_each(|copy| copy.buffer.add_writer(fence.clone()));
        }
        result
    }
}

impl PageLockedUpload<'_> {
    fn run(&self) -> Run {
        let host = start(self.buffer).cast_mut().wrapping_add(self.range.start);
        Run { host, device: self.target.address(), len_bytes: self.range.len() }
    }

    fn can_join(&self, next: &Self) -> bool {
        let is_whole = |copy: &Self| copy.range.len() == copy.buffer.len_bytes();
        is_whole(self)
            && is_whole(next)
            && self.target.is_followed_by(&next.target)
            && have_equal_distance([self.buffer, next.buffer], [self.target.address(), next.target.address()])
    }
}

impl PageLockedDownload<'_> {
    fn run((copy, &host): (&Self, &*mut u8)) -> Run {
        Run { host, device: copy.source.address(), len_bytes: copy.source.len() }
    }

    fn can_join(&self, next: &Self) -> bool {
        self.source.is_followed_by(&next.source)
            && have_equal_distance([self.buffer, next.buffer], [self.source.address(), next.source.address()])
    }
}

fn start(buffer: &HostBuffer) -> *const u8 {
    buffer.as_ptr().as_ptr()
}

/// Whether `next` follows `this` on the host, at the same distance as `to` follows `from` on the device.
fn have_equal_distance([this, next]: [&HostBuffer; 2], [from, to]: [Address; 2]) -> bool {
    this.is_followed_by(next) && (start(next).addr() - start(this).addr()) as u64 == to.0 - from.0
}

/// Joins each copy with the next one where `can_join` of its index is true. Called before anything is queued: reading
/// a buffer's address reports an access to the sanitizer, which may panic.
fn runs(copies: impl Iterator<Item = Run>, can_join: impl Fn(usize) -> bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (at, copy) in copies.enumerate() {
        match runs.last_mut() {
            Some(last) if can_join(at - 1) => {
                last.len_bytes = (copy.device.0 - last.device.0) as usize + copy.len_bytes;
            }
            _ => runs.push(copy),
        }
    }
    runs.retain(|run| run.len_bytes > 0);
    runs
}

struct Fence {
    recorded: Option<Arc<Recorded>>, // none if the driver cannot say when the copy ends
    lost: AtomicBool,                // Release: set after a wait that failed
    len_bytes: usize,
}

impl Fence {
    /// The fence behind a copy, if the device may still use the memory, and the result of the call.
    fn after(
        stream: &Arc<StreamCore>,
        queued: Result<(), Unqueued>,
        len_bytes: usize,
    ) -> (Option<Arc<Self>>, Result<()>) {
        let error = match queued {
            Err(Unqueued::NotQueued(error)) => return (None, Err(error)),
            Err(Unqueued::MaybeQueued(failure)) => failure.into(),
            Ok(()) => match Recorded::new(stream, EventTiming::Untimed) {
                Ok(recorded) => return (Some(Self::new(Some(Arc::new(recorded)), len_bytes)), Ok(())),
                Err(error) => error,
            },
        };
        let Err(failure) = stream.wait_until_idle() else { return (None, Err(error)) };
        let leaked = ByteSize(len_bytes as u64);
        stream.shared().leaked.add(len_bytes);
        (Some(Self::new(None, len_bytes)), Err(Error::Lost { leaked, failure }))
    }

    fn new(recorded: Option<Arc<Recorded>>, len_bytes: usize) -> Arc<Self> {
        let lost = AtomicBool::new(recorded.is_none());
        Arc::new(Self { recorded, lost, len_bytes })
    }
}

impl Completion for Fence {
    fn is_done(&self) -> bool {
        let reached = |recorded: &Arc<Recorded>| recorded.is_reached().unwrap_or(false);
        !host_function::is_inside() && self.recorded.as_ref().is_some_and(reached)
    }

    fn wait(&self) {
        let Some(recorded) = &self.recorded else { return };
        if !self.may_wait() {
            return;
        }
        if recorded.wait_with_fallback().is_err() && !self.lost.swap(true, Ordering::AcqRel) {
            recorded.stream().shared().leaked.add(self.len_bytes);
        }
    }

    fn may_wait(&self) -> bool {
        self.recorded.is_none() || !host_function::is_inside()
    }

    fn keep(&self, block: Abandoned) -> Result<(), Abandoned> {
        if let (Some(recorded), true) = (&self.recorded, host_function::is_inside()) {
            let recorded = recorded.clone();
            host_function::run_or_defer(move || match recorded.wait_with_fallback() {
                Ok(()) => block.free(),
                Err(_) => recorded.stream().shared().leaked.add(block.len_bytes()),
            });
            return Ok(());
        }
        let Some(recorded) = self.recorded.as_ref().filter(|recorded| !recorded.is_known_reached()) else {
            return Err(block);
        };
        let (stream, len_bytes) = (recorded.stream(), block.len_bytes());
        let Some(max_bytes) = MAX_DROPPED_BYTES.checked_sub(len_bytes) else { return Err(block) };
        // A new event, behind all work queued since the copy: other buffers share the copy's own event.
        let Ok(event) = Recorded::new(stream, EventTiming::Untimed) else { return Err(block) };
        stream.device().core().release_finished_buffers_too();
        let dropped = &stream.device().core().dropped_buffers;
        dropped.wait_down_to(stream.shared(), max_bytes);
        dropped.defer(event, DeferredDrop { len_bytes, free: Box::new(|| block.free()) });
        Ok(())
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// The most bytes of dropped host buffers that wait for the device. With a lower limit, the pool would hand out a
/// buffer again while its bytes are still in a processor's caches, from which the device reads at half the speed.
const MAX_DROPPED_BYTES: usize = 48 << 20;
