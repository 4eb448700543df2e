//! Tests whether a loader hides its transfers behind steps that take 1.5 times as long as the transfer of a batch.
//!
//! Asserts that an epoch takes at most 1.03 times as long as computing alone or copying alone, whichever is longer,
//! by the GPU's own clock. Writes a trace of one epoch for chrome://tracing or <https://ui.perfetto.dev>. Without a
//! GPU it prints that and exits.
//!
//! ```text
//! cargo bench --bench hidden -- [--mib 64] [--batches 200] [--work matmul] [--trace hidden.json]
//! ```

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use pagelock::cuda::{Span, Timeline, Track};
use pagelock::data::DeviceLoader;
use pagelock::prelude::*;
use pagelock::tensor::{CopyStream, CudaDevice};

/// Times an epoch whose transfers should be hidden behind computing
#[derive(Parser)]
struct Args {
    /// How large a batch is
    #[arg(long, default_value_t = 64)]
    mib: usize,
    /// How many batches make an epoch
    #[arg(long, default_value_t = 200)]
    batches: usize,
    /// What a step does
    #[arg(long, value_enum, default_value_t = Kind::Matmul)]
    work: Kind,
    /// Where to write the trace of one epoch
    #[arg(long)]
    trace: Option<PathBuf>,
    /// `cargo bench` passes this
    #[arg(long, hide = true)]
    bench: bool,
}

/// What a step does.
#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Multiplies matrices
    Matmul,
    /// Reads and writes 16 MiB again and again, and so competes with the copies for the GPU's memory bandwidth
    Tanh,
}

/// The samples are batch numbers. `collate` turns each into one of a few page-locked tensors, since making batches is
/// not what is measured.
struct Numbers(usize);

impl Dataset for Numbers {
    type Sample = usize;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<usize, pagelock::data::Error> {
        Ok(index)
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(missing) => {
            println!("SKIPPED: {missing}");
            return Ok(());
        }
    };
    let Device::Cuda(cuda) = &device else { unreachable!("asked for a GPU") };
    let sources: Vec<Tensor> = (0..8)
        .map(|i| Tensor::full([args.mib << 18], i as f32)?.pin_memory())
        .collect::<pagelock::tensor::Result<_>>()
        .context("page-locked memory for eight batches")?;

    let transfer = copying_alone(&device, &sources, args.batches)?;
    let copies = transfer * args.batches as u32;
    let work = Work::lasting(transfer.mul_f64(1.5), args.work, &device, cuda)?;
    let alone = || timed(cuda, || (0..args.batches).try_for_each(|_| work.run(&work.x)));
    let compute = least(3, alone)?;
    let crowded = least(3, || beside_free_copies(&device, cuda, &sources, args.batches, &work))?;

    let held = sources.clone();
    let collate = move |numbers: Vec<usize>| Ok(held[numbers[0] % held.len()].clone());
    let loader = DataLoader::with_collate(Numbers(args.batches), collate).num_workers(2).to(&device)?;
    timed(cuda, || loader.iter().try_for_each(|batch| work.run(&batch?)))?; // the first epoch allocates
    let epoch = least(5, || timed(cuda, || loader.iter().try_for_each(|batch| work.run(&batch?))))?;
    let ratio = epoch.as_secs_f64() / compute.max(copies).as_secs_f64();

    println!("{} batches of {} MiB: copying alone {copies:.2?}, computing alone {compute:.2?}", args.batches, args.mib);
    println!("computing beside copies that nothing waits for: {crowded:.2?}");
    println!("epoch {epoch:.2?}, {ratio:.3} times the longer one\n\n{}\n", loader.report());
    trace(loader, cuda, &work, args.trace)?;
    ensure!(ratio <= 1.03, "transfers are not hidden: {ratio:.3} times the longer of the two, at most 1.03 is allowed");
    Ok(())
}

/// The time of one batch's transfer to the device while nothing else runs.
fn copying_alone(device: &Device, sources: &[Tensor], n_batches: usize) -> Result<Duration> {
    let copies = CopyStream::new(device)?;
    let stream = copies.stream().context("a GPU has streams")?;
    let run = || -> Result<Duration> {
        let start = stream.record_timed()?;
        upload_all(&copies, sources, n_batches)?;
        let end = stream.record_timed()?;
        Ok(end.elapsed_since(&start)?)
    };
    run()?;
    Ok(least(3, run)? / n_batches as u32)
}

