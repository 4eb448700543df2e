//! The heap that handles take beside the elements of tensors: storages, nodes of the graph, entries of maps and headers of
//! files, counted in the host's budget.
//!
//! An object counts from when its allocation is made until that is freed, so one that is used again costs nothing here. The
//! budget is asked for [`STEP`] bytes at a time, before an operation makes a tensor ([`check`]): what one operation makes, and
//! what infallible functions make between two operations, may be unpaid for that long.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};

use pagelock_memory::{HeapReservation, Holder, Result};

use crate::error::Error;

/// How many bytes the budget is asked for at a time.
const STEP: usize = 256 << 10;

/// Short-lived allocations of fewer bytes are not counted.
const MOST_UNCOUNTED: usize = 1 << 20;

/// What the allocator adds to an allocation, and an `Arc` to its value.
pub(crate) const PER_ALLOCATION: usize = 32;

// Relaxed, both: they guard no other memory.
static LIVE: AtomicUsize = AtomicUsize::new(0); // bytes that objects take
static PAID: AtomicUsize = AtomicUsize::new(0); // bytes of `PAYMENTS`

/// Reservations of [`STEP`] bytes each.
static PAYMENTS: Mutex<Vec<HeapReservation>> = Mutex::new(Vec::new());

/// Bytes of the heap, counted until this is dropped.
#[derive(Debug)]
pub struct CountedHeap {
    len_bytes: usize,
}

impl CountedHeap {
    /// What an allocation of `len_bytes` takes.
    pub fn new(len_bytes: usize) -> CountedHeap {
        let len_bytes = len_bytes + PER_ALLOCATION;
        LIVE.fetch_add(len_bytes, Relaxed);
        CountedHeap { len_bytes }
    }

    /// The same, if the budget grants it.
    ///
    /// # Errors
    /// [`Error::WorkingMemory`].
    pub fn granted(op: &'static str, purpose: &'static str, len_bytes: usize) -> std::result::Result<Self, Error> {
        keep(op, purpose, len_bytes)
    }

    /// What it takes from now on.
    pub fn set(&mut self, len_bytes: usize) {
        *self = CountedHeap::new(len_bytes);
    }
}

impl Drop for CountedHeap {
    fn drop(&mut self) {
        let live = LIVE.fetch_sub(self.len_bytes, Relaxed) - self.len_bytes;
        if PAID.load(Relaxed) > live + 2 * STEP {
            give_back();
        }
    }
}

/// Asks the budget for the handles that there are.
///
/// # Errors
/// The budget's refusal.
#[inline]
pub(crate) fn check() -> Result<()> {
    if LIVE.load(Relaxed) <= PAID.load(Relaxed) { Ok(()) } else { pay() }
}

/// The same, before a node of the graph is made.
///
/// # Errors
/// [`Error::WorkingMemory`].
pub(crate) fn check_for_node(op: &'static str) -> Result<(), Error> {
    check().map_err(|source| Error::WorkingMemory { op, purpose: "a node of the graph", source })
}

/// Counts bytes of the heap that are kept.
///
/// # Errors
/// [`Error::WorkingMemory`].
pub(crate) fn keep(op: &'static str, purpose: &'static str, len_bytes: usize) -> Result<CountedHeap, Error> {
    let counted = CountedHeap::new(len_bytes);
    check().map(|()| counted).map_err(|source| Error::WorkingMemory { op, purpose, source })
}

/// Counts bytes of a short-lived allocation; `None` for so few bytes that they are not counted.
///
/// # Errors
/// [`Error::WorkingMemory`].
pub(crate) fn reserve(
    op: &'static str,
    purpose: &'static str,
    len_bytes: usize,
) -> Result<Option<HeapReservation>, Error> {
    let refused = |source| Error::WorkingMemory { op, purpose, source };
    (len_bytes > MOST_UNCOUNTED).then(|| HeapReservation::new(len_bytes as u64)).transpose().map_err(refused)
}

#[cold]
fn pay() -> Result<()> {
    static HANDLES: LazyLock<Holder> = LazyLock::new(|| Holder::named("handles"));
    let _charged = HANDLES.enter();
    while LIVE.load(Relaxed) > PAID.load(Relaxed) {
        // Without the lock: the budget may ask pools for what they keep, and that may be counted here.
        let paid = HeapReservation::new(STEP as u64)?;
        payments().push(paid);
        PAID.fetch_add(STEP, Relaxed);
    }
    Ok(())
}

#[cold]
fn give_back() {
    let mut payments = match PAYMENTS.try_lock() {
        Ok(payments) => payments,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return, // whoever drops the next object does it
    };
    while PAID.load(Relaxed) > LIVE.load(Relaxed) + STEP {
        let Some(paid) = payments.pop() else { return };
        PAID.fetch_sub(STEP, Relaxed);
        drop(paid);
    }
}

fn payments() -> MutexGuard<'static, Vec<HeapReservation>> {
    PAYMENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_paid_for_and_given_back() {
        let before = PAID.load(Relaxed);
        let objects: Vec<_> = (0..100).map(|_| CountedHeap::new(STEP)).collect();
        check().unwrap();
        assert!(PAID.load(Relaxed) >= before.max(100 * STEP));
        drop(objects);
        assert!(PAID.load(Relaxed) < 50 * STEP);
    }
}
