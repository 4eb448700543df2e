//! How the uses of one buffer on several streams are ordered.
//!
//! A buffer stores a mark for each stream that used it: the number of the stream's last work that wrote the buffer,
//! and of its last work that used it at all. Before a stream reads a buffer, it waits for the writes by other
//! streams; before it writes one, it waits for all uses. To wait, it records an event on the other stream and makes
//! its own stream wait for the event on the device. A stream remembers up to where it has waited, so it never waits
//! twice for the same work. A single stream, or two that have already waited for each other, makes no driver call.
//!
//! An upload from page-locked memory records an event of its own right behind the copy. The next user of the buffer
//! waits for that event, and not for work that was queued on the copying stream later.
//!
//! A new buffer may get a block that its home, the stream that allocated it, still uses for an earlier owner. The
//! buffer's marks begin as if that work had written it.
//!
//! Two threads may use parts of one buffer on two streams at once, so only a stream that has waited for a mark's work
//! drops the mark, unless the work is known to be done. Before a buffer gets a mark more than [`MANY`], the streams of
//! its marks are queried, so that streams without work do not pile up.
//!
//! Between the check of the marks and the note of the new use, nobody may start a conflicting use. For most work the
//! borrow checker ensures that, since a writer borrows the buffer exclusively. But a graph shares its buffers with
//! other owners on any thread. So each buffer has a lock, its *turn*. A launch holds the turns of all its buffers,
//! and other work holds the turns of those buffers for which it may conflict with a launch:
//!
//! ```text
//! launch   lock turns ─ check ─ wait ─ submit ─ note ─ unlock turns
//! reader                                                 lock turn ─ check ─ wait ─ submit ─ note ─ unlock turn
//! ```
//!
//! All turns are locked at once, in the order of their addresses and before any marks, so there is no deadlock. Which
//! work may conflict with a launch follows from the uses of the buffer in captures (`in_captures`). These are noted
//! while a capture borrows the buffer. Work that is between check and note at that moment does not conflict with the
//! capture, and work that begins later sees the note.

use std::{
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

use super::StreamCore;
use crate::{
    buffer::Allocation,
    driver::{self, EventTiming},
    error::{OnDevice, Result},
    event::Recorded,
    host_function,
    sync::{Mutex, MutexGuard, lock},
};

/// Which streams used a buffer.
pub(crate) struct Uses {
    home: Arc<StreamCore>,
    marks: Mutex<Marks>, // guards which streams used it; while it is held, only the lock of `WaitedFor` is taken
    turn: Mutex<()>,     // see the head of the file
    in_captures: AtomicU8, // `READ` and `WRITTEN`, by any capture. Relaxed: see the head of the file
}

/// So many other streams use a buffer before their work is looked at.
const MANY: usize = 16;

const READ: u8 = 1;
const WRITTEN: u8 = 2;

#[derive(Clone)]
struct Marks {
    home: Mark,
    event: Option<Arc<Recorded>>,         // behind the latest use that recorded one
    others: Vec<(Arc<StreamCore>, Mark)>, // one for each other stream
}

/// A stream's latest uses, by the numbers of its work; 0 where there was none.
#[derive(Clone, Copy, Default)]
pub(super) struct Mark {
    wrote: u64,
    used: u64,
}

/// How work uses a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    uses: &'a Uses,
    allocation: Option<&'a Arc<Allocation>>, // the memory that `uses` belongs to, if there is any
    writes: bool,
    is_launch: bool, // of a graph, whose buffers others may use at the same time
}

/// Whether work writes a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writes(pub(crate) bool);

/// Work that must be waited for: that of `stream` up to number `at`.
struct Dependency {
    stream: Arc<StreamCore>,
    at: u64,
    event: Option<Arc<Recorded>>, // covers that work
}

/// Up to which work number a stream has waited for each other stream: pairs of stream id and number.
#[derive(Default)]
pub(crate) struct WaitedFor(Vec<(u64, u64)>);

impl Uses {
    /// For a new buffer in a block that its home used up to work number `last_use`.
    pub(crate) fn new(home: Arc<StreamCore>, last_use: u64) -> Self {
        let mark = Mark { wrote: last_use, used: last_use };
        Self::with(home, Marks { home: mark, event: None, others: Vec::new() })
    }

    /// For a part of the buffer: its marks begin as a copy of the whole's.
    pub(crate) fn fork(&self) -> Self {
        let marks = lock(&self.marks).clone();
        Self::with(self.home.clone(), marks)
    }

    fn with(home: Arc<StreamCore>, marks: Marks) -> Self {
        Self { home, marks: Mutex::new(marks), turn: Mutex::new(()), in_captures: AtomicU8::new(0) }
    }

