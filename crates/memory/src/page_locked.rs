//! Memory whose pages stay where they are, so that a device can read and write them directly.
//!
//! Allocating it is slow (the system clears and pins every page), so it belongs under a [`Pooled`](crate::Pooled). The
//! system cannot reclaim it, so it belongs under a [`Limited`](crate::Limited) by
//! [`page_locked_ceiling`](crate::page_locked_ceiling). A [`PageLocker`] locks the pages: [`Mlock`] here, a GPU driver
//! in other crates.
//!
//! Invariant: a block owns its mapping before any step that can fail, and knows how much of it is locked.

use std::{
    fmt, io,
    num::NonZero,
    ops::Range,
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
};

use rustix::{
    mm::{self, Advice, MapFlags, ProtFlags},
    param::page_size,
    process::{Resource as Limit, getrlimit},
};

use crate::{Block, ByteSize, Error, MemoryKind, Reservation, Resource, Result, sync::lock_std};

/// Locks pages for a device, and unlocks them.
///
/// [`PageLocked`] calls it for page-aligned chunks of at most 256 MiB, because drivers hold locks of their own during a
/// call.
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
    /// The range consists of whole pages that are mapped, writable and touched, and stay so until
    /// [`unlock`](Self::unlock).
    unsafe fn lock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()>;

    /// Undoes one [`lock`](Self::lock).
    ///
    /// # Errors
    /// If a device may go on using the pages. They are then leaked, never reused, and stay charged to their budget.
    ///
    /// # Safety
    /// The range is exactly that of one earlier, successful [`lock`](Self::lock) that is not undone yet.
    unsafe fn unlock(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()>;

    /// Runs `free`, which unlocks and frees the pages of a dropped block: at once, or later if this thread must not
    /// call [`unlock`](Self::unlock) now. Until then, the pages are charged to their budget.
    fn when_possible(&self, free: Box<dyn FnOnce() + Send>) {
        free();
    }
}

/// Locks pages with `mlock` alone: they stay in RAM, but no device knows them. Limited by `RLIMIT_MEMLOCK`.
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

/// The error for a failed `mlock`: the limit, if that explains it, otherwise the system's error.
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

/// Whether [`PageLocked`] requests huge pages of 2 MiB, for blocks of at least 2 MiB.
///
/// Huge pages are faster to register with a device and faster to access. But if memory is fragmented, the system may
/// take long to make them. A block is rounded up to whole huge pages if that adds less than a hundredth to its length;
/// otherwise its end is on ordinary pages.
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
const WASTE: usize = 128; // a block may be 1/WASTE longer than requested to use only huge pages
// Starting a thread costs as much as touching about this much.
const TOUCH_PER_THREAD: usize = 8 << 20;

impl PageLocked {
    /// A source that is locked by [`Mlock`], has ordinary pages, and is touched by up to 16 threads.
    pub fn new() -> Self {
        let cores = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
        let at_most = NonZero::new(16).unwrap_or(NonZero::<usize>::MIN);
        Self { locker: Arc::new(Mlock), huge_pages: HugePages::No, touch_threads: cores.min(at_most) }
    }

    /// The same source, locked by `locker`.
    pub fn locked_by(self, locker: Arc<dyn PageLocker>) -> Self {
        Self { locker, ..self }
    }

    /// The same source, with this kind of pages.
    pub fn huge_pages(self, huge_pages: HugePages) -> Self {
        Self { huge_pages, ..self }
    }

    /// The same source, which clears the pages of large blocks with up to `touch_threads` threads.
    pub fn touch_threads(self, touch_threads: NonZero<usize>) -> Self {
        Self { touch_threads, ..self }
    }

    /// The alignment of a block's first page.
    fn page_bytes(&self, len_bytes: usize) -> usize {
        let huge = self.huge_pages == HugePages::WhereGranted && len_bytes >= HUGE_PAGE;
        if huge { HUGE_PAGE } else { page_size() }
    }

    /// How many bytes are touched and locked for a block, in whole pages; `None` on overflow.
    fn pages_for(&self, len_bytes: usize) -> Option<usize> {
        let pages = len_bytes.max(1).checked_next_multiple_of(page_size())?;
        let whole = pages.checked_next_multiple_of(self.page_bytes(len_bytes))?;
        // By `pages`, not `len_bytes`, so that the footprint of a footprint is the same: pools request footprints.
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
        self.allocate_charged(len_bytes, &mut None)
    }

