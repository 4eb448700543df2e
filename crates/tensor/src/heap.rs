//! Counts the heap memory of handles in the host's budget: storages, nodes of the graph, entries of maps and headers
//! of files. The elements of tensors are counted elsewhere.
//!
//! An object counts from its allocation until it is freed, so reusing an allocation costs nothing here. The budget is
//! charged in steps of [`STEP`] bytes, before an operation makes a tensor ([`check`]). Until the next check, the
//! budget lacks what one operation allocates, and what infallible functions allocate between two operations. Requests
//! of more bytes than a step reserve them at once, so that a refused request takes nothing from others.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};

use pagelock_memory::{HeapReservation, Holder, Result};

use crate::error::Error;

/// Bytes that are reserved from the budget at a time.
const STEP: usize = 256 << 10;

/// Short-lived allocations of fewer bytes are not counted.
const MAX_UNCOUNTED: usize = 1 << 20;

/// The bytes that an allocator adds to an allocation, together with those that an `Arc` adds to its value.
pub(crate) const PER_ALLOCATION: usize = 32;

// Relaxed, both: they guard no other memory.
static LIVE: AtomicUsize = AtomicUsize::new(0); // bytes of all `CountedHeap`s
static PAID: AtomicUsize = AtomicUsize::new(0); // bytes of `PAYMENTS`

/// Reservations of [`STEP`] bytes each.
static PAYMENTS: Mutex<Vec<HeapReservation>> = Mutex::new(Vec::new());

/// Bytes of the heap, counted until this is dropped.
#[derive(Debug)]
pub struct CountedHeap {
    len_bytes: usize,                  // charged in steps
    reserved: Option<HeapReservation>, // for a request of more than a step, charged at once
}

impl CountedHeap {
    /// Counts an allocation of `len_bytes`.
    pub fn new(len_bytes: usize) -> CountedHeap {
        let len_bytes = len_bytes + PER_ALLOCATION;
        LIVE.fetch_add(len_bytes, Relaxed);
        CountedHeap { len_bytes, reserved: None }
    }

    /// Like [`new`](Self::new), but fails if the budget refuses the bytes.
    ///
    /// # Errors
    /// [`Error::WorkingMemory`].
    pub fn granted(op: &'static str, purpose: &'static str, len_bytes: usize) -> std::result::Result<Self, Error> {
        let is_small = len_bytes <= STEP;
        let mut counted = CountedHeap::new(if is_small { len_bytes } else { 0 });
        let refused = |source| Error::WorkingMemory { op, purpose, source };
        check().map_err(refused)?;
        if !is_small {
            counted.reserved = Some(HeapReservation::new(len_bytes as u64).map_err(refused)?);
        }
        Ok(counted)
    }

    /// Counts `len_bytes` from now on, instead of the bytes before.
    pub fn set(&mut self, len_bytes: usize) {
        *self = CountedHeap::new(len_bytes);
    }
}

/// Always equal, so that a list that is counted equals another with the same elements.
impl PartialEq for CountedHeap {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CountedHeap {}

impl Drop for CountedHeap {
    fn drop(&mut self) {
        let live = LIVE.fetch_sub(self.len_bytes, Relaxed) - self.len_bytes;
        if PAID.load(Relaxed) > live + 2 * STEP {
            give_back();
        }
    }
}

/// Charges the budget for all bytes that are counted.
///
/// # Errors
/// The budget's refusal.
#[inline]
pub(crate) fn check() -> Result<()> {
    if LIVE.load(Relaxed) <= PAID.load(Relaxed) { Ok(()) } else { pay() }
}

/// [`check`] before a node of the graph is made.
///
/// # Errors
/// [`Error::WorkingMemory`].
pub(crate) fn check_for_node(op: &'static str) -> Result<(), Error> {
    check().map_err(|source| Error::WorkingMemory { op, purpose: "a node of the graph", source })
}

/// Reserves the bytes of a short-lived allocation; `None` if they are too few to be counted.
///
/// # Errors
/// [`Error::WorkingMemory`].
pub(crate) fn reserve(
    op: &'static str,
    purpose: &'static str,
    len_bytes: usize,
) -> Result<Option<HeapReservation>, Error> {
    let refused = |source| Error::WorkingMemory { op, purpose, source };
    (len_bytes > MAX_UNCOUNTED).then(|| HeapReservation::new(len_bytes as u64)).transpose().map_err(refused)
}

#[cold]
fn pay() -> Result<()> {
    static HANDLES: LazyLock<Holder> = LazyLock::new(|| Holder::named("handles"));
    let _charged = HANDLES.enter();
    while LIVE.load(Relaxed) > PAID.load(Relaxed) {
        // The lock is not held here: the budget may make pools free what they keep, and that may be counted by this
        // module.
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
        Err(TryLockError::WouldBlock) => return, // the next drop does it
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

    #[test]
    fn a_refused_request_takes_nothing_from_others() {
        let before = PAID.load(Relaxed);
        assert!(CountedHeap::granted("test", "a request", 1 << 60).is_err());
        assert!(PAID.load(Relaxed) < before + 200 * STEP); // tests that run meanwhile count much less
    }
}
