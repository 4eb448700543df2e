//! What a stream does while its work is taken down for a graph: nothing.
//!
//! Graphs capture on a stream of their own, which nobody else uses, so that no other stream ever has to wait for it.
//! It says that it is capturing before anybody else can see it: asking the driver about it would spoil the capture.
//! Work is not ordered against other streams then, and not noted as a use of its buffers: that happens at each launch.
//! Instead the buffers are marked, so that the graph can be given all of them.
//!
//! Everything but work on the device alone is refused: host memory would have to stay for as long as the graph.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread::{self, ThreadId},
};

use super::{Access, Handles, StreamCore, Unqueued};
use crate::{
    driver::{self, Driver, GraphHandle, StreamHandle},
    error::{Error, Result},
    host_function,
    sync::{Ordering, lock},
};

/// A capture.
pub(crate) struct Capture {
    /// Not the number of any other.
    pub(crate) id: u64,
    /// How many buffers its work uses.
    pub(crate) buffers: usize,
    thread: ThreadId,
}

impl StreamCore {
    /// Before anybody else can see this stream: from now on work is taken down.
    pub(crate) fn begin_capture(&self) -> Result<()> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        host_function::refuse_inside()?;
        if let Err(failure) = self.handles().begin_capture(self.driver(), self.queue.handle) {
            // It may have begun.
            if let Ok(graph) = self.handles().end_capture(self.driver(), self.queue.handle) {
                // SAFETY: just made, and nobody else's.
                let _ = unsafe { self.driver().destroy_graph(graph) };
            }
            return Err(failure.into());
        }
        let id = NEXT_ID.fetch_add(1, Relaxed);
        *lock(&self.capture) = Some(Capture { id, buffers: 0, thread: thread::current().id() });
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

    fn handles(&self) -> &Handles {
        &self.device.core().handles
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.is_capturing.load(Ordering::Acquire)
    }

    /// An error while work is taken down.
    pub(crate) fn refuse_capturing(&self) -> Result<()> {
        if self.is_capturing() { Err(Error::Capturing) } else { Ok(()) }
    }

    /// As [`enqueue`](Self::enqueue), for work that touches no host memory and so can be part of a graph.
    pub(crate) fn enqueue_on_device(
        self: &std::sync::Arc<Self>,
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
        for access in accesses {
            capture.buffers += usize::from(access.mark_captured(capture.id));
        }
        submit(self.driver(), self.queue.handle).map_err(Unqueued::Unknown)
    }
}
