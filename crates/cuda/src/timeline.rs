//! [`Timeline`]: spans of time on host threads and on streams, measured on one clock, and written as a Chrome trace.
//!
//! A span on a stream is the time between two timed events. To compare the clocks of device and host, the host waits
//! for an event, so the error is at most the time of that wait, some microseconds. The comparison is repeated every
//! few seconds, since drivers measure short times between events more precisely.

use std::{
    borrow::Cow,
    fmt, io,
    ops::Range,
    path::Path,
    sync::Arc,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use crate::{
    chrome_trace::ChromeTrace,
    device::Device,
    error::Result,
    event::Event,
    stream::Stream,
    sync::{Mutex, lock},
};

/// Spans of time, recorded by many threads at once. Cheap to clone: all clones are the same timeline.
///
/// Recording a span on a stream costs two events. Their times are queried only when the spans are read.
///
/// # Examples
/// ```
/// use pagelock_cuda::{Device, Timeline, software::Config};
///
/// let device = Device::software(Config::default())?;
/// let stream = device.stream()?;
/// let timeline = Timeline::new();
///
/// let numbers = timeline.on_host("make numbers", || vec![1.0_f32; 100_000]);
/// let mut buffer = stream.allocate(numbers.len())?;
/// timeline.on_stream("copy", &stream, || stream.upload_from(&numbers, &mut buffer))??;
///
/// let spans = timeline.spans()?;
/// assert_eq!([&*spans[0].name, &*spans[1].name], ["make numbers", "copy"]);
/// let trace = timeline.chrome_trace()?; // for chrome://tracing or ui.perfetto.dev
/// assert!(trace.starts_with(r#"{"traceEvents":["#));
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone)]
pub struct Timeline {
    shared: Arc<Shared>,
}

struct Shared {
    start: Instant,
    recorded: Mutex<Recorded>, // guards the spans and the comparisons of clocks
}

#[derive(Default)]
struct Recorded {
    marks: Vec<Marks>,
    clocks: Vec<Clock>,
}

/// A recorded span.
#[derive(Clone)]
struct Marks {
    name: Cow<'static, str>,
    track: Track,
    ends: Ends,
}

#[derive(Clone)]
enum Ends {
    Host(Duration, Duration),
    Device(Event, Event, Clock),
}

/// A comparison of a device's clock with the host's: an event of the device, and the time at which the host saw it
/// reached.
#[derive(Clone, Debug)]
struct Clock {
    device: Device,
    event: Event,
    reached: Duration,
}

/// The thread or the stream of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Track {
    /// A thread of the host.
    Host {
        /// The id of the thread.
        thread: ThreadId,
        /// The name of the thread, if it has one.
        name: Option<String>,
    },
    /// A stream of a device.
    Stream {
        /// The number of the device.
        device: u32,
        /// The number of the stream, which is unique among all devices.
        stream: u64,
    },
}

/// A span of time. Its times count from the creation of the timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// The name of the span.
    pub name: Cow<'static, str>,
    /// The thread or the stream.
    pub track: Track,
    /// The start of the span.
    pub start: Duration,
    /// The end of the span.
    pub end: Duration,
    /// The number of spans that were recorded before it.
    pub number: usize,
}

/// A span on a stream that has begun; see [`Timeline::begin`].
#[derive(Debug)]
#[must_use = "a span that does not end is not in the timeline"]
pub struct StreamSpan {
    timeline: Timeline,
    stream: Stream,
    start: Event,
    clock: Clock,
}

impl Timeline {
    /// A timeline that starts now.
    pub fn new() -> Self {
        Self { shared: Arc::new(Shared { start: Instant::now(), recorded: Mutex::default() }) }
    }

    /// Calls `work` on this thread, and records when it ran.
    pub fn on_host<R>(&self, name: impl Into<Cow<'static, str>>, work: impl FnOnce() -> R) -> R {
        let start = self.elapsed();
        let result = work();
        let (thread, end) = (thread::current(), self.elapsed());
        let track = Track::Host { thread: thread.id(), name: thread.name().map(str::to_owned) };
        self.add(Marks { name: name.into(), track, ends: Ends::Host(start, end) });
        result
    }

