//! The queued work of a software stream, and its progress.

use std::{
    collections::VecDeque,
    ffi::c_void,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use crate::driver::{Address, Copy2d, HostFunction, Pattern};

/// One piece of work.
#[derive(Clone)]
pub(super) enum Work {
    ToDevice { to: Address, from: *const u8, len_bytes: usize, locked: Option<usize> },
    ToHost { to: *mut u8, from: Address, len_bytes: usize, locked: Option<usize> },
    OnDevice { to: Address, from: Address, len_bytes: usize },
    Rows(Copy2d),
    Fill { to: Address, pattern: Pattern, count: usize },
    CallHost { function: HostFunction, data: *mut c_void },
    Wait(Mark),
    Stamp(Arc<Stamp>),
    All(Arc<[Work]>),
}

// SAFETY: the pointers are used only under the promises of `Driver`'s callers, which hold on any thread.
unsafe impl Send for Work {}
// SAFETY: as above; a `&Work` can only be copied from.
unsafe impl Sync for Work {}

impl Work {
    /// The start of the page-locked range that contained the host memory when this was queued.
    pub(super) fn locked(&self) -> Option<usize> {
        match self {
            Work::ToDevice { locked, .. } | Work::ToHost { locked, .. } => *locked,
            _ => None,
        }
    }
}

/// The time at which an event was reached.
#[derive(Default)]
pub(super) struct Stamp(pub(super) std::sync::Mutex<Option<Instant>>);

/// A position in a stream, reached when `at` pieces of work are done.
#[derive(Clone)]
pub(super) struct Mark {
    progress: Arc<AtomicU64>, // how many pieces are done; Release, so that a reader sees what they wrote
    at: u64,
}

impl Mark {
    pub(super) fn is_reached(&self) -> bool {
        self.progress.load(Ordering::Acquire) >= self.at
    }
}

/// One stream.
pub(super) struct Queue {
    pub(super) device: u32,
    work: VecDeque<Work>,
    queued: u64,
    progress: Arc<AtomicU64>,
    running: bool,
    pub(super) destroyed: bool,
    captured: Option<Captured>,
}

/// Captured work.
#[derive(Default)]
pub(super) struct Captured {
    pub(super) work: Vec<Work>,
    /// Whether the capture is invalid, because the stream was waited for or queried.
    pub(super) invalid: bool,
}

impl Queue {
    pub(super) fn new(device: u32) -> Self {
        Self {
            device,
            work: VecDeque::new(),
            queued: 0,
            progress: Arc::default(),
            running: false,
            destroyed: false,
            captured: None,
        }
    }

    pub(super) fn push(&mut self, work: Work) {
        match &mut self.captured {
            Some(captured) => captured.work.push(work),
            None => {
                self.work.push_back(work);
                self.queued += 1;
            }
        }
    }

    /// A mark that is reached when all work queued so far is done.
    pub(super) fn mark(&self) -> Mark {
        Mark { progress: self.progress.clone(), at: self.queued }
    }

    pub(super) fn is_runnable(&self) -> bool {
        let is_waiting = matches!(self.work.front(), Some(Work::Wait(mark)) if !mark.is_reached());
        !self.running && !is_waiting && !self.work.is_empty()
    }

    /// Removes the next piece, to execute it. [`finish`](Self::finish) must follow.
    pub(super) fn start(&mut self) -> Option<Work> {
        let work = self.work.pop_front()?;
        self.running = true;
        Some(work)
    }

    pub(super) fn finish(&mut self) {
        self.running = false;
        self.progress.fetch_add(1, Ordering::Release);
    }

    /// Whether the stream is destroyed and has no work left.
    pub(super) fn is_over(&self) -> bool {
        self.destroyed && !self.running && self.work.is_empty()
    }

    pub(super) fn begin_capture(&mut self) -> bool {
        let idle = self.captured.is_none();
        self.captured.get_or_insert_default();
        idle
    }

    pub(super) fn end_capture(&mut self) -> Option<Captured> {
        self.captured.take()
    }

    pub(super) fn is_capturing(&self) -> bool {
        self.captured.is_some()
    }

    /// Invalidates the capture in progress. Returns whether there was one.
    pub(super) fn invalidate_capture(&mut self) -> bool {
        let captured = self.captured.as_mut();
        captured.map(|captured| captured.invalid = true).is_some()
    }
}
