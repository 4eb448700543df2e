//! Copy engines: what a GPU is, and how fast bytes get there and back by each strategy.
//!
//! Run with `cargo run --release --example copy_engines`; `--json FILE` keeps the figures. Every figure is the median
//! of several copies, until the bytes are there. Page-locked copies of large blocks are as fast as the link lets them;
//! two copy engines use both of its directions at once. `overlap` shows copies beside kernels.

#[path = "common/mod.rs"]
mod common;

use std::{path::PathBuf, process::Command, thread, time::Instant};

use anyhow::Result;
use clap::Parser;
use comfy_table::{Table, presets};
use pagelock::cuda::{self, Device, Pinned, software};
use serde::Serialize;

const MIB: usize = 1 << 20;
const SIZES_MIB: [usize; 3] = [1, 16, 256];

/// Shows what a GPU is, and how fast bytes get there and back
#[derive(Parser)]
struct Args {
    /// Also writes the figures into this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measures a device made of software: it shows the table, and says nothing about a GPU
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

/// Which way bytes go.
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
        println!("This device is made of software; its figures say nothing about a GPU.");
    }
    let link = if args.software { None } else { link() };
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

/// What the link between host and GPU can be, as `nvidia-smi` says, if it is there.
fn link() -> Option<String> {
    let fields = "--query-gpu=pcie.link.gen.max,pcie.link.width.max";
    let answer = Command::new("nvidia-smi").args([fields, "--format=csv,noheader", "--id=0"]).output().ok()?;
    let text = String::from_utf8(answer.stdout).ok().filter(|_| answer.status.success())?;
    let (generation, lanes) = text.trim().split_once(", ")?;
    Some(format!("PCI Express {generation}.0 x{lanes}"))
}

fn describe(device: &Device, link: Option<&str>) {
    let it = device.properties();
    let ((major, minor), (cuda_major, cuda_minor)) = (it.compute_capability, it.driver_version);
    println!("{}: compute capability {major}.{minor}, CUDA {cuda_major}.{cuda_minor}", it.name);
    println!("{} of memory, {} of second-level cache", it.memory, it.l2_cache);
    println!("{} multiprocessors, {} copy engines", it.multiprocessors, it.copy_engines);
    println!("link: {}\n", link.unwrap_or("unknown, nvidia-smi does not say"));
}

/// Ordinary memory: several threads copy it through a small page-locked ring.
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

/// Page-locked memory: the device copies it by itself.
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
