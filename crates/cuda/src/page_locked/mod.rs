//! Page-locked host memory, from and to which a device copies asynchronously.
//!
//! `locker.rs` locks pages through the driver. `pinned.rs`, `uninit.rs` and `frozen.rs` are the three states in which
//! a program can own them: for exclusive reads and writes, not yet written, and shared for reads.

mod frozen;
mod locker;
mod pinned;
mod uninit;

use std::sync::{Arc, LazyLock};

use pagelock_memory::{
    Budget, Counted, HugePages, Limited, PageLocked, PageLocker, Pooled, host_budget, page_locked_ceiling,
};

pub use self::{frozen::Frozen, pinned::Pinned, uninit::Uninit};
use crate::{driver::Driver, leaked::LeakCount};

/// The resource of page-locked memory: counted, pooled, limited, and locked by a device's driver for all devices.
pub type PageLockedMemory = Counted<Pooled<Limited<PageLocked>>>;

/// The budget of the page-locked memory of all devices. Its limit is at first [`page_locked_ceiling`]. It is a child
/// of [`host_budget`], whose limit applies too.
///
/// # Examples
/// ```
/// use pagelock_cuda::page_locked_budget;
/// use pagelock_memory::ByteSize;
///
/// page_locked_budget().set_limit(ByteSize::gib(1));
/// ```
pub fn page_locked_budget() -> &'static Budget {
    static BUDGET: LazyLock<Budget> = LazyLock::new(|| {
        let advice = "raise `page_locked_budget`, drop page-locked buffers, or copy from ordinary memory";
        host_budget().child("page-locked", page_locked_ceiling().bytes).with_advice(advice)
    });
    &BUDGET
}

/// A page locker that uses that driver, and counts the pages that leak because they cannot be unlocked.
pub(crate) fn locker_for(driver: Arc<dyn Driver>, leaked: Arc<LeakCount>) -> Arc<dyn PageLocker> {
    Arc::new(locker::DriverLocker::new(driver, leaked))
}

pub(crate) fn memory_for(driver: Arc<dyn Driver>, leaked: Arc<LeakCount>) -> PageLockedMemory {
    let name = format!("page-locked, device {}", driver.properties().ordinal);
    let source = PageLocked::new().locked_by(locker_for(driver, leaked)).huge_pages(HugePages::WhereGranted);
    Counted::new(name, Pooled::new(Limited::new(source, page_locked_budget().clone())))
}
