//! The two traits of this crate: a [`Resource`] hands out [`Block`]s.
//!
//! Sources make memory (`pageable.rs`, `page_locked.rs`, `mapped.rs`); layers wrap a resource and add one rule
//! (`limited.rs`, `pooled/`, `counted.rs`). Users hold a [`HostBuffer`](crate::HostBuffer).
//!
//! Invariant: a block owns its bytes, and dropping it is the only way to give them back.

use std::{fmt, ptr::NonNull};

use crate::{Budget, Result};

/// Every block starts at a multiple of this many bytes: a cache line, and the widest vector register.
pub const ALIGN: usize = 64;

/// Hands out blocks of memory: a source of it, or a layer over another resource.
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
    /// What it hands out.
    type Block: Block;

    /// A block of exactly `len_bytes` bytes.
    ///
    /// # Errors
    /// Whatever keeps this resource, or one below it, from serving.
    fn allocate(&self, len_bytes: usize) -> Result<Self::Block>;

    /// Gives back what is kept for later and not in use; returns how many bytes of RAM that freed.
    fn trim(&self) -> usize {
        0
    }

    /// How many bytes of RAM a block of `len_bytes` takes: at least `len_bytes`, more where the source rounds up.
    fn footprint(&self, len_bytes: usize) -> usize {
        len_bytes
    }

    /// The nearest budget, here or below, that pays for the blocks.
    fn budget(&self) -> Option<&Budget> {
        None
    }

    /// A second budget that pays for the blocks, unless the first is inside it.
    fn ceiling(&self) -> Option<&Budget> {
        None
    }

    /// What the nearest pool, here or below, keeps and how often it could serve.
    fn pool_stats(&self) -> Option<PoolStats> {
        None
    }
}

/// Bytes on the host, owned: dropping the block gives them back.
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

    /// Which kind of memory the bytes are.
    fn kind(&self) -> MemoryKind;
}

/// Kinds of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary memory: the system may move or swap its pages, a GPU copies it through a staging buffer.
    Pageable,
    /// Memory whose pages stay where they are, so that a device can read and write them directly.
    PageLocked,
    /// A file seen as memory: read-only.
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

/// Prints what a layered block is, rather than all that its layers share.
pub(crate) fn debug_block(name: &str, block: &impl Block, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(name).field("len_bytes", &block.len_bytes()).field("kind", &block.kind()).finish_non_exhaustive()
}

/// What a [`Pooled`](crate::Pooled) layer keeps and how often it served from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes kept for later, in no block.
    pub idle_bytes: u64,
    /// Allocations served from what was kept.
    pub hits: u64,
    /// Allocations that went to the layer below.
    pub misses: u64,
}
