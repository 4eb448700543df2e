//! The device accesses to a buffer that may not be done yet.
//!
//! Invariant: a bit of `uses` is set while the list has an entry of that use. Entries are removed when they are done,
//! or when other buffers wait for them. So a thread that finds the bit cleared need not wait.

use std::sync::Arc;

use super::Abandoned;
use crate::sync::{AtomicU8, Mutex, Ordering, lock};

/// A device's access to host bytes, which ends at some time.
///
/// The functions should not panic: a buffer that is dropped calls them, and leaks its block if one unwinds.
///
/// # Examples
/// ```
/// use std::sync::{Arc, Condvar, Mutex};
/// use pagelock_memory::{Completion, HostBuffer, Pageable};
///
/// #[derive(Default)]
/// struct Copy { done: Mutex<bool>, changed: Condvar }
///
/// impl Completion for Copy {
///     fn is_done(&self) -> bool { *self.done.lock().unwrap() }
///     fn wait(&self) {
///         drop(self.changed.wait_while(self.done.lock().unwrap(), |done| !*done).unwrap());
///     }
/// }
///
/// let mut buffer = HostBuffer::allocate(&Pageable, 8)?;
/// let copy = Arc::new(Copy::default());
/// buffer.add_writer(copy.clone());
/// std::thread::spawn(move || {
///     *copy.done.lock().unwrap() = true;
///     copy.changed.notify_all();
/// });
/// assert_eq!(buffer.bytes(), [0; 8]); // waited for the copy
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub trait Completion: Send + Sync + 'static {
    /// Whether the device no longer accesses the bytes.
    fn is_done(&self) -> bool;

    /// Returns once [`is_done`](Self::is_done) or [`is_lost`](Self::is_lost) is true.
    fn wait(&self);

    /// Whether the calling thread may wait for this access. It may not if the device waits for that thread. Host access
    /// then panics, and the block of a dropped buffer is [kept](Self::keep).
    fn may_wait(&self) -> bool {
        true
    }

    /// Takes over the block of a buffer that was dropped without waiting, to free it when this access is done. If it
    /// returns the block instead, the buffer waits after all. See [`HostBuffer::drop_without_waiting`].
    ///
    /// [`HostBuffer::drop_without_waiting`]: crate::HostBuffer::drop_without_waiting
    ///
    /// # Errors
    /// The block, if it cannot be kept.
    fn keep(&self, block: Abandoned) -> Result<(), Abandoned> {
        Err(block)
    }

    /// Whether the device was lost, so that the end of its work will never be known. Host access to the buffer
    /// then panics, and its drop leaks the block instead of freeing it.
    fn is_lost(&self) -> bool {
        false
    }
}

/// How a device uses the bytes; the values are bits of `Pending::uses`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Reads = 1,
    Writes = 2,
}

/// Why a thread does not wait.
pub(super) enum Refusal {
    /// The device is lost, and may use the bytes forever.
    Lost,
    /// This thread may not wait for the device.
    MayNotWait,
}

fn refuse(why: Refusal) {
    match why {
        Refusal::Lost => {
            panic!("a device was lost while it was using this buffer: its bytes are undefined and may still change")
        }
        Refusal::MayNotWait => {
            panic!(
                "a device still uses this buffer, and this thread may not wait for it: let another thread use the buffer"
            )
        }
    }
}

/// Takes one out of `all` for which this thread may not wait.
pub(super) fn take_keeper(all: &mut Vec<Arc<dyn Completion>>) -> Option<Arc<dyn Completion>> {
    let keeper = all.iter().position(|done| !done.may_wait())?;
    Some(all.swap_remove(keeper))
}

type List = Vec<(Use, Arc<dyn Completion>)>;

pub(super) struct Pending {
    // Acquire pairs with the release in `store_uses`: a thread that sees a bit cleared by another thread's wait also
    // sees what the device wrote before that wait returned.
    uses: AtomicU8,
    list: Mutex<List>, // guards the entries and every change of `uses`; no code of a `Completion` runs under it
}

