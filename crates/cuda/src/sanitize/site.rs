//! Which line of the program asked for a copy, and which line got at a buffer's bytes last.

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
/// Counts copies and accesses, so that it is known which came first.
static CLOCK: AtomicU64 = AtomicU64::new(0);
/// Guards the last access to each buffer, by where that starts.
static ACCESSES: LazyLock<Mutex<BTreeMap<usize, WriteCall>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The call of this crate that this thread is in: the outermost, which a user wrote.
    static CALL: Cell<Option<Site>> = const { Cell::new(None) };
}

/// A call that gave out a way to write bytes.
#[derive(Clone, Copy)]
pub(super) struct WriteCall {
    pub(super) at: Site,
    pub(super) time: u64,
    len_bytes: usize,
}

/// Held by a public function that copies, for as long as it runs; see [`here`].
#[must_use]
#[derive(Debug)]
pub struct Here {
    is_outermost: bool,
    of_thread: PhantomData<*const ()>,
}

/// From now on accesses are noted.
pub(super) fn start() {
    if !WATCHING.swap(true, Relaxed) {
        pagelock_memory::watch_accesses(note_access);
    }
}

/// For libraries that copy for their users: while the result is held, copies that this thread asks for are, in what
/// `PAGELOCK_SANITIZE=1` finds, those of the line that called the caller, which has `#[track_caller]` too. If a function
/// further out said so already, its line it is. Without that variable this is one load.
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

/// Who asks for the copy that is being queued.
pub(super) fn of_copy() -> Option<Site> {
    CALL.get()
}

/// A moment after all earlier ones.
pub(super) fn now() -> u64 {
    CLOCK.fetch_add(1, Relaxed)
}

/// What this crate does itself inside of its calls is nobody's access.
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
