//! The ledger: who holds how much, of which budget, with peaks.
//!
//! Every [`Budget`](crate::Budget) tree and every [`Counted`](crate::Counted) resource registers itself here with a
//! weak reference, so what is dropped vanishes from the ledger.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use crate::{
    ByteSize,
    budget::{BudgetEntry, Tree},
    counted::{Report, ResourceEntry},
    holder::largest,
};

/// All budgets and counted resources of the process, as they are now. Print it.
///
/// # Examples
/// ```
/// use pagelock_memory::{HostBuffer, default_host, holder, ledger};
///
/// let _scope = holder("weights");
/// let buffer = HostBuffer::allocate(default_host(), 1 << 20)?;
/// println!("{}", ledger());
/// assert!(ledger().live_bytes() >= 1 << 20);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub fn ledger() -> Ledger {
    let (budgets, resources) = {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let budgets: Vec<_> = known.budgets.iter().filter_map(Weak::upgrade).collect();
        let resources: Vec<_> = known.resources.iter().filter_map(Weak::upgrade).collect();
        (budgets, resources)
    };
    Ledger {
        budgets: budgets.iter().flat_map(|tree| tree.entries()).collect(),
        resources: resources.iter().map(|resource| resource.entry()).collect(),
    }
}

/// What [`ledger`](crate::ledger()) found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ledger {
    /// Budgets, each followed by those inside it.
    pub budgets: Vec<BudgetEntry>,
    /// Counted resources.
    pub resources: Vec<ResourceEntry>,
}

impl Ledger {
    /// Bytes in use, summed over all counted resources.
    pub fn live_bytes(&self) -> u64 {
        self.resources.iter().map(|resource| resource.stats.live_bytes).sum()
    }

    /// Bytes kept by pools for later, summed over all counted resources.
    pub fn idle_bytes(&self) -> u64 {
        self.resources.iter().filter_map(|resource| resource.pool).map(|pool| pool.idle_bytes).sum()
    }
}

struct Known {
    budgets: Vec<Weak<Tree>>,
    resources: Vec<Weak<dyn Report>>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { budgets: Vec::new(), resources: Vec::new() });

pub(crate) fn register_budgets(tree: &Arc<Tree>) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.budgets.retain(|tree| tree.strong_count() > 0);
    known.budgets.push(Arc::downgrade(tree));
}

pub(crate) fn register_resource(resource: Weak<dyn Report>) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.resources.retain(|resource| resource.strong_count() > 0);
    known.resources.push(resource);
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<24} {:>10} {:>10} {:>10}  largest holders", "budget", "used", "peak", "limit")?;
        for entry in &self.budgets {
            let name = format!("{:indent$}{}", "", entry.name, indent = 2 * entry.depth);
            write!(f, "{name:<24} {:>10} {:>10} {:>10}  ", entry.used, entry.peak, entry.limit)?;
            write_holders(f, &entry.holders)?;
        }
        write!(f, "\n{:<24} {:>10} {:>10} {:>10}", "resource", "live", "peak", "blocks")?;
        writeln!(f, " {:>10} {:>8} {:>8}  largest holders", "idle", "hits", "misses")?;
        for entry in &self.resources {
            let (peak, pool) = (ByteSize(entry.stats.peak_bytes), entry.pool.unwrap_or_default());
            write!(f, "{:<24} {:>10} {peak:>10} {:>10}", entry.name, entry.live(), entry.stats.live_blocks)?;
            write!(f, " {:>10} {:>8} {:>8}  ", ByteSize(pool.idle_bytes), pool.hits, pool.misses)?;
            write_holders(f, &entry.holders)?;
        }
        Ok(())
    }
}

fn write_holders(f: &mut fmt::Formatter<'_>, holders: &[crate::Held]) -> fmt::Result {
    let largest: Vec<_> = largest(holders.to_vec()).iter().map(ToString::to_string).collect();
    writeln!(f, "{}", largest.join(", "))
}
