//! Times epochs of the tutorial's two models on MNIST, fed by the loader: our half of `compare_torch.py epochs`.
//!
//! ```text
//! cargo bench --bench mnist_epoch -- [--data DIR] [--model cnn|logistic] [--threads N] [--epochs N] [--json]
//! cargo bench --bench mnist_epoch -- --device cuda [--way eager|captured|resident|logged|everything] ...
//! ```
//! Without MNIST it trains on generated digits: the same amount of work, but another loss.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use pagelock::board::SummaryWriter;
use pagelock::nn::functional as F;
use pagelock::nn::metrics::Accuracy;
use pagelock::nn::optim::lr_scheduler::{LrScheduler, OneCycleLr};
use pagelock::nn::optim::{AveragedModel, clip_grad_norm_};
use pagelock::prelude::*;
use tempfile::TempDir;

type Batches = DataLoader<(Tensor, Tensor<Int>)>;
type ByteBatches = DataLoader<(Tensor<Int>, Tensor<Int>)>;

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
    /// Where to compute: cpu, cuda, cuda:1
    #[arg(long, default_value = "cpu")]
    device: String,
    /// How a GPU is fed
    #[arg(long, value_enum)]
    way: Option<Way>,
    /// Workers of the loader, on a GPU
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// `cargo bench` passes this
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Logistic,
    Cnn,
}

/// How a GPU is fed. In every way the data start in host memory and are shuffled by the host.
#[derive(Clone, Copy, PartialEq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    /// Page-locked batches of bytes, one operation after another
    Eager,
    /// The same batches, one launch for each step
    Captured,
    /// All bytes are copied to the GPU at the beginning of each epoch, and each step gathers its batch there
    Resident,
    /// The batches are loaded and not used, which times the loader alone
    Loaded,
    /// One launch for each step, and two figures of each step are written for TensorBoard
    Logged,
    /// One launch for each step, with clipping, groups of parameters, a schedule, a moving average of the weights and the accuracy
    Everything,
}

/// The results of one run, as `compare_torch.py` reads them.
#[derive(serde::Serialize)]
struct Run {
    model: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    way: Option<Way>,
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
    // Reading the digits and initializing a GPU take about the same time, so they run in parallel.
    let (digits, device) = rayon::join(|| mnist.open_or_generate(0), || args.device.parse::<Device>());
    let (digits, device) = (digits?, device?);

    let models = args.model.map_or(vec![Kind::Logistic, Kind::Cnn], |model| vec![model]);
    let ways = args.way.map_or(vec![Way::Eager, Way::Captured, Way::Resident], |way| vec![way]);
    let mut runs = Vec::new();
    for model in models {
        match &device {
            Device::Cpu => runs.push(train(&args, model, &digits, started)?),
            _ => {
                for &way in &ways {
                    runs.push(train_on(&device, &args, model, way, &digits, started)?);
                }
            }
        }
    }
    if args.json {
        println!("{}", serde_json::json!({ "program": "Pagelock", "runs": runs }));
        return Ok(());
    }
    println!("{digits}, batches of 64, {} thread(s), on {device}", args.threads);
    for Run { model, way, train_seconds, val_loss, val_accuracy, .. } in &runs {
        let name = [name(Some(*model)), name(*way)].join(" ");
        let least = train_seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let rate = digits.train.len() as f64 / least;
        println!(
            "{name:>17}: least {least:.3} s of {train_seconds:.3?}, {rate:.0} images/s, validation loss {val_loss:.3}, accuracy {val_accuracy:.3}"
        );
    }
    Ok(())
}

fn train(args: &Args, kind: Kind, digits: &DigitSet, started: SystemTime) -> Result<Run> {
    manual_seed(0);
    let (model, mut opt) = kind.model(&Device::Cpu)?;
    let (train_dl, valid_dl) = loaders(kind, digits);

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
    let threads = args.threads;
    Ok(Run { model: kind, way: None, threads, train_seconds, seconds_to_first_step, val_loss, val_accuracy })
}

