//! [`Job`]: the processor's part of one staged copy, cut into granules that any thread can take.
//!
//! A job has pieces, each of which passes through one slot; a piece has runs, bytes that lie together on the host.
//! Granules are equal parts of a piece. The call publishes pieces when they have slots; threads take granules in
//! order, copy them, and set their bits. Where a run begins may be left open at first: then its granules are published
//! when the call has said that too.
//!
//! Invariant: host memory and slots are touched only for granules that were taken and not yet counted in `finished`.
//! A call closes its job, and waits until all that were taken are finished, before it lets go of either.
//!
//! The bytes may also be those of a file, read straight into the slots. What cannot be read stays undone, and is noted.

use std::{
    fs::File,
    hint, io,
    ops::Range,
    os::unix::fs::FileExt,
    ptr, slice,
    sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering},
    thread,
};

use super::stores::{self, Stores};
use crate::sync::{Mutex, lock};

/// See the head of the file.
pub(super) struct Job {
    direction: Direction,
    stores: Stores,
    granule_bytes: usize,
    helpers: usize, // of the crew that may work at it
    is_open: bool,  // whether it was left open where runs begin
    pieces: Box<[Piece]>,
    runs: Box<[Run]>,
    next: OwnLine<AtomicUsize>,     // the granule that is taken next
    ready: OwnLine<AtomicUsize>,    // published granules; Release after their slot is set, and where their runs begin
    finished: OwnLine<AtomicUsize>, // granules; Release after the copy
    file: Option<File>,
    failure: Mutex<Option<io::Error>>, // guards the first one, until the call takes it
}

/// On a cache line of its own (processors fetch two at once): threads that write it do not disturb those that read others.
#[repr(align(128))]
struct OwnLine<T>(T);

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToSlots,
    FromSlots,
}

/// What passes through one slot at once.
pub(super) struct Piece {
    len_bytes: usize,
    runs: Range<usize>,
    first_granule: usize,
    slot: AtomicPtr<u8>,
    done: AtomicU64, // one bit for each granule; Release after the copy
}

/// Where bytes begin: in memory, or in the job's file; a job that has one has no others.
#[derive(Clone, Copy)]
pub(super) enum Start {
    Memory(*mut u8),
    File(u64),
    /// In memory; the call says later where ([`Job::give`]).
    Open,
}

impl Start {
    /// So many bytes further on.
    #[inline]
    pub(super) fn offset(self, bytes: usize) -> Self {
        match self {
            Start::Memory(start) => Start::Memory(start.wrapping_add(bytes)),
            Start::File(start) => Start::File(start.saturating_add(bytes as u64)), // where no file has anything
            Start::Open => Start::Open,
        }
    }
}

/// Bytes that lie together on the host. Short: what the call writes here, other threads' caches have from the call before.
struct Run {
    start: AtomicPtr<u8>, // in memory, or a number of bytes of the file. Relaxed: `ready` publishes it
    offset: u32,          // in the piece
    len_bytes: u32,
}

impl Run {
    /// The part of the piece that it fills.
    #[inline]
    fn range(&self) -> Range<usize> {
        let start = self.offset as usize;
        start..start + self.len_bytes as usize
    }
}

/// A piece has at most so many granules: one bit each.
pub(super) const GRANULES: usize = 64;
const CLOSED: usize = usize::MAX / 2;

/// A job while its pieces are put together.
pub(super) struct Plan {
    piece_bytes: usize,
    granule_bytes: usize,
    pieces: Vec<Piece>,
    runs: Vec<Run>,
    granules: usize,
    helpers: usize,
    is_open: bool,
    file: Option<File>,
}

impl Plan {
    /// For pieces of at most `piece_bytes`.
    pub(super) fn new(piece_bytes: usize, granule_bytes: usize) -> Self {
        debug_assert!(piece_bytes.div_ceil(granule_bytes) <= GRANULES && u32::try_from(piece_bytes).is_ok());
        Self {
            piece_bytes,
            granule_bytes,
            pieces: Vec::new(),
            runs: Vec::new(),
            granules: 0,
            helpers: usize::MAX,
            is_open: false,
            file: None,
        }
    }

