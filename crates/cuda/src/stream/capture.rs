//! A stream that captures its work for a graph. The device executes none of the work meanwhile.
//!
//! A graph captures on a stream of its own, which nobody else uses, so no other stream ever has to wait for it. The
//! stream is marked as capturing before anybody else can see it, since a query of it would invalidate the capture.
//! Captured work is neither ordered against other streams nor noted as a use of its buffers: that happens at each
//! launch. Instead the capture itself lists the buffers, and whether its work writes them. From that list the graph
//! takes ownership of the buffers or shares them, whatever other captures do with the same buffers meanwhile. While
//! the stream captures, other streams cannot use buffers that the capture made.
//!
//! Allocations on the stream while it captures use a cache from which no other stream takes blocks. So the memory of
//! buffers that were dropped during the capture belongs to the graph alone, and later work of the same capture may
//! reuse it.
//!
//! Work that touches host memory is refused, since the host memory would have to live as long as the graph.

use std::{
    collections::{BTreeSet, HashMap},
    ptr,
    sync::{Arc, Weak},
    thread::{self, ThreadId},
};

use super::{Access, Handles, StreamCore, Unqueued, Writes};
use crate::{
    buffer::Allocation,
    driver::{self, Address, Driver, GraphHandle, StreamHandle},
    error::{Error, Result},
    host_function,
    sync::{MutexGuard, Ordering, lock},
};

/// A capture in progress: lists each buffer that its work uses once.
pub(crate) struct Capture {
    thread: ThreadId,
    uses: HashMap<Identity, Use>,
    /// The addresses of the buffers that the capture allocated and uses, including those that were dropped.
    own: BTreeSet<Address>,
}

/// The address of an allocation's `Arc`. It stays unique while the allocation is listed, since a `Weak` keeps it too.
type Identity = usize;

struct Use {
    allocation: Listed,
    writes: bool,
}

enum Listed {
    /// Not allocated by the capture, which keeps it alive.
    FromOutside(Arc<Allocation>),
    /// Allocated on the capturing stream, whose cache keeps the memory after a drop.
    Own(Weak<Allocation>),
}

fn identity(allocation: &Arc<Allocation>) -> Identity {
    Arc::as_ptr(allocation).addr()
}

impl Capture {
    fn new() -> Self {
        Self { thread: thread::current().id(), uses: HashMap::new(), own: BTreeSet::new() }
    }

    /// How many buffers its work uses.
    pub(crate) fn len(&self) -> usize {
        self.uses.len()
    }

    /// Whether its work writes the buffer; `None` if the work does not use it.
    pub(crate) fn writes(&self, allocation: &Arc<Allocation>) -> Option<Writes> {
        self.uses.get(&identity(allocation)).map(|known| Writes(known.writes))
    }

    /// Adds a part of a buffer that the capture allocated and uses.
    pub(crate) fn add_own(&mut self, part: &Arc<Allocation>) {
        self.add(part, Writes(true), true);
    }

    fn add(&mut self, allocation: &Arc<Allocation>, writes: Writes, is_own: bool) {
        allocation.uses().note_captured(writes);
        let listed = || match is_own {
            true => Listed::Own(Arc::downgrade(allocation)),
            false => Listed::FromOutside(allocation.clone()),
        };
        let new = || Use { allocation: listed(), writes: false };
        self.uses.entry(identity(allocation)).or_insert_with(new).writes |= writes.0;
        if is_own {
            self.own.insert(allocation.address());
        }
    }

