//! Reports every access that may write a buffer's bytes: for tools that look for races.

use std::{panic::Location, ptr::NonNull, sync::OnceLock};

/// Called with a buffer's start and length, and the source location that requested write access.
type Watcher = fn(start: NonNull<u8>, len_bytes: usize, at: &'static Location<'static>);

static WATCHER: OnceLock<Watcher> = OnceLock::new();

/// Calls `watcher` from now on in every [`HostBuffer::as_ptr`](crate::HostBuffer::as_ptr) and
/// [`HostBuffer::bytes_mut`](crate::HostBuffer::bytes_mut), in the latter after its wait. Only the first watcher of a
/// process is used. If it panics, so does that call.
///
/// # Examples
/// ```
/// use pagelock_memory::{HostBuffer, default_host, watch_accesses};
///
/// watch_accesses(|_, len_bytes, at| println!("{at} got at {len_bytes} bytes"));
/// let mut buffer = HostBuffer::allocate(default_host(), 4)?;
/// buffer.bytes_mut()?.fill(1);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub fn watch_accesses(watcher: Watcher) {
    let _ = WATCHER.set(watcher);
}

/// Reports that the code that called the buffer may write these bytes.
#[inline]
#[track_caller]
pub(crate) fn note_access(start: NonNull<u8>, len_bytes: usize) {
    if let Some(watcher) = WATCHER.get() {
        watcher(start, len_bytes, Location::caller());
    }
}
