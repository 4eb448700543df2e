//! [`Repeats`]: replaces repeated launches of a kernel by launches of a graph, which take half the time.
//!
//! Training launches the same kernels in the same sizes in every step. After [`LAUNCHES_BEFORE_GRAPH`] launches of one
//! size, a kernel is launched as a graph with one node, whose arguments are replaced before each launch. That takes
//! the calling thread 1.3 µs instead of 2.4 µs (decision 0036).
//!
//! The driver serializes the launches of one graph, even on different streams, so each stream has graphs of its own.

use std::{ffi::c_void, mem};

use super::launch::Launch;
use crate::{
    device::Device,
    driver::{Driver, Failure, FunctionHandle, PreparedLaunch, Result, Start, Status, StreamHandle},
    host_function,
    sync::{Mutex, lock},
};

/// The number of launches of one size after which a graph is prepared, which costs as much as sixteen launches save.
const LAUNCHES_BEFORE_GRAPH: u32 = 16;
/// The number of sizes of a kernel that are counted, over all streams.
const MAX_SIZES: usize = 8;

/// The launches of one kernel.
pub(super) struct Repeats {
    device: Device,
    function: FunctionHandle,
    sizes: Mutex<Vec<Size>>, // guards the list, and the graphs while their arguments are set and they are launched
}

/// Launches in one size on one stream.
struct Size {
    launch: Launch,
    stream: u64, // number of the stream
    state: State,
}

enum State {
    /// The number of ordinary launches so far.
    Counted(u32),
    Prepared(PreparedLaunch),
    /// The driver does not support it, or the device has no memory for it.
    Refused,
}

impl Repeats {
    pub(super) fn new(device: Device, function: FunctionHandle) -> Self {
        Self { device, function, sizes: Mutex::default() }
    }

    /// Queues the kernel. `number` is that of the stream; `None` if the launch must not become a graph, for example
    /// on a stream that captures.
    ///
    /// # Safety
    /// As [`Driver::launch`].
    pub(super) unsafe fn launch(
        &self,
        (driver, stream, number): (&dyn Driver, StreamHandle, Option<u64>),
        launch: &Launch,
        start: Start,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        if let Some(number) = number {
            let mut sizes = lock(&self.sizes);
            // SAFETY: the caller's promise.
            let size = unsafe { self.count_launch(&mut sizes, driver, number, launch, arguments) };
            if let Some(size) = size
                && let State::Prepared(prepared) = &size.state
            {
                // SAFETY: the caller's promise; it was prepared from this function in this size, and `sizes` is locked.
                let launched = unsafe { driver.launch_again(prepared, stream, self.function, launch, arguments) };
                if !matches!(launched, Err(Failure { status: Status::OUT_OF_MEMORY, .. })) {
                    return launched;
                }
                size.refuse(driver); // a graph needs memory of the device, which may have none left
            }
        }
        // SAFETY: the caller's promise.
        unsafe { driver.launch(stream, self.function, launch, start, arguments) }
    }

    /// Counts a launch in that size, and prepares a graph after [`LAUNCHES_BEFORE_GRAPH`] launches. Returns `None` if
    /// the size is new.
    ///
    /// # Safety
    /// As [`Driver::launch`].
    unsafe fn count_launch<'a>(
        &self,
        sizes: &'a mut Vec<Size>,
        driver: &dyn Driver,
        stream: u64,
        launch: &Launch,
        arguments: &mut [*mut c_void],
    ) -> Option<&'a mut Size> {
        let Some(at) = sizes.iter().position(|size| size.stream == stream && size.launch == *launch) else {
            add_size(sizes, stream, launch);
            return None;
        };
        let size = &mut sizes[at];
        match &mut size.state {
            State::Counted(times) if *times < LAUNCHES_BEFORE_GRAPH => *times += 1,
            State::Counted(_) => {
                // SAFETY: the caller's promise.
                let prepared = unsafe { driver.prepare_launch(self.function, launch, arguments) };
                size.state = prepared.map_or(State::Refused, State::Prepared);
            }
            State::Prepared(_) | State::Refused => {}
        }
        Some(size)
    }
}

impl Size {
    /// Destroys the graph, if there is one. All later launches are ordinary ones.
    fn refuse(&mut self, driver: &dyn Driver) {
        if let State::Prepared(PreparedLaunch { graph, runnable, .. }) = mem::replace(&mut self.state, State::Refused) {
            // SAFETY: made in `count_launch`, and not used after this; launches that are already queued still run.
            let _ = unsafe { driver.destroy_runnable_graph(runnable) };
            // SAFETY: made in `count_launch`, and not used after this.
            let _ = unsafe { driver.destroy_graph(graph) };
        }
    }
}

/// Begins to count a new size, which replaces the one with the fewest launches if there are too many.
fn add_size(sizes: &mut Vec<Size>, stream: u64, launch: &Launch) {
    if sizes.len() == MAX_SIZES {
        let counts = sizes.iter().enumerate().filter_map(|(at, size)| match size.state {
            State::Counted(times) => Some((times, at)),
            State::Prepared(_) | State::Refused => None,
        });
        let Some((_, rarest)) = counts.min() else { return };
        sizes.swap_remove(rarest);
    }
    sizes.push(Size { launch: *launch, stream, state: State::Counted(1) });
}

impl Drop for Repeats {
    fn drop(&mut self) {
        let (device, mut sizes) = (self.device.clone(), mem::take(&mut *lock(&self.sizes)));
        host_function::run_or_defer(move || {
            sizes.iter_mut().for_each(|size| size.refuse(&*device.core().shared().driver));
        });
    }
}
