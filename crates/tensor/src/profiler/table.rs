//! [`KeyAverages`]: the table that `torch.profiler` prints.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::ops::Deref;
use std::time::Duration;

use pagelock_memory::ByteSize;

use super::Category;
use super::profile::{FunctionEvent, Profile};
use crate::inlined::Array;

/// The sums of a profile's events of one name, and perhaps of one module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyAverage {
    /// The name.
    pub key: String,
    /// The module, if the table is by module and the events are of one.
    pub module: Option<String>,
    /// How many events there are.
    pub calls: u64,
    /// Time on the host; an event inside one of the same name counts in both.
    pub host_time: Duration,
    /// Time on the host without events inside.
    pub self_host_time: Duration,
    /// Time on devices.
    pub device_time: Duration,
    /// Time on devices without events inside.
    pub self_device_time: Duration,
    /// Bytes of the tensors that were made.
    pub bytes: u64,
    /// Floating-point operations, of products and convolutions.
    pub flops: u64,
}

/// What a table is sorted by; the largest come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SortBy {
    /// Time on the host without events inside.
    SelfHostTime,
    /// Time on the host.
    HostTime,
    /// Time on devices without events inside.
    SelfDeviceTime,
    /// Time on devices.
    DeviceTime,
    /// Calls.
    Calls,
    /// Bytes.
    Bytes,
    /// Floating-point operations.
    Flops,
}

/// A table of sums, which prints as PyTorch's does: made by [`Profile::key_averages`].
///
/// # Examples
/// ```
/// use pagelock_tensor::{Tensor, profiler::{self, SortBy}};
///
/// let profile = profiler::profile(|| -> pagelock_tensor::Result<()> {
///     let x = Tensor::ones([100, 100])?;
///     x.matmul(&x)?.exp()?.sum(..).map(drop)
/// })?;
/// let table = profile.key_averages().sort_by(SortBy::Flops).row_limit(2);
/// assert_eq!((&*table[0].key, table[0].flops), ("matmul", 2_000_000));
/// println!("{table}");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct KeyAverages {
    rows: Vec<KeyAverage>,
    row_limit: usize,
    is_by_module: bool,
    host: Duration,   // of all events, without events inside them
    device: Duration, // the same
    note: Option<String>,
}

impl KeyAverages {
    pub(super) fn new(profile: &Profile, is_by_module: bool) -> KeyAverages {
        let mut rows: Vec<KeyAverage> = Vec::new();
        let mut by_key = HashMap::new();
        let (mut host, mut device) = (Duration::ZERO, Duration::ZERO);
        profile.each_event(&mut |event| {
            host += event.self_host_time;
            device += event.self_device_time;
            if event.category == Category::ModuleCall {
                return;
            }
            let module = event.module.filter(|_| is_by_module);
            let row = *by_key.entry((event.name.clone(), module)).or_insert_with(|| {
                let (key, module) = (event.name.to_string(), module.map(str::to_owned));
                rows.push(KeyAverage { key, module, ..KeyAverage::default() });
                rows.len() - 1
            });
            rows[row].add(&event);
        });
        let note = profile.stopped_because().map(str::to_owned);
        KeyAverages { rows, row_limit: 100, is_by_module, host, device, note }.sort_by(SortBy::SelfHostTime)
    }

    /// This table, sorted; rows that are equal stay in the order of their first events.
    #[must_use]
    pub fn sort_by(mut self, by: SortBy) -> Self {
        let nanos = |time: Duration| time.as_nanos();
        self.rows.sort_by_key(|row| {
            Reverse(match by {
                SortBy::SelfHostTime => nanos(row.self_host_time),
                SortBy::HostTime => nanos(row.host_time),
                SortBy::SelfDeviceTime => nanos(row.self_device_time),
                SortBy::DeviceTime => nanos(row.device_time),
                SortBy::Calls => row.calls.into(),
                SortBy::Bytes => row.bytes.into(),
                SortBy::Flops => row.flops.into(),
            })
        });
        self
    }

    /// This table, with at most this many rows printed: 100 unless set.
    #[must_use]
    pub fn row_limit(self, row_limit: usize) -> Self {
        Self { row_limit, ..self }
    }

    /// The first row with this name.
    pub fn get(&self, key: &str) -> Option<&KeyAverage> {
        self.rows.iter().find(|row| row.key == key)
    }
}

impl Deref for KeyAverages {
    type Target = [KeyAverage];

    fn deref(&self) -> &[KeyAverage] {
        &self.rows
    }
}

