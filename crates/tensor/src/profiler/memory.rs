//! Memory over time: what the host's budget and the devices' pools held, sampled when operations end.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use arrayvec::ArrayVec;
use pagelock_memory::{ByteSize, default_host, host_budget};

use crate::cuda::CudaDevice;

/// The most samples that are kept. When there are more, every other one is dropped and the interval doubles.
const MAX_SAMPLES: usize = 4096;
/// The most devices that are sampled.
const MAX_DEVICES: usize = 8;
/// Nanoseconds between two samples, at first.
const INTERVAL: u64 = 100_000;

/// How much memory was held at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySample {
    /// The time since the profile began.
    pub at: Duration,
    /// Memory of the host.
    pub host: HeldMemory,
    /// Memory of devices, with their ordinals.
    pub devices: ArrayVec<(u32, HeldMemory), MAX_DEVICES>,
}

/// Bytes of the host, or of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldMemory {
    /// Bytes that tensors hold: of [`default_host`], or of the device's pool.
    pub in_use: ByteSize,
    /// Bytes that the budget counts. They include what pools keep for later, and on the host also handles, loaders
    /// and page-locked memory.
    pub reserved: ByteSize,
}

/// The samples of a profile.
pub(super) struct MemoryLog {
    is_on: bool,
    next: AtomicU64, // when the next sample is due. Relaxed: one sample too many does no harm
    samples: Mutex<Samples>,
}

struct Samples {
    interval: u64,
    all: Vec<MemorySample>,
}

impl MemoryLog {
    pub(super) fn new(is_on: bool) -> MemoryLog {
        let samples = Samples { interval: INTERVAL, all: Vec::new() };
        MemoryLog { is_on, next: AtomicU64::new(0), samples: Mutex::new(samples) }
    }

    /// Whether it is time for a sample; times are in nanoseconds since the profile began.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.is_on && now >= self.next.load(Relaxed)
    }

    pub(super) fn sample(&self, now: u64) {
        if !self.is_on {
            return;
        }
        let Ok(mut samples) = self.samples.try_lock() else { return }; // another thread takes one
        let Samples { interval, all } = &mut *samples;
        if all.len() == MAX_SAMPLES {
            let mut is_kept = false;
            all.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            *interval *= 2;
        }
        all.push(MemorySample::now(now));
        self.next.store(now + *interval, Relaxed);
    }

    pub(super) fn take(&self) -> Vec<MemorySample> {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut samples.all)
    }
}

impl MemorySample {
    fn now(at: u64) -> MemorySample {
        let in_use = ByteSize(default_host().stats().live_bytes);
        let mut devices = ArrayVec::new();
        for device in CudaDevice::known() {
            let cuda = device.cuda();
            let held = HeldMemory { in_use: cuda.live_memory(), reserved: cuda.memory_budget().used() };
            let _ninth = devices.try_push((device.ordinal(), held));
        }
        let host = HeldMemory { in_use, reserved: host_budget().used() };
        MemorySample { at: Duration::from_nanos(at), host, devices }
    }
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 220.0; // of one panel, with its labels
// Margins around the curves.
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 30.0;

/// A picture of the samples: a panel for the host, and one for each device.
pub(super) fn svg(samples: &[MemorySample]) -> String {
    let mut panels = vec![("host".to_owned(), samples.iter().map(|sample| (sample.at, sample.host)).collect())];
    let mut numbers: Vec<u32> = samples.iter().flat_map(|sample| sample.devices.iter().map(|held| held.0)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        let held = samples.iter().filter_map(|sample| {
            let of_device = sample.devices.iter().find(|held| held.0 == number)?;
            Some((sample.at, of_device.1))
        });
        panels.push((format!("device {number}"), held.collect::<Vec<_>>()));
    }
    let end = samples.last().map_or(0.0, |last| last.at.as_secs_f64()).max(1e-9);
    let height = HEIGHT * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (i, (title, held)) in panels.iter().enumerate() {
        panel(&mut svg, title, held, end, HEIGHT * i as f64);
    }
    svg.push_str("</svg>\n");
    svg
}

/// One panel, whose top is at `y`; `end` is when the profile ended, in seconds.
fn panel(svg: &mut String, title: &str, held: &[(Duration, HeldMemory)], end: f64, y: f64) {
    let most = held.iter().map(|(_, held)| held.reserved.0.max(held.in_use.0)).max().unwrap_or(0).max(1);
    let (top, bottom, right) = (y + TOP, y + HEIGHT - BOTTOM, WIDTH - RIGHT);
    let point = |at: Duration, bytes: ByteSize| {
        let x = LEFT + (right - LEFT) * at.as_secs_f64() / end;
        (x, bottom - (bottom - top) * bytes.0 as f64 / most as f64)
    };
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{title}</text>\
         <text x=\"{right}\" y=\"{}\" text-anchor=\"end\"><tspan fill=\"#1f77b4\">in use</tspan> \
         <tspan fill=\"#888888\">reserved</tspan></text>\
         <path d=\"M{LEFT} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>",
        y + 20.0,
        y + 20.0,
    );
    for (at, label) in [(top, ByteSize(most)), (bottom, ByteSize(0))] {
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{label}</text>", LEFT - 6.0, at + 4.0);
    }
    let _ = writeln!(svg, "<text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{end:.3} s</text>", bottom + 18.0);
    let series: [(&str, fn(&HeldMemory) -> ByteSize); 2] =
        [("#888888", |held| held.reserved), ("#1f77b4", |held| held.in_use)];
    for (color, bytes) in series {
        let mut path = String::new();
        for (i, (at, held)) in held.iter().enumerate() {
            let (x, y) = point(*at, bytes(held));
            let _ = if i == 0 { write!(path, "M{x:.1} {y:.1}") } else { write!(path, "H{x:.1}V{y:.1}") };
        }
        let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>");
    }
}
