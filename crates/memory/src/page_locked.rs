//! Memory whose pages stay where they are, so that a device can read and write them directly.
//!
//! Getting it is slow (the system clears and pins every page), so it belongs under a [`Pooled`](crate::Pooled); and
//! the system cannot take it back, so it belongs under a [`Limited`](crate::Limited) by
//! [`page_locked_ceiling`](crate::page_locked_ceiling). Locking is a [`PageLocker`]'s business: [`Mlock`] here, a
//! GPU driver in other crates.
//!
//! Invariant: a mapping is owned before anything that can fail is done to it, and it knows how much of it is locked.

use std::{
    fmt, io,
    num::NonZero,
    ops::Range,
    ptr::NonNull,
    sync::{Arc, mpsc},
    thread,
};

use rustix::{
    mm::{self, Advice, MapFlags, ProtFlags},
    param::page_size,
    process::{Resource as Limit, getrlimit},
};

use crate::{Block, ByteSize, Error, MemoryKind, Resource, Result};

/// Locks pages for a device, and lets go of them.
///
/// [`PageLocked`] calls it for chunks of at most 256 MiB, page-aligned: drivers hold locks of their own for as long
/// as one call takes.
///
/// # Examples
/// A locker that only counts; a driver's would register the range with the device.
/// ```
/// use std::{ptr::NonNull, sync::{Arc, atomic::{AtomicUsize, Ordering::Relaxed}}};
/// use pagelock_memory::{PageLocked, PageLocker, Resource, Result};
///
/// #[derive(Debug, Default)]
/// struct Registered(AtomicUsize);
///
/// impl PageLocker for Registered {
///     unsafe fn lock(&self, _start: NonNull<u8>, len_bytes: usize) -> Result<()> {
///         self.0.fetch_add(len_bytes, Relaxed);
///         Ok(())
///     }
///     unsafe fn unlock(&self, _start: NonNull<u8>, len_bytes: usize) -> Result<()> {
///         self.0.fetch_sub(len_bytes, Relaxed);
///         Ok(())
///     }
/// }
///
/// let registered = Arc::new(Registered::default());
/// let block = PageLocked::new().locked_by(registered.clone()).allocate(8_192)?;
/// assert_eq!(registered.0.load(Relaxed), 8_192);
/// # drop(block);
/// # assert_eq!(registered.0.load(Relaxed), 0);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
pub trait PageLocker: fmt::Debug + Send + Sync + 'static {
    /// Locks a range of pages, and makes them known to the device if there is one.
    ///
    /// # Errors
    /// [`Error::LockLimit`] or [`Error::Lock`]; the pages are then not locked.
    ///
    /// # Safety
    /// The range is whole pages, mapped, writable, touched, and stays so until [`unlock`](Self::unlock).
    unsafe fn lock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()>;

    /// Undoes one [`lock`](Self::lock).
    ///
    /// # Errors
    /// If a device may go on using the pages: they are then leaked, never given to anybody else.
    ///
    /// # Safety
    /// The very range of one earlier, successful [`lock`](Self::lock), not yet undone.
    unsafe fn unlock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()>;

    /// Runs what unlocks and frees the pages of a block that was dropped: at once, or later where this thread must not call
    /// [`unlock`](Self::unlock) now.
    fn when_possible(&self, free: Box<dyn FnOnce() + Send>) {
        free();
    }
}

/// Locks pages with `mlock` alone: they stay in RAM, but no device knows them. Bound by `RLIMIT_MEMLOCK`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mlock;

impl PageLocker for Mlock {
    unsafe fn lock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        // SAFETY: the caller's range is mapped; `mlock` changes no byte of it.
        let locked = unsafe { mm::mlock(start.as_ptr().cast(), len_bytes) };
        locked.map_err(|errno| lock_error(len_bytes, getrlimit(Limit::Memlock).current, locked_now(), errno.into()))
    }

    unsafe fn unlock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        // SAFETY: as in `lock`.
        let unlocked = unsafe { mm::munlock(start.as_ptr().cast(), len_bytes) };
        unlocked.map_err(|errno| Error::Lock { asked: ByteSize(len_bytes as u64), source: Box::new(errno) })
    }
}

/// What `mlock`'s refusal means: the limit, if that explains it, or whatever the system said.
fn lock_error(asked: usize, limit: Option<u64>, locked: u64, source: io::Error) -> Error {
    let asked = asked as u64;
    match limit {
        Some(limit) if locked.saturating_add(asked) > limit => {
            Error::LockLimit { asked: ByteSize(asked), locked: ByteSize(locked), limit: ByteSize(limit) }
        }
        _ => Error::Lock { asked: ByteSize(asked), source: Box::new(source) },
    }
}

