//! [`Ticket`]: owns the host memory of a copy in flight, and is the only way to get it back.
//!
//! The memory is inside the ticket, where nobody can reach it, from before the copy is queued until the device is
//! done with it. Dropping the ticket moves the memory to `deferred_drops.rs`, which frees it when the device is done.
//! Forgetting the ticket leaks the memory. If the driver cannot say whether the device is done, the memory is leaked
//! and counted.

use std::{
    fmt,
    mem::{self, ManuallyDrop},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use pagelock_memory::ByteSize;

use crate::{
    deferred_drops::DeferredDrop,
    device_shared::DeviceShared,
    driver::{EventHandle, EventTiming, Failure},
    error::{Error, Result},
    event::Recorded,
    host_function,
    stream::{StreamCore, Unqueued},
};

/// Owns the memory of a copy in flight. Only [`wait`](Ticket::wait) and [`try_wait`](Ticket::try_wait) return it.
///
/// Dropping a ticket never blocks and never frees early: one of the device's next copies frees the memory, once the
/// device is done with it. Forgetting a ticket leaks its memory.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, Pinned, software::Config};
///
/// let device = Device::software(Config::default())?;
/// let stream = device.stream()?;
/// let mut on_device = stream.allocate::<f32>(3)?;
/// let ticket = stream.upload(Pinned::from_slice(&device, &[1.0, 2.0, 3.0])?, &mut on_device)?;
/// let mut numbers = ticket.wait()?; // the source may be changed again
/// numbers[0] = 4.0;
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
///
/// A source cannot be changed, nor a target be read, while its copy may be in flight:
/// ```compile_fail,E0382
/// # use pagelock_cuda::{Device, Pinned, software::Config};
/// # let device = Device::software(Config::default())?;
/// # let stream = device.stream()?;
/// # let mut on_device = stream.allocate::<f32>(3)?;
/// let mut source = Pinned::from_slice(&device, &[1.0, 2.0, 3.0])?;
/// let ticket = stream.upload(source, &mut on_device)?;
/// source[0] = 4.0; // moved into the copy
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[must_use = "only the ticket returns the buffer; dropping the ticket frees the buffer"]
pub struct Ticket<X: Send + 'static> {
    state: State<X>,
}

enum State<X> {
    /// A device uses the memory until the event is reached.
    InFlight(Recorded, InUse<X>),
    /// There was nothing to copy.
    Completed(X),
    /// The memory was moved out.
    Taken,
}

/// Memory that a device uses. Dropping this leaks the memory; [`release`](Self::release) moves it out when the device
/// is done.
pub(crate) struct InUse<X> {
    memory: ManuallyDrop<X>,
    len_bytes: usize,
}

impl<X: Send + 'static> InUse<X> {
    pub(crate) fn new(memory: X, len_bytes: usize) -> Self {
        Self { memory: ManuallyDrop::new(memory), len_bytes }
    }

    pub(crate) fn memory_mut(&mut self) -> &mut X {
        &mut self.memory
    }

    /// Returns the memory: the device is done with it.
    pub(crate) fn release(self) -> X {
        ManuallyDrop::into_inner(self.memory)
    }

    /// The memory as something to free later, or to leak.
    pub(crate) fn into_deferred(self) -> DeferredDrop {
        DeferredDrop { len_bytes: self.len_bytes, free: Box::new(|| drop(self.release())) }
    }

    /// Leaks and counts the memory: the driver cannot say whether the device is done with it.
    pub(crate) fn leak(self, shared: &DeviceShared, failure: Failure) -> Error {
        let len_bytes = self.len_bytes;
        shared.leaked.leak(self, len_bytes);
        Error::Lost { leaked: ByteSize(len_bytes as u64), failure }
    }
}

/// Why work failed to be queued, and the memory that it owned, if the device is done with that memory.
pub struct Refused<X> {
    error: Box<Error>, // keeps results small
    returned: Option<X>,
}

