//! A stream-ordered pool of device memory.
//!
//! A buffer belongs to the stream that allocated it. When it is dropped, its block goes to that stream's
//! [`BlockCache`], and the stream's next work may use it at once. The stream executes its work in order, so neither
//! the drop nor the next allocation calls the driver. Another stream takes a block from a cache only if the cache's
//! stream is idle or, when memory is short, after it has queued a wait for that stream on the device. Memory that the
//! driver allocates is charged to the device's budget. One thread at a time looks for memory outside of its stream's
//! cache or trims the pool, so a thread is refused only if the memory that is in use leaves too little.
//!
//! [`SizeClasses`] defines the block sizes, `segment.rs` has the memory that the driver allocated, and `cache.rs` the
//! free blocks of a stream.

mod cache;
mod segment;

use std::{collections::HashSet, sync::Arc, sync::atomic::Ordering::Relaxed};

use pagelock_memory::{ByteSize, Held, Holder, PoolStats, Report, ResourceEntry, SizeClasses, Tally};

use self::segment::Segment;
pub(crate) use self::{cache::BlockCache, segment::PoolBlock};
use crate::{
    device::{Device, DeviceCore},
    driver::{Failure, Status},
    error::{Error, Result},
    host_function,
    stream::StreamCore,
    sync::lock,
};

/// Statistics of a device's pool.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, software::Config};
///
/// let device = Device::software(Config::default())?;
/// let stream = device.stream()?;
/// drop(stream.allocate::<u8>(1_000)?);
/// drop(stream.allocate::<u8>(1_000)?); // the same memory again
/// let stats = device.pool_stats();
/// assert_eq!((stats.hits, stats.misses, stats.live.0), (1, 1, 0));
/// assert_eq!(device.trim()?, stats.reserved);
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevicePoolStats {
    /// The size of the blocks that buffers use now.
    pub live: ByteSize,
    /// The highest value that `live` has had.
    pub peak: ByteSize,
    /// The size of the free blocks.
    pub idle: ByteSize,
    /// The size of the memory that the driver has allocated for the pool.
    pub reserved: ByteSize,
    /// Allocations served from the stream's own free blocks.
    pub hits: u64,
    /// All other allocations.
    pub misses: u64,
}

/// The shortest block is as long as CUDA's alignment and longer than a kernel's widest access. Blocks above the
/// longest class are multiples of [`LARGE_STEP`].
const CLASSES: SizeClasses = SizeClasses::new(512, 16 << 20);
const LARGE_STEP: usize = 2 << 20; // the page size of a device

/// The length of the block that serves `len_bytes`; none if that overflows.
fn rounded(len_bytes: usize) -> Option<usize> {
    match CLASSES.class_of(len_bytes) {
        Some(class) => Some(CLASSES.len_bytes(class)),
        None => len_bytes.checked_next_multiple_of(LARGE_STEP),
    }
}

/// Allocates a block for work on that stream.
pub(crate) fn allocate(stream: &Arc<StreamCore>, len_bytes: usize, element: ByteSize) -> Result<PoolBlock> {
    let too_long = || Error::too_long(len_bytes / element.0.max(1) as usize, element);
    let rounded = rounded(len_bytes).ok_or_else(too_long)?;
    let is_reserved = stream.cache_is_reserved();
    let mut cache = lock(&stream.cache);
    let cached = if is_reserved { None } else { cache.take(rounded) };
    let block = match cached {
        Some(block) => {
            let block = PoolBlock { holder: Holder::current(), ..block };
            cache.hits += 1;
            cache.note_allocated(&block);
            block
        }
        None => {
            cache.misses += 1;
            drop(cache);
            let block = PoolBlock { holder: Holder::current(), ..miss(stream, rounded)? };
            lock(&stream.cache).note_allocated(&block);
            block
        }
    };
    stream.shared().live.add(rounded);
    Ok(block)
}

/// Puts the block of a dropped buffer into the stream's cache. The stream orders later uses of the block.
pub(crate) fn release(stream: &StreamCore, block: PoolBlock) {
    stream.shared().live.sub(block.len_bytes);
    let mut cache = lock(&stream.cache);
    cache.note_freed(&block);
    cache.insert(PoolBlock { last_use: stream.submitted(), ..block });
}

/// Leaks the block of a dropped buffer, which the device may still use.
pub(crate) fn leak(stream: &StreamCore, block: PoolBlock) {
    stream.shared().live.sub(block.len_bytes);
    lock(&stream.cache).note_freed(&block);
    block.leak();
}

#[cold]
fn miss(stream: &Arc<StreamCore>, rounded: usize) -> Result<PoolBlock> {
    match find_or_grow(stream, rounded) {
        Err(Error::Memory(pagelock_memory::Error::OverBudget(refusal))) if refusal.asked <= refusal.limit => {}
        result => return result,
    }
    // Without the lock: a pool of the budget is a user's code, which may allocate memory of the device or trim it.
    stream.shared().memory.trim_pools();
    find_or_grow(stream, rounded)
}

