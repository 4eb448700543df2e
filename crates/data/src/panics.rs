//! Turns panics of decoders, and of code that users give to loaders, into errors.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs a decoder that keeps no state between calls; a panic becomes an error with the panic's message.
#[cfg(any(feature = "images", feature = "parquet"))]
pub(crate) fn unpanicked<R>(work: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(format!("its decoder panicked: {}", panic_message(&*panic))))
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}

/// Drops the payload of a panic, which may panic again.
pub(crate) fn drop_panic(panic: Box<dyn Any + Send>) {
    let dropped = |panic| catch_unwind(AssertUnwindSafe(|| drop(panic)));
    if let Err(endless) = dropped(panic).or_else(dropped).or_else(dropped) {
        mem::forget(endless); // its drop panics every time
    }
}

/// Drops a value of the user's program. A panic is ignored, since it belongs to no batch.
pub(crate) fn drop_quietly<T>(value: T) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(value))).map_err(drop_panic);
}

/// Locks a mutex, even after a panic of another holder: the guarded data stay usable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
