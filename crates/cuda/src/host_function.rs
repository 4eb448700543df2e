//! Functions that a stream calls on the host.
//!
//! The driver calls them on a thread of its own, where no call of the driver is allowed. Each [`Driver`]
//! refuses such a call, and functions that wait, or do anything before their first call, check [`refuse_inside`]
//! first. A drop that needs the driver is moved to another thread, which runs it after the host function has returned
//! ([`run_or_defer`]).
//!
//! [`Driver`]: crate::driver::Driver
//!
//! Invariant: the driver owns the pointer to a [`Task`] until it calls the function, which frees the task. If it is
//! unknown whether the call will happen, the task is leaked and counted.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    ffi::c_void,
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, mpsc},
    thread,
};

use crate::{
    driver::{EventTiming, HostFunction},
    error::{Error, Result},
    event::Recorded,
    stream::{Stream, StreamCore, Unqueued},
    sync::{Mutex, lock},
};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Work that is deferred until a host function has returned.
type Deferred = Box<dyn FnOnce() + Send>;

thread_local! {
    static DEFERRED: RefCell<Vec<Deferred>> = const { RefCell::new(Vec::new()) };
}

/// Runs work and discards its panic, for callers that must not unwind.
pub(crate) fn run_quietly(work: impl FnOnce()) {
    let dropped = |panic| catch_unwind(AssertUnwindSafe(|| drop(panic)));
    let result = catch_unwind(AssertUnwindSafe(work)).or_else(dropped).or_else(dropped);
    mem::forget(result); // it is a panic only if dropping each payload panics again
}

/// Runs `work`, which may call the driver or wait for it: at once, or, inside a host function, on another thread
/// after the function has returned (or at once, if this thread is ending). So a drop inside a host function neither waits
/// nor leaks.
pub(crate) fn run_or_defer(work: impl FnOnce() + Send + 'static) {
    if !is_inside() {
        return work();
    }
    let mut work: Vec<Deferred> = vec![Box::new(work)];
    // At the end of a thread, the list may be gone already.
    if DEFERRED.try_with(|deferred| deferred.borrow_mut().append(&mut work)).is_err() {
        run_deferred(work);
    }
}

/// Sends the deferred work of a host function to a worker thread. If the thread cannot be started, the work is
/// leaked, since dropping it here could wait for the device.
fn run_deferred(deferred: Vec<Deferred>) {
    static WORKER: std::sync::Mutex<Option<mpsc::Sender<Vec<Deferred>>>> = std::sync::Mutex::new(None);
    let mut worker = WORKER.lock().unwrap_or_else(PoisonError::into_inner);
    if worker.is_none() {
        let (sender, receiver) = mpsc::channel::<Vec<Deferred>>();
        // The payload of a panic is forgotten: its drop can panic too, which would end the thread.
        let execute = |work: Deferred| run_quietly(work);
        let run_all = move || receiver.into_iter().flatten().for_each(execute);
        let started = thread::Builder::new().name("after host functions".to_owned()).spawn(run_all);
        *worker = started.is_ok().then_some(sender);
    }
    let unsent = match &*worker {
        Some(worker) => worker.send(deferred).err().map(|mpsc::SendError(deferred)| deferred),
        None => Some(deferred),
    };
    mem::forget(unsent);
}

/// Whether this thread is calling a host function.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// An error if this thread is calling a host function.
pub(crate) fn refuse_inside() -> Result<()> {
    if is_inside() { Err(Error::InsideHostFunction) } else { Ok(()) }
}

/// The result of a function that a stream will call, or has called.
///
/// Dropping this does not cancel the call.
pub struct HostCall<R> {
    outcome: Arc<Mutex<Option<thread::Result<R>>>>, // guards the result of the function
    called: Recorded,
}

/// The function and the slot for its result, to which the driver gets a pointer.
struct Task<F, R> {
    function: F,
    outcome: Arc<Mutex<Option<thread::Result<R>>>>,
}

