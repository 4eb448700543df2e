//! [`Event`]: a mark in a stream, which tells whether the device has finished the work before it.
//!
//! Every event is recorded when it is made. CUDA reports an event as reached if it was never recorded; that cannot
//! happen here.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    driver::{self, EventHandle, EventTiming},
    error::{Error, Result},
    host_function,
    stream::StreamCore,
    sync::{AtomicBool, Ordering},
};

/// A mark in a stream: reached when all work that was queued before it is done. Cheap to clone.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, software::Config};
///
/// let stream = Device::software(Config::default())?.stream()?;
/// let start = stream.record_timed()?;
/// let numbers = stream.zeros::<f32>(1_000_000)?;
/// let end = stream.record_timed()?;
/// end.wait()?;
/// println!("clearing {} numbers took {:?}", numbers.len(), end.elapsed_since(&start)?);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone)]
pub struct Event {
    recorded: Arc<Recorded>,
}

/// A recorded event. When it is dropped, the driver's event is kept for reuse.
pub(crate) struct Recorded {
    stream: Arc<StreamCore>,
    handle: Option<EventHandle>, // none after `into_handle`
    timing: EventTiming,
    at: u64,             // covers the work of the stream up to this number
    reached: AtomicBool, // Release after the driver reported it
}

impl Event {
    /// Whether all work before the event is done.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn is_reached(&self) -> Result<bool> {
        Ok(self.recorded.is_reached()?)
    }

    /// Waits, on the host, until all work before the event is done.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver), also for work that failed.
    pub fn wait(&self) -> Result<()> {
        host_function::refuse_inside()?;
        self.recorded.wait()?;
        self.recorded.stream.shared().check_races()
    }

    /// Waits for both events and returns the time from `start` to this event on the device's clock. Zero if this
    /// event was reached before `start`.
    ///
    /// # Errors
    /// [`Error::Argument`] if either was not recorded with [`record_timed`](crate::Stream::record_timed), or if they are
    /// of different devices; [`Error::Driver`].
    pub fn elapsed_since(&self, start: &Event) -> Result<Duration> {
        let devices = [start, self].map(|event| event.recorded.stream.device());
        if devices[0] != devices[1] {
            let [start, end] = devices.map(|device| device.properties().ordinal);
            return Err(Error::Argument(format!(
                "one event is of device {start}, the other of device {end}, and their clocks differ: record both on one \
                 device, or use a `Timeline`, which compares clocks"
            )));
        }
        start.wait()?;
        self.wait()?;
        let (start, end) = (start.recorded.timed()?, self.recorded.timed()?);
        // SAFETY: both are recorded with timing, and reached.
        let elapsed_ms = unsafe { self.recorded.stream.driver().elapsed_ms(start, end) }?;
        Ok(Duration::from_secs_f64(f64::from(elapsed_ms.max(0.0)) / 1000.0))
    }

    pub(crate) fn recorded(&self) -> &Recorded {
        &self.recorded
    }
}

impl From<Recorded> for Event {
    fn from(recorded: Recorded) -> Self {
        Self { recorded: Arc::new(recorded) }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recorded { timing, at, .. } = &*self.recorded;
        write!(f, "Event({timing:?}, after {at} pieces of work)")
    }
}

impl Recorded {
    /// Records an event behind everything that was queued so far.
    pub(crate) fn new(stream: &Arc<StreamCore>, timing: EventTiming) -> Result<Self> {
        host_function::refuse_inside()?;
        stream.refuse_capturing()?;
        let at = stream.submitted(); // before recording: see the invariant of `stream/mod.rs`
        let handle = stream.shared().take_event(timing)?;
        // Owned before it is recorded, so that the handle is returned if recording fails.
        let recorded =
            Self { stream: stream.clone(), handle: Some(handle), timing, at, reached: AtomicBool::new(false) };
        // SAFETY: both belong to this device and exist.
        unsafe { stream.driver().record_event(handle, stream.handle()) }?;
        Ok(recorded)
    }

    pub(crate) fn stream(&self) -> &Arc<StreamCore> {
        &self.stream
    }

    pub(crate) fn handle(&self) -> Option<EventHandle> {
        self.handle
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    fn timed(&self) -> Result<EventHandle> {
        let untimed = || "the event was recorded without its time: record it with `Stream::record_timed`".to_owned();
        let handle = self.handle.filter(|_| self.timing == EventTiming::Timed);
        handle.ok_or_else(|| Error::Argument(untimed()))
    }

    pub(crate) fn is_reached(&self) -> driver::Result<bool> {
        if self.is_known_reached() {
            return Ok(true);
        }
        let Some(handle) = self.handle else { return Ok(true) };
        // SAFETY: the event was recorded when it was made, and exists until this is dropped.
        let reached = unsafe { self.stream.driver().query_event(handle) }?;
        if reached {
            self.note_reached();
        }
        Ok(reached)
    }

    pub(crate) fn wait(&self) -> driver::Result<()> {
        let Some(handle) = self.handle.filter(|_| !self.is_known_reached()) else { return Ok(()) };
        // SAFETY: as in `is_reached`.
        unsafe { self.stream.driver().synchronize_event(handle) }?;
        self.note_reached();
        Ok(())
    }

    /// Waits until the device has reached the event. If the wait for the event fails, waits for the stream, and if
    /// that fails, for the whole device. Returns the first failure if all of them fail.
    pub(crate) fn wait_with_fallback(&self) -> driver::Result<()> {
        self.wait().or_else(|failure| self.stream.wait_until_idle().map_err(|_| failure))?;
        self.note_reached();
        Ok(())
    }

    /// Whether the event is known to be reached without a call of the driver, because of an earlier query or because
    /// a later event of the stream is reached. For a timed event only its own query counts, since its time is known
    /// only then.
    pub(crate) fn is_known_reached(&self) -> bool {
        let by_another = || self.timing == EventTiming::Untimed && self.stream.is_done(self.at);
        self.reached.load(Ordering::Acquire) || by_another()
    }

    fn note_reached(&self) {
        self.reached.store(true, Ordering::Release);
        self.stream.note_done(self.at);
    }

    /// Takes the driver's event out; the caller must return it to the device.
    pub(crate) fn into_handle(mut self) -> Option<EventHandle> {
        self.handle.take()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.stream.shared().recycle_event(handle, self.timing);
        }
    }
}
