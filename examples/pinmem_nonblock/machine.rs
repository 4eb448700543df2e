//! Page-locked memory on this machine: its pages, its limits, and the cost of locking.

use std::{fs, thread, time::Instant};

use anyhow::Result;
use pagelock::{
    cuda::{Uninit, page_locked_budget},
    memory::{ByteSize, Resource, page_locked_ceiling},
};
use serde::Serialize;

use crate::{common, place::Place};

/// See the head of the file. A field is `None` if this system does not report it.
#[derive(Serialize)]
pub(crate) struct Machine {
    pub(crate) device: String,
    pub(crate) cuda: Option<(u32, u32)>,
    pub(crate) processor: Option<String>,
    pub(crate) cores: usize,
    pub(crate) page: Option<String>,
    pub(crate) huge_pages: Option<String>,
    pub(crate) lock_limit: Option<String>,
    pub(crate) memory: Option<String>,
    pub(crate) memory_left: Option<String>,
    pub(crate) budget: String,
    pub(crate) staging: String,
    pub(crate) link: Option<String>,
    pub(crate) copy_engines: u32,
    pub(crate) locking: Vec<Locking>,
}

/// The time to page-lock and unlock `mib` MiB, and to take them from the pool again.
#[derive(Serialize)]
pub(crate) struct Locking {
    pub(crate) mib: usize,
    pub(crate) lock_ms: f64,
    pub(crate) unlock_ms: f64,
    pub(crate) again_us: f64,
}

pub(crate) fn look(place: &Place) -> Result<Machine> {
    let (properties, staging) = (place.cuda.properties(), place.cuda.staging());
    let sizes: &[usize] = if place.is_gpu { &[1, 64, 1024] } else { &[1, 16] };
    Ok(Machine {
        device: properties.name.clone(),
        cuda: place.is_gpu.then_some(properties.driver_version),
        processor: field("/proc/cpuinfo", "model name\t:"),
        cores: thread::available_parallelism().map_or(1, usize::from),
        page: kib("/proc/self/smaps", "KernelPageSize:"),
        huge_pages: huge_pages(),
        lock_limit: lock_limit(),
        memory: kib("/proc/meminfo", "MemTotal:"),
        memory_left: kib("/proc/meminfo", "MemAvailable:"),
        budget: format!("{} ({})", page_locked_budget().limit(), page_locked_ceiling().because),
        staging: format!("{} in slots of {}, with {} helping threads", staging.ring, staging.slot, staging.threads),
        link: if place.is_gpu { common::link() } else { None },
        copy_engines: properties.copy_engines,
        locking: sizes.iter().map(|&mib| locking(place, mib)).collect::<Result<_>>()?,
    })
}

/// The rest of the first line in a file that begins with `start`.
fn field(path: &str, start: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().find_map(|line| line.strip_prefix(start))?.trim().to_owned())
}

/// Like [`field`], for lines such as `MemTotal:  1024 kB`.
fn kib(path: &str, start: &str) -> Option<String> {
    let kib: u64 = field(path, start)?.strip_suffix(" kB")?.parse().ok()?;
    Some(ByteSize::kib(kib).to_string())
}

/// For example, `2 MiB, used on request (Pagelock requests them)`.
fn huge_pages() -> Option<String> {
    let folder = "/sys/kernel/mm/transparent_hugepage";
    let bytes: u64 = fs::read_to_string(format!("{folder}/hpage_pmd_size")).ok()?.trim().parse().ok()?;
    let modes = fs::read_to_string(format!("{folder}/enabled")).ok()?;
    let mode = modes.split_once('[')?.1.split_once(']')?.0.to_owned();
    let used = match &*mode {
        "always" => "always used",
        "madvise" => "used on request (Pagelock requests them)",
        _ => "never used",
    };
    Some(format!("{}, {used}", ByteSize(bytes)))
}

/// `RLIMIT_MEMLOCK`: the soft limit.
fn lock_limit() -> Option<String> {
    let limits = field("/proc/self/limits", "Max locked memory")?;
    let soft = limits.split_whitespace().next()?;
    Some(soft.parse().map_or(soft.to_owned(), |bytes| ByteSize(bytes).to_string()))
}

fn locking(place: &Place, mib: usize) -> Result<Locking> {
    place.doing(&format!("page-locking {mib} MiB"));
    let resource = place.cuda.page_locked();
    let millis = |work: &mut dyn FnMut() -> Result<()>| {
        let start = Instant::now();
        work()?;
        anyhow::Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    let mut take = || Ok(Uninit::<u8>::new(&place.cuda, mib << 20).map(drop)?); // the drop leaves the block in the pool
    resource.trim();
    let (mut lock_ms, mut again_ms, mut unlock_ms) = (f64::MAX, f64::MAX, f64::MAX);
    for _ in 0..3 {
        lock_ms = lock_ms.min(millis(&mut take)?);
        again_ms = again_ms.min(millis(&mut take)?);
        unlock_ms = unlock_ms.min(millis(&mut || {
            resource.trim();
            Ok(())
        })?);
    }
    Ok(Locking { mib, lock_ms, unlock_ms, again_us: again_ms * 1e3 })
}