/// Bytes that this process has locked with `mlock`.
fn locked_now() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// A source of page-locked memory: page-aligned, zeroed, touched, not inherited by child processes.
///
/// # Examples
/// ```
/// use pagelock_memory::{
///     Budget, HostBuffer, Limited, MemoryKind, PageLocked, Pooled, page_locked_ceiling,
/// };
///
/// let budget = Budget::new("page-locked", page_locked_ceiling().bytes);
/// let pinned = Pooled::new(Limited::new(PageLocked::new(), budget));
/// let buffer = HostBuffer::allocate(&pinned, 10_000)?;
/// assert_eq!(buffer.kind(), MemoryKind::PageLocked);
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PageLocked {
    locker: Arc<dyn PageLocker>,
    huge_pages: HugePages,
    touch_threads: NonZero<usize>,
}

/// Whether [`PageLocked`] asks for 2 MiB pages, for blocks of at least 2 MiB.
///
/// A device registers them faster and the processor finds them faster; but where memory is fragmented the system may
/// spend long on making them. A block is rounded up to whole huge pages where that adds less than a hundredth to it; the
/// end of any other is on ordinary pages.
///
/// # Examples
/// ```
/// use pagelock_memory::{HugePages, PageLocked, Resource};
///
/// let source = PageLocked::new().huge_pages(HugePages::WhereGranted);
/// assert_eq!(source.footprint((300 << 20) + 1), 302 << 20);
/// assert_eq!(source.footprint((3 << 20) + 1), (3 << 20) + 4_096);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// The system's ordinary pages.
    #[default]
    No,
    /// Huge pages where the system grants them, ordinary ones where not.
    WhereGranted,
}

const HUGE_PAGE: usize = 2 << 20;
const MAX_CHUNK: usize = 256 << 20;
const WASTE: usize = 128; // a block may be so much of itself longer than asked, to be on huge pages alone
// Starting a thread costs as much as touching about this much.
const TOUCH_PER_THREAD: usize = 8 << 20;

impl PageLocked {
    /// Locked by [`Mlock`], ordinary pages, touched by up to 16 threads.
    pub fn new() -> Self {
        let cores = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
        let at_most = NonZero::new(16).unwrap_or(NonZero::<usize>::MIN);
        Self { locker: Arc::new(Mlock), huge_pages: HugePages::No, touch_threads: cores.min(at_most) }
    }

    /// The same, locked by `locker`.
    pub fn locked_by(self, locker: Arc<dyn PageLocker>) -> Self {
        Self { locker, ..self }
    }

    /// The same, with that kind of pages.
    pub fn huge_pages(self, huge_pages: HugePages) -> Self {
        Self { huge_pages, ..self }
    }

    /// The same, clearing the pages of large blocks with that many threads.
    pub fn touch_threads(self, touch_threads: NonZero<usize>) -> Self {
        Self { touch_threads, ..self }
    }

    /// Where a block's first page has to start: at a multiple of this.
    fn page_bytes(&self, len_bytes: usize) -> usize {
        let huge = self.huge_pages == HugePages::WhereGranted && len_bytes >= HUGE_PAGE;
        if huge { HUGE_PAGE } else { page_size() }
    }

    /// What is touched and locked for a block: whole pages; none if that is more than can be.
    fn pages_for(&self, len_bytes: usize) -> Option<usize> {
        let pages = len_bytes.max(1).checked_next_multiple_of(page_size())?;
        let whole = pages.checked_next_multiple_of(self.page_bytes(len_bytes))?;
        // By `pages`, not `len_bytes`, so that what this gives is given for itself too: pools ask for footprints.
        Some(if whole - pages <= pages / WASTE { whole } else { pages })
    }
}

impl Default for PageLocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Resource for PageLocked {
    type Block = PageLockedBlock;

    fn allocate(&self, len_bytes: usize) -> Result<PageLockedBlock> {
        let page_bytes = self.page_bytes(len_bytes);
        let out_of_memory = Error::OutOfMemory { asked: ByteSize(len_bytes as u64), kind: MemoryKind::PageLocked };
        let Some(touched_bytes) = self.pages_for(len_bytes) else { return Err(out_of_memory) };
        let mut block =
            PageLockedBlock::map(len_bytes, touched_bytes, page_bytes, self.locker.clone()).ok_or(out_of_memory)?;
        block.advise(page_bytes);
        block.touch_and_lock(self.touch_threads)?;
        Ok(block)
    }

