//! Executes the work: chooses the next piece, and runs it.

use std::{
    slice,
    sync::{MutexGuard, PoisonError},
    thread,
    time::Instant,
};

use super::{
    core::{Core, State},
    machine::Execution,
    memory::Memory,
    queue::{Mark, Work},
};
use crate::driver::{Copy2d, End, Pattern};

impl Core {
    /// The main loop of the threads.
    pub(super) fn run_until_over(&self) {
        let mut state = self.lock();
        while !state.is_over {
            for _ in 0..state.random.below(8) {
                drop(state);
                thread::yield_now();
                state = self.lock();
            }
            state = match self.step(state) {
                (state, stepped) if stepped || state.is_over => state,
                (state, _) => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Executes a few pieces of work, or none, if callers execute the work.
    pub(super) fn step_at_random(&self) {
        let Execution::Stepped { haste } = self.execution else { return };
        let mut state = self.lock();
        while state.random.below(256) < haste.into() {
            let (after, stepped) = self.step(state);
            state = after;
            if !stepped {
                break;
            }
        }
    }

    /// Returns when the mark is reached.
    pub(super) fn wait_for(&self, mark: &Mark) {
        let mut state = self.lock();
        while !mark.is_reached() {
            state = self.help_or_wait(state);
        }
    }

    /// Executes all work that can be executed.
    pub(super) fn run_all(&self) {
        let mut state = self.lock();
        while state.running > 0 || state.queues.values().any(|queue| queue.is_runnable()) {
            state = self.help_or_wait(state);
        }
    }

    /// Executes one piece after a query was answered with "not yet", so that repeated queries make progress.
    pub(super) fn step_once(&self) {
        if let Execution::Stepped { .. } = self.execution {
            drop(self.step(self.lock()));
        }
    }

    fn help_or_wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let helps = matches!(self.execution, Execution::Stepped { .. });
        let (state, stepped) = if helps { self.step(state) } else { (state, false) };
        if stepped { state } else { self.changed.wait(state).unwrap_or_else(PoisonError::into_inner) }
    }

    /// Executes one piece of work of a random stream; false if no stream has work that may run.
    fn step<'a>(&'a self, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, bool) {
        let runnable: Vec<u64> =
            state.queues.iter().filter(|(_, queue)| queue.is_runnable()).map(|(&stream, _)| stream).collect();
        if runnable.is_empty() {
            return (state, false);
        }
        let stream = runnable[state.random.below(runnable.len())];
        let Some(work) = state.queues.get_mut(&stream).and_then(|queue| queue.start()) else {
            return (state, false);
        };
        state.running += 1;
        let unlocked = work.locked().is_some_and(|start| !state.registered.contains_key(&start));
        drop(state);
        let result = if unlocked {
            Err("a copy uses host memory that is no longer page-locked".to_owned())
        } else {
            self.run(&work)
        };
        let mut state = self.lock();
        state.running -= 1;
        state.violations.extend(result.err());
        if let Some(queue) = state.queues.get_mut(&stream) {
            queue.finish();
        }
        state.queues.retain(|_, queue| !queue.is_over());
        self.changed.notify_all();
        (state, true)
    }

    fn run(&self, work: &Work) -> Result<(), String> {
        match work {
            Work::CallHost { function, data } => {
                // SAFETY: the caller who queued it promised that it may be called on any thread.
                unsafe { function(*data) };
                Ok(())
            }
            Work::Wait(_) => Ok(()),
            Work::Stamp(stamp) => {
                *stamp.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                Ok(())
            }
            Work::All(works) => works.iter().try_for_each(|work| self.run(work)),
            Work::ToDevice { to, from, len_bytes, .. } => self.memory().write(to.0, *from, *len_bytes),
            Work::ToHost { to, from, len_bytes, .. } => self.memory().read(*to, from.0, *len_bytes),
            Work::OnDevice { to, from, len_bytes } => self.memory().copy(to.0, from.0, *len_bytes),
            Work::Rows(copy) => self.memory().copy_rows(copy),
            Work::Fill { to, pattern, count } => self.memory().fill(to.0, *pattern, *count),
        }
    }
}

impl Memory {
    fn write(&mut self, to: u64, from: *const u8, len_bytes: usize) -> Result<(), String> {
        // SAFETY: the caller who queued the copy promised that the source is valid and not written until the copy is
        // done.
        let source = unsafe { slice::from_raw_parts(from, len_bytes) };
        self.bytes_mut(to, len_bytes)?.copy_from_slice(source);
        Ok(())
    }

    fn read(&mut self, to: *mut u8, from: u64, len_bytes: usize) -> Result<(), String> {
        let source = self.bytes(from, len_bytes)?;
        // SAFETY: the caller who queued the copy promised that the target is valid and not used until the copy is
        // done.
        let target = unsafe { slice::from_raw_parts_mut(to, len_bytes) };
        target.copy_from_slice(source);
        Ok(())
    }

    fn copy(&mut self, to: u64, from: u64, len_bytes: usize) -> Result<(), String> {
        let source = self.bytes(from, len_bytes)?.to_vec();
        self.bytes_mut(to, len_bytes)?.copy_from_slice(&source);
        Ok(())
    }

    fn copy_rows(&mut self, copy: &Copy2d) -> Result<(), String> {
        for row in 0..copy.rows {
            let (from, to) = (copy.from.offset(row * copy.from_pitch), copy.to.offset(row * copy.to_pitch));
            match (from, to) {
                (End::Host(from), End::Device(to)) => self.write(to.0, from, copy.row_bytes)?,
                (End::Device(from), End::Host(to)) => self.read(to, from.0, copy.row_bytes)?,
                (End::Device(from), End::Device(to)) => self.copy(to.0, from.0, copy.row_bytes)?,
                (End::Host(_), End::Host(_)) => return Err("a copy of rows from host to host".to_owned()),
            }
        }
        Ok(())
    }

    fn fill(&mut self, to: u64, pattern: Pattern, count: usize) -> Result<(), String> {
        match pattern {
            Pattern::One(value) => self.bytes_mut(to, count)?.fill(value),
            Pattern::Two(value) => repeat(self.bytes_mut(to, 2 * count)?, &value.to_ne_bytes()),
            Pattern::Four(value) => repeat(self.bytes_mut(to, 4 * count)?, &value.to_ne_bytes()),
        }
        Ok(())
    }
}

fn repeat(bytes: &mut [u8], pattern: &[u8]) {
    for chunk in bytes.chunks_exact_mut(pattern.len()) {
        chunk.copy_from_slice(pattern);
    }
}

impl End {
    fn offset(self, bytes: usize) -> Self {
        match self {
            End::Host(start) => End::Host(start.wrapping_add(bytes)),
            End::Device(start) => End::Device(start.offset(bytes)),
        }
    }
}