fn find_or_grow(stream: &Arc<StreamCore>, rounded: usize) -> Result<PoolBlock> {
    let device = stream.device();
    // No other thread may take the memory that `trim` frees, or find the caches empty while `trim` waits.
    let _alone = lock(&device.core().pool_growth);
    if let Some(block) = device.take_from_idle(stream, rounded) {
        return Ok(block);
    }
    let refused = match allocate_segment(stream, rounded) {
        Err(refused) if is_shortage(&refused) => refused,
        result => return result,
    };
    if let Some(block) = device.take_after_wait(stream, rounded) {
        return Ok(block);
    }
    let freed = device.trim_alone()?;
    if freed.0 == 0 { Err(refused) } else { allocate_segment(stream, rounded) }
}

/// Allocates new blocks from the driver: returns one and caches the rest.
fn allocate_segment(stream: &Arc<StreamCore>, rounded: usize) -> Result<PoolBlock> {
    let blocks = segment::new_blocks(stream.shared(), rounded);
    let mut blocks = blocks.map_err(|error| explain(stream, rounded, error))?;
    let block = blocks.pop().unwrap_or_else(|| unreachable!("a segment has at least one block"));
    let mut cache = lock(&stream.cache);
    blocks.into_iter().rev().for_each(|block| cache.insert(block));
    Ok(block)
}

/// Whether the driver or the budget refused memory, before or after [`explain`].
fn is_shortage(error: &Error) -> bool {
    let is_by_driver = matches!(error, Error::Driver(Failure { status: Status::OUT_OF_MEMORY, .. }));
    is_by_driver || matches!(error, Error::OutOfMemory { .. } | Error::Memory(_))
}

/// Puts the blocks of all other segments back into the caches from which they were taken.
fn put_back_parts(cached: &mut [(&Arc<StreamCore>, Vec<PoolBlock>)], whole: &HashSet<*const Segment>) {
    for (stream, blocks) in cached {
        let mut cache = lock(&stream.cache);
        let parts = blocks.extract_if(.., |block| !whole.contains(&Arc::as_ptr(&block.segment)));
        parts.for_each(|part| cache.insert(part));
    }
}

/// Adds the numbers of the pool, and the largest holders, to an error of the driver or the budget.
fn explain(stream: &StreamCore, len_bytes: usize, error: Error) -> Error {
    let shared = stream.shared();
    match error {
        Error::Driver(Failure { status: Status::OUT_OF_MEMORY, .. }) => {
            let info = shared.driver.memory_info();
            Error::OutOfMemory {
                device: shared.ordinal,
                asked: ByteSize(len_bytes as u64),
                live: ByteSize(shared.live.bytes.load(Relaxed)),
                reserved: shared.memory.used(),
                free: info.map_or(ByteSize(0), |info| info.free),
                total: shared.driver.properties().memory,
                holders: largest(stream.device()),
            }
        }
        // The budget names the holders for which the pool reserved its memory. Those that use it now are known here.
        Error::Memory(pagelock_memory::Error::OverBudget(mut refusal)) => {
            let held = largest(stream.device());
            refusal.holders = if held.is_empty() { refusal.holders } else { held };
            Error::Memory(pagelock_memory::Error::OverBudget(refusal))
        }
        other => other,
    }
}

/// The four largest holders.
fn largest(device: &Device) -> Vec<Held> {
    let mut held = device.holders();
    held.truncate(4);
    held
}

/// The entry that the ledger shows for a device.
impl Report for DeviceCore {
    fn entry(&self) -> ResourceEntry {
        let live = &self.shared().live;
        let (mut pool, mut held, mut blocks) = (PoolStats::default(), Tally::default(), 0);
        self.each_cache(&mut |cache| {
            pool.idle_bytes += cache.idle_bytes;
            pool.hits += cache.hits;
            pool.misses += cache.misses;
            blocks += cache.live_blocks;
            held.extend(&cache.live_by_holder);
        });
        let name = format!("device {}", self.shared().ordinal);
        ResourceEntry::of_device(name, live.bytes.load(Relaxed), live.peak_bytes.load(Relaxed), blocks, &held, pool)
    }
}

impl Device {
    /// The holders of this device's buffers, largest first; see [`holder`](pagelock_memory::holder).
    /// [`ledger`](pagelock_memory::ledger()) shows all devices.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    /// use pagelock_memory::holder;
    ///
    /// let device = Device::software(Config::default())?;
    /// let stream = device.stream()?;
    /// let _weights = {
    ///     let _scope = holder("weights");
    ///     stream.allocate::<u8>(4096)?
    /// };
    /// assert_eq!(device.holders()[0].to_string(), "`weights` 4 KiB");
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn holders(&self) -> Vec<Held> {
        let mut held = Tally::default();
        self.core().each_cache(&mut |cache| held.extend(&cache.live_by_holder));
        held.holders()
    }

