//! [`Plan`]: by how many workers batches are made, how far ahead, and in which memory; and what settings may be at most: more
//! cannot be meant, and would end the process for want of memory or threads.

use std::sync::Arc;
use std::time::Duration;

use pagelock_memory::Budget;

use super::pinned::WhenFull;
use crate::{Error, Result};

/// The most workers, each of which is a thread.
const MOST_WORKERS: usize = 1_024;
/// The most batches that are ahead of the program, for each worker.
pub(super) const MOST_AHEAD: usize = 1 << 16;
/// The most shards that are read: how far each one is, is kept.
pub(super) const MOST_SHARDS: usize = 1 << 20;

/// What each worker does first; it is given its number.
pub(super) type Init = dyn Fn(usize) -> Result<()> + Send + Sync;

/// See the head of the file.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) n_workers: usize,
    pub(super) prefetch_factor: usize,
    pub(super) budget: Option<Budget>, // for batches that are ahead
    pub(super) timeout: Option<Duration>,
    pub(super) persistent: bool,
    pub(super) init: Option<Arc<Init>>,
    pub(super) pins: bool,
    pub(super) pin_budget: Option<Budget>,
    pub(super) when_full: WhenFull,
    pub(super) skips: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            n_workers: 0,
            prefetch_factor: 2,
            budget: None,
            timeout: None,
            persistent: false,
            init: None,
            pins: false,
            pin_budget: None,
            when_full: WhenFull::default(),
            skips: false,
        }
    }
}

impl Plan {
    /// Whether there can be that many workers, with that many batches ahead.
    pub(super) fn check(&self) -> Result<()> {
        let usual = "as many as the machine has cores is usual";
        check_most("num_workers", self.n_workers, MOST_WORKERS, usual)?;
        let usual = "2 is usual, and prefetch_budget bounds the memory";
        check_most("prefetch_factor", self.prefetch_factor, MOST_AHEAD, usual)
    }
}

/// Whether a setting can be meant.
pub(super) fn check_most(setting: &'static str, value: usize, most: usize, usual: &'static str) -> Result<()> {
    if value > most { Err(Error::Setting { setting, value, most, usual }) } else { Ok(()) }
}