    /// Calls `work`, which queues work on the stream, and records when the device executes it.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if the events cannot be recorded. Errors of `work` are in its own
    /// result.
    pub fn on_stream<R>(
        &self,
        name: impl Into<Cow<'static, str>>,
        stream: &Stream,
        work: impl FnOnce() -> R,
    ) -> Result<R> {
        let span = self.begin(stream)?;
        let result = work();
        span.end(name)?;
        Ok(result)
    }

    /// Begins a span before the work that is queued next on the stream. Use it if the closure of
    /// [`on_stream`](Self::on_stream) does not fit.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, Timeline, software::Config};
    ///
    /// let (device, timeline) = (Device::software(Config::default())?, Timeline::new());
    /// let stream = device.stream()?;
    /// let span = timeline.begin(&stream)?;
    /// let numbers = stream.zeros::<f32>(1_000)?;
    /// assert_eq!(span.end("zeros")?, 0);
    /// assert_eq!(timeline.spans()?[0].name, "zeros");
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if an event cannot be recorded.
    pub fn begin(&self, stream: &Stream) -> Result<StreamSpan> {
        let clock = self.clock(stream.device())?;
        Ok(StreamSpan { timeline: self.clone(), stream: stream.clone(), start: stream.record_timed()?, clock })
    }

    /// The time since the creation of the timeline, from which the times of spans count.
    pub fn elapsed(&self) -> Duration {
        self.shared.start.elapsed()
    }

    /// All spans, sorted by their start. Waits for the spans that streams have not finished.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn spans(&self) -> Result<Vec<Span>> {
        let marks = lock(&self.shared.recorded).marks.clone(); // unlocked before the waits
        let mut spans: Vec<Span> =
            marks.into_iter().enumerate().map(|(number, marks)| marks.into_span(number)).collect::<Result<_>>()?;
        spans.sort_by_key(|span| (span.start, span.end));
        Ok(spans)
    }

    /// All spans as a Chrome trace: JSON for chrome://tracing and <https://ui.perfetto.dev>. Process 0 is the host;
    /// device `n` is process `n + 1`.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn chrome_trace(&self) -> Result<String> {
        Ok(self.trace()?.finish())
    }

    fn trace(&self) -> Result<ChromeTrace> {
        let mut trace = ChromeTrace::new();
        self.spans()?.iter().for_each(|span| trace.span(span, &[]));
        Ok(trace)
    }

    /// Writes the Chrome trace to a file.
    ///
    /// # Errors
    /// The system's error, with the path of the file; [`Error::Driver`](crate::Error::Driver) as an [`io::Error`].
    pub fn write_chrome_trace(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.trace().map_err(io::Error::other)?.write(path)
    }

    /// Records a span, and returns its number.
    fn add(&self, marks: Marks) -> usize {
        let marks_so_far = &mut lock(&self.shared.recorded).marks;
        marks_so_far.push(marks);
        marks_so_far.len() - 1
    }

    /// Compares the device's clock with the host's, unless the last comparison is less than five seconds old.
    fn clock(&self, device: &Device) -> Result<Clock> {
        const GOOD_FOR: Duration = Duration::from_secs(5);
        let now = self.elapsed();
        let is_good = |clock: &&Clock| clock.device == *device && clock.reached + GOOD_FOR > now;
        if let Some(known) = lock(&self.shared.recorded).clocks.iter().find(is_good) {
            return Ok(known.clone());
        }
        let idle = device.stream()?; // an idle stream, on which the event is reached at once
        let event = idle.record_timed()?;
        event.wait()?;
        let clock = Clock { device: device.clone(), event, reached: self.elapsed() };
        let mut recorded = lock(&self.shared.recorded);
        recorded.clocks.retain(|clock| clock.device != *device);
        recorded.clocks.push(clock.clone());
        Ok(clock)
    }
}

