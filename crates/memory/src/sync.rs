//! The locks and atomics of this crate's protocols: the standard ones, or loom's where loom checks them.
//!
//! Only what loom can model is here; process-wide statics use `std::sync` directly.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU8, AtomicUsize, Ordering},
};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU8, AtomicUsize, Ordering},
};

/// Locks a mutex, even a poisoned one: no code of this crate can panic between two steps of one change, so the data of
/// a poisoned lock is still consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// [`lock`] for a mutex that loom does not model.
pub(crate) fn lock_std<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