    fn footprint(&self, len_bytes: usize) -> usize {
        self.pages_for(len_bytes).unwrap_or(usize::MAX)
    }
}

/// A block of [`PageLocked`] memory.
#[derive(Debug)]
pub struct PageLockedBlock {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    start: NonNull<u8>,   // the first whole page in `mapped`
    touched_bytes: usize, // whole pages from `start` on; the rest of `mapped` is never touched and costs nothing
    locked_bytes: usize,  // of those, locked in chunks from the front
    len_bytes: usize,
    locker: Arc<dyn PageLocker>,
}

// SAFETY: the block owns its mapping and has no interior mutability.
unsafe impl Send for PageLockedBlock {}
// SAFETY: as above; `&PageLockedBlock` only gives out the address.
unsafe impl Sync for PageLockedBlock {}

// SAFETY: `map` made `len_bytes` bytes from `start` on part of a fresh anonymous mapping, readable, writable and
// zero, which nobody else knows and which stays until drop.
unsafe impl Block for PageLockedBlock {
    fn ptr(&self) -> NonNull<u8> {
        self.start
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::PageLocked
    }
}

impl PageLockedBlock {
    /// Maps the whole pages that are to be touched, with room to start at a multiple of `page_bytes`. Nothing locked yet.
    fn map(len_bytes: usize, touched_bytes: usize, page_bytes: usize, locker: Arc<dyn PageLocker>) -> Option<Self> {
        let room = page_bytes - page_size(); // the system aligns to its own pages anyway
        let mapped_bytes = touched_bytes.checked_add(room)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the system's choice touches nothing that exists.
        let mapped = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), mapped_bytes, access, MapFlags::PRIVATE) };
        let mapped = NonNull::new(mapped.ok()?.cast::<u8>())?;
        let skip = mapped.align_offset(page_bytes);
        // SAFETY: `mapped` is a multiple of the system's page, so `skip` is at most `room`.
        let start = unsafe { mapped.add(skip) };
        Some(Self { mapped, mapped_bytes, start, touched_bytes, locked_bytes: 0, len_bytes, locker })
    }

    /// Tells the system how the pages will be used. It may not know these hints: memory works without them.
    fn advise(&self, page_bytes: usize) {
        // A child process must not get copies of pages that a device writes to, or the parent could be the one left
        // with the copies.
        // SAFETY: our own mapping; a child that touches it faults instead of seeing it.
        let _ = unsafe { mm::madvise(self.start.as_ptr().cast(), self.touched_bytes, Advice::LinuxDontFork) };
        if page_bytes == HUGE_PAGE {
            // SAFETY: our own mapping; changes no byte.
            let _ = unsafe { mm::madvise(self.start.as_ptr().cast(), self.touched_bytes, Advice::LinuxHugepage) };
        }
    }

    /// Makes the system give and clear every page, on several threads: locking would do it on one. Locks each chunk when
    /// it is touched, while the threads go on with the next. After an error the drop undoes what was locked.
    fn touch_and_lock(&mut self, threads: NonZero<usize>) -> Result<()> {
        let threads = (self.touched_bytes / TOUCH_PER_THREAD).clamp(1, threads.get());
        let helpers = threads - 1;
        // With several chunks this thread locks them, and touches none itself.
        let only_locks = helpers > 0 && self.touched_bytes > MAX_CHUNK;
        let sharing = if only_locks { helpers } else { threads };
        let (locked_bytes, result) = thread::scope(|scope| {
            let (done, touched) = mpsc::channel();
            for index in sharing - helpers..sharing {
                let (block, done_here) = (&*self, done.clone());
                let touch = move || block.touch_share(index, sharing, &done_here);
                if thread::Builder::new().spawn_scoped(scope, touch).is_err() {
                    self.touch_share(index, sharing, &done); // no thread to be had: do it here
                }
            }
            if !only_locks {
                self.touch_share(0, sharing, &done);
            }
            drop(done);
            self.lock_chunks(sharing, &touched)
        });
        self.locked_bytes = locked_bytes;
        result
    }

    /// One thread's share of every chunk; says when it is done with each, by the chunk's number.
    fn touch_share(&self, index: usize, sharing: usize, done: &mpsc::Sender<usize>) {
        for (number, chunk) in self.chunks().enumerate() {
            self.touch_range(share_of(&chunk, index, sharing));
            let _ = done.send(number); // nobody listens after an error
        }
    }

    /// Locks each chunk when all shares of it are touched; how much is locked at the end.
    fn lock_chunks(&self, sharing: usize, touched: &mpsc::Receiver<usize>) -> (usize, Result<()>) {
        let mut shares_done = vec![0; self.chunks().count()];
        for (number, chunk) in self.chunks().enumerate() {
            while shares_done[number] < sharing {
                let Ok(done) = touched.recv() else { break }; // a thread that panicked: locking touches what is left
                shares_done[done] += 1;
            }
            let (start, len_bytes) = self.chunk_at(chunk.start);
            // SAFETY: whole pages of our mapping, which lives until they are unlocked in `drop`.
            if let Err(error) = unsafe { self.locker.lock(start, len_bytes) } {
                return (chunk.start, Err(error));
            }
        }
        (self.touched_bytes, Ok(()))
    }

    fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        let end = self.touched_bytes;
        (0..end).step_by(MAX_CHUNK).map(move |start| start..(start + MAX_CHUNK).min(end))
    }

    fn touch_range(&self, range: Range<usize>) {
        for offset in range.step_by(page_size()) {
            // SAFETY: `offset` is below `touched_bytes`, so inside the mapping.
            let page = unsafe { self.start.add(offset) };
            // SAFETY: inside the mapping, which only the threads of `touch_and_lock` know yet, each its own range; the bytes
            // are zero already.
            unsafe { page.write_volatile(0) };
        }
    }

    fn chunk_at(&self, offset: usize) -> (NonNull<u8>, usize) {
        // SAFETY: called with offsets below `touched_bytes`, so inside the mapping.
        let start = unsafe { self.start.add(offset) };
        (start, MAX_CHUNK.min(self.touched_bytes - offset))
    }
}

