//! Device memory, kept for the next allocation of about that size, in the order of streams.
//!
//! A buffer belongs to the stream that allocated it. When it is dropped its block goes to that stream's [`BlockCache`], and
//! the stream's next work may use it at once: the stream itself is the order, so that neither call asks the driver
//! anything. Another stream takes from a cache only what that stream is done with, or, when memory is short, waits
//! for it on the device. What the driver is asked for is charged to the device's budget.
//!
//! [`SizeClasses`] has the sizes, `segment.rs` what the driver gives, `cache.rs` what a stream keeps.

mod cache;
mod segment;

use std::{collections::HashMap, sync::Arc, sync::atomic::Ordering::Relaxed};

use pagelock_memory::{ByteSize, Held, Holder, PoolStats, Report, ResourceEntry, SizeClasses, Tally};

pub(crate) use self::{cache::BlockCache, segment::PoolBlock};
use crate::{
    device::{Device, DeviceCore},
    driver::{Failure, Status},
    error::{Error, Result},
    host_function,
    stream::StreamCore,
    sync::lock,
};

/// What a device's pool holds and how often it could serve.
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
    /// What buffers hold now, rounded up as the pool does.
    pub live: ByteSize,
    /// The most that buffers held at once.
    pub peak: ByteSize,
    /// What is kept for later.
    pub idle: ByteSize,
    /// What the pool took from the driver.
    pub reserved: ByteSize,
    /// Allocations served from what was kept.
    pub hits: u64,
    /// Allocations that were not.
    pub misses: u64,
}

/// From what CUDA aligns to, and more than a kernel's widest access. Blocks above the longest are multiples of
/// [`LARGE_STEP`].
const CLASSES: SizeClasses = SizeClasses::new(512, 16 << 20);
const LARGE_STEP: usize = 2 << 20; // the pages of a device

/// How long the block is that serves `len_bytes`; none if that is more than can be.
fn rounded(len_bytes: usize) -> Option<usize> {
    match CLASSES.class_of(len_bytes) {
        Some(class) => Some(CLASSES.len_bytes(class)),
        None => len_bytes.checked_next_multiple_of(LARGE_STEP),
    }
}

/// A block for work on that stream.
pub(crate) fn allocate(stream: &Arc<StreamCore>, len_bytes: usize, element: ByteSize) -> Result<PoolBlock> {
    let too_long = Error::TooLong { len: len_bytes / element.0.max(1) as usize, element };
    let rounded = rounded(len_bytes).ok_or(too_long)?;
    let is_for_others = stream.keeps_for_others();
    let mut cache = lock(&stream.cache);
    let kept = if is_for_others { None } else { cache.take(rounded) };
    let block = match kept {
        Some(block) => {
            let block = PoolBlock { holder: Holder::current(), ..block };
            cache.hits += 1;
            cache.note_given(&block);
            block
        }
        None => {
            cache.misses += 1;
            drop(cache);
            let block = PoolBlock { holder: Holder::current(), ..miss(stream, rounded)? };
            lock(&stream.cache).note_given(&block);
            block
        }
    };
    stream.shared().live.add(rounded);
    Ok(block)
}

/// Takes back the block of a dropped buffer. The device's further use of it is ordered by the stream.
pub(crate) fn keep(stream: &StreamCore, block: PoolBlock) {
    stream.shared().live.sub(block.len_bytes);
    let mut cache = lock(&stream.cache);
    cache.note_back(&block);
    cache.keep(PoolBlock { worked_on: stream.submitted(), ..block });
}

/// Gives up the block of a dropped buffer, which the device may still use.
pub(crate) fn leak(stream: &StreamCore, block: PoolBlock) {
    stream.shared().live.sub(block.len_bytes);
    lock(&stream.cache).note_back(&block);
    block.leak();
}

#[cold]
fn miss(stream: &Arc<StreamCore>, rounded: usize) -> Result<PoolBlock> {
    let device = stream.device();
    if let Some(block) = device.take_done(stream, rounded) {
        return Ok(block);
    }
    let refused = match make(stream, rounded) {
        Err(refused) if is_shortage(&refused) => refused,
        made => return made,
    };
    if let Some(block) = device.take_waiting(stream, rounded) {
        return Ok(block);
    }
    let freed = device.trim()?;
    if freed.0 == 0 { Err(refused) } else { make(stream, rounded) }
}

/// New blocks from the driver: one to use, the rest for later.
fn make(stream: &Arc<StreamCore>, rounded: usize) -> Result<PoolBlock> {
    let made = segment::new_blocks(stream.shared(), rounded).map_err(|error| explain(stream, rounded, error));
    let mut blocks = made?;
    let block = blocks.pop().unwrap_or_else(|| unreachable!("a segment has at least one block"));
    let mut cache = lock(&stream.cache);
    blocks.into_iter().rev().for_each(|block| cache.keep(block));
    Ok(block)
}

fn is_shortage(error: &Error) -> bool {
    matches!(error, Error::OutOfMemory { .. } | Error::Memory(_))
}

