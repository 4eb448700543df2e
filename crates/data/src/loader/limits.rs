//! What settings may be at most: more cannot be meant, and would end the process for want of memory or threads.

use crate::{Error, Result};

/// The most workers, each of which is a thread.
const MOST_WORKERS: usize = 1_024;
/// The most batches that are ahead of the program, for each worker.
pub(super) const MOST_AHEAD: usize = 1 << 16;

/// The most shards of a loader of streams: how far each one is read is kept.
pub(super) const MOST_SHARDS: usize = 1 << 20;

/// Whether there can be so many workers, with so many batches ahead.
pub(super) fn check_workers(n_workers: usize, prefetch_factor: usize) -> Result<()> {
    let usual = "as many as the machine has cores is usual";
    check_most("num_workers", n_workers, MOST_WORKERS, usual)?;
    check_most("prefetch_factor", prefetch_factor, MOST_AHEAD, "2 is usual, and prefetch_budget bounds the memory")
}

/// Whether a setting can be meant.
pub(super) fn check_most(setting: &'static str, value: usize, most: usize, usual: &'static str) -> Result<()> {
    if value > most { Err(Error::Setting { setting, value, most, usual }) } else { Ok(()) }
}
