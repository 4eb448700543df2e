//! The layer that counts how much is in use and by whom, and reports it to the ledger.

use std::{cell::Cell, fmt, ptr::NonNull, sync::Arc};

use crate::{
    Block, Budget, Error, Held, Holder, MemoryKind, PoolStats, Reservation, Resource, Result,
    holder::{MAX_NAMED, Tally},
    ledger,
    resource::debug_block,
    sync::{Mutex, MutexGuard, lock},
};

/// Counts the blocks of `R` that are in use, and shows them in the [`ledger`](crate::ledger()).
///
/// Above a pool it counts the bytes in use; the pool's idle bytes are shown beside them. Cheap to clone: all
/// clones count together.
///
/// # Examples
/// ```
/// use pagelock_memory::{Counted, Pageable, Resource, ledger};
///
/// let counted = Counted::new("scratch", Pageable);
/// let block = counted.allocate(1_000)?;
/// assert_eq!(counted.stats().live_bytes, 1_000);
/// println!("{}", ledger());
/// drop(block);
/// assert_eq!((counted.stats().live_bytes, counted.stats().peak_bytes), (0, 1_000));
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub struct Counted<R> {
    shared: Arc<Shared<R>>,
}

struct Shared<R> {
    name: String,
    resource: R,
    counts: Mutex<Counts>, // guards all counters, so that they are read consistently
}

#[derive(Default)]
struct Counts {
    stats: Stats,
    held: Tally,
}

/// The counters of a [`Counted`] layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Blocks in use.
    pub live_blocks: u64,
    /// Bytes in use, as requested.
    pub live_bytes: u64,
    /// The most bytes in use at once.
    pub peak_bytes: u64,
    /// Blocks handed out since the start.
    pub total_blocks: u64,
    /// Bytes handed out since the start.
    pub total_bytes: u64,
}

impl<R: Resource> Counted<R> {
    /// Counts the blocks of `resource` under `name`.
    pub fn new(name: impl Into<String>, resource: R) -> Self {
        let shared = Arc::new(Shared { name: name.into(), resource, counts: Mutex::new(Counts::default()) });
        let weak = Arc::downgrade(&shared);
        ledger::register_resource(weak);
        Self { shared }
    }

    /// The counters, all of the same moment.
    pub fn stats(&self) -> Stats {
        self.shared.counts().stats
    }

    /// Who holds the live bytes, largest first; see [`holder`](crate::holder).
    pub fn holders(&self) -> Vec<Held> {
        self.shared.counts().held.holders()
    }

    /// The layer below.
    pub fn inner(&self) -> &R {
        &self.shared.resource
    }
}

impl<R> Clone for Counted<R> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<R: Resource> fmt::Debug for Counted<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, stats) = (&self.shared.name, self.stats());
        f.debug_struct("Counted").field("name", name).field("stats", &stats).finish_non_exhaustive()
    }
}

impl<R: Resource> Resource for Counted<R> {
    type Block = CountedBlock<R>;

    fn allocate(&self, len_bytes: usize) -> Result<CountedBlock<R>> {
        self.allocate_charged(len_bytes, &mut None)
    }

    fn allocate_charged(&self, len_bytes: usize, charged: &mut Option<Reservation>) -> Result<CountedBlock<R>> {
        let block = self.shared.resource.allocate_charged(len_bytes, charged);
        let block = block.map_err(|error| self.shared.name_holders(error))?;
        let holder = Holder::current();
        let len_bytes = block.len_bytes(); // what is subtracted when the block is dropped
        self.shared.counts().add(holder, len_bytes as u64);
        NET_ALLOCATED.set(NET_ALLOCATED.get() + len_bytes as i64);
        Ok(CountedBlock { block, holder, shared: self.shared.clone() })
    }

    fn trim(&self) -> usize {
        self.shared.resource.trim()
    }

    fn footprint(&self, len_bytes: usize) -> usize {
        self.shared.resource.footprint(len_bytes)
    }

    fn budget(&self) -> Option<&Budget> {
        self.shared.resource.budget()
    }

