//! Ordinary memory from the global allocator, aligned and zeroed.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
};

#[cfg(target_os = "linux")]
use rustix::mm::{Advice, madvise};

use crate::allocator_cache::note_freed;
use crate::{ALIGN, Block, ByteSize, Error, MemoryKind, Resource, Result};

/// A source of ordinary memory: [`ALIGN`]-byte aligned, zeroed.
///
/// # Examples
/// ```
/// use pagelock_memory::{HostBuffer, Pageable};
///
/// let buffer = HostBuffer::allocate(&Pageable, 4_096)?;
/// assert!(buffer.bytes().iter().all(|&byte| byte == 0));
/// # Ok::<(), pagelock_memory::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Pageable;

// Asking the allocator for 64-byte alignment makes it clear the bytes itself, page by page; at its natural
// alignment it hands out fresh zero pages untouched. So allocate with that and skip to the first aligned byte.
const NATURAL_ALIGN: usize = 16;
const SPARE: usize = ALIGN - NATURAL_ALIGN;

impl Resource for Pageable {
    type Block = PageableBlock;

    fn allocate(&self, len_bytes: usize) -> Result<PageableBlock> {
        let out_of_memory = || Error::OutOfMemory { asked: ByteSize(len_bytes as u64), kind: MemoryKind::Pageable };
        let layout = len_bytes
            .checked_add(SPARE)
            .and_then(|with_spare| Layout::from_size_align(with_spare, NATURAL_ALIGN).ok())
            .ok_or_else(out_of_memory)?;
        // SAFETY: the layout is at least `SPARE` bytes, so not of size zero.
        let allocated = unsafe { alloc_zeroed(layout) };
        let allocated = NonNull::new(allocated).ok_or_else(out_of_memory)?;
        let block = PageableBlock { allocated, layout };
        block.advise_huge_pages();
        Ok(block)
    }
}

/// A block of [`Pageable`] memory.
#[derive(Debug)]
pub struct PageableBlock {
    allocated: NonNull<u8>,
    layout: Layout,
}

/// The size of a huge page. Blocks of at least two of them request huge pages.
const HUGE_PAGE: usize = 2 << 20;

impl PageableBlock {
    /// Requests huge pages for the part of the block that consists of whole ones. The first touch of a large block then
    /// takes a third of the time, and reading it is faster. The system may ignore the request.
    fn advise_huge_pages(&self) {
        if self.layout.size() < 2 * HUGE_PAGE || cfg!(any(miri, not(target_os = "linux"))) {
            return;
        }
        let skip = self.allocated.align_offset(HUGE_PAGE);
        let len_bytes = (self.layout.size() - skip) / HUGE_PAGE * HUGE_PAGE;
        #[cfg(target_os = "linux")]
        {
            // SAFETY: `skip` is less than a huge page, and the allocation is at least two.
            let start = unsafe { self.allocated.add(skip) };
            // SAFETY: whole pages inside our own allocation; the hint changes no byte.
            let _ = unsafe { madvise(start.as_ptr().cast(), len_bytes, Advice::LinuxHugepage) };
        }
    }
}

// SAFETY: the block owns its allocation and has no interior mutability.
unsafe impl Send for PageableBlock {}
// SAFETY: as above; `&PageableBlock` only gives out the address.
unsafe impl Sync for PageableBlock {}

// SAFETY: `allocate` got `SPARE` bytes more than `len_bytes`, zeroed, and skipping at most `SPARE` of them keeps
// the rest inside the allocation, which nobody else knows and which lives until drop.
unsafe impl Block for PageableBlock {
    fn ptr(&self) -> NonNull<u8> {
        let skip = self.allocated.align_offset(ALIGN);
        // SAFETY: `allocated` is a multiple of 16, so `skip` is at most `SPARE` and stays inside the allocation.
        unsafe { self.allocated.add(skip) }
    }

    fn len_bytes(&self) -> usize {
        self.layout.size() - SPARE
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Pageable
    }
}

impl Drop for PageableBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `allocate` with this very layout, and freed only here.
        unsafe { dealloc(self.allocated.as_ptr(), self.layout) }
        note_freed(self.layout.size());
    }
}