/// Like [`train`], on a GPU. An epoch ends when the GPU has finished it.
fn train_on(device: &Device, args: &Args, kind: Kind, way: Way, digits: &DigitSet, started: SystemTime) -> Result<Run> {
    manual_seed(0);
    let mut training = Training::new(kind, way, device, args.epochs * digits.train.len().div_ceil(64))?;
    let (bytes, valid_dl): (ByteBatches, ByteBatches) = get_data(digits.train.bytes(), digits.valid.bytes(), 64);
    let bytes = bytes.pin_memory(true).num_workers(args.workers).prefetch_factor(8);
    let indices = DataLoader::new(Indices(digits.train.len())).batch_size(64).shuffle(0).pin_memory(true);
    let indices = indices.num_workers(args.workers);

    let (mut train_seconds, mut first_step) = (Vec::new(), None::<Duration>);
    let (mut on_batches, mut on_all) = (CapturedStep::new(device), CapturedStep::new(device));
    let n = digits.train.len();
    let pixels = Tensor::from_slice(digits.train.image_bytes(), [n, 1, 28, 28])?;
    let images = Tensor::on(device).of(DType::U8).full([n, 1, 28, 28], 0)?;
    let labels = Tensor::on(device).full([n], 0)?;
    for _ in 0..args.epochs {
        let begin = Instant::now();
        if way == Way::Resident {
            images.copy_(&pixels.to(device)?)?;
            labels.copy_(&digits.train.labels()?.to(device)?)?;
            for batch in &indices {
                on_all.run(batch?, |index| {
                    training.descend(&images.index_select(0, index)?, &labels.index_select(0, index)?)
                })?;
                first_step.get_or_insert_with(|| started.elapsed().unwrap_or_default());
            }
        } else {
            for batch in &bytes {
                let (pixels, labels) = batch?;
                match way {
                    Way::Loaded => {}
                    Way::Eager => training.descend(&pixels.to(device)?, &labels.to(device)?)?,
                    _ => on_batches.run((pixels, labels), |(pixels, labels)| training.descend(pixels, labels))?,
                }
                training.end_of_step()?;
                first_step.get_or_insert_with(|| started.elapsed().unwrap_or_default());
            }
        }
        device.synchronize()?;
        train_seconds.push(begin.elapsed().as_secs_f64());
    }

    let model = training.model.to(&Device::Cpu)?;
    let (val_loss, val_accuracy) = validate(&model, &valid_dl.map(move |(x, y)| Ok((kind.images(&x)?, y))))?;
    let (seconds_to_first_step, threads) = (first_step.map(|time| time.as_secs_f64()), args.threads);
    Ok(Run { model: kind, way: Some(way), threads, train_seconds, seconds_to_first_step, val_loss, val_accuracy })
}

/// The state of training on a GPU.
struct Training {
    kind: Kind,
    model: Sequential,
    opt: Sgd,
    extras: Option<Extras>,
    board: Option<(SummaryWriter, TempDir)>,
    step: u64,
}

/// What a typical training script adds to a step.
struct Extras {
    schedule: LrScheduler<OneCycleLr>,
    averaged: AveragedModel<Sequential>,
    accuracy: Accuracy,
}

impl Training {
    fn new(kind: Kind, way: Way, device: &Device, n_steps: usize) -> Result<Self> {
        let (model, mut opt) = kind.model(device)?;
        let mut extras = None;
        if way == Way::Everything {
            opt = Sgd::new(model.named_parameters(), 0.1)
                .momentum(0.9)
                .weight_decay(1e-4)
                .group_where(|_, parameter| parameter.rank() < 2, |group| group.weight_decay(0.0));
            extras = Some(Extras {
                schedule: LrScheduler::new(&mut opt, OneCycleLr::new(0.1, n_steps as u64))?,
                averaged: AveragedModel::new(kind.model(device)?.0)?.ema(0.999),
                accuracy: Accuracy::new()?.to(device)?,
            });
        }
        let mut board = None;
        if way == Way::Logged {
            let folder = tempfile::tempdir()?;
            board = Some((SummaryWriter::new(folder.path())?, folder));
        }
        Ok(Self { kind, model, opt, extras, board, step: 0 })
    }

