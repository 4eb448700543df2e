//! Records which line of the program started a copy, and which line accessed a buffer's bytes last.

use std::{
    cell::Cell,
    collections::BTreeMap,
    marker::PhantomData,
    ops::Range,
    panic::Location,
    ptr::NonNull,
    sync::{
        LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

pub(super) type Site = &'static Location<'static>;

/// Whether any device is watched. Relaxed: it guards nothing.
static WATCHING: AtomicBool = AtomicBool::new(false);
/// Counts copies and accesses, to order them.
static CLOCK: AtomicU64 = AtomicU64::new(0);
/// Guards the last access to each buffer, by the address of the buffer.
static ACCESSES: LazyLock<Mutex<BTreeMap<usize, WriteCall>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The line of the outermost call of this crate on this thread, which is the user's.
    static CALL: Cell<Option<Site>> = const { Cell::new(None) };
}

/// A call that returned a pointer or slice through which bytes can be written.
#[derive(Clone, Copy)]
pub(super) struct WriteCall {
    pub(super) at: Site,
    pub(super) time: u64,
    len_bytes: usize,
}

/// A guard that a public function which copies holds while it runs; see [`here`].
#[must_use]
#[derive(Debug)]
pub struct Here {
    is_outermost: bool,
    of_thread: PhantomData<*const ()>,
}

/// Begins to record accesses.
pub(super) fn start() {
    if !WATCHING.swap(true, Relaxed) {
        pagelock_memory::watch_accesses(note_access);
    }
}

/// For libraries that copy on behalf of their users. While the returned guard exists, races found with
/// `PAGELOCK_SANITIZE=1` name the line that called the library's function, which needs `#[track_caller]` too, as the
/// line that started this thread's copies. If a function further out holds a guard already, its line is kept. Without
/// the variable, this costs one load.
///
/// # Examples
/// ```
/// use pagelock_cuda::{DeviceBuffer, Result, Stream};
///
/// #[track_caller]
/// fn send(stream: &Stream, numbers: &[f32]) -> Result<DeviceBuffer<f32>> {
///     let _here = pagelock_cuda::here();
///     stream.allocate_from(numbers) // a race would be one of the line that called `send`
/// }
/// # let stream = pagelock_cuda::Device::software(Default::default())?.stream()?;
/// # send(&stream, &[1.0])?;
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[track_caller]
pub fn here() -> Here {
    let is_outermost = WATCHING.load(Relaxed) && CALL.get().is_none();
    if is_outermost {
        CALL.set(Some(Location::caller()));
    }
    Here { is_outermost, of_thread: PhantomData }
}

impl Drop for Here {
    fn drop(&mut self) {
        if self.is_outermost {
            CALL.set(None);
        }
    }
}

/// The line that started the copy that is being queued.
pub(super) fn of_copy() -> Option<Site> {
    CALL.get()
}

/// The next number of the clock.
pub(super) fn now() -> u64 {
    CLOCK.fetch_add(1, Relaxed)
}

/// Records an access, unless this crate itself makes it inside one of its calls.
fn note_access(start: NonNull<u8>, len_bytes: usize, at: Site) {
    if CALL.get().is_none() {
        accesses().insert(start.addr().get(), WriteCall { at, time: now(), len_bytes });
    }
}

/// The latest access to any of these bytes.
pub(super) fn last_access(bytes: Range<usize>) -> Option<WriteCall> {
    let accesses = accesses();
    let before = accesses.range(..bytes.end);
    let touching = before.filter(|(start, access)| *start + access.len_bytes > bytes.start).map(|(_, access)| *access);
    touching.max_by_key(|access| access.time)
}

fn accesses() -> MutexGuard<'static, BTreeMap<usize, WriteCall>> {
    ACCESSES.lock().unwrap_or_else(PoisonError::into_inner)
}
