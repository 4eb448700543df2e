//! The blocks that one stream keeps for later, and who holds those that it gave.
//!
//! Invariant: whatever the device still does with a kept block is queued on the cache's stream, or is waited for
//! there. So work that is queued on that stream from now on may use the block at once.

use pagelock_memory::{ByteSize, Tally};

use super::{CLASSES, segment::PoolBlock};

/// See the head of the file.
#[derive(Default)]
pub(crate) struct BlockCache {
    by_class: Vec<Vec<PoolBlock>>, // empty, or one per class; a block is found by its class, last freed first
    large: Vec<PoolBlock>,         // found by exact length
    pub(super) idle_bytes: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) held: Tally,
    pub(super) live_blocks: u64,
}

impl BlockCache {
    /// The bytes of kept blocks.
    pub(crate) fn idle(&self) -> ByteSize {
        ByteSize(self.idle_bytes)
    }

    /// A kept block of exactly that rounded length.
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

    pub(super) fn keep(&mut self, block: PoolBlock) {
        self.idle_bytes += block.len_bytes as u64;
        let Some(class) = CLASSES.class_of(block.len_bytes) else { return self.large.push(block) };
        if self.by_class.is_empty() {
            self.by_class.resize_with(CLASSES.count(), Vec::new);
        }
        self.by_class[class].push(block);
    }

    /// A block is used from now on.
    pub(super) fn note_given(&mut self, block: &PoolBlock) {
        self.live_blocks += 1;
        self.held.add(block.holder, block.len_bytes as u64);
    }

    /// A block is no longer used.
    pub(super) fn note_back(&mut self, block: &PoolBlock) {
        self.live_blocks -= 1;
        self.held.sub(block.holder, block.len_bytes as u64);
    }

    /// Every kept block.
    pub(super) fn take_all(&mut self) -> Vec<PoolBlock> {
        self.idle_bytes = 0;
        let mut all = std::mem::take(&mut self.large);
        all.extend(self.by_class.iter_mut().flat_map(|class| class.drain(..)));
        all
    }

    /// Gives every kept block up, because the device may still use some.
    pub(crate) fn leak_all(&mut self) {
        self.take_all().into_iter().for_each(PoolBlock::leak);
    }
}