    fn descend(&mut self, pixels: &Tensor<Int>, labels: &Tensor<Int>) -> Result<()> {
        let scores = self.model.forward(&self.kind.images(pixels)?)?;
        F::cross_entropy(&scores, labels)?.backward()?;
        if self.extras.is_some() {
            clip_grad_norm_(self.model.parameters(), 1.0)?;
        }
        self.opt.step()?;
        self.opt.zero_grad();
        if let Some(extras) = &self.extras {
            extras.averaged.update_parameters(&self.model)?;
            extras.accuracy.update(&scores.detach(), labels)?;
        }
        Ok(())
    }

    /// What the host does after each step.
    fn end_of_step(&mut self) -> Result<()> {
        self.step += 1;
        if let Some(extras) = &mut self.extras {
            extras.schedule.step(&mut self.opt)?;
        }
        if let Some((board, _)) = &self.board {
            board.add_scalar("rate", self.opt.lr(), self.step as i64)?;
            board.add_scalar("images", (64 * self.step) as f64, self.step as i64)?;
        }
        Ok(())
    }
}

/// A dataset whose samples are their own indices.
struct Indices(usize);

impl Dataset for Indices {
    type Sample = Tensor<Int>;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> pagelock::data::Result<Tensor<Int>> {
        Ok(Tensor::scalar(index as i64)?)
    }

    fn gather(&self, indices: &[usize]) -> pagelock::data::Result<Option<Tensor<Int>>> {
        Ok(Some(Tensor::build(indices.len(), |out: &mut [i64]| {
            out.iter_mut().zip(indices).for_each(|(out, &index)| *out = index as i64);
        })?))
    }
}

impl Kind {
    fn model(self, device: &Device) -> Result<(Sequential, Sgd)> {
        let (model, lr, momentum) = match self {
            Kind::Logistic => (Sequential::new((Linear::new(784, 10)?,)), 0.5, 0.0),
            Kind::Cnn => (tutorial_cnn()?, 0.1, 0.9),
        };
        let model = model.to(device)?;
        let opt = Sgd::new(model.parameters(), lr).momentum(momentum);
        Ok((model, opt))
    }

    /// Pixels in [0, 1), in the shape that the model takes.
    fn images(self, pixels: &Tensor<Int>) -> pagelock::tensor::Result<Tensor> {
        let images = pixels.scaled(1.0 / 256.0)?;
        match self {
            Kind::Logistic => images.flatten(1, -1),
            Kind::Cnn => Ok(images),
        }
    }
}

fn name<V: ValueEnum>(value: Option<V>) -> String {
    let name = value.and_then(|value| value.to_possible_value());
    name.map(|value| value.get_name().to_owned()).unwrap_or_default()
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

/// Images stay bytes in memory, and each batch is converted to floats.
fn loaders(kind: Kind, digits: &DigitSet) -> (Batches, Batches) {
    let (train_dl, valid_dl) = get_data(digits.train.clone(), digits.valid.clone(), 64);
    match kind {
        Kind::Logistic => (train_dl.map(flat), valid_dl.map(flat)),
        Kind::Cnn => (train_dl, valid_dl),
    }
}

fn flat((images, labels): (Tensor, Tensor<Int>)) -> pagelock::data::Result<(Tensor, Tensor<Int>)> {
    Ok((images.flatten(1, -1)?, labels))
}

fn validate(model: &Sequential, batches: &Batches) -> Result<(f64, f64)> {
    no_grad(|| {
        let (mut loss, mut right) = (0.0, 0.0);
        for batch in batches {
            let (xb, yb) = batch?;
            let out = model.forward(&xb)?;
            let mean_loss: f64 = F::cross_entropy(&out, &yb)?.item()?;
            let n_right: f64 = out.argmax(1)?.eq(&yb)?.to_float()?.sum(..)?.item()?;
            (loss, right) = (loss + mean_loss * yb.len() as f64, right + n_right);
        }
        Ok((loss / batches.n_samples() as f64, right / batches.n_samples() as f64))
    })
}

/// When the caller started this process: `BENCH_STARTED_NS`, in nanoseconds since 1970. Without it, now.
fn process_start() -> SystemTime {
    let told = std::env::var("BENCH_STARTED_NS").ok().and_then(|text| text.parse().ok());
    told.map_or_else(SystemTime::now, |ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns))
}
