//! The guide's four figures: the same tensors, moved in every way of its Python code, and in Pagelock's own ways.

use std::time::Duration;

use anyhow::{Result, ensure};
use pagelock::{
    cuda::{StagingConfig, Timeline, page_locked_budget},
    memory::Resource,
    prelude::*,
    tensor::TensorMap,
};
use serde::Serialize;

use crate::{
    place::{Place, Time},
    traces::millis,
};

/// Several ways to do the same work.
#[derive(Serialize)]
pub(crate) struct Figure {
    pub(crate) bytes: usize,
    pub(crate) ways: Vec<Way>,
    /// Why a way is missing.
    pub(crate) left_out: Vec<String>,
}

/// One way, and how long it took.
#[derive(Serialize)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// Whether it starts with the tensors in ordinary memory and ends with them on the device.
    pub(crate) is_whole: bool,
    pub(crate) time: Time,
    /// The bytes that were page-locked for it, including sources.
    pub(crate) page_locked_bytes: u64,
    /// PyTorch's name of the same way, in the file of its figures.
    pub(crate) torch: Option<&'static str>,
}

impl Way {
    pub(crate) fn page_locked(&self) -> ByteSize {
        ByteSize(self.page_locked_bytes)
    }
}

impl Figure {
    fn new(bytes: usize) -> Self {
        Self { bytes, ways: Vec::new(), left_out: Vec::new() }
    }

    /// The fastest way from ordinary memory to the device.
    pub(crate) fn fastest(&self) -> &Way {
        let whole = self.ways.iter().filter(|way| way.is_whole);
        let fastest = whole.min_by(|a, b| a.time.median_ms.total_cmp(&b.time.median_ms));
        fastest.unwrap_or_else(|| unreachable!("every figure starts with a way from ordinary memory"))
    }

    /// The way with this name.
    pub(crate) fn way(&self, name: &str) -> Option<&Way> {
        self.ways.iter().find(|way| way.name == name)
    }

    fn add<T>(
        &mut self,
        place: &Place,
        (name, torch): (&'static str, Option<&'static str>),
        runs: usize,
        work: impl FnMut() -> Result<T>,
    ) -> Result<()> {
        place.doing(name);
        place.gpu.synchronize()?;
        place.cuda.release_staging(); // the ring buffer and blocks of earlier ways must not count for this one
        place.cuda.release_finished();
        place.cuda.page_locked().trim();
        let time = place.time(runs, work)?;
        let page_locked_bytes = page_locked_budget().used().0;
        let is_whole = !name.starts_with("page-locked") && !name.ends_with("pin_memory()");
        self.ways.push(Way { name, is_whole, time, page_locked_bytes, torch });
        Ok(())
    }
}

/// Figure 1: one large tensor.
pub(crate) fn one(place: &Place) -> Result<Figure> {
    let (gpu, runs) = (&place.gpu, place.sizes.many_runs);
    let mut figure = Figure::new(4 * place.sizes.one_floats);
    let pageable = Tensor::full([place.sizes.one_floats], 1.5)?;
    let there = |moved: Tensor| gpu.synchronize().map(|()| moved);

    figure.add(place, (TO, Some("one_1M.pageable_to")), runs, || Ok(there(pageable.to(gpu)?)?))?;
    figure.add(place, (PIN, Some("one_1M.pin_memory")), runs, || Ok(pageable.pin_memory_for(gpu)?))?;
    figure.add(place, (PIN_TO, Some("one_1M.pin_then_to")), runs, || {
        Ok(there(pageable.pin_memory_for(gpu)?.to(gpu)?)?)
    })?;
    place.cuda.page_locked().trim();
    let pinned = pageable.pin_memory_for(gpu)?;
    fill_the_caches()?;
    figure.add(place, (PINNED_TO, Some("one_1M.pinned_to")), runs, || Ok(there(pinned.to(gpu)?)?))?;

    check(place, &[pageable.to(gpu)?, pinned.to(gpu)?], |_| 1.5)?;
    Ok(figure)
}

pub(crate) const TO: &str = "x.to(gpu)";
pub(crate) const PIN: &str = "x.pin_memory()";
pub(crate) const PIN_TO: &str = "x.pin_memory().to(gpu)";
pub(crate) const PINNED_TO: &str = "page-locked before: x.to(gpu)";
pub(crate) const EACH: &str = "x.to(gpu), waiting for each";
pub(crate) const ONCE: &str = "x.to(gpu), waiting once";
pub(crate) const PIN_EACH: &str = "x.pin_memory().to(gpu), waiting for each";
pub(crate) const PIN_ONCE: &str = "x.pin_memory().to(gpu), waiting once";
pub(crate) const PINNED_EACH: &str = "page-locked before, waiting for each";
pub(crate) const PINNED_ONCE: &str = "page-locked before, waiting once";
pub(crate) const PACKED: &str = "stream.upload_packed(&slices)";
pub(crate) const AS_ONE: &str = "Tensor::all_to(&tensors, gpu)";

