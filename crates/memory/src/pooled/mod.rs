//! The layer that keeps freed blocks for the next allocation of a similar size.
//!
//! Sizes are rounded up to classes, eight per doubling, so that a block is at most 12.5 % longer than requested (or
//! than a cache line, or than the size to which the source rounds up). Large blocks, above 4 MiB, keep their exact
//! size, since 12.5 % of a gigabyte is too much to waste. A hit locks one mutex, pops one vector and allocates
//! nothing.
//!
//! `size_classes.rs` has the arithmetic, `idle.rs` the blocks that are kept.

mod idle;

use std::{
    fmt,
    ptr::NonNull,
    sync::{Arc, PoisonError, Weak},
    time::{Duration, Instant},
};

use self::idle::{CLASSES, Idle};
use crate::{
    Block, Budget, MemoryKind, PoolStats, Resource, Result, Trim,
    budget::Freeing,
    resource::debug_block,
    sync::{Condvar, Mutex, MutexGuard, lock},
};

/// Keeps the blocks of `R` when they are dropped and hands them out again.
///
/// Reused blocks have their old contents: initialized, but not zero. When `R` fails, the pool frees all idle blocks
/// and tries once more. It also frees them when a reservation waits for bytes of the [`Budget`] below. Idle blocks
/// live until they are [trimmed](Resource::trim) or the pool and its last block are dropped. Cheap to clone: all
/// clones are the same pool.
///
/// # Examples
/// ```
/// use pagelock_memory::{Pageable, Pooled, Resource};
///
/// let pool = Pooled::new(Pageable);
/// drop(pool.allocate(1_000)?);
/// drop(pool.allocate(1_010)?); // the same memory again
/// let stats = pool.stats();
/// assert_eq!((stats.hits, stats.misses, stats.idle_bytes), (1, 1, 1_024));
/// assert_eq!(pool.trim(), 1_024);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub struct Pooled<R: Resource> {
    shared: Arc<Shared<R>>,
}

struct Shared<R: Resource> {
    resource: R,
    idle: Mutex<Idle<R::Block>>, // guards the kept blocks and the counters
    returned: Condvar,           // signalled when a block is returned and a thread waits for one
}

impl<R: Resource> Pooled<R> {
    /// A pool of `resource`'s blocks, empty at first.
    pub fn new(resource: R) -> Self {
        let shared = Arc::new(Shared { resource, idle: Mutex::new(Idle::new()), returned: Condvar::new() });
        for budget in [shared.resource.budget(), shared.resource.ceiling()].into_iter().flatten() {
            let pool: Weak<Shared<R>> = Arc::downgrade(&shared);
            budget.add_pool(pool);
        }
        Self { shared }
    }

    /// Its idle bytes, hits and misses.
    pub fn stats(&self) -> PoolStats {
        self.shared.idle().stats()
    }

    /// The layer below.
    pub fn inner(&self) -> &R {
        &self.shared.resource
    }

    /// How many blocks were returned so far, for [`wait_for_return`](Self::wait_for_return).
    pub fn returns(&self) -> u64 {
        self.shared.idle().returns
    }

    /// Waits until more than `seen` blocks were returned, or for `timeout`. To wait after a refusal, read
    /// [`returns`](Self::returns) before allocating.
    ///
    /// # Examples
    /// ```
    /// use std::{thread, time::Duration};
    /// use pagelock_memory::{Budget, Limited, Pageable, Pooled, Resource};
    ///
    /// let slots = Pooled::new(Limited::new(Pageable, Budget::new("slots", 1_024)));
    /// let only = slots.allocate(1_024)?;
    /// let seen = slots.returns();
    /// assert!(slots.allocate(1_024).is_err());
    /// thread::spawn(move || drop(only));
    /// slots.wait_for_return(seen, Duration::from_secs(10));
    /// assert!(slots.allocate(1_024).is_ok());
    /// # Ok::<(), pagelock_memory::Error>(())
    /// ```
    pub fn wait_for_return(&self, seen: u64, timeout: Duration) {
        let start = Instant::now();
        let mut idle = self.shared.idle();
        while idle.returns <= seen {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            idle.waiters += 1;
            idle = self.shared.returned.wait_timeout(idle, left).unwrap_or_else(PoisonError::into_inner).0;
            idle.waiters -= 1;
        }
    }

    /// Allocates a block from the layer below. If that fails, frees the idle blocks and tries once more.
    fn allocate_new(&self, len_bytes: usize) -> Result<Box<R::Block>> {
        let mut allocated = self.shared.resource.allocate(len_bytes);
        if allocated.is_err() && self.shared.trim() > 0 {
            allocated = self.shared.resource.allocate(len_bytes);
        }
        let block = Box::new(allocated?);
        let mut idle = self.shared.idle();
        let surplus = idle.note_new(&*block);
        let _freeing = (!surplus.is_empty()).then(|| self.shared.start_freeing());
        drop(idle);
        drop(surplus); // not under the lock
        Ok(block)
    }
}

