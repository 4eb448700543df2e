//! What devices may still be doing with a buffer.
//!
//! Invariant: a bit of `uses` is set while the list has an entry of that use. It is cleared only after all entries that were in
//! the list have been waited for. So a thread that finds the bit cleared need not wait.

use std::sync::Arc;

use super::Abandoned;
use crate::sync::{AtomicU8, Mutex, Ordering, lock};

/// Something that a device does with host bytes and that will be done at some time.
///
/// Neither function should panic: buffers wait while they are dropped, and leak their block if that unwinds.
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
    /// Whether the device will not touch the bytes any more.
    fn is_done(&self) -> bool;

    /// Returns when [`is_done`](Self::is_done) or [`is_lost`](Self::is_lost).
    fn wait(&self);

    /// Whether the calling thread may wait for it. Where it may not, because the device waits for that thread, host access is
    /// refused with a panic, and a buffer that is dropped is [kept](Self::keep).
    fn may_wait(&self) -> bool {
        true
    }

    /// Takes over the block of a buffer that was dropped without waiting, to drop it when this is done; or gives it back, and the
    /// buffer waits after all. See [`HostBuffer::drop_without_waiting`].
    ///
    /// [`HostBuffer::drop_without_waiting`]: crate::HostBuffer::drop_without_waiting
    ///
    /// # Errors
    /// The block, if it cannot be dropped later.
    fn keep(&self, block: Abandoned) -> Result<(), Abandoned> {
        Err(block)
    }

    /// Whether the device was lost, so that the end of its work will never be known. A buffer then refuses access with a
    /// panic, and leaks its block instead of freeing it.
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
    /// A device may use the bytes for ever.
    Lost,
    /// This thread may not.
    NotHere,
}

fn refuse(why: Refusal) {
    match why {
        Refusal::Lost => {
            panic!("a device was lost while it was using this buffer: what the bytes are, and will be, nobody knows")
        }
        Refusal::NotHere => {
            panic!(
                "a device still uses this buffer, and this thread may not wait for it: let another thread use the buffer"
            )
        }
    }
}

type List = Vec<(Use, Arc<dyn Completion>)>;

pub(super) struct Pending {
    // Acquire pairs with the release in `note`: who sees a bit cleared by another thread's wait also sees what the
    // device wrote before that wait returned.
    uses: AtomicU8,
    list: Mutex<List>, // guards the entries and every change of `uses`
}

impl Pending {
    pub(super) fn new() -> Self {
        Self { uses: AtomicU8::new(0), list: Mutex::new(Vec::new()) }
    }

    /// The same, for bytes that become a buffer of their own.
    pub(super) fn fork(&self) -> Self {
        let list = lock(&self.list).clone();
        let forked = Self::new();
        forked.note(&list);
        *lock(&forked.list) = list;
        forked
    }

    /// What is noted, if it is one thing.
    pub(super) fn only(&self) -> Option<Arc<dyn Completion>> {
        match &lock(&self.list)[..] {
            [(_, only)] => Some(only.clone()),
            _ => None,
        }
    }

    /// All that is noted, if this thread may not wait for it: one that can keep the block, and the others.
    pub(super) fn not_here(&self) -> Option<(Arc<dyn Completion>, Vec<Arc<dyn Completion>>)> {
        if self.uses.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut all: Vec<_> = lock(&self.list).iter().map(|(_, done)| done.clone()).collect();
        let keeper = all.iter().position(|done| !done.may_wait())?;
        Some((all.swap_remove(keeper), all))
    }

    /// Forgets all: others wait for it.
    pub(super) fn forget(&self) {
        let mut list = lock(&self.list);
        let _forgotten = std::mem::take(&mut *list);
        self.note(&list);
    }

    pub(super) fn add(&self, how: Use, done: Arc<dyn Completion>) {
        let mut list = lock(&self.list);
        list.push((how, done));
        self.note(&list); // before anything that can panic: what is in flight is pending whatever the others answer
        let newest = list.len() - 1;
        let mut at = 0..;
        list.retain(|(_, done)| at.next() == Some(newest) || !done.is_done());
        self.note(&list);
    }

    /// Returns when no device writes; panics if one was lost.
    #[inline]
    pub(super) fn wait_for_writers(&self) {
        if self.uses.load(Ordering::Acquire) & Use::Writes as u8 != 0 {
            self.wait_for(|how| how == Use::Writes).unwrap_or_else(refuse);
        }
    }

    /// Returns when no device reads or writes; panics if one was lost.
    pub(super) fn wait_for_all(&self) {
        self.wait_for_end().unwrap_or_else(refuse);
    }

    /// Returns when no device reads or writes, or an error if one was lost.
    pub(super) fn wait_for_end(&self) -> Result<(), Refusal> {
        if self.uses.load(Ordering::Acquire) == 0 { Ok(()) } else { self.wait_for(|_| true) }
    }

    #[cold]
    fn wait_for(&self, concerns: impl Fn(Use) -> bool) -> Result<(), Refusal> {
        let waited: List = lock(&self.list).iter().filter(|(how, _)| concerns(*how)).cloned().collect();
        if waited.iter().any(|(_, done)| !done.may_wait()) {
            return Err(Refusal::NotHere);
        }
        for (_, done) in &waited {
            done.wait(); // without the lock: others may wait, or add readers, meanwhile
        }
        if waited.iter().any(|(_, done)| done.is_lost()) {
            return Err(Refusal::Lost);
        }
        let mut list = lock(&self.list);
        list.retain(|(_, done)| !waited.iter().any(|(_, waited)| Arc::ptr_eq(waited, done)));
        self.note(&list);
        Ok(())
    }

    fn note(&self, list: &List) {
        let uses = list.iter().fold(0, |uses, (how, _)| uses | *how as u8);
        self.uses.store(uses, Ordering::Release);
    }
}
