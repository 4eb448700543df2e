//! Epochs of the tutorial's two models on MNIST, fed by the loader: our half of `compare_torch.py epochs`.
//!
//! ```text
//! cargo bench --bench mnist_epoch -- [--data DIR] [--model cnn|logistic] [--threads N] [--epochs N] [--json]
//! ```
//! Without MNIST the generated digits are trained on: same work, another loss.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use pagelock::nn::functional as F;
use pagelock::prelude::*;

type Batches = DataLoader<(Tensor, Tensor<i64>)>;

/// Trains the tutorial's models and prints how long each epoch takes
#[derive(Parser)]
struct Args {
    /// Folder with the four MNIST files
    #[arg(long)]
    data: Option<PathBuf>,
    /// Only this model
    #[arg(long, value_enum)]
    model: Option<Kind>,
    /// Threads to compute with
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Epochs of each model
    #[arg(long, default_value_t = 3)]
    epochs: usize,
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Logistic,
    Cnn,
}

/// What `compare_torch.py` reads.
#[derive(serde::Serialize)]
struct Run {
    model: Kind,
    threads: usize,
    train_seconds: Vec<f64>,
    seconds_to_first_step: Option<f64>,
    val_loss: f64,
    val_accuracy: f64,
}

fn main() -> Result<()> {
    let started = process_start();
    let args = Args::parse();
    set_num_threads(args.threads);
    let mnist = args.data.iter().fold(Mnist::new(), |mnist, folder| mnist.folder(folder));
    let digits = mnist.open_or_generate(0)?;

    let models = args.model.map_or(vec![Kind::Logistic, Kind::Cnn], |model| vec![model]);
    let runs = models.into_iter().map(|model| train(&args, model, &digits, started)).collect::<Result<Vec<_>>>()?;
    if args.json {
        println!("{}", serde_json::json!({ "program": "Pagelock", "runs": runs }));
        return Ok(());
    }
    println!("{digits}, batches of 64, {} thread(s)", args.threads);
    for Run { model, train_seconds, val_loss, val_accuracy, .. } in &runs {
        let name = model.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let least = train_seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let rate = digits.train.len() as f64 / least;
        println!(
            "{name:>8}: least {least:.3} s of {train_seconds:.3?}, {rate:.0} images/s, validation loss {val_loss:.3}, accuracy {val_accuracy:.3}"
        );
    }
    Ok(())
}

fn train(args: &Args, kind: Kind, digits: &DigitSet, started: SystemTime) -> Result<Run> {
    manual_seed(0);
    let (model, lr, momentum) = match kind {
        Kind::Logistic => (Sequential::new((Linear::new(784, 10)?,)), 0.5, 0.0),
        Kind::Cnn => (tutorial_cnn()?, 0.1, 0.9),
    };
    let (train_dl, valid_dl) = loaders(kind, digits);
    let mut opt = Sgd::new(model.parameters(), lr).momentum(momentum);

    let (mut train_seconds, mut first_step) = (Vec::new(), None::<Duration>);
    for _ in 0..args.epochs {
        let begin = Instant::now();
        for batch in &train_dl {
            let (xb, yb) = batch?;
            F::cross_entropy(&model.forward(&xb)?, &yb)?.backward()?;
            opt.step()?;
            opt.zero_grad();
            first_step.get_or_insert_with(|| started.elapsed().unwrap_or_default());
        }
        train_seconds.push(begin.elapsed().as_secs_f64());
    }

    let (val_loss, val_accuracy) = validate(&model, &valid_dl)?;
    let seconds_to_first_step = first_step.map(|time| time.as_secs_f64());
    Ok(Run { model: kind, threads: args.threads, train_seconds, seconds_to_first_step, val_loss, val_accuracy })
}

fn tutorial_cnn() -> Result<Sequential> {
    Ok(Sequential::new((
        Conv2d::new(1, 16, 3)?.stride(2).padding(1),
        ReLU,
        Conv2d::new(16, 16, 3)?.stride(2).padding(1),
        ReLU,
        Conv2d::new(16, 10, 3)?.stride(2).padding(1),
        ReLU,
        AdaptiveAvgPool2d::new(1),
        Flatten::new(),
    )))
}

/// Images are bytes in memory, and become floats a batch at a time.
fn loaders(kind: Kind, digits: &DigitSet) -> (Batches, Batches) {
    let (train_dl, valid_dl) = get_data(digits.train.clone(), digits.valid.clone(), 64);
    match kind {
        Kind::Logistic => (train_dl.map(flat), valid_dl.map(flat)),
        Kind::Cnn => (train_dl, valid_dl),
    }
}

fn flat((images, labels): (Tensor, Tensor<i64>)) -> pagelock::data::Result<(Tensor, Tensor<i64>)> {
    Ok((images.flatten(1, -1)?, labels))
}

fn validate(model: &Sequential, batches: &Batches) -> Result<(f64, f64)> {
    no_grad(|| {
        let (mut loss, mut right) = (0.0, 0.0);
        for batch in batches {
            let (xb, yb) = batch?;
            let out = model.forward(&xb)?;
            loss += f64::from(F::cross_entropy(&out, &yb)?.item()?) * yb.len() as f64;
            right += f64::from(out.argmax(1)?.eq(&yb)?.cast::<f32>()?.sum(..)?.item()?);
        }
        Ok((loss / batches.n_samples() as f64, right / batches.n_samples() as f64))
    })
}

/// When the caller started this process, as it says in nanoseconds since 1970; now, if it does not say.
fn process_start() -> SystemTime {
    let told = std::env::var("BENCH_STARTED_NS").ok().and_then(|text| text.parse().ok());
    told.map_or_else(SystemTime::now, |ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns))
}
