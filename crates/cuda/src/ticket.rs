//! [`Ticket`]: what a copy in flight owns, and the only way to get it back.
//!
//! What a device uses is inside the ticket, out of anybody's reach, from before the copy is queued until the device is
//! done with it. Dropping the ticket hands it to `deferred_drops.rs`, which frees it when the device is done.
//! Forgetting the ticket leaks it. If the driver cannot say whether the device is done, it is leaked and counted.

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

/// What a copy in flight owns. It comes back only from [`wait`](Ticket::wait) or [`try_wait`](Ticket::try_wait).
///
/// Dropping a ticket never blocks and never frees early: one of the device's next copies frees what it held, once the
/// device is done with it. Forgetting one leaks what it holds.
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
#[must_use = "the buffer comes back only from the ticket; dropping it gives the buffer back to the pool"]
pub struct Ticket<X: Send + 'static> {
    state: State<X>,
}

enum State<X> {
    /// A device uses it until the event is reached.
    InFlight(Recorded, InUse<X>),
    /// There was nothing to copy.
    Over(X),
    /// It was taken out.
    Taken,
}

/// What a device uses. Dropping it leaks: it is taken out when the device is done.
pub(crate) struct InUse<X> {
    held: ManuallyDrop<X>,
    len_bytes: usize,
}

impl<X: Send + 'static> InUse<X> {
    pub(crate) fn new(held: X, len_bytes: usize) -> Self {
        Self { held: ManuallyDrop::new(held), len_bytes }
    }

    pub(crate) fn held_mut(&mut self) -> &mut X {
        &mut self.held
    }

    /// The device is done with it.
    pub(crate) fn done(self) -> X {
        ManuallyDrop::into_inner(self.held)
    }

    /// The device cannot say whether it is done.
    pub(crate) fn lost(self, shared: &DeviceShared, failure: Failure) -> Error {
        let len_bytes = self.len_bytes;
        shared.leaked.give_up(self, len_bytes);
        Error::Lost { leaked: ByteSize(len_bytes as u64), failure }
    }
}

/// Why work failed to be queued, and what it owned, if the device is done with that.
pub struct Refused<X> {
    error: Error,
    returned: Option<X>,
}

impl<X: Send + 'static> Ticket<X> {
    /// A ticket for work that uses `used`. `queued` says whether it was queued.
    pub(crate) fn new(
        stream: &Arc<StreamCore>,
        queued: Result<(), Unqueued>,
        used: InUse<X>,
    ) -> Result<Self, Refused<X>> {
        match queued {
            Err(Unqueued::No(error)) => return Err(Refused { error, returned: Some(used.done()) }),
            Err(Unqueued::Unknown(failure)) => return Err(Refused::after(stream, failure, used)),
            Ok(()) => {}
        }
        match Recorded::new(stream, EventTiming::Untimed) {
            Ok(recorded) => {
                stream.shared().in_flight.fetch_add(1, Relaxed);
                Ok(Self { state: State::InFlight(recorded, used) })
            }
            Err(error) => Err(Refused::without_event(stream, error, used)),
        }
    }

    /// A ticket for nothing.
    pub(crate) fn over(held: X) -> Self {
        Self { state: State::Over(held) }
    }

    /// Waits until the device is done, and gives back what the copy owned.
    ///
    /// # Errors
    /// [`Error::Lost`] if the driver cannot say whether the device is done: what the copy owned is leaked;
    /// [`Error::Raced`] if the environment asks for races to be found, and one was.
    pub fn wait(mut self) -> Result<X> {
        host_function::refuse_inside()?; // dropping the ticket defers what is in flight
        match self.take() {
            State::InFlight(recorded, used) => match recorded.prove() {
                Ok(()) => {
                    let held = used.done();
                    recorded.stream().shared().check_races().map(|()| held)
                }
                Err(failure) => Err(used.lost(recorded.stream().shared(), failure)),
            },
            State::Over(held) => Ok(held),
            State::Taken => unreachable!("a ticket is taken only once, by value"),
        }
    }

    /// Gives back what the copy owned if the device is done, else the ticket.
    ///
    /// # Errors
    /// The ticket itself, if the device is not done, or the driver cannot say so without waiting.
    pub fn try_wait(mut self) -> Result<X, Self> {
        if !self.is_done() {
            return Err(self);
        }
        match self.take() {
            State::InFlight(_, used) => Ok(used.done()),
            State::Over(held) => Ok(held),
            State::Taken => unreachable!("a ticket is taken only once, by value"),
        }
    }

    /// Whether waiting would return at once.
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::InFlight(recorded, _) => !host_function::is_inside() && recorded.is_reached().unwrap_or(false),
            State::Over(_) | State::Taken => true,
        }
    }

    /// What is in flight, and the event that ends it: the caller waits for the event, and gives it back.
    pub(crate) fn into_flight(mut self) -> Option<(EventHandle, InUse<X>)> {
        match self.take() {
            State::InFlight(recorded, used) => recorded.into_handle().map(|event| (event, used)),
            State::Over(_) | State::Taken => None,
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
            State::InFlight(_, used) if is_done => drop(used.done()),
            State::InFlight(recorded, used) => {
                let device = recorded.stream().device().clone();
                device.core().deferred().defer(recorded, Box::new(used));
            }
            State::Over(_) | State::Taken => {}
        }
    }
}

impl<X: Send + 'static> fmt::Debug for Ticket<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<X: Send + 'static> DeferredDrop for InUse<X> {
    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn give_back(self: Box<Self>) {
        drop(self.done());
    }
}

impl<X: Send + 'static> Refused<X> {
    /// Nothing was queued.
    pub(crate) fn before(error: impl Into<Error>, returned: X) -> Self {
        Self { error: error.into(), returned: Some(returned) }
    }

    /// Perhaps something was queued: wait for the stream.
    fn after(stream: &StreamCore, failure: Failure, used: InUse<X>) -> Self {
        match stream.prove_idle() {
            Ok(()) => Self { error: failure.into(), returned: Some(used.done()) },
            Err(_) => Self { error: used.lost(stream.shared(), failure), returned: None },
        }
    }

    /// Something was queued, but no event follows it: wait for the stream.
    fn without_event(stream: &StreamCore, error: Error, used: InUse<X>) -> Self {
        match (stream.prove_idle(), error) {
            (Ok(()), error) => Self { error, returned: Some(used.done()) },
            (Err(_), Error::Driver(failure)) => Self { error: used.lost(stream.shared(), failure), returned: None },
            (Err(failure), _) => Self { error: used.lost(stream.shared(), failure), returned: None },
        }
    }

    /// The same refusal, with something made of what came back.
    pub(crate) fn map<Y>(self, change: impl FnOnce(X) -> Y) -> Refused<Y> {
        Refused { error: self.error, returned: self.returned.map(change) }
    }

    /// Why.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// What the copy owned, unless it was leaked ([`Error::Lost`]), and why it was refused.
    pub fn into_parts(self) -> (Option<X>, Error) {
        (self.returned, self.error)
    }
}

impl<X> From<Refused<X>> for Error {
    fn from(refused: Refused<X>) -> Self {
        refused.error
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
