//! Host memory with ceilings: budgets, pools, page-locked and mapped bytes.
//!
//! Files with `unsafe`: `buffer.rs`, `pageable.rs`, and the `unsafe impl Block` of `limited.rs`, `pooled.rs` and
//! `counted.rs`.

mod budget;
mod buffer;
mod byte_size;
mod ceiling;
mod counted;
mod error;
mod holder;
mod host;
mod ledger;
mod limited;
mod mapped;
#[cfg(target_os = "linux")]
mod page_locked;
mod pageable;
mod pooled;
mod resource;
mod sync;

pub use budget::{Budget, BudgetEntry, Reservation};
pub use buffer::{Completion, HostBuffer};
pub use byte_size::ByteSize;
pub use ceiling::{Ceiling, page_locked_ceiling};
pub use counted::{Counted, CountedBlock, ResourceEntry, Stats};
pub use error::{Error, Held, OverBudget, Result};
pub use holder::{Holder, HolderScope, holder};
pub use host::{DefaultHost, default_host, host_budget};
pub use ledger::{Ledger, ledger};
pub use limited::{Limited, LimitedBlock};
pub use mapped::Mapped;
#[cfg(target_os = "linux")]
pub use page_locked::{HugePages, Mlock, PageLocked, PageLockedBlock, PageLocker};
pub use pageable::{Pageable, PageableBlock};
pub use pooled::{Pooled, PooledBlock};
pub use resource::{ALIGN, Block, Kind, PoolStats, Resource};
