//! The queue between the calls of a program and the worker thread that writes its event files.
//!
//! ```text
//! program   append ── append ── … ── append (waits while the queue is full) ── flush (waits until it is written)
//! queue     bytes of each file, at most `limit_bytes` in all; those that the worker is writing count too
//! worker    sleeps until `interval` is over, the queue is half full or a `flush` waits ── takes all records ── writes them
//! ```
//!
//! Invariant: a file consists of whole records, in the order of the calls. Bytes leave the queue when they are in the
//! file; where writing fails, the file is cut back to its last whole record, the bytes stay with the worker, and the
//! error goes to the next call. The worker tries again only after a call has returned the error.
//!
//! An `append` wakes the worker only when it makes the queue not empty or half full: waking a thread costs
//! microseconds, appending a tenth of one.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result, create};

/// The memory that a file keeps for later bytes.
const KEPT_BYTES: usize = 1 << 20;

/// Where the bytes of one file go.
pub(crate) trait Sink: Send {
    /// Adds all of the bytes, or none.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn path(&self) -> PathBuf;
}

/// A file of which the first `len` bytes are whole records.
pub(crate) struct FileSink {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
}

impl Sink for FileSink {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.set_len(self.len)?; // without what a failed call left
        self.file.seek(SeekFrom::Start(self.len))?;
        self.file.write_all(bytes)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }
}

/// A file of a [`Queue`].
#[derive(Clone, Copy)]
pub(crate) struct FileId(usize);

/// Bytes on their way to files. Dropping it writes what is left.
pub(crate) struct Queue {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// The worker waits here.
    work: Condvar,
    /// Calls wait here for room, or for what they flush.
    progress: Condvar,
    limit_bytes: usize,
    interval: Duration,
}

#[derive(Default)]
struct State {
    /// Sinks that the worker has not taken yet: those of the last files of `queued`.
    new_sinks: Vec<Box<dyn Sink>>,
    /// Bytes of each file that the worker has not taken yet.
    queued: Vec<Vec<u8>>,
    /// Bytes that are in no file yet, with those that the worker has taken.
    bytes: usize,
    /// How many calls wait for room.
    waiting: usize,
    /// How many flushes were asked for, and how many of them are done.
    asked: u64,
    done: u64,
    failure: Option<Error>,
    closing: bool,
}

impl Queue {
    /// Starts the worker. It writes at the latest `interval` after a call.
    pub(crate) fn new(limit_bytes: usize, interval: Duration) -> Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            progress: Condvar::new(),
            limit_bytes,
            interval,
        });
        let name = "pagelock-board";
        let of_worker = shared.clone();
        let worker = thread::Builder::new().name(name.to_owned()).spawn(move || of_worker.run());
        Ok(Self { shared, worker: Some(worker.map_err(create(format!("thread {name}").as_ref()))?) })
    }

    pub(crate) fn add_file(&self, sink: Box<dyn Sink>) -> FileId {
        let mut state = self.shared.lock();
        state.new_sinks.push(sink);
        state.queued.push(Vec::new());
        FileId(state.queued.len() - 1)
    }

    /// Queues a record; waits while the queue is full. A record that is larger than the queue is taken when the queue
    /// is empty.
    pub(crate) fn append(&self, file: FileId, record: &[u8]) -> Result<()> {
        let shared = &*self.shared;
        let mut state = shared.lock();
        loop {
            shared.take_failure(&mut state)?;
            if state.bytes == 0 || state.bytes + record.len() <= shared.limit_bytes {
                break;
            }
            state.waiting += 1;
            shared.work.notify_one();
            state = wait(&shared.progress, state);
            state.waiting -= 1;
        }
        let was_full = shared.is_half_full(&state);
        let was_empty = state.bytes == 0;
        state.queued[file.0].extend_from_slice(record);
        state.bytes += record.len();
        if was_empty || (!was_full && shared.is_half_full(&state)) {
            shared.work.notify_one();
        }
        Ok(())
    }

    /// Waits until everything that was queued is in the files.
    pub(crate) fn flush(&self) -> Result<()> {
        let shared = &*self.shared;
        let mut state = shared.lock();
        shared.take_failure(&mut state)?;
        state.asked += 1;
        let mine = state.asked;
        shared.work.notify_one();
        while state.done < mine {
            state = wait(&shared.progress, state);
            shared.take_failure(&mut state)?;
        }
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_one();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join(); // it runs no code that panics
        }
    }
}

/// A file as the worker has it.
struct OpenFile {
    sink: Box<dyn Sink>,
    /// What was taken out of the queue and is not in the file.
    bytes: Vec<u8>,
}

/// What the worker is to do.
struct Round {
    /// The flushes that are done when this round is.
    flushes: u64,
    is_last: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_half_full(&self, state: &State) -> bool {
        state.bytes > self.limit_bytes / 2
    }

    /// An error of the worker, which then tries again.
    fn take_failure(&self, state: &mut State) -> Result<()> {
        let Some(failure) = state.failure.take() else { return Ok(()) };
        self.work.notify_one();
        Err(failure)
    }

    fn run(&self) {
        let mut files = Vec::new();
        loop {
            let round = self.next_round(&mut files);
            let (written, result) = write(&mut files);
            let mut state = self.lock();
            state.bytes -= written;
            match result {
                Ok(()) => state.done = round.flushes,
                Err(failure) => state.failure = Some(failure),
            }
            drop(state);
            self.progress.notify_all();
            if round.is_last {
                return;
            }
        }
    }

    /// Waits until there is something to do, and takes what is queued.
    fn next_round(&self, files: &mut Vec<OpenFile>) -> Round {
        let mut state = self.lock();
        let mut deadline = None;
        loop {
            let is_awaited = state.asked > state.done || (state.waiting > 0 && state.bytes > 0);
            if state.closing || (state.failure.is_none() && (is_awaited || self.is_half_full(&state))) {
                break;
            }
            if state.bytes == 0 || state.failure.is_some() {
                deadline = None;
                state = wait(&self.work, state);
                continue;
            }
            let now = Instant::now();
            let left = deadline.get_or_insert(now + self.interval).saturating_duration_since(now);
            if left.is_zero() {
                break;
            }
            state = self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        files.extend(state.new_sinks.drain(..).map(|sink| OpenFile { sink, bytes: Vec::new() }));
        for (file, queued) in files.iter_mut().zip(&mut state.queued) {
            match file.bytes.is_empty() {
                true => std::mem::swap(&mut file.bytes, queued), // both keep their memory
                false => file.bytes.append(queued),
            }
        }
        Round { flushes: state.asked, is_last: state.closing }
    }
}

fn wait<'a>(on: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    on.wait(state).unwrap_or_else(PoisonError::into_inner)
}

/// How many bytes were written, and the first error. A file that fails keeps no other from being written.
fn write(files: &mut [OpenFile]) -> (usize, Result<()>) {
    let (mut written, mut result) = (0, Ok(()));
    for OpenFile { sink, bytes } in files.iter_mut().filter(|file| !file.bytes.is_empty()) {
        match sink.append(bytes) {
            Ok(()) => {
                written += bytes.len();
                bytes.clear();
                bytes.shrink_to(KEPT_BYTES);
            }
            Err(error) => result = result.and(Err(Error::Write { path: sink.path(), error })),
        }
    }
    (written, result)
}
