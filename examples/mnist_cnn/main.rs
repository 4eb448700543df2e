//! Trains a convolutional network on MNIST and reports how well and how fast.
//!
//! `cargo run --release --example mnist_cnn` works without arguments and without a network; `-- --help` lists the options.
//! Results go to `runs/mnist_cnn`: `report.json`, `curves.svg`, `mistakes.svg`, the weights, and checkpoints. A run
//! that was killed at any moment continues with `--resume`, and ends with the same weights as a run that was not
//! killed.

#[path = "../common/mod.rs"]
mod common;
mod interrupt;
mod model;
mod pictures;
mod progress;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use clap::builder::RangedU64ValueParser;
use indicatif::{ProgressBar, ProgressStyle};
use pagelock::nn::functional as F;
use pagelock::nn::module_names;
use pagelock::prelude::*;
use pagelock::tensor::profiler::Profiler;

use interrupt::Interrupt;
use model::Arch;
use progress::Progress;
use report::{Epoch, Report};

/// Train a convolutional network on MNIST
///
/// Ctrl-C stops it after the current batch: the weights, the report and the profile so far are saved, and the exit code
/// is 130.
#[derive(Parser, serde::Serialize)]
struct Args {
    /// Folder with the four MNIST files [default: $PAGELOCK_DATA/mnist, else the cache folder, downloaded once]
    #[arg(long)]
    data: Option<PathBuf>,
    /// The network: the tutorial's (fast), or lenet (99 %)
    #[arg(long, value_enum, default_value_t = Arch::Tutorial)]
    arch: Arch,
    /// Passes over the 50,000 training images
    #[arg(long, default_value_t = 2, value_parser = between(1, 1_000_000))]
    epochs: usize,
    /// Images per step
    #[arg(long, default_value_t = 64, value_parser = between(1, 50_000))]
    batch_size: usize,
    /// Learning rate of the first epoch [default: 0.1 for tutorial, 0.05 for lenet, which lowers it every epoch]
    #[arg(long, value_parser = learning_rate)]
    lr: Option<f64>,
    /// Seed of weights and order; the same seed gives the same bits
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Where to compute: cpu, cuda, cuda:1 [default: the first GPU, or the CPU if there is none]
    #[arg(long)]
    device: Option<String>,
    /// Threads to compute with [default: all cores]
    #[arg(long, value_parser = between(1, 256))]
    threads: Option<usize>,
    /// Profile the training: prints the table, and writes trace.json and memory.svg to this folder
    #[arg(long, value_name = "DIR")]
    profile: Option<PathBuf>,
    /// Folder for the results
    #[arg(long, default_value = "runs/mnist_cnn")]
    out: PathBuf,
    /// Continue from the newest checkpoint in the folder for the results, if there is one; without this, training
    /// starts over and removes the checkpoints there
    #[arg(long)]
    resume: bool,
    /// Steps between checkpoints; each epoch also ends with one
    #[arg(long, default_value_t = 500, value_parser = between(1, 1_000_000_000))]
    save_every: usize,
    /// Write losses and accuracy for TensorBoard, into the folder `tensorboard` beside the results
    #[arg(long)]
    tensorboard: bool,
}

impl Args {
    fn device(&self) -> pagelock::tensor::Result<Device> {
        self.device.as_ref().map_or_else(|| Ok(Device::best()), |name| name.parse())
    }
}

/// Numbers from `least` to `most`.
fn between(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}

fn learning_rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(lr) if (1e-30..=1e6).contains(&lr) => Ok(lr),
        _ => Err("a learning rate is a number above 0, such as 0.1, and at most 1000000".to_owned()),
    }
}

