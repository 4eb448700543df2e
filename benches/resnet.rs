//! Times a training step of a ResNet-18 with momentum on batches of 512 images of 32 × 32 pixels. The model is
//! `torchvision.models.resnet18` with a first convolution of 3 × 3 pixels and no pooling after it.
//!
//! ```text
//! cargo bench --bench resnet -- [--batch 512] [--steps 20] [--precision f32|mixed|bf16] [--channels-last]
//! ```
//! Without a GPU it trains a few small batches on the CPU instead.

use std::time::Instant;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use pagelock::nn::functional as F;
use pagelock::prelude::*;

/// Times a training step of a ResNet-18
#[derive(Parser)]
struct Args {
    /// Pictures in a batch
    #[arg(long)]
    batch: Option<usize>,
    /// How many steps are timed, after three that are not
    #[arg(long)]
    steps: Option<usize>,
    /// Precision of weights and activations
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    precision: Precision,
    /// Weights, pictures and activations in the channels-last layout
    #[arg(long)]
    channels_last: bool,
    /// `cargo bench` passes this
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Precision {
    /// Everything in float32
    F32,
    /// Weights in float32, the forward pass under autocast to bfloat16
    Mixed,
    /// Weights and activations in bfloat16
    Bf16,
}

/// Two convolutions with a residual connection.
#[derive(Module)]
struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    downsample: Option<Sequential>,
}

fn conv(from: usize, to: usize, kernel: usize) -> Result<Conv2d> {
    Ok(Conv2d::new(from, to, kernel)?.padding(kernel / 2).without_bias())
}

impl BasicBlock {
    fn new(from: usize, to: usize, stride: usize) -> Result<Self> {
        let downsample = (stride != 1 || from != to)
            .then(|| anyhow::Ok((conv(from, to, 1)?.stride(stride), BatchNorm2d::new(to)?)))
            .transpose()?;
        Ok(Self {
            conv1: conv(from, to, 3)?.stride(stride),
            bn1: BatchNorm2d::new(to)?,
            conv2: conv(to, to, 3)?,
            bn2: BatchNorm2d::new(to)?,
            downsample: downsample.map(Sequential::new),
        })
    }
}

impl Forward for BasicBlock {
    fn forward(&self, x: &Tensor) -> pagelock::tensor::Result<Tensor> {
        let y = self.bn1.forward_relu(&self.conv1.forward(x)?)?;
        let y = self.bn2.forward(&self.conv2.forward(&y)?)?;
        let around = match &self.downsample {
            Some(downsample) => downsample.forward(x)?,
            None => x.clone(),
        };
        (y + around)?.relu()
    }
}

fn resnet18(classes: usize) -> Result<Sequential> {
    let layer = |from: usize, to: usize, stride: usize| -> Result<Sequential> {
        Ok(Sequential::new((BasicBlock::new(from, to, stride)?, BasicBlock::new(to, to, 1)?)))
    };
    Ok(Sequential::new((
        conv(3, 64, 3)?,
        BatchNorm2d::new(64)?,
        ReLU,
        layer(64, 64, 1)?,
        layer(64, 128, 2)?,
        layer(128, 256, 2)?,
        layer(256, 512, 2)?,
        AdaptiveAvgPool2d::new(1),
        Flatten::new(),
        Linear::new(512, classes)?,
    )))
}

fn main() -> Result<()> {
    let args = Args::parse();
    manual_seed(0);
    let device = Device::best();
    let (batch, steps) = if device.is_cpu() { (8, 2) } else { (512, 20) };
    let (batch, steps) = (args.batch.unwrap_or(batch), args.steps.unwrap_or(steps));
    let dtype = if args.precision == Precision::Bf16 { DType::BF16 } else { DType::F32 };
    let model = resnet18(10)?.to_dtype(dtype)?.to(&device)?;
    let x = Tensor::randn([batch, 3, 32, 32])?.to_dtype(dtype)?.to(&device)?;
    let (model, x) = if args.channels_last { (model.channels_last()?, x.channels_last()?) } else { (model, x) };
    let mut opt = Sgd::new(model.parameters(), 0.1).momentum(0.9);
    let labels = Tensor::from_vec((0..batch as i64).map(|i| i % 10).collect(), batch)?.to(&device)?;
    let loss = || F::cross_entropy(&model.forward(&x)?, &labels);
    let mut step = || -> Result<Tensor> {
        let loss = if args.precision == Precision::Mixed { autocast(Half::BF16, loss)? } else { loss()? };
        loss.backward()?;
        opt.step()?;
        opt.zero_grad();
        Ok(loss.detach())
    };
    let first: f64 = step()?.item()?;
    for _ in 0..2 {
        step()?;
    }
    device.synchronize()?;
    let start = Instant::now();
    let mut last = step()?;
    for _ in 1..steps {
        last = step()?;
    }
    let last: f64 = last.item()?; // waits for all steps
    let ms = start.elapsed().as_secs_f64() * 1e3 / steps as f64;
    let precision = args.precision.to_possible_value();
    let precision = precision.as_ref().map_or("", |value| value.get_name());
    println!("resnet18 on {device}, {precision}, batch {batch}: {ms:.2} ms a step, loss {first:.3} to {last:.3}");
    Ok(())
}
