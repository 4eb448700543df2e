//! Copies of [`HostBuffer`]s: the buffer itself knows who still uses it, and waits before anybody else does.
//!
//! This is the shape for memory that is shared, and for code that does not know when it will be read: a tensor that
//! came down is waited for where it is first looked at.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pagelock_memory::{Abandoned, ByteSize, Completion, HostBuffer};

use super::same_length;
use crate::{
    buffer::{DeviceBuffer, DeviceView, DeviceViewMut},
    driver::{Address, EventTiming},
    element::Element,
    error::{Error, Result},
    event::Recorded,
    host_function,
    parking::Held,
    sanitize,
    stream::{Stream, StreamCore, Unqueued},
};

impl Stream {
    /// Starts copying `source`, all of it, to `target`, and returns at once; writing to the buffer, and dropping it,
    /// will wait.
    ///
    /// # Errors
    /// [`Error::Length`], in bytes; [`Error::OtherDevice`], [`Error::Driver`]; [`Error::Lost`] if the driver failed and
    /// cannot say whether the device reads the buffer, which then refuses to be written, and leaks.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    /// use pagelock_memory::HostBuffer;
    ///
    /// let device = Device::software(Config::default())?;
    /// let stream = device.stream()?;
    /// let mut host = HostBuffer::allocate(device.page_locked(), 4)?;
    /// host.bytes_mut()?.fill(7);
    /// let mut on_device = stream.allocate::<u8>(4)?;
    /// stream.upload_buffer(&host, &mut on_device)?;
    /// host.bytes_mut()?.fill(8); // waits for the copy
    /// stream.download_buffer(&on_device, &mut host)?;
    /// assert_eq!(host.bytes(), [7; 4]); // waits for the copy
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_buffer<'a, T: Element>(
        &self,
        source: &HostBuffer,
        target: impl Into<DeviceViewMut<'a, T>>,
    ) -> Result<()> {
        let _here = sanitize::here();
        self.upload_range(source, 0..source.len_bytes(), target.into())
    }

    /// The same, of some of the source's bytes.
    pub(super) fn upload_range<T: Element>(
        &self,
        source: &HostBuffer,
        range: Range<usize>,
        target: DeviceViewMut<'_, T>,
    ) -> Result<()> {
        host_function::refuse_inside()?;
        target.check_beside(self.core())?;
        same_length(range.len(), target.len_bytes())?;
        if range.end > source.len_bytes() {
            return Err(Error::Range { start: range.start, end: range.end, len: source.len_bytes() });
        }
        if range.is_empty() {
            return Ok(());
        }
        source.wait_for_writers();
        self.core().note_upload();
        let from = source.as_ptr().as_ptr().wrapping_add(range.start);
        let queued = self.core().enqueue(&[target.access()], |driver, stream| {
            // SAFETY: the range is in the source and as long as the target (checked), which is ordered by `enqueue`; nobody
            // writes the source (just waited; writing needs `&mut`), and nobody will before the reader that is added below
            // is done.
            unsafe { driver.copy_to_device(stream, target.address(), from, range.len()) }
        });
        let (fence, result) = Fence::after(self.core(), queued, range.len());
        if let Some(fence) = fence {
            fence.recorded.iter().for_each(|event| target.access().note_event(event.clone()));
            source.add_reader(fence);
        }
        result
    }

    /// Starts copying page-locked buffers, each to a view of its own, as one piece of work with one event behind it. Where
    /// two sources are parts of one buffer that [follow each other](HostBuffer::is_followed_by), and the targets likewise and
    /// as far from each other, one copy takes both.
    pub(super) fn upload_together(&self, copies: &[(&HostBuffer, DeviceViewMut<'_, u8>)]) -> Result<()> {
        host_function::refuse_inside()?;
        for (source, target) in copies {
            target.check_beside(self.core())?;
            same_length(source.len_bytes(), target.len())?;
        }
        let total = copies.iter().map(|(source, _)| source.len_bytes()).sum();
        if total == 0 {
            return Ok(());
        }
        copies.iter().for_each(|(source, _)| source.wait_for_writers());
        self.core().note_upload();
        let accesses: Vec<_> = copies.iter().map(|(_, target)| target.access()).collect();
        let runs = runs(copies);
        let queued = self.core().enqueue(&accesses, |driver, stream| {
            runs.iter().try_for_each(|&(from, to, len_bytes)| {
                // SAFETY: as in `upload_range`, for each; of sources that are copied at once, and of their targets, nobody has
                // the bytes between them, which are as many on both sides.
                unsafe { driver.copy_to_device(stream, to, from, len_bytes) }
            })
        });
        let (fence, result) = Fence::after(self.core(), queued, total);
        if let Some(fence) = fence {
            for (source, target) in copies {
                fence.recorded.iter().for_each(|event| target.access().note_event(event.clone()));
                source.add_reader(fence.clone());
            }
        }
        result
    }

    /// Starts copying parts of one buffer that [follow each other](HostBuffer::is_followed_by), with what is between them,
    /// to `target`, as one copy; else as [`upload_buffer`](Self::upload_buffer).
    ///
    /// # Errors
    /// [`Error::Apart`] if they do not follow each other; [`Error::Length`] if `target` has another length than from the
    /// first part's start to the last one's end; as [`upload_buffer`](Self::upload_buffer).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    /// use pagelock_memory::HostBuffer;
    ///
    /// let device = Device::software(Config::default())?;
    /// let stream = device.stream()?;
    /// let parts = HostBuffer::allocate(device.page_locked(), 200)?.split([0..50, 64..200])?;
    /// let mut on_device = stream.allocate::<u8>(200)?;
    /// stream.upload_parts(&[&parts[0], &parts[1]], &mut on_device)?;
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn upload_parts<'a>(&self, sources: &[&HostBuffer], target: impl Into<DeviceViewMut<'a, u8>>) -> Result<()> {
        let _here = sanitize::here();
        let target = target.into();
        host_function::refuse_inside()?;
        target.check_beside(self.core())?;
        let [first, .., last] = sources else {
            return match sources.first() {
                Some(only) => self.upload_buffer(only, target),
                None => same_length(0, target.len()),
            };
        };
        if let Some(at) = sources.windows(2).position(|pair| !pair[0].is_followed_by(pair[1])) {
            return Err(Error::Apart { part: at + 1 });
        }
        let (start, end) = (first.as_ptr().as_ptr(), last.as_ptr().as_ptr().wrapping_add(last.len_bytes()));
        same_length(end.addr() - start.addr(), target.len())?;
        if target.is_empty() {
            return Ok(());
        }
        sources.iter().for_each(|source| source.wait_for_writers());
        self.core().note_upload();
        let queued = self.core().enqueue(&[target.access()], |driver, stream| {
            // SAFETY: as in `upload_buffer`, for every part; parts that follow each other lie in one block, and nobody has
            // the bytes between them.
            unsafe { driver.copy_to_device(stream, target.address(), start, target.len()) }
        });
        let (fence, result) = Fence::after(self.core(), queued, target.len());
        if let Some(fence) = fence {
            fence.recorded.iter().for_each(|event| target.access().note_event(event.clone()));
            sources.iter().for_each(|source| source.add_reader(fence.clone()));
        }
        result
    }

    /// Starts copying parts of one buffer that [follow each other](DeviceBuffer::is_followed_by), with what is between
    /// them, over all of `target`, as one copy; else as [`download_buffer`](Self::download_buffer).
    ///
    /// # Errors
    /// As [`upload_parts`](Self::upload_parts) and [`download_buffer`](Self::download_buffer).
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    /// use pagelock_memory::HostBuffer;
    ///
    /// let device = Device::software(Config::default())?;
    /// let stream = device.stream()?;
    /// let parts = stream.zeros::<u8>(100)?.split([0..40, 50..100])?;
    /// let mut host = HostBuffer::allocate(device.page_locked(), 100)?;
    /// stream.download_parts(&[&parts[0], &parts[1]], &mut host)?;
    /// assert_eq!(host.bytes(), [0; 100]); // waits for the copy
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    #[track_caller]
    pub fn download_parts(&self, sources: &[&DeviceBuffer<u8>], target: &mut HostBuffer) -> Result<()> {
        let _here = sanitize::here();
        host_function::refuse_inside()?;
        let [first, .., last] = sources else {
            return match sources.first() {
                Some(&only) => self.download_buffer(only, target),
                None => same_length(0, target.len_bytes()),
            };
        };
        if let Some(at) = sources.windows(2).position(|pair| !pair[0].is_followed_by(pair[1])) {
            return Err(Error::Apart { part: at + 1 });
        }
        first.view().check_beside(self.core())?;
        let len_bytes = (last.address().0 as usize + last.len()).saturating_sub(first.address().0 as usize);
        same_length(len_bytes, target.len_bytes())?;
        let to = target.bytes_mut()?.as_mut_ptr(); // waits for readers and writers
        super::note_download(self.core());
        let accesses: Vec<_> = sources.iter().map(|source| source.view().access()).collect();
        let queued = self.core().enqueue(&accesses, |driver, stream| {
            // SAFETY: as in `download_buffer`, for every part; parts that follow each other lie in one block, and nobody has
            // the bytes between them.
            unsafe { driver.copy_to_host(stream, to, first.address(), len_bytes) }
        });
        let (fence, result) = Fence::after(self.core(), queued, len_bytes);
        if let Some(fence) = fence {
            target.add_writer(fence);
        }
        result
    }

    /// Starts copying `source` over all of `target`, and returns at once; reading the buffer, writing to it, and
    /// dropping it, will wait.
    ///
    /// # Errors
    /// As [`upload_buffer`](Self::upload_buffer), and [`Error::Memory`] if the buffer cannot be written.
    #[track_caller]
    pub fn download_buffer<'a, T: Element>(
        &self,
        source: impl Into<DeviceView<'a, T>>,
        target: &mut HostBuffer,
    ) -> Result<()> {
        let _here = sanitize::here();
        let source = source.into();
        host_function::refuse_inside()?;
        source.check_beside(self.core())?;
        same_length(source.len_bytes(), target.len_bytes())?;
        let to = target.bytes_mut()?.as_mut_ptr(); // waits for readers and writers
        let len_bytes = source.len_bytes();
        if len_bytes == 0 {
            return Ok(());
        }
        super::note_download(self.core());
        let queued = self.core().enqueue(&[source.access()], |driver, stream| {
            // SAFETY: the lengths are equal (checked), the source is ordered by `enqueue`, nobody uses the target (just
            // waited; `&mut`), and nobody will before the writer that is added below is done.
            unsafe { driver.copy_to_host(stream, to, source.address(), len_bytes) }
        });
        let (fence, result) = Fence::after(self.core(), queued, len_bytes);
        if let Some(fence) = fence {
            target.add_writer(fence);
        }
        result
    }
}