/// Figure 2: many small tensors.
pub(crate) fn small(place: &Place) -> Result<Figure> {
    let (n, len, gpu) = (place.sizes.n_small, place.sizes.small_floats, &place.gpu);
    let mut figure = Figure::new(4 * n * len);
    let tensors = numbered(n, len)?;
    let runs = place.sizes.many_runs / 5;

    figure.add(place, (EACH, Some("small_1000x1000.to")), runs, || to_each(&tensors, gpu))?;
    figure.add(place, (ONCE, Some("small_1000x1000.to_nonblocking")), runs, || to_once(&tensors, gpu))?;
    figure.add(place, (AS_ONE, None), runs, || as_one(&tensors, gpu))?;
    let slices: Vec<Vec<f32>> = (0..n).map(|i| vec![i as f32; len]).collect();
    let slices: Vec<&[f32]> = slices.iter().map(|slice| &slice[..]).collect();
    let stream = place.cuda.stream()?;
    figure.add(place, (PACKED, None), runs, || {
        let packed = stream.upload_packed(&slices)?;
        stream.synchronize()?;
        Ok(packed)
    })?;
    let pinned = pin_all(&tensors, gpu)?;
    figure.add(place, (PINNED_ONCE, Some("small_1000x1000.pinned_nonblocking")), runs, || to_once(&pinned, gpu))?;

    check(place, &to_once(&tensors, gpu)?, |i| i as f32)?;
    check(place, &as_one(&tensors, gpu)?, |i| i as f32)?;
    Ok(figure)
}

/// Figure 3: many large tensors.
pub(crate) fn large(place: &Place) -> Result<Figure> {
    let (n, len, gpu) = (place.sizes.n_large, place.sizes.large_floats, &place.gpu);
    let mut figure = Figure::new(4 * n * len);
    let tensors = numbered(n, len)?;
    let runs = place.sizes.few_runs;

    figure.add(place, (EACH, Some("big_1000x1M.to")), runs, || to_each(&tensors, gpu))?;
    figure.add(place, (ONCE, Some("big_1000x1M.to_nonblocking")), runs, || to_once(&tensors, gpu))?;
    figure.add(place, (PIN_EACH, Some("big_1000x1M.pin_to")), runs, || {
        pin_each(&tensors, gpu, || Ok(gpu.synchronize()?))
    })?;
    figure.add(place, (PIN_ONCE, Some("big_1000x1M.pin_to_nonblocking")), runs, || {
        let moved = pin_each(&tensors, gpu, || Ok(()))?;
        gpu.synchronize()?;
        Ok(moved)
    })?;
    figure.add(place, (AS_ONE, None), runs, || as_one(&tensors, gpu))?;
    check(place, &as_one(&tensors, gpu)?, |i| i as f32)?;

    let (budget, needed) = (page_locked_budget(), ByteSize((4 * n * len) as u64 * 9 / 8));
    let limit = budget.limit();
    budget.set_limit(ByteSize(limit.0.max(needed.0)));
    match pin_all(&tensors, gpu) {
        Ok(pinned) => {
            let ways = [
                (PINNED_EACH, Some("big_1000x1M.pinned_to")),
                (PINNED_ONCE, Some("big_1000x1M.pinned_to_nonblocking")),
            ];
            figure.add(place, ways[0], runs, || to_each(&pinned, gpu))?;
            figure.add(place, ways[1], runs, || to_once(&pinned, gpu))?;
        }
        Err(refusal) => figure.left_out.push(format!("{PINNED_ONCE}: {refusal}")),
    }
    place.cuda.page_locked().trim();
    budget.set_limit(limit);
    Ok(figure)
}

/// Figure 4: many large tensors as a map, with helping threads beside the caller.
pub(crate) fn map(place: &Place) -> Result<Figure> {
    let (n, len, gpu) = (place.sizes.n_large, place.sizes.large_floats, &place.gpu);
    let mut figure = Figure::new(4 * n * len);
    let mut map = TensorMap::new([len])?;
    for (i, tensor) in numbered(n, len)?.into_iter().enumerate() {
        map.set(&format!("tensor {i}"), tensor)?;
    }
    let before = place.cuda.staging();
    let ways = [
        ("map.to(gpu), 0 threads", Some("td.nb_pin_0"), Some(0)),
        ("map.to(gpu), 4 threads", Some("td.nb_pin_4"), Some(4)),
        ("map.to(gpu), 8 threads", Some("td.nb_pin_8"), Some(8)),
        ("map.to(gpu)", Some("td.default"), None),
    ];
    for (name, torch, threads) in ways {
        place.cuda.set_staging(StagingConfig { threads: threads.unwrap_or(before.threads), ..before });
        figure.add(place, (name, torch), place.sizes.few_runs, || {
            let moved = map.to(gpu)?;
            gpu.synchronize()?;
            Ok(moved)
        })?;
    }
    let moved = map.to(gpu)?;
    let moved = (0..n).map(|i| Ok(moved.get(&format!("tensor {i}"))?)).collect::<Result<Vec<Tensor>>>()?;
    check(place, &moved, |i| i as f32)?;
    Ok(figure)
}

