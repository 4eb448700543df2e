//! "Optimizing Model Parameters" of PyTorch's "Learn the Basics": hyperparameters, the training loop and the test loop.
//!
//! `cargo run --release --example basics_optimization` (the page:
//! <https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html>)

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Result, ensure};
use common::options::Options;
use common::{clothes, pictures};
use pagelock::prelude::*;

fn main() -> Result<()> {
    let options = Options::read("PyTorch's optimization: hyperparameters, the training loop and the test loop")?;
    let (device, out) = (options.device()?, options.folder()?);

    // Prerequisite code
    let (set, _) = clothes::open(&options)?;
    let train_dataloader = DataLoader::new(set.train).batch_size(64).shuffle(options.seed);
    let test_dataloader = DataLoader::new(set.test).batch_size(64);
    let model = Sequential::new((
        Flatten::new(),
        Linear::new(28 * 28, 512)?,
        ReLU,
        Linear::new(512, 512)?,
        ReLU,
        Linear::new(512, 10)?,
    ))
    .to(&device)?;

    // Hyperparameters
    let learning_rate = 1e-3;
    let epochs = options.pick(2, 10);

    // Loss function and optimizer
    let loss_fn = CrossEntropyLoss::new();
    let mut optimizer = Sgd::new(model.parameters(), learning_rate);

    // Full implementation
    let mut losses = vec![test_loop(&test_dataloader, &model, &loss_fn, &device)?];
    for t in 0..epochs {
        println!("Epoch {}\n-------------------------------", t + 1);
        train_loop(&train_dataloader, &model, &loss_fn, &mut optimizer, &device)?;
        losses.push(test_loop(&test_dataloader, &model, &loss_fn, &device)?);
    }
    println!("Done!");
    pictures::lines(&out.join("loss.svg"), "test loss", "epoch (1: before training)", &[("loss", &losses)])?;
    println!("the test loss by epoch is drawn in {}", out.join("loss.svg").display());
    ensure!(losses.windows(2).all(|pair| pair[1] < pair[0]), "the test loss did not fall in every epoch: {losses:?}");
    Ok(())
}

type Batches = DataLoader<(Tensor, Tensor<Int>)>;

fn train_loop(
    dataloader: &Batches,
    model: &Sequential,
    loss_fn: &CrossEntropyLoss,
    optimizer: &mut Sgd,
    device: &Device,
) -> Result<()> {
    let (size, batch_size) = (dataloader.n_samples(), 64);
    // Set the model to training mode: important for batch normalization and dropout layers
    model.train();
    for (batch, samples) in dataloader.iter().enumerate() {
        let (x, y) = samples?;
        // Compute prediction and loss
        let pred = model.forward(&x.to(device)?)?;
        let loss = loss_fn.forward(&pred, &y.to(device)?)?;

        // Backpropagation
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();

        if batch % 100 == 0 {
            let (loss, current) = (loss.item::<f32>()?, batch * batch_size + x.dims()[0]);
            println!("loss: {loss:>7.6}  [{current:>5}/{size:>5}]");
        }
    }
    Ok(())
}

fn test_loop(dataloader: &Batches, model: &Sequential, loss_fn: &CrossEntropyLoss, device: &Device) -> Result<f64> {
    // Set the model to evaluation mode: important for batch normalization and dropout layers
    model.eval();
    let (size, num_batches) = (dataloader.n_samples() as f64, dataloader.len()? as f64);
    let (mut test_loss, mut correct) = (0.0, 0.0);
    no_grad(|| {
        for batch in dataloader {
            let (x, y) = batch?;
            let (pred, y) = (model.forward(&x.to(device)?)?, y.to(device)?);
            test_loss += loss_fn.forward(&pred, &y)?.item::<f64>()?;
            correct += pred.argmax(1)?.eq(&y)?.to_float()?.sum(..)?.item::<f64>()?;
        }
        anyhow::Ok(())
    })?;
    test_loss /= num_batches;
    println!("Test Error:\n Accuracy: {:.1}%, Avg loss: {test_loss:>8.6}\n", 100.0 * correct / size);
    Ok(test_loss)
}