    fn allocate_charged(&self, len_bytes: usize, charged: &mut Option<Reservation>) -> Result<PageLockedBlock> {
        let page_bytes = self.page_bytes(len_bytes);
        let out_of_memory = Error::OutOfMemory { asked: ByteSize(len_bytes as u64), kind: MemoryKind::PageLocked };
        let Some(touched_bytes) = self.pages_for(len_bytes) else { return Err(out_of_memory) };
        let mut block =
            PageLockedBlock::map(len_bytes, touched_bytes, page_bytes, self.locker.clone()).ok_or(out_of_memory)?;
        block.charged = charged.take();
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
    // Of those, locked in chunks from the front, and whether the locker may be locking the next chunk. Relaxed: only one
    // thread changes them, and they guard no memory.
    locked_bytes: AtomicUsize,
    is_locking: AtomicBool,
    len_bytes: usize,
    locker: Arc<dyn PageLocker>,
    charged: Option<Reservation>, // released when the memory is unmapped, which may be after the drop
}

// SAFETY: the block owns its mapping.
unsafe impl Send for PageLockedBlock {}
// SAFETY: as above; `&PageLockedBlock` gives out the address, and changes only atomics.
unsafe impl Sync for PageLockedBlock {}

// SAFETY: the `len_bytes` bytes from `start` on are part of a fresh anonymous mapping (see `map`), readable, writable
// and zero, which nobody else knows and which stays until drop.
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
    /// Maps the whole pages that are to be touched, and enough to start at a multiple of `page_bytes`. Locks nothing.
    fn map(len_bytes: usize, touched_bytes: usize, page_bytes: usize, locker: Arc<dyn PageLocker>) -> Option<Self> {
        let max_skip = page_bytes - page_size(); // the system aligns to its own pages anyway
        let mapped_bytes = touched_bytes.checked_add(max_skip)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the system's choice touches nothing that exists.
        let mapped = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), mapped_bytes, access, MapFlags::PRIVATE) };
        let mapped = NonNull::new(mapped.ok()?.cast::<u8>())?;
        let skip = mapped.align_offset(page_bytes);
        // SAFETY: `mapped` is a multiple of the system's page, so `skip` is at most `max_skip`.
        let start = unsafe { mapped.add(skip) };
        let (locked_bytes, is_locking) = (AtomicUsize::new(0), AtomicBool::new(false));
        let charged = None;
        Some(Self { mapped, mapped_bytes, start, touched_bytes, locked_bytes, is_locking, len_bytes, locker, charged })
    }

    /// Tells the system how the pages will be used. These are hints, so errors are ignored.
    fn advise(&self, page_bytes: usize) {
        // A fork must not share pages that a device writes to: with copy-on-write, the parent could get the copies, and
        // the device would write to the originals.
        // SAFETY: our own mapping; a child that touches it faults instead of seeing it.
        let _ = unsafe { mm::madvise(self.start.as_ptr().cast(), self.touched_bytes, Advice::LinuxDontFork) };
        if page_bytes == HUGE_PAGE {
            // SAFETY: our own mapping; changes no byte.
            let _ = unsafe { mm::madvise(self.start.as_ptr().cast(), self.touched_bytes, Advice::LinuxHugepage) };
        }
    }

    /// Touches every page, so that the system allocates and clears it, on several threads: locking would use only one.
    /// Locks each chunk once it is touched, while the threads touch the next. After an error, the drop unlocks the
    /// rest.
    fn touch_and_lock(&self, threads: NonZero<usize>) -> Result<()> {
        let threads = (self.touched_bytes / TOUCH_PER_THREAD).clamp(1, threads.get());
        let helpers = threads - 1;
        // With several chunks this thread locks them, and touches none itself.
        let only_locks = helpers > 0 && self.touched_bytes > MAX_CHUNK;
        let n_shares = if only_locks { helpers } else { threads };
        thread::scope(|scope| {
            let (done, touched) = mpsc::channel();
            for index in n_shares - helpers..n_shares {
                let done_here = done.clone();
                let touch = move || self.touch_share(index, n_shares, &done_here);
                if thread::Builder::new().spawn_scoped(scope, touch).is_err() {
                    self.touch_share(index, n_shares, &done); // no thread could be started
                }
            }
            if !only_locks {
                self.touch_share(0, n_shares, &done);
            }
            drop(done);
            self.lock_chunks(n_shares, &touched)
        })
    }

    /// Touches one thread's share of every chunk, and sends the chunk's number after each.
    fn touch_share(&self, index: usize, n_shares: usize, done: &mpsc::Sender<usize>) {
        for (number, chunk) in self.chunks().enumerate() {
            self.touch_range(share_of(&chunk, index, n_shares));
            let _ = done.send(number); // nobody receives after an error
        }
    }

    /// Locks each chunk once all its shares are touched.
    fn lock_chunks(&self, n_shares: usize, touched: &mpsc::Receiver<usize>) -> Result<()> {
        let mut shares_done = vec![0; self.chunks().count()];
        for (number, chunk) in self.chunks().enumerate() {
            while shares_done[number] < n_shares {
                let Ok(done) = touched.recv() else { break }; // a thread panicked: locking touches the rest
                shares_done[done] += 1;
            }
            let (start, len_bytes) = self.chunk_at(chunk.start);
            self.is_locking.store(true, Relaxed); // and stays so if the locker panics
            // SAFETY: whole pages of our mapping, which lives until they are unlocked in `drop`.
            let locked = unsafe { self.locker.lock(start, len_bytes) };
            self.is_locking.store(false, Relaxed);
            locked?;
            self.locked_bytes.store(chunk.end, Relaxed);
        }
        Ok(())
    }

    fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        let end = self.touched_bytes;
        (0..end).step_by(MAX_CHUNK).map(move |start| start..(start + MAX_CHUNK).min(end))
    }

    fn touch_range(&self, range: Range<usize>) {
        for offset in range.step_by(page_size()) {
            // SAFETY: `offset` is below `touched_bytes`, so inside the mapping.
            let page = unsafe { self.start.add(offset) };
            // SAFETY: inside the mapping, which only the threads of `touch_and_lock` know yet. Each writes its own
            // range, and the bytes are zero already.
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
        let locked =
            (0..self.locked_bytes.load(Relaxed)).step_by(MAX_CHUNK).map(|offset| self.chunk_at(offset)).collect();
        let (mapped, mapped_bytes, may_be_locked) = (self.mapped, self.mapped_bytes, self.is_locking.load(Relaxed));
        let (locker, charged) = (self.locker.clone(), self.charged.take());
        let unmap = Unmap { mapped, mapped_bytes, locked, may_be_locked, locker, charged };
        self.locker.when_possible(Box::new(move || unmap.run()));
    }
}

