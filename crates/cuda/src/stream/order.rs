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

use std::sync::Arc;

use super::StreamCore;
use crate::{
    buffer::Allocation,
    driver::{self, EventTiming},
    error::Result,
    event::Recorded,
    host_function,
    sync::{Mutex, lock},
};

/// Who used a buffer.
pub(crate) struct Uses {
    home: Arc<StreamCore>,
    marks: Mutex<Marks>, // guards who used it
}

#[derive(Clone)]
struct Marks {
    home: Mark,
    captured: Captured,
    event: Option<Arc<Recorded>>,         // behind the latest use that has one
    others: Vec<(Arc<StreamCore>, Mark)>, // one for each other stream
}

/// A stream's latest uses, by the numbers of its work; 0 where there was none.
#[derive(Clone, Copy, Default)]
struct Mark {
    wrote: u64,
    used: u64,
}

/// The capture whose work used a buffer last, and whether that wrote it.
#[derive(Clone, Copy, Default)]
struct Captured {
    by: u64,
    writes: bool,
}

/// What work does with a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    uses: &'a Uses,
    allocation: Option<&'a Arc<Allocation>>, // what they are the uses of, where that is memory
    writes: bool,
}

/// Whether work writes a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Writes(bool);

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
        let marks = Marks { home: mark, captured: Captured::default(), event: None, others: Vec::new() };
        Self { home, marks: Mutex::new(marks) }
    }

    /// Of a part of the buffer, which was used as the whole was.
    pub(crate) fn fork(&self) -> Self {
        let marks = lock(&self.marks).clone();
        Self { home: self.home.clone(), marks: Mutex::new(marks) }
    }

    /// The stream that the buffer was allocated on, and that gets its memory back.
    pub(crate) fn home(&self) -> &Arc<StreamCore> {
        &self.home
    }

    pub(crate) fn read(&self) -> Access<'_> {
        Access { uses: self, allocation: None, writes: false }
    }

    pub(crate) fn write(&self) -> Access<'_> {
        Access { uses: self, allocation: None, writes: true }
    }

    /// What the work of that capture does with the buffer, if it uses it at all.
    pub(crate) fn captured_by(&self, id: u64) -> Option<Writes> {
        let captured = lock(&self.marks).captured;
        (captured.by == id).then_some(Writes(captured.writes))
    }

    /// What work does that writes, or else only reads.
    pub(crate) fn access(&self, writes: Writes) -> Access<'_> {
        Access { uses: self, allocation: None, writes: writes.0 }
    }

    /// Waits on the host until no stream uses the buffer.
    pub(crate) fn prove_done(&self) -> driver::Result<()> {
        let others = lock(&self.marks).others.clone();
        others.iter().try_for_each(|(other, _)| other.prove_idle())
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

    /// Notes that work of that capture uses the buffer; whether that is the first.
    pub(super) fn mark_captured(&self, id: u64) -> bool {
        let mut marks = lock(&self.uses.marks);
        let known = marks.captured.by == id;
        let writes = self.writes || (known && marks.captured.writes);
        marks.captured = Captured { by: id, writes };
        !known
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