    fn ceiling(&self) -> Option<&Budget> {
        self.shared.resource.ceiling()
    }

    fn pool_stats(&self) -> Option<PoolStats> {
        self.shared.resource.pool_stats()
    }
}

impl<R> Shared<R> {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }

    /// Names the current holders in an error: a budget below a pool only knows who allocated the memory first.
    fn name_holders(&self, error: Error) -> Error {
        match error {
            Error::OverBudget(mut refusal) => {
                let mut holders = self.counts().held.holders();
                if !holders.is_empty() {
                    holders.truncate(MAX_NAMED);
                    refusal.holders = holders;
                }
                Error::OverBudget(refusal)
            }
            other => other,
        }
    }
}

impl Counts {
    fn add(&mut self, holder: Holder, bytes: u64) {
        let stats = &mut self.stats;
        stats.live_blocks += 1;
        stats.live_bytes += bytes;
        stats.peak_bytes = stats.peak_bytes.max(stats.live_bytes);
        stats.total_blocks += 1;
        stats.total_bytes += bytes;
        self.held.add(holder, bytes);
    }

    fn sub(&mut self, holder: Holder, bytes: u64) {
        self.stats.live_blocks -= 1;
        self.stats.live_bytes -= bytes;
        self.held.sub(holder, bytes);
    }
}

thread_local! {
    static NET_ALLOCATED: Cell<i64> = const { Cell::new(0) };
}

/// The bytes of counted blocks that this thread allocated so far, minus those of blocks that it dropped. The difference
/// before and after some work is how much memory that work still holds.
///
/// # Examples
/// ```
/// use pagelock_memory::{HostBuffer, default_host, net_allocated_by_thread};
///
/// let before = net_allocated_by_thread();
/// let kept = HostBuffer::allocate(default_host(), 1_000)?;
/// drop(HostBuffer::allocate(default_host(), 5_000)?);
/// assert_eq!(net_allocated_by_thread() - before, 1_000);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub fn net_allocated_by_thread() -> i64 {
    NET_ALLOCATED.get()
}

/// A block of [`Counted`]: in use until it is dropped.
pub struct CountedBlock<R: Resource> {
    block: R::Block,
    holder: Holder,
    shared: Arc<Shared<R>>,
}

// SAFETY: everything is the inner block's, which this one owns.
unsafe impl<R: Resource> Block for CountedBlock<R> {
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

impl<R: Resource> fmt::Debug for CountedBlock<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_block("CountedBlock", self, f)
    }
}

impl<R: Resource> Drop for CountedBlock<R> {
    fn drop(&mut self) {
        self.shared.counts().sub(self.holder, self.block.len_bytes() as u64);
        let _ = NET_ALLOCATED.try_with(|net| net.set(net.get() - self.block.len_bytes() as i64));
    }
}

/// One counted resource as the ledger shows it; see [`ledger`](crate::ledger()).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResourceEntry {
    /// The name given to [`Counted::new`].
    pub name: String,
    /// Its counters.
    pub stats: Stats,
    /// Who holds the live bytes, largest first.
    pub holders: Vec<Held>,
    /// The pool below, if there is one.
    pub pool: Option<PoolStats>,
}

impl ResourceEntry {
    /// An entry for the memory of a device; not part of the public interface.
    #[doc(hidden)]
    pub fn of_device(name: String, live: u64, peak: u64, blocks: u64, held: &Tally, pool: PoolStats) -> Self {
        let stats = Stats { live_blocks: blocks, live_bytes: live, peak_bytes: peak, ..Stats::default() };
        ResourceEntry { name, stats, holders: held.holders(), pool: Some(pool) }
    }
}

/// A counted resource of any type, or a device.
pub trait Report: Send + Sync {
    /// Its counters now.
    fn entry(&self) -> ResourceEntry;
}

impl<R: Resource> Report for Shared<R> {
    fn entry(&self) -> ResourceEntry {
        let (name, pool) = (self.name.clone(), self.resource.pool_stats());
        let counts = self.counts();
        let (stats, holders) = (counts.stats, counts.held.holders());
        ResourceEntry { name, stats, holders, pool }
    }
}
