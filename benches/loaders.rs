//! Shuffled batches of MNIST-shaped samples from a loader that does nothing else: our half of `compare_torch.py
//! loaders`.
//!
//! ```text
//! cargo bench --bench loaders -- [--workers 0 1 2] [--seconds N] [--json]
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

/// Times loaders with some numbers of workers
#[derive(Parser)]
struct Args {
    /// Numbers of workers
    #[arg(long, num_args = 1.., default_values_t = [0, 1, 2, 4, 8])]
    workers: Vec<usize>,
    /// How long to load with each
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Also say where the time went
    #[arg(long)]
    report: bool,
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    set_num_threads(1); // workers are the threads here
    let images = Tensor::rand([N_SAMPLES, 784])?;
    let dataset = TensorDataset::new((images, Tensor::<i64>::zeros(N_SAMPLES)?))?;
    let mut samples_per_second = BTreeMap::new();
    for &n_workers in &args.workers {
        let loader = DataLoader::new(dataset.clone()).batch_size(BATCH_SIZE).shuffle(0).num_workers(n_workers);
        let (epochs, report) = run(loader.prefetch_factor(8).persistent_workers(true), args.seconds)?;
        if args.report {
            println!("{report}\n");
        }
        samples_per_second.insert(format!("{n_workers}"), epochs);
    }
    if args.json {
        let report = serde_json::json!({ "program": "Pagelock", "samples_per_second": samples_per_second });
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

/// Samples per second in each epoch after the first, at least three.
fn run(loader: DataLoader<(Tensor, Tensor<i64>)>, seconds: f64) -> Result<(Vec<f64>, LoaderReport)> {
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
