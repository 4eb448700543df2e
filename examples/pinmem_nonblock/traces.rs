//! Four traces: when a copy runs while the device computes, and when it does not.
//!
//! The same rounds of computing and copying, from {pageable, page-locked} memory on {the same stream, a stream of its
//! own}. The overlap is computed from the events, and checked against what streams guarantee.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use pagelock::cuda::{self, Pinned, Span, Timeline};
use serde::Serialize;

use crate::place::Place;

const ROUNDS: usize = 4;
const COMPUTED: usize = 1 << 22;

/// One trace, and the times of its events.
#[derive(Serialize)]
pub(crate) struct Trace {
    pub(crate) page_locked: bool,
    pub(crate) own_stream: bool,
    pub(crate) copying_ms: f64,
    pub(crate) computing_ms: f64,
    pub(crate) overlapped_ms: f64,
    pub(crate) total_ms: f64,
    #[serde(skip)]
    pub(crate) spans: Vec<Span>,
}

/// Records all four, writes them as Chrome traces, and checks how much overlaps.
pub(crate) fn record(place: &Place, out: &Path) -> Result<Vec<Trace>> {
    let mut traces = Vec::new();
    for page_locked in [false, true] {
        for own_stream in [false, true] {
            let timeline = rounds(place, page_locked, own_stream)?;
            let trace = Trace::of(timeline.spans()?, page_locked, own_stream);
            timeline.write_chrome_trace(out.join(trace.file()))?;
            trace.check(place.is_gpu)?;
            traces.push(trace);
        }
    }
    Ok(traces)
}

/// Queues work and then an independent copy, and waits for both. Repeats this [`ROUNDS`] times.
fn rounds(place: &Place, page_locked: bool, own_stream: bool) -> cuda::Result<Timeline> {
    let (device, len_bytes) = (&place.cuda, place.sizes.traced_bytes);
    let computes = device.stream()?;
    let own = if own_stream { Some(device.stream()?) } else { None };
    let copies = own.as_ref().unwrap_or(&computes);
    let mut numbers = computes.zeros::<f32>(COMPUTED)?;
    let mut target = copies.zeros::<u8>(len_bytes)?;
    let pageable = vec![1_u8; len_bytes];
    let mut pinned = if page_locked { Some(Pinned::from_slice(device, &pageable)?) } else { None };

    let kept = Timeline::new();
    for round in 0..=ROUNDS {
        // The first round warms up: it allocates the ring buffer of staged copies, for example.
        let timeline = if round == 0 { Timeline::new() } else { kept.clone() };
        timeline.on_stream("compute", &computes, || place.work.queue(&computes, &mut numbers))??;
        timeline.on_host("call", || match pinned.take() {
            Some(source) => {
                let ticket = timeline.on_stream("copy", copies, || copies.upload(source, &mut target))??;
                pinned = Some(timeline.on_host("wait", || ticket.wait())?);
                Ok(())
            }
            None => timeline.on_stream("copy", copies, || copies.upload_from(&pageable, &mut target))?,
        })?;
        timeline.on_host("wait", || device.synchronize())?;
    }
    Ok(kept)
}

impl Trace {
    fn of(spans: Vec<Span>, page_locked: bool, own_stream: bool) -> Self {
        let named = |name| spans.iter().filter(move |span| span.name == name);
        let length = |name| millis(named(name).map(Span::duration).sum());
        let both = |copy| named("compute").map(move |compute| common(copy, compute));
        let (start, end) = (spans.iter().map(|span| span.start).min(), spans.iter().map(|span| span.end).max());
        Self {
            page_locked,
            own_stream,
            copying_ms: length("copy"),
            computing_ms: length("compute"),
            overlapped_ms: millis(named("copy").flat_map(both).sum()),
            total_ms: millis(end.unwrap_or_default() - start.unwrap_or_default()),
            spans,
        }
    }

    /// For example, `page-locked memory, a stream of its own`.
    pub(crate) fn name(&self) -> String {
        let memory = if self.page_locked { "page-locked" } else { "pageable" };
        let stream = if self.own_stream { "a stream of its own" } else { "the same stream" };
        format!("{memory} memory, {stream}")
    }

    pub(crate) fn file(&self) -> String {
        let memory = if self.page_locked { "page_locked" } else { "pageable" };
        let stream = if self.own_stream { "own_stream" } else { "same_stream" };
        format!("trace_{memory}_{stream}.json")
    }

    /// The overlapped time, as a share of the most that could overlap.
    pub(crate) fn overlap(&self) -> f64 {
        self.overlapped_ms / self.copying_ms.min(self.computing_ms)
    }

    /// Checks that nothing overlaps on one stream, and that most does on two streams of a GPU. An error is a defect
    /// of this library.
    fn check(&self, is_gpu: bool) -> Result<()> {
        let (name, percent) = (self.name(), 100.0 * self.overlap());
        if !self.own_stream {
            ensure!(percent < 1.0, "{name}: {percent:.0} % overlapped, though a stream does its work in order");
        } else if is_gpu {
            ensure!(percent > 50.0, "{name}: only {percent:.0} % overlapped, though nothing orders the streams");
        }
        Ok(())
    }
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The time during which both ran.
fn common(a: &Span, b: &Span) -> Duration {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}
