//! [`Watch`]: the host memory of one device's copies in flight, and what it should hold when they are done.
//!
//! Invariant: whoever learns from a driver that a copy is done finds it checked. So copies are checked where the driver
//! says that, and under the lock.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    ops::Range,
    ptr, slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pagelock_memory::{HostBuffer, PageLocked, Pooled};

use super::{
    CANARY,
    race::{HostAccess, Race, RaceKind},
    site::{self, Site},
};
use crate::{
    driver::{Driver, EventHandle, StreamHandle},
    error::{Error, Result},
    page_locked::locker_for,
};

/// See the head of the file.
pub(crate) struct Watch {
    state: Mutex<State>,       // guards what is in flight and what was found
    spare: Pooled<PageLocked>, // where what arrives is kept a second time
}

#[derive(Default)]
struct State {
    streams: HashMap<StreamHandle, InOrder>,
    marks: HashMap<EventHandle, (StreamHandle, u64)>, // how many copies of a stream come before an event
    found: VecDeque<Race>,
}

/// The copies of one stream.
#[derive(Default)]
struct InOrder {
    queued: u64,
    flying: VecDeque<Flight>,
}

/// A copy in flight.
pub(super) struct Flight {
    number: u64,
    site: Option<Site>,
    time: u64,
    memory: Memory,
    expected: Expected,
}

/// Rows of host memory; one, for most copies.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) start: *mut u8,
    pub(super) row_bytes: usize,
    pub(super) pitch: usize,
    pub(super) rows: usize,
}

// SAFETY: a pointer alone; it is used only as the driver's contract allows the driver to, on whichever thread.
unsafe impl Send for Memory {}

/// What the memory must hold when the copy is done.
enum Expected {
    /// A source: what it held before.
    Sums(Vec<u64>),
    /// A target: what arrived. None: there was no memory to keep it in.
    Bytes(Option<HostBuffer>),
}

/// How many bytes share one checksum.
const BLOCK: usize = 256;

impl Watch {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Self {
        let spare = Pooled::new(PageLocked::new().locked_by(locker_for(driver)));
        Self { state: Mutex::default(), spare }
    }

    /// Memory for a second copy of `len_bytes` bytes.
    pub(super) fn spare(&self, len_bytes: usize) -> Option<HostBuffer> {
        HostBuffer::allocate(&self.spare, len_bytes).ok()
    }

    /// A copy was queued.
    pub(super) fn add(&self, stream: StreamHandle, mut flight: Flight) {
        let mut state = self.lock();
        let queue = state.streams.entry(stream).or_default();
        queue.queued += 1;
        flight.number = queue.queued;
        queue.flying.push_back(flight);
    }

    /// How many copies were queued on a stream.
    pub(super) fn queued(&self, stream: StreamHandle) -> u64 {
        self.lock().streams.get(&stream).map_or(0, |queue| queue.queued)
    }

    /// The same of all streams.
    pub(super) fn all_queued(&self) -> Vec<(StreamHandle, u64)> {
        self.lock().streams.iter().map(|(&stream, queue)| (stream, queue.queued)).collect()
    }

    /// An event was recorded on a stream, after its first `at` copies.
    pub(super) fn mark(&self, event: EventHandle, stream: StreamHandle, at: u64) {
        self.lock().marks.insert(event, (stream, at));
    }

    /// The event is reached.
    pub(super) fn reached(&self, event: EventHandle) {
        let mut state = self.lock();
        if let Some(&(stream, at)) = state.marks.get(&event) {
            state.check(stream, at);
        }
    }

    /// The first `up_to` copies of a stream are done.
    pub(super) fn done(&self, stream: StreamHandle, up_to: u64) {
        self.lock().check(stream, up_to);
    }

    /// An error if a race was found that nobody was told of.
    pub(crate) fn check(&self) -> Result<()> {
        self.next_race().map_or(Ok(()), |race| Err(Error::Raced(Box::new(race))))
    }