impl KeyAverage {
    fn add(&mut self, event: &FunctionEvent<'_>) {
        self.calls += 1;
        self.host_time += event.host_time;
        self.self_host_time += event.self_host_time;
        self.device_time += event.device_time;
        self.self_device_time += event.self_device_time;
        self.bytes += event.bytes;
        self.flops += event.flops;
    }

    /// The average time on the host of one call.
    pub fn host_time_avg(&self) -> Duration {
        self.host_time.checked_div(u32::try_from(self.calls).unwrap_or(u32::MAX)).unwrap_or_default()
    }
}

const HEADERS: [&str; 13] = [
    "Name",
    "Module",
    "Self CPU %",
    "Self CPU",
    "CPU total %",
    "CPU total",
    "CPU time avg",
    "Self CUDA",
    "Self CUDA %",
    "CUDA total",
    "Bytes",
    "FLOPs",
    "# of Calls",
];
const MODULE: usize = 1;
const OF_DEVICES: std::ops::Range<usize> = 7..10;

impl fmt::Display for KeyAverages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printed = &self.rows[..self.rows.len().min(self.row_limit)];
        let cells: Vec<[String; 13]> = printed.iter().map(|row| self.cells(row)).collect();
        let has_devices = !self.device.is_zero();
        let is_shown = |column: usize| match column {
            MODULE => self.is_by_module,
            column => has_devices || !OF_DEVICES.contains(&column),
        };
        let width = |column: usize| {
            let cells = cells.iter().map(|row| row[column].chars().count());
            cells.fold(HEADERS[column].len(), usize::max)
        };
        let columns: Vec<(usize, usize)> = (0..13).filter(|&i| is_shown(i)).map(|i| (i, width(i))).collect();
        let line: String = columns.iter().map(|(_, width)| format!("{}  ", "-".repeat(*width))).collect();
        writeln!(f, "{}", line.trim_end())?;
        write_row(f, &columns, &HEADERS.mapped(str::to_owned))?;
        writeln!(f, "{}", line.trim_end())?;
        cells.iter().try_for_each(|row| write_row(f, &columns, row))?;
        writeln!(f, "{}", line.trim_end())?;
        if printed.len() < self.rows.len() {
            writeln!(f, "{} more rows are not shown; row_limit shows more", self.rows.len() - printed.len())?;
        }
        writeln!(f, "Self CPU time total: {}", Time(self.host))?;
        if has_devices {
            writeln!(f, "Self CUDA time total: {}", Time(self.device))?;
        }
        self.note.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, columns: &[(usize, usize)], cells: &[String; 13]) -> fmt::Result {
    let mut row = String::new();
    for &(column, width) in columns {
        let cell = &cells[column];
        let _ = match column {
            0 | MODULE => write!(row, "{cell:<width$}  "),
            _ => write!(row, "{cell:>width$}  "),
        };
    }
    writeln!(f, "{}", row.trim_end())
}

impl KeyAverages {
    fn cells(&self, row: &KeyAverage) -> [String; 13] {
        let time = |time: Duration| Time(time).to_string();
        let or_none = |number: u64, text: String| if number == 0 { "--".to_owned() } else { text };
        [
            row.key.clone(),
            row.module.clone().unwrap_or_default(),
            share(row.self_host_time, self.host),
            time(row.self_host_time),
            share(row.host_time, self.host),
            time(row.host_time),
            time(row.host_time_avg()),
            time(row.self_device_time),
            share(row.self_device_time, self.device),
            time(row.device_time),
            or_none(row.bytes, ByteSize(row.bytes).to_string()),
            or_none(row.flops, flops(row.flops)),
            row.calls.to_string(),
        ]
    }
}

fn share(part: Duration, whole: Duration) -> String {
    format!("{:.2}%", 100.0 * part.as_secs_f64() / whole.as_secs_f64().max(1e-12))
}

/// `12.345 GFLOP`
fn flops(number: u64) -> String {
    let (unit, factor) = match number {
        1_000_000_000_000.. => ("T", 1e12),
        1_000_000_000.. => ("G", 1e9),
        1_000_000.. => ("M", 1e6),
        1_000.. => ("k", 1e3),
        _ => return format!("{number} FLOP"),
    };
    format!("{:.3} {unit}FLOP", number as f64 / factor)
}

/// `1.234ms`, as PyTorch prints times.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_nanos() as f64 / 1e3;
        match micros {
            1e6.. => write!(f, "{:.3}s", micros / 1e6),
            1e3.. => write!(f, "{:.3}ms", micros / 1e3),
            _ => write!(f, "{micros:.3}us"),
        }
    }
}