    /// With at most so many threads beside the caller.
    pub(super) fn with_helpers(self, most: Option<usize>) -> Self {
        Self { helpers: most.unwrap_or(usize::MAX), ..self }
    }

    /// For bytes of that file too.
    pub(super) fn reading(self, file: File) -> Self {
        Self { file: Some(file), ..self }
    }

    pub(super) fn reads_a_file(&self) -> bool {
        self.file.is_some()
    }

    /// Adds bytes that become as many pieces as they need; calls `made` with the offset and length of each.
    pub(super) fn add(&mut self, start: Start, len_bytes: usize, mut made: impl FnMut(usize, usize)) {
        for offset in (0..len_bytes).step_by(self.piece_bytes) {
            let len = self.piece_bytes.min(len_bytes - offset);
            self.add_run(start.offset(offset), 0, len);
            self.close_piece(self.runs.len() - 1, len);
            made(offset, len);
        }
    }

    /// Room for so many runs more.
    pub(super) fn reserve(&mut self, runs: usize) {
        self.runs.reserve_exact(runs);
    }

    /// Adds a run to the next piece, at that offset, which is behind those before.
    #[inline]
    pub(super) fn add_run(&mut self, start: Start, offset: usize, len_bytes: usize) {
        let start = match (start, self.reads_a_file()) {
            (Start::Memory(start), false) => start,
            (Start::File(start), true) => ptr::without_provenance_mut(start as usize),
            (Start::Open, false) => {
                self.is_open = true;
                ptr::null_mut()
            }
            _ => unreachable!("a plan for bytes of a file has it, and no others"),
        };
        self.runs.push(Run { start: AtomicPtr::new(start), offset: offset as u32, len_bytes: len_bytes as u32 });
    }

    /// Makes a piece of the runs that were added since the last one.
    pub(super) fn close_packed(&mut self, len_bytes: usize) {
        let first = self.pieces.last().map_or(0, |piece| piece.runs.end);
        self.close_piece(first, len_bytes);
    }

    fn close_piece(&mut self, first_run: usize, len_bytes: usize) {
        self.pieces.push(Piece {
            len_bytes,
            runs: first_run..self.runs.len(),
            first_granule: self.granules,
            slot: AtomicPtr::new(ptr::null_mut()),
            done: AtomicU64::new(0),
        });
        self.granules += len_bytes.div_ceil(self.granule_bytes);
    }

    pub(super) fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    pub(super) fn granules(&self) -> usize {
        self.granules
    }

    pub(super) fn helpers(&self) -> usize {
        self.helpers
    }

    pub(super) fn into_job(self, direction: Direction, stores: Stores) -> Job {
        Job {
            direction,
            stores,
            granule_bytes: self.granule_bytes,
            helpers: self.helpers,
            is_open: self.is_open,
            pieces: self.pieces.into_boxed_slice(),
            runs: self.runs.into_boxed_slice(),
            next: OwnLine(AtomicUsize::new(0)),
            ready: OwnLine(AtomicUsize::new(0)),
            finished: OwnLine(AtomicUsize::new(0)),
            file: self.file,
            failure: Mutex::new(None),
        }
    }
}

impl Job {
    /// Gives the next piece this slot, which has room for it; how many granules have one now.
    pub(super) fn set_slot(&self, piece: usize, slot: *mut u8) -> usize {
        let piece = &self.pieces[piece];
        piece.slot.store(slot, Ordering::Relaxed); // `ready` publishes it
        piece.first_granule + self.granules_of(piece)
    }

    /// Says where so many bytes begin for which that was left open: those of the runs from the `run`th on. The next run.
    #[inline]
    pub(super) fn give(&self, mut run: usize, start: *mut u8, len_bytes: usize) -> usize {
        let mut offset = 0;
        while offset < len_bytes {
            self.runs[run].start.store(start.wrapping_add(offset), Ordering::Relaxed); // `ready` publishes it
            (offset, run) = (offset + self.runs[run].range().len(), run + 1);
        }
        run
    }

