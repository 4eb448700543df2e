//! The current capture of a thread: where operations find the stream to queue on.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use pagelock_cuda::{Argument, Recording, Stream};

use super::NAME;
use crate::cuda::{CudaDevice, NULL};
use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::kind::Int;
use crate::random::default_generator;
use crate::shape::Shape;
use crate::storage::{FreshCuda, StorageRef, WeakStorage};
use crate::tensor::Tensor;
use crate::thread_value::with_value;

thread_local! {
    static IS_CAPTURING: Cell<bool> = const { Cell::new(false) };
    /// How many captures this thread has begun.
    static BEGUN: Cell<u64> = const { Cell::new(0) };
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

struct Current {
    device: CudaDevice,
    stream: Stream,
    written: Vec<StorageRef>,
    made: Vec<WeakStorage>,
    draws: Option<Draws>,
}

/// The result of a capture.
pub(super) struct Captured<R> {
    pub(super) recording: Result<Recording>,
    /// What the work returned, or its panic.
    pub(super) result: thread::Result<R>,
    /// The storages that the captured work writes: those that it changes in place, and those that it made and that
    /// still exist.
    pub(super) written: Vec<StorageRef>,
    pub(super) draws: Option<Draws>,
}

/// Random numbers of a captured step, which are drawn from the default generator at each launch.
#[derive(Clone)]
pub(super) struct Draws {
    /// How far the generator has advanced since the capture. The kernels read this number.
    shift: Tensor<Int>,
    seed: u64,
    start: u64,
    counters: u64,
}

impl Draws {
    fn new(device: &CudaDevice, start: u64) -> Result<Self> {
        let location = Device::Cuda(device.clone());
        // Not in memory of the capture: other work of the graph may overwrite that before the numbers are drawn.
        let allocate = || FreshCuda::allocate(NAME, Shape::SCALAR, DType::I64, &location, device);
        let shift = outside(|| allocate().map(FreshCuda::share))?;
        let seed = default_generator().seed();
        Ok(Self { shift: shift.typed(), seed, start, counters: 0 })
    }

    /// Whether the default generator still has the seed that it had during the capture.
    pub(super) fn are_current(&self) -> bool {
        default_generator().seed() == self.seed
    }

    /// Prepares the launch that follows the capture, whose numbers were drawn during the capture.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.counters = default_generator().position().wrapping_sub(self.start);
        self.shift.fill_(0)
    }

    /// Draws the numbers of a later launch.
    pub(super) fn draw_again(&self) -> Result<()> {
        let start = default_generator().take(self.counters);
        self.shift.fill_(start.wrapping_sub(self.start) as i64)
    }
}

/// The stream that takes the place of the device's own while this thread captures.
pub(crate) fn stream_on(device: &CudaDevice) -> Option<Stream> {
    if !IS_CAPTURING.get() {
        return None;
    }
    CURRENT.with_borrow(|current| {
        current.as_ref().filter(|current| current.device == *device).map(|current| current.stream.clone())
    })
}

/// Calls `f` as if this thread did not capture: its work is queued now and not part of the graph, and what it allocates
/// may outlive the graph.
pub(crate) fn outside<R>(f: impl FnOnce() -> R) -> R {
    with_value(&IS_CAPTURING, false, f)
}

/// The number of this thread's current capture, from 1; 0 without one.
pub(crate) fn number() -> u64 {
    if IS_CAPTURING.get() { BEGUN.get() } else { 0 }
}

/// Notes, while this thread captures, that work changes a storage in place.
pub(crate) fn note_write(storage: &StorageRef) {
    if IS_CAPTURING.get() {
        CURRENT.with_borrow_mut(|current| {
            if let Some(current) = current.as_mut().filter(|current| !current.written.iter().any(|w| w.is(storage))) {
                current.written.push(storage.clone());
            }
        });
    }
}

/// Notes, while this thread captures, a storage that was made on a device.
pub(crate) fn note_made(storage: &StorageRef) {
    if IS_CAPTURING.get() {
        CURRENT.with_borrow_mut(|current| {
            current.iter_mut().for_each(|current| current.made.extend(storage.downgraded()));
        });
    }
}

/// Calls `launch` with the address of [`Draws::shift`] while this thread captures, else with null. `position` is
/// where the default generator was before the draw, or `None` if the numbers come from another generator.
pub(crate) fn with_shift(
    device: &CudaDevice,
    position: Option<u64>,
    launch: impl FnOnce(Argument<'_>) -> Result<()>,
) -> Result<()> {
    if !IS_CAPTURING.get() {
        return launch(NULL);
    }
    let Some(position) = position else {
        return Err(Error::Captured { what: "drawing random numbers from a generator other than the default" });
    };
    let known = CURRENT.with_borrow(|current| Some(current.as_ref()?.draws.as_ref()?.shift.clone()));
    let shift = match known {
        Some(shift) => shift,
        None => {
            let draws = Draws::new(device, position)?;
            let shift = draws.shift.clone();
            CURRENT
                .with_borrow_mut(|current| current.iter_mut().for_each(|current| current.draws = Some(draws.clone())));
            shift
        }
    };
    let locked = shift.storage().lock();
    launch(locked.cuda(shift.layout(), DType::I64).argument())
}

/// Captures what `work` queues on the device.
pub(super) fn capture<R>(device: &CudaDevice, work: impl FnOnce() -> R) -> Result<Captured<R>> {
    refuse("another captured step")?;
    let mut done = None;
    let recording = device.cuda().capture(|stream| {
        let (device, stream) = (device.clone(), stream.clone());
        CURRENT.set(Some(Current { device, stream, written: Vec::new(), made: Vec::new(), draws: None }));
        BEGUN.set(BEGUN.get() + 1);
        IS_CAPTURING.set(true);
        let result = catch_unwind(AssertUnwindSafe(work));
        IS_CAPTURING.set(false);
        done = Some((result, CURRENT.take()));
        Ok(())
    });
    let recording = recording.map_err(|source| Error::cuda(NAME, source));
    let Some((result, current)) = done else {
        return Err(recording.err().unwrap_or_else(|| unreachable!("a capture that succeeds calls `work`")));
    };
    let Some(Current { mut written, made, draws, .. }) = current else { unreachable!("it was set before the work") };
    for storage in made.iter().filter_map(WeakStorage::upgraded) {
        if !written.iter().any(|other| other.is(&storage)) {
            written.push(storage);
        }
    }
    Ok(Captured { result, recording, written, draws })
}

/// Returns an error while this thread captures: a graph cannot contain `what`.
pub(crate) fn refuse(what: &'static str) -> Result<()> {
    if IS_CAPTURING.get() { Err(Error::Captured { what }) } else { Ok(()) }
}