/// Makes every core read other memory, so that its cache evicts what the core wrote last.
fn fill_the_caches() -> Result<()> {
    Tensor::full([32 << 20], 1.0)?.sum(..)?;
    Ok(())
}

/// `n` tensors, each filled with its index.
fn numbered(n: usize, len: usize) -> Result<Vec<Tensor>> {
    (0..n).map(|i| Ok(Tensor::full([len], i as f32)?)).collect()
}

fn to_each(tensors: &[Tensor], gpu: &Device) -> Result<Vec<Tensor>> {
    let mut moved = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        moved.push(tensor.to(gpu)?);
        gpu.synchronize()?;
    }
    Ok(moved)
}

fn to_once(tensors: &[Tensor], gpu: &Device) -> Result<Vec<Tensor>> {
    let moved = tensors.iter().map(|tensor| Ok(tensor.to(gpu)?)).collect();
    gpu.synchronize()?;
    moved
}

fn as_one(tensors: &[Tensor], gpu: &Device) -> Result<Vec<Tensor>> {
    let moved = Tensor::all_to(tensors, gpu)?;
    gpu.synchronize()?;
    Ok(moved)
}

fn pin_each(tensors: &[Tensor], gpu: &Device, after: impl Fn() -> Result<()>) -> Result<Vec<Tensor>> {
    let mut moved = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        moved.push(tensor.pin_memory_for(gpu)?.to(gpu)?);
        after()?;
    }
    Ok(moved)
}

fn pin_all(tensors: &[Tensor], gpu: &Device) -> Result<Vec<Tensor>> {
    tensors.iter().map(|tensor| Ok(tensor.pin_memory_for(gpu)?)).collect()
}

/// Checks every element of about ten of the tensors that arrived.
fn check(place: &Place, moved: &[Tensor], value: impl Fn(usize) -> f32) -> Result<()> {
    place.doing("checking what arrived");
    for i in (0..moved.len()).step_by(moved.len().div_ceil(10)) {
        let arrived: Vec<f32> = moved[i].to_vec()?;
        ensure!(arrived.iter().all(|&element| element == value(i)), "tensor {i} did not arrive as it was sent");
    }
    Ok(())
}

/// Where the time of many small copies goes.
#[derive(Serialize)]
pub(crate) struct Phases {
    pub(crate) way: &'static str,
    pub(crate) calls: usize,
    pub(crate) allocate_ms: f64,
    pub(crate) copy_ms: f64,
    pub(crate) wait_ms: f64,
}

/// Times the calls that `to` makes for each small tensor, and a single call for all of them.
pub(crate) fn phases(place: &Place) -> Result<Vec<Phases>> {
    let (n, len) = (place.sizes.n_small, place.sizes.small_floats);
    let sources: Vec<Vec<f32>> = (0..n).map(|i| vec![i as f32; len]).collect();
    let stream = place.cuda.stream()?;
    let one_by_one = |way, waits_for_each: bool| {
        Phases::of(way, n, &mut |timeline| {
            let mut buffers = Vec::with_capacity(n);
            for source in &sources {
                let mut buffer = timeline.on_host("allocate", || stream.allocate::<f32>(len))?;
                timeline.on_host("copy", || stream.upload_from(source, &mut buffer))?;
                if waits_for_each {
                    timeline.on_host("wait", || stream.synchronize())?;
                }
                buffers.push(buffer);
            }
            Ok(timeline.on_host("wait", || stream.synchronize())?)
        })
    };
    let tensors = numbered(n, len)?;
    Ok(vec![
        one_by_one(EACH, true)?,
        one_by_one(ONCE, false)?,
        Phases::of(AS_ONE, 1, &mut |timeline| {
            let _moved = timeline.on_host("copy", || Tensor::all_to(&tensors, &place.gpu))?;
            Ok(timeline.on_host("wait", || place.gpu.synchronize())?)
        })?,
    ])
}

impl Phases {
    /// Times the second of two runs.
    fn of(way: &'static str, calls: usize, work: &mut dyn FnMut(&Timeline) -> Result<()>) -> Result<Self> {
        work(&Timeline::new())?;
        let timeline = Timeline::new();
        work(&timeline)?;
        let spans = timeline.spans()?;
        let total =
            |name| millis(spans.iter().filter(|span| span.name == name).map(|span| span.duration()).sum::<Duration>());
        Ok(Self { way, calls, allocate_ms: total("allocate"), copy_ms: total("copy"), wait_ms: total("wait") })
    }
}
