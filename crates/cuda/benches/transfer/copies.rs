//! Figures of copies and of page-locking.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use pagelock_cuda::{Device, DeviceBuffer, Packed, Pinned, Priority, Result, Stream, Uninit, page_locked_budget};
use pagelock_memory::ByteSize;

use crate::{Figure, millis, quantile};

const GIB: usize = 1 << 30;
const MANY: usize = 1_000;

/// Measures all figures. `wire` comes before the other copies, since its rates are their limits.
pub(crate) fn measure(device: &Device) -> Result<Vec<Figure>> {
    page_locked_budget().set_limit(ByteSize::gib(4));
    let mut figures = page_locking(device)?;
    let (up, down) = wire(device, &mut figures)?;
    large(device, up, down, &mut figures)?;
    many_large(device, up, &mut figures)?;
    many_small(device, up, &mut figures)?;
    one(device, up, &mut figures)?;
    beside_bulk(device, &mut figures)?;
    Ok(figures)
}

fn rate(bytes: usize, millis: f64) -> f64 {
    bytes as f64 / millis / 1e6
}

fn page_locking(device: &Device) -> Result<Vec<Figure>> {
    let (mut locking, mut letting_go) = (Vec::new(), Vec::new());
    for _ in 0..7 {
        let start = Instant::now();
        drop(Uninit::<u8>::new(device, GIB)?); // goes to the pool
        locking.push(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        pagelock_memory::Resource::trim(device.page_locked());
        letting_go.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let pooled = millis(50, || Uninit::<u8>::new(device, GIB).map(drop))?;
    Ok(vec![
        Figure::new("page-lock 1 GiB", quantile(&mut locking, 0.5), "ms", None),
        Figure::new("  let go of it", quantile(&mut letting_go, 0.5), "ms", None),
        Figure::new("page-lock 1 GiB that the pool has", pooled * 1e3, "us", None),
    ])
}

/// Copies of page-locked memory, the fastest there are. Returns the rates to and from the GPU.
fn wire(device: &Device, figures: &mut Vec<Figure>) -> Result<(f64, f64)> {
    let (forth, back) = (device.stream()?, device.stream()?);
    let (mut first, second) = (forth.zeros::<u8>(GIB)?, back.zeros::<u8>(GIB)?);
    let mut source = Some(Pinned::<u8>::zeroed(device, GIB)?);
    let mut target = Some(Uninit::<u8>::new(device, GIB)?);
    let mut both = |up: bool, down: bool| {
        let uploading = up.then(|| forth.upload(source.take().expect("it came back"), &mut first)).transpose();
        let downloading = down.then(|| back.download(&second, target.take().expect("it came back"))).transpose();
        if let Some(ticket) = uploading? {
            source = Some(ticket.wait()?);
        }
        if let Some(ticket) = downloading? {
            target = Some(ticket.wait()?.into_uninit());
        }
        Ok::<_, pagelock_cuda::Error>(())
    };
    let up = rate(GIB, millis(10, || both(true, false))?);
    let down = rate(GIB, millis(10, || both(false, true))?);
    let sum = rate(2 * GIB, millis(10, || both(true, true))?);
    figures.push(Figure::new("page-locked 1 GiB to the GPU", up, "GB/s", None));
    figures.push(Figure::new("page-locked 1 GiB from the GPU", down, "GB/s", None));
    figures.push(Figure::new("page-locked, both directions at once", sum, "GB/s", Some(up + down)));
    Ok((up, down))
}

/// One GiB of ordinary memory.
fn large(device: &Device, up: f64, down: f64, figures: &mut Vec<Figure>) -> Result<()> {
    let (forth, back) = (device.stream()?, device.stream()?);
    let source = vec![7_u8; GIB];
    let mut target = vec![1_u8; GIB];
    let (mut first, second) = (forth.zeros::<u8>(GIB)?, back.zeros::<u8>(GIB)?);
    let uploading = millis(8, || {
        forth.upload_from(&source, &mut first)?;
        forth.synchronize()
    })?;
    let downloading = millis(8, || back.download_to(&second, &mut target))?;
    let both = millis(8, || {
        thread::scope(|scope| {
            let uploading = scope.spawn(|| forth.upload_from(&source, &mut first));
            back.download_to(&second, &mut target)?;
            uploading.join().expect("no panic")?;
            forth.synchronize()
        })
    })?;
    figures.push(Figure::new("pageable 1 GiB to the GPU", rate(GIB, uploading), "GB/s", Some(up)));
    figures.push(Figure::new("pageable 1 GiB from the GPU", rate(GIB, downloading), "GB/s", Some(down)));
    figures.push(Figure::new("pageable, both directions at once", rate(2 * GIB, both), "GB/s", Some(up + down)));
    Ok(())
}

fn many_large(device: &Device, up: f64, figures: &mut Vec<Figure>) -> Result<()> {
    let stream = device.stream()?;
    let limit = Some(MANY as f64 * 4e6 / up / 1e6);
    let sources: Vec<Vec<f32>> = (0..MANY).map(|i| vec![i as f32; 1_000_000]).collect();
    let allocate = || (0..MANY).map(|_| stream.allocate::<f32>(1_000_000)).collect::<Result<Vec<_>>>();
    let together = millis(5, || {
        let mut buffers: Vec<DeviceBuffer<f32>> = allocate()?;
        stream.upload_each(sources.iter().zip(&mut buffers))?;
        stream.synchronize()
    })?;
    let locked = device.staged();
    let apart = millis(5, || {
        let mut buffers = allocate()?;
        for (source, buffer) in sources.iter().zip(&mut buffers) {
            stream.upload_from(source, buffer)?;
        }
        stream.synchronize()
    })?;
    let buffers = allocate()?;
    let mut targets = sources;
    let back = millis(5, || stream.download_each(buffers.iter().zip(&mut targets)))?;
    figures.push(Figure::new("1000 x 4 MB pageable to the GPU, one call", together, "ms", limit));
    figures.push(Figure::new("  page-locked for it", locked.0 as f64 / 1048576.0, "MiB", None));
    figures.push(Figure::new("1000 x 4 MB pageable to the GPU, 1000 calls", apart, "ms", limit));
    figures.push(Figure::new("1000 x 4 MB from the GPU to pageable, one call", back, "ms", limit));
    Ok(())
}

fn many_small(device: &Device, up: f64, figures: &mut Vec<Figure>) -> Result<()> {
    let stream = device.stream()?;
    let limit = Some(4e6 / up / 1e6);
    let sources: Vec<Vec<f32>> = (0..MANY).map(|i| vec![i as f32; 1_000]).collect();
    let slices: Vec<&[f32]> = sources.iter().map(|source| &source[..]).collect();
    let packed = millis(200, || {
        let _packed = stream.upload_packed(&slices)?;
        stream.synchronize()
    })?;
    let apart = millis(30, || {
        let mut buffers = (0..MANY).map(|_| stream.allocate::<f32>(1_000)).collect::<Result<Vec<_>>>()?;
        for (source, buffer) in sources.iter().zip(&mut buffers) {
            stream.upload_from(source, buffer)?;
        }
        stream.synchronize()
    })?;
    let Packed { buffer, ranges } = stream.upload_packed(&slices)?;
    let on_device = buffer.split(ranges)?;
    let mut targets = sources.clone();
    let back = millis(200, || stream.download_each(on_device.iter().zip(&mut targets)))?;
    figures.push(Figure::new("1000 x 4 kB pageable to the GPU, packed", packed, "ms", limit));
    figures.push(Figure::new("1000 x 4 kB pageable to the GPU, 1000 calls", apart, "ms", limit));
    figures.push(Figure::new("1000 x 4 kB from the GPU, packed", back, "ms", limit));
    Ok(())
}

fn one(device: &Device, up: f64, figures: &mut Vec<Figure>) -> Result<()> {
    let stream = device.stream()?;
    let limit = Some(4e6 / up / 1e6);
    let source = vec![1.0_f32; 1_000_000];
    let mut target = vec![0.0_f32; 1_000_000];
    let mut buffer = stream.allocate::<f32>(1_000_000)?;
    let until_there = millis(500, || {
        stream.upload_from(&source, &mut buffer)?;
        stream.synchronize()
    })?;
    let mut calls = Vec::new();
    for _ in 0..500 {
        let start = Instant::now();
        stream.upload_from(&source, &mut buffer)?;
        calls.push(start.elapsed().as_secs_f64() * 1e3);
        stream.synchronize()?;
    }
    let back = millis(500, || stream.download_to(&buffer, &mut target))?;
    let mut pinned = Some(Pinned::from_slice(device, &source)?);
    let page_locked = millis(500, || {
        let ticket = stream.upload(pinned.take().expect("it came back"), &mut buffer)?;
        pinned = Some(ticket.wait()?);
        Ok::<_, pagelock_cuda::Error>(())
    })?;
    figures.push(Figure::new("one 4 MB pageable to the GPU, until it is there", until_there, "ms", limit));
    figures.push(Figure::new("  until the source may be changed", quantile(&mut calls, 0.5), "ms", None));
    figures.push(Figure::new("one 4 MB from the GPU to pageable", back, "ms", limit));
    figures.push(Figure::new("one 4 MB page-locked to the GPU", page_locked, "ms", limit));
    Ok(())
}

/// A small copy while large ones of the same direction keep the wire busy.
fn beside_bulk(device: &Device, figures: &mut Vec<Figure>) -> Result<()> {
    let (bulk, urgent) = (device.stream()?, device.stream_with_priority(Priority::High)?);
    let mut host = vec![1_u8; GIB / 4];
    let mut large = bulk.allocate::<u8>(host.len())?;
    let mut buffer = urgent.zeros::<u8>(SMALL)?;
    let up = beside(|| bulk.upload_from(&host, &mut large), || small_uploads(device, &urgent, &mut buffer))?;
    let down = beside(|| bulk.download_to(&large, &mut host), || small_downloads(device, &urgent, &buffer))?;
    let mut note = |name, times: &mut [f64], part| figures.push(Figure::new(name, quantile(times, part), "us", None));
    let [(mut staged, mut pinned), (mut staged_down, mut pinned_down)] = [up, down];
    note("51 kB pageable beside bulk copies, median", &mut staged, 0.5);
    note("51 kB pageable beside bulk copies, 99 of 100", &mut staged, 0.99);
    note("51 kB page-locked beside bulk copies, median", &mut pinned, 0.5);
    note("51 kB page-locked beside bulk copies, 99 of 100", &mut pinned, 0.99);
    note("51 kB to pageable beside bulk downloads, median", &mut staged_down, 0.5);
    note("51 kB to pageable beside bulk downloads, 99 of 100", &mut staged_down, 0.99);
    note("51 kB to page-locked beside bulk downloads, median", &mut pinned_down, 0.5);
    note("51 kB to page-locked beside bulk downloads, 99 of 100", &mut pinned_down, 0.99);
    Ok(())
}

const SMALL: usize = 51_000;

/// Measures while another thread copies in bulk.
fn beside<T>(mut bulk: impl FnMut() -> Result<()> + Send, measure: impl FnOnce() -> Result<T>) -> Result<T> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let saturating = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                bulk()?;
            }
            Ok::<_, pagelock_cuda::Error>(())
        });
        let measured = measure();
        over.store(true, Ordering::Relaxed);
        saturating.join().expect("no panic")?;
        measured
    })
}