    /// The stream that the buffer was allocated on, to whose cache its memory returns.
    pub(crate) fn home(&self) -> &Arc<StreamCore> {
        &self.home
    }

    pub(crate) fn read(&self) -> Access<'_> {
        Access { uses: self, allocation: None, writes: false, is_launch: false }
    }

    pub(crate) fn write(&self) -> Access<'_> {
        Access { writes: true, ..self.read() }
    }

    /// The access of a graph's launch.
    pub(crate) fn launch(&self, Writes(writes): Writes) -> Access<'_> {
        Access { writes, is_launch: true, ..self.read() }
    }

    /// Notes how a capture uses the buffer, which it borrows meanwhile.
    pub(crate) fn note_captured(&self, Writes(writes): Writes) {
        self.in_captures.fetch_or(if writes { WRITTEN } else { READ }, Relaxed);
    }

    /// Waits on the host until no stream but its home uses the buffer.
    pub(crate) fn wait_until_unused_elsewhere(&self) -> driver::Result<()> {
        let others = lock(&self.marks).others.clone();
        others.iter().try_for_each(|(other, _)| other.wait_until_idle())
    }

    /// Waits on the host until no stream uses the buffer.
    pub(crate) fn wait_until_unused(&self) -> driver::Result<()> {
        let used_at_home = lock(&self.marks).home.used;
        if used_at_home > 0 && !self.home.is_done(used_at_home) {
            self.home.wait_until_idle()?;
        }
        self.wait_until_unused_elsewhere()
    }
}

impl<'a> Access<'a> {
    /// The same access, with its memory, which a capture may have to keep alive.
    pub(crate) fn of(self, allocation: &'a Arc<Allocation>) -> Self {
        Access { allocation: Some(allocation), ..self }
    }

    /// The stream to whose cache the memory returns.
    pub(super) fn home(&self) -> &'a StreamCore {
        &self.uses.home
    }

    /// The memory, if it is known.
    pub(super) fn allocation(&self) -> Option<&'a Arc<Allocation>> {
        self.allocation
    }

    /// Adds the work that `stream` must wait for: before a read all writes, before a write all uses. If this use adds
    /// a mark to many, their streams become `crowd`.
    fn add_dependencies(
        &self,
        stream: &StreamCore,
        dependencies: &mut Vec<Dependency>,
        crowd: &mut Vec<Arc<StreamCore>>,
    ) {
        let marks = lock(&self.uses.marks);
        if marks.others.len() >= MANY && !marks.others.iter().any(|(other, _)| other.is_same_stream(stream)) {
            crowd.extend(marks.others.iter().map(|(other, _)| other.clone()));
        }
        let home = std::iter::once((&self.uses.home, &marks.home));
        for (other, mark) in home.chain(marks.others.iter().map(|(other, mark)| (other, mark))) {
            let at = if self.writes { mark.used } else { mark.wrote };
            if at == 0 || other.is_same_stream(stream) || stream.has_waited_for(other, at) {
                continue;
            }
            let event = marks.event_for(other, at);
            dependencies.push(Dependency { stream: other.clone(), at, event });
        }
    }

    /// Notes an event that was recorded right behind this use.
    pub(crate) fn note_event(&self, event: Arc<Recorded>) {
        let _previous = lock(&self.uses.marks).event.replace(event); // dropped after the lock is released
    }

    /// Whether the work writes.
    pub(super) fn writes(&self) -> Writes {
        Writes(self.writes)
    }

    /// Whether a launch on another thread may conflict with this access.
    fn may_conflict_with_launch(&self) -> bool {
        let conflicting = if self.writes { READ | WRITTEN } else { WRITTEN };
        self.is_launch || self.uses.in_captures.load(Relaxed) & conflicting != 0
    }

    /// Adds this use, which is work number `at`. A write removes the marks of work that `stream` has waited for, and
    /// every use removes those of finished work if there are many. The result is to be dropped without locks, since
    /// streams may end with their marks.
    pub(super) fn note(&self, stream: &Arc<StreamCore>, mut at: u64) -> Vec<(Arc<StreamCore>, Mark)> {
        let mut removed = Vec::new();
        let mut marks = lock(&self.uses.marks);
        if marks.others.len() >= MANY {
            removed.extend(marks.others.extract_if(.., |(other, mark)| other.is_done(mark.used)));
        }
        if self.writes && !marks.others.is_empty() {
            let waited_for = lock(&stream.queue.waited_for);
            // Another thread may have made the stream wait since this work was submitted. A stream that comes after this
            // use must come after such waits, too. They are counted before they are in `waited_for`.
            at = at.max(stream.submitted());
            let is_covered = |other: &StreamCore, mark: &Mark| waited_for.covers(other.queue.id, mark.used);
            let is_over =
                |(other, mark): &mut (Arc<StreamCore>, Mark)| !other.is_same_stream(stream) && is_covered(other, mark);
            removed.extend(marks.others.extract_if(.., is_over));
        }
        let mark = marks.mark_of(stream, &self.uses.home);
        mark.used = mark.used.max(at);
        if self.writes {
            mark.wrote = mark.wrote.max(at);
        }
        removed
    }
}

