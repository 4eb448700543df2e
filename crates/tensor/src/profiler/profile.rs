//! [`Profile`]: what was recorded, as events, a Chrome trace, and a picture of memory.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::time::Duration;

use pagelock_cuda::{ChromeTrace, Span, Track};

use super::Category;
use super::memory::{self, MemorySample};
use super::scopes::{self, Scope};
use super::session::{Event, Log, NONE, Recorded};
use super::table::KeyAverages;

/// What a program did between the start and the stop of a profiler. Printed, it is the table of [`key_averages`](Self::key_averages).
pub struct Profile {
    recorded: Recorded,
    spans: Vec<Span>, // on streams, in the order in which they began
    /// For each thread, the spans on streams that are parts of its events: the event, and how long the span took.
    on_streams: Vec<Vec<(u32, Duration)>>,
    samples: Vec<MemorySample>,
}

/// An operation, a call or a wait.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FunctionEvent<'a> {
    /// What was done.
    pub name: Cow<'a, str>,
    /// The module that called it, such as `layers.0 (Conv2d)`.
    pub module: Option<&'a str>,
    /// What kind of event it is.
    pub category: Category,
    /// The number of its thread in the profile.
    pub thread: usize,
    /// Its number in its thread.
    pub number: usize,
    /// The number of the event, in the same thread, that contains it.
    pub parent: Option<usize>,
    /// When it began, counted from the begin of the profile.
    pub start: Duration,
    /// How long it took on the host.
    pub host_time: Duration,
    /// The part of that time outside of the events inside it.
    pub self_host_time: Duration,
    /// How long the work that it queued took on devices, including events inside it.
    pub device_time: Duration,
    /// The device time without events inside it.
    pub self_device_time: Duration,
    /// Bytes of the tensors that were made, including events inside it.
    pub bytes: u64,
    /// Floating-point operations of products and convolutions, including events inside it: an addition and a
    /// multiplication are two.
    pub flops: u64,
}

/// Sums over an event and the events inside it.
#[derive(Clone, Copy, Default)]
struct Sums {
    inside: u64, // nanoseconds of the events directly inside
    device: u64,
    self_device: u64,
    bytes: u64,
    flops: u64,
}

impl Profile {
    pub(super) fn new(recorded: Recorded, spans: Vec<Span>, samples: Vec<MemorySample>) -> Profile {
        let mut took = vec![Duration::ZERO; spans.len()];
        spans.iter().for_each(|span| took[span.number] = span.duration());
        let of_log = |log: &Log| log.on_streams.iter().map(|&(number, event)| (event, took[number])).collect();
        let on_streams = recorded.logs.iter().map(of_log).collect();
        Profile { recorded, spans, on_streams, samples }
    }

