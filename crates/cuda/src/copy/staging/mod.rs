//! Staged copies: ordinary (pageable) memory moves at the speed of the wire through a small ring of staging buffers.
//!
//! A device copies directly only from and to page-locked memory. So threads copy ordinary memory to page-locked staging buffers,
//! called slots, and the device copies from there, both at once; the other way round for downloads. A long upload:
//!
//! ```text
//!   worker threads   fill slot 0 │ fill slot 1 │ fill slot 2 │ … │ fill slot 0 │ …
//!   device                         copy slot 0 │ copy slot 1 │ …               │ copy slot 0 │ …
//! ```
//!
//! A slot belongs to one side at a time: free, being filled (or emptied) by threads, or in flight, which an event ends.
//! An upload returns when its source may be changed, a download when its target may be read. After an error, or when a panic
//! unwinds, neither is touched any more: a call lets go of them only after all threads have.
//!
//! To understand an upload, read on here, then `ring.rs` (the slots), `workers.rs` (the threads and what they share with the
//! call) and `upload.rs` (a call, from its first slot to its last). Beside them: `download.rs`; `plan.rs` cuts copies into
//! pieces; `config.rs` says how large the ring is; `non_temporal.rs` writes past the caches; `yielding.rs` lets copies of other
//! streams pass; `small.rs` is for copies that fit a slot many times.

mod config;
mod download;
mod non_temporal;
mod plan;
mod ring;
mod small;
mod upload;
mod workers;
mod yielding;

use std::sync::{Arc, OnceLock};

use pagelock_memory::ByteSize;

pub(crate) use self::config::DeviceStaging;
pub use self::config::StagingConfig;
pub(super) use self::plan::{Plan, Start};
pub(super) use self::workers::Direction;
use self::{
    download::Download,
    non_temporal::Stores,
    ring::Ring,
    upload::{Pace, Upload},
    workers::{Job, Workers},
};
use crate::{
    error::Result,
    stream::{Access, Stream, StreamCore},
};

const FILLERS: usize = 9; // with the caller they fill slots faster than a device empties them, also on a busy host
const SMALL: usize = 64 << 10; // up to here the caller copies alone, through a small slot of its own
const GRANULE: usize = 16 << 10; // at least: threads share even the last piece of a download
const LEAST_UPLOAD: usize = 4 << 20; // bytes of a piece; the device begins before the first is filled (`upload.rs`)
const LEAST_DOWNLOAD: usize = 512 << 10; // threads begin to empty the first piece when the device has copied it

/// A device's slots and threads.
pub(crate) struct Staging {
    large: Ring,
    small: Ring, // a thirty-second of all, for copies of up to `SMALL`
    granule_bytes: usize,
    fillers: Workers,
    readers: OnceLock<Workers>, // of slots and files; started when they are first needed
    threads: usize,
}

impl Staging {
    /// The one of a stream's device.
    pub(super) fn of(stream: &Stream) -> Arc<Self> {
        stream.device().core().staging().get()
    }

    fn new(config: StagingConfig) -> Self {
        let bytes = |size: ByteSize| usize::try_from(size.0).unwrap_or(usize::MAX / 2);
        let slot_bytes = bytes(config.slot).clamp(1 << 10, 1 << 30).next_multiple_of(1 << 10);
        let small_bytes = SMALL.min(slot_bytes);
        let small_share = bytes(config.ring) / 32;
        let large_share = bytes(config.ring) - small_share;
        Self {
            large: Ring::new(slot_bytes, (large_share / slot_bytes).max(2)),
            small: Ring::new(small_bytes, (small_share / small_bytes).max(2)),
            granule_bytes: GRANULE.min(slot_bytes / 4),
            fillers: Workers::start("staging up", config.threads.min(FILLERS)),
            readers: OnceLock::new(),
            threads: config.threads,
        }
    }

    /// The longest copy for which the caller needs no help.
    pub(super) fn small_bytes(&self) -> usize {
        self.small.slot_bytes
    }

    /// For a copy of `len_bytes`. Short copies have short pieces, so that both halves of the work overlap; long ones fill
    /// slots, because each copy costs the device some microseconds.
    pub(super) fn plan(&self, direction: Direction, len_bytes: usize) -> Plan {
        let least_piece_bytes = if direction == Direction::ToSlots { LEAST_UPLOAD } else { LEAST_DOWNLOAD };
        let piece_bytes = (len_bytes / 8).max(least_piece_bytes).next_multiple_of(self.granule_bytes);
        Plan::new(piece_bytes.min(self.large.slot_bytes), self.granule_bytes)
    }

    fn readers(&self) -> &Workers {
        self.readers.get_or_init(|| Workers::start("staging", self.threads))
    }

    /// Runs a planned upload, which reads only memory that the caller has borrowed.
    pub(super) fn upload(&self, stream: &Arc<StreamCore>, plan: Plan, targets: &[Access<'_>]) -> Result<()> {
        let is_single = plan.pieces.len() == 1;
        let pace = if is_single && self.large.is_in_use(stream.shared()) { Pace::Behind } else { Pace::Awaited };
        let gets_ahead = pace == Pace::Behind && self.threads > FILLERS;
        let stores = if is_single && !gets_ahead { Stores::PastCaches } else { Stores::Ordinary };
        let workers = if gets_ahead || !plan.files.is_empty() { self.readers() } else { &self.fillers };
        let running = workers.run(Job::new(plan, Direction::ToSlots, stores));
        Upload::new(running, self.large.lease(stream), stream, targets, pace).run()
    }

    /// Runs a planned download, which writes only memory that the caller has borrowed.
    pub(super) fn download(&self, stream: &Arc<StreamCore>, plan: Plan, sources: &[Access<'_>]) -> Result<()> {
        let running = self.readers().run(Job::new(plan, Direction::FromSlots, Stores::Ordinary));
        Download::new(running, self.large.lease(stream), stream, sources).run()
    }
}
