//! Budgets: how many bytes a group of buffers may hold.
//!
//! A [`Budget`] only counts; [`Limited`](crate::Limited) ties counting to allocating. Budgets form trees: what a
//! child reserves counts at every ancestor too, and the tightest of them decides.
//!
//! Invariant: `used` of a budget is the sum of the live [`Reservation`]s of its subtree and never above its limit,
//! except after [`Budget::set_limit`] lowered the limit below the bytes held.
//!
//! One lock guards the counters of a whole tree, so a reservation is checked and added on all ancestors in one
//! step: no reservation is refused because of a neighbor's reservation that was about to be rolled back. Pools sit above
//! budgets, so the lock is taken when memory is allocated, not when it is reused.

use std::{
    fmt,
    sync::{Arc, PoisonError, Weak},
    time::{Duration, Instant},
};

use crate::{
    ByteSize, Error, Held, Holder, OverBudget, Result,
    holder::{MAX_NAMED, Tally},
    ledger,
    sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, lock},
    trim::{Trim, Trimming},
};

/// The longest wait of a refused reservation for threads that free idle blocks. It is limited because freeing
/// page-locked memory may wait for a host function, and that may be what reserves.
const LONGEST_FREEING: Duration = Duration::from_secs(1);

const DEFAULT_ADVICE: &str = "raise the limit or drop buffers first";

/// A named ceiling on bytes, alone or as part of a tree. Cheap to clone: all clones are the same budget.
///
/// # Examples
/// ```
/// use pagelock_memory::Budget;
///
/// let host = Budget::new("host", 1_000);
/// let loader = host.child("loader", 800);
/// let held = loader.reserve(700)?;
/// assert_eq!(host.left().0, 300);
///
/// let refusal = host.reserve(400).unwrap_err();
/// assert_eq!(
///     refusal.to_string(),
///     "cannot take 400 B: budget `host` has 300 B left of 1000 B; largest holders: `loader` 700 B; \
///      raise the limit or drop buffers first"
/// );
/// drop(held);
/// assert_eq!((host.used().0, host.peak().0), (0, 700));
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
#[derive(Clone)]
pub struct Budget {
    node: Arc<Node>,
}

/// One budget: its slot in the tree's table. Children and reservations keep it alive.
struct Node {
    tree: Arc<BudgetTree>,
    slot: usize,
    parent: Option<Arc<Node>>, // keeps the ancestors' slots alive; none during the drop
}

pub(crate) struct BudgetTree {
    table: Mutex<Table>, // guards every counter of the tree
    freed: Condvar,      // signalled when a reservation waits, and bytes are released or a thread has freed idle blocks
    // How many reservations wait. Relaxed: a waiter counts itself before it locks the `table` or pool that the reader
    // holds.
    waiters: AtomicUsize,
    pools: Mutex<Vec<Weak<dyn Trim>>>, // whose idle blocks hold bytes of this tree
}

#[derive(Default)]
struct Table {
    rows: Vec<Option<Row>>, // by slot; the root is slot 0, dropped budgets leave a free slot
    n_freeing: usize,       // threads that free idle blocks
}

struct Row {
    name: String,
    advice: String,
    parent: Option<usize>,
    limit: u64,
    used: u64,
    peak: u64,
    direct: Tally, // what was reserved on this budget itself, by holder
}

impl Budget {
    /// A budget without a parent.
    pub fn new(name: impl Into<String>, limit: impl Into<ByteSize>) -> Self {
        let budget = Self::add(Arc::new(BudgetTree::new()), None, name.into(), limit.into());
        ledger::register_budgets(&budget.node.tree);
        budget
    }

    /// A budget inside this one: what it holds counts here too.
    pub fn child(&self, name: impl Into<String>, limit: impl Into<ByteSize>) -> Self {
        Self::add(self.node.tree.clone(), Some(self.node.clone()), name.into(), limit.into())
    }

    /// The same budget, whose errors end with `advice`: text that says what the user can change.
    pub fn with_advice(self, advice: impl Into<String>) -> Self {
        self.table().row_mut(self.node.slot).advice = advice.into();
        self
    }

    fn add(tree: Arc<BudgetTree>, parent: Option<Arc<Node>>, name: String, limit: ByteSize) -> Self {
        let row = Row {
            name,
            advice: DEFAULT_ADVICE.to_owned(),
            parent: parent.as_ref().map(|parent| parent.slot),
            limit: limit.0,
            used: 0,
            peak: 0,
            direct: Tally::default(),
        };
        let slot = tree.lock().insert(row);
        Self { node: Arc::new(Node { tree, slot, parent }) }
    }

