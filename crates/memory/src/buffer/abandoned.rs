//! [`Abandoned`]: the block of a buffer that is gone, and that a device may still use.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Completion, owner::Owner};

/// The block of a dropped [`HostBuffer`](crate::HostBuffer). Call [`give_back`](Self::give_back) when the device is done with
/// it; merely dropping this leaks the block.
#[must_use = "the block leaks unless it is given back"]
pub struct Abandoned {
    owner: Option<Owner>, // none once it is given back
    len_bytes: usize,
    others: Vec<Arc<dyn Completion>>, // beside what its keeper knows of
}

/// Blocks that a lost device may use for ever; kept where a leak checker finds them.
static LEAKED: Mutex<Vec<Owner>> = Mutex::new(Vec::new());

impl Abandoned {
    pub(super) fn new(owner: Owner, len_bytes: usize) -> Self {
        Self { owner: Some(owner), len_bytes, others: Vec::new() }
    }

    /// The same, which comes back only when these are done too.
    pub(super) fn after(self, others: Vec<Arc<dyn Completion>>) -> Self {
        let mut this = self;
        this.others = others;
        this
    }

    /// How many bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Gives the memory back: the device is done with it. Waits for what else was noted of the buffer, if it was dropped by a
    /// thread that could not; leaks it if a device was lost meanwhile.
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