/// The pages of a range that one of several threads touches.
fn share_of(range: &Range<usize>, index: usize, threads: usize) -> Range<usize> {
    let share = range.len().div_ceil(threads).next_multiple_of(page_size());
    let at = |index: usize| (range.start + index * share).min(range.end);
    at(index)..at(index + 1)
}

impl Drop for PageLockedBlock {
    fn drop(&mut self) {
        let locked = (0..self.locked_bytes).step_by(MAX_CHUNK).map(|offset| self.chunk_at(offset)).collect();
        let (mapped, mapped_bytes) = (self.mapped, self.mapped_bytes);
        let left = Left { mapped, mapped_bytes, locked, locker: self.locker.clone() };
        self.locker.when_possible(Box::new(move || left.free()));
    }
}

/// What a block leaves behind.
struct Left {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    locked: Vec<(NonNull<u8>, usize)>, // chunks in the mapping
    locker: Arc<dyn PageLocker>,
}

// SAFETY: it owns its mapping, which nobody else uses any more.
unsafe impl Send for Left {}

impl Left {
    /// Unlocks what is locked, and frees all unless a device may still use some of it.
    fn free(self) {
        let mut all_unlocked = true;
        for (start, len_bytes) in self.locked {
            // SAFETY: the ranges that `lock` locked, once each.
            all_unlocked &= unsafe { self.locker.unlock(start, len_bytes) }.is_ok();
        }
        if all_unlocked {
            // SAFETY: the whole mapping made in `map`, which nobody uses any more.
            let _ = unsafe { mm::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_by_the_lock_limit_names_the_numbers_and_the_fix() {
        let error = lock_error(16 << 20, Some(8 << 20), 4096, io::ErrorKind::OutOfMemory.into());
        assert_eq!(
            error.to_string(),
            "cannot page-lock 16 MiB: 4 KiB of the 8 MiB that RLIMIT_MEMLOCK allows are locked already; raise it \
             (`ulimit -l`, `LimitMEMLOCK=` of a service, `--ulimit memlock=-1` of a container), or let a GPU \
             driver lock the pages, which this limit does not bind"
        );
    }

    #[test]
    fn a_refusal_below_the_lock_limit_says_what_the_system_said() {
        let error = lock_error(4096, Some(8 << 20), 0, io::Error::from_raw_os_error(11));
        assert_eq!(
            error.to_string(),
            "cannot page-lock 4 KiB: Resource temporarily unavailable (os error 11); use smaller buffers, or \
             pageable ones"
        );
    }
}
