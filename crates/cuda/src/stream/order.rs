//! How the uses of one buffer on several streams are ordered.
//!
//! A buffer remembers who used it: for each stream, the numbers of the last work that wrote it and that used it at all.
//! Before a stream reads a buffer it waits for the writers on other streams, before it writes one for everybody. A wait
//! records an event on the other stream and lets this one wait for it on the device; what a stream has waited for it
//! remembers, so that nothing is waited for twice. With one stream, or two that are in step, nothing is asked of the
//! driver.
//!
//! What was uploaded from page-locked memory has an event of its own, right behind the copy; whoever uses the buffer next
//! waits for that, and not for what the copying stream was asked for since.
//!
//! A new buffer may be made of a block that its stream, its home, still works on for an earlier owner. It starts as if
//! that work had written it.
//!
//! Two threads may use parts of one buffer on two streams at once, so an entry is dropped only by a stream that has
//! waited for it.
//!
//! From the check to the note nobody else may do what the check was for. Rust sees to that: who writes has the buffer
//! alone. But a graph uses buffers that others have too, from any thread. So work holds the *turn* of each buffer for
//! which it may meet a launch, and a launch that of all of its buffers:
//!
//! ```text
//! launch   take turns ─ check ─ wait ─ submit ─ note ─ give turns back
//! reader                                                 take turn ─ check ─ wait ─ submit ─ note ─ give turn back
//! ```
//!
//! All turns are taken at once, in the order of their addresses, and before any other lock: so nobody waits in a circle.
//! Who may meet a launch is told by what captures did with the buffer (`in_captures`). That is noted while a capture
//! borrows the buffer: whoever is between check and note at that moment does nothing that conflicts with the capture, and
//! whoever comes later, if Rust lets them, sees the note.

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

/// Who used a buffer.
pub(crate) struct Uses {
    home: Arc<StreamCore>,
    marks: Mutex<Marks>,   // guards who used it; no other lock but `Seen`'s is taken inside
    turn: Mutex<()>,       // see the head of the file
    in_captures: AtomicU8, // bits of what any did. Relaxed: see the head of the file
}

const READ: u8 = 1;
const WRITTEN: u8 = 2;

#[derive(Clone)]
struct Marks {
    home: Mark,
    event: Option<Arc<Recorded>>,         // behind the latest use that has one
    others: Vec<(Arc<StreamCore>, Mark)>, // one for each other stream
}

/// A stream's latest uses, by the numbers of its work; 0 where there was none.
#[derive(Clone, Copy, Default)]
struct Mark {
    wrote: u64,
    used: u64,
}

/// What work does with a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    uses: &'a Uses,
    allocation: Option<&'a Arc<Allocation>>, // what they are the uses of, where that is memory
    writes: bool,
    is_launch: bool, // of a graph, that others may use meanwhile
}

/// Whether work writes a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writes(pub(crate) bool);

/// What has to be waited for: a stream's work up to that number.
struct Before {
    stream: Arc<StreamCore>,
    at: u64,
    event: Option<Arc<Recorded>>, // one that covers it
}

/// Up to which work number of other streams a stream has waited, by their ids.
#[derive(Default)]
pub(crate) struct Seen(Vec<(u64, u64)>);

impl Uses {
    /// Of a new buffer, made of a block on which its stream worked up to that number.
    pub(crate) fn new(home: Arc<StreamCore>, worked_on: u64) -> Self {
        let mark = Mark { wrote: worked_on, used: worked_on };
        Self::with(home, Marks { home: mark, event: None, others: Vec::new() })
    }

    /// Of a part of the buffer, which was used as the whole was.
    pub(crate) fn fork(&self) -> Self {
        let marks = lock(&self.marks).clone();
        Self::with(self.home.clone(), marks)
    }

    fn with(home: Arc<StreamCore>, marks: Marks) -> Self {
        Self { home, marks: Mutex::new(marks), turn: Mutex::new(()), in_captures: AtomicU8::new(0) }
    }

