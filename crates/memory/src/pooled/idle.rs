//! The blocks that a pool keeps for reuse.
//!
//! Invariants: a block under class `c` belongs to that class by its length, and a large block is found only by its
//! exact length. All large blocks, in use and idle, never have more than twice the bytes that were in use at once.

use crate::{Block, PoolStats, SizeClasses};

/// The classes start at one cache line. Blocks above the longest class are large: they are rounded up only as the
/// source rounds.
pub(super) const CLASSES: SizeClasses = SizeClasses::new(64, 4 << 20);

// Blocks are boxed when they are allocated, so that handing one out moves only a pointer.
pub(super) struct Idle<B> {
    by_class: [Vec<Box<B>>; CLASSES.count()],
    large: Large<B>,
    stats: PoolStats,
    pub(super) returns: u64,
    pub(super) waiters: usize, // threads that wait for a return
}

/// Blocks without a class. They are few, so they are searched linearly.
struct Large<B> {
    idle: Vec<Box<B>>, // the one that is idle for the longest time first
    idle_bytes: usize,
    live_bytes: usize,
    peak_bytes: usize, // of `live_bytes`, since the last trim
}

impl<B: Block> Idle<B> {
    pub(super) fn new() -> Self {
        Self {
            by_class: std::array::from_fn(|_| Vec::new()),
            large: Large::new(),
            stats: PoolStats::default(),
            returns: 0,
            waiters: 0,
        }
    }

    pub(super) fn stats(&self) -> PoolStats {
        self.stats
    }

    /// Takes an idle block of exactly `len_bytes`, which is a rounded size.
    pub(super) fn take(&mut self, len_bytes: usize) -> Option<Box<B>> {
        let found = match CLASSES.class_of(len_bytes) {
            Some(class) => self.by_class[class].pop(),
            None => self.large.take(len_bytes),
        };
        match &found {
            Some(block) => {
                self.stats.hits += 1;
                self.stats.idle_bytes -= block.len_bytes() as u64;
            }
            None => self.stats.misses += 1,
        }
        found
    }

    /// Notes that a new block is in use, and returns idle blocks that are now too many.
    pub(super) fn note_new(&mut self, block: &B) -> Vec<Box<B>> {
        if block.len_bytes() <= CLASSES.longest() {
            return Vec::new();
        }
        let surplus = self.large.note_new(block.len_bytes());
        self.stats.idle_bytes -= surplus.iter().map(|block| block.len_bytes() as u64).sum::<u64>();
        surplus
    }

    /// Notes that a block is not in use any more.
    pub(super) fn note_return(&mut self, block: &B) {
        if block.len_bytes() > CLASSES.longest() {
            self.large.live_bytes -= block.len_bytes();
        }
    }

    pub(super) fn keep(&mut self, block: Box<B>) {
        let len_bytes = block.len_bytes();
        self.stats.idle_bytes += len_bytes as u64;
        match CLASSES.class_of(len_bytes) {
            Some(class) => self.by_class[class].push(block),
            None => self.large.keep(block),
        }
    }

    /// Takes all idle blocks; leaves the counters of large bytes in use, hits, misses, returns and waiting threads.
    pub(super) fn take_all(&mut self) -> Self {
        let (live_bytes, stats) = (self.large.live_bytes, PoolStats { idle_bytes: 0, ..self.stats });
        let large = Large { live_bytes, peak_bytes: live_bytes, ..Large::new() };
        let (returns, waiters) = (self.returns, self.waiters);
        std::mem::replace(self, Self { large, stats, returns, waiters, ..Self::new() })
    }
}

impl<B: Block> Large<B> {
    fn new() -> Self {
        Self { idle: Vec::new(), idle_bytes: 0, live_bytes: 0, peak_bytes: 0 }
    }

    fn take(&mut self, len_bytes: usize) -> Option<Box<B>> {
        let at = self.idle.iter().rposition(|block| block.len_bytes() == len_bytes)?;
        self.idle_bytes -= len_bytes;
        self.note_live(len_bytes);
        Some(self.idle.remove(at))
    }

    fn note_new(&mut self, len_bytes: usize) -> Vec<Box<B>> {
        self.note_live(len_bytes);
        let may_keep = 2 * self.peak_bytes - self.live_bytes;
        let mut surplus = Vec::new();
        while self.idle_bytes > may_keep {
            let longest_idle = self.idle.remove(0);
            self.idle_bytes -= longest_idle.len_bytes();
            surplus.push(longest_idle);
        }
        surplus
    }

    fn note_live(&mut self, len_bytes: usize) {
        self.live_bytes += len_bytes;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    fn keep(&mut self, block: Box<B>) {
        self.idle_bytes += block.len_bytes();
        self.idle.push(block);
    }
}