impl Stream {
    /// Calls `function` on the host, after all work that was queued before and before all work that is queued later.
    ///
    /// It runs on a thread of the driver, and the stream waits until it returns: wake another thread and return. It
    /// cannot use devices ([`Error::InsideHostFunction`]). It must not take a lock that a thread holds while it uses
    /// devices: that use may wait for this stream, and on a software device the function may run inside of that use. A
    /// tensor is such a lock while a thread queues work on it. If the function panics, the panic is caught and
    /// [`HostCall::wait`] returns it as an error.
    ///
    /// # Errors
    /// [`Error::Driver`].
    ///
    /// # Examples
    /// ```
    /// use std::sync::mpsc;
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let stream = Device::software(Config::default())?.stream()?;
    /// let numbers = stream.zeros::<f32>(1_000)?;
    /// let (send, cleared) = mpsc::channel();
    /// let call = stream.call(move || send.send(()).is_ok())?;
    /// assert!(call.wait()?);
    /// assert!(cleared.try_recv().is_ok());
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn call<F, R>(&self, function: F) -> Result<HostCall<R>>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let outcome = Arc::new(Mutex::new(None));
        let task = Box::into_raw(Box::new(Task { function, outcome: outcome.clone() }));
        let queued = self.core().enqueue(&[], |driver, stream| {
            let run: HostFunction = run::<F, R>;
            // SAFETY: the task is `Send`, and nobody else uses it until `run` takes ownership of it.
            unsafe { driver.call_host(stream, run, task.cast()) }
        });
        match queued {
            Ok(()) => Ok(HostCall { outcome, called: Recorded::new(self.core(), EventTiming::Untimed)? }),
            Err(Unqueued::NotQueued(error)) => {
                // SAFETY: made above, and the driver did not get it.
                drop(unsafe { Box::from_raw(task) });
                Err(error)
            }
            Err(Unqueued::MaybeQueued(failure)) => {
                // SAFETY: made above.
                unsafe { reclaim(self.core(), task, &outcome) };
                Err(failure.into())
            }
        }
    }
}

/// After a failure: frees the task if the driver has not called it and never will.
///
/// # Safety
/// `task` came from a box, and only the driver may have taken it.
unsafe fn reclaim<F, R>(stream: &StreamCore, task: *mut Task<F, R>, outcome: &Mutex<Option<thread::Result<R>>>) {
    if stream.wait_until_idle().is_err() {
        stream.shared().leaked.leak(task.expose_provenance(), size_of::<Task<F, R>>());
        return;
    }
    if lock(outcome).is_none() {
        // SAFETY: the stream has executed all of its work and did not call the function, so nobody else has the task.
        drop(unsafe { Box::from_raw(task) });
    }
}

/// The entry point for the driver.
///
/// # Safety
/// `data` points to a task of these types, which the caller owns.
unsafe extern "C" fn run<F: FnOnce() -> R, R>(data: *mut c_void) {
    // SAFETY: promised by the caller, who calls once.
    let task = unsafe { Box::from_raw(data.cast::<Task<F, R>>()) };
    INSIDE.set(true);
    // Nothing may unwind into C. The drop of a result that nobody waits for can panic too.
    run_quietly(move || {
        let Task { function, outcome } = *task;
        let result = catch_unwind(AssertUnwindSafe(function));
        *lock(&outcome) = Some(result);
    });
    INSIDE.set(false);
    let deferred = DEFERRED.try_with(RefCell::take).unwrap_or_default();
    if !deferred.is_empty() {
        run_deferred(deferred);
    }
}

impl<R> HostCall<R> {
    /// Waits until the function has returned, and returns its result.
    ///
    /// # Errors
    /// [`Error::HostPanicked`] if the function panicked; [`Error::Driver`] if the driver failed, so that the function
    /// may never be called.
    pub fn wait(self) -> Result<R> {
        refuse_inside()?;
        self.called.wait()?;
        match lock(&self.outcome).take() {
            Some(Ok(returned)) => Ok(returned),
            Some(Err(panic)) => Err(Error::HostPanicked { message: message_of(&*panic) }),
            None => unreachable!("the event after a host function was reached before the function returned"),
        }
    }

    /// Whether the function has returned.
    pub fn is_done(&self) -> bool {
        !is_inside() && self.called.is_reached().unwrap_or(false)
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "it did not say why".to_owned())
}

impl<R> fmt::Debug for HostCall<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCall").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{panic::resume_unwind, time::Duration};

    use super::*;

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            resume_unwind(Box::new("again"));
        }
    }

    #[test]
    fn deferred_work_goes_on_after_a_panic_whose_payload_panics() {
        run_deferred(vec![Box::new(|| resume_unwind(Box::new(PanicsWhenDropped)))]);
        let (send, receive) = mpsc::channel();
        let sender = send.clone();
        run_deferred(vec![Box::new(move || send.send(()).unwrap())]);
        assert!(receive.recv_timeout(Duration::from_secs(20)).is_ok());
        drop(sender); // the channel was open while the work was waited for
    }
}