/// Locks the turns that work with these accesses needs; see the head of the file.
pub(super) fn take_turns<'a>(accesses: &[Access<'a>]) -> Vec<MutexGuard<'a, ()>> {
    let contended = accesses.iter().filter(|access| access.may_conflict_with_launch());
    let mut contended: Vec<&'a Uses> = contended.map(|access| access.uses).collect(); // mostly empty, so not allocated
    contended.sort_by_key(|uses| ptr::from_ref::<Uses>(uses).addr()); // a graph's are sorted already, except for one
    contended.dedup_by(|one, other| ptr::eq::<Uses>(*one, *other));
    contended.into_iter().map(|uses| lock(&uses.turn)).collect()
}

impl Marks {
    /// The event, if it covers the work of `stream` up to number `at`.
    fn event_for(&self, stream: &StreamCore, at: u64) -> Option<Arc<Recorded>> {
        self.event.clone().filter(|event| event.stream().is_same_stream(stream) && event.at() >= at)
    }

    fn mark_of(&mut self, stream: &Arc<StreamCore>, home: &StreamCore) -> &mut Mark {
        if stream.is_same_stream(home) {
            return &mut self.home;
        }
        let known = self.others.iter().position(|(other, _)| other.is_same_stream(stream));
        let at = known.unwrap_or_else(|| {
            self.others.push((stream.clone(), Mark::default()));
            self.others.len() - 1
        });
        &mut self.others[at].1
    }
}

impl WaitedFor {
    fn covers(&self, stream: u64, at: u64) -> bool {
        self.0.iter().any(|&(id, up_to)| id == stream && up_to >= at)
    }

    fn note(&mut self, stream: u64, at: u64) {
        match self.0.iter_mut().find(|(id, _)| *id == stream) {
            Some((_, up_to)) => *up_to = at.max(*up_to),
            None => self.0.push((stream, at)),
        }
    }
}

impl StreamCore {
    fn is_same_stream(&self, other: &StreamCore) -> bool {
        self.queue.id == other.queue.id
    }

    /// Notes that all work is done, if it is.
    fn note_if_idle(&self) {
        let submitted = self.submitted();
        if self.handles().is_idle(self.driver(), self.queue.handle) {
            self.note_done(submitted);
        }
    }

