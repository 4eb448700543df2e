//! Staged copies: pageable memory moves at the full bandwidth of the bus through a small ring of staging buffers.
//!
//! A device copies directly only from and to page-locked memory. So threads copy ordinary memory to page-locked
//! staging buffers, called slots, while the device copies from other slots. Downloads work in the opposite direction.
//! A long upload:
//!
//! ```text
//!   worker threads   fill slot 0 │ fill slot 1 │ fill slot 2 │ … │ fill slot 0 │ …
//!   device                         copy slot 0 │ copy slot 1 │ …               │ copy slot 0 │ …
//! ```
//!
//! At any time a slot is free, being filled (or emptied) by threads, or in flight until an event is reached. An
//! upload returns when its source may be changed, a download when its target may be read. A call returns or unwinds
//! only after all threads have stopped using the source or target, also after an error or a panic.
//!
//! To understand an upload, read this file, then `ring.rs` (the slots), `workers.rs` (the threads and what they share
//! with the call) and `upload.rs` (a call, from its first slot to its last). The other files: `download.rs`;
//! `plan.rs` cuts copies into pieces; `config.rs` has the size of the ring; `non_temporal.rs` writes past the caches;
//! `yielding.rs` lets copies of other streams go first; `small.rs` is for copies of up to 64 KiB.

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
    upload::{DeviceState, Upload},
    workers::{Job, Workers},
};
use crate::{
    error::Result,
    stream::{Access, Stream, StreamCore},
};

const MAX_FILLERS: usize = 9; // with the caller, they fill slots faster than a device empties them, even on a busy host
const SMALL_BYTES: usize = 64 << 10; // up to this length the caller copies alone, through a slot of the small ring
const MIN_GRANULE: usize = 16 << 10; // small enough that threads share even the last piece of a download
const MIN_UPLOAD_PIECE: usize = 4 << 20; // bytes; the device begins before the first piece is filled (`upload.rs`)
const MIN_DOWNLOAD_PIECE: usize = 512 << 10; // bytes; threads begin when the device has copied the first one

pub(crate) struct Staging {
    large: Ring,
    small: Ring, // a thirty-second of the memory, for copies of up to `SMALL_BYTES`
    granule_bytes: usize,
    fillers: Workers,
    readers: OnceLock<Workers>, // read slots and files; started when they are first needed
    threads: usize,
}

impl Staging {
    pub(super) fn of(stream: &Stream) -> Arc<Self> {
        stream.device().core().staging.get()
    }

    fn new(config: StagingConfig) -> Self {
        let bytes = |size: ByteSize| usize::try_from(size.0).unwrap_or(usize::MAX / 2);
        let slot_bytes = bytes(config.slot).clamp(1 << 10, 1 << 30).next_multiple_of(1 << 10);
        let small_bytes = SMALL_BYTES.min(slot_bytes);
        let small_share = bytes(config.ring) / 32;
        let large_share = bytes(config.ring) - small_share;
        Self {
            large: Ring::new(slot_bytes, (large_share / slot_bytes).max(2)),
            small: Ring::new(small_bytes, (small_share / small_bytes).max(2)),
            granule_bytes: MIN_GRANULE.min(slot_bytes / 4),
            fillers: Workers::start("staging up", config.threads.min(MAX_FILLERS)),
            readers: OnceLock::new(),
            threads: config.threads,
        }
    }

    /// The longest copy that the caller makes without helper threads.
    pub(super) fn small_bytes(&self) -> usize {
        self.small.slot_bytes
    }

    /// An empty plan for a copy of `len_bytes`. Short copies have short pieces, so that the work of threads and
    /// device overlaps. The pieces of long copies fill whole slots: each copy costs the device some microseconds.
    pub(super) fn plan(&self, direction: Direction, len_bytes: usize) -> Plan {
        let min_piece_bytes = if direction == Direction::ToSlots { MIN_UPLOAD_PIECE } else { MIN_DOWNLOAD_PIECE };
        let piece_bytes = (len_bytes / 8).max(min_piece_bytes).next_multiple_of(self.granule_bytes);
        Plan::new(piece_bytes.min(self.large.slot_bytes), self.granule_bytes)
    }

    fn readers(&self) -> &Workers {
        self.readers.get_or_init(|| Workers::start("staging", self.threads))
    }

    /// Runs a planned upload, which reads only memory that the caller has borrowed.
    pub(super) fn upload(&self, stream: &Arc<StreamCore>, plan: Plan, targets: &[Access<'_>]) -> Result<()> {
        let is_single = plan.pieces.len() == 1;
        let is_busy = is_single && self.large.is_in_use(stream.shared());
        let device_state = if is_busy { DeviceState::Busy } else { DeviceState::Idle };
        let gets_ahead = is_busy && self.threads > MAX_FILLERS;
        let stores = if is_single && !gets_ahead { Stores::NonTemporal } else { Stores::Ordinary };
        let workers = if gets_ahead || !plan.files.is_empty() { self.readers() } else { &self.fillers };
        let running = workers.run(Job::new(plan, Direction::ToSlots, stores));
        Upload::new(running, self.large.lease(stream), stream, targets, device_state).run()
    }

    /// Runs a planned download, which writes only memory that the caller has borrowed.
    pub(super) fn download(&self, stream: &Arc<StreamCore>, plan: Plan, sources: &[Access<'_>]) -> Result<()> {
        let running = self.readers().run(Job::new(plan, Direction::FromSlots, Stores::Ordinary));
        Download::new(running, self.large.lease(stream), stream, sources).run()
    }
}
