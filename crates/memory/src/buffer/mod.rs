//! [`HostBuffer`]: one block of any kind, and the pending device accesses to it.
//!
//! `pending.rs` waits for devices, `owner.rs` stores the block, `abandoned.rs` keeps the block of a buffer that was
//! dropped before a device was done with it, and `parts.rs` cuts one block into several buffers.
//!
//! Invariants:
//! - `ptr`, `len_bytes` and `kind` are those of the block in `owner`, which lives as long as the buffer;
//! - host code gets a slice, and the block is dropped, only after conflicting device accesses are done.

mod abandoned;
mod owner;
mod parts;
mod pending;

use std::{fmt, mem::ManuallyDrop, ptr::NonNull, slice, sync::Arc};

use self::{
    owner::Owner,
    parts::PartId,
    pending::{Pending, Use},
};
use crate::{Block, ByteSize, Error, MemoryKind, Resource, Result, watch};

pub use self::{abandoned::Abandoned, pending::Completion};

/// Bytes on the host: one block from any [`Resource`], aligned to [`ALIGN`](crate::ALIGN), initialized.
///
/// A device may read or write the bytes while the buffer lives. Code that starts such work calls
/// [`add_reader`](Self::add_reader) or [`add_writer`](Self::add_writer); host access, and dropping the buffer, then wait for
/// the device. If nothing is pending, that costs one load. Making a buffer of a pooled block allocates nothing.
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
    kind: MemoryKind,
    pending: Pending,
    part_id: Option<PartId>, // if this is a part of another buffer
    waits_when_dropped: bool,
    owner: ManuallyDrop<Owner>, // dropped in `drop`, after the last wait
}

// SAFETY: the owner is a `Block`, so Send and Sync itself; `ptr` points to bytes that only this buffer exposes,
// under Rust's own rules: shared slices from `&self`, an exclusive one from `&mut self`.
unsafe impl Send for HostBuffer {}
// SAFETY: as above, and `Pending` locks what it changes.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// A buffer of `len_bytes` from `resource`. A source gives zeroed bytes; a pool gives bytes with old contents.
    ///
    /// # Errors
    /// The errors of the resource.
    pub fn allocate<R: Resource>(resource: &R, len_bytes: usize) -> Result<Self> {
        resource.allocate(len_bytes).map(Self::from_block)
    }

    /// A buffer that owns `block`.
    pub fn from_block<B: Block>(block: B) -> Self {
        let (ptr, len_bytes, kind) = (block.ptr(), block.len_bytes(), block.kind());
        let owner = ManuallyDrop::new(Owner::new(block));
        Self { ptr, len_bytes, kind, pending: Pending::new(), part_id: None, waits_when_dropped: true, owner }
    }

    /// The bytes, after waiting for pending writers.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.pending.wait_for_writers();
        // SAFETY: the block is valid and initialized for `len_bytes` bytes (`Block`'s contract) and lives as long
        // as `self`; no device writes to it (just waited), and host writers need `&mut self`.
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), self.len_bytes) }
    }

    /// The bytes for writing, after waiting for pending readers and writers.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the buffer [cannot be written](Self::is_writable).
    #[track_caller]
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        if !self.is_writable() {
            return Err(Error::ReadOnly { kind: self.kind, len: ByteSize(self.len_bytes as u64) });
        }
        self.pending.wait_for_all();
        watch::note_access(self.ptr, self.len_bytes);
        // SAFETY: valid, initialized and writable for `len_bytes` bytes (`Block`'s contract, not read-only); no
        // device uses it (just waited), and `&mut self` makes this the only host access.
        Ok(unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len_bytes) })
    }

    /// A pointer to the first byte, **without waiting** for devices. It is for code that starts device copies, or that
    /// shares the bytes under its own rules after [`wait_for_writers`](Self::wait_for_writers) or
    /// [`wait_for_all`](Self::wait_for_all).
    #[track_caller]
    pub fn as_ptr(&self) -> NonNull<u8> {
        watch::note_access(self.ptr, self.len_bytes);
        self.ptr
    }

    /// The length in bytes.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The kind of memory.
    #[inline]
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Whether the bytes can be written: not those of mapped files and of other libraries.
    pub fn is_writable(&self) -> bool {
        !matches!(self.kind, MemoryKind::Mapped | MemoryKind::Foreign)
    }

    /// Notes that a device reads the bytes until `done`: writing and dropping will wait for it.
    pub fn add_reader(&self, done: Arc<dyn Completion>) {
        Self::add_reader_to_each([self], &done);
    }

    /// Like [`add_reader`](Self::add_reader) of each buffer, but if a [`Completion`] panics, every buffer still has its
    /// reader.
    pub fn add_reader_to_each<'a, B>(buffers: B, done: &Arc<dyn Completion>)
    where
        B: IntoIterator<Item = &'a Self, IntoIter: Clone>,
    {
        let buffers = buffers.into_iter();
        buffers.clone().for_each(|buffer| buffer.pending.push(Use::Reads, done.clone()));
        buffers.for_each(|buffer| buffer.pending.sweep());
    }

    /// Notes that a device writes the bytes until `done`: reading, writing and dropping will wait for it.
    ///
    /// It takes `&mut self` because a device must not start to write while a slice of the bytes is borrowed:
    ///
    /// ```compile_fail,E0502
    /// # use pagelock_memory::{Completion, HostBuffer};
    /// fn download(buffer: &mut HostBuffer, done: std::sync::Arc<dyn Completion>) {
    ///     let before = buffer.bytes();
    ///     buffer.add_writer(done);
    ///     println!("{}", before[0]);
    /// }
    /// ```
    pub fn add_writer(&mut self, done: Arc<dyn Completion>) {
        self.pending.push(Use::Writes, done);
        self.pending.sweep();
    }

    /// The same buffer, whose drop does not wait for a device that still uses it, if the pending [`Completion`] can
    /// [keep](Completion::keep) the block until the device is done. The memory is freed some time after that.
    pub fn drop_without_waiting(mut self) -> Self {
        self.waits_when_dropped = false;
        self
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
        write!(f, "HostBuffer({} {})", ByteSize(self.len_bytes as u64), self.kind)
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: nothing uses the field after this.
        let owner = unsafe { ManuallyDrop::take(&mut self.owner) };
        let block = Abandoned::new(owner, self.len_bytes); // leaks if anything unwinds from here on
        let (keeper, block) = match self.pending.may_not_wait() {
            Some((keeper, others)) => (Some(keeper), block.with_completions(others)),
            None if self.waits_when_dropped => (None, block),
            None => (self.pending.single(), block),
        };
        let kept = match keeper {
            Some(keeper) => keeper.keep(block),
            None => Err(block),
        };
        if let Err(block) = kept
            && self.pending.wait_for_end().is_ok()
        {
            block.free();
        }
    }
}
