//! What the speed of copies depends on, factor by factor: cores, copy engines, the size of tensors and their number.

use std::thread;

use anyhow::{Result, anyhow};
use pagelock::{
    cuda::{self, Pinned, StagingConfig},
    memory::Resource,
    prelude::*,
};
use serde::Serialize;

use crate::place::Place;

#[derive(Serialize)]
pub(crate) struct Factors {
    pub(crate) cores: Vec<Cores>,
    pub(crate) engines: Vec<Engines>,
    pub(crate) sizes: Vec<BySize>,
    pub(crate) counts: Vec<ByCount>,
}

/// Gigabytes per second from and to ordinary memory, by number of helping threads.
#[derive(Serialize)]
pub(crate) struct Cores {
    pub(crate) threads: usize,
    pub(crate) to_gpu: f64,
    pub(crate) from_gpu: f64,
}

/// Gigabytes per second of large copies: one way, the other way, and the sum of both at once.
#[derive(Serialize)]
pub(crate) struct Engines {
    pub(crate) memory: &'static str,
    pub(crate) to_gpu: f64,
    pub(crate) from_gpu: f64,
    pub(crate) both: f64,
}

/// Milliseconds until one tensor is on the device.
#[derive(Serialize)]
pub(crate) struct BySize {
    pub(crate) bytes: usize,
    pub(crate) pageable_ms: f64,
    pub(crate) pin_first_ms: f64,
    /// `None` if the budget of page-locked memory is too small for it.
    pub(crate) page_locked_ms: Option<f64>,
}

/// Milliseconds until the same bytes, cut into `count` tensors, are on the device.
#[derive(Serialize)]
pub(crate) struct ByCount {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
    pub(crate) one_by_one_ms: f64,
    pub(crate) as_one_ms: f64,
}

pub(crate) fn measure(place: &Place) -> Result<Factors> {
    Ok(Factors { cores: cores(place)?, engines: engines(place)?, sizes: sizes(place)?, counts: counts(place)? })
}

fn cores(place: &Place) -> Result<Vec<Cores>> {
    let (bytes, before) = (place.sizes.bulk_bytes, place.cuda.staging());
    let stream = place.cuda.stream()?;
    let source = vec![1_u8; bytes];
    let mut target = vec![2_u8; bytes];
    let mut on_device = stream.zeros::<u8>(bytes)?;
    let n_cores = thread::available_parallelism().map_or(1, usize::from);
    let mut cores = Vec::new();
    for threads in [0, 1, 3, 5, 7, 11, 15].into_iter().filter(|&threads| threads < n_cores.max(2)) {
        place.doing(&format!("{threads} helping threads"));
        place.cuda.set_staging(StagingConfig { threads, ..before });
        let up = place.time(place.sizes.few_runs, || {
            stream.upload_from(&source, &mut on_device)?;
            Ok(stream.synchronize()?)
        })?;
        let down = place.time(place.sizes.few_runs, || Ok(stream.download_to(&on_device, &mut target)?))?;
        cores.push(Cores { threads, to_gpu: up.rate(bytes), from_gpu: down.rate(bytes) });
    }
    place.cuda.set_staging(before);
    Ok(cores)
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Up,
    Down,
    Both,
}

fn engines(place: &Place) -> Result<Vec<Engines>> {
    let bytes = place.sizes.bulk_bytes / 2;
    let (forth, back) = (place.cuda.stream()?, place.cuda.stream()?);
    let (mut to, from) = (forth.zeros::<u8>(bytes)?, back.zeros::<u8>(bytes)?);
    let (source, mut target) = (vec![1_u8; bytes], vec![2_u8; bytes]);
    let pageable = both_ways(place, "pageable", bytes, |way| {
        thread::scope(|threads| {
            let uploading = (way != Way::Down)
                .then(|| threads.spawn(|| forth.upload_from(&source, &mut to).and_then(|()| forth.synchronize())));
            if way != Way::Up {
                back.download_to(&from, &mut target)?;
            }
            uploading.map_or(Ok(()), |thread| {
                thread.join().map_err(|_| anyhow!("a copying thread panicked"))?.map_err(Into::into)
            })
        })
    })?;
    let (source, mut target) = (Pinned::<u8>::zeroed(&place.cuda, bytes)?, Pinned::<u8>::zeroed(&place.cuda, bytes)?);
    let page_locked = both_ways(place, "page-locked", bytes, |way| {
        // Both scopes borrow host memory, start copying, and wait at their ends.
        let copied: cuda::Result<()> = forth.scope(|up| {
            back.scope(|down| {
                if way != Way::Down {
                    up.upload(&source, &mut to)?;
                }
                if way != Way::Up {
                    down.download(&from, &mut target)?;
                }
                Ok(())
            })
        });
        Ok(copied?)
    })?;
    Ok(vec![pageable, page_locked])
}

