//! "Training a Classifier" of PyTorch's "60 minute blitz": CIFAR-10, accuracy of each class, a grid of predictions.
//!
//! `cargo run --release --example blitz_cifar10 -- --data cifar-10-batches-bin` (the page:
//! <https://docs.pytorch.org/tutorials/beginner/blitz/cifar10_tutorial.html>). Without CIFAR-10 it trains on drawn shapes.

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Context, Result, ensure};
use common::options::Options;
use common::{photos, pictures};
use pagelock::data::transforms::{Normalize, ToFloat, Transform};
use pagelock::nn::functional as F;
use pagelock::prelude::*;

fn main() -> Result<()> {
    let options = Options::read("PyTorch's blitz, CIFAR-10: training a classifier, accuracy of each class")?;
    let (device, out) = (options.device()?, options.folder()?);

    // 1. Load and normalize CIFAR10
    let set = photos::open(&options, options.pick(3_200, 50_000), options.pick(400, 10_000))?;
    let batch_size = options.pick(8, 4);
    let trainloader = loader(&set.train, batch_size).shuffle(options.seed);
    let testloader = loader(&set.test, batch_size);

    // 2. Define a Convolutional Neural Network: below. 5. Training on GPU: the same, with `to`
    let net = Net::new()?.to(&device)?;
    println!("{net}\non {device}");
    if Device::cuda(1).is_ok() {
        println!("there are several GPUs: one is used here; --device cuda:1 takes another");
    }

    // 3. Define a Loss function and optimizer
    let criterion = CrossEntropyLoss::new();
    let mut optimizer = Sgd::new(net.parameters(), options.pick(4, 1) as f64 * 1e-3).momentum(0.9);

    // 4. Train the network
    let every = options.pick(100, 2000); // mini-batches
    let mut losses = Vec::new();
    for epoch in 0..2 {
        let mut running_loss = 0.0;
        for (i, data) in trainloader.iter().enumerate() {
            let (inputs, labels) = data?;
            let (inputs, labels) = (inputs.to(&device)?, labels.to(&device)?);

            let outputs = net.forward(&inputs)?;
            let loss = criterion.forward(&outputs, &labels)?;
            loss.backward()?;
            optimizer.step()?;
            optimizer.zero_grad();

            running_loss += loss.item::<f64>()?;
            if i % every == every - 1 {
                losses.push(running_loss / every as f64);
                println!("[{}, {:>5}] loss: {:.3}", epoch + 1, i + 1, running_loss / every as f64);
                running_loss = 0.0;
            }
        }
    }
    println!("Finished Training");
    pictures::lines(&out.join("loss.svg"), "training loss", "report", &[("loss", &losses)])?;
    let path = out.join("cifar_net.safetensors");
    save_safetensors(&net.state_dict(), &path)?;

    // 5. Test the network on the test data
    let net = Net::new()?.to(&device)?;
    net.load_state_dict(&load_safetensors(&path)?)?;
    draw_predictions(&net, &set, &device, &out.join("predictions.svg"))?;
    let (correct, total) = count(&net, &testloader, &device)?;
    let accuracy = 100.0 * correct.iter().sum::<usize>() as f64 / total.iter().sum::<usize>() as f64;
    println!("Accuracy of the network on the {} test images: {accuracy:.0} %", set.test.len()); // on CIFAR-10: 54 %
    for ((name, correct), total) in set.classes.iter().zip(correct).zip(total) {
        println!("Accuracy for class: {name:8} is {:.1} %", 100.0 * correct as f64 / total.max(1) as f64);
    }
    println!("cifar_net.safetensors, loss.svg and predictions.svg are in {}", out.display());
    ensure!(accuracy > 20.0, "the network learned nothing: its accuracy is {accuracy:.1} %, and chance gives 10 %");
    Ok(())
}

type Batches = DataLoader<(Tensor, Tensor<Int>)>;

/// transforms.Compose([ToTensor(), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]); CIFAR's files are channels-first
/// already.
fn loader(dataset: &photos::PhotoDataset, batch_size: usize) -> Batches {
    let transform = (ToFloat, Normalize { mean: [0.5; 3], std: [0.5; 3] });
    let normal = move |(image, label), random: &_| Ok((transform.apply(image, random)?, label));
    DataLoader::new(dataset.clone().transform(0, normal)).batch_size(batch_size)
}

#[derive(Module)]
struct Net {
    conv1: Conv2d,
    pool: MaxPool2d,
    conv2: Conv2d,
    fc1: Linear,
    fc2: Linear,
    fc3: Linear,
}

impl Net {
    fn new() -> Result<Self> {
        Ok(Self {
            conv1: Conv2d::new(3, 6, 5)?,
            pool: MaxPool2d::new(2),
            conv2: Conv2d::new(6, 16, 5)?,
            fc1: Linear::new(16 * 5 * 5, 120)?,
            fc2: Linear::new(120, 84)?,
            fc3: Linear::new(84, 10)?,
        })
    }
}

impl Forward for Net {
    fn forward(&self, x: &Tensor) -> pagelock::tensor::Result<Tensor> {
        let x = self.pool.forward(&F::relu(&self.conv1.forward(x)?)?)?;
        let x = self.pool.forward(&F::relu(&self.conv2.forward(&x)?)?)?;
        let x = x.flatten(1, -1)?; // flatten all dimensions except batch
        let x = F::relu(&self.fc1.forward(&x)?)?;
        let x = F::relu(&self.fc2.forward(&x)?)?;
        self.fc3.forward(&x)
    }
}

/// For each class, the number of correct predictions and the number of images.
fn count(net: &Net, testloader: &Batches, device: &Device) -> Result<([usize; 10], [usize; 10])> {
    let (mut correct, mut total) = ([0; 10], [0; 10]);
    no_grad(|| {
        for data in testloader {
            let (images, labels) = data?;
            let predicted = net.forward(&images.to(device)?)?.argmax(1)?.to_vec::<i64>()?;
            for (label, predicted) in labels.to_vec::<i64>()?.into_iter().zip(predicted) {
                correct[label as usize] += usize::from(label == predicted);
                total[label as usize] += 1;
            }
        }
        Ok((correct, total))
    })
}

/// Draws the first test images with their predicted classes.
fn draw_predictions(net: &Net, set: &photos::Photos, device: &Device, path: &std::path::Path) -> Result<()> {
    let (images, labels) = loader(&set.test, 16).iter().next().context("there are no test images")??;
    let predicted = no_grad(|| net.forward(&images.to(device)?)?.argmax(1))?.to_vec::<i64>()?;
    let labels = labels.to_vec::<i64>()?;
    let names = |numbers: &[i64]| {
        let names: Vec<&str> = numbers.iter().take(4).map(|&number| set.classes[number as usize]).collect();
        names.join(" ")
    };
    println!("GroundTruth: {}\nPredicted:   {}", names(&labels), names(&predicted));
    let caption = |(&label, &predicted): (&i64, &i64)| {
        let [label, predicted] = [label, predicted].map(|number| set.classes[number as usize]);
        (if label == predicted { label.to_owned() } else { format!("{predicted}, is {label}") }, label == predicted)
    };
    let captions: Vec<(String, bool)> = labels.iter().zip(&predicted).map(caption).collect();
    let unnormalized = ((images * 0.5)? + 0.5)?;
    pictures::grid(path, "predictions on test images", 8, &unnormalized, &captions)
}
