//! Segments, which the driver allocates for the pool, and the blocks into which the pool cuts them.
//!
//! Invariant: a segment is freed when its last block is dropped, and a block is dropped only when the device no
//! longer uses it. If that cannot be known, the block is leaked.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use pagelock_memory::{Holder, Reservation};

use super::is_shortage;
use crate::{device_shared::DeviceShared, driver::Address, error::Result};

/// Memory of one allocation of the driver.
pub(super) struct Segment {
    shared: Arc<DeviceShared>,
    address: Address,
    len_bytes: usize,
    charged: Option<Reservation>, // none during the drop
}

/// A part of a segment: what one buffer uses at a time.
pub(crate) struct PoolBlock {
    pub(crate) address: Address,
    pub(crate) len_bytes: usize,
    /// The number of the last work on its stream that may use the block for an earlier owner; 0 if there is none.
    pub(crate) last_use: u64,
    pub(super) segment: Arc<Segment>,
    /// The holder for which it was last allocated.
    pub(super) holder: Holder,
}

const SEGMENT_BYTES: usize = 2 << 20;
const MIN_SEGMENT_BYTES: usize = 64 << 10;
const BLOCKS_PER_SEGMENT: usize = 8; // fewer if their bytes exceed `SEGMENT_BYTES`

impl Segment {
    fn allocate(shared: &Arc<DeviceShared>, len_bytes: usize) -> Result<Self> {
        let charged = shared.memory.try_reserve(len_bytes as u64)?;
        let address = shared.driver.allocate(len_bytes)?;
        Ok(Self { shared: shared.clone(), address, len_bytes, charged: Some(charged) })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: an allocation of this driver that is freed once, and by this file's invariant no longer used.
        let freed = unsafe { self.shared.driver.free(self.address) };
        if freed.is_err() {
            // The memory may still be allocated, so it stays charged.
            self.shared.leaked.leak(self.charged.take(), self.len_bytes);
        }
    }
}

/// A new segment, cut into blocks of that length. Where memory is short, the segment is a single block.
pub(super) fn new_blocks(shared: &Arc<DeviceShared>, block_bytes: usize) -> Result<Vec<PoolBlock>> {
    let max_bytes = SEGMENT_BYTES.max(block_bytes);
    let segment_bytes = block_bytes.saturating_mul(BLOCKS_PER_SEGMENT).clamp(MIN_SEGMENT_BYTES, max_bytes);
    let count = (segment_bytes / block_bytes).max(1);
    let (segment, count) = match Segment::allocate(shared, count * block_bytes) {
        Err(refused) if count > 1 && is_shortage(&refused) => (Segment::allocate(shared, block_bytes)?, 1),
        segment => (segment?, count),
    };
    let segment = Arc::new(segment);
    let block = |index| PoolBlock {
        address: segment.address.offset(index * block_bytes),
        len_bytes: block_bytes,
        last_use: 0,
        segment: segment.clone(),
        holder: Holder::current(),
    };
    Ok((0..count).map(block).collect())
}

/// The segments all of whose blocks are among these.
pub(super) fn whole_segments<'a>(blocks: impl Iterator<Item = &'a PoolBlock>) -> HashSet<*const Segment> {
    let mut counts = HashMap::new();
    blocks.for_each(|PoolBlock { segment, .. }| counts.entry(Arc::as_ptr(segment)).or_insert((segment, 0)).1 += 1);
    counts.retain(|_, (segment, count)| Arc::strong_count(segment) == *count);
    counts.into_keys().collect()
}

impl PoolBlock {
    /// Leaks the block, because the device may still use it.
    pub(crate) fn leak(self) {
        let (shared, len_bytes) = (self.segment.shared.clone(), self.len_bytes);
        shared.leaked.leak(self, len_bytes);
    }
}