    /// How many granules have all they copy, if so many runs were [given](Self::give).
    pub(super) fn given_granules(&self, runs: usize) -> usize {
        if !self.is_open {
            return usize::MAX;
        }
        let at = self.pieces.partition_point(|piece| piece.runs.end <= runs);
        let Some(piece) = self.pieces.get(at) else { return usize::MAX };
        let begun = self.runs[piece.runs.start..runs.max(piece.runs.start)].last();
        piece.first_granule + begun.map_or(0, |run| run.range().end / self.granule_bytes)
    }

    /// Lets threads work on the first so many granules, which have slots and all that they copy.
    pub(super) fn publish(&self, granules: usize) {
        self.ready.0.store(granules, Ordering::Release);
    }

    /// How many bytes from a piece's start on were copied without a gap.
    pub(super) fn copied_bytes(&self, piece: usize) -> usize {
        let piece = &self.pieces[piece];
        let granules = piece.done.load(Ordering::Acquire).trailing_ones() as usize;
        (granules * self.granule_bytes).min(piece.len_bytes)
    }

    /// How many bytes of the first piece, at least, are copied or being copied.
    pub(super) fn taken_bytes(&self) -> usize {
        self.next.0.load(Ordering::Relaxed).saturating_mul(self.granule_bytes)
    }

    /// Whether the thread of that number may work at it.
    pub(super) fn is_for(&self, helper: usize) -> bool {
        helper < self.helpers
    }

    /// Copies one granule, if there is one to take.
    pub(super) fn work(&self) -> bool {
        let Some(granule) = self.take() else { return false };
        let at = self.pieces.partition_point(|piece| piece.first_granule <= granule) - 1;
        let piece = &self.pieces[at];
        let local = granule - piece.first_granule;
        let copied = self.copy(piece, local);
        stores::finish(self.stores);
        match copied {
            Ok(()) => drop(piece.done.fetch_or(1 << local, Ordering::Release)),
            Err(error) => drop(lock(&self.failure).get_or_insert(error)),
        }
        self.finished.0.fetch_add(1, Ordering::Release);
        true
    }

    /// Why something could not be read, if that is so.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.file.as_ref()?;
        lock(&self.failure).take()
    }

    /// Nobody takes a granule any more; returns when those that were taken are finished.
    pub(super) fn close(&self) {
        let taken = self.next.0.swap(CLOSED, Ordering::AcqRel);
        let mut asked = 0_u32;
        while taken < CLOSED && self.finished.0.load(Ordering::Acquire) < taken {
            pause(&mut asked);
        }
    }

    fn take(&self) -> Option<usize> {
        let ready = self.ready.0.load(Ordering::Acquire);
        let next = self
            .next
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |next| if next < ready { Some(next + 1) } else { None });
        next.ok()
    }

    fn granules_of(&self, piece: &Piece) -> usize {
        piece.len_bytes.div_ceil(self.granule_bytes)
    }

    fn copy(&self, piece: &Piece, granule: usize) -> io::Result<()> {
        let start = granule * self.granule_bytes;
        let end = (start + self.granule_bytes).min(piece.len_bytes);
        let slot = piece.slot.load(Ordering::Relaxed); // `take` acquired `ready`
        let runs = &self.runs[piece.runs.clone()];
        let first = runs.partition_point(|run| run.range().end <= start);
        for (run, range) in
            runs[first..].iter().map(|run| (run, run.range())).take_while(|(_, range)| range.start < end)
        {
            let (from, to) = (start.max(range.start), end.min(range.end));
            let (staged, len_bytes) = (slot.wrapping_add(from), to - from);
            let source = run.start.load(Ordering::Relaxed).wrapping_add(from - range.start); // as the slot
            match &self.file {
                None => self.copy_memory(source, staged, len_bytes),
                Some(file) => {
                    // SAFETY: the range is inside the slot, whose bytes are initialized, and which the call keeps for as long
                    // as granules may be taken (the invariant); only this thread has this granule.
                    let target = unsafe { slice::from_raw_parts_mut(staged, len_bytes) };
                    file.read_exact_at(target, source.addr() as u64)?;
                }
            }
        }
        Ok(())
    }

    fn copy_memory(&self, host: *mut u8, staged: *mut u8, len_bytes: usize) {
        let (source, target) = match self.direction {
            Direction::ToSlots => (host, staged),
            Direction::FromSlots => (staged, host),
        };
        // SAFETY: both ranges are inside the run and the slot, which the call keeps for as long as granules may be taken (the
        // invariant); only this thread has this granule; a slot and a caller's slice do not overlap.
        unsafe { stores::copy(self.stores, source.cast_const(), target, len_bytes) };
    }
}

