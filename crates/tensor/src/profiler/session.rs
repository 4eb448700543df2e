//! The profile that is being recorded: logs of threads, and the functions that operations call.
//!
//! ```text
//! op("matmul") ─▶ Log of the thread: an event begins inside the one that is open ─▶ … ─▶ the event ends
//!                       │ room for 1024 events at a time, from Session::grant: the limit, and the host budget
//! ```
//!
//! A thread writes its own log, under a lock that otherwise only the end of the profile takes. When the profile is
//! over, logs are empty and have no session, so a thread that lives on keeps nothing of it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use pagelock_cuda::{Stream, StreamSpan, Timeline};
use pagelock_memory::{HeapReservation, Holder};

use super::memory::MemoryLog;
use super::{Category, scopes, switch};
use crate::capture;
use crate::error::{Error, Result};

/// Events for which a thread reserves memory at a time.
const CHUNK: usize = 1024;
/// The bytes of a span on a stream in the timeline, and of its two events in a driver.
const STREAM_SPAN_BYTES: usize = 256;

/// No event.
pub(super) const NONE: u32 = u32::MAX;

static SESSION: Mutex<Option<Arc<Session>>> = Mutex::new(None);
/// The number of the latest session. Relaxed: what belongs to it is found under `SESSION`.
static NUMBER: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// This thread's log in the session that it last took part in.
    static LOCAL: RefCell<Option<Local>> = const { RefCell::new(None) };
}

struct Local {
    number: u64, // of the session
    log: SharedLog,
}

type SharedLog = Arc<Mutex<Log>>;

/// A profile that is being recorded.
pub(super) struct Session {
    number: u64,
    timeline: Timeline,
    limit: usize,
    granted: AtomicUsize, // events that logs have room for
    stopped: OnceLock<String>,
    logs: Mutex<Vec<SharedLog>>,
    memory: MemoryLog,
}

/// The log of a thread.
pub(super) struct Log {
    pub(super) thread: ThreadId,
    pub(super) name: Option<String>,
    chunks: Vec<Vec<Event>>, // all full but the last
    open: u32,               // the innermost event that has not ended
    /// Spans on streams, by their numbers in the timeline, and the events that they are parts of.
    pub(super) on_streams: Vec<(usize, u32)>,
    session: Option<Arc<Session>>, // `None` when it is over
    reserved: Vec<HeapReservation>,
}

/// An operation, a call or a wait. Times are in nanoseconds since the profile began.
pub(super) struct Event {
    pub(super) name: Cow<'static, str>,
    pub(super) start: u64,
    pub(super) end: u64, // 0 while it goes on
    pub(super) bytes: u64,
    pub(super) flops: u64,
    pub(super) scope: u32,
    pub(super) parent: u32,
    pub(super) category: Category,
}

impl Log {
    fn new(thread: ThreadId, name: Option<String>, session: Option<Arc<Session>>) -> Log {
        let (chunks, on_streams, reserved) = (Vec::new(), Vec::new(), Vec::new());
        Log { thread, name, chunks, open: NONE, on_streams, session, reserved }
    }

    pub(super) fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    pub(super) fn event(&self, at: u32) -> Option<&Event> {
        self.chunks.get(at as usize / CHUNK)?.get(at as usize % CHUNK)
    }

    pub(super) fn events(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.chunks.iter().flatten()
    }

    fn event_mut(&mut self, at: u32) -> Option<&mut Event> {
        self.chunks.get_mut(at as usize / CHUNK)?.get_mut(at as usize % CHUNK)
    }

    fn has_capacity(&self) -> bool {
        self.chunks.last().is_some_and(|last| last.len() < CHUNK)
    }

    fn push(&mut self, event: Event) -> u32 {
        let at = self.len() as u32;
        if let Some(last) = self.chunks.last_mut() {
            last.push(event);
        }
        self.open = at;
        at
    }

