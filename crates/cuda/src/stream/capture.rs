//! What a stream does while its work is taken down for a graph: nothing.
//!
//! Graphs capture on a stream of their own, which nobody else uses, so that no other stream ever has to wait for it.
//! It says that it is capturing before anybody else can see it: asking the driver about it would spoil the capture.
//! Work is not ordered against other streams then, and not noted as a use of its buffers: that happens at each launch.
//! Instead the buffers are marked, so that the graph can be given all of them, or hold them.
//!
//! What is allocated on the stream while it captures comes from a cache that no other stream takes from. So a graph that
//! shares its buffers has the memory of those that are gone to itself, and work later in it may use it again.
//!
//! Everything but work on the device alone is refused: host memory would have to stay for as long as the graph.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, ThreadId},
};

use super::{Access, Handles, StreamCore, Unqueued, Uses};
use crate::{
    buffer::Allocation,
    driver::{self, Driver, GraphHandle, StreamHandle},
    error::{Error, Result},
    host_function,
    sync::{MutexGuard, Ordering, lock},
};

/// A capture.
pub(crate) struct Capture {
    /// Not the number of any other.
    pub(crate) id: u64,
    /// How many buffers its work uses.
    pub(crate) buffers: usize,
    thread: ThreadId,
    /// Those that were not allocated for it.
    from_outside: Vec<Arc<Allocation>>,
    /// Those that were, on its own stream.
    own: Vec<Weak<Allocation>>,
}

impl Capture {
    fn new() -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let (id, thread) = (NEXT_ID.fetch_add(1, Relaxed), thread::current().id());
        Self { id, buffers: 0, thread, from_outside: Vec::new(), own: Vec::new() }
    }

    /// Whether its work uses a buffer.
    pub(crate) fn uses(&self, uses: &Uses) -> bool {
        uses.captured_by(self.id).is_some()
    }

    /// Adds a part of a buffer that its work uses, and that was allocated for it.
    pub(crate) fn add_own(&mut self, part: &Arc<Allocation>) {
        part.uses().write().mark_captured(self.id);
        self.buffers += 1;
        self.own.push(Arc::downgrade(part));
    }

    /// All that its work uses and that is still there.
    pub(crate) fn take_allocations(&mut self) -> Vec<Arc<Allocation>> {
        let mut all = std::mem::take(&mut self.from_outside);
        all.extend(std::mem::take(&mut self.own).iter().filter_map(Weak::upgrade));
        all
    }
}

impl StreamCore {
    /// Before anybody else can see this stream: from now on work is taken down.
    pub(crate) fn begin_capture(&self) -> Result<()> {
        host_function::refuse_inside()?;
        if let Err(failure) = self.handles().begin_capture(self.driver(), self.queue.handle) {
            // It may have begun.
            if let Ok(graph) = self.handles().end_capture(self.driver(), self.queue.handle) {
                // SAFETY: just made, and nobody else's.
                let _ = unsafe { self.driver().destroy_graph(graph) };
            }
            return Err(failure.into());
        }
        *lock(&self.capture) = Some(Capture::new());
        self.set_private(true);
        self.is_capturing.store(true, Ordering::Release);
        Ok(())
    }

    /// What was taken down, if a capture is going on.
    pub(crate) fn end_capture(&self) -> Option<(driver::Result<GraphHandle>, Capture)> {
        let capture = lock(&self.capture).take()?;
        let graph = self.handles().end_capture(self.driver(), self.queue.handle);
        self.is_capturing.store(false, Ordering::Release);
        Some((graph, capture))
    }

    /// The capture that is going on, if any; it cannot end before this is dropped.
    pub(crate) fn capture(&self) -> MutexGuard<'_, Option<Capture>> {
        lock(&self.capture)
    }

    fn handles(&self) -> &Handles {
        &self.device.core().handles
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.is_capturing.load(Ordering::Acquire)
    }

    /// The stream's number, unless work is taken down on it.
    pub(crate) fn number_unless_capturing(&self) -> Option<u64> {
        (!self.is_capturing()).then_some(self.id())
    }

    /// Whether what the stream keeps is for others than the caller: a graph has it, or a capture by another thread.
    pub(crate) fn keeps_for_others(&self) -> bool {
        let captures_here = |capture: &Capture| capture.thread == thread::current().id();
        self.is_private() && !lock(&self.capture).as_ref().is_some_and(captures_here)
    }

    /// An error while work is taken down.
    pub(crate) fn refuse_capturing(&self) -> Result<()> {
        if self.is_capturing() { Err(Error::Capturing) } else { Ok(()) }
    }

    /// As [`enqueue`](Self::enqueue), for work that touches no host memory and so can be part of a graph.
    pub(crate) fn enqueue_on_device(
        self: &Arc<Self>,
        accesses: &[Access<'_>],
        submit: impl FnOnce(&dyn Driver, StreamHandle) -> driver::Result<()>,
    ) -> Result<(), Unqueued> {
        if self.is_capturing() { self.take_down(accesses, submit) } else { self.enqueue(accesses, submit) }
    }

    fn take_down(
        &self,
        accesses: &[Access<'_>],
        submit: impl FnOnce(&dyn Driver, StreamHandle) -> driver::Result<()>,
    ) -> Result<(), Unqueued> {
        let mut capture = lock(&self.capture);
        let here = capture.as_mut().filter(|capture| capture.thread == thread::current().id());
        let capture = here.ok_or(Unqueued::No(Error::Capturing))?;
        for access in accesses.iter().filter(|access| access.mark_captured(capture.id)) {
            capture.buffers += 1;
            match access.allocation() {
                Some(own) if std::ptr::eq(&**own.uses().home(), self) => capture.own.push(Arc::downgrade(own)),
                from_outside => capture.from_outside.extend(from_outside.cloned()),
            }
        }
        submit(self.driver(), self.queue.handle).map_err(Unqueued::Unknown)
    }
}
