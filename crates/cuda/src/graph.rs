//! [`Graph`]: work that is captured once and launched many times, which costs less than queueing each operation
//! again.
//!
//! A graph owns the buffers that its work uses, so that they exist whenever it runs. A launch is a use of these
//! buffers like any other, ordered against other streams. Between launches the buffers can be read and written
//! through views, and [`into_buffers`](Graph::into_buffers) returns them. A graph can also share its buffers
//! ([`Shared`]) with their owners: it keeps the memory alive, and a launch changes the contents, ordered against the
//! owners' uses.
//!
//! Invariant: `buffers` has every buffer that the captured work uses, and none of them is replaced. The exception is
//! memory in the cache of the capturing stream, which nothing else uses while the graph exists (`Launches`). A buffer
//! is identified by its allocation, as in [`Capture`]. `writes` says for each buffer whether a launch uses it and
//! writes it.

use std::{collections::HashSet, fmt, ops::Deref, sync::Arc};

use pagelock_memory::ByteSize;

use self::sealed::Member;
use crate::{
    buffer::{Allocation, DeviceBuffer, DeviceViewMut},
    device::Device,
    device_copy::DeviceCopy,
    driver::{GraphHandle, RunnableGraphHandle},
    error::{Error, OnDevice, Result},
    host_function,
    stream::{Access, Capture, Stream, StreamCore, Uses, Writes},
    sync::lock,
};

/// Captured work, which uses buffers that it does not own yet.
#[must_use = "a recording becomes a graph when it is given its buffers"]
pub struct Recording {
    device: Device,
    handle: GraphHandle,
    capture: Capture,
    stream: Stream,  // on which it was captured
    is_shared: bool, // whether a graph has exclusive use of the stream's cache
}

/// Work on a device that can be launched again and again, with the buffers that it uses.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, software::Config};
///
/// let device = Device::software(Config::default())?;
/// let stream = device.stream()?;
/// let source = stream.zeros::<u32>(4)?;
/// let mut target = stream.zeros::<u32>(4)?;
///
/// let recording = device.capture(|stream| stream.copy(&source, &mut target))?; // copies nothing yet
/// let mut graph = recording.with((source, target))?;
///
/// let (source, _target) = graph.views_mut();
/// stream.fill(source, 7)?;
/// graph.launch(&stream)?;
/// assert_eq!(stream.read(&graph.1)?, [7; 4]);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
///
/// A buffer cannot be taken out of its graph:
/// ```compile_fail,E0594
/// # use pagelock_cuda::{Device, software::Config};
/// # let device = Device::software(Config::default())?;
/// # let stream = device.stream()?;
/// let mut target = stream.zeros::<u32>(4)?;
/// let mut graph = device.capture(|stream| stream.fill(&mut target, 7))?.with((target,))?;
/// graph.0 = stream.zeros(4)?;
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
pub struct Graph<B: GraphBuffers> {
    buffers: B,
    writes: Vec<Option<Writes>>, // for each buffer in order, whether a launch writes it; `None` if it is not used
    runnable: Runnable,
    launches: Launches,
}

/// The buffers of a graph that shares them with other owners; see [`Recording::shared`].
pub struct Shared(Vec<Arc<Allocation>>);

/// The launches of a graph, and the stream on which its work was captured.
struct Launches {
    uses: Uses,
    keeps_memory: bool, // whether they use memory in that stream's cache
}

/// Device buffers that a graph can own: one, a tuple of up to eight, or a `Vec`.
pub trait GraphBuffers: sealed::Buffers {}

mod sealed {
    use super::{Allocation, Arc};

    /// One buffer of a graph.
    pub struct Member<'a>(pub(crate) &'a Arc<Allocation>);

    /// A graph's access to its buffers: always the same ones in the same order.
    pub trait Buffers: Send + Sync + 'static {
        /// Views of all buffers.
        type Views<'a>;

        /// Calls `visit` with each buffer.
        fn visit<'a>(&'a self, visit: &mut dyn FnMut(Member<'a>));

        /// Views of all buffers, for writing.
        fn views_mut(&mut self) -> Self::Views<'_>;
    }
}