    pub(super) fn order_after_conflicts(&self, accesses: &[Access<'_>]) -> Result<()> {
        let (mut dependencies, mut crowd) = (Vec::new(), Vec::new());
        accesses.iter().for_each(|access| access.add_dependencies(self, &mut dependencies, &mut crowd));
        crowd.iter().for_each(|stream| stream.note_if_idle());
        // Wait once for each stream, for its latest work.
        dependencies.sort_unstable_by_key(|dependency| (dependency.stream.queue.id, dependency.at));
        let by_stream = dependencies.chunk_by(|one, next| one.stream.is_same_stream(&next.stream));
        by_stream.filter_map(|of_stream| of_stream.last()).try_for_each(
            |Dependency { stream, at, event }| match event {
                Some(event) => self.order_after_event(event),
                None => self.order_after(stream, *at),
            },
        )
    }

    /// Makes all work that is queued here from now on wait for every use of the buffer by any stream.
    pub(crate) fn order_after_all(&self, uses: &Uses) -> Result<()> {
        self.order_after_conflicts(&[uses.write()])
    }

    /// Makes all work that is queued here from now on wait for the work of `other` up to number `at`.
    pub(crate) fn order_after(&self, other: &Arc<StreamCore>, at: u64) -> Result<()> {
        if self.has_waited_for(other, at) {
            return Ok(());
        }
        host_function::refuse_inside()?;
        self.order_after_event(&Recorded::new(other, EventTiming::Untimed)?)
    }

    /// Whether this stream has already waited for the work of `other` up to number `at`.
    fn has_waited_for(&self, other: &StreamCore, at: u64) -> bool {
        lock(&self.queue.waited_for).covers(other.queue.id, at)
    }

    pub(super) fn order_after_event(&self, event: &Recorded) -> Result<()> {
        self.check_same_family(event.stream(), OnDevice::Event)?;
        self.refuse_capturing()?;
        if let Some(handle) = event.handle() {
            // SAFETY: the stream lives as long as its core, and the event was recorded when it was made.
            unsafe { self.driver().wait_event(self.queue.handle, handle) }?;
            // The wait counts as work: a stream that has waited for the work before it has not waited for the event.
            self.count_work();
        }
        lock(&self.queue.waited_for).note(event.stream().queue.id, event.at());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Stream, software::Config};

    fn waited_for(access: Access<'_>, stream: &Stream) -> usize {
        let mut dependencies = Vec::new();
        access.add_dependencies(stream.core(), &mut dependencies, &mut Vec::new());
        dependencies.len()
    }

    #[test]
    fn one_stream_is_waited_for_once_and_for_its_latest_work() {
        let device = Device::software(Config::default()).unwrap();
        let [home, writer, reader] = [0; 3].map(|_| device.stream().unwrap());
        let [first, second] = [0; 2].map(|_| Uses::new(home.core().clone(), 0));
        for uses in [&second, &first] {
            assert!(writer.core().enqueue(&[uses.write()], |_, _| Ok(())).is_ok());
        }

        let queued = reader.core().enqueue(&[second.read(), first.read(), second.read()], |_, _| Ok(()));

        assert!(queued.is_ok());
        assert_eq!(reader.core().submitted(), 2, "one wait and the work");
    }

    /// Two threads may write halves of one buffer on two streams, where neither write waits for the other.
    #[test]
    fn a_write_does_not_hide_another_that_it_did_not_wait_for() {
        let device = Device::software(Config::default()).unwrap();
        let [home, one, two, reader] = [0; 4].map(|_| device.stream().unwrap());
        let uses = Uses::new(home.core().clone(), 0);

        uses.write().note(one.core(), 1);
        uses.write().note(two.core(), 1);

        assert_eq!(waited_for(uses.read(), &reader), 2, "a reader comes after both");
    }

    #[test]
    fn a_write_hides_what_it_waited_for() {
        let device = Device::software(Config::default()).unwrap();
        let [home, one, two, reader] = [0; 4].map(|_| device.stream().unwrap());
        let uses = Uses::new(home.core().clone(), 0);

        for writer in [&one, &two] {
            let queued = writer.core().enqueue(&[uses.write()], |_, _| Ok(()));
            assert!(queued.is_ok());
        }

        assert_eq!(waited_for(uses.read(), &reader), 1, "waiting for the second is enough");
    }

    /// After a write of one half was submitted and before it is noted, other threads write the other half on a second
    /// stream and make the first stream wait for it.
    #[test]
    fn a_write_that_is_noted_late_hides_another_only_for_streams_that_come_after_both() {
        let device = Device::software(Config::default()).unwrap();
        let [home, one, two, reader] = [0; 4].map(|_| device.stream().unwrap());
        let uses = Uses::new(home.core().clone(), 0);

        let at = one.core().count_work();
        reader.wait_for(&one.record().unwrap()).unwrap();
        uses.write().note(two.core(), two.core().count_work());
        one.wait_for(&two.record().unwrap()).unwrap();
        uses.write().note(one.core(), at);

        assert_eq!(waited_for(uses.read(), &reader), 1, "the reader has waited for the first write alone");
    }

    #[test]
    fn readers_wait_for_writers_only() {
        let device = Device::software(Config::default()).unwrap();
        let [home, one, two] = [0; 3].map(|_| device.stream().unwrap());
        let uses = Uses::new(home.core().clone(), 0);

        uses.read().note(one.core(), 1);

        assert_eq!(waited_for(uses.read(), &two), 0);
        assert_eq!(waited_for(uses.write(), &two), 1);
    }

    #[test]
    fn a_buffer_that_ever_new_streams_read_keeps_few_of_them() {
        let device = Device::software(Config::default()).unwrap();
        let home = device.stream().unwrap();
        let uses = Uses::new(home.core().clone(), 0);
        let mut ids = std::collections::BTreeSet::new();

        for _ in 0..10 * MANY {
            let reader = device.stream().unwrap();
            assert!(reader.core().enqueue(&[uses.read()], |_, _| Ok(())).is_ok());
            ids.insert(reader.core().id());
        }

        assert!(ids.len() <= MANY + 1, "{} queues", ids.len());
        assert!(lock(&uses.marks).others.len() <= MANY + 1);
    }
}