    /// The next race that nobody was told of.
    fn next_race(&self) -> Option<Race> {
        self.lock().found.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watch {
    /// What is still in flight was not waited for, because the device was lost: it may use it for ever.
    fn drop(&mut self) {
        let streams = &mut self.state.get_mut().unwrap_or_else(PoisonError::into_inner).streams;
        streams.drain().flat_map(|(_, queue)| queue.flying).for_each(mem::forget);
    }
}

impl State {
    fn check(&mut self, stream: StreamHandle, up_to: u64) {
        let Some(queue) = self.streams.get_mut(&stream) else { return };
        while let Some(flight) = queue.flying.pop_front_if(|flight| flight.number <= up_to) {
            if let Some(race) = flight.race() {
                eprintln!("pagelock: {race}");
                self.found.push_back(race);
            }
        }
    }
}

impl Flight {
    /// The copy that is about to be queued reads this memory.
    ///
    /// # Safety
    /// As [`Driver::copy_to_device`], until the device is done.
    pub(super) unsafe fn of_source(memory: Memory) -> Self {
        Self::new(memory, Expected::Sums(memory.sums()))
    }

    /// The copy that is about to be queued writes this memory.
    ///
    /// # Safety
    /// As [`Driver::copy_to_host`], until the device is done.
    pub(super) unsafe fn of_target(memory: Memory) -> Self {
        memory.fill_with_canary();
        Self::new(memory, Expected::Bytes(None))
    }

    /// What arrives in the target arrives here too.
    pub(super) fn expect(&mut self, arriving: Option<HostBuffer>) {
        self.expected = Expected::Bytes(arriving);
    }

    fn new(memory: Memory, expected: Expected) -> Self {
        Self { number: 0, site: site::of_copy(), time: site::now(), memory, expected }
    }

    /// The copy is done.
    fn race(&self) -> Option<Race> {
        let (kind, bytes) = match &self.expected {
            Expected::Sums(before) => (RaceKind::SourceChanged, self.memory.changed_since(before)?),
            Expected::Bytes(arrived) => (RaceKind::TargetWritten, self.memory.differing(arrived.as_ref()?.bytes())?),
        };
        let start = self.memory.start.addr();
        let access = site::last_access(start + bytes.start..start + bytes.end);
        let access = access.map(|access| HostAccess { at: access.at, in_flight: access.time > self.time });
        Some(Race { kind, copy: self.site, access, bytes, len_bytes: self.memory.len_bytes() })
    }
}

impl Memory {
    pub(super) fn of(start: *mut u8, len_bytes: usize) -> Self {
        Self { start, row_bytes: len_bytes, pitch: len_bytes, rows: 1 }
    }

    /// From the first byte to the last.
    fn len_bytes(&self) -> usize {
        self.pitch * self.rows.saturating_sub(1) + self.row_bytes
    }

    fn row(&self, index: usize) -> &[u8] {
        let start = self.start.wrapping_add(index * self.pitch).cast_const();
        // SAFETY: `Flight` is made of memory that a copy may use until it is done; it looks at it before and then.
        unsafe { slice::from_raw_parts(start, self.row_bytes) }
    }

    fn sums(&self) -> Vec<u64> {
        (0..self.rows).flat_map(|row| self.row(row).chunks(BLOCK).map(sum)).collect()
    }

    fn changed_since(&self, before: &[u64]) -> Option<Range<usize>> {
        let blocks_per_row = self.row_bytes.div_ceil(BLOCK);
        let changed = self.sums().into_iter().zip(before).enumerate().filter(|(_, (now, before))| now != *before);
        let block = |index: usize| {
            let (row, start) = (index / blocks_per_row, index % blocks_per_row * BLOCK);
            row * self.pitch + start..row * self.pitch + (start + BLOCK).min(self.row_bytes)
        };
        changed.map(|(index, _)| block(index)).reduce(|first, last| first.start..last.end)
    }

    /// Where this is not what arrived.
    fn differing(&self, arrived: &[u8]) -> Option<Range<usize>> {
        let rows = arrived.chunks(self.row_bytes.max(1)).take(self.rows).enumerate();
        let differing = rows.flat_map(|(row, arrived)| {
            let pairs = self.row(row).iter().zip(arrived).enumerate();
            pairs.filter(|(_, (here, arrived))| here != arrived).map(move |(at, _)| row * self.pitch + at)
        });
        differing.map(|at| at..at + 1).reduce(|first, last| first.start..last.end)
    }

    fn fill_with_canary(&self) {
        for row in 0..self.rows {
            for at in 0..self.row_bytes {
                let byte = self.start.wrapping_add(row * self.pitch + at);
                // SAFETY: inside memory that a copy is about to write, which nobody else uses.
                unsafe { ptr::write(byte, CANARY[at % CANARY.len()]) };
            }
        }
    }
}

/// Different for blocks that differ, but for chance (FNV-1a, eight bytes at a time).
fn sum(block: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01B3;
    block.chunks(8).fold(0xCBF2_9CE4_8422_2325, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (sum ^ u64::from_le_bytes(word)).wrapping_mul(PRIME).rotate_left(23)
    })
}
