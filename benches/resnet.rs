//! A training step of a ResNet-18 for images of 32 × 32 pixels, with momentum, on batches of 512: what
//! `torchvision.models.resnet18` is with a first convolution of 3 × 3 pixels and no pooling after it.
//!
//! ```text
//! cargo bench --bench resnet -- [--batch 512] [--steps 20] [--half] [--channels-last]
//! ```
//! Without a GPU it trains a few small batches on the CPU instead.

use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use half::bf16;
use pagelock::nn::functional as F;
use pagelock::prelude::*;
use pagelock::tensor::default_generator;

/// Times a training step of a ResNet-18
#[derive(Parser)]
struct Args {
    /// How many pictures a step sees
    #[arg(long)]
    batch: Option<usize>,
    /// How many steps are timed, behind three others
    #[arg(long)]
    steps: Option<usize>,
    /// Everything in bfloat16: weights and activations
    #[arg(long)]
    half: bool,
    /// Weights, pictures, and what is made of them, with the channels of a pixel next to each other
    #[arg(long)]
    channels_last: bool,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// Two convolutions, and a way around them.
#[derive(Module)]
struct BasicBlock<T: Float = f32> {
    conv1: Conv2d<T>,
    bn1: BatchNorm2d<T>,
    conv2: Conv2d<T>,
    bn2: BatchNorm2d<T>,
    downsample: Option<Sequential<T>>,
}

fn conv<T: Float>(from: usize, to: usize, kernel: usize) -> Result<Conv2d<T>> {
    Ok(Conv2d::new_with(from, to, kernel, default_generator())?.padding(kernel / 2).without_bias())
}

impl<T: Float> BasicBlock<T> {
    fn new(from: usize, to: usize, stride: usize) -> Result<Self> {
        let downsample = (stride != 1 || from != to)
            .then(|| Ok::<_, anyhow::Error>((conv::<T>(from, to, 1)?.stride(stride), BatchNorm2d::<T>::new_as(to)?)))
            .transpose()?;
        Ok(Self {
            conv1: conv(from, to, 3)?.stride(stride),
            bn1: BatchNorm2d::new_as(to)?,
            conv2: conv(to, to, 3)?,
            bn2: BatchNorm2d::new_as(to)?,
            downsample: downsample.map(Sequential::new),
        })
    }
}

impl<T: Float> Forward<T> for BasicBlock<T> {
    fn forward(&self, x: &Tensor<T>) -> pagelock::tensor::Result<Tensor<T>> {
        let y = self.bn1.forward_relu(&self.conv1.forward(x)?)?;
        let y = self.bn2.forward(&self.conv2.forward(&y)?)?;
        let around = match &self.downsample {
            Some(downsample) => downsample.forward(x)?,
            None => x.clone(),
        };
        (y + around)?.relu()
    }
}

fn resnet18<T: Float>(classes: usize) -> Result<Sequential<T>> {
    let layer = |from: usize, to: usize, stride: usize| -> Result<Sequential<T>> {
        Ok(Sequential::new((BasicBlock::<T>::new(from, to, stride)?, BasicBlock::<T>::new(to, to, 1)?)))
    };
    Ok(Sequential::new((
        conv::<T>(3, 64, 3)?,
        BatchNorm2d::<T>::new_as(64)?,
        ReLU,
        layer(64, 64, 1)?,
        layer(64, 128, 2)?,
        layer(128, 256, 2)?,
        layer(256, 512, 2)?,
        AdaptiveAvgPool2d::new(1),
        Flatten::new(),
        Linear::<T>::new_with(512, classes, default_generator())?,
    )))
}

fn run<T: Float>(args: &Args) -> Result<()> {
    manual_seed(0);
    let device = Device::best();
    let (batch, steps) = if device == Device::Cpu { (8, 2) } else { (512, 20) };
    let (batch, steps) = (args.batch.unwrap_or(batch), args.steps.unwrap_or(steps));
    let model = resnet18::<T>(10)?.to(&device)?;
    let x = Tensor::randn([batch, 3, 32, 32])?.cast::<T>()?.to(&device)?;
    let (model, x) = if args.channels_last { (model.channels_last()?, x.channels_last()?) } else { (model, x) };
    let mut opt = Sgd::new(model.parameters(), 0.1).momentum(0.9);
    let labels = Tensor::from_vec((0..batch as i64).map(|i| i % 10).collect(), batch)?.to(&device)?;
    let mut step = || -> Result<Tensor<T>> {
        let loss = F::cross_entropy(&model.forward(&x)?, &labels)?;
        loss.backward()?;
        opt.step()?;
        opt.zero_grad();
        Ok(loss.detach())
    };
    let first = step()?.item()?.cast::<f64>();
    for _ in 0..2 {
        step()?.item()?;
    }
    let start = Instant::now();
    let mut last = step()?;
    for _ in 1..steps {
        last = step()?;
    }
    let last = last.item()?.cast::<f64>(); // waits for all of it
    let ms = start.elapsed().as_secs_f64() * 1e3 / steps as f64;
    println!("resnet18 on {device}, {}, batch {batch}: {ms:.2} ms a step, loss {first:.3} to {last:.3}", T::DTYPE);
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.half { run::<bf16>(&args) } else { run::<f32>(&args) }
}