/// Microseconds of many small uploads, of ordinary and of page-locked memory.
fn small_uploads(device: &Device, stream: &Stream, buffer: &mut DeviceBuffer<u8>) -> Result<(Vec<f64>, Vec<f64>)> {
    let small = vec![2_u8; SMALL];
    let mut pinned = Some(Pinned::from_slice(device, &small)?);
    let (mut staged, mut page_locked) = (Vec::new(), Vec::new());
    for _ in 0..5_000 {
        let start = Instant::now();
        stream.upload_from(&small, &mut *buffer)?;
        stream.synchronize()?;
        staged.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        let ticket = stream.upload(pinned.take().expect("it came back"), &mut *buffer)?;
        pinned = Some(ticket.wait()?);
        page_locked.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok((staged, page_locked))
}

/// Like [`small_uploads`], in the other direction.
fn small_downloads(device: &Device, stream: &Stream, buffer: &DeviceBuffer<u8>) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut small = vec![2_u8; SMALL];
    let mut pinned = Some(Uninit::<u8>::new(device, SMALL)?);
    let (mut staged, mut page_locked) = (Vec::new(), Vec::new());
    for _ in 0..5_000 {
        let start = Instant::now();
        stream.download_to(buffer, &mut small)?;
        staged.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        let ticket = stream.download(buffer, pinned.take().expect("it came back"))?;
        pinned = Some(ticket.wait()?.into_uninit());
        page_locked.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok((staged, page_locked))
}