    /// How long the recording took.
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.recorded.now)
    }

    /// Why the recording stopped early, if it did: [`max_events`](super::Profiler::max_events), or the host's budget.
    pub fn stopped_because(&self) -> Option<&str> {
        self.recorded.stopped.as_deref()
    }

    /// All events, thread by thread, each after the one that contains it.
    pub fn events(&self) -> Vec<FunctionEvent<'_>> {
        let mut all = Vec::new();
        self.each_event(&mut |event| all.push(event));
        all
    }

    pub(super) fn each_event<'a>(&'a self, see: &mut dyn FnMut(FunctionEvent<'a>)) {
        for (thread, (log, on_streams)) in self.recorded.logs.iter().zip(&self.on_streams).enumerate() {
            let sums = sums(log, on_streams);
            for (number, (event, sums)) in log.events().zip(sums).enumerate() {
                see(self.event((thread, number), event, sums));
            }
        }
    }

    fn event<'a>(&'a self, (thread, number): (usize, usize), event: &'a Event, sums: Sums) -> FunctionEvent<'a> {
        let module = self.scope(event.scope).map(|scope| &*scope.text);
        let took = event.end - event.start;
        FunctionEvent {
            name: name(event, module),
            module,
            category: event.category,
            thread,
            number,
            parent: (event.parent != NONE).then_some(event.parent as usize),
            start: Duration::from_nanos(event.start),
            host_time: Duration::from_nanos(took),
            self_host_time: Duration::from_nanos(took.saturating_sub(sums.inside)),
            device_time: Duration::from_nanos(sums.device),
            self_device_time: Duration::from_nanos(sums.self_device),
            bytes: sums.bytes,
            flops: sums.flops,
        }
    }

    fn scope(&self, number: u32) -> Option<&Scope> {
        scopes::numbered(&self.recorded.scopes, self.recorded.scope_base, number)
    }

    /// Sums over the events of each name, as PyTorch's `key_averages`. Calls of modules are not among them.
    pub fn key_averages(&self) -> KeyAverages {
        KeyAverages::new(self, false)
    }

    /// Sums over the events of each name in each module.
    pub fn key_averages_by_module(&self) -> KeyAverages {
        KeyAverages::new(self, true)
    }

    /// Memory over time.
    pub fn memory(&self) -> &[MemorySample] {
        &self.samples
    }

    /// Threads, streams and memory as a Chrome trace: JSON that chrome://tracing and <https://ui.perfetto.dev> show.
    pub fn chrome_trace(&self) -> String {
        self.trace().finish()
    }

    /// Writes the Chrome trace to a file.
    ///
    /// # Errors
    /// The system's error, which names the file.
    pub fn export_chrome_trace(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.trace().write(path)
    }

    /// Writes memory over time as a picture, in SVG: a panel for the host and one for each device, with the bytes that tensors
    /// hold and those that budgets count.
    ///
    /// # Errors
    /// The system's error, which names the file.
    pub fn export_memory_timeline(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        pagelock_files::replace(path, memory::svg(&self.samples)).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot write the picture {}: {error}", path.display()))
        })
    }

    fn trace(&self) -> ChromeTrace {
        let mut trace = ChromeTrace::new();
        self.each_event(&mut |event| {
            let log = &self.recorded.logs[event.thread];
            let track = Track::Host { thread: log.thread, name: log.name.clone() };
            let (start, end) = (event.start, event.start + event.host_time);
            let span = Span::new(event.name.into_owned(), track, start..end);
            let (module, category) = (event.module.unwrap_or(""), event.category.name());
            trace.span(
                &span,
                &[("category", &category), ("module", &module), ("bytes", &event.bytes), ("flops", &event.flops)],
            );
        });
        self.spans.iter().for_each(|span| trace.span(span, &[]));
        for sample in &self.samples {
            let host = ("host memory", 0, sample.host);
            let devices = sample.devices.iter().map(|&(number, held)| ("device memory", u64::from(number) + 1, held));
            for (name, process, held) in std::iter::once(host).chain(devices) {
                let idle = held.reserved.0.saturating_sub(held.in_use.0);
                trace.counter(name, process, sample.at, &[("in use", held.in_use.0), ("reserved, unused", idle)]);
            }
        }
        trace
    }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.key_averages().fmt(f)
    }
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let events: usize = self.recorded.logs.iter().map(Log::len).sum();
        write!(f, "Profile({events} events in {:?})", self.duration())
    }
}

/// The sums of each event of a thread.
fn sums(log: &Log, on_streams: &[(u32, Duration)]) -> Vec<Sums> {
    let of_itself = |event: &Event| Sums { bytes: event.bytes, flops: event.flops, ..Sums::default() };
    let mut sums: Vec<Sums> = log.events().map(of_itself).collect();
    for &(event, took) in on_streams {
        let sums = &mut sums[event as usize];
        sums.self_device += took.as_nanos() as u64;
        sums.device += took.as_nanos() as u64;
    }
    // An event comes after the one that contains it. So in reverse order its sums are complete when they are added
    // there.
    for (event, at) in log.events().rev().zip((0..sums.len()).rev()) {
        let of_event = sums[at];
        if let Some(parent) = sums.get_mut(event.parent as usize) {
            parent.inside += event.end - event.start;
            parent.device += of_event.device;
            parent.bytes += of_event.bytes;
            parent.flops += of_event.flops;
        }
    }
    sums
}

fn name<'a>(event: &'a Event, module: Option<&'a str>) -> Cow<'a, str> {
    match event.category {
        Category::Backward => Cow::Owned(format!("{} backward", event.name)),
        Category::OptimizerStep => Cow::Owned(format!("Optimizer.step#{}", event.name)),
        Category::ModuleCall => Cow::Borrowed(module.unwrap_or("module")),
        _ => Cow::Borrowed(&*event.name),
    }
}
