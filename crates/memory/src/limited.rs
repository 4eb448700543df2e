//! The layer that ties a budget to allocating.

use std::ptr::NonNull;

use crate::{Block, Budget, Kind, PoolStats, Reservation, Resource, Result};

/// Allocates from `R` only what a [`Budget`] allows.
///
/// Below a pool it bounds the RAM really taken; above one it is a consumer's share.
///
/// # Examples
/// ```
/// use pagelock_memory::{Budget, Limited, Pageable, Resource};
///
/// let limited = Limited::new(Pageable, Budget::new("host", 1_000));
/// let block = limited.allocate(900)?;
/// assert!(limited.allocate(200).is_err());
/// drop(block);
/// assert!(limited.allocate(200).is_ok());
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limited<R> {
    resource: R,
    budget: Budget,
}

impl<R: Resource> Limited<R> {
    /// Charges what `resource` hands out to `budget`.
    pub fn new(resource: R, budget: Budget) -> Self {
        Self { resource, budget }
    }

    /// The layer below.
    pub fn inner(&self) -> &R {
        &self.resource
    }
}

impl<R: Resource> Resource for Limited<R> {
    type Block = LimitedBlock<R::Block>;

    fn allocate(&self, len_bytes: usize) -> Result<Self::Block> {
        let reservation = self.budget.reserve(self.footprint(len_bytes) as u64)?;
        Ok(LimitedBlock { block: self.resource.allocate(len_bytes)?, _reservation: reservation })
    }

    fn trim(&self) -> usize {
        self.resource.trim()
    }

    fn footprint(&self, len_bytes: usize) -> usize {
        self.resource.footprint(len_bytes)
    }

    fn budget(&self) -> Option<&Budget> {
        Some(&self.budget)
    }

    fn pool_stats(&self) -> Option<PoolStats> {
        self.resource.pool_stats()
    }
}

/// A block of [`Limited`]: the block below and the reservation that pays for it, given back in that order.
#[derive(Debug)]
pub struct LimitedBlock<B> {
    block: B,
    _reservation: Reservation,
}

// SAFETY: everything is the inner block's, which this one owns.
unsafe impl<B: Block> Block for LimitedBlock<B> {
    fn ptr(&self) -> NonNull<u8> {
        self.block.ptr()
    }

    fn len_bytes(&self) -> usize {
        self.block.len_bytes()
    }

    fn kind(&self) -> Kind {
        self.block.kind()
    }
}
