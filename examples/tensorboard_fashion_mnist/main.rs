//! "Visualizing Models, Data, and Training with TensorBoard" in Rust: the walkthrough's six sections, in its order.
//!
//! `cargo run --release --example tensorboard_fashion_mnist`, then `tensorboard --logdir runs`
//! (the walkthrough: <https://docs.pytorch.org/tutorials/intermediate/tensorboard_tutorial.html>).
//! The first line of the output says which pictures are used: Fashion-MNIST, MNIST, or generated digits.

#[path = "../common/mod.rs"]
mod common;
mod figure;
mod net;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use pagelock::board::{Embedding, GridOptions, SummaryWriter, make_grid};
use pagelock::nn::{functional as F, record_graph};
use pagelock::prelude::*;

use common::clothes;
use net::Net;

/// Train on Fashion-MNIST, and watch it in TensorBoard
#[derive(Parser)]
struct Args {
    /// Folder with the four files of Fashion-MNIST or MNIST [default: $PAGELOCK_DATA/fashion-mnist,
    /// $PAGELOCK_DATA/mnist, else the cache folder, where MNIST is downloaded once]
    #[arg(long)]
    data: Option<PathBuf>,
    /// Folder of the event files
    #[arg(long, default_value = "runs/fashion_mnist")]
    out: PathBuf,
    /// Steps of four pictures [default: one pass over the pictures]
    #[arg(long)]
    steps: Option<usize>,
    /// Seed of weights and order; the same seed gives the same bits
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

fn main() -> Result<()> {
    let args: Args = common::arguments();
    common::make_folder(&args.out)?;
    let generated = || Ok(Mnist::new().open_or_generate(args.seed)?);
    let digits = clothes::find(args.data.as_deref(), Mnist::new(), generated)?;
    println!("{digits}");
    let classes = clothes::classes(&digits);
    manual_seed(args.seed);
    let train_dl = DataLoader::new(digits.train.bytes()).batch_size(4).shuffle(args.seed);
    let test_dl = DataLoader::new(digits.test.bytes()).batch_size(250);
    let net = Net::new()?;

    // 1. Setting up TensorBoard
    let writer = SummaryWriter::new(&args.out)?;

    // 2. Writing to TensorBoard
    let Some(batch) = train_dl.iter().next() else { anyhow::bail!("there are no pictures to train with") };
    let (images, _) = batch?;
    writer.add_image("four_images", &make_grid(&images, GridOptions::default())?, 0)?;

    // 3. Inspecting the model
    writer.add_graph(&record_graph(&net, &pixels(&images)?)?)?;

    // 4. Adding a projector
    add_projector(&digits.train, args.seed.wrapping_add(1), &writer, &classes)?;

    // 5. Tracking model training
    let steps = args.steps.unwrap_or(train_dl.n_samples() / 4);
    train(&net, &train_dl, steps, &writer, &classes)?;

    // 6. Assessing trained models
    let accuracy = assess(&net, &test_dl, steps, &writer, &classes)?;
    writer.close()?;
    println!(
        "test accuracy {:.2} %; to see the results: tensorboard --logdir {}",
        100.0 * accuracy,
        args.out.display()
    );
    Ok(())
}

/// Adds the pixels of a hundred random pictures as points, each drawn as its picture.
fn add_projector(train: &Digits, seed: u64, writer: &SummaryWriter, classes: &[&str; 10]) -> Result<()> {
    let hundred = DataLoader::new(train.bytes()).batch_size(100).shuffle(seed);
    if let Some(batch) = hundred.iter().next() {
        let (images, labels) = batch?;
        let features = images.reshape([-1, 784])?;
        let names = labels.to_vec::<i64>()?.into_iter().map(|label| classes[label as usize]);
        writer.add_embedding("default", &Embedding::new(&features)?.labels(names).images(&images)?, 0)?;
    }
    Ok(())
}

/// Converts bytes to the network's inputs, from -1 to 1.
fn pixels(bytes: &Tensor<Int>) -> Result<Tensor> {
    Ok((bytes.scaled(2.0 / 255.0)? - 1.0)?)
}

/// Writes the running loss and some predictions every thousand batches.
fn train(
    net: &Net,
    train_dl: &DataLoader<(Tensor<Int>, Tensor<Int>)>,
    steps: usize,
    writer: &SummaryWriter,
    classes: &[&str; 10],
) -> Result<()> {
    let mut opt = Sgd::new(net.parameters(), 0.001).momentum(0.9);
    let mut running_loss = 0.0;
    let mut step = 0;
    while step < steps {
        for batch in train_dl.iter().take(steps - step) {
            let (images, labels) = batch?;
            let out = net.forward(&pixels(&images)?)?;
            let loss = F::cross_entropy(&out, &labels)?;
            loss.backward()?;
            opt.step()?;
            opt.zero_grad();

            running_loss += loss.item::<f64>()?;
            step += 1;
            if step % 1000 == 0 {
                println!("step {step}: loss {:.4}", running_loss / 1000.0);
                writer.add_scalar("training loss", running_loss / 1000.0, step)?;
                running_loss = 0.0;
                let figure = figure::predictions(&out.detach(), &images, &labels, classes)?;
                writer.add_figure("predictions vs. actuals", &figure, step)?;
                for (name, parameter) in net.named_parameters() {
                    writer.add_histogram(&name.replace('.', "/"), parameter.as_tensor(), step)?;
                }
            }
        }
    }
    Ok(())
}

/// Writes a precision-recall curve for each class; returns the share of right answers.
fn assess(
    net: &Net,
    test_dl: &DataLoader<(Tensor<Int>, Tensor<Int>)>,
    step: usize,
    writer: &SummaryWriter,
    classes: &[&str; 10],
) -> Result<f64> {
    let (mut probabilities, mut labels) = (Vec::<f32>::new(), Vec::<i64>::new());
    for batch in test_dl {
        let (images, yb) = batch?;
        let images = pixels(&images)?;
        let out = no_grad(|| net.forward(&images))?;
        probabilities.extend(out.softmax(1)?.to_vec::<f32>()?);
        labels.extend(yb.to_vec::<i64>()?);
    }
    for (class, name) in classes.iter().enumerate() {
        let truths: Vec<i64> = labels.iter().map(|&label| i64::from(label == class as i64)).collect();
        let predictions: Vec<f32> = probabilities.iter().skip(class).step_by(10).copied().collect();
        writer.add_pr_curve(name, &truths, &predictions, step)?;
    }
    let answers = probabilities.chunks_exact(10).map(figure::best);
    let n_right = answers.zip(&labels).filter(|((answer, _), label)| *answer as i64 == **label).count();
    Ok(n_right as f64 / labels.len() as f64)
}
