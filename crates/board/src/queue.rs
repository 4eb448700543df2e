//! The queue between the calls of a program and the worker thread that writes its event files.
//!
//! ```text
//! program   append ── append ── … ── append (waits while the queue is full) ── flush (waits for the end)
//! queue     bytes of each file, at most `limit_bytes` in all; those that the worker is writing count too
//! worker    sleeps until `interval` is over, the queue is half full or a `flush` waits ── takes all records ── writes them
//! ```
//!
//! Invariant: a file consists of whole records, in the order of the calls. Bytes leave the queue when they are in the
//! file. If a write fails, the bytes stay with the worker and the next call returns the error. Only then does the
//! worker try again; it first truncates the file to its last whole record.
//!
//! An `append` wakes the worker only if the queue was empty or becomes half full: waking a thread takes microseconds,
//! appending a tenth of a microsecond.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result, create_error, reserve};

/// The capacity that the worker's buffer of a file keeps after a write.
const KEPT_BYTES: usize = 1 << 20;

/// The interval if the given one is beyond the clock.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The destination of the bytes of one file.
pub(crate) trait Sink: Send {
    /// Adds all of the bytes, or none.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn path(&self) -> PathBuf;
}

/// A file whose first `len` bytes are whole records.
pub(crate) struct FileSink {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
}

impl Sink for FileSink {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.set_len(self.len)?; // removes the remains of a failed call
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

/// Bytes on their way to files. Dropping the queue writes the rest.
pub(crate) struct Queue {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// The worker waits here.
    work: Condvar,
    /// Calls wait here for space in the queue, or for the end of a flush.
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
    /// The number of bytes that are in no file yet, including those that the worker has taken.
    bytes: usize,
    /// How many calls wait for space in the queue.
    waiting_appends: usize,
    /// How many flushes were requested, and how many of them are done.
    flushes_requested: u64,
    flushes_done: u64,
    failure: Option<Error>,
    closing: bool,
}

impl Queue {
    /// Starts the worker, which writes each record at the latest `interval` after it was queued.
    pub(crate) fn new(limit_bytes: usize, interval: Duration) -> Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            progress: Condvar::new(),
            limit_bytes,
            interval,
        });
        let name = "pagelock-board";
        let worker_shared = shared.clone();
        let worker = thread::Builder::new().name(name.to_owned()).spawn(move || worker_shared.run());
        Ok(Self { shared, worker: Some(worker.map_err(create_error(format!("thread {name}").as_ref()))?) })
    }

    pub(crate) fn add_file(&self, sink: Box<dyn Sink>) -> FileId {
        let mut state = self.shared.lock();
        state.new_sinks.push(sink);
        state.queued.push(Vec::new());
        FileId(state.queued.len() - 1)
    }

    /// Returns the worker's error, if there is one that no call has returned.
    pub(crate) fn check(&self) -> Result<()> {
        self.shared.take_failure(&mut self.shared.lock())
    }

    /// Queues a record, and waits while the queue is full. An empty queue accepts a record of any size.
    pub(crate) fn append(&self, file: FileId, record: &[u8]) -> Result<()> {
        self.append_all(&[(file, record)])
    }

    /// Queues all records or, on an error, none.
    pub(crate) fn append_all(&self, records: &[(FileId, impl AsRef<[u8]>)]) -> Result<()> {
        let shared = &*self.shared;
        let len_bytes: usize = records.iter().map(|(_, record)| record.as_ref().len()).sum();
        let mut state = shared.lock();
        loop {
            shared.take_failure(&mut state)?;
            if state.bytes == 0 || state.bytes + len_bytes <= shared.limit_bytes {
                break;
            }
            state.waiting_appends += 1;
            shared.work.notify_one();
            state = wait(&shared.progress, state);
            state.waiting_appends -= 1;
        }
        for (file, record) in records {
            reserve("queued events", &mut state.queued[file.0], record.as_ref().len())?;
        }
        let was_full = shared.is_half_full(&state);
        let was_empty = state.bytes == 0;
        for (file, record) in records {
            state.queued[file.0].extend_from_slice(record.as_ref());
        }
        state.bytes += len_bytes;
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
        state.flushes_requested += 1;
        let this_flush = state.flushes_requested;
        shared.work.notify_one();
        while state.flushes_done < this_flush {
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

/// The worker's view of a file.
struct OpenFile {
    sink: Box<dyn Sink>,
    /// Bytes that were taken from the queue and are not in the file yet.
    bytes: Vec<u8>,
}

/// One pass of the worker.
struct Round {
    /// How many flushes are done after this pass.
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

    /// Returns the worker's error, if there is one, and wakes the worker to try again.
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
                Ok(()) => state.flushes_done = round.flushes,
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
            let is_awaited =
                state.flushes_requested > state.flushes_done || (state.waiting_appends > 0 && state.bytes > 0);
            if state.closing || (state.failure.is_none() && (is_awaited || self.is_half_full(&state))) {
                break;
            }
            if state.bytes == 0 || state.failure.is_some() {
                deadline = None;
                state = wait(&self.work, state);
                continue;
            }
            let now = Instant::now();
            let latest = || now.checked_add(self.interval).unwrap_or(now + DAY);
            let left = deadline.get_or_insert_with(latest).saturating_duration_since(now);
            if left.is_zero() {
                break;
            }
            state = self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        files.extend(state.new_sinks.drain(..).map(|sink| OpenFile { sink, bytes: Vec::new() }));
        for (file, queued) in files.iter_mut().zip(&mut state.queued) {
            match file.bytes.is_empty() {
                true => std::mem::swap(&mut file.bytes, queued), // both buffers keep their capacity
                false => file.bytes.append(queued),
            }
        }
        Round { flushes: state.flushes_requested, is_last: state.closing }
    }
}

fn wait<'a>(on: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    on.wait(state).unwrap_or_else(PoisonError::into_inner)
}

/// Returns how many bytes were written, and the first error. A file that fails does not stop the others.
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