impl<X: Send + 'static> Ticket<X> {
    /// A ticket for work that uses `in_use`. `queued` says whether the work was queued.
    pub(crate) fn new(
        stream: &Arc<StreamCore>,
        queued: Result<(), Unqueued>,
        in_use: InUse<X>,
    ) -> Result<Self, Refused<X>> {
        match queued {
            Err(Unqueued::NotQueued(error)) => return Err(Refused::returning(error, in_use.release())),
            Err(Unqueued::MaybeQueued(failure)) => return Err(Refused::maybe_queued(stream, failure, in_use)),
            Ok(()) => {}
        }
        match Recorded::new(stream, EventTiming::Untimed) {
            Ok(recorded) => {
                stream.shared().in_flight.fetch_add(1, Relaxed);
                Ok(Self { state: State::InFlight(recorded, in_use) })
            }
            Err(error) => Err(Refused::without_event(stream, error, in_use)),
        }
    }

    /// A ticket for a copy of no elements, which is done already.
    pub(crate) fn completed(memory: X) -> Self {
        Self { state: State::Completed(memory) }
    }

    /// Waits until the device is done, and returns the memory that the copy owned.
    ///
    /// # Errors
    /// [`Error::Lost`] if the driver cannot say whether the device is done; the memory is leaked then.
    /// [`Error::Raced`] if `PAGELOCK_SANITIZE=1` is set and a race was found.
    pub fn wait(mut self) -> Result<X> {
        host_function::refuse_inside()?; // drops the ticket, which defers the memory in flight
        match self.take() {
            State::InFlight(recorded, in_use) => match recorded.wait_with_fallback() {
                Ok(()) => {
                    let memory = in_use.release();
                    recorded.stream().shared().check_races().map(|()| memory)
                }
                Err(failure) => Err(in_use.leak(recorded.stream().shared(), failure)),
            },
            State::Completed(memory) => Ok(memory),
            State::Taken => unreachable!("a ticket is taken only once, by value"),
        }
    }

    /// Returns the memory that the copy owned if the device is done, else the ticket.
    ///
    /// # Errors
    /// The ticket itself, if the device is not done or the driver cannot tell without waiting.
    pub fn try_wait(mut self) -> Result<X, Self> {
        if !self.is_done() {
            return Err(self);
        }
        match self.take() {
            State::InFlight(_, in_use) => Ok(in_use.release()),
            State::Completed(memory) => Ok(memory),
            State::Taken => unreachable!("a ticket is taken only once, by value"),
        }
    }

    /// Whether waiting would return at once.
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::InFlight(recorded, _) => !host_function::is_inside() && recorded.is_reached().unwrap_or(false),
            State::Completed(_) | State::Taken => true,
        }
    }

    /// The memory in flight, and the event after which the device is done with it. The caller waits for the event and
    /// returns it to the device.
    pub(crate) fn into_flight(mut self) -> Option<(EventHandle, InUse<X>)> {
        match self.take() {
            State::InFlight(recorded, in_use) => recorded.into_handle().map(|event| (event, in_use)),
            State::Completed(_) | State::Taken => None,
        }
    }

    fn take(&mut self) -> State<X> {
        let state = mem::replace(&mut self.state, State::Taken);
        if let State::InFlight(recorded, _) = &state {
            recorded.stream().shared().in_flight.fetch_sub(1, Relaxed);
        }
        state
    }
}

impl<X: Send + 'static> Drop for Ticket<X> {
    fn drop(&mut self) {
        let is_done = self.is_done();
        match self.take() {
            State::InFlight(_, in_use) if is_done => drop(in_use.release()),
            State::InFlight(recorded, in_use) => {
                let device = recorded.stream().device().clone();
                device.core().deferred.defer(recorded, in_use.into_deferred());
            }
            State::Completed(_) | State::Taken => {}
        }
    }
}

impl<X: Send + 'static> fmt::Debug for Ticket<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<X: Send + 'static> Refused<X> {
    /// A refusal that returns the memory, which the device does not use.
    pub(crate) fn returning(error: impl Into<Error>, memory: X) -> Self {
        Self { error: Box::new(error.into()), returned: Some(memory) }
    }

    /// The driver cannot say whether the device is done with the memory: leaks it.
    fn leaking(stream: &StreamCore, failure: Failure, in_use: InUse<X>) -> Self {
        Self { error: Box::new(in_use.leak(stream.shared(), failure)), returned: None }
    }

    /// A refusal after which the work may be queued: waits for the stream.
    fn maybe_queued(stream: &StreamCore, failure: Failure, in_use: InUse<X>) -> Self {
        match stream.wait_until_idle() {
            Ok(()) => Self::returning(failure, in_use.release()),
            Err(_) => Self::leaking(stream, failure, in_use),
        }
    }

    /// A refusal after the work was queued without an event behind it: waits for the stream.
    fn without_event(stream: &StreamCore, error: Error, in_use: InUse<X>) -> Self {
        match (stream.wait_until_idle(), error) {
            (Ok(()), error) => Self::returning(error, in_use.release()),
            (Err(_), Error::Driver(failure)) | (Err(failure), _) => Self::leaking(stream, failure, in_use),
        }
    }

    /// The same refusal, with `change` applied to the returned memory.
    pub(crate) fn map<Y>(self, change: impl FnOnce(X) -> Y) -> Refused<Y> {
        Refused { error: self.error, returned: self.returned.map(change) }
    }

    /// Why the work was refused.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The memory that the copy owned, unless it was leaked ([`Error::Lost`]), and why the copy was refused.
    pub fn into_parts(self) -> (Option<X>, Error) {
        (self.returned, *self.error)
    }
}

impl<X> From<Refused<X>> for Error {
    fn from(refused: Refused<X>) -> Self {
        *refused.error
    }
}

impl<X> fmt::Debug for Refused<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<X> fmt::Display for Refused<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<X> std::error::Error for Refused<X> {}
