//! What a batch of 64 shuffled digit images costs, and what the loader adds to it.
//!
//! `cargo bench -p pagelock-data --bench loader` prints the best and the median of several rounds. With `--json`, it
//! prints them as one JSON object.

use std::hint::black_box;
use std::time::Instant;

use pagelock_data::{DataLoader, Dataset, Place, RandomSampler, Result, Sampler, SyntheticDigits, TensorDataset};

const BATCH: usize = 64;
/// Many short rounds: the best of them ran undisturbed even on a busy machine.
const ROUNDS: usize = 301;

/// Batches that cost nothing: what remains is the cost of the loader.
struct Nothing;

impl Dataset for Nothing {
    type Sample = ();

    fn len(&self) -> usize {
        50_000
    }

    fn get(&self, _index: usize) -> Result<()> {
        Ok(())
    }

    fn gather(&self, indices: &[usize]) -> Result<Option<()>> {
        black_box(indices);
        Ok(Some(()))
    }
}

struct Row {
    name: &'static str,
    unit: &'static str,
    best: f64,
    median: f64,
}

/// Runs `work` in rounds. It returns how many things it did. The row is the time per thing, in `unit`.
fn measure(name: &'static str, unit: &'static str, mut work: impl FnMut() -> usize) -> Row {
    let per_second = match unit {
        "ms" => 1e3,
        "µs" => 1e6,
        _ => 1e9,
    };
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let n_things = work();
            start.elapsed().as_secs_f64() * per_second / n_things as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    Row { name, unit, best: rounds[0], median: rounds[ROUNDS / 2] }
}

/// Loads the next 40 batches in each call, epoch after epoch.
fn some_batches<B: Send + 'static>(loader: &DataLoader<B>) -> impl FnMut() -> usize {
    let mut batches = std::iter::repeat_with(|| loader.iter()).flatten();
    move || batches.by_ref().take(40).filter(|batch| black_box(batch).is_ok()).count()
}

fn main() -> Result<()> {
    let digits = SyntheticDigits::new(1).generate()?;
    let floats = TensorDataset::new((digits.train.flat()?, digits.train.labels()?))?;
    let one_batch: Vec<usize> = (0..BATCH).map(|i| i * 97).collect();
    let floats_loader = DataLoader::new(floats.clone()).batch_size(BATCH).shuffle(1);
    let bytes_loader = DataLoader::new(digits.train.clone()).batch_size(BATCH).shuffle(1);
    let empty_loader = DataLoader::new(Nothing).batch_size(BATCH).shuffle(1);
    let mut indices = [0; 1024];

    let rows = [
        measure("loader alone, per batch", "µs", some_batches(&empty_loader)),
        measure("random order, per index", "ns", || {
            RandomSampler::new(1).fill(Place { epoch: 0, position: 0, n_samples: 50_000 }, &mut indices);
            black_box(&indices).len()
        }),
        measure("gather 64 x 784 f32, same rows", "µs", || {
            (0..40).filter(|_| black_box(floats.gather(&one_batch)).is_ok()).count()
        }),
        measure("gather 64 x 784 u8 -> f32, same rows", "µs", || {
            (0..40).filter(|_| black_box(digits.train.gather(&one_batch)).is_ok()).count()
        }),
        measure("batch of f32, shuffled", "µs", some_batches(&floats_loader)),
        measure("batch of u8 -> f32, shuffled", "µs", some_batches(&bytes_loader)),
        measure("draw a digit", "µs", || {
            SyntheticDigits::new(2).train_len(60).test_len(1).generate().map_or(0, |_| 61)
        }),
    ];
    match std::env::args().any(|argument| argument == "--json") {
        true => println!(
            "{{{}}}",
            rows.map(|row| format!("\"{} ({})\": [{}, {}]", row.name, row.unit, row.best, row.median)).join(", ")
        ),
        false => rows.iter().for_each(|row| {
            println!(
                "{:<40} best {:>8.2} {unit}, median {:>8.2} {unit}",
                row.name,
                row.best,
                row.median,
                unit = row.unit
            );
        }),
    }
    Ok(())
}
