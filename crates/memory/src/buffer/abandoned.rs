//! [`Abandoned`]: the block of a dropped buffer that a device may still use.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Completion, owner::Owner};

/// The block of a dropped [`HostBuffer`](crate::HostBuffer). Call [`give_back`](Self::give_back) when the device is done with
/// it; dropping an `Abandoned` without this call leaks the block.
#[must_use = "the block leaks unless `give_back` is called"]
pub struct Abandoned {
    owner: Option<Owner>, // none once it is freed
    len_bytes: usize,
    others: Vec<Arc<dyn Completion>>, // besides that of its keeper
}

/// Blocks that a lost device may use forever, kept reachable for leak checkers.
static LEAKED: Mutex<Vec<Owner>> = Mutex::new(Vec::new());

impl Abandoned {
    pub(super) fn new(owner: Owner, len_bytes: usize) -> Self {
        Self { owner: Some(owner), len_bytes, others: Vec::new() }
    }

    /// The same block, which is freed only when `others` are done too.
    pub(super) fn after(self, others: Vec<Arc<dyn Completion>>) -> Self {
        let mut this = self;
        this.others = others;
        this
    }

    /// The length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Frees the memory, because the device is done with it. If the buffer was dropped by a thread that may not wait,
    /// this waits for the buffer's other completions first, and leaks the memory if one of their devices is lost.
    pub fn give_back(mut self) {
        let others = std::mem::take(&mut self.others);
        others.iter().for_each(|other| other.wait());
        if !others.iter().any(|other| other.is_lost()) {
            self.owner = None;
        }
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            LEAKED.lock().unwrap_or_else(PoisonError::into_inner).push(owner);
        }
    }
}