/// The copies, as few as can take all: from where, to where and how many bytes, none of them none. To be made before
/// anything is queued: a buffer says where it starts to whoever watches accesses, which may panic.
fn runs(copies: &[(&HostBuffer, DeviceViewMut<'_, u8>)]) -> Vec<(*const u8, Address, usize)> {
    let runs = copies.chunk_by(|this, next| is_one(this, next)).map(|run| {
        let (from, target) = (start(run[0].0), &run[0].1);
        let len_bytes = run.last().map_or(0, |(last, _)| start(last).addr() + last.len_bytes() - from.addr());
        (from, target.address(), len_bytes)
    });
    runs.filter(|(.., len_bytes)| *len_bytes > 0).collect()
}

/// Whether one copy can take both.
fn is_one(
    (source, target): &(&HostBuffer, DeviceViewMut<'_, u8>),
    (next_source, next_target): &(&HostBuffer, DeviceViewMut<'_, u8>),
) -> bool {
    source.is_followed_by(next_source)
        && target.is_followed_by(next_target)
        && (start(next_source).addr() - start(source).addr()) as u64 == next_target.address().0 - target.address().0
}

fn start(buffer: &HostBuffer) -> *const u8 {
    buffer.as_ptr().as_ptr()
}

/// The end of a copy, for a buffer that must not be used before.
struct Fence {
    recorded: Option<Arc<Recorded>>, // none: nobody can say when the copy ends
    lost: AtomicBool,                // Release: set by who waited in vain
    len_bytes: usize,
}

impl Fence {
    /// What must be waited for after a copy was queued, and what to tell who asked for it.
    fn after(
        stream: &Arc<StreamCore>,
        queued: Result<(), Unqueued>,
        len_bytes: usize,
    ) -> (Option<Arc<Self>>, Result<()>) {
        let error = match queued {
            Err(Unqueued::No(error)) => return (None, Err(error)),
            Err(Unqueued::Unknown(failure)) => failure.into(),
            Ok(()) => match Recorded::new(stream, EventTiming::Untimed) {
                Ok(recorded) => return (Some(Self::of(Some(Arc::new(recorded)), len_bytes)), Ok(())),
                Err(error) => error,
            },
        };
        let Err(failure) = stream.prove_idle() else { return (None, Err(error)) };
        let leaked = ByteSize(len_bytes as u64);
        stream.base().leaked.count(len_bytes);
        (Some(Self::of(None, len_bytes)), Err(Error::Lost { leaked, failure }))
    }

    fn of(recorded: Option<Arc<Recorded>>, len_bytes: usize) -> Arc<Self> {
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
        if recorded.prove().is_err() && !self.lost.swap(true, Ordering::AcqRel) {
            recorded.stream().base().leaked.count(self.len_bytes);
        }
    }

    fn may_wait(&self) -> bool {
        self.recorded.is_none() || !host_function::is_inside()
    }

    fn keep(&self, block: Abandoned) -> Result<(), Abandoned> {
        if let (Some(recorded), true) = (&self.recorded, host_function::is_inside()) {
            let recorded = recorded.clone();
            host_function::outside(move || match recorded.prove() {
                Ok(()) => block.give_back(),
                Err(_) => recorded.stream().base().leaked.count(block.len_bytes()),
            });
            return Ok(());
        }
        let Some(recorded) = self.recorded.as_ref().filter(|recorded| !recorded.is_known_reached()) else {
            return Err(block);
        };
        let (stream, len_bytes) = (recorded.stream(), block.len_bytes());
        let Some(room) = MOST_DROPPED.checked_sub(len_bytes) else { return Err(block) };
        // Behind what was queued since the copy, too: the copy's own event is everybody's.
        let Ok(behind) = Recorded::new(stream, EventTiming::Untimed) else { return Err(block) };
        stream.device().core().reap_buffers_too();
        let dropped = stream.device().core().dropped();
        dropped.wait_down_to(stream.base(), room);
        dropped.park(behind, Box::new(DroppedBuffer(block)));
        Ok(())
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// Up to so many bytes of host buffers that were dropped without waiting are a device's: so much that it reads what was written
/// some copies ago, and not what is still in a processor's caches, which it reads at half the speed.
const MOST_DROPPED: usize = 48 << 20;

/// A host buffer that was dropped without waiting.
struct DroppedBuffer(Abandoned);

impl Held for DroppedBuffer {
    fn len_bytes(&self) -> usize {
        self.0.len_bytes()
    }

    fn give_back(self: Box<Self>) {
        self.0.give_back();
    }
}
