//! Whether copies that choose their route by themselves are as fast as by the best of the fixed routes: for lengths from 1
//! kB to 1 GiB, 1 to 10,000 at once, of both kinds of memory, in both directions.
//!
//! ```sh
//! cargo bench -p pagelock-cuda --bench choice              # measures the model first; a table, and a failure above 5 %
//! cargo bench -p pagelock-cuda --bench choice -- --kept    # by the model that was kept, or by the guess
//! cargo bench -p pagelock-cuda --bench choice -- 1MiB      # only copies of that length
//! ```
//! The routes take turns in an order of chance; figures are medians. The best of three medians is lower than each of them for
//! chance alone, and one disturbance of the machine is more than 5 % of a short copy. So a cell in which the choice seems to be
//! slower than 1.05 times the best is measured once more: only the choice and that best one, in turns, in more rounds. What that
//! says counts, whichever it favors.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use pagelock_cuda::{Device, DeviceBuffer, Direction, HostBytes, How, Load, Result, Route, Stream, page_locked_budget};
use pagelock_memory::{ByteSize, HostBuffer, Kind, Pageable};

const LENGTHS: [usize; 11] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];
const COUNTS: [usize; 5] = [1, 10, 100, 1_000, 10_000];
const MOST_BYTES: usize = 1 << 30; // of all copies of a cell together
const ALLOWED: f64 = 1.05; // times the best
const ROUNDS: usize = 21;
const TIME: Duration = Duration::from_millis(40); // of a route in one cell; five rounds at least
const AGAIN: usize = 8; // times as many rounds, and as much time, for a cell that is measured once more
const LEAST_ROUNDS: usize = 5;

const WAYS: [Option<Route>; 4] = [None, Some(Route::Direct), Some(Route::Staged), Some(Route::Packed)];
/// The places in [`WAYS`] of the fixed ones.
const FIXED: [usize; 3] = [1, 2, 3];

