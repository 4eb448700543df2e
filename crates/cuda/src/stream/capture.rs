//! What a stream does while its work is captured for a graph: nothing.
//!
//! Graphs capture on a stream of their own, which nobody else uses, so that no other stream ever has to wait for it.
//! It says that it is capturing before anybody else can see it: asking the driver about it would spoil the capture.
//! Work is not ordered against other streams then, and not noted as a use of its buffers: that happens at each launch.
//! Instead the capture itself lists the buffers, and whether its work writes them, so that the graph can be given all of
//! them, or hold them, whatever other captures do with the same buffers meanwhile.
//!
//! What is allocated on the stream while it captures comes from a cache that no other stream takes from. So a graph that
//! shares its buffers has the memory of those that are gone to itself, and work later in it may use it again.
//!
//! Everything but work on the device alone is refused: host memory would have to stay for as long as the graph.

use std::{
    collections::HashMap,
    ptr,
    sync::{Arc, Weak},
    thread::{self, ThreadId},
};

use super::{Access, Handles, StreamCore, Unqueued, Writes};
use crate::{
    buffer::Allocation,
    driver::{self, Driver, GraphHandle, StreamHandle},
    error::{Error, Result},
    host_function,
    sync::{MutexGuard, Ordering, lock},
};

/// A capture: the buffers that its work uses, each once.
pub(crate) struct Capture {
    thread: ThreadId,
    uses: HashMap<Identity, Use>,
}

/// Where an allocation is: nothing else is there while it is listed, by whichever reference.
type Identity = usize;

struct Use {
    allocation: Listed,
    writes: bool,
}

enum Listed {
    /// Not allocated for the capture, which keeps it.
    FromOutside(Arc<Allocation>),
    /// Allocated for it, on its own stream, whose cache keeps the memory of those that are dropped.
    Own(Weak<Allocation>),
}

fn identity(allocation: &Arc<Allocation>) -> Identity {
    Arc::as_ptr(allocation).addr()
}

impl Capture {
    fn new() -> Self {
        Self { thread: thread::current().id(), uses: HashMap::new() }
    }

    /// How many buffers its work uses.
    pub(crate) fn len(&self) -> usize {
        self.uses.len()
    }

    /// What its work does with a buffer, if it uses it at all.
    pub(crate) fn writes(&self, allocation: &Arc<Allocation>) -> Option<Writes> {
        self.uses.get(&identity(allocation)).map(|known| Writes(known.writes))
    }

    /// Adds a part of a buffer that its work uses, and that was allocated for it.
    pub(crate) fn add_own(&mut self, part: &Arc<Allocation>) {
        self.add(part, Writes(true), |part| Listed::Own(Arc::downgrade(part)));
    }

    fn add(&mut self, allocation: &Arc<Allocation>, writes: Writes, list: impl FnOnce(&Arc<Allocation>) -> Listed) {
        allocation.uses().note_captured(writes);
        let new = || Use { allocation: list(allocation), writes: false };
        self.uses.entry(identity(allocation)).or_insert_with(new).writes |= writes.0;
    }

    /// All that its work uses and that is still there, in the order of their addresses.
    pub(crate) fn allocations(&self) -> Vec<Arc<Allocation>> {
        let all = self.uses.values().filter_map(|listed| match &listed.allocation {
            Listed::FromOutside(allocation) => Some(allocation.clone()),
            Listed::Own(own) => own.upgrade(),
        });
        let mut all: Vec<_> = all.collect();
        all.sort_unstable_by_key(identity);
        all
    }
}

impl StreamCore {
    /// Before anybody else can see this stream: from now on work is captured.
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

    /// What was captured, if a capture is going on.
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

    /// The stream's number, unless work is captured on it.
    pub(crate) fn number_unless_capturing(&self) -> Option<u64> {
        (!self.is_capturing()).then_some(self.id())
    }

    /// Whether what the stream keeps is for others than the caller: a graph has it, or a capture by another thread.
    pub(crate) fn keeps_for_others(&self) -> bool {
        let captures_here = |capture: &Capture| capture.thread == thread::current().id();
        self.is_private() && !lock(&self.capture).as_ref().is_some_and(captures_here)
    }

    /// An error while work is captured.
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
        self.list(accesses).map_err(Unqueued::No)?;
        // Without the lock: the capture cannot end meanwhile, since only this thread ends it.
        submit(self.driver(), self.queue.handle).map_err(Unqueued::Unknown)
    }

    /// Lists what work uses that is about to be captured by this thread.
    fn list(&self, accesses: &[Access<'_>]) -> Result<()> {
        let mut capture = lock(&self.capture);
        let here = capture.as_mut().filter(|capture| capture.thread == thread::current().id());
        let capture = here.ok_or(Error::Capturing)?;
        for access in accesses {
            let Some(allocation) = access.allocation() else { unreachable!("what is captured uses memory") };
            let is_own = ptr::eq(&**allocation.uses().home(), self);
            capture.add(allocation, access.writes(), |allocation| match is_own {
                true => Listed::Own(Arc::downgrade(allocation)),
                false => Listed::FromOutside(allocation.clone()),
            });
        }
        Ok(())
    }
}
