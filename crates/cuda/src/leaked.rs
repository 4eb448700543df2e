//! Memory that is leaked on purpose, because a device could not say whether it was done with it.
//!
//! It is counted and kept in a list that is never emptied, so that leak checkers still see a reference to it and do
//! not report it as an accidental leak.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use pagelock_memory::ByteSize;

static LEAKED: Mutex<Vec<Box<dyn Send>>> = Mutex::new(Vec::new());

/// How much memory was leaked because of one device. Relaxed: the counters guard nothing.
#[derive(Default)]
pub(crate) struct LeakCount {
    count: AtomicU64,
    bytes: AtomicU64,
}

impl LeakCount {
    /// Leaks `memory`, which has `bytes` bytes, and counts it.
    pub(crate) fn leak(&self, memory: impl Send + 'static, bytes: usize) {
        self.add(bytes);
        LEAKED.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(memory));
    }

    /// Counts memory that is leaked elsewhere.
    pub(crate) fn add(&self, bytes: usize) {
        self.count.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    pub(crate) fn bytes(&self) -> ByteSize {
        ByteSize(self.bytes.load(Relaxed))
    }
}