fn main() -> ExitCode {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(missing) => {
            println!("nothing to measure: {missing}");
            return ExitCode::SUCCESS;
        }
    };
    match run(&device) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(slower) => {
            println!("in {slower} cells the choice is slower than {ALLOWED} times the best");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(device: &Device) -> Result<usize> {
    page_locked_budget().set_limit(ByteSize::gib(3));
    if !std::env::args().any(|argument| argument == "--kept") {
        let start = Instant::now();
        device.calibrate_staging()?;
        let model = device.calibrate_copies()?;
        if std::env::args().any(|argument| argument == "--model") {
            println!("{model}");
        }
        println!("measured in {:.1} s: {:?}", start.elapsed().as_secs_f64(), device.staging());
    }
    let only = std::env::args().find_map(|argument| argument.parse::<ByteSize>().ok());
    let mut bench = Bench::new(device)?;
    let (mut cells, mut slower, mut worst) = (0, 0, 1.0_f64);
    for (direction, memory) in [
        (Direction::ToDevice, Kind::Pageable),
        (Direction::ToDevice, Kind::PageLocked),
        (Direction::ToHost, Kind::Pageable),
        (Direction::ToHost, Kind::PageLocked),
    ] {
        println!("\n{direction:?}, {memory}: microseconds");
        println!(
            "{:>8} {:>6} {:>11} {:>11} {:>11} {:>11}  choice",
            "each", "count", "chosen", "direct", "staged", "packed"
        );
        for (length, count) in LENGTHS.iter().flat_map(|&length| COUNTS.map(|count| (length, count))) {
            if length * count > MOST_BYTES || only.is_some_and(|only| only.0 != length as u64) {
                continue;
            }
            let load = Load { direction, memory, count, each: ByteSize(length as u64) };
            let ratio = bench.cell(load)?;
            cells += 1;
            slower += usize::from(ratio > ALLOWED);
            worst = worst.max(ratio);
        }
    }
    println!("\n{cells} cells, {} of them within {ALLOWED} of the best, the worst at {worst:.3}", cells - slower);
    Ok(slower)
}

struct Bench {
    device: Device,
    stream: Stream,
    pageable: HostBuffer,
    locked: HostBuffer,
    chance: u64,
    next: usize, // byte of the host's memory: each copy gets at other ones, which the caches do not know
}

impl Bench {
    fn new(device: &Device) -> Result<Self> {
        let mut pageable = HostBuffer::allocate(&Pageable, MOST_BYTES)?;
        let mut locked = HostBuffer::allocate(device.page_locked(), MOST_BYTES)?;
        pageable.bytes_mut()?.fill(1); // else the system has one page of zeros for all of it
        locked.bytes_mut()?.fill(1);
        Ok(Self { device: device.clone(), stream: device.stream()?, pageable, locked, chance: 1, next: 0 })
    }

    /// One line of the table; how much slower the choice is than the best.
    fn cell(&mut self, load: Load) -> Result<f64> {
        let choice = self.device.explain(load)?.route;
        let there = if load.direction == Direction::ToHost { self.parts(load)? } else { Vec::new() };
        let medians = self.medians(load, &there, &[0, 1, 2, 3], 1)?;
        let [chosen, direct, staged, packed] = medians.map(|seconds| seconds * 1e6);
        let best = FIXED.into_iter().min_by(|&a, &b| medians[a].total_cmp(&medians[b])).unwrap_or(1);
        let mut ratio = medians[0] / medians[best];
        let (each, count) = (load.each.to_string(), load.count);
        print!("{each:>8} {count:>6} {chosen:>11.1} {direct:>11.1} {staged:>11.1} {packed:>11.1}  {choice} {ratio:.3}");
        if ratio > ALLOWED {
            let again = self.medians(load, &there, &[0, best], AGAIN)?;
            ratio = again[0] / again[best];
            let (chosen, fixed) = (again[0] * 1e6, again[best] * 1e6);
            let best = WAYS[best].map_or(String::new(), |route| route.to_string());
            print!(", once more {ratio:.3}: {chosen:.1}, {best} {fixed:.1}");
        }
        println!("{}", if ratio > ALLOWED { " <- slower" } else { "" });
        Ok(ratio)
    }

    /// Seconds by these ways, in the order of [`WAYS`]; of the others, not a number.
    fn medians(&mut self, load: Load, there: &[DeviceBuffer<u8>], ways: &[usize], times: usize) -> Result<[f64; 4]> {
        let mut seconds: [Vec<f64>; 4] = Default::default();
        let (start, time) = (Instant::now(), TIME * (ways.len() * times) as u32);
        for round in 0..=ROUNDS * times {
            for way in self.in_order_of_chance(ways) {
                let taken = self.copy(load, there, How { route: WAYS[way], ..How::default() })?;
                if round > 0 {
                    seconds[way].push(taken); // the first one finds nothing ready
                }
            }
            if round >= LEAST_ROUNDS * times && start.elapsed() > time {
                break;
            }
        }
        Ok(seconds.each_mut().map(|seconds| median(seconds)))
    }

    /// What a copy finds in the caches depends on the one before.
    fn in_order_of_chance(&mut self, ways: &[usize]) -> Vec<usize> {
        let mut order = ways.to_vec();
        for at in (1..order.len()).rev() {
            self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(at, (self.chance >> 33) as usize % (at + 1));
        }
        order
    }

    /// Seconds until everything is there.
    fn copy(&mut self, load: Load, there: &[DeviceBuffer<u8>], how: How) -> Result<f64> {
        let Load { direction, memory, count, each } = load;
        let length = each.0 as usize;
        let host = if memory == Kind::PageLocked { &mut self.locked } else { &mut self.pageable };
        let first = if self.next + length * count > host.len_bytes() { 0 } else { self.next };
        self.next = first + length * count;
        if direction == Direction::ToDevice {
            let sources = (0..count).map(|at| HostBytes::of(host, first + at * length..first + (at + 1) * length));
            let sources = sources.collect::<Result<Vec<_>>>()?;
            let start = Instant::now();
            let buffers = self.stream.upload_all(&sources, how)?;
            self.stream.synchronize()?;
            let seconds = start.elapsed().as_secs_f64();
            drop(buffers);
            return Ok(seconds);
        }
        let sources: Vec<_> = there.iter().collect();
        let how = How { memory: Some(memory), ..how };
        let mut targets: Vec<_> = host.bytes_mut()?[first..].chunks_exact_mut(length).take(count).collect();
        let start = Instant::now();
        self.stream.download_all(&sources, &mut targets, how)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// What comes down: parts of one block, as packed uploads leave them.
    fn parts(&self, load: Load) -> Result<Vec<DeviceBuffer<u8>>> {
        let length = load.each.0 as usize;
        self.stream.zeros::<u8>(length * load.count)?.split((0..load.count).map(|at| at * length..(at + 1) * length))
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}