fn main() -> Result<ExitCode> {
    let start = Instant::now();
    let args: Args = common::arguments();
    common::make_folder(&args.out)?;
    if let Some(threads) = args.threads {
        set_num_threads(threads);
    }
    manual_seed(args.seed);

    // Reading the digits and initializing a GPU take a tenth of a second each, so they run in parallel.
    let mnist = args.data.iter().fold(Mnist::new(), |mnist, folder| mnist.folder(folder));
    let (digits, device) = rayon::join(|| mnist.open_or_generate(args.seed), || args.device());
    let (digits, device) = (digits?, device?);
    println!("{digits:#}");
    let (train_dl, valid_dl) = get_data(digits.train.bytes(), digits.valid.bytes(), args.batch_size);
    let test_dl = DataLoader::new(digits.test.bytes()).batch_size(args.batch_size * 2);
    let train_dl = train_dl.shuffle(args.seed).pin_memory(!device.is_cpu());

    let n_batches = train_dl.n_samples().div_ceil(args.batch_size);

    let model = args.arch.model()?.to(&device)?;
    let schedule = args.arch.schedule(args.lr, args.epochs);
    let mut opt = Sgd::new(model.parameters(), schedule(0)).momentum(0.9);
    println!("{model}\n{} parameters, on {device}, threads: {}", model.num_parameters(), num_threads());

    let total_loss = Tensor::on(&device).zeros(())?;
    let mut step = CapturedStep::new(&device); // on a GPU: captured once, then launched as a graph
    let mut report = Report::new(&args, &digits, &device);
    let interrupt = Interrupt::watch()?;
    let mut progress = Progress::open(&args)?;
    if let Some(found) = progress.take_resumed() {
        let mut load = || -> Result<()> {
            found.load_model(&model)?;
            found.load_optimizer(&mut opt)?;
            found.load_tensor("total_loss", &total_loss)?;
            found.load_random()?;
            train_dl.resume(found.loader()?)?;
            report.load_epochs(&found)
        };
        load().context("--resume needs the same --arch, --batch-size, --seed and --data as the first run")?;
        if report.epochs.len() >= args.epochs {
            println!("all {} epochs are done; raise --epochs to train longer", report.epochs.len());
        }
    }
    let everything = |opt: &Sgd, report: &Report<'_>| {
        let checkpoint = Checkpoint::new().model(&model)?.optimizer(opt)?.tensor("total_loss", &total_loss)?;
        report.save_epochs(checkpoint.random()?.loader(train_dl.state())?)
    };
    let profiler =
        args.profile.as_ref().map(|_| Profiler::new().with_modules(module_names(&model)).start()).transpose()?;
    for epoch in report.epochs.len()..args.epochs {
        opt.set_lr(schedule(epoch));
        let bar = progress_bar(epoch, args.epochs, train_dl.n_samples());
        let first = progress.step % n_batches; // not 0 if a checkpoint was in the middle of an epoch
        bar.set_position((first * args.batch_size) as u64);
        let begin = Instant::now();
        model.train();
        for (i, batch) in (first..).zip(train_dl.iter()) {
            let (xb, yb) = batch?;
            bar.inc(yb.len() as u64);
            step.run((xb, yb), |(xb, yb)| {
                let loss = F::cross_entropy(&model.forward(&pixels(xb)?)?, yb)?;
                loss.backward()?;
                opt.step()?;
                opt.zero_grad();
                total_loss.add_scaled_(&loss.detach(), yb.len())?;
                anyhow::Ok(())
            })?;

            // Reading the loss waits for the device, so it is not read in every step.
            progress.step += 1;
            if i % 100 == 0 {
                let total: f64 = total_loss.item()?;
                let loss = total / bar.position() as f64;
                bar.set_message(format!("{loss:.4}"));
                progress.scalar("loss/train", loss)?;
                report.first_step(start);
            }
            let is_last = i + 1 == n_batches; // the checkpoint at the end of the epoch follows
            if !is_last && (progress.step % args.save_every == 0 || interrupt.came()) {
                progress.save(everything(&opt, &report)?)?;
            }
            if interrupt.came() && !is_last {
                bar.finish_and_clear();
                progress.close()?;
                report::save_profile(profiler, args.profile.as_deref())?;
                return stopped(&args, &report, &model, epoch);
            }
        }
        let total: f64 = total_loss.item()?;
        let train_loss = total / train_dl.n_samples() as f64;
        let train_seconds = begin.elapsed().as_secs_f64();
        bar.finish_and_clear();
        total_loss.zero_()?;

        let begin = Instant::now();
        let (val_loss, val_accuracy) = evaluate(&model, &device, &valid_dl, |_, _| Ok(()))?;
        report.epochs.push(Epoch {
            train_loss,
            val_loss,
            val_accuracy,
            train_seconds,
            val_seconds: begin.elapsed().as_secs_f64(),
        });
        report.print_epoch(epoch, train_dl.n_samples());
        progress.scalar("loss/validation", val_loss)?;
        progress.scalar("accuracy/validation", val_accuracy)?;
        progress.save(everything(&opt, &report)?.score(val_accuracy))?;
        if interrupt.came() {
            progress.close()?;
            report::save_profile(profiler, args.profile.as_deref())?;
            return stopped(&args, &report, &model, epoch + 1);
        }
    }
    progress.close()?;
    report::save_profile(profiler, args.profile.as_deref())?;

    let mut guesses = Vec::new();
    let (_, test_accuracy) =
        evaluate(&model, &device, &test_dl, |out, yb| report::collect_guesses(out, yb, &mut guesses))?;
    report.finish(test_accuracy);
    report.print_confusion(&guesses);
    println!("\ntest accuracy {:.2} %", 100.0 * test_accuracy);

    report.save(&args.out.join("report.json"))?;
    pictures::curves(&report, &args.out.join("curves.svg"))?;
    pictures::mistakes(&guesses, &digits.test, &args.out.join("mistakes.svg"))?;
    save_safetensors(&model.state_dict(), args.out.join("model.safetensors"))?;
    println!("report.json, curves.svg, mistakes.svg and model.safetensors are in {}", args.out.display());
    println!("\n{}", pagelock::memory::ledger());
    Ok(ExitCode::SUCCESS)
}