/// A driver's graph, destroyed when this is dropped.
struct Runnable {
    device: Device,
    handle: RunnableGraphHandle,
}

impl Device {
    /// Captures the work that `work` queues on its stream, instead of executing it. Kernels, fills and copies on the
    /// device can be captured.
    ///
    /// # Errors
    /// Those of `work`, which include [`Error::Capturing`] for work of any other kind; [`Error::Driver`].
    pub fn capture(&self, work: impl FnOnce(&Stream) -> Result<()>) -> Result<Recording> {
        let stream = self.capturing_stream()?;
        let guard = EndsCapture(&stream);
        let result = work(&stream);
        std::mem::forget(guard);
        let Some((graph, capture)) = stream.core().end_capture() else { return Err(Error::Capturing) };
        let handle = graph.inspect_err(|_| stream.core().set_private(false))?;
        let recording = Recording { device: self.clone(), handle, capture, stream, is_shared: false };
        result.map(|()| recording)
    }
}

/// Ends the capture if the captured closure unwinds.
struct EndsCapture<'a>(&'a Stream);

impl Drop for EndsCapture<'_> {
    fn drop(&mut self) {
        if let Some((Ok(graph), _)) = self.0.core().end_capture() {
            // SAFETY: just made, and no other handle to it exists.
            let _ = unsafe { self.0.core().driver().destroy_graph(graph) };
        }
        self.0.core().set_private(false);
    }
}

impl Recording {
    /// A graph that owns its buffers. `buffers` must include all buffers that the work uses.
    ///
    /// # Errors
    /// [`Error::NotOwned`] if the work uses other buffers, or a buffer that was dropped; [`Error::Driver`].
    pub fn with<B: GraphBuffers>(self, buffers: B) -> Result<Graph<B>> {
        let writes = self.writes_of_all(&buffers)?;
        self.graph(buffers, writes)
    }

    /// A graph that shares the buffers of its work with their owners. It keeps the memory alive as long as it exists.
    /// The work may also allocate buffers on its stream and drop them again; their memory belongs to the graph alone.
    ///
    /// A launch writes the buffers that the work writes, even if they have other owners at that time. It is ordered
    /// against all other uses, like any work of a stream.
    ///
    /// # Errors
    /// [`Error::Driver`].
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let device = Device::software(Config::default())?;
    /// let stream = device.stream()?;
    /// let source = stream.zeros::<u32>(4)?;
    /// let mut target = stream.zeros::<u32>(4)?;
    /// let recording = device.capture(|stream| {
    ///     let mut between = stream.allocate(4)?; // gone when the capture ends
    ///     stream.copy(&source, &mut between)?;
    ///     stream.copy(&between, &mut target)
    /// })?;
    /// let graph = recording.shared()?;
    /// stream.fill(&mut { source }, 7)?;
    /// graph.launch(&stream)?;
    /// assert_eq!(stream.read(&target)?, [7; 4]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn shared(mut self) -> Result<Graph<Shared>> {
        let buffers = Shared(self.capture.allocations());
        let writes = self.writes(&buffers);
        self.is_shared = true;
        self.graph(buffers, writes)
    }

    fn graph<B: GraphBuffers>(&self, buffers: B, writes: Vec<Option<Writes>>) -> Result<Graph<B>> {
        let home = self.stream.core();
        // Other streams may have used the graph's own memory since the capture, and its stream has waited for them.
        // So the launches come after all work that was queued on that stream.
        let launches = Launches { uses: Uses::new(home.clone(), home.submitted()), keeps_memory: self.is_shared };
        host_function::refuse_inside()?;
        // SAFETY: the graph exists while this does.
        let handle = unsafe { self.device.core().shared().driver.instantiate(self.handle) }?;
        let runnable = Runnable { device: self.device.clone(), handle };
        Ok(Graph { buffers, writes, runnable, launches })
    }

    /// For each of the buffers, whether the work writes it; `None` if the work does not use it.
    fn writes<B: GraphBuffers>(&self, buffers: &B) -> Vec<Option<Writes>> {
        let mut writes = Vec::new();
        buffers.visit(&mut |Member(allocation)| writes.push(self.capture.writes(allocation)));
        writes
    }

    /// Like [`writes`](Self::writes), but an error unless these are all buffers that the work uses.
    fn writes_of_all<B: GraphBuffers>(&self, buffers: &B) -> Result<Vec<Option<Writes>>> {
        let mut given = HashSet::new(); // a buffer may be given twice
        buffers.visit(&mut |Member(allocation)| {
            if self.capture.writes(allocation).is_some() {
                given.insert(Arc::as_ptr(allocation));
            }
        });
        let (used, given) = (self.capture.len(), given.len());
        if used == given { Ok(self.writes(buffers)) } else { Err(Error::NotOwned { used, given }) }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.is_shared {
            self.stream.core().set_private(false);
        }
        let (device, handle) = (self.device.clone(), self.handle);
        host_function::run_or_defer(move || {
            // SAFETY: made in `capture`, and not used after this.
            let _ = unsafe { device.core().shared().driver.destroy_graph(handle) };
        });
    }
}

