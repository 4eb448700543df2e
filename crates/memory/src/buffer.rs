//! [`HostBuffer`]: one block of any kind, and what a device may still be doing with it.
//!
//! Invariants:
//! - `ptr`, `len_bytes` and `kind` are those of the block in `owner`, which lives as long as the buffer;
//! - host code gets a slice only when no pending completion forbids it, and the block is dropped only when none is left.

use std::{
    fmt,
    mem::{MaybeUninit, align_of, size_of},
    ptr::NonNull,
    slice,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{Block, ByteSize, Error, Kind, Resource, Result};

/// Something a device does to host bytes that will be done at some time.
///
/// Neither function may panic: buffers wait while they are dropped.
pub trait Completion: Send + Sync + 'static {
    /// Whether the device will not touch the bytes any more.
    fn is_done(&self) -> bool;

    /// Returns when [`Completion::is_done`].
    fn wait(&self);
}

/// Bytes on the host: one block from any [`Resource`], aligned to [`ALIGN`](crate::ALIGN), initialised.
///
/// A device may read or write the bytes while the buffer lives: whoever starts that says so with
/// [`add_reader`](Self::add_reader) or [`add_writer`](Self::add_writer), and host access, and dropping the buffer,
/// wait for it. With nothing pending that costs one load. Making a buffer over a pooled block allocates nothing.
///
/// # Examples
/// ```
/// use pagelock_memory::{HostBuffer, default_host};
///
/// let mut buffer = HostBuffer::allocate(default_host(), 4)?;
/// buffer.bytes_mut()?.copy_from_slice(&[1, 2, 3, 4]);
/// assert_eq!(buffer.bytes(), [1, 2, 3, 4]);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub struct HostBuffer {
    ptr: NonNull<u8>,
    len_bytes: usize,
    kind: Kind,
    pending: Pending,
    owner: Owner,
}

// SAFETY: the owner is a `Block`, so Send and Sync itself; `ptr` points to bytes that only this buffer gives out,
// under Rust's own rules: shared slices from `&self`, an exclusive one from `&mut self`.
unsafe impl Send for HostBuffer {}
// SAFETY: as above, and `Pending` locks what it changes.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// A buffer of `len_bytes` from `resource`. What the bytes hold is up to the resource: zeros from a source,
    /// whatever was left there from a pool.
    ///
    /// # Errors
    /// Those of the resource.
    pub fn allocate<R: Resource>(resource: &R, len_bytes: usize) -> Result<Self> {
        resource.allocate(len_bytes).map(Self::from_block)
    }

    /// A buffer that owns `block`.
    pub fn from_block<B: Block>(block: B) -> Self {
        let (ptr, len_bytes, kind) = (block.ptr(), block.len_bytes(), block.kind());
        Self {
            ptr,
            len_bytes,
            kind,
            pending: Pending::default(),
            owner: Owner::new(block),
        }
    }

    /// The bytes, after waiting for pending writers.
    pub fn bytes(&self) -> &[u8] {
        self.pending.wait_for_writers();
        // SAFETY: the block is valid and initialised for `len_bytes` bytes (`Block`'s contract) and lives as long
        // as `self`; no device writes to it (just waited), and host writers need `&mut self`.
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), self.len_bytes) }
    }

    /// The bytes for writing, after waiting for pending readers and writers.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the buffer [cannot be written](Self::is_writable).
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        if !self.is_writable() {
            return Err(Error::ReadOnly {
                kind: self.kind,
                len: ByteSize(self.len_bytes as u64),
            });
        }
        self.pending.wait_for_all();
        // SAFETY: valid, initialised and writable for `len_bytes` bytes (`Block`'s contract, not `Mapped`); no
        // device uses it (just waited), and `&mut self` makes this the only host access.
        Ok(unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len_bytes) })
    }

    /// The first byte, **without waiting** for anything; for code that starts device copies, or that shares the
    /// bytes under rules of its own after [`wait_for_writers`](Self::wait_for_writers) or
    /// [`wait_for_all`](Self::wait_for_all).
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// How many bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Which kind of memory.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether the bytes can be written: everything but mapped files.
    pub fn is_writable(&self) -> bool {
        self.kind != Kind::Mapped
    }

    /// Notes that a device reads the bytes until `done`: writing and dropping will wait for it.
    pub fn add_reader(&self, done: Arc<dyn Completion>) {
        self.pending.add(Use::Reads, done);
    }

    /// Notes that a device writes the bytes until `done`: reading, writing and dropping will wait for it.
    ///
    /// It takes `&mut self` because the device must not start while a slice of the bytes is out.
    pub fn add_writer(&mut self, done: Arc<dyn Completion>) {
        self.pending.add(Use::Writes, done);
    }

    /// Returns when no device writes the bytes any more.
    pub fn wait_for_writers(&self) {
        self.pending.wait_for_writers();
    }

    /// Returns when no device reads or writes the bytes any more.
    pub fn wait_for_all(&self) {
        self.pending.wait_for_all();
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HostBuffer({} {})",
            ByteSize(self.len_bytes as u64),
            self.kind
        )
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // Then the fields drop, `owner` among them. Should a wait panic after all, they drop while unwinding:
        // `Owner` leaks in that case.
        self.owner.armed = false;
        self.pending.wait_for_all();
        self.owner.armed = true;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Reads,
    Writes,
}

