//! [`Trim`]: caches that give back bytes of a full budget.

use std::cell::Cell;

/// A cache that holds bytes of a budget without using them; see [`Budget::add_pool`](crate::Budget::add_pool).
///
/// [`trim`](Trim::trim) is called wherever bytes are reserved and the budget is full, also in the middle of an operation
/// that holds its tensors. It may drop what it holds, and allocate. It must not wait for a tensor or a lock that a thread may
/// hold while it reserves bytes. It may wait for a device, but not without a time limit: what the device runs may wait for
/// such a lock.
///
/// # Examples
/// ```
/// use std::sync::{Arc, Mutex};
/// use pagelock_memory::{Budget, Reservation, Trim};
///
/// struct Spare(Mutex<Vec<Reservation>>);
///
/// impl Trim for Spare {
///     fn trim(&self) -> usize {
///         let spare = std::mem::take(&mut *self.0.lock().unwrap());
///         spare.iter().map(|spare| spare.len_bytes() as usize).sum()
///     }
/// }
///
/// let budget = Budget::new("host", 1_000);
/// let spare = Arc::new(Spare(Mutex::new(vec![budget.reserve(800)?])));
/// let pool: Arc<dyn Trim> = spare.clone();
/// budget.add_pool(Arc::downgrade(&pool));
/// let _reserved = budget.reserve(900)?; // gets those 800 too
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub trait Trim: Send + Sync {
    /// Releases these bytes, and returns how many.
    fn trim(&self) -> usize;
}

thread_local! {
    static TRIMMING: Cell<u32> = const { Cell::new(0) };
}

/// While this lives, this thread trims pools. A pool that reserves bytes when it is trimmed may find its budget full,
/// whose pools are then trimmed, and so on, but at most [`MAX_NESTED`](Self::MAX_NESTED) times.
pub(crate) struct Trimming;

impl Trimming {
    const MAX_NESTED: u32 = 4;

    pub(crate) fn start() -> Option<Self> {
        let nested = TRIMMING.get();
        (nested < Self::MAX_NESTED).then(|| TRIMMING.set(nested + 1)).map(|()| Self)
    }
}

impl Drop for Trimming {
    fn drop(&mut self) {
        TRIMMING.set(TRIMMING.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use super::*;
    use crate::Budget;

    /// A pool that reserves more than its budget has.
    struct Reserves(Budget, AtomicUsize);

    impl Trim for Reserves {
        fn trim(&self) -> usize {
            self.1.fetch_add(1, Relaxed);
            assert!(self.0.reserve(50).is_err());
            0
        }
    }

    #[test]
    fn a_pool_that_reserves_bytes_of_a_full_budget_is_refused_them() {
        let budget = Budget::new("host", 100);
        let _held = budget.reserve(80).unwrap();
        let reserves = Arc::new(Reserves(budget.clone(), AtomicUsize::new(0)));
        let pool: Arc<dyn Trim> = reserves.clone();
        budget.add_pool(Arc::downgrade(&pool));
        for _ in 0..2 {
            assert!(budget.reserve(50).is_err());
        }
        assert_eq!(reserves.1.load(Relaxed), 2 * Trimming::MAX_NESTED as usize);
    }
}
