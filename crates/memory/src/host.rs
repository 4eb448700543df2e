//! The process-wide stack that all tensors take their host memory from.

use std::sync::LazyLock;

use crate::{Budget, ByteSize, Counted, Limited, Pageable, Pooled};

/// The type of [`default_host`]: counted, pooled, limited, ordinary memory.
pub type DefaultHost = Counted<Pooled<Limited<Pageable>>>;

/// The process-wide host memory, under the budget `host`.
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
        Counted::new(
            "host",
            Pooled::new(Limited::new(Pageable, host_budget().clone())),
        )
    });
    &HOST
}

/// The budget of [`default_host`].
///
/// # Examples
/// ```
/// use pagelock_memory::{ByteSize, HostBuffer, default_host, host_budget};
///
/// host_budget().set_limit(ByteSize::mib(64));
/// assert!(HostBuffer::allocate(default_host(), 65 << 20).is_err());
/// ```
pub fn host_budget() -> &'static Budget {
    static BUDGET: LazyLock<Budget> =
        LazyLock::new(|| budget_from(std::env::var("PAGELOCK_HOST_LIMIT").ok().as_deref()));
    &BUDGET
}

fn budget_from(limit: Option<&str>) -> Budget {
    let Some(text) = limit else {
        return Budget::new("host", ByteSize::MAX)
            .with_knob("set $PAGELOCK_HOST_LIMIT or drop tensors first");
    };
    match text.parse::<ByteSize>() {
        Ok(limit) => {
            Budget::new("host", limit).with_knob("raise $PAGELOCK_HOST_LIMIT or drop tensors first")
        }
        // Refuses everything, and every refusal says why.
        Err(error) => Budget::new("host", 0).with_knob(format!("$PAGELOCK_HOST_LIMIT: {error}")),
    }
}
