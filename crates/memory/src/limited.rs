//! The layer that charges allocations to a budget.

use std::ptr::NonNull;

use crate::{Block, Budget, MemoryKind, PoolStats, Reservation, Resource, Result};

/// Allocates from `R` only what a [`Budget`] allows.
///
/// Below a pool it limits the RAM that is really allocated; above a pool it limits one user's share.
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
    overhead_bytes: u64,     // charged with each block
    ceiling: Option<Budget>, // a second budget that is charged
}

impl<R: Resource> Limited<R> {
    /// Charges the blocks of `resource` to `budget`.
    pub fn new(resource: R, budget: Budget) -> Self {
        Self { resource, budget, overhead_bytes: 0, ceiling: None }
    }

    /// The same layer, which charges `len_bytes` more for each block, for the overhead of the allocator and of the
    /// block's owners. For a small block, the overhead is larger than the block itself.
    ///
    /// # Examples
    /// ```
    /// use pagelock_memory::{Budget, Limited, Pageable, Resource};
    ///
    /// let budget = Budget::new("host", 1_000);
    /// let limited = Limited::new(Pageable, budget.clone()).charging_beside(100);
    /// let _block = limited.allocate(10)?;
    /// assert_eq!(budget.used().0, 110);
    /// # Ok::<(), pagelock_memory::Error>(())
    /// ```
    pub fn charging_beside(self, len_bytes: u64) -> Self {
        Self { overhead_bytes: len_bytes, ..self }
    }

    /// The same layer, which charges `ceiling` too, unless the budget is inside it. So memory with a separate budget
    /// can count in the budget of the process as well.
    ///
    /// # Examples
    /// ```
    /// use pagelock_memory::{Budget, Limited, Pageable, Resource};
    ///
    /// let (mine, host) = (Budget::new("mine", 1_000), Budget::new("host", 500));
    /// let limited = Limited::new(Pageable, mine.clone()).under(&host);
    /// let _block = limited.allocate(400)?;
    /// assert_eq!((mine.used().0, host.used().0), (400, 400));
    /// assert!(limited.allocate(400).is_err());
    /// # Ok::<(), pagelock_memory::Error>(())
    /// ```
    pub fn under(self, ceiling: &Budget) -> Self {
        let ceiling = (!self.budget.is_within(ceiling)).then(|| ceiling.clone());
        Self { ceiling, ..self }
    }

    /// The layer below.
    pub fn inner(&self) -> &R {
        &self.resource
    }
}

impl<R: Resource> Resource for Limited<R> {
    type Block = LimitedBlock<R::Block>;

    fn allocate(&self, len_bytes: usize) -> Result<Self::Block> {
        self.allocate_charged(len_bytes, &mut None)
    }

    fn allocate_charged(&self, len_bytes: usize, charged: &mut Option<Reservation>) -> Result<Self::Block> {
        let footprint = self.footprint(len_bytes) as u64;
        let mut reservation = self.budget.reserve_with_overhead(footprint, self.overhead_bytes)?;
        if let Some(ceiling) = &self.ceiling {
            reservation = reservation.and(ceiling.reserve_with_overhead(footprint, self.overhead_bytes)?);
        }
        let mut reservation = Some(match charged.take() {
            Some(charged) => reservation.and(charged),
            None => reservation,
        });
        let block = self.resource.allocate_charged(len_bytes, &mut reservation)?;
        Ok(LimitedBlock { block, _reservation: reservation })
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

    fn ceiling(&self) -> Option<&Budget> {
        self.ceiling.as_ref()
    }

    fn pool_stats(&self) -> Option<PoolStats> {
        self.resource.pool_stats()
    }
}

/// A block of [`Limited`]: the inner block and its reservation, dropped in this order. The inner block may have taken
/// the reservation.
#[derive(Debug)]
pub struct LimitedBlock<B> {
    block: B,
    _reservation: Option<Reservation>,
}

// SAFETY: every method forwards to the inner block, which this block owns.
unsafe impl<B: Block> Block for LimitedBlock<B> {
    fn ptr(&self) -> NonNull<u8> {
        self.block.ptr()
    }

    fn len_bytes(&self) -> usize {
        self.block.len_bytes()
    }

    fn kind(&self) -> MemoryKind {
        self.block.kind()
    }
}
