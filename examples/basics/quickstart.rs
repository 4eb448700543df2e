//! "Quickstart" of PyTorch's "Learn the Basics", cell by cell: data, a model, training, saving, loading, predicting.
//!
//! `cargo run --release --example basics_quickstart` (the page:
//! <https://docs.pytorch.org/tutorials/beginner/basics/quickstart_tutorial.html>)

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Result, ensure};
use common::options::Options;
use common::{clothes, pictures};
use pagelock::prelude::*;

fn main() -> Result<()> {
    let options = Options::read("PyTorch's quickstart: data, a model, training, saving, loading and predicting")?;
    let (device, out) = (options.device()?, options.folder()?);

    // Working with data
    let (set, classes) = clothes::open(&options)?;
    let batch_size = 64;
    let train_dataloader = DataLoader::new(set.train.clone()).batch_size(batch_size);
    let test_dataloader = DataLoader::new(set.test.clone()).batch_size(batch_size);
    if let Some(batch) = test_dataloader.iter().next() {
        let (x, y) = batch?;
        println!("Shape of X [N, C, H, W]: {}", x.shape()); // torch.Size([64, 1, 28, 28])
        println!("Shape of y: {} {}", y.shape(), y.dtype()); // torch.Size([64]) torch.int64
    }

    // Creating models
    println!("Using {device} device");
    let model = NeuralNetwork::new()?.to(&device)?;
    println!("{model}"); // the same text as PyTorch's

    // Optimizing the model parameters
    let loss_fn = CrossEntropyLoss::new();
    let mut optimizer = Sgd::new(model.parameters(), 1e-3);
    let epochs = options.pick(2, 5);
    let mut losses = vec![test(&test_dataloader, &model, &loss_fn, &device)?];
    for t in 0..epochs {
        println!("Epoch {}\n-------------------------------", t + 1);
        train(&train_dataloader, &model, &loss_fn, &mut optimizer, &device)?;
        losses.push(test(&test_dataloader, &model, &loss_fn, &device)?);
    }
    println!("Done!");
    pictures::lines(&out.join("loss.svg"), "test loss", "epoch (1: before training)", &[("loss", &losses)])?;
    ensure!(losses[epochs] < losses[0], "training did not lower the test loss: {losses:?}");

    // Saving models
    let path = out.join("model.safetensors");
    save_safetensors(&model.state_dict(), &path)?; // `save_torch` writes a .pth for torch.load
    println!("Saved model state to {}", path.display());

    // Loading models
    let model = NeuralNetwork::new()?.to(&device)?;
    model.load_state_dict(&load_safetensors(&path)?)?;
    let again = test(&test_dataloader, &model, &loss_fn, &device)?;
    ensure!(again == losses[epochs], "the loaded model has another loss: {again} instead of {}", losses[epochs]);

    model.eval();
    let (x, y) = set.test.get(0)?;
    let pred = no_grad(|| model.forward(&x.unsqueeze(0)?.to(&device)?))?;
    let predicted = classes[pred.select(0, 0)?.argmax(0)?.item::<i64>()? as usize];
    let actual = classes[y.item::<i64>()? as usize];
    println!("Predicted: \"{predicted}\", Actual: \"{actual}\"");
    Ok(())
}

#[derive(Module)]
struct NeuralNetwork {
    flatten: Flatten,
    linear_relu_stack: Sequential,
}

impl NeuralNetwork {
    fn new() -> Result<Self> {
        Ok(Self {
            flatten: Flatten::new(),
            linear_relu_stack: Sequential::new((
                Linear::new(28 * 28, 512)?,
                ReLU,
                Linear::new(512, 512)?,
                ReLU,
                Linear::new(512, 10)?,
            )),
        })
    }
}

impl Forward for NeuralNetwork {
    fn forward(&self, x: &Tensor) -> pagelock::tensor::Result<Tensor> {
        let x = self.flatten.forward(x)?;
        self.linear_relu_stack.forward(&x)
    }
}

type Batches = DataLoader<(Tensor, Tensor<Int>)>;

fn train(
    dataloader: &Batches,
    model: &NeuralNetwork,
    loss_fn: &CrossEntropyLoss,
    optimizer: &mut Sgd,
    device: &Device,
) -> Result<()> {
    let size = dataloader.n_samples();
    model.train();
    for (batch, samples) in dataloader.iter().enumerate() {
        let (x, y) = samples?;
        let (x, y) = (x.to(device)?, y.to(device)?);

        // Compute prediction error
        let pred = model.forward(&x)?;
        let loss = loss_fn.forward(&pred, &y)?;

        // Backpropagation
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();

        if batch % 100 == 0 {
            let (loss, current) = (loss.item::<f32>()?, (batch + 1) * x.dims()[0]);
            println!("loss: {loss:>7.6}  [{current:>5}/{size:>5}]");
        }
    }
    Ok(())
}

fn test(dataloader: &Batches, model: &NeuralNetwork, loss_fn: &CrossEntropyLoss, device: &Device) -> Result<f64> {
    let (size, num_batches) = (dataloader.n_samples() as f64, dataloader.len()? as f64);
    model.eval();
    let (mut test_loss, mut correct) = (0.0, 0.0);
    no_grad(|| {
        for batch in dataloader {
            let (x, y) = batch?;
            let (x, y) = (x.to(device)?, y.to(device)?);
            let pred = model.forward(&x)?;
            test_loss += loss_fn.forward(&pred, &y)?.item::<f64>()?;
            correct += pred.argmax(1)?.eq(&y)?.to_float()?.sum(..)?.item::<f64>()?;
        }
        anyhow::Ok(())
    })?;
    test_loss /= num_batches;
    correct /= size;
    println!("Test Error:\n Accuracy: {:.1}%, Avg loss: {test_loss:>8.6}\n", 100.0 * correct);
    Ok(test_loss)
}
