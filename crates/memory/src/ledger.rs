//! The ledger: who holds how much, of which budget, with peaks.
//!
//! Every [`Budget`](crate::Budget) tree, every [`Counted`](crate::Counted) resource and every device registers itself
//! here with a weak reference, so it disappears from the ledger when it is dropped.

use std::{
    fmt,
    sync::{Arc, Mutex, Weak},
};

use crate::{
    ByteSize, Held, PoolStats,
    budget::{BudgetEntry, BudgetTree},
    counted::{Report, ResourceEntry},
    holder::MAX_NAMED,
    sync::lock_std,
};

/// All budgets, counted resources and devices of the process, as they are now. Printed, it explains most refused
/// allocations.
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
    fn alive<T: ?Sized>(known: &[Weak<T>]) -> Vec<Arc<T>> {
        known.iter().filter_map(Weak::upgrade).collect()
    }
    let (budgets, resources, devices) = {
        let known = lock_std(&KNOWN);
        (alive(&known.budgets), alive(&known.resources), alive(&known.devices))
    };
    Ledger {
        devices: devices.iter().map(|device| device.entry()).collect(),
        budgets: budgets.iter().flat_map(|tree| tree.entries()).collect(),
        resources: resources.iter().map(|resource| resource.entry()).collect(),
    }
}

/// A snapshot, made by [`ledger`](crate::ledger()).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ledger {
    /// Budgets, each followed by those inside it.
    pub budgets: Vec<BudgetEntry>,
    /// Counted resources.
    pub resources: Vec<ResourceEntry>,
    /// The memory of devices, which are not among the resources: their bytes are not the host's.
    pub devices: Vec<ResourceEntry>,
}

impl Ledger {
    /// Bytes in use, summed over all counted resources.
    pub fn live_bytes(&self) -> u64 {
        self.resources.iter().map(|resource| resource.stats.live_bytes).sum()
    }

    /// Bytes of idle blocks in pools, summed over all counted resources.
    pub fn idle_bytes(&self) -> u64 {
        self.resources.iter().filter_map(|resource| resource.pool).map(|pool| pool.idle_bytes).sum()
    }
}

struct Known {
    budgets: Vec<Weak<BudgetTree>>,
    resources: Vec<Weak<dyn Report>>,
    devices: Vec<Weak<dyn Report>>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { budgets: Vec::new(), resources: Vec::new(), devices: Vec::new() });

pub(crate) fn register_budgets(tree: &Arc<BudgetTree>) {
    register(&mut lock_std(&KNOWN).budgets, Arc::downgrade(tree));
}

pub(crate) fn register_resource(resource: Weak<dyn Report>) {
    register(&mut lock_std(&KNOWN).resources, resource);
}

/// Adds a device's memory to the ledger; not part of the public interface.
pub fn register_device(device: Weak<dyn Report>) {
    register(&mut lock_std(&KNOWN).devices, device);
}

/// Adds `new`, and removes what was dropped.
fn register<T: ?Sized>(known: &mut Vec<Weak<T>>, new: Weak<T>) {
    known.retain(|entry| entry.strong_count() > 0);
    known.push(new);
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let budgets = self.budgets.iter().map(|entry| 2 * entry.depth + entry.name.chars().count());
        let resources = self.resources.iter().chain(&self.devices).map(|entry| entry.name.chars().count());
        let width = budgets.chain(resources).fold(24, usize::max);
        self.write_budgets(f, width)?;
        writeln!(f)?;
        write_resources(f, "resource", &self.resources, width)?;
        if self.devices.is_empty() {
            return Ok(());
        }
        writeln!(f)?;
        write_resources(f, "device", &self.devices, width)
    }
}

impl Ledger {
    fn write_budgets(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        writeln!(f, "{:<width$} {:>10} {:>10} {:>10}  largest holders", "budget", "used", "peak", "limit")?;
        for entry in &self.budgets {
            let name = format!("{:indent$}{}", "", entry.name, indent = 2 * entry.depth);
            let row = format!("{name:<width$} {:>10} {:>10} {:>10}", entry.used, entry.peak, entry.limit);
            write_row(f, &row, &entry.holders)?;
        }
        Ok(())
    }
}

fn write_resources(f: &mut fmt::Formatter<'_>, heading: &str, all: &[ResourceEntry], width: usize) -> fmt::Result {
    write!(f, "{heading:<width$} {:>10} {:>10} {:>10}", "live", "peak", "blocks")?;
    writeln!(f, " {:>10} {:>8} {:>8}  largest holders", "idle", "hits", "misses")?;
    for ResourceEntry { name, stats, holders, pool } in all {
        let (live, peak) = (ByteSize(stats.live_bytes), ByteSize(stats.peak_bytes));
        let PoolStats { idle_bytes, hits, misses } = pool.unwrap_or_default();
        let row = format!("{name:<width$} {live:>10} {peak:>10} {:>10}", stats.live_blocks);
        write_row(f, &format!("{row} {:>10} {hits:>8} {misses:>8}", ByteSize(idle_bytes)), holders)?;
    }
    Ok(())
}

fn write_row(f: &mut fmt::Formatter<'_>, row: &str, holders: &[Held]) -> fmt::Result {
    let largest: Vec<_> = holders.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    writeln!(f, "{}", format!("{row}  {}", largest.join(", ")).trim_end())
}