    /// Reserves `len_bytes` in this budget and in all of its ancestors, or in none.
    ///
    /// Before it fails, the pools of this tree release the bytes that they hold but do not use. If other threads are
    /// releasing such bytes, this waits for them, up to a second.
    ///
    /// # Errors
    /// [`Error::OverBudget`] if one of these budgets has fewer bytes left.
    pub fn reserve(&self, len_bytes: u64) -> Result<Reservation> {
        self.reserve_with_overhead(len_bytes, 0)
    }

    /// Like [`reserve`](Self::reserve), with `overhead` extra bytes. An error does not add them to the bytes asked for,
    /// but subtracts them from the bytes left.
    pub(crate) fn reserve_with_overhead(&self, asked_bytes: u64, overhead: u64) -> Result<Reservation> {
        self.reserve_within(None, asked_bytes.saturating_add(overhead)).map_err(|mut refusal| {
            refusal.asked = ByteSize(asked_bytes);
            refusal.left = ByteSize(refusal.left.0.saturating_sub(overhead));
            Error::OverBudget(refusal)
        })
    }

    /// Like [`Budget::reserve`], but waits for at most `timeout` until enough bytes are released.
    ///
    /// While a reservation waits, pools free dropped blocks instead of keeping them. There is no queue: smaller
    /// requests can overtake a large one.
    ///
    /// # Examples
    /// ```
    /// use std::{thread, time::Duration};
    /// use pagelock_memory::Budget;
    ///
    /// let queue = Budget::new("queue", 100);
    /// let first = queue.reserve(80)?;
    /// thread::spawn(move || drop(first));
    /// let second = queue.reserve_timeout(80, Duration::from_secs(10))?; // waits for the other thread
    /// assert_eq!(second.len_bytes(), 80);
    /// # Ok::<(), pagelock_memory::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`] after `timeout`, or at once if `len_bytes` is above a limit and can never fit.
    pub fn reserve_timeout(&self, len_bytes: u64, timeout: Duration) -> Result<Reservation> {
        self.reserve_within(Some(timeout), len_bytes).map_err(Error::OverBudget)
    }