impl Pending {
    pub(super) fn new() -> Self {
        Self { uses: AtomicU8::new(0), list: Mutex::new(Vec::new()) }
    }

    /// A copy, for bytes that become a buffer of their own.
    pub(super) fn fork(&self) -> Self {
        let list = lock(&self.list).clone();
        let forked = Self::new();
        forked.store_uses(&list);
        *lock(&forked.list) = list;
        forked
    }

    /// The pending access, if there is exactly one.
    pub(super) fn single(&self) -> Option<Arc<dyn Completion>> {
        match &lock(&self.list)[..] {
            [(_, single)] => Some(single.clone()),
            _ => None,
        }
    }

    /// All pending accesses, if this thread may not wait for one of them: that one, which may keep the block, and the
    /// others.
    pub(super) fn may_not_wait(&self) -> Option<(Arc<dyn Completion>, Vec<Arc<dyn Completion>>)> {
        if self.uses.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut all: Vec<_> = lock(&self.list).iter().map(|(_, done)| done.clone()).collect();
        Some((take_keeper(&mut all)?, all))
    }

    /// Removes all accesses, because other buffers wait for them.
    pub(super) fn forget(&self) {
        let mut list = lock(&self.list);
        let _forgotten = std::mem::take(&mut *list);
        self.store_uses(&list);
    }

    /// Adds an access. Runs no code of a [`Completion`], so it cannot panic.
    pub(super) fn push(&self, kind: Use, done: Arc<dyn Completion>) {
        let mut list = lock(&self.list);
        list.push((kind, done));
        self.store_uses(&list);
    }

    /// Removes the accesses that are done, except the newest.
    pub(super) fn sweep(&self) {
        let mut older: List = {
            let list = lock(&self.list);
            list[..list.len().saturating_sub(1)].to_vec() // mostly empty, so not allocated
        };
        older.retain(|(_, done)| done.is_done()); // without the lock: it is a user's code
        if !older.is_empty() {
            self.remove(&older);
        }
    }

    fn remove(&self, finished: &List) {
        let mut list = lock(&self.list);
        list.retain(|(_, done)| !finished.iter().any(|(_, finished)| Arc::ptr_eq(finished, done)));
        self.store_uses(&list);
    }

    /// Returns when no device writes. Panics if one is lost or this thread may not wait.
    #[inline]
    pub(super) fn wait_for_writers(&self) {
        if self.uses.load(Ordering::Acquire) & Use::Writes as u8 != 0 {
            self.wait_for(|kind| kind == Use::Writes).unwrap_or_else(refuse);
        }
    }

    /// Returns when no device reads or writes. Panics if one is lost or this thread may not wait.
    pub(super) fn wait_for_all(&self) {
        self.wait_for_end().unwrap_or_else(refuse);
    }

    /// Returns when no device reads or writes, or an error if one is lost or this thread may not wait.
    pub(super) fn wait_for_end(&self) -> Result<(), Refusal> {
        if self.uses.load(Ordering::Acquire) == 0 { Ok(()) } else { self.wait_for(|_| true) }
    }

    #[cold]
    fn wait_for(&self, concerns: impl Fn(Use) -> bool) -> Result<(), Refusal> {
        let waited: List = lock(&self.list).iter().filter(|(kind, _)| concerns(*kind)).cloned().collect();
        if waited.iter().any(|(_, done)| !done.may_wait()) {
            return Err(Refusal::MayNotWait);
        }
        for (_, done) in &waited {
            done.wait(); // without the lock: others may wait, or add readers, meanwhile
        }
        if waited.iter().any(|(_, done)| done.is_lost()) {
            return Err(Refusal::Lost);
        }
        self.remove(&waited);
        Ok(())
    }

    fn store_uses(&self, list: &List) {
        let uses = list.iter().fold(0, |uses, (kind, _)| uses | *kind as u8);
        self.uses.store(uses, Ordering::Release);
    }
}