    /// The stream that the buffer was allocated on, and that gets its memory back.
    pub(crate) fn home(&self) -> &Arc<StreamCore> {
        &self.home
    }

    pub(crate) fn read(&self) -> Access<'_> {
        Access { uses: self, allocation: None, writes: false, is_launch: false }
    }

    pub(crate) fn write(&self) -> Access<'_> {
        Access { writes: true, ..self.read() }
    }

    /// What the launch of a graph does.
    pub(crate) fn launch(&self, Writes(writes): Writes) -> Access<'_> {
        Access { writes, is_launch: true, ..self.read() }
    }

    /// Notes what a capture does with the buffer, which it has borrowed for that.
    pub(crate) fn note_captured(&self, Writes(writes): Writes) {
        self.in_captures.fetch_or(if writes { WRITTEN } else { READ }, Relaxed);
    }

    /// Waits on the host until no stream but its home uses the buffer.
    pub(crate) fn prove_done_elsewhere(&self) -> driver::Result<()> {
        let others = lock(&self.marks).others.clone();
        others.iter().try_for_each(|(other, _)| other.prove_idle())
    }

    /// Waits on the host until no stream uses the buffer.
    pub(crate) fn prove_done(&self) -> driver::Result<()> {
        let used_at_home = lock(&self.marks).home.used;
        if used_at_home > 0 && !self.home.is_done(used_at_home) {
            self.home.prove_idle()?;
        }
        self.prove_done_elsewhere()
    }
}

impl<'a> Access<'a> {
    /// The same, of memory that a capture may have to keep.
    pub(crate) fn of(self, allocation: &'a Arc<Allocation>) -> Self {
        Access { allocation: Some(allocation), ..self }
    }

    /// The memory, if it is known, and the stream that it comes from.
    pub(super) fn allocation(&self) -> Option<&'a Arc<Allocation>> {
        self.allocation
    }

    /// Adds what `stream` has to wait for: to read, for writes; to write, for everything.
    fn add_before(&self, stream: &StreamCore, before: &mut Vec<Before>) {
        let marks = lock(&self.uses.marks);
        let home = std::iter::once((&self.uses.home, &marks.home));
        for (other, mark) in home.chain(marks.others.iter().map(|(other, mark)| (other, mark))) {
            let at = if self.writes { mark.used } else { mark.wrote };
            if at == 0 || other.is(stream) || stream.has_seen(other, at) {
                continue;
            }
            let event = marks.event_for(other, at);
            before.push(Before { stream: other.clone(), at, event });
        }
    }

    /// Notes an event that was recorded right behind this use.
    pub(crate) fn note_event(&self, event: Arc<Recorded>) {
        let _before = lock(&self.uses.marks).event.replace(event); // dropped without the lock
    }

    /// Whether the work writes.
    pub(super) fn writes(&self) -> Writes {
        Writes(self.writes)
    }

    /// Whether a launch on another thread may do at the same time what the work must come before or after.
    fn may_meet_a_launch(&self) -> bool {
        let conflicting = if self.writes { READ | WRITTEN } else { WRITTEN };
        self.is_launch || self.uses.in_captures.load(Relaxed) & conflicting != 0
    }

    /// Adds this use, and drops those of streams that have been waited for.
    pub(super) fn note(&self, stream: &Arc<StreamCore>, at: u64) {
        let mut marks = lock(&self.uses.marks);
        if self.writes && !marks.others.is_empty() {
            let seen = lock(&stream.queue.seen);
            marks.others.retain(|(other, mark)| other.is(stream) || !seen.covers(other.queue.id, mark.used));
        }
        let mark = marks.of(stream, &self.uses.home);
        mark.used = mark.used.max(at);
        if self.writes {
            mark.wrote = mark.wrote.max(at);
        }
    }
}