/// Waits a moment for another thread: first at once, then by giving up the processor.
pub(super) fn pause(asked: &mut u32) {
    *asked = asked.saturating_add(1);
    if *asked < 200 {
        hint::spin_loop();
    } else {
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granules_cover_every_byte_of_every_run_once() {
        covers_every_byte_once(Stores::Ordinary);
        covers_every_byte_once(Stores::PastCaches);
    }

    fn covers_every_byte_once(stores: Stores) {
        let source: Vec<u8> = (0..=255).cycle().take(1_000).collect();
        let start = source.as_ptr().cast_mut();
        let mut plan = Plan::new(640, 10);
        plan.add(Start::Memory(start), 700, |_, _| {});
        let runs = [(700, 0, 3), (703, 5, 97), (800, 110, 200)];
        for (from, offset, len) in runs {
            plan.add_run(Start::Memory(start.wrapping_add(from)), offset, len);
        }
        plan.close_packed(310);
        let mut slots = [[7_u8; 640]; 3];
        let job = plan.into_job(Direction::ToSlots, stores);
        for (piece, slot) in slots.iter_mut().enumerate() {
            job.publish(job.set_slot(piece, slot.as_mut_ptr()));
        }

        while job.work() {}
        job.close();

        assert_eq!(slots[0], source[..640]);
        assert_eq!(slots[1][..60], source[640..700]);
        assert_eq!(slots[2][..3], source[700..703]);
        assert_eq!(slots[2][3..5], [7, 7], "what is between runs is left alone");
        assert_eq!(slots[2][5..102], source[703..800]);
        assert_eq!(slots[2][110..310], source[800..1_000]);
        assert_eq!(job.copied_bytes(2), 310);
    }

    #[test]
    fn nothing_is_taken_before_it_is_published_or_after_the_job_is_closed() {
        let source = [1_u8; 100];
        let mut slot = [0_u8; 100];
        let mut plan = Plan::new(100, 10);
        plan.add(Start::Memory(source.as_ptr().cast_mut()), 100, |_, _| {});
        let job = plan.into_job(Direction::ToSlots, Stores::Ordinary);

        assert!(!job.work());
        job.publish(job.set_slot(0, slot.as_mut_ptr()));
        assert!(job.work());
        job.close();
        assert!(!job.work());
        assert_eq!(job.copied_bytes(0), 10);
    }

    #[test]
    fn granules_are_given_when_all_their_runs_are_and_copied_from_there() {
        let source: Vec<u8> = (0..100).collect();
        let mut plan = Plan::new(100, 10);
        let runs = [(0, 25), (30, 10), (40, 60)]; // of the first piece: what is between runs is nothing to wait for
        runs.iter().for_each(|&(offset, len)| plan.add_run(Start::Open, offset, len));
        plan.close_packed(100);
        plan.add_run(Start::Open, 0, 5);
        plan.close_packed(5);
        let (job, mut slots) = (plan.into_job(Direction::ToSlots, Stores::Ordinary), [[0_u8; 100]; 2]);
        let granules: Vec<_> = (0..=4).map(|runs| job.given_granules(runs)).collect();
        assert_eq!(granules, [0, 2, 4, 10, usize::MAX]);

        let start = source.as_ptr().cast_mut();
        assert_eq!(job.give(0, start, 95), 3, "three runs have so many bytes");
        let with_slot = job.set_slot(0, slots[0].as_mut_ptr());
        job.publish(with_slot.min(job.given_granules(3)));
        while job.work() {}
        job.close();

        let expected = [&source[..25], &[0; 5], &source[25..95]].concat();
        assert_eq!((&slots[0][..], slots[1]), (&expected[..], [0; 100]));
    }
}