    /// Ends an event, and those inside it that have not ended.
    fn end(&mut self, at: u32, now: u64) {
        if self.event(at).is_none_or(|event| event.end != 0) {
            return; // dropped out of order, after an event that contains it
        }
        while self.open != NONE && self.end_innermost(now) != at {}
    }

    /// Ends the innermost event, and returns its index.
    fn end_innermost(&mut self, now: u64) -> u32 {
        let innermost = self.open;
        self.open = self.event_mut(innermost).map_or(NONE, |event| {
            event.end = now.max(event.start + 1);
            event.parent
        });
        innermost
    }

    fn close(&mut self, now: u64) {
        self.session = None;
        while self.open != NONE {
            self.end_innermost(now);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// Begins a profile.
    pub(super) fn start(limit: usize, with_memory: bool, names: scopes::ModuleNames<'_>) -> Result<Arc<Session>> {
        let mut current = lock(&SESSION);
        if current.is_some() {
            let text = "profiler: a profile is being recorded already; stop that one first";
            return Err(Error::Argument(text.to_owned()));
        }
        let session = Arc::new(Session {
            number: NUMBER.fetch_add(1, Relaxed) + 1,
            timeline: Timeline::new(),
            limit,
            granted: AtomicUsize::new(0),
            stopped: OnceLock::new(),
            logs: Mutex::default(),
            memory: MemoryLog::new(with_memory),
        });
        *current = Some(session.clone());
        switch::begin(switch::PROFILE);
        names.publish();
        session.memory.sample(0);
        Ok(session)
    }

    /// Ends the profile: nothing is recorded from here on.
    pub(super) fn stop(&self) -> Recorded {
        switch::pause_profile();
        let now = self.now();
        self.memory.sample(now);
        *lock(&SESSION) = None;
        let logs = std::mem::take(&mut *lock(&self.logs));
        let logs = logs.iter().map(|log| {
            let mut log = lock(log);
            log.close(now);
            let closed = Log::new(log.thread, log.name.clone(), None);
            std::mem::replace(&mut *log, closed)
        });
        let logs = logs.collect();
        let (scope_base, scopes) = scopes::all();
        switch::end(switch::PROFILE);
        Recorded { logs, scope_base, scopes, now, stopped: self.stopped.get().cloned() }
    }

    pub(super) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    pub(super) fn memory(&self) -> &MemoryLog {
        &self.memory
    }

    fn now(&self) -> u64 {
        self.timeline.elapsed().as_nanos() as u64
    }

    #[cold]
    fn log_of_this_thread(self: Arc<Self>) -> Local {
        let (thread, number) = (thread::current(), self.number);
        let name = thread.name().map(str::to_owned);
        let log = Arc::new(Mutex::new(Log::new(thread.id(), name, Some(self.clone()))));
        lock(&self.logs).push(log.clone());
        Local { number, log }
    }

    /// Reserves memory for more events. If it is refused, the recording stops.
    #[cold]
    fn grant(&self) -> Option<HeapReservation> {
        let refused = match self.granted.fetch_add(CHUNK, Relaxed) {
            granted if granted >= self.limit => {
                format!("it has {} events, the most that it may record; raise max_events", self.limit)
            }
            _ => {
                let _charged = Holder::named("profiler").enter();
                let len_bytes = CHUNK * (size_of::<Event>() + STREAM_SPAN_BYTES);
                match HeapReservation::new(len_bytes as u64) {
                    Ok(reserved) => return Some(reserved),
                    Err(refusal) => refusal.to_string(),
                }
            }
        };
        switch::pause_profile();
        let at = self.timeline.elapsed();
        let _first = self.stopped.set(format!("recording stopped after {:.3} s: {refused}", at.as_secs_f64()));
        None
    }
}

/// What was recorded.
pub(super) struct Recorded {
    pub(super) logs: Vec<Log>,
    pub(super) scope_base: u32,
    pub(super) scopes: Vec<scopes::Scope>,
    /// When it ended.
    pub(super) now: u64,
    /// Why nothing was recorded from some moment on.
    pub(super) stopped: Option<String>,
}

/// This thread's log in the current session.
fn local() -> Option<SharedLog> {
    let number = NUMBER.load(Relaxed);
    let found = LOCAL.try_with(|local| {
        let mut local = local.try_borrow_mut().ok()?;
        if local.as_ref().is_none_or(|local| local.number != number) {
            *local = None;
            let session = lock(&SESSION).clone()?;
            *local = Some(session.log_of_this_thread());
        }
        local.as_ref().map(|local| local.log.clone())
    });
    found.ok()? // an error while the thread ends
}

/// An event that has not ended.
pub(super) struct Open {
    log: SharedLog,
    at: u32,
}

/// Begins an event; `None` if there is no memory for it, or if it is an operation inside another of the same name,
/// which contains it.
#[cold]
pub(super) fn begin(name: Cow<'static, str>, category: Category) -> Option<Open> {
    let shared = local()?;
    let mut log = lock(&shared);
    if category == Category::Operation {
        let open = log.event(log.open);
        if open.is_some_and(|open| open.category == category && open.name == name) {
            return None;
        }
    }
    if !log.has_capacity() {
        let session = log.session.clone()?;
        drop(log); // the budget may make pools free what they keep
        let reserved = session.grant()?;
        log = lock(&shared);
        log.reserved.push(reserved);
        log.chunks.push(Vec::with_capacity(CHUNK));
    }
    let start = log.session.as_ref()?.now();
    let (parent, scope) = (log.open, scopes::current());
    let at = log.push(Event { name, start, end: 0, bytes: 0, flops: 0, scope, parent, category });
    drop(log);
    Some(Open { log: shared, at })
}

impl Open {
    /// Removes the event, if nothing was recorded since; else ends it.
    pub(super) fn discard(self) {
        let mut log = lock(&self.log);
        let is_last = log.len() == self.at as usize + 1 && log.open == self.at;
        if !is_last {
            drop(log);
            return self.end();
        }
        let ended = log.chunks.last_mut().and_then(Vec::pop);
        log.open = ended.map_or(NONE, |event| event.parent);
    }

    /// Ends the event.
    pub(super) fn end(self) {
        let mut log = lock(&self.log);
        let Some(session) = &log.session else { return };
        let now = session.now();
        let due = session.memory.is_due(now).then(|| session.clone());
        log.end(self.at, now);
        drop(log);
        if let Some(session) = due {
            session.memory.sample(now);
        }
    }
}

/// Adds bytes and floating-point operations to the innermost event of this thread.
#[cold]
pub(super) fn count(bytes: u64, flops: u64) {
    let Some(log) = local() else { return };
    let mut log = lock(&log);
    let open = log.open;
    if let Some(event) = log.event_mut(open) {
        event.bytes += bytes;
        event.flops += flops;
    }
}

/// A span on a stream that has not ended.
pub(crate) struct OpenSpan {
    log: SharedLog,
    span: StreamSpan,
}

/// Begins a span on a stream; `None` if the driver refuses its events, as while the stream captures.
#[cold]
pub(super) fn begin_on(stream: &Stream) -> Option<OpenSpan> {
    if capture::number() != 0 {
        return None;
    }
    let log = local()?;
    let session = lock(&log).session.clone()?;
    let span = session.timeline.begin(stream).ok()?;
    Some(OpenSpan { log, span })
}

impl OpenSpan {
    /// Ends the span, which is a part of the innermost event of this thread.
    pub(super) fn end(self, name: &'static str) {
        let Ok(number) = self.span.end(name) else { return };
        let mut log = lock(&self.log);
        let open = log.open;
        if open != NONE {
            log.on_streams.push((number, open));
        }
    }
}
