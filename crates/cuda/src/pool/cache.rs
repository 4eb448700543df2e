//! The free blocks of one stream, and the holders of the blocks that it has handed out.
//!
//! Invariant: all uses of a free block are queued on the cache's stream, or that stream has queued a wait for them.
//! So work that is queued on that stream from now on may use the block at once.

use pagelock_memory::{ByteSize, Tally};

use super::{CLASSES, segment::PoolBlock};

/// See the head of the file.
#[derive(Default)]
pub(crate) struct BlockCache {
    by_class: Vec<Vec<PoolBlock>>, // empty, or one stack per class; the last freed block is reused first
    large: Vec<PoolBlock>,         // searched by exact length
    pub(super) idle_bytes: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) live_by_holder: Tally,
    pub(super) live_blocks: u64,
}

impl BlockCache {
    /// The size of the free blocks.
    pub(crate) fn idle(&self) -> ByteSize {
        ByteSize(self.idle_bytes)
    }

    /// Removes a free block of exactly that rounded length.
    pub(super) fn take(&mut self, len_bytes: usize) -> Option<PoolBlock> {
        let block = match CLASSES.class_of(len_bytes) {
            Some(class) => self.by_class.get_mut(class)?.pop()?,
            None => {
                let at = self.large.iter().rposition(|block| block.len_bytes == len_bytes)?;
                self.large.swap_remove(at)
            }
        };
        self.idle_bytes -= len_bytes as u64;
        Some(block)
    }

    pub(super) fn insert(&mut self, block: PoolBlock) {
        self.idle_bytes += block.len_bytes as u64;
        let Some(class) = CLASSES.class_of(block.len_bytes) else { return self.large.push(block) };
        if self.by_class.is_empty() {
            self.by_class.resize_with(CLASSES.count(), Vec::new);
        }
        self.by_class[class].push(block);
    }

    /// Counts a block that a buffer uses from now on.
    pub(super) fn note_allocated(&mut self, block: &PoolBlock) {
        self.live_blocks += 1;
        self.live_by_holder.add(block.holder, block.len_bytes as u64);
    }

    /// Counts a block that no buffer uses any more.
    pub(super) fn note_freed(&mut self, block: &PoolBlock) {
        self.live_blocks -= 1;
        self.live_by_holder.sub(block.holder, block.len_bytes as u64);
    }

    /// Notes that work of the stream up to number `last_use` may use the free blocks.
    pub(crate) fn note_use(&mut self, last_use: u64) {
        let blocks = self.by_class.iter_mut().flatten().chain(&mut self.large);
        blocks.for_each(|block| block.last_use = last_use);
    }

    /// Removes all free blocks.
    pub(super) fn take_all(&mut self) -> Vec<PoolBlock> {
        self.idle_bytes = 0;
        let mut all = std::mem::take(&mut self.large);
        all.extend(self.by_class.iter_mut().flat_map(|class| class.drain(..)));
        all
    }

    /// Leaks all free blocks, because the device may still use some.
    pub(crate) fn leak_all(&mut self) {
        self.take_all().into_iter().for_each(PoolBlock::leak);
    }
}