impl<R: Resource> Clone for Pooled<R> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<R: Resource> fmt::Debug for Pooled<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl<R: Resource> Resource for Pooled<R> {
    type Block = PooledBlock<R>;

    fn allocate(&self, len_bytes: usize) -> Result<PooledBlock<R>> {
        let rounded = self.shared.rounded(len_bytes);
        let idle = self.shared.idle().take(rounded);
        let block = match idle {
            Some(block) => block,
            None => self.allocate_new(rounded)?,
        };
        // The safety of `PooledBlock` must not depend on how a safe trait is implemented.
        assert!(block.len_bytes() >= len_bytes, "the resource below a pool returned a block that is too short");
        Ok(PooledBlock { block: Some(block), len_bytes, shared: self.shared.clone() })
    }

    fn trim(&self) -> usize {
        self.shared.trim() + self.shared.resource.trim()
    }

    fn footprint(&self, len_bytes: usize) -> usize {
        self.shared.rounded(len_bytes)
    }

    fn budget(&self) -> Option<&Budget> {
        self.shared.resource.budget()
    }

    fn ceiling(&self) -> Option<&Budget> {
        self.shared.resource.ceiling()
    }

    fn pool_stats(&self) -> Option<PoolStats> {
        Some(self.stats())
    }
}

impl<R: Resource> Shared<R> {
    fn idle(&self) -> MutexGuard<'_, Idle<R::Block>> {
        lock(&self.idle)
    }

    /// While the result lives, refused reservations wait for this thread, which frees blocks that it took out of `idle`.
    /// Called before the lock of `idle` is released: a thread that finds no idle blocks waits for these.
    fn start_freeing(&self) -> [Option<Freeing<'_>>; 2] {
        [self.resource.budget(), self.resource.ceiling()].map(|budget| budget.map(Budget::start_freeing))
    }

    /// Whether a reservation waits for bytes of a budget to which the blocks are charged.
    fn budget_has_waiters(&self) -> bool {
        let budgets = [self.resource.budget(), self.resource.ceiling()];
        budgets.into_iter().flatten().any(Budget::has_waiters)
    }

    /// How many bytes to request from the layer below for a block of `len_bytes`: a class, rounded up to that layer's
    /// footprint and again to a class.
    fn rounded(&self, len_bytes: usize) -> usize {
        let Some(class) = CLASSES.class_of(len_bytes) else { return self.resource.footprint(len_bytes) };
        let footprint = self.resource.footprint(CLASSES.len_bytes(class));
        CLASSES.class_of(footprint).map_or(footprint, |class| CLASSES.len_bytes(class))
    }
}

impl<R: Resource> Trim for Shared<R> {
    fn trim(&self) -> usize {
        let mut idle = self.idle();
        let taken = idle.take_all();
        let freed = taken.stats().idle_bytes;
        let _freeing = (freed > 0).then(|| self.start_freeing());
        drop(idle); // freeing takes locks of the layers below, so not under ours
        drop(taken);
        freed as usize
    }
}

/// A block of [`Pooled`]; dropping it returns the memory to the pool.
pub struct PooledBlock<R: Resource> {
    block: Option<Box<R::Block>>, // none only while it is dropped
    len_bytes: usize,
    shared: Arc<Shared<R>>,
}

impl<R: Resource> PooledBlock<R> {
    fn block(&self) -> &R::Block {
        self.block.as_ref().unwrap_or_else(|| unreachable!("a pooled block lost its memory before its drop"))
    }
}

// SAFETY: the inner block is owned, has at least `len_bytes` bytes (checked in `allocate`), and stays in its
// box until this block is dropped.
unsafe impl<R: Resource> Block for PooledBlock<R> {
    fn ptr(&self) -> NonNull<u8> {
        self.block().ptr()
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn kind(&self) -> MemoryKind {
        self.block().kind()
    }
}

impl<R: Resource> Drop for PooledBlock<R> {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        let mut idle = self.shared.idle();
        idle.note_return(&*block);
        // Checked under the lock: a reservation counts itself as waiting before it trims this pool. So either it is
        // seen here, or its trim finds the block.
        if self.shared.budget_has_waiters() {
            drop(idle); // freeing takes locks of the layers below, so not under ours
            drop(block);
            idle = self.shared.idle();
        } else {
            idle.keep(block);
        }
        idle.returns += 1;
        if idle.waiters > 0 {
            self.shared.returned.notify_all();
        }
    }
}

impl<R: Resource> fmt::Debug for PooledBlock<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_block("PooledBlock", self, f)
    }
}