/// Takes the turns that some work needs; see the head of the file.
pub(super) fn take_turns<'a>(accesses: &[Access<'a>]) -> Vec<MutexGuard<'a, ()>> {
    let contended = accesses.iter().filter(|access| access.may_meet_a_launch());
    let mut contended: Vec<&'a Uses> = contended.map(|access| access.uses).collect(); // mostly none: nothing is allocated
    contended.sort_by_key(|uses| ptr::from_ref::<Uses>(uses).addr()); // those of a graph are in order but for one
    contended.dedup_by(|one, other| ptr::eq::<Uses>(*one, *other));
    contended.into_iter().map(|uses| lock(&uses.turn)).collect()
}

impl Marks {
    /// The event, if it covers the work of that stream up to that number.
    fn event_for(&self, stream: &StreamCore, at: u64) -> Option<Arc<Recorded>> {
        self.event.clone().filter(|event| event.stream().is(stream) && event.at() >= at)
    }

    fn of(&mut self, stream: &Arc<StreamCore>, home: &StreamCore) -> &mut Mark {
        if stream.is(home) {
            return &mut self.home;
        }
        let known = self.others.iter().position(|(other, _)| other.is(stream));
        let at = known.unwrap_or_else(|| {
            self.others.push((stream.clone(), Mark::default()));
            self.others.len() - 1
        });
        &mut self.others[at].1
    }
}

impl Seen {
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
    fn is(&self, other: &StreamCore) -> bool {
        self.queue.id == other.queue.id
    }

    pub(super) fn order_before(&self, accesses: &[Access<'_>]) -> Result<()> {
        let mut before = Vec::new();
        accesses.iter().for_each(|access| access.add_before(self, &mut before));
        // Each stream once, for its latest work.
        before.sort_unstable_by_key(|before| (before.stream.queue.id, before.at));
        let mut latest =
            before.chunk_by(|one, next| one.stream.is(&next.stream)).filter_map(|of_stream| of_stream.last());
        latest.try_for_each(|Before { stream, at, event }| match event {
            Some(event) => self.order_after_event(event),
            None => self.order_after(stream, *at),
        })
    }

    /// What is queued here from now on comes after everything that any stream does with the buffer.
    pub(crate) fn order_after_all(&self, uses: &Uses) -> Result<()> {
        self.order_before(&[uses.write()])
    }

    /// What is queued here from now on comes after work `at` of `other`.
    pub(crate) fn order_after(&self, other: &Arc<StreamCore>, at: u64) -> Result<()> {
        if self.has_seen(other, at) {
            return Ok(());
        }
        host_function::refuse_inside()?;
        self.order_after_event(&Recorded::new(other, EventTiming::Untimed)?)
    }

    /// Whether this stream has waited for that work already.
    fn has_seen(&self, other: &StreamCore, at: u64) -> bool {
        lock(&self.queue.seen).covers(other.queue.id, at)
    }

    pub(super) fn order_after_event(&self, event: &Recorded) -> Result<()> {
        self.check_knows(event.stream(), OnDevice::Event)?;
        self.refuse_capturing()?;
        if let Some(handle) = event.handle() {
            // SAFETY: the stream lives as long as its core, and the event was recorded when it was made.
            unsafe { self.driver().wait_event(self.queue.handle, handle) }?;
            // Work too: who has waited for this stream's last work has not yet waited for what it now waits for.
            self.count_work();
        }
        lock(&self.queue.seen).note(event.stream().queue.id, event.at());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Stream, software::Config};

    fn waited_for(access: Access<'_>, stream: &Stream) -> usize {
        let mut before = Vec::new();
        access.add_before(stream.core(), &mut before);
        before.len()
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

    /// Two threads may write halves of one buffer on two streams, so neither write waits for the other.
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

    #[test]
    fn readers_wait_for_writers_only() {
        let device = Device::software(Config::default()).unwrap();
        let [home, one, two] = [0; 3].map(|_| device.stream().unwrap());
        let uses = Uses::new(home.core().clone(), 0);

        uses.read().note(one.core(), 1);

        assert_eq!(waited_for(uses.read(), &two), 0);
        assert_eq!(waited_for(uses.write(), &two), 1);
    }
}