    /// The allocations that its work uses and that still exist, sorted by address.
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
    /// Begins to capture the work of this stream. Called before anybody else can see the stream.
    pub(crate) fn begin_capture(&self) -> Result<()> {
        host_function::refuse_inside()?;
        if let Err(failure) = self.handles().begin_capture(self.driver(), self.queue.handle) {
            // The capture may have begun all the same.
            if let Ok(graph) = self.handles().end_capture(self.driver(), self.queue.handle) {
                // SAFETY: just made, and no other handle to it exists.
                let _ = unsafe { self.driver().destroy_graph(graph) };
            }
            return Err(failure.into());
        }
        *lock(&self.capture) = Some(Capture::new());
        self.set_private(true);
        self.is_capturing.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the capture and returns its graph; `None` if the stream does not capture. If it is unknown whether the
    /// capture has ended, all later work is refused.
    pub(crate) fn end_capture(&self) -> Option<(driver::Result<GraphHandle>, Capture)> {
        let capture = lock(&self.capture).take()?;
        let graph = self.handles().end_capture(self.driver(), self.queue.handle);
        self.is_capturing.store(self.handles().is_capturing(self.queue.handle), Ordering::Release);
        Some((graph, capture))
    }

    /// The capture in progress, if any. It cannot end before the guard is dropped.
    pub(crate) fn capture(&self) -> MutexGuard<'_, Option<Capture>> {
        lock(&self.capture)
    }

    pub(super) fn handles(&self) -> &Handles {
        &self.device.core().handles
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.is_capturing.load(Ordering::Acquire)
    }

    /// The stream's number, unless it captures.
    pub(crate) fn id_unless_capturing(&self) -> Option<u64> {
        (!self.is_capturing()).then_some(self.id())
    }

    /// Whether the caller must not use the stream's cached blocks, because they belong to a graph or to a capture by
    /// another thread.
    pub(crate) fn cache_is_reserved(&self) -> bool {
        let captures_here = |capture: &Capture| capture.thread == thread::current().id();
        self.is_private() && !lock(&self.capture).as_ref().is_some_and(captures_here)
    }

    /// An error if the stream captures.
    pub(crate) fn refuse_capturing(&self) -> Result<()> {
        if self.is_capturing() { Err(Error::Capturing) } else { Ok(()) }
    }

    /// An error for work of another stream with buffers of a capture in progress, which nothing has computed.
    pub(super) fn refuse_captured(accesses: &[Access<'_>]) -> Result<()> {
        accesses.iter().try_for_each(|access| access.home().refuse_capturing())
    }

    /// Like [`enqueue`](Self::enqueue), for work that touches no host memory and so can be part of a graph.
    pub(crate) fn enqueue_on_device(
        self: &Arc<Self>,
        accesses: &[Access<'_>],
        submit: impl FnOnce(&dyn Driver, StreamHandle) -> driver::Result<()>,
    ) -> Result<(), Unqueued> {
        if self.is_capturing() { self.capture_work(accesses, submit) } else { self.enqueue(accesses, submit) }
    }

    fn capture_work(
        &self,
        accesses: &[Access<'_>],
        submit: impl FnOnce(&dyn Driver, StreamHandle) -> driver::Result<()>,
    ) -> Result<(), Unqueued> {
        self.list_buffers(accesses).map_err(Unqueued::NotQueued)?;
        // The lock need not be held: the capture cannot end meanwhile, since only this thread ends it.
        submit(self.driver(), self.queue.handle).map_err(Unqueued::MaybeQueued)
    }

    /// Lists the buffers of work that this thread is about to capture.
    fn list_buffers(&self, accesses: &[Access<'_>]) -> Result<()> {
        let mut capture = lock(&self.capture);
        let here = capture.as_mut().filter(|capture| capture.thread == thread::current().id());
        let capture = here.ok_or(Error::Capturing)?;
        for access in accesses {
            let Some(allocation) = access.allocation() else { unreachable!("every captured access has an allocation") };
            capture.add(allocation, access.writes(), ptr::eq(&**allocation.uses().home(), self));
        }
        Ok(())
    }

    /// Lists a new buffer of `len_bytes` if it has memory that the capture's work uses through a buffer that was
    /// dropped: each launch writes this memory, whatever else the work does with the new buffer.
    pub(crate) fn list_reused(&self, allocation: &Arc<Allocation>, len_bytes: usize) {
        if !self.is_capturing() {
            return;
        }
        let mut capture = lock(&self.capture);
        let Some(capture) = capture.as_mut().filter(|capture| capture.thread == thread::current().id()) else { return };
        let start = allocation.address();
        if capture.own.range(start..start.offset(len_bytes)).next().is_some() {
            capture.add(allocation, Writes(true), true);
        }
    }
}
