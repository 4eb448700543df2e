//! The locks of this crate's protocols.

pub(crate) use std::sync::{Mutex, MutexGuard};

/// Locks, also after a panic elsewhere: no code of this crate can panic between two steps of one change, so a
/// poisoned lock still guards consistent data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