    /// Reserves; if that is refused, trims the pools and waits for at most `timeout`. Without a timeout, it waits only
    /// for threads that free idle blocks.
    fn reserve_within(&self, timeout: Option<Duration>, len_bytes: u64) -> Result<Reservation, Box<OverBudget>> {
        let (tree, start) = (&*self.node.tree, Instant::now());
        match self.reserve_in(&mut self.table(), len_bytes) {
            Err(refusal) if refusal.could_fit() => {}
            result => return result,
        }
        // Until this is decided, pools do not keep blocks that other threads drop after the trim.
        let _waiting = Waiting::start(tree);
        tree.trim_pools();
        let mut table = self.table();
        loop {
            let mut refusal = match self.reserve_in(&mut table, len_bytes) {
                Err(refusal) => refusal,
                reserved => return reserved,
            };
            let longest = timeout.unwrap_or(if table.n_freeing > 0 { LONGEST_FREEING } else { Duration::ZERO });
            let left = longest.saturating_sub(start.elapsed());
            if left.is_zero() || !refusal.could_fit() {
                refusal.waited = timeout;
                return Err(refusal);
            }
            table = tree.freed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn reserve_in(&self, table: &mut Table, len_bytes: u64) -> Result<Reservation, Box<OverBudget>> {
        let holder = Holder::current();
        table.reserve(self.node.slot, len_bytes, holder)?;
        Ok(Reservation { node: self.node.clone(), len_bytes, holder, second: None })
    }

    /// Like [`reserve`](Self::reserve), but neither trims pools nor waits. For code that holds a lock which a pool may
    /// take: after a refusal it unlocks, calls [`trim_pools`](Self::trim_pools), and tries again.
    ///
    /// # Examples
    /// ```
    /// let budget = pagelock_memory::Budget::new("host", 1_000);
    /// let held = budget.try_reserve(700)?;
    /// assert!(budget.try_reserve(700).is_err());
    /// # Ok::<(), pagelock_memory::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`] if one of these budgets has fewer bytes left.
    pub fn try_reserve(&self, len_bytes: u64) -> Result<Reservation> {
        self.reserve_in(&mut self.table(), len_bytes).map_err(Error::OverBudget)
    }

    /// Makes the pools of this tree release the bytes that they hold but do not use.
    pub fn trim_pools(&self) {
        self.node.tree.trim_pools();
    }

    /// Whether this is `other`, or a budget inside it.
    ///
    /// # Examples
    /// ```
    /// use pagelock_memory::Budget;
    ///
    /// let host = Budget::new("host", 1_000);
    /// assert!(host.child("loader", 800).is_within(&host));
    /// assert!(!host.is_within(&Budget::new("other", 1_000)));
    /// ```
    pub fn is_within(&self, other: &Budget) -> bool {
        let is_one_tree = Arc::ptr_eq(&self.node.tree, &other.node.tree);
        is_one_tree && self.table().ancestors(self.node.slot).any(|slot| slot == other.node.slot)
    }

    /// Whether a reservation waits for bytes of this tree.
    pub(crate) fn has_waiters(&self) -> bool {
        self.node.tree.has_waiters()
    }

    /// While the result lives, refused reservations wait for this thread, which frees idle blocks.
    pub(crate) fn start_freeing(&self) -> Freeing<'_> {
        self.table().n_freeing += 1;
        Freeing(&self.node.tree)
    }

    /// Registers `pool`, which is trimmed before this budget or another one of its tree refuses a reservation. It stays
    /// registered as long as it lives.
    pub fn add_pool(&self, pool: Weak<dyn Trim>) {
        let mut pools = lock(&self.node.tree.pools);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(pool);
    }

    /// Changes the limit. While more bytes are held than the new limit, all new reservations are refused.
    pub fn set_limit(&self, limit: impl Into<ByteSize>) {
        self.table().row_mut(self.node.slot).limit = limit.into().0;
        self.node.tree.freed.notify_all();
    }

    /// The name it was made with.
    pub fn name(&self) -> String {
        self.table().row(self.node.slot).name.clone()
    }

    /// Bytes held now, by this budget and those inside it.
    pub fn used(&self) -> ByteSize {
        ByteSize(self.table().row(self.node.slot).used)
    }

    /// The most bytes that were ever held at once.
    pub fn peak(&self) -> ByteSize {
        ByteSize(self.table().row(self.node.slot).peak)
    }

    /// The limit.
    pub fn limit(&self) -> ByteSize {
        ByteSize(self.table().row(self.node.slot).limit)
    }

    /// The bytes left in this budget alone; an ancestor may have fewer left.
    pub fn left(&self) -> ByteSize {
        ByteSize(self.table().row(self.node.slot).left())
    }

    /// Who holds the used bytes, largest first: [holders](crate::holder) and the budgets inside this one.
    pub fn holders(&self) -> Vec<Held> {
        self.table().held(self.node.slot)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.node.tree.lock()
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget(`{}`, {} of {} used)", self.name(), self.used(), self.limit())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tree.lock().rows[self.slot] = None;
        // A loop: dropping a long line of budgets, each inside the one before, would take much stack.
        let mut parent = self.parent.take();
        while let Some(mut dropped) = parent.and_then(Arc::into_inner) {
            parent = dropped.parent.take();
        }
    }
}

/// Bytes reserved in a [`Budget`]; dropping the reservation releases them.
///
/// # Examples
/// Charging memory that something else allocates:
/// ```
/// use pagelock_memory::{Budget, Reservation};
///
/// struct Cache { entries: Vec<u64>, _charged: Reservation }
///
/// let budget = Budget::new("caches", 10_000);
/// let charged = budget.reserve(8 * 1_000)?;
/// let cache = Cache { entries: vec![0; 1_000], _charged: charged };
/// assert_eq!(budget.used().0, 8_000);
/// drop(cache);
/// assert_eq!(budget.used().0, 0);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
#[must_use = "dropping a reservation releases its bytes"]
pub struct Reservation {
    node: Arc<Node>,
    len_bytes: u64,
    holder: Holder,
    second: Option<Box<Reservation>>,
}

impl Reservation {
    /// The number of reserved bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The same reservation, which also holds `other`, one in another budget, until it is dropped.
    pub(crate) fn and(mut self, other: Reservation) -> Self {
        let second = match self.second.take() {
            Some(second) => second.and(other),
            None => other,
        };
        self.second = Some(Box::new(second));
        self
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} B)", self.len_bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        drop(self.second.take()); // before the lock: it may be of the same tree
        let mut table = self.node.tree.lock();
        table.release(self.node.slot, self.len_bytes, self.holder);
        if self.node.tree.has_waiters() {
            self.node.tree.freed.notify_all();
        }
    }
}

impl BudgetTree {
    fn new() -> Self {
        Self {
            table: Mutex::new(Table::default()),
            freed: Condvar::new(),
            waiters: AtomicUsize::new(0),
            pools: Mutex::new(Vec::new()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    fn trim_pools(&self) {
        let Some(_trimming) = Trimming::start() else { return };
        // Trimming releases bytes of this tree, so none of its locks may be held.
        let pools: Vec<_> = lock(&self.pools).iter().filter_map(Weak::upgrade).collect();
        for pool in pools {
            pool.trim();
        }
    }
}

/// While this lives, one more thread counts as waiting for bytes of a tree.
struct Waiting<'a>(&'a BudgetTree);

impl<'a> Waiting<'a> {
    fn start(tree: &'a BudgetTree) -> Self {
        tree.waiters.fetch_add(1, Ordering::Relaxed);
        Self(tree)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

/// While this lives, one more thread frees idle blocks of a tree.
pub(crate) struct Freeing<'a>(&'a BudgetTree);

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        self.0.lock().n_freeing -= 1;
        self.0.freed.notify_all();
    }
}

impl Table {
    fn insert(&mut self, row: Row) -> usize {
        let free = self.rows.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.rows.len());
        if slot == self.rows.len() {
            self.rows.push(None);
        }
        self.rows[slot] = Some(row);
        slot
    }

