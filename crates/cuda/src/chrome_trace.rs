//! [`ChromeTrace`]: spans and counters as JSON for chrome://tracing and Perfetto.

use std::{
    fmt::{Display, Write as _},
    io,
    path::Path,
    time::Duration,
};

use crate::timeline::{Span, Track};

/// A trace that is being written: spans on tracks, and counters. Process 0 is the host; device `n` is process
/// `n + 1`.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use pagelock_cuda::{ChromeTrace, Timeline};
///
/// let timeline = Timeline::new();
/// timeline.on_host("read", || ());
/// let mut trace = ChromeTrace::new();
/// for span in timeline.spans()? {
///     trace.span(&span, &[("bytes", &4096)]);
/// }
/// trace.counter("memory", 0, Duration::ZERO, &[("used", 1 << 20)]);
/// assert!(trace.finish().starts_with(r#"{"traceEvents":["#));
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct ChromeTrace {
    events: String, // separated by commas
    tracks: Vec<Track>,
}

impl ChromeTrace {
    /// An empty trace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a span. Viewers show its `arguments` when it is selected. Unsigned integers become JSON numbers, all
    /// other values become strings.
    pub fn span(&mut self, span: &Span, arguments: &[(&str, &dyn Display)]) {
        let row = self.row(&span.track);
        let (name, process) = (quoted(&span.name), span.track.process());
        let (start, duration) = (micros(span.start), micros(span.duration()));
        let mut event = format!(
            "{{\"name\":{name},\"ph\":\"X\",\"pid\":{process},\"tid\":{row},\"ts\":{start:.3},\"dur\":{duration:.3}"
        );
        if !arguments.is_empty() {
            let arguments: Vec<_> = arguments.iter().map(|(name, value)| argument(name, &value.to_string())).collect();
            let _ = write!(event, ",\"args\":{{{}}}", arguments.join(","));
        }
        event.push('}');
        self.add(&event);
    }

    /// Sets a counter of a process from time `at` on. Viewers stack the values of its series.
    pub fn counter(&mut self, name: &str, process: u64, at: Duration, series: &[(&str, u64)]) {
        let series: Vec<_> = series.iter().map(|(name, value)| format!("{}:{value}", quoted(name))).collect();
        let (name, at, series) = (quoted(name), micros(at), series.join(","));
        self.add(&format!("{{\"name\":{name},\"ph\":\"C\",\"pid\":{process},\"ts\":{at:.3},\"args\":{{{series}}}}}"));
    }

    /// The JSON.
    pub fn finish(self) -> String {
        format!("{{\"traceEvents\":[{}]}}", self.events)
    }

    /// Writes the JSON to a file.
    ///
    /// # Errors
    /// The system's error, with the path of the file.
    pub fn write(self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        pagelock_files::replace(path, self.finish()).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot write the trace {}: {error}", path.display()))
        })
    }

    /// The number of the track. A new track is added with its names.
    fn row(&mut self, track: &Track) -> usize {
        if let Some(row) = self.tracks.iter().position(|known| known == track) {
            return row;
        }
        let row = self.tracks.len();
        self.tracks.push(track.clone());
        let (process, name) = match track {
            Track::Host { thread, name } => ("host".to_owned(), name.clone().unwrap_or_else(|| format!("{thread:?}"))),
            Track::Stream { device, stream } => (format!("device {device}"), format!("stream {stream}")),
        };
        let pid = track.process();
        for (what, name) in [("process_name", quoted(&process)), ("thread_name", quoted(&name))] {
            self.add(&format!(
                "{{\"name\":\"{what}\",\"ph\":\"M\",\"pid\":{pid},\"tid\":{row},\"args\":{{\"name\":{name}}}}}"
            ));
        }
        row
    }

    fn add(&mut self, event: &str) {
        if !self.events.is_empty() {
            self.events.push_str(",\n");
        }
        self.events.push_str(event);
    }
}

impl Track {
    /// The process number of the host or the device.
    fn process(&self) -> u64 {
        match self {
            Track::Host { .. } => 0,
            Track::Stream { device, .. } => u64::from(*device) + 1,
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn argument(name: &str, value: &str) -> String {
    let is_number = !value.is_empty() && value.len() < 20 && value.bytes().all(|byte| byte.is_ascii_digit());
    match is_number && (value == "0" || !value.starts_with('0')) {
        true => format!("{}:{value}", quoted(name)),
        false => format!("{}:{}", quoted(name), quoted(value)),
    }
}

/// The text as a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", control as u32);
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_json_whatever_is_in_them() {
        assert_eq!(quoted("a\"b\\c\nd é"), "\"a\\\"b\\\\c\\u000ad é\"");
    }

    #[test]
    fn arguments_are_numbers_only_where_json_has_them() {
        assert_eq!(argument("n", "18446744073709551"), r#""n":18446744073709551"#);
        assert_eq!(argument("n", "0"), r#""n":0"#);
        for text in ["007", "", "-1", "1.5", "1 KiB"] {
            assert_eq!(argument("n", text), format!(r#""n":"{text}""#));
        }
    }
}