/// What devices may still be doing.
#[derive(Default)]
struct Pending {
    // Set before `add` returns, cleared when the list is empty. Acquire pairs with the release in `wait_for`: who
    // sees them cleared by another thread also sees what that thread's wait made visible.
    reads: AtomicBool,
    writes: AtomicBool,
    list: Mutex<Vec<(Use, Arc<dyn Completion>)>>,
}

impl Pending {
    fn add(&self, how: Use, done: Arc<dyn Completion>) {
        let mut list = self.list();
        list.retain(|(_, done)| !done.is_done());
        list.push((how, done));
        self.note(&list);
    }

    fn wait_for_writers(&self) {
        if self.writes.load(Ordering::Acquire) {
            self.wait_for(|how| how == Use::Writes);
        }
    }

    fn wait_for_all(&self) {
        if self.writes.load(Ordering::Acquire) || self.reads.load(Ordering::Acquire) {
            self.wait_for(|_| true);
        }
    }

    #[cold]
    fn wait_for(&self, concerns: impl Fn(Use) -> bool) {
        let waited: Vec<_> = self
            .list()
            .iter()
            .filter(|(how, _)| concerns(*how))
            .map(|(_, done)| done.clone())
            .collect();
        for done in &waited {
            done.wait(); // without the lock: others may wait, or add readers, meanwhile
        }
        let mut list = self.list();
        list.retain(|(_, done)| !waited.iter().any(|waited| Arc::ptr_eq(waited, done)));
        self.note(&list);
    }

    fn note(&self, list: &[(Use, Arc<dyn Completion>)]) {
        self.reads.store(
            list.iter().any(|(how, _)| *how == Use::Reads),
            Ordering::Release,
        );
        self.writes.store(
            list.iter().any(|(how, _)| *how == Use::Writes),
            Ordering::Release,
        );
    }

    fn list(&self) -> MutexGuard<'_, Vec<(Use, Arc<dyn Completion>)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A block of any type, kept in place if it is small (those of pooled stacks are) and in a box if not: what
/// `Box<dyn Block>` would be without its allocation. It only remembers how to drop the block.
struct Owner {
    place: MaybeUninit<Place>,
    drop_block: unsafe fn(*mut Place),
    armed: bool,
}

type Place = [usize; 6];

impl Owner {
    fn new<B: Block>(block: B) -> Self {
        if size_of::<B>() <= size_of::<Place>() && align_of::<B>() <= align_of::<Place>() {
            Self::in_place(block)
        } else {
            Self::in_place(Box::new(block))
        }
    }

    /// `block` must fit the place, in size and alignment.
    fn in_place<B>(block: B) -> Self {
        const { assert!(size_of::<Box<u8>>() <= size_of::<Place>()) };
        assert!(size_of::<B>() <= size_of::<Place>() && align_of::<B>() <= align_of::<Place>());
        let mut place = MaybeUninit::<Place>::uninit();
        // SAFETY: the place is large and aligned enough for a `B` (just checked), and empty.
        unsafe { place.as_mut_ptr().cast::<B>().write(block) };
        Self {
            place,
            drop_block: drop_block::<B>,
            armed: true,
        }
    }
}

/// # Safety
/// `place` holds a `B` that nobody uses afterwards.
unsafe fn drop_block<B>(place: *mut Place) {
    // SAFETY: the caller's promise.
    unsafe { place.cast::<B>().drop_in_place() }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.armed {
            // SAFETY: `in_place` put a block of the type that `drop_block` drops here; nothing uses it afterwards.
            unsafe { (self.drop_block)(self.place.as_mut_ptr()) }
        }
    }
}
