//! A residual network for 32 × 32 pictures (He et al., 2015, section 4.2), with random crops and flips.
//!
//! `cargo run --release --example models_resnet -- --data cifar-10-batches-bin`; without CIFAR-10 it trains on drawn shapes.

#[path = "../common/beside.rs"]
mod beside;
#[path = "../common/mod.rs"]
mod common;

use anyhow::{Context, Result, ensure};
use common::options::Options;
use common::{photos, pictures};
use pagelock::data::transforms::{Normalize, RandomCrop, RandomHorizontalFlip, ToFloat, Transform};
use pagelock::nn::functional as F;
use pagelock::nn::metrics::Accuracy;
use pagelock::nn::optim::lr_scheduler::{LrScheduler, OneCycleLr};
use pagelock::prelude::*;

/// A convolution without bias, since batch normalization follows.
fn conv3x3(from: usize, to: usize, stride: usize) -> Result<Conv2d> {
    Ok(Conv2d::new(from, to, 3)?.stride(stride).padding(1).without_bias())
}

#[derive(Module)]
struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    shortcut: Sequential,
}

impl BasicBlock {
    fn new(from: usize, to: usize, stride: usize) -> Result<Self> {
        let shortcut = match from == to {
            true => Sequential::new(()),
            false => Sequential::new((Conv2d::new(from, to, 1)?.stride(stride).without_bias(), BatchNorm2d::new(to)?)),
        };
        Ok(Self {
            conv1: conv3x3(from, to, stride)?,
            bn1: BatchNorm2d::new(to)?,
            conv2: conv3x3(to, to, 1)?,
            bn2: BatchNorm2d::new(to)?,
            shortcut,
        })
    }
}

impl Forward for BasicBlock {
    fn forward(&self, x: &Tensor) -> pagelock::tensor::Result<Tensor> {
        let out = F::relu(&self.bn1.forward(&self.conv1.forward(x)?)?)?;
        let out = self.bn2.forward(&self.conv2.forward(&out)?)?;
        F::relu(&(out + self.shortcut.forward(x)?)?)
    }
}

#[derive(Module)]
struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    layer1: Vec<BasicBlock>,
    layer2: Vec<BasicBlock>,
    layer3: Vec<BasicBlock>,
    fc: Linear,
}

impl ResNet {
    /// Three stages of `n` blocks: 6n + 2 layers.
    fn new(n: usize) -> Result<Self> {
        let stage = |from, to, stride| -> Result<Vec<BasicBlock>> {
            let block = |i| if i == 0 { BasicBlock::new(from, to, stride) } else { BasicBlock::new(to, to, 1) };
            (0..n).map(block).collect()
        };
        Ok(Self {
            conv1: conv3x3(3, 16, 1)?,
            bn1: BatchNorm2d::new(16)?,
            layer1: stage(16, 16, 1)?,
            layer2: stage(16, 32, 2)?,
            layer3: stage(32, 64, 2)?,
            fc: Linear::new(64, 10)?,
        })
    }
}

impl Forward for ResNet {
    fn forward(&self, x: &Tensor) -> pagelock::tensor::Result<Tensor> {
        let mut x = F::relu(&self.bn1.forward(&self.conv1.forward(x)?)?)?;
        for block in self.layer1.iter().chain(self.layer2.iter()).chain(self.layer3.iter()) {
            x = block.forward(&x)?;
        }
        self.fc.forward(&F::adaptive_avg_pool2d(&x, [1, 1])?.flatten(1, -1)?)
    }
}