/// The time of computing while the same copies run and neither waits for the other. It shows how much copies slow
/// down computing.
fn beside_free_copies(
    device: &Device,
    cuda: &CudaDevice,
    sources: &[Tensor],
    n_batches: usize,
    work: &Work,
) -> Result<Duration> {
    let copies = CopyStream::new(device)?;
    timed(cuda, || {
        upload_all(&copies, sources, n_batches)?;
        (0..n_batches).try_for_each(|_| work.run(&work.x))
    })
}

fn upload_all(copies: &CopyStream, sources: &[Tensor], n_batches: usize) -> Result<()> {
    Ok((0..n_batches).try_for_each(|i| copies.upload(&sources[i % sources.len()]).map(drop))?)
}

/// Runs one more epoch and prints the times of each copy and each step.
fn trace(loader: DeviceLoader<Tensor>, cuda: &CudaDevice, work: &Work, file: Option<PathBuf>) -> Result<()> {
    let timeline = Timeline::new();
    let loader = loader.timeline(&timeline);
    for (i, batch) in loader.iter().enumerate() {
        timeline.on_stream(format!("step {i}"), &cuda.stream(), || work.run(&batch?))??;
    }
    let spans = timeline.spans()?;
    let (copies, steps): (Vec<_>, Vec<_>) = spans.iter().partition(|span| span.name.starts_with("upload"));
    let copied: Duration = copies.iter().map(|copy| copy.duration()).sum();
    let hidden: Duration = copies.iter().map(|copy| shared(copy, &steps)).sum();
    let idle: Duration = steps.windows(2).map(|pair| pair[1].start.saturating_sub(pair[0].end)).sum();
    println!(
        "in a traced epoch {copied:.2?} of copies, {:.1} % of it while a step ran; between steps {idle:.2?}",
        100.0 * hidden.as_secs_f64() / copied.as_secs_f64(),
    );
    for span in copies.iter().take(5).chain(steps.iter().take(4)) {
        let Track::Stream { stream, .. } = span.track else { continue };
        println!("  stream {stream:>3}  {:<10} {:>9.3?} to {:>9.3?}", span.name, span.start, span.end);
    }
    if let Some(file) = file {
        timeline.write_chrome_trace(&file)?;
        println!("trace: {}", file.display());
    }
    Ok(())
}

/// How much of `copy` lies in `steps`, which do not overlap each other.
fn shared(copy: &Span, steps: &[&Span]) -> Duration {
    steps.iter().map(|step| step.end.min(copy.end).saturating_sub(step.start.max(copy.start))).sum()
}

/// An operation that is repeated to keep the device busy.
struct Work {
    kind: Kind,
    x: Tensor,
    other: Tensor,
    times: usize,
}

impl Work {
    /// Creates work that takes about `wanted`.
    fn lasting(wanted: Duration, kind: Kind, device: &Device, cuda: &CudaDevice) -> Result<Work> {
        let on = Tensor::on(device);
        let (x, other) = match kind {
            Kind::Tanh => (on.full([4 << 20], 0.5)?, on.full([1], 1.0)?),
            Kind::Matmul => (on.full([1024, 1024], 0.5)?, on.full([1024, 1024], 1.0 / 1024.0)?),
        };
        let probe = Work { kind, x, other, times: 200 };
        probe.run(&probe.x)?;
        let once = least(3, || timed(cuda, || probe.run(&probe.x)))? / probe.times as u32;
        let times = (wanted.as_secs_f64() / once.as_secs_f64()).round().max(1.0) as usize;
        Ok(Work { times, ..probe })
    }

    /// The first operation reads the batch, so no work starts before the batch has arrived.
    fn run(&self, batch: &Tensor) -> Result<()> {
        let mut x = (&self.x * &batch.reshape([-1])?.narrow(0, 0, 1)?)?;
        for _ in 1..self.times {
            x = match self.kind {
                Kind::Tanh => x.tanh()?,
                Kind::Matmul => x.matmul(&self.other)?,
            };
        }
        Ok(())
    }
}

/// The device's time from the first to the last operation that `work` queues.
fn timed(cuda: &CudaDevice, work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    cuda.stream().synchronize()?;
    let start = cuda.stream().record_timed()?;
    work()?;
    let end = cuda.stream().record_timed()?;
    Ok(end.elapsed_since(&start)?)
}

/// The shortest time of `runs` runs.
fn least(runs: usize, mut run: impl FnMut() -> Result<Duration>) -> Result<Duration> {
    let mut times = (0..runs).map(|_| run());
    let first = times.next().context("at least one run")??;
    times.try_fold(first, |least, time| Ok(least.min(time?)))
}
