//! Host memory with ceilings: budgets, pools, page-locked and mapped bytes.
//!
//! A [`Resource`] hands out [`Block`]s; a block owns its bytes, and dropping it is the only way to free them.
//! Sources make memory ([`Pageable`], [`PageLocked`], [`Mapped`]); layers wrap a resource and add one rule
//! ([`Limited`] by a [`Budget`], [`Pooled`], [`Counted`]). The order of the layers is the policy. Users allocate
//! [`HostBuffer`]s from [`default_host`] or from a stack of their own. The [`ledger()`] shows who holds how much.
//!
//! # Examples
//! ```
//! use pagelock_memory::{
//!     Budget, ByteSize, Counted, HostBuffer, Limited, Pageable, Pooled, ledger,
//! };
//!
//! let budget = Budget::new("host", ByteSize::mib(64));
//! let host = Counted::new("buffers", Pooled::new(Limited::new(Pageable, budget)));
//! let buffer = HostBuffer::allocate(&host, 1 << 20)?;
//! assert!(HostBuffer::allocate(&host, 64 << 20).is_err());
//! println!("{}", ledger());
//! # Ok::<(), pagelock_memory::Error>(())
//! ```

// # Reading order
// `resource.rs` (the two traits), `budget.rs`, the layers `limited.rs`, `pooled/`, `counted.rs`, then `buffer/`; the
// sources `pageable.rs`, `page_locked.rs`, `mapped.rs` and the other files can be read alone. Tensors allocate from
// `default_host.rs`, or from the allocator of a scope (`host_allocator.rs`). `open_file.rs` opens files for all
// readers.
//
// # Invariants
// - A block's bytes are always initialized: sources zero them, pools reuse initialized blocks.
// - A budget's `used` is the sum of the live reservations of its subtree, and never grows above its limit.
// - No lock of this crate is held while a layer below allocates or frees, or while a thread waits for a device.
//
// # Files with `unsafe`
// `buffer/mod.rs` (slices of a block), `buffer/owner.rs` (a block of any type, stored inline), `pageable.rs` (the
// allocator), `allocator_cache.rs` (`malloc_trim`), `page_locked.rs` (mapping and locking), `mapped.rs` (mapping a
// file), `foreign.rs` (memory of another library); and `unsafe impl Block`, whose contract is in `resource.rs`, in
// `limited.rs`, `pooled/mod.rs`, `counted.rs` and `buffer/parts.rs`.

mod allocator_cache;
mod budget;
mod buffer;
mod byte_size;
mod ceiling;
mod counted;
mod counted_reader;
mod default_host;
mod error;
mod foreign;
mod holder;
mod host_allocator;
mod ledger;
mod limited;
#[cfg(all(test, loom))]
mod loom_tests;
mod mapped;
mod open_file;
#[cfg(target_os = "linux")]
mod page_locked;
mod pageable;
mod pooled;
mod resource;
mod size_classes;
mod sync;
#[doc(hidden)]
pub mod text;
mod trim;
mod watch;

pub use allocator_cache::HeapReservation;
pub use budget::{Budget, BudgetEntry, Reservation};
pub use buffer::{Abandoned, Completion, HostBuffer};
pub use byte_size::ByteSize;
pub use ceiling::{Ceiling, page_locked_ceiling};
#[doc(hidden)]
pub use counted::Report;
pub use counted::{Counted, CountedBlock, ResourceEntry, Stats, net_allocated_by_thread};
#[doc(hidden)]
pub use counted_reader::{CountedReader, ParsedMemory};
pub use default_host::{DefaultHost, default_host, host_budget};
pub use error::{Error, Held, OverBudget, Result};
pub use foreign::Foreign;
#[doc(hidden)]
pub use holder::Tally;
pub use holder::{Holder, HolderScope, holder};
pub use host_allocator::{HostAllocator, HostScope};
#[doc(hidden)]
pub use ledger::register_device;
pub use ledger::{Ledger, ledger};
pub use limited::{Limited, LimitedBlock};
pub use mapped::Mapped;
pub use open_file::open_regular;
#[cfg(target_os = "linux")]
pub use page_locked::{HugePages, Mlock, PageLocked, PageLockedBlock, PageLocker};
pub use pageable::{Pageable, PageableBlock};
pub use pooled::{Pooled, PooledBlock};
pub use resource::{ALIGN, Block, MemoryKind, PoolStats, Resource};
pub use size_classes::SizeClasses;
pub use trim::Trim;
pub use watch::watch_accesses;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
