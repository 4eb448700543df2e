//! [`Abandoned`]: the block of a dropped buffer that a device may still use.

use std::sync::{Arc, Mutex};

use super::{Completion, owner::Owner, pending::take_keeper};
use crate::sync::lock_std;

/// The block of a dropped [`HostBuffer`](crate::HostBuffer). Call [`free`](Self::free) when the device is done with
/// it; dropping an `Abandoned` without this call leaks the block.
#[must_use = "the block leaks unless `free` is called"]
pub struct Abandoned {
    owner: Option<Owner>, // none once it is freed
    len_bytes: usize,
    completions: Vec<Arc<dyn Completion>>, // besides that of its keeper
}

/// Blocks that a lost device may use forever, kept reachable for leak checkers.
static LEAKED: Mutex<Vec<Owner>> = Mutex::new(Vec::new());

impl Abandoned {
    pub(super) fn new(owner: Owner, len_bytes: usize) -> Self {
        Self { owner: Some(owner), len_bytes, completions: Vec::new() }
    }

    /// The same block, which is freed only when `completions` are done too.
    pub(super) fn with_completions(self, completions: Vec<Arc<dyn Completion>>) -> Self {
        let mut this = self;
        this.completions = completions;
        this
    }

    /// The length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Frees the memory, because the device is done with it. If the buffer was dropped by a thread that may not wait,
    /// this waits for the buffer's other completions first, and leaks the memory if one of their devices is lost. If
    /// the thread that calls this may not wait either, one of them [keeps](Completion::keep) the block.
    pub fn free(mut self) {
        if let Some(keeper) = take_keeper(&mut self.completions) {
            return drop(keeper.keep(self)); // leaks if it is not kept
        }
        let completions = std::mem::take(&mut self.completions);
        completions.iter().for_each(|completion| completion.wait());
        if !completions.iter().any(|completion| completion.is_lost()) {
            self.owner = None;
        }
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            lock_std(&LEAKED).push(owner);
        }
    }
}