fn main() -> Result<()> {
    let options = Options::read("A residual network on small color pictures, with random crops and flips")?;
    let (device, out) = (options.device()?, options.folder()?);
    let set = photos::open(&options, options.pick(1_024, 20_000), options.pick(256, 2_000))?;
    beside_pytorch(&device)?;

    let crop = RandomCrop { padding: 4, ..RandomCrop::new([32, 32]) };
    let augment = (crop, RandomHorizontalFlip { p: 0.5 }, ToFloat, NORMALIZE);
    let train_dl = loader(&set.train, augment, options.seed).batch_size(64).shuffle(options.seed);
    let test_dl = loader(&set.test, (ToFloat, NORMALIZE), options.seed).batch_size(128);
    let model = ResNet::new(options.pick(1, 3))?.to(&device)?;
    println!("{} parameters, on {device}", model.num_parameters());
    let epochs = options.pick(2, 15);
    let mut opt = Sgd::new(model.parameters(), 0.1).momentum(0.9).weight_decay(5e-4);
    let mut scheduler = LrScheduler::new(&mut opt, OneCycleLr::new(0.1, (epochs * train_dl.len()?) as u64))?;
    let (mut losses, mut accuracies) = (Vec::new(), Vec::new());
    for epoch in 0..epochs {
        model.train();
        let total = Tensor::on(&device).zeros(())?;
        for batch in &train_dl {
            let (images, labels) = batch?;
            let loss = F::cross_entropy(&model.forward(&images.to(&device)?)?, &labels.to(&device)?)?;
            loss.backward()?;
            opt.step()?;
            opt.zero_grad();
            scheduler.step(&mut opt)?;
            total.add_(&loss.detach())?;
        }
        losses.push(total.item::<f64>()? / train_dl.len()? as f64);
        accuracies.push(100.0 * accuracy(&model, &test_dl, &device)?);
        println!("epoch {}/{epochs}: loss {:.3}, test accuracy {:.1} %", epoch + 1, losses[epoch], accuracies[epoch]);
    }
    pictures::lines(&out.join("loss.svg"), "training loss", "epoch", &[("loss", &losses)])?;
    draw(&model, &set, &device, &out.join("predictions.svg"))?;
    save_safetensors(&model.state_dict(), out.join("model.safetensors"))?;
    println!("model.safetensors, loss.svg and predictions.svg are in {}", out.display());
    ensure!(losses[epochs - 1] < losses[0], "the training loss did not fall: {losses:?}");
    Ok(())
}

type Batches = DataLoader<(Tensor, Tensor<Int>)>;

/// The means and standard deviations of CIFAR-10's channels.
const NORMALIZE: Normalize<3> = Normalize { mean: [0.4914, 0.4822, 0.4465], std: [0.2470, 0.2435, 0.2616] };

fn loader<T>(dataset: &photos::PhotoDataset, transform: T, seed: u64) -> Batches
where
    T: Transform<Tensor<Int>, Out = Tensor> + Send + Sync + 'static,
{
    let of_image = move |(image, label), random: &Generator| Ok((transform.apply(image, random)?, label));
    DataLoader::new(dataset.clone().transform(seed, of_image))
}

fn accuracy(model: &ResNet, test_dl: &Batches, device: &Device) -> Result<f64> {
    model.eval();
    let accuracy = Accuracy::new()?.to(device)?;
    no_grad(|| {
        for batch in test_dl {
            let (images, labels) = batch?;
            accuracy.update(&model.forward(&images.to(device)?)?, &labels.to(device)?)?;
        }
        Ok(accuracy.compute()?)
    })
}

/// Draws the first test pictures with their predicted classes.
fn draw(model: &ResNet, set: &photos::Photos, device: &Device, path: &std::path::Path) -> Result<()> {
    let (images, labels) = loader(&set.test, (ToFloat, NORMALIZE), 0)
        .batch_size(16)
        .iter()
        .next()
        .context("there are no test pictures")??;
    let predicted = no_grad(|| model.forward(&images.to(device)?)?.argmax(1))?.to_vec::<i64>()?;
    let caption = |(label, predicted): (i64, i64)| {
        let [label, predicted] = [label, predicted].map(|number| set.classes[number as usize]);
        (if label == predicted { label.to_owned() } else { format!("{predicted}, is {label}") }, label == predicted)
    };
    let captions: Vec<_> = labels.to_vec::<i64>()?.into_iter().zip(predicted).map(caption).collect();
    pictures::grid(path, "predictions on test pictures", 8, &((images * 0.25)? + 0.47)?, &captions)
}

/// Compares one step of a ResNet-8 on eight pictures with PyTorch's.
fn beside_pytorch(device: &Device) -> Result<()> {
    let model = ResNet::new(1)?.to(device)?;
    beside::fill(&model.named_parameters())?;
    let images = beside::numbers(&[8, 3, 32, 32], 1000, device)?;
    let labels = Tensor::on(device).arange(0, 8, 1)?;
    let mut opt = Sgd::new(model.parameters(), 0.01).momentum(0.9).weight_decay(5e-4);
    beside::one_step("resnet", &model.named_parameters(), &mut opt, &|| {
        Ok(F::cross_entropy(&model.forward(&images)?, &labels)?)
    })
}