    /// A free block of another stream that is idle.
    fn take_from_idle(&self, stream: &Arc<StreamCore>, rounded: usize) -> Option<PoolBlock> {
        self.other_streams(stream).into_iter().find_map(|other| {
            let block = lock(&other.cache).take(rounded)?;
            // Queried after the block was taken: all uses of the block were queued before it came into the cache.
            match other.is_idle() {
                Ok(true) => Some(PoolBlock { last_use: 0, ..block }),
                _ => {
                    lock(&other.cache).insert(block);
                    None
                }
            }
        })
    }

    /// A free block of another stream, for which `stream` waits on the device.
    fn take_after_wait(&self, stream: &Arc<StreamCore>, rounded: usize) -> Option<PoolBlock> {
        self.other_streams(stream).into_iter().find_map(|other| {
            let block = lock(&other.cache).take(rounded)?;
            match stream.order_after(&other, other.submitted()) {
                Ok(()) => Some(PoolBlock { last_use: stream.submitted(), ..block }),
                Err(_) => {
                    lock(&other.cache).insert(block);
                    None
                }
            }
        })
    }

    fn other_streams(&self, stream: &Arc<StreamCore>) -> Vec<Arc<StreamCore>> {
        let mut others = self.streams();
        others.retain(|other| !Arc::ptr_eq(other, stream) && !other.is_private());
        others
    }

    /// Returns the pool's free memory to the driver, except memory of graphs and segments of which a block is in use.
    /// Waits for the streams whose caches hold that memory. Returns the number of bytes that were freed.
    ///
    /// # Errors
    /// [`Error::Driver`] if the wait for one of these streams fails; segments with a block in its cache are not freed.
    pub fn trim(&self) -> Result<ByteSize> {
        host_function::refuse_inside()?;
        let _alone = lock(&self.core().pool_growth);
        self.trim_alone()
    }

    /// Like [`trim`](Self::trim), for a caller that holds the lock of the pool's growth.
    fn trim_alone(&self) -> Result<ByteSize> {
        let mut streams = self.streams();
        streams.retain(|stream| !stream.is_private() && !stream.is_capturing());
        let mut cached: Vec<_> = streams.iter().map(|stream| (stream, lock(&stream.cache).take_all())).collect();
        let mut whole = segment::whole_segments(cached.iter().flat_map(|(_, blocks)| blocks));
        put_back_parts(&mut cached, &whole);
        let mut result = Ok(());
        for (stream, blocks) in cached.iter().filter(|(_, blocks)| !blocks.is_empty()) {
            if let Err(failure) = stream.wait_until_idle() {
                blocks.iter().for_each(|block| _ = whole.remove(&Arc::as_ptr(&block.segment)));
                result = Err(failure);
            }
        }
        put_back_parts(&mut cached, &whole);
        let freed = cached.into_iter().flat_map(|(_, blocks)| blocks).map(|block| block.len_bytes as u64).sum();
        result.map_err(Error::from).map(|()| ByteSize(freed))
    }

    /// The size of the blocks that buffers use now: the `live` of [`pool_stats`](Self::pool_stats), read from one
    /// atomic.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let device = Device::software(Config::default())?;
    /// let _buffer = device.stream()?.allocate::<u8>(1_000)?;
    /// assert_eq!(device.live_memory(), device.pool_stats().live);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn live_memory(&self) -> ByteSize {
        ByteSize(self.core().shared().live.bytes.load(Relaxed))
    }

    /// Statistics of the device's pool.
    pub fn pool_stats(&self) -> DevicePoolStats {
        let shared = self.core().shared();
        let mut stats = DevicePoolStats {
            live: ByteSize(shared.live.bytes.load(Relaxed)),
            peak: ByteSize(shared.live.peak_bytes.load(Relaxed)),
            reserved: shared.memory.used(),
            ..DevicePoolStats::default()
        };
        self.core().each_cache(&mut |cache| {
            stats.idle.0 += cache.idle_bytes;
            stats.hits += cache.hits;
            stats.misses += cache.misses;
        });
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_block_above_4_kib_is_more_than_an_eighth_longer_than_asked() {
        for len_bytes in (4096..64 << 20).step_by(4099) {
            let rounded = rounded(len_bytes).unwrap();
            assert!(rounded >= len_bytes && (rounded - len_bytes) * 8 <= len_bytes, "{len_bytes} became {rounded}");
        }
    }

    #[test]
    fn an_impossible_size_has_no_block() {
        assert_eq!(rounded(usize::MAX), None);
    }
}
