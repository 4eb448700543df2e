//! How the uses of one buffer on several streams are ordered.
//!
//! A buffer remembers who used it: one entry per stream, with the numbers of the last work that wrote it and that used
//! it at all. Before a
//! stream reads a buffer it waits for the writers on other streams, before it writes one for everybody. A wait records
//! an event on the other stream and lets this one wait for it on the device; what a stream has waited for it
//! remembers, so that nothing is waited for twice. With one stream, or two that are in step, nothing is asked of the
//! driver.
//!
//! Two threads may use parts of one buffer on two streams at once, so an entry is dropped only by a stream that has
//! waited for it.

use std::sync::Arc;

use super::StreamCore;
use crate::{
    driver::EventTiming,
    error::Result,
    event::Recorded,
    host_function,
    sync::{Mutex, lock},
};

/// Who used a buffer.
#[derive(Default)]
pub(crate) struct Uses(Mutex<Vec<Use>>); // guards the entries

/// A stream's latest uses, by the numbers of its work; 0 where there was none.
#[derive(Clone)]
struct Use {
    stream: Arc<StreamCore>,
    wrote: u64,
    used: u64,
}

/// What work does with a buffer.
pub(crate) struct Access<'a> {
    uses: &'a Uses,
    writes: bool,
}

/// Up to which work number of other streams a stream has waited, by their ids.
#[derive(Default)]
pub(crate) struct Seen(Vec<(u64, u64)>);

impl Uses {
    pub(crate) fn read(&self) -> Access<'_> {
        Access { uses: self, writes: false }
    }

    pub(crate) fn write(&self) -> Access<'_> {
        Access { uses: self, writes: true }
    }

    /// Up to where others must be waited for: to read, for their writes; to write, for everything.
    fn of_others(&self, stream: &StreamCore, to_write: bool) -> Vec<(Arc<StreamCore>, u64)> {
        let uses = lock(&self.0);
        let others = uses.iter().filter(|used| used.stream.queue.id != stream.queue.id);
        let ends = others.map(|used| (used, if to_write { used.used } else { used.wrote }));
        ends.filter(|(_, at)| *at > 0).map(|(used, at)| (used.stream.clone(), at)).collect()
    }

    /// Waits on the host until no stream uses the buffer.
    pub(crate) fn prove_done(&self) -> crate::driver::Result<()> {
        let uses = lock(&self.0).clone();
        uses.iter().try_for_each(|used| used.stream.prove_idle())
    }
}

impl Access<'_> {
    /// Adds this use, and drops those that it came after.
    pub(super) fn note(&self, stream: &Arc<StreamCore>, at: u64) {
        let mut uses = lock(&self.uses.0);
        if self.writes && uses.len() > 1 {
            let seen = lock(&stream.queue.seen);
            uses.retain(|used| {
                used.stream.queue.id == stream.queue.id || !seen.covers(used.stream.queue.id, used.used)
            });
        }
        let wrote = if self.writes { at } else { 0 };
        match uses.iter_mut().find(|used| used.stream.queue.id == stream.queue.id) {
            Some(used) => {
                used.wrote = used.wrote.max(wrote);
                used.used = used.used.max(at);
            }
            None => uses.push(Use { stream: stream.clone(), wrote, used: at }),
        }
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
    pub(super) fn order_before(&self, access: &Access<'_>) -> Result<()> {
        let others = access.uses.of_others(self, access.writes);
        others.iter().try_for_each(|(other, at)| self.order_after(other, *at))
    }

    /// What is queued here from now on comes after everything that any stream does with the buffer.
    pub(crate) fn order_after_all(&self, uses: &Uses) -> Result<()> {
        self.order_before(&uses.write())
    }

    /// What is queued here from now on comes after work `at` of `other`.
    pub(crate) fn order_after(&self, other: &Arc<StreamCore>, at: u64) -> Result<()> {
        if lock(&self.queue.seen).covers(other.queue.id, at) {
            return Ok(());
        }
        host_function::refuse_inside()?;
        self.order_after_event(&Recorded::new(other, EventTiming::Untimed)?)
    }

    pub(super) fn order_after_event(&self, event: &Recorded) -> Result<()> {
        if let Some(handle) = event.handle() {
            // SAFETY: the stream lives as long as its core, and the event was recorded when it was made.
            unsafe { self.driver().wait_event(self.queue.handle, handle) }?;
        }
        lock(&self.queue.seen).note(event.stream().queue.id, event.at());
        Ok(())
    }
}
