//! The process-wide stack from which all tensors allocate host memory.

use std::{path::Path, sync::LazyLock};

use crate::{Budget, ByteSize, Ceiling, Counted, Limited, Pageable, Pooled};

/// The type of [`default_host`]: counted, pooled, limited, ordinary memory.
pub type DefaultHost = Counted<Pooled<Limited<Pageable>>>;

/// The process-wide host memory, limited by the budget `host`. Each block is charged 144 bytes in addition to its
/// size, for the overhead of the allocator and the pool.
///
/// The limit is `$PAGELOCK_HOST_LIMIT` if that is set (`8 GiB`). Otherwise it is nine tenths of the memory that the
/// machine and the cgroups of the process had left at first use, but at least 64 MiB. If the system does not tell how
/// much is left, there is no limit. [`Budget::set_limit`] of [`host_budget`] changes it.
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

/// The overhead of a block in bytes: 48 for alignment, 48 for a box, an entry in a list of the pool, and the
/// allocator's headers of two allocations.
const BLOCK_OVERHEAD: u64 = 144;

/// The budget of all host memory that the process allocates: memory from [`default_host`], and page-locked memory,
/// whose budget is a child of this one.
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
        // With a limit of 0, every reservation is refused, and each error says why.
        Err(error) => Budget::new("host", 0).with_advice(format!("$PAGELOCK_HOST_LIMIT: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_limit_refuses_everything_and_says_why() {
        let budget = budget_from(Some("plenty"), Path::new("/nowhere"));
        assert_eq!(
            budget.reserve(1).unwrap_err().to_string(),
            "cannot take 1 B: budget `host` has 0 B left of 0 B; $PAGELOCK_HOST_LIMIT: `plenty` is not a size in \
             bytes; write a number and a unit, for example 1.5 GiB, 200 MB or 4096"
        );
    }

    #[test]
    fn a_valid_limit_is_the_budgets_limit() {
        let budget = budget_from(Some("2 GiB"), Path::new("/nowhere"));
        assert_eq!(budget.limit(), ByteSize::gib(2));
    }

    #[test]
    fn without_information_about_the_machine_there_is_no_limit() {
        let budget = budget_from(None, Path::new("/nowhere"));
        assert_eq!(budget.limit(), ByteSize::MAX);
    }
}