impl<B: GraphBuffers> Graph<B> {
    /// Queues all of the work on a stream as one unit, and returns at once.
    ///
    /// # Errors
    /// [`Error::OtherDevice`], [`Error::OtherDriver`], [`Error::Driver`].
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        stream.core().check_device(self.runnable.device.core().shared(), OnDevice::Graph)?;
        let queued = stream.core().enqueue(&self.accesses(), |driver, stream| {
            // SAFETY: the graph exists while `self` does. It owns or shares all buffers that its work uses, which
            // `enqueue` orders, and devices keep their modules loaded.
            unsafe { driver.launch_graph(self.runnable.handle, stream) }
        });
        Ok(queued?)
    }

    fn accesses(&self) -> Vec<Access<'_>> {
        let mut accesses = Vec::with_capacity(self.writes.len() + 1);
        accesses.push(self.launches.uses.launch(Writes(true))); // orders launches against each other and updates
        let mut writes = self.writes.iter();
        self.buffers.visit(&mut |Member(allocation)| {
            let used = writes.next().copied().flatten();
            accesses.extend(used.map(|writes| allocation.uses().launch(writes)));
        });
        accesses
    }

    /// Replaces the graph's work with that of the recording: the same kinds of operations in the same order, with
    /// other sizes, values or parts of the buffers. Waits for launches in flight.
    ///
    /// # Errors
    /// [`Error::NotOwned`] if the recording uses buffers that this graph does not have, [`Error::OtherDevice`],
    /// [`Error::GraphShape`], [`Error::Driver`].
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let device = Device::software(Config::default())?;
    /// let stream = device.stream()?;
    /// let mut target = stream.zeros::<u32>(4)?;
    /// let mut graph = device.capture(|stream| stream.fill(&mut target, 7))?.with(target)?;
    /// let half = device.capture(|stream| stream.fill(graph.views_mut().slice(2..)?, 8))?;
    /// graph.update(half)?;
    /// graph.launch(&stream)?;
    /// assert_eq!(stream.read(&*graph)?, [0, 0, 8, 8]);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn update(&mut self, recording: Recording) -> Result<()> {
        host_function::refuse_inside()?;
        let shared = self.runnable.device.core().shared();
        shared.check_same(recording.device.core().shared(), OnDevice::Recording)?;
        let writes = recording.writes_of_all(&self.buffers)?;
        self.launches.uses.wait_until_unused()?;
        // SAFETY: both exist, of one driver (just checked), and no launch is going on (just waited; `&mut`).
        match unsafe { shared.driver.update_graph(self.runnable.handle, recording.handle) } {
            Ok(true) => self.writes = writes,
            Ok(false) => return Err(Error::GraphShape),
            Err(failure) => {
                // The graph may have changed all the same, so launches are ordered as if they did both the old and the
                // new work.
                self.writes.iter_mut().zip(writes).for_each(|(old, new)| *old = merge_uses(*old, new));
                return Err(failure.into());
            }
        }
        Ok(())
    }

    /// The size of the memory that belongs to the graph alone: that of buffers which its work allocated and dropped.
    pub fn kept_memory(&self) -> ByteSize {
        let stream = self.launches.uses.home();
        if self.launches.keeps_memory { lock(&stream.cache).idle() } else { ByteSize(0) }
    }

    /// Views of all its buffers, for writing between launches.
    pub fn views_mut(&mut self) -> B::Views<'_> {
        self.buffers.views_mut()
    }

    /// Destroys the graph and returns its buffers.
    pub fn into_buffers(self) -> B {
        self.buffers
    }
}