impl Default for Timeline {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timeline({} spans)", lock(&self.shared.recorded).marks.len())
    }
}

impl StreamSpan {
    /// Ends the span behind the work that was queued last, and returns the span's [number](Span::number).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if an event cannot be recorded.
    pub fn end(self, name: impl Into<Cow<'static, str>>) -> Result<usize> {
        let Self { timeline, stream, start, clock } = self;
        let end = stream.record_timed()?;
        let track = Track::Stream { device: stream.device().properties().ordinal, stream: stream.core().id() };
        Ok(timeline.add(Marks { name: name.into(), track, ends: Ends::Device(start, end, clock) }))
    }
}

impl Marks {
    fn into_span(self, number: usize) -> Result<Span> {
        let (start, end) = match self.ends {
            Ends::Host(start, end) => (start, end),
            Ends::Device(start, end, clock) => {
                let begun = clock.reached + start.elapsed_since(&clock.event)?;
                (begun, begun + end.elapsed_since(&start)?)
            }
        };
        Ok(Span { name: self.name, track: self.track, start, end, number })
    }
}

impl Span {
    /// A span for a [`ChromeTrace`], without a timeline. Its number is 0.
    pub fn new(name: impl Into<Cow<'static, str>>, track: Track, time: Range<Duration>) -> Self {
        Self { name: name.into(), track, start: time.start, end: time.end, number: 0 }
    }

    /// The length of the span.
    pub fn duration(&self) -> Duration {
        self.end.saturating_sub(self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::software::Config;

    #[test]
    fn spans_of_streams_and_threads_share_a_clock() {
        let device = Device::software(Config::default()).unwrap();
        let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
        let timeline = Timeline::new();
        for round in 0..20 {
            timeline.on_host(format!("before {round}"), || ());
            timeline.on_stream("one", &first, || first.zeros::<u8>(1_000).map(drop)).unwrap().unwrap();
            timeline.on_stream("two", &second, || second.zeros::<u8>(1_000).map(drop)).unwrap().unwrap();
            first.synchronize().unwrap();
            second.synchronize().unwrap();
            timeline.on_host(format!("after {round}"), || ());
        }

        let spans = timeline.spans().unwrap();

        let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
        let slack = Duration::from_millis(5);
        for (round, (one, two)) in named("one").into_iter().zip(named("two")).enumerate() {
            let (before, after) = (named(&format!("before {round}"))[0], named(&format!("after {round}"))[0]);
            for span in [one, two] {
                assert!(span.start <= span.end);
                assert!(before.end <= span.start + slack && span.end <= after.start + slack, "{before:?} {span:?}");
            }
            assert_ne!(one.track, two.track);
        }
        assert_eq!(spans.len(), 80);
    }

    #[test]
    fn a_trace_that_cannot_be_written_is_named() {
        let error = Timeline::new().write_chrome_trace("/nowhere/trace.json").unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot write the trace /nowhere/trace.json: the folder `/nowhere` does not exist; create it"
        );
    }

    #[test]
    fn a_trace_has_a_row_for_each_stream_and_thread() {
        let device = Device::software(Config::default()).unwrap();
        let stream = device.stream().unwrap();
        let timeline = Timeline::new();
        timeline.on_stream("clear \"it\"", &stream, || stream.zeros::<u8>(10).map(drop)).unwrap().unwrap();
        let clone = timeline.clone();
        let thread = thread::Builder::new().name("reader".to_owned()).spawn(move || clone.on_host("read", || ()));
        thread.unwrap().join().unwrap();

        let trace = timeline.chrome_trace().unwrap();

        assert!(
            trace.contains(r#"{"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"device 0"}}"#),
            "{trace}"
        );
        assert!(trace.contains(r#""args":{"name":"reader"}"#), "{trace}");
        assert!(trace.contains(r#"{"name":"clear \"it\"","ph":"X","pid":1,"#), "{trace}");
        assert!(trace.ends_with("}]}"), "{trace}");
    }
}
