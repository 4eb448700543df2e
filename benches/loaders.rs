//! Times how fast a loader makes shuffled batches of MNIST-shaped samples when nothing uses them: our half of
//! `compare_torch.py loaders`.
//!
//! ```text
//! cargo bench --bench loaders -- [--workers 0 1 2] [--seconds N] [--pin] [--json]
//! cargo bench --bench loaders -- --budget [--workers 2]
//! ```

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use pagelock::data::LoaderReport;
use pagelock::prelude::*;

const N_SAMPLES: usize = 50_000;
const BATCH_SIZE: usize = 64;

/// Times loaders with several numbers of workers
#[derive(Parser)]
struct Args {
    /// Numbers of workers
    #[arg(long, num_args = 1.., default_values_t = [0, 1, 2, 4, 8])]
    workers: Vec<usize>,
    /// Seconds of loading for each number of workers
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Put batches in page-locked memory
    #[arg(long)]
    pin: bool,
    /// Instead prefetch many large batches, with and without a memory budget
    #[arg(long)]
    budget: bool,
    /// Also print where the time went
    #[arg(long)]
    report: bool,
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// `cargo bench` passes this
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    set_num_threads(1); // the workers alone run in parallel here
    if args.budget {
        return within_a_budget(&args);
    }
    let images = Tensor::rand([N_SAMPLES, 784])?;
    let dataset = TensorDataset::new((images, Tensor::full(N_SAMPLES, 0)?))?;
    let mut samples_per_second = BTreeMap::new(); // by number of workers
    for &n_workers in &args.workers {
        let loader = DataLoader::new(dataset.clone()).batch_size(BATCH_SIZE).shuffle(0).num_workers(n_workers);
        let loader = loader.prefetch_factor(8).persistent_workers(true).pin_memory(args.pin);
        let (epochs, report) = run(loader, args.seconds)?;
        anyhow::ensure!(report.pageable == 0, "page-locked memory was short for {} batches", report.pageable);
        if args.report {
            println!("{report}\n");
        }
        samples_per_second.insert(n_workers, epochs);
    }
    if args.json {
        let report = serde_json::json!({ "program": "Pagelock", "page_locked": args.pin, "samples_per_second": samples_per_second });
        println!("{report}");
        return Ok(());
    }
    println!("{:>8} {:>20} {:>20}", "workers", "most, samples/s", "median, samples/s");
    for (n_workers, mut epochs) in samples_per_second {
        epochs.sort_by(f64::total_cmp);
        println!("{n_workers:>8} {:>20.0} {:>20.0}", epochs[epochs.len() - 1], epochs[epochs.len() / 2]);
    }
    Ok(())
}

/// Samples per second of each epoch after the first, of which there are at least three.
fn run(loader: DataLoader<(Tensor, Tensor<Int>)>, seconds: f64) -> Result<(Vec<f64>, LoaderReport)> {
    let mut epochs = Vec::new();
    let start = Instant::now();
    while epochs.len() < 4 || start.elapsed() < Duration::from_secs_f64(seconds) {
        let start = Instant::now();
        for batch in &loader {
            black_box(batch?);
        }
        epochs.push(N_SAMPLES as f64 / start.elapsed().as_secs_f64());
    }
    Ok((epochs.split_off(1), loader.report()))
}

/// Samples of 1 MiB, made on demand.
struct Mebibytes;

impl Dataset for Mebibytes {
    type Sample = Tensor<Int>;

    fn len(&self) -> usize {
        4_096
    }

    fn get(&self, index: usize) -> Result<Tensor<Int>, pagelock::data::Error> {
        Ok(Tensor::build(1 << 20, |bytes: &mut [u8]| bytes.fill(index as u8))?)
    }
}

/// Times loading batches of 16 MiB that are prefetched at least 256 ahead, with and without a budget. The rounds of
/// both alternate.
fn within_a_budget(args: &Args) -> Result<()> {
    let n_workers = args.workers.iter().copied().find(|&n| n > 0).unwrap_or(2);
    let limits = [None, Some(ByteSize::mib(256))];
    let mut best = [0.0_f64; 2];
    for _round in 0..5 {
        for (best, limit) in best.iter_mut().zip(limits) {
            let loader = DataLoader::new(Mebibytes).batch_size(16).num_workers(n_workers);
            let loader = loader.prefetch_factor(256_usize.div_ceil(n_workers));
            let loader = match limit {
                Some(limit) => loader.prefetch_budget(Budget::new("ahead", limit)),
                None => loader,
            };
            let start = Instant::now();
            for batch in &loader {
                // Simulates a program that reads every byte.
                let most: u8 = batch?.max(..)?.item()?;
                black_box(most);
            }
            *best = best.max(4_096.0 / start.elapsed().as_secs_f64());
        }
    }
    let [unbounded, bounded] = best;
    println!(
        "{n_workers} workers; the best of five rounds, MiB/s: unbounded {unbounded:.0}, within 256 MiB {bounded:.0}"
    );
    println!("ratio {:.3}", bounded / unbounded);
    Ok(())
}
