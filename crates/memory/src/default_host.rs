//! The process-wide stack from which all tensors allocate host memory.

use std::{path::Path, sync::LazyLock};

use crate::{Budget, ByteSize, Ceiling, Counted, Limited, Pageable, Pooled};

/// The type of [`default_host`]: counted, pooled, limited, ordinary memory.
pub type DefaultHost = Counted<Pooled<Limited<Pageable>>>;

/// The process-wide host memory, limited by the budget `host`. Each block is charged 144 bytes more, for the overhead
/// of the allocator and the pool.
///
/// The limit is `$PAGELOCK_HOST_LIMIT` if that is set (`8 GiB`), else nine tenths of what the machine and the
/// cgroups around the process had left at first use; [`host_budget`] changes it.
///
/// # Examples
/// ```
/// use pagelock_memory::{HostBuffer, default_host};
///
/// let buffer = HostBuffer::allocate(default_host(), 1_000)?;
/// assert!(default_host().stats().live_bytes >= 1_000);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub fn default_host() -> &'static DefaultHost {
    static HOST: LazyLock<DefaultHost> = LazyLock::new(|| {
        let limited = Limited::new(Pageable, host_budget().clone()).charging_beside(BLOCK_OVERHEAD);
        Counted::new("host", Pooled::new(limited))
    });
    &HOST
}

/// The overhead of a block: 48 bytes for alignment, a box of 48 bytes, an entry in a list of the pool, and the
/// allocator's headers of two allocations.
const BLOCK_OVERHEAD: u64 = 144;

/// The budget of all host memory that the process allocates: that of [`default_host`], and page-locked memory, whose
/// budget is inside this one.
///
/// # Examples
/// ```
/// use pagelock_memory::{ByteSize, host_budget};
///
/// let before = host_budget().limit();
/// host_budget().set_limit(ByteSize::gib(1));
/// println!("{} of {} in use", host_budget().used(), host_budget().limit());
/// host_budget().set_limit(before);
/// ```
pub fn host_budget() -> &'static Budget {
    static BUDGET: LazyLock<Budget> = LazyLock::new(|| {
        let limit = std::env::var_os("PAGELOCK_HOST_LIMIT");
        let limit = limit.filter(|text| !text.is_empty()).map(|text| text.to_string_lossy().into_owned());
        budget_from(limit.as_deref(), Path::new("/"))
    });
    &BUDGET
}

fn budget_from(limit: Option<&str>, root: &Path) -> Budget {
    let Some(text) = limit else {
        let advice = "set $PAGELOCK_HOST_LIMIT higher or drop buffers first";
        return Budget::new("host", Ceiling::host(root).bytes).with_advice(advice);
    };
    match text.parse::<ByteSize>() {
        Ok(limit) => Budget::new("host", limit).with_advice("raise $PAGELOCK_HOST_LIMIT or drop buffers first"),
        // A budget that refuses everything, and says why in every error.
        Err(error) => Budget::new("host", 0).with_advice(format!("$PAGELOCK_HOST_LIMIT: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_not_a_size_refuses_everything_and_says_why() {
        let budget = budget_from(Some("plenty"), Path::new("/nowhere"));
        assert_eq!(
            budget.reserve(1).unwrap_err().to_string(),
            "cannot take 1 B: budget `host` has 0 B left of 0 B; $PAGELOCK_HOST_LIMIT: `plenty` is not a size in \
             bytes; write a number and a unit, for example 1.5 GiB, 200 MB or 4096"
        );
    }

    #[test]
    fn a_limit_that_is_a_size_is_the_limit() {
        let budget = budget_from(Some("2 GiB"), Path::new("/nowhere"));
        assert_eq!(budget.limit(), ByteSize::gib(2));
    }

    #[test]
    fn where_nothing_is_known_about_the_machine_there_is_no_limit() {
        let budget = budget_from(None, Path::new("/nowhere"));
        assert_eq!(budget.limit(), ByteSize::MAX);
    }
}
