//! Copy engines: the properties of a GPU, and how fast each strategy copies bytes to it and back.
//!
//! Run with `cargo run --release --example copy_engines`; `--json FILE` saves the figures. Every figure is the median
//! of several copies, each timed until its bytes have arrived. Page-locked copies of large blocks run at the speed of
//! the link. Two copy engines use both directions of the link at once. The example `overlap` shows copies beside
//! kernels.

#[path = "common/mod.rs"]
mod common;

use std::{path::PathBuf, thread, time::Instant};

use anyhow::Result;
use clap::Parser;
use comfy_table::{Table, presets};
use pagelock::cuda::{self, Device, Pinned, software};
use serde::Serialize;

const MIB: usize = 1 << 20;
const SIZES_MIB: [usize; 3] = [1, 16, 256];

/// Show the properties of a GPU, and how fast bytes are copied to it and back
#[derive(Parser)]
struct Args {
    /// Also write the figures to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measure a software device, whose figures say nothing about a GPU
    #[arg(long)]
    software: bool,
}

/// Gigabytes (10⁹) per second.
#[derive(Serialize)]
struct Rates {
    strategy: &'static str,
    mib: usize,
    to_device: f64,
    from_device: f64,
    both_at_once: f64,
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Up,
    Down,
    Both,
}

fn main() -> Result<()> {
    let args: Args = common::arguments();
    args.json.as_deref().map(common::try_file).transpose()?;
    let device = if args.software { Device::software(software::Config::default()) } else { Device::cuda(0) };
    let device = match device {
        Ok(device) => device,
        Err(missing) => {
            println!("nothing to measure: {missing}; `--software` shows the table without a GPU");
            return Ok(());
        }
    };
    if args.software {
        println!("Measuring a software device; its figures say nothing about a GPU.");
    }
    let link = if args.software { None } else { common::link() };
    describe(&device, link.as_deref());
    let mut figures = Vec::new();
    for mib in SIZES_MIB {
        figures.push(staged(&device, mib)?);
        figures.push(page_locked(&device, mib)?);
    }
    println!("{}", table(&figures));
    if let Some(path) = args.json {
        let device = &device.properties().name;
        let report = serde_json::json!({ "device": device, "link": link, "gigabytes_per_second": figures });
        pagelock_files::replace(&path, format!("{report:#}\n"))?;
        println!("Figures are in {}.", path.display());
    }
    Ok(())
}

fn describe(device: &Device, link: Option<&str>) {
    let it = device.properties();
    let ((major, minor), (cuda_major, cuda_minor)) = (it.compute_capability, it.driver_version);
    println!("{}: compute capability {major}.{minor}, CUDA {cuda_major}.{cuda_minor}", it.name);
    println!("{} of memory, {} of second-level cache", it.memory, it.l2_cache);
    println!("{} multiprocessors, {} copy engines", it.multiprocessors, it.copy_engines);
    println!("link: {}\n", link.unwrap_or("unknown (nvidia-smi does not report it)"));
}

/// Ordinary memory: several threads copy it through a small page-locked ring buffer.
fn staged(device: &Device, mib: usize) -> Result<Rates> {
    let (forth, back) = (device.stream()?, device.stream()?);
    let (mut to, from) = (forth.zeros::<u8>(mib * MIB)?, back.zeros::<u8>(mib * MIB)?);
    let (source, mut target) = (vec![1_u8; mib * MIB], vec![2_u8; mib * MIB]);
    let mut up = || {
        forth.upload_from(&source, &mut to)?;
        forth.synchronize()
    };
    let mut down = || back.download_to(&from, &mut target);
    rates("pageable, staged", mib, |way| match way {
        Way::Up => up(),
        Way::Down => down(),
        Way::Both => thread::scope(|threads| {
            let uploading = threads.spawn(&mut up);
            down()?;
            uploading.join().expect("copying does not panic")
        }),
    })
}

/// Page-locked memory: the device copies it directly.
fn page_locked(device: &Device, mib: usize) -> Result<Rates> {
    let (forth, back) = (device.stream()?, device.stream()?);
    let (mut to, from) = (forth.zeros::<u8>(mib * MIB)?, back.zeros::<u8>(mib * MIB)?);
    let source = Pinned::<u8>::zeroed(device, mib * MIB)?;
    let mut target = Pinned::<u8>::zeroed(device, mib * MIB)?;
    rates("page-locked", mib, |way| {
        // Both scopes borrow host memory, start copying, and wait at their ends.
        forth.scope(|up| {
            back.scope(|down| {
                if way != Way::Down {
                    up.upload(&source, &mut to)?;
                }
                if way != Way::Up {
                    down.download(&from, &mut target)?;
                }
                Ok(())
            })
        })
    })
}

fn rates(strategy: &'static str, mib: usize, mut copy: impl FnMut(Way) -> cuda::Result<()>) -> Result<Rates> {
    let bytes = (mib * MIB) as f64;
    let mut rate = |way, bytes: f64| Ok::<_, cuda::Error>(bytes / median_seconds(|| copy(way))? / 1e9);
    let (to_device, from_device) = (rate(Way::Up, bytes)?, rate(Way::Down, bytes)?);
    Ok(Rates { strategy, mib, to_device, from_device, both_at_once: rate(Way::Both, 2.0 * bytes)? })
}

/// The median of eleven runs, after two that do not count.
fn median_seconds(mut run: impl FnMut() -> cuda::Result<()>) -> cuda::Result<f64> {
    let mut seconds = Vec::new();
    for _ in 0..13 {
        let start = Instant::now();
        run()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.drain(..2);
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

fn table(figures: &[Rates]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["host memory", "MiB", "to GPU, GB/s", "from GPU, GB/s", "both at once, GB/s"]);
    for Rates { strategy, mib, to_device, from_device, both_at_once } in figures {
        let rates = [to_device, from_device, both_at_once].map(|rate| format!("{rate:.2}"));
        table.add_row([strategy.to_string(), mib.to_string()].into_iter().chain(rates));
    }
    table
}