fn both_ways(
    place: &Place,
    memory: &'static str,
    bytes: usize,
    mut copy: impl FnMut(Way) -> Result<()>,
) -> Result<Engines> {
    place.doing(&format!("both ways, {memory}"));
    let mut rate = |way, bytes| Ok::<_, anyhow::Error>(place.time(place.sizes.few_runs, || copy(way))?.rate(bytes));
    Ok(Engines {
        memory,
        to_gpu: rate(Way::Up, bytes)?,
        from_gpu: rate(Way::Down, bytes)?,
        both: rate(Way::Both, 2 * bytes)?,
    })
}

fn sizes(place: &Place) -> Result<Vec<BySize>> {
    let gpu = &place.gpu;
    let most = place.sizes.bulk_bytes / 2;
    let mut sizes = Vec::new();
    for bytes in (5..).map(|power| 1_usize << (2 * power)).take_while(|&bytes| bytes <= most) {
        place.doing(&format!("one tensor of {}", ByteSize(bytes as u64)));
        let runs = if bytes < 1 << 24 { place.sizes.many_runs / 4 } else { 2 * place.sizes.few_runs };
        let pageable = Tensor::full([bytes / 4], 1.0)?;
        let millis = |tensor: &dyn Fn() -> Result<Tensor>| {
            let time = place.time(runs, || {
                let moved = tensor()?.to(gpu)?;
                gpu.synchronize()?;
                Ok(moved)
            })?;
            anyhow::Ok(time.median_ms)
        };
        let pinned = pageable.pin_memory_for(gpu).ok();
        let page_locked_ms = pinned.map(|pinned| millis(&|| Ok(pinned.clone()))).transpose()?;
        let pageable_ms = millis(&|| Ok(pageable.clone()))?;
        let pin_first_ms = millis(&|| Ok(pageable.pin_memory_for(gpu)?))?;
        sizes.push(BySize { bytes, pageable_ms, pin_first_ms, page_locked_ms });
    }
    place.cuda.page_locked().trim();
    Ok(sizes)
}

fn counts(place: &Place) -> Result<Vec<ByCount>> {
    let (gpu, total) = (&place.gpu, place.sizes.bulk_bytes / 8);
    let runs = 2 * place.sizes.few_runs;
    let mut counts = Vec::new();
    for count in [1, 10, 100, 1_000, 10_000] {
        place.doing(&format!("{} in {count} tensors", ByteSize(total as u64)));
        let len = total / 4 / count;
        let tensors: Vec<Tensor> = (0..count).map(|_| Tensor::full([len], 1.0)).collect::<Result<_, _>>()?;
        let one_by_one = place.time(runs, || {
            let moved: Vec<Tensor> = tensors.iter().map(|tensor| tensor.to(gpu)).collect::<Result<_, _>>()?;
            gpu.synchronize()?;
            Ok(moved)
        })?;
        let as_one = place.time(runs, || {
            let moved = Tensor::all_to(&tensors, gpu)?;
            gpu.synchronize()?;
            Ok(moved)
        })?;
        let (one_by_one_ms, as_one_ms) = (one_by_one.median_ms, as_one.median_ms);
        counts.push(ByCount { count, bytes: 4 * len, one_by_one_ms, as_one_ms });
    }
    Ok(counts)
}

impl BySize {
    pub(crate) fn rate(&self, millis: f64) -> f64 {
        self.bytes as f64 / millis / 1e6
    }
}