    fn row(&self, slot: usize) -> &Row {
        self.rows[slot].as_ref().unwrap_or_else(|| unreachable!("slot {slot} outlives its budget"))
    }

    fn row_mut(&mut self, slot: usize) -> &mut Row {
        self.rows[slot].as_mut().unwrap_or_else(|| unreachable!("slot {slot} outlives its budget"))
    }

    fn ancestors(&self, slot: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(slot), |&slot| self.row(slot).parent)
    }

    /// Checks every ancestor, then adds to every ancestor.
    fn reserve(&mut self, slot: usize, bytes: u64, holder: Holder) -> Result<(), Box<OverBudget>> {
        let too_small = self.ancestors(slot).find(|&slot| self.row(slot).limit < bytes);
        let too_full = || self.ancestors(slot).find(|&slot| self.row(slot).left() < bytes);
        if let Some(tight) = too_small.or_else(too_full) {
            return Err(self.refusal(slot, tight, bytes));
        }
        let mut next = Some(slot);
        while let Some(slot) = next {
            let row = self.row_mut(slot);
            row.used += bytes;
            row.peak = row.peak.max(row.used);
            next = row.parent;
        }
        self.row_mut(slot).direct.add(holder, bytes);
        Ok(())
    }

    fn release(&mut self, slot: usize, bytes: u64, holder: Holder) {
        self.row_mut(slot).direct.sub(holder, bytes);
        let mut next = Some(slot);
        while let Some(slot) = next {
            let row = self.row_mut(slot);
            row.used -= bytes;
            next = row.parent;
        }
    }

    fn refusal(&self, asked_of: usize, tight: usize, bytes: u64) -> Box<OverBudget> {
        let row = self.row(tight);
        let mut holders = self.held(tight);
        holders.truncate(MAX_NAMED);
        Box::new(OverBudget {
            asked: ByteSize(bytes),
            asked_of: self.row(asked_of).name.clone(),
            budget: row.name.clone(),
            left: ByteSize(row.left()),
            limit: ByteSize(row.limit),
            holders,
            waited: None,
            advice: row.advice.clone(),
        })
    }

    fn held(&self, slot: usize) -> Vec<Held> {
        let inside = self.rows.iter().flatten().filter(|row| row.parent == Some(slot) && row.used > 0);
        let inside = inside.map(|row| Held { name: row.name.clone(), bytes: ByteSize(row.used) });
        let mut held: Vec<_> = self.row(slot).direct.held().into_iter().chain(inside).collect();
        held.sort_by_key(|held| std::cmp::Reverse(held.bytes));
        held
    }
}

impl OverBudget {
    /// Whether the request could fit if all bytes were released. `Table::reserve` names a budget whose limit is too
    /// small before one that is full.
    fn could_fit(&self) -> bool {
        self.asked <= self.limit
    }
}

impl Row {
    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// One budget as the ledger shows it; see [`ledger`](crate::ledger()).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BudgetEntry {
    /// Its name.
    pub name: String,
    /// How many budgets are above it.
    pub depth: usize,
    /// Bytes held now.
    pub used: ByteSize,
    /// The most ever held at once.
    pub peak: ByteSize,
    /// The limit.
    pub limit: ByteSize,
    /// Who holds the used bytes, largest first.
    pub holders: Vec<Held>,
}

impl BudgetTree {
    /// The tree's budgets, each followed by those inside it.
    pub(crate) fn entries(&self) -> Vec<BudgetEntry> {
        let table = self.lock();
        let mut entries = Vec::new();
        let mut stack: Vec<_> = table.children(None);
        while let Some(slot) = stack.pop() {
            let row = table.row(slot);
            entries.push(BudgetEntry {
                name: row.name.clone(),
                depth: table.ancestors(slot).count() - 1,
                used: ByteSize(row.used),
                peak: ByteSize(row.peak),
                limit: ByteSize(row.limit),
                holders: table.held(slot),
            });
            stack.extend(table.children(Some(slot)));
        }
        entries
    }
}

impl Table {
    /// Slots of the budgets directly inside `parent`, last first.
    fn children(&self, parent: Option<usize>) -> Vec<usize> {
        let is_child = |slot: &usize| self.rows[*slot].as_ref().is_some_and(|row| row.parent == parent);
        (0..self.rows.len()).rev().filter(is_child).collect()
    }
}
