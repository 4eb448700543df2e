//! What buffers and copies cost on the GPU, or on a software device where there is no GPU.
//!
//! Every figure is the best of several rounds in one thread. On a software device only the figures of cached blocks
//! mean anything, since they make no driver call. `--json` prints one JSON object instead of the table, and
//! `--json FILE` writes it to that file.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use pagelock_cuda::{Device, Pinned, Uninit, software::Config};
use pagelock_memory::Resource;

const ROUNDS: usize = 7;
const LARGE: usize = 256 << 20; // bytes

/// A figure: its name, its value and its unit.
type Figure = (&'static str, f64, &'static str);

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--json");
    let (json, file) = (arguments.next().is_some(), arguments.next().filter(|file| !file.starts_with('-')));
    let gpu = Device::cuda(0);
    if let Err(missing) = &gpu {
        eprintln!("measuring a software device, because there is {missing}");
    }
    let on_gpu = gpu.is_ok();
    let device = gpu.or_else(|_| Device::software(Config::default())).expect("a software device is always there");
    let figures = measure(&device, on_gpu).expect("the device works");
    if !json {
        println!("{}", device.properties().name);
        figures.iter().for_each(|(name, value, unit)| println!("{name:<52} {value:>10.2} {unit}"));
        return;
    }
    let fields: Vec<_> = figures.iter().map(|(name, value, unit)| format!("\"{name}, {unit}\": {value:.3}")).collect();
    let report = format!("{{\"device\": \"{}\", {}}}", device.properties().name, fields.join(", "));
    match file {
        Some(file) => std::fs::write(file, report).expect("the file can be written"),
        None => println!("{report}"),
    }
}

fn measure(device: &Device, on_gpu: bool) -> pagelock_cuda::Result<Vec<Figure>> {
    let mut figures = cached_blocks(device)?;
    figures.extend(small_copies(device)?);
    if on_gpu {
        figures.extend(large_copies(device)?);
        figures.extend(page_locking(device)?);
    }
    Ok(figures)
}

fn cached_blocks(device: &Device) -> pagelock_cuda::Result<Vec<Figure>> {
    let stream = device.stream()?;
    let take = |len: usize| drop(black_box(stream.allocate::<u8>(black_box(len)).expect("there is room")));
    let locked = |len: usize| drop(black_box(Uninit::<u8>::new(device, black_box(len)).expect("there is room")));
    Ok(vec![
        ("allocate and drop a cached device buffer, 4 kB", nanos(100_000, || take(4_000)), "ns"),
        ("allocate and drop a cached device buffer, 40 MB", nanos(100_000, || take(40_000_000)), "ns"),
        ("allocate and drop a pooled page-locked buffer, 4 kB", nanos(100_000, || locked(4_000)), "ns"),
    ])
}

fn small_copies(device: &Device) -> pagelock_cuda::Result<Vec<Figure>> {
    let (stream, other) = (device.stream()?, device.stream()?);
    let mut on_device = stream.zeros::<u8>(4_000)?;
    let mut source = Some(Pinned::<u8>::zeroed(device, 4_000)?);
    let up_and_back = nanos(2_000, || {
        let ticket = stream.upload(source.take().expect("it came back"), &mut on_device).expect("it works");
        source = Some(ticket.wait().expect("it works"));
    });
    let frozen = source.take().expect("it came back").freeze();
    let queue = nanos(2_000, || drop(stream.upload(frozen.clone(), &mut on_device).expect("it works")));
    stream.synchronize()?;
    let alternate = nanos(1_000, || {
        stream.fill(&mut on_device, 1).expect("it works");
        other.fill(&mut on_device, 2).expect("it works");
    });
    device.synchronize()?;
    Ok(vec![
        ("upload 4 kB and wait for the ticket", up_and_back / 1e3, "us"),
        ("queue an upload of 4 kB and drop the ticket", queue / 1e3, "us"),
        ("fill 4 kB on two streams in turn, each fill", alternate / 2e3, "us"),
    ])
}

fn large_copies(device: &Device) -> pagelock_cuda::Result<Vec<Figure>> {
    let (up, down) = (device.stream()?, device.stream()?);
    let (mut target, from) = (up.zeros::<u8>(LARGE)?, down.zeros::<u8>(LARGE)?);
    let source = Pinned::<u8>::zeroed(device, LARGE)?.freeze();
    let mut room = Some(Uninit::<u8>::new(device, LARGE)?);
    device.synchronize()?;
    let uploads = nanos(1, || {
        let ticket = up.upload(source.clone(), &mut target).expect("it works");
        ticket.wait().expect("it works");
    });
    let downloads = nanos(1, || {
        let ticket = down.download(&from, room.take().expect("it came back")).expect("it works");
        room = Some(ticket.wait().expect("it works").into_uninit());
    });
    let both = nanos(1, || {
        let sent = up.upload(source.clone(), &mut target).expect("it works");
        let received = down.download(&from, room.take().expect("it came back")).expect("it works");
        sent.wait().expect("it works");
        room = Some(received.wait().expect("it works").into_uninit());
    });
    let gb_per_s = |nanos: f64| LARGE as f64 / nanos;
    Ok(vec![
        ("upload 256 MiB from page-locked memory", gb_per_s(uploads), "GB/s"),
        ("download 256 MiB to page-locked memory", gb_per_s(downloads), "GB/s"),
        ("both at once, sum", 2.0 * gb_per_s(both), "GB/s"),
    ])
}

fn page_locking(device: &Device) -> pagelock_cuda::Result<Vec<Figure>> {
    let take = || drop(Uninit::<u8>::new(device, 1 << 30).expect("the ceiling is higher"));
    let locking = (0..ROUNDS).map(|_| {
        device.page_locked().trim();
        let start = Instant::now();
        take();
        start.elapsed()
    });
    let fresh = locking.min().unwrap_or(Duration::ZERO);
    Ok(vec![
        ("page-lock 1 GiB", fresh.as_secs_f64() * 1e3, "ms"),
        ("take a pooled, page-locked GiB", nanos(1, take) / 1e3, "us"),
    ])
}

/// Nanoseconds for one call, in the best round.
fn nanos(calls: usize, mut work: impl FnMut()) -> f64 {
    let mut round = || {
        let start = Instant::now();
        (0..calls).for_each(|_| work());
        start.elapsed()
    };
    let best = (0..ROUNDS).map(|_| round()).min().unwrap_or(Duration::ZERO);
    best.as_nanos() as f64 / calls as f64
}