/// The driver's refusal, with the numbers.
fn explain(stream: &StreamCore, asked: usize, error: Error) -> Error {
    let shared = stream.shared();
    match error {
        Error::Driver(Failure { status: Status::OUT_OF_MEMORY, .. }) => {
            let info = shared.driver.memory_info();
            Error::OutOfMemory {
                device: shared.ordinal,
                asked: ByteSize(asked as u64),
                live: ByteSize(shared.live.bytes.load(Relaxed)),
                reserved: shared.memory.used(),
                free: info.map_or(ByteSize(0), |info| info.free),
                total: shared.driver.properties().memory,
                holders: largest(stream.device()),
            }
        }
        // The budget knows who made the pool's memory; who holds it now is known here.
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

/// As the ledger shows it.
impl Report for DeviceCore {
    fn entry(&self) -> ResourceEntry {
        let live = &self.shared().live;
        let (mut pool, mut held, mut blocks) = (PoolStats::default(), Tally::default(), 0);
        self.each_cache(&mut |cache| {
            pool.idle_bytes += cache.idle_bytes;
            pool.hits += cache.hits;
            pool.misses += cache.misses;
            blocks += cache.live_blocks;
            held.extend(&cache.held);
        });
        let name = format!("device {}", self.shared().ordinal);
        ResourceEntry::of_device(name, live.bytes.load(Relaxed), live.peak_bytes.load(Relaxed), blocks, &held, pool)
    }
}

impl Device {
    /// Who holds the memory of buffers, largest first; see [`holder`](pagelock_memory::holder). [`ledger`](pagelock_memory::ledger()) shows
    /// all devices.
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
        self.core().each_cache(&mut |cache| held.extend(&cache.held));
        held.holders()
    }

    /// A block that another stream keeps and is done with.
    fn take_done(&self, stream: &Arc<StreamCore>, rounded: usize) -> Option<PoolBlock> {
        self.streams_beside(stream).into_iter().find_map(|other| {
            let block = lock(&other.cache).take(rounded)?;
            // Asked after the block was taken: what used it was queued before it was kept.
            match other.is_idle() {
                Ok(true) => Some(PoolBlock { worked_on: 0, ..block }),
                _ => {
                    lock(&other.cache).keep(block);
                    None
                }
            }
        })
    }

    /// A block that another stream keeps and that this one waits for, on the device.
    fn take_waiting(&self, stream: &Arc<StreamCore>, rounded: usize) -> Option<PoolBlock> {
        self.streams_beside(stream).into_iter().find_map(|other| {
            let block = lock(&other.cache).take(rounded)?;
            match stream.order_after(&other, other.submitted()) {
                Ok(()) => Some(PoolBlock { worked_on: stream.submitted(), ..block }),
                Err(_) => {
                    lock(&other.cache).keep(block);
                    None
                }
            }
        })
    }

    fn streams_beside(&self, stream: &Arc<StreamCore>) -> Vec<Arc<StreamCore>> {
        let mut others = self.streams();
        others.retain(|other| !Arc::ptr_eq(other, stream) && !other.is_private());
        others
    }

    /// Gives back to the driver what is kept, except parts of segments that are in use and what belongs to a graph; waits
    /// for the streams that keep it. Returns how much that was.
    ///
    /// # Errors
    /// [`Error::Driver`] if one of them cannot be waited for; what it keeps stays.
    pub fn trim(&self) -> Result<ByteSize> {
        host_function::refuse_inside()?;
        let mut streams = self.streams();
        streams.retain(|stream| !stream.is_private());
        let kept: Vec<_> = streams.iter().map(|stream| lock(&stream.cache).take_all()).collect();
        let mut idle: HashMap<_, usize> = HashMap::new();
        for block in kept.iter().flatten() {
            *idle.entry(Arc::as_ptr(&block.segment)).or_default() += 1;
        }
        let mut freed = 0;
        let mut result = Ok(());
        for (stream, blocks) in streams.iter().zip(kept) {
            let is_whole = |block: &PoolBlock| PoolBlock::complete(idle[&Arc::as_ptr(&block.segment)], &block.segment);
            let (whole, part): (Vec<_>, Vec<_>) = blocks.into_iter().partition(is_whole);
            part.into_iter().for_each(|block| lock(&stream.cache).keep(block));
            let keeps = whole.is_empty() || stream.is_capturing();
            match if keeps { Ok(()) } else { stream.prove_idle() } {
                Ok(()) if keeps => whole.into_iter().for_each(|block| lock(&stream.cache).keep(block)),
                Ok(()) => freed += whole.iter().map(|block| block.len_bytes as u64).sum::<u64>(),
                Err(failure) => {
                    whole.into_iter().for_each(|block| lock(&stream.cache).keep(block));
                    result = Err(failure);
                }
            }
        }
        result.map_err(Error::from).map(|()| ByteSize(freed))
    }

    /// What buffers hold now, rounded up as the pool does: the `live` of [`pool_stats`](Self::pool_stats), in a nanosecond.
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

    /// What the device's pool holds and how often it could serve.
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
