//! [`Watch`]: the host memory of one device's copies in flight, and its expected content when they are done.
//!
//! Invariant: when a caller learns from the driver that a copy is done, the copy has been checked. So copies are
//! checked in the calls in which the driver reports that, and while the lock is held.

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
    state: Mutex<State>,       // guards the copies in flight and the races found
    spare: Pooled<PageLocked>, // memory for the second copies
}

#[derive(Default)]
struct State {
    streams: HashMap<StreamHandle, StreamCopies>,
    marks: HashMap<EventHandle, (StreamHandle, u64)>, // how many copies of a stream come before an event
    found: VecDeque<Race>,
}

/// The copies of one stream.
#[derive(Default)]
struct StreamCopies {
    queued: u64,
    in_flight: VecDeque<Flight>,
}

/// A copy in flight.
pub(super) struct Flight {
    number: u64,
    site: Option<Site>,
    time: u64,
    memory: Memory,
    expected: Expected,
}

/// Rows of host memory. Most copies have one row.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) start: *mut u8,
    pub(super) row_bytes: usize,
    pub(super) pitch: usize,
    pub(super) rows: usize,
}

// SAFETY: the pointer is used only as the driver's contract allows the driver to use it, which is on any thread.
unsafe impl Send for Memory {}

/// The expected content of the memory when the copy is done.
enum Expected {
    /// Of a source: the checksums of its content before the copy.
    Sums(Vec<u64>),
    /// Of a target: the second copy of the bytes; `None` if there was no memory for it.
    Bytes(Option<HostBuffer>),
}

/// The number of bytes per checksum.
const BLOCK: usize = 256;

impl Watch {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Self {
        let spare = Pooled::new(PageLocked::new().locked_by(locker_for(driver, Arc::default())));
        Self { state: Mutex::default(), spare }
    }

    /// Memory for a second copy of `len_bytes` bytes.
    pub(super) fn spare(&self, len_bytes: usize) -> Option<HostBuffer> {
        HostBuffer::allocate(&self.spare, len_bytes).ok()
    }

    /// Adds a copy that was queued.
    pub(super) fn add(&self, stream: StreamHandle, mut flight: Flight) {
        let mut state = self.lock();
        let queue = state.streams.entry(stream).or_default();
        queue.queued += 1;
        flight.number = queue.queued;
        queue.in_flight.push_back(flight);
    }

    /// The number of copies that were queued on a stream.
    pub(super) fn queued(&self, stream: StreamHandle) -> u64 {
        self.lock().streams.get(&stream).map_or(0, |queue| queue.queued)
    }

    /// The number of copies that were queued on each stream.
    pub(super) fn all_queued(&self) -> Vec<(StreamHandle, u64)> {
        self.lock().streams.iter().map(|(&stream, queue)| (stream, queue.queued)).collect()
    }

    /// Notes an event that was recorded on a stream after its first `at` copies.
    pub(super) fn mark(&self, event: EventHandle, stream: StreamHandle, at: u64) {
        self.lock().marks.insert(event, (stream, at));
    }

    /// Forgets the mark of an event that is about to be recorded anew.
    pub(super) fn unmark(&self, event: EventHandle) {
        self.lock().marks.remove(&event);
    }

    pub(super) fn mark_of(&self, event: EventHandle) -> Option<(StreamHandle, u64)> {
        self.lock().marks.get(&event).copied()
    }

    /// Checks the copies before an event that is reached, unless it was recorded anew since its mark was read.
    pub(super) fn reached(&self, event: EventHandle, mark: Option<(StreamHandle, u64)>) {
        let mut state = self.lock();
        if let Some((stream, at)) = mark.filter(|_| state.marks.get(&event) == mark.as_ref()) {
            state.check(stream, at);
        }
    }

    /// Checks the first `up_to` copies of a stream, which are done.
    pub(super) fn done(&self, stream: StreamHandle, up_to: u64) {
        self.lock().check(stream, up_to);
    }

    /// An error if there is a race that was not returned yet.
    pub(crate) fn check(&self) -> Result<()> {
        self.next_race().map_or(Ok(()), |race| Err(Error::Raced(Box::new(race))))
    }

    /// The next race that was not returned yet.
    fn next_race(&self) -> Option<Race> {
        self.lock().found.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watch {
    /// Leaks the copies that are still in flight. They were not waited for because the device was lost, and the
    /// device may use their memory forever.
    fn drop(&mut self) {
        let streams = &mut self.state.get_mut().unwrap_or_else(PoisonError::into_inner).streams;
        streams.drain().flat_map(|(_, queue)| queue.in_flight).for_each(mem::forget);
    }
}

impl State {
    fn check(&mut self, stream: StreamHandle, up_to: u64) {
        let Some(queue) = self.streams.get_mut(&stream) else { return };
        while let Some(flight) = queue.in_flight.pop_front_if(|flight| flight.number <= up_to) {
            if let Some(race) = flight.race() {
                eprintln!("pagelock: {race}");
                self.found.push_back(race);
            }
        }
    }
}

impl Flight {
    /// For a copy that is about to be queued and reads this memory.
    ///
    /// # Safety
    /// As [`Driver::copy_to_device`], until the device is done.
    pub(super) unsafe fn of_source(memory: Memory) -> Self {
        Self::new(memory, Expected::Sums(memory.sums()))
    }

    /// For a copy that is about to be queued and writes this memory.
    ///
    /// # Safety
    /// As [`Driver::copy_to_host`], until the device is done.
    pub(super) unsafe fn of_target(memory: Memory) -> Self {
        memory.fill_with_canary();
        Self::new(memory, Expected::Bytes(None))
    }

    /// Sets the memory to which the second copy writes the same bytes.
    pub(super) fn expect(&mut self, arriving: Option<HostBuffer>) {
        self.expected = Expected::Bytes(arriving);
    }

    fn new(memory: Memory, expected: Expected) -> Self {
        Self { number: 0, site: site::of_copy(), time: site::now(), memory, expected }
    }

    /// Checks a copy that is done.
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

    /// The number of bytes from the first to the last, including the gaps between rows.
    fn len_bytes(&self) -> usize {
        self.pitch * self.rows.saturating_sub(1) + self.row_bytes
    }

    fn row(&self, index: usize) -> &[u8] {
        let start = self.start.wrapping_add(index * self.pitch).cast_const();
        // SAFETY: a `Flight` describes memory that a copy may use until it is done; it reads the memory before the
        // copy is queued and when the copy is done.
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

    /// The range of the bytes that differ from the second copy.
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

/// A checksum of a block (a variant of FNV-1a that takes eight bytes at a time).
fn sum(block: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01B3;
    block.chunks(8).fold(0xCBF2_9CE4_8422_2325, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (sum ^ u64::from_le_bytes(word)).wrapping_mul(PRIME).rotate_left(23)
    })
}