/// The reservations of memory that could not be freed. They stay charged, and reachable for leak checkers.
static LEAKED: Mutex<Vec<Reservation>> = Mutex::new(Vec::new());

/// The mapping of a dropped block. It leaks, and stays charged, unless `run` can free it.
struct Unmap {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    locked: Vec<(NonNull<u8>, usize)>, // chunks in the mapping
    may_be_locked: bool,               // whether another chunk may be locked
    locker: Arc<dyn PageLocker>,
    charged: Option<Reservation>, // none once the mapping is freed
}

// SAFETY: it owns its mapping, which nobody else uses any more.
unsafe impl Send for Unmap {}

impl Unmap {
    /// Unlocks the locked chunks, and unmaps everything unless a device may still use a part.
    fn run(mut self) {
        let mut all_unlocked = !self.may_be_locked;
        for &(start, len_bytes) in &self.locked {
            // SAFETY: the ranges that `lock` locked, once each.
            all_unlocked &= unsafe { self.locker.unlock(start, len_bytes) }.is_ok();
        }
        if all_unlocked {
            // SAFETY: the whole mapping made in `map`, which nobody uses any more.
            let unmapped = unsafe { mm::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
            self.charged.take_if(|_| unmapped.is_ok());
        }
    }
}

impl Drop for Unmap {
    fn drop(&mut self) {
        if let Some(charged) = self.charged.take() {
            lock_std(&LEAKED).push(charged);
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
             driver lock the pages, which this limit does not cover"
        );
    }

    #[test]
    fn a_refusal_below_the_lock_limit_says_what_the_system_said() {
        let error = lock_error(4096, Some(8 << 20), 0, io::Error::from_raw_os_error(11));
        assert_eq!(
            error.to_string(),
            "cannot page-lock or unlock 4 KiB: Resource temporarily unavailable (os error 11); use smaller buffers, or \
             pageable ones"
        );
    }
}
