//! The locks and atomics of this crate's protocols: the standard ones, or loom's where loom checks them.
//!
//! Which locks may be held over a call of the driver is in ARCHITECTURE.md ("Locks and calls of the driver").
//!
//! Only locks and atomics that loom models are here: process-wide statics, and counters that guard nothing, use
//! `std::sync` directly.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

/// Calls its function when it is dropped, also by unwinding.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Locks the mutex even if it is poisoned: no code of this crate can panic between two steps of one change, so a
/// poisoned mutex still guards consistent data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
