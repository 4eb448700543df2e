//! The two central traits of this crate: a [`Resource`] hands out [`Block`]s.
//!
//! Sources make memory (`pageable.rs`, `page_locked.rs`, `mapped.rs`); layers wrap a resource and add one rule
//! (`limited.rs`, `pooled/`, `counted.rs`). Users hold a [`HostBuffer`](crate::HostBuffer).
//!
//! Invariant: a block owns its bytes, and dropping it is the only way to free them.

use std::{fmt, ptr::NonNull};

use crate::{Budget, Reservation, Result};

/// Every block starts at a multiple of this many bytes: a cache line, and the widest vector register.
pub const ALIGN: usize = 64;

/// Hands out blocks of memory: a source of memory, or a layer over another resource.
///
/// # Examples
/// ```
/// use pagelock_memory::{Block, Budget, Limited, Pageable, Pooled, Resource};
///
/// let host = Pooled::new(Limited::new(Pageable, Budget::new("host", 1 << 20)));
/// let block = host.allocate(1_000)?;
/// assert_eq!(block.len_bytes(), 1_000);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub trait Resource: Send + Sync + 'static {
    /// The type of its blocks.
    type Block: Block;

    /// A block of exactly `len_bytes` bytes.
    ///
    /// # Errors
    /// Any error of this resource or of one below it.
    fn allocate(&self, len_bytes: usize) -> Result<Self::Block>;

    /// Like [`allocate`](Self::allocate), for a block whose bytes are already charged to a budget. A resource that may
    /// free memory later than its block is dropped takes the reservation, and releases it when the memory is free.
    /// Others leave the reservation to the caller, who releases it after the block.
    ///
    /// # Errors
    /// As `allocate`.
    fn allocate_charged(&self, len_bytes: usize, charged: &mut Option<Reservation>) -> Result<Self::Block> {
        let _ = charged;
        self.allocate(len_bytes)
    }

    /// Frees idle memory that is kept for reuse; returns how many bytes of RAM that freed.
    fn trim(&self) -> usize {
        0
    }

    /// How many bytes of RAM a block of `len_bytes` takes: at least `len_bytes`, more if the source rounds up.
    fn footprint(&self, len_bytes: usize) -> usize {
        len_bytes
    }

    /// The nearest budget, here or below, to which the blocks are charged.
    fn budget(&self) -> Option<&Budget> {
        None
    }

    /// A second budget to which the blocks are charged, unless the first is inside it.
    fn ceiling(&self) -> Option<&Budget> {
        None
    }

    /// The statistics of the nearest pool, here or below.
    fn pool_stats(&self) -> Option<PoolStats> {
        None
    }
}

/// Owned bytes on the host: dropping the block frees them.
///
/// # Safety
/// From creation to drop, wherever the block itself is moved:
/// - `ptr()` and `len_bytes()` never change, and `ptr()` is a multiple of [`ALIGN`];
/// - the bytes are valid for reads, and for writes too unless `kind()` is [`MemoryKind::Mapped`] or
///   [`MemoryKind::Foreign`];
/// - all bytes are **initialized**: any value, but never uninitialized memory (sources zero, pools recycle);
/// - nothing else reads or writes them: no other block, no other process, no device.
pub unsafe trait Block: Send + Sync + 'static {
    /// The first byte; dangling (but aligned) if the block is empty.
    fn ptr(&self) -> NonNull<u8>;

    /// How many bytes the block has.
    fn len_bytes(&self) -> usize;

    /// The kind of memory.
    fn kind(&self) -> MemoryKind;
}

/// Kinds of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary memory: the system may move or swap its pages, and a GPU copies it through a staging buffer.
    Pageable,
    /// Memory whose pages stay in RAM. If a GPU driver locked them, a device can read and write them directly.
    PageLocked,
    /// A file mapped into memory: read-only.
    Mapped,
    /// Memory of another library: read-only.
    Foreign,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MemoryKind::Pageable => "pageable",
            MemoryKind::PageLocked => "page-locked",
            MemoryKind::Mapped => "mapped",
            MemoryKind::Foreign => "foreign",
        })
    }
}

/// Prints the length and kind of a layered block, not the state of its layers.
pub(crate) fn debug_block(name: &str, block: &impl Block, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(name).field("len_bytes", &block.len_bytes()).field("kind", &block.kind()).finish_non_exhaustive()
}

/// The statistics of a [`Pooled`](crate::Pooled) layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of idle blocks.
    pub idle_bytes: u64,
    /// Allocations served from idle blocks.
    pub hits: u64,
    /// Allocations that went to the layer below.
    pub misses: u64,
}