/// The combined use of a buffer by two pieces of work.
fn merge_uses(one: Option<Writes>, other: Option<Writes>) -> Option<Writes> {
    match (one, other) {
        (Some(Writes(one)), Some(Writes(other))) => Some(Writes(one || other)),
        (known, None) | (None, known) => known,
    }
}

impl Launches {
    /// Orders the stream after all launches, or waits for them on the host; whether one of these succeeded.
    fn are_ordered_before(&self, stream: &StreamCore) -> bool {
        stream.order_after_all(&self.uses).is_ok()
            || (!host_function::is_inside() && self.uses.wait_until_unused().is_ok())
    }
}

impl Drop for Launches {
    fn drop(&mut self) {
        if host_function::is_inside() {
            let deferred = Launches { uses: self.uses.fork(), keeps_memory: self.keeps_memory };
            return host_function::run_or_defer(|| drop(deferred));
        }
        let stream = self.uses.home();
        if self.keeps_memory {
            let is_ordered = self.are_ordered_before(stream);
            let mut cache = lock(&stream.cache);
            // The stream may still be waiting for launches; the blocks' next users must come after the launches.
            if is_ordered { cache.note_use(stream.submitted()) } else { cache.leak_all() }
        }
        stream.set_private(false);
    }
}

impl<B: GraphBuffers> Deref for Graph<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.buffers
    }
}

impl Drop for Runnable {
    fn drop(&mut self) {
        let (device, handle) = (self.device.clone(), self.handle);
        host_function::run_or_defer(move || {
            // SAFETY: made in `Recording::graph`, and not used after this; launches that are already queued still
            // run.
            let _ = unsafe { device.core().shared().driver.destroy_runnable_graph(handle) };
        });
    }
}

impl<B: GraphBuffers> fmt::Debug for Graph<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} buffers on {:?})", self.writes.len(), self.runnable.device)
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recording(uses {} buffers on {:?})", self.capture.len(), self.device)
    }
}

impl<T: DeviceCopy> GraphBuffers for DeviceBuffer<T> {}

impl<T: DeviceCopy> sealed::Buffers for DeviceBuffer<T> {
    type Views<'a> = DeviceViewMut<'a, T>;

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(Member<'a>)) {
        visit(Member(self.allocation()));
    }

    fn views_mut(&mut self) -> DeviceViewMut<'_, T> {
        self.view_mut()
    }
}

impl GraphBuffers for Shared {}

impl sealed::Buffers for Shared {
    type Views<'a> = ();

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(Member<'a>)) {
        self.0.iter().for_each(|allocation| visit(Member(allocation)));
    }

    fn views_mut(&mut self) {}
}

impl<B: GraphBuffers> GraphBuffers for Vec<B> {}

impl<B: GraphBuffers> sealed::Buffers for Vec<B> {
    type Views<'a> = Vec<B::Views<'a>>;

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(Member<'a>)) {
        self.iter().for_each(|buffer| buffer.visit(visit));
    }

    fn views_mut(&mut self) -> Vec<B::Views<'_>> {
        self.iter_mut().map(|buffer| buffer.views_mut()).collect()
    }
}

macro_rules! tuples {
    ($(($($B:ident $index:tt)*))*) => { $(
        impl<$($B: GraphBuffers),*> GraphBuffers for ($($B,)*) {}

        impl<$($B: GraphBuffers),*> sealed::Buffers for ($($B,)*) {
            type Views<'a> = ($($B::Views<'a>,)*);

            fn visit<'a>(&'a self, visit: &mut dyn FnMut(Member<'a>)) {
                $(self.$index.visit(visit);)*
            }

            fn views_mut(&mut self) -> Self::Views<'_> {
                ($(self.$index.views_mut(),)*)
            }
        }
    )* };
}

tuples! {
    (A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6) (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7)
}
