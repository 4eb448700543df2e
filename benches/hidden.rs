//! Whether a loader hides its transfers: a step that takes one and a half times as long as its batch takes to the GPU.
//!
//! Asserts that an epoch takes at most 1.03 times the longer of computing alone and copying alone, by the GPU's own clock.
//! Without a GPU it says so and does nothing.
//!
//! ```text
//! cargo bench --bench hidden -- [--mib 64] [--batches 200]
//! ```

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use pagelock::prelude::*;
use pagelock::tensor::{CopyStream, CudaDevice};

/// Times an epoch whose transfers should not be seen
#[derive(Parser)]
struct Args {
    /// How large a batch is
    #[arg(long, default_value_t = 64)]
    mib: usize,
    /// How many batches make an epoch
    #[arg(long, default_value_t = 200)]
    batches: usize,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// Numbers of batches: what is loaded is the same few page-locked tensors, since making batches is not the subject.
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
    let work = Work::lasting(transfer.mul_f64(1.5), &device, cuda)?;
    let compute = timed(cuda, || (0..args.batches).try_for_each(|_| work.run(&work.x)))?;

    let held = sources.clone();
    let collate = move |numbers: Vec<usize>| Ok(held[numbers[0] % held.len()].clone());
    let loader = DataLoader::with_collate(Numbers(args.batches), collate).num_workers(2).to(&device)?;
    let epoch = || timed(cuda, || loader.iter().try_for_each(|batch| work.run(&batch?)));
    epoch()?; // the first one allocates
    let epochs: Vec<Duration> = (0..5).map(|_| epoch()).collect::<Result<_>>()?;
    let epoch = epochs.into_iter().min().unwrap_or_default();

    let copies = transfer * args.batches as u32;
    let ratio = epoch.as_secs_f64() / compute.max(copies).as_secs_f64();
    println!("{} batches of {} MiB: copying alone {copies:.2?}, computing alone {compute:.2?}", args.batches, args.mib);
    println!("epoch {epoch:.2?}, {ratio:.3} times the longer one\n\n{}", loader.report());
    ensure!(ratio <= 1.03, "transfers are not hidden: {ratio:.3} times the longer of the two, at most 1.03 is allowed");
    Ok(())
}

/// How long one batch takes to the device when nothing else happens.
fn copying_alone(device: &Device, sources: &[Tensor], n_batches: usize) -> Result<Duration> {
    let copies = CopyStream::new(device)?;
    let stream = copies.stream().context("a GPU has streams")?;
    let run = || -> Result<Duration> {
        let start = stream.record_timed()?;
        for i in 0..n_batches {
            copies.upload(&sources[i % sources.len()])?;
        }
        let end = stream.record_timed()?;
        Ok(end.elapsed_since(&start)?)
    };
    run()?;
    Ok(run()? / n_batches as u32)
}

/// Something for the device to do.
struct Work {
    x: Tensor,
    times: usize,
}

impl Work {
    /// Work that takes about so long.
    fn lasting(wanted: Duration, device: &Device, cuda: &CudaDevice) -> Result<Work> {
        let probe = Work { x: Tensor::on(device).full([4 << 20], 0.5)?, times: 200 };
        probe.run(&probe.x)?;
        let once = timed(cuda, || probe.run(&probe.x))? / probe.times as u32;
        let times = (wanted.as_secs_f64() / once.as_secs_f64()).round().max(1.0) as usize;
        Ok(Work { times, ..probe })
    }

    /// Begins with the batch, so that it cannot begin before the batch is there.
    fn run(&self, batch: &Tensor) -> Result<()> {
        let mut x = (&self.x * &batch.narrow(0, 0, 1)?)?;
        for _ in 1..self.times {
            x = x.tanh()?;
        }
        Ok(())
    }
}

/// How long the device was at what `work` queued, from the first to the last of it.
fn timed(cuda: &CudaDevice, work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    cuda.stream().synchronize()?;
    let start = cuda.stream().record_timed()?;
    work()?;
    let end = cuda.stream().record_timed()?;
    Ok(end.elapsed_since(&start)?)
}