/// Saves the report and the weights after an interrupt.
fn stopped(args: &Args, report: &Report, model: &Sequential, epochs: usize) -> Result<ExitCode> {
    report.save(&args.out.join("report.json"))?;
    save_safetensors(&model.state_dict(), args.out.join("model.safetensors"))?;
    let (whole, out) = (args.epochs, args.out.display());
    println!(
        "stopped after {epochs} of {whole} epochs: model.safetensors and report.json are in {out}; --resume continues"
    );
    Ok(ExitCode::from(130)) // 128 + SIGINT, as in shells
}

/// Converts bytes to the networks' inputs, in [0, 1).
fn pixels(bytes: &Tensor<Int>) -> Result<Tensor> {
    Ok(bytes.scaled(1.0 / 256.0)?)
}

/// The mean loss and the share of right answers; `look` is called with the outputs and labels of every batch.
fn evaluate(
    model: &Sequential,
    device: &Device,
    batches: &DataLoader<(Tensor<Int>, Tensor<Int>)>,
    mut look: impl FnMut(&Tensor, &Tensor<Int>) -> Result<()>,
) -> Result<(f64, f64)> {
    model.eval();
    no_grad(|| {
        let (mut loss, mut right) = (0.0, 0.0);
        for batch in batches {
            let (xb, yb) = batch?;
            let (xb, yb) = (xb.to(device)?, yb.to(device)?);
            let out = model.forward(&pixels(&xb)?)?;
            let mean_loss: f64 = F::cross_entropy(&out, &yb)?.item()?;
            let n_right: f64 = out.argmax(1)?.eq(&yb)?.to_float()?.sum(..)?.item()?;
            (loss, right) = (loss + mean_loss * yb.len() as f64, right + n_right);
            look(&out, &yb)?;
        }
        let n_samples = batches.n_samples() as f64;
        Ok((loss / n_samples, right / n_samples))
    })
}

fn progress_bar(epoch: usize, epochs: usize, n_samples: usize) -> ProgressBar {
    let style =
        ProgressStyle::with_template("epoch {prefix} {bar:40} {human_pos}/{human_len} images, loss {msg}, {per_sec}");
    ProgressBar::new(n_samples as u64)
        .with_prefix(format!("{}/{epochs}", epoch + 1))
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
