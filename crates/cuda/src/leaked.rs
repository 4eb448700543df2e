//! What is given up for good, because a device could not say whether it was done with it.
//!
//! It is counted, and kept in a list that is never emptied: there a leak checker finds it, and tells it from what was
//! lost by mistake.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use pagelock_memory::ByteSize;

static GIVEN_UP: Mutex<Vec<Box<dyn Send>>> = Mutex::new(Vec::new());

/// How much one device made its program give up. Relaxed: it guards nothing.
#[derive(Default)]
pub(crate) struct LeakCount {
    count: AtomicU64,
    bytes: AtomicU64,
}

impl LeakCount {
    /// Gives up `held`, which takes `bytes` bytes.
    pub(crate) fn give_up(&self, held: impl Send + 'static, bytes: usize) {
        self.count(bytes);
        GIVEN_UP.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(held));
    }

    /// Counts what gives itself up.
    pub(crate) fn count(&self, bytes: usize) {
        self.count.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn times(&self) -> u64 {
        self.count.load(Relaxed)
    }

    pub(crate) fn bytes(&self) -> ByteSize {
        ByteSize(self.bytes.load(Relaxed))
    }
}
